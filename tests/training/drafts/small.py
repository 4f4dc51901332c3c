"""Targets and drafts small enough to train in a blink, and packed pairs of sentences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fastdec.heads.block import BlockNetwork
from fastdec.heads.correlator import CorrelatorConfig
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.parallel import ParallelNetwork
from fastdec.models.lm import LM, LMConfig
from fastdec.models.stacks import StackConfig
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.struct import Bound
from tests.training.fakes import VOCAB, pairs

D, LAYERS = 8, 3
SIZES = {'d_model': D, 'd_ff': 12, 'heads': 2, 'dropout': 0.1}
MODELS = {
  'translation': Transformer(
    TransformerConfig(
      **SIZES, vocab_size=VOCAB, encoder_layers=1, decoder_layers=LAYERS, max_positions=64
    )
  ),
  'lm': LM(LMConfig(**SIZES, vocab_size=VOCAB, layers=LAYERS, suppressed_ids=(0,))),
}
STACK = StackConfig(
  **SIZES, encoder_layers=1, decoder_layers=1, attention_dropout=0.0, activation_dropout=0.0
)
LAYERS_OF = {'translation': STACK, 'lm': LMConfig(**SIZES, layers=2, key_heads=1)}
TAPS = {'taps': (0, 2), 'fuses': True}
# Settings of published kinds of blocks
MASKS = {'entry': 'masks', 'unknown_id': 3, 'drops_first': True}
KINDS = {
  'jetspec': MASKS | {'markov': 0, 'causal': 'all'},
  'dspark': MASKS | {'drops_first': False, 'has_confidence': True},
  'domino': MASKS | {'drops_first': False, 'drops_last': True, 'edge': 'rnn', 'gru': 5, 'bare': 1},
  'dflash2': MASKS | {'edge': 'selector', 'candidates': 4, 'conv': 2, 'conv_group': 4},
  'lilicorr': MASKS | {
    'edge': 'correlator', 'candidates': 4,
    'correlator': CorrelatorConfig(width=6, layers=2, heads=2, d_ff=9, scale=5.0),
  },
}  # fmt: skip


def network(kind, task, **settings):
  """A draft network for one of MODELS."""
  sizes = {'layers': LAYERS_OF[task], 'vocab_size': VOCAB, 'd_target': D}
  if kind != 'block':
    return {'eagle': EagleNetwork, 'parallel': ParallelNetwork}[kind](**sizes | settings)
  return BlockNetwork(**sizes | {'k': 4, 'markov': 3} | settings)


def bound(module, seed=0):
  """Binds parameters that all differ from 0: a fresh zero could hide a mistake."""
  params = jax.jit(module.init)(jax.random.key(seed))
  rng = np.random.default_rng(seed)
  is_float = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
  noisy = lambda x: x + rng.normal(0, 0.3, x.shape).astype(np.float32) if is_float(x) else x
  return Bound(module, jax.tree.map(noisy, params))


def batch_of(task, seed=0, rows=3, length=14):
  """A packed batch; every target sentence has a source."""
  batch = pairs(seed, rows, length)
  for row in range(rows if task == 'translation' else 0):
    least = min(batch['source_segment'][row].max(), batch['target_segment'][row].max())
    for side in ('source', 'target'):
      extra = batch[f'{side}_segment'][row] > least
      for part in ('', '_segment', '_position'):
        batch[f'{side}{part}'][row, extra] = 0
  return {name: jnp.asarray(value) for name, value in batch.items()}


@functools.partial(jax.jit, static_argnames='taps')
def seen_by(target, batch, taps=()):
  """Returns the features that drafts read. It is compiled, since otherwise each operation would be
  a program."""
  return target.module.features(target.params, batch, taps)


def apart(batch):
  """The same sentences, each in a row of its own; and where in the packed batch each begins: (row,
  place)."""
  sentences = []
  segments = np.asarray(batch['target_segment'])
  for row, of_row in enumerate(segments):
    for segment in range(1, of_row.max() + 1):
      sentences.append((row, segment, int((of_row == segment).argmax())))
  alone = {name: np.zeros((len(sentences), x.shape[1]), np.int32) for name, x in batch.items()}
  for i, (row, segment, _) in enumerate(sentences):
    for side in ('source', 'target'):
      inside = np.asarray(batch[f'{side}_segment'][row]) == segment
      for part, own in (('', None), ('_segment', 1), ('_position', None)):
        values = np.asarray(batch[f'{side}{part}'][row])[inside]
        alone[f'{side}{part}'][i, : inside.sum()] = values if own is None else own
  return {name: jnp.asarray(x) for name, x in alone.items()}, [
    (row, place) for row, _, place in sentences
  ]
