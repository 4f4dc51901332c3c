"""Exactness where drafts are often right: paths of four tokens and more are accepted, in chains,
growing trees, lattices and blocks.

Nothing is trained. The target is a random network whose embedding and projection make a word's
successor likely, and every draft knows these successors. The target's layers lead it off them, at
places that depend on the whole text. In float32 an output may part from that of greedy decoding
only at a near tie. Each law of samples is also tested with a rule that is wrong in one place. The
slow tests take ten thousand rows of each kind, and print the margins.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec import struct
from fastdec.decoding.inputs import make_prompt
from fastdec.decoding.protocol import Accepted
from fastdec.decoding.sampling import draw
from fastdec.decoding.score import read_targets
from fastdec.decoding.strategy import LoopStrategy
from fastdec.decoding.topology import take_node
from fastdec.evaluation.agreement import NEAR_TIE, find_gaps
from fastdec.heads.block import BlockNetwork
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.medusa import MedusaHeads
from fastdec.models.lm import LM, LMConfig
from fastdec.models.ngram import NGram
from fastdec.struct import Bound
from tests.decoding.methods_table import DEEP, DEEPEST, DRAWN, LAW, Kit
from tests.decoding.rules.test_rejection import p_value
from tests.decoding.test_sampling import law_by_hand

# The words follow one another in a ring. The second choice is five places further; after one word
# it is the end.
END, WORDS, PROMPT, MAX_LEN = 1, 18, 4, 32
VOCAB, WIDTH = 2 + WORDS, 32
ROWS = 250  # of a program
LEAD, SECOND, LAST = 8.0, 0.6, 0.85  # logit of the next word; the other two are shares of it
CALM = 0.9  # how much the target's layers add to the ring, as a share of what fresh layers add
LAYERS = {'d_model': WIDTH, 'd_ff': 64, 'heads': 2}
MODEL = LM(
  LMConfig(VOCAB, **LAYERS, layers=2, key_heads=1, windows=(0, 5), suppressed_ids=(0,), tied=False)
)
HEADS = {'rooted': True, 'markov': VOCAB, 'd_embed': WIDTH, 'words': VOCAB}
DRAFTED = {'layers': LMConfig(**LAYERS, layers=1), 'vocab_size': VOCAB, 'd_target': WIDTH}
DRAFTS = {
  'separate': BlockwiseHeads(k=DEEPEST + 1, d_model=WIDTH, d_ff=32, dropout=0.0, **HEADS),
  'medusa': MedusaHeads(depth=DEEPEST, d_model=WIDTH, **HEADS),
  'eagle': EagleNetwork(**DRAFTED, taps=(0, 1), fuses=True),
  'block': BlockNetwork(**DRAFTED, k=DEEPEST + 1, markov=VOCAB),
}


def ring() -> np.ndarray:
  """follows[x, y]: how likely word x is after word y."""
  order, follows = 2 + np.random.default_rng(0).permutation(WORDS), np.zeros((VOCAB, VOCAB))
  follows[np.roll(order, -1), order] = 1
  follows[np.roll(order, -5), order] = SECOND
  follows[END, order[0]] = LAST
  return follows


def calmed(params: Any, share: float) -> Any:
  """Parameters whose layers add less to what they read."""

  def one(path: Any, x: jax.Array) -> jax.Array:
    return x * share if {'out', 'down'} & {key.key for key in path} else x

  return jax.tree.map_with_path(one, params)


@functools.cache
def target() -> Bound:
  """The target: the ring, and random layers that lead off it."""
  params = calmed(MODEL.init(jax.random.key(0)), CALM)
  words = np.linalg.qr(np.random.default_rng(1).normal(size=(WIDTH, VOCAB)))[0].T
  likely = LEAD * WIDTH**-0.5 * ring() @ words  # as hidden states have a root mean square of 1
  embedding, output = (jnp.asarray(x, jnp.float32) for x in (WIDTH**0.5 * words, likely))
  return Bound(MODEL, params | {'embedding': embedding, 'output': output})


@functools.cache
def drafting(kind: str) -> tuple[Any, Any]:
  """Heads or a network that know the ring: by the bias of the word before, or by its embedding."""
  module = DRAFTS[kind]
  params = calmed(module.init(jax.random.key(2)), 0.5)
  if kind == 'eagle':
    join = jnp.eye(WIDTH, 2 * WIDTH) + 0.1 * params['network']['join']['kernel']
    return module, params | {'network': params['network'] | {'join': {'kernel': join}}}
  bias = {'before': jnp.eye(VOCAB), 'after': jnp.asarray(LEAD * ring(), jnp.float32)}
  return module, params | bias


@functools.cache
def kit() -> Kit:
  texts = np.asarray(
    fd.decode(*target(), prompts(10**6, ROWS), fd.Greedy(), max_len=MAX_LEN).tokens
  )
  texts = [row[row > 0] for row in texts]
  counted = NGram(VOCAB, successors=4, suppressed_ids=(0,))
  pool = fd.build_pool(texts, MODEL, ngram=DEEPEST, guesses=6)
  return Kit(drafting, (counted, counted.count(texts, first=0)), drafting, VOCAB, pool)


def prompts(seed: int, rows: int) -> np.ndarray:
  """Any words."""
  return np.random.default_rng(seed).integers(2, VOCAB, (rows, PROMPT))


@functools.cache
def greedy(seed: int) -> fd.Decoded:
  return fd.decode(*target(), prompts(seed, ROWS), fd.Greedy(), max_len=MAX_LEN)


def compared(name: str, chunks: int) -> tuple[int, np.ndarray]:
  """Counts a method's outputs, and where they part from greedy ones: by how much the greedy word
  leads.

  Its drafts must often be right, and its outputs must vary."""
  strategy, gaps, blocks, outputs = DEEP[name](kit()), [], [], set()
  for seed in range(chunks):
    inputs = prompts(seed, ROWS)
    plain, ours = greedy(seed), fd.decode(*target(), inputs, strategy, max_len=MAX_LEN)
    gaps.append(find_gaps(tuple(target()), inputs, ours, plain))
    blocks.append(np.asarray(ours.block_sizes))
    outputs |= {row.tobytes() for row in np.asarray(plain.tokens)}
  accepted = np.concatenate(blocks)
  accepted = accepted[accepted > 0] - 1
  assert accepted.mean() >= 3 and (accepted >= 4).mean() > 0.1, (accepted.mean(), accepted.max())
  assert len(outputs) > 50, len(outputs)
  return ROWS * chunks, np.concatenate(gaps)


@pytest.mark.parametrize('name', DEEP)
@pytest.mark.wide('block, a growing tree')
def test_deep_drafts_write_what_greedy_decoding_writes(name):
  assert (compared(name, 1)[1] < NEAR_TIE).all()


@pytest.mark.slow
@pytest.mark.parametrize('name', DEEP)
def test_ten_thousand_outputs_part_at_near_ties_only(name):
  outputs, gaps = compared(name, 40)
  print(f'{name}: {len(gaps)} of {outputs} outputs part, at leads of up to {gaps.max(initial=0):g}')
  assert (gaps < NEAR_TIE).all()


BEHIND = prompts(0, 1)  # the prompt of all samples
TOKENS = 6  # number of tokens whose joint law is tested


@functools.cache
def exact_law() -> dict[tuple[int, ...], float]:
  """{text: probability} of TOKENS tokens, or fewer where they end, by one call on each text."""
  model, params = target()
  most = LAW['top_k'] ** (TOKENS - 1)
  prompt = jax.tree.map(
    jnp.asarray, make_prompt(model, np.repeat(BEHIND, most, axis=0), None, None)
  )
  scores = jax.jit(lambda texts: model.unembed(params, read_targets(model, params, prompt, texts)))
  law, texts = {}, {(): 1.0}
  for length in range(TOKENS):
    whole = np.full((most, TOKENS), END, np.int32)
    for row, text in enumerate(texts):
      whole[row, :length] = text
    after, before, texts = np.array(scores(whole))[:, length], texts, {}
    after[:, 0] = -np.inf
    for (text, probability), logits in zip(before.items(), after, strict=False):
      for word, p in enumerate(law_by_hand(logits, *LAW.values())):
        ends = word == END or length == TOKENS - 1
        if p > 0:
          (law if ends else texts)[(*text, word)] = probability * p
  return law


@struct.pytree
class Redrawn:
  """Wrong: the token after the accepted path is drawn from the law, even if it was refused
  there."""

  rule: Any

  def __call__(self, keys, draft, logits, acceptable):
    node = self.rule(keys, draft, logits, acceptable).node
    law = self.rule.sampling.log_probs(take_node(logits, node))
    return Accepted(node, draw(jax.vmap(jax.random.fold_in, (0, None))(keys, 7), law))


@struct.pytree
class Careless(LoopStrategy):
  """A strategy with the wrong rule."""

  strategy: Any

  @property
  def drafter(self):
    return self.strategy.drafter

  @property
  def effective_rule(self):
    return Redrawn(self.strategy.effective_rule)


def drawn(strategy: Any, chunks: int) -> np.ndarray:
  """Counts how often each text of the law is written. Other texts raise a KeyError."""
  law, blocks = exact_law(), []
  places = {text: i for i, text in enumerate(law)}
  seen, inputs = np.zeros(len(law)), np.repeat(BEHIND, 2500, axis=0)
  for chunk in range(chunks):
    key = jax.random.key(chunk)
    out = fd.decode(*target(), inputs, strategy, max_len=2 * TOKENS, key=key)
    texts, times = np.unique(np.asarray(out.tokens[:, :TOKENS]), axis=0, return_counts=True)
    for text, n in zip(texts.tolist(), times, strict=True):
      seen[places[tuple(word for word in text if word)]] += n
    blocks.append(np.asarray(out.block_sizes))
  accepted = np.concatenate(blocks)
  accepted = accepted[accepted > 0] - 1
  assert accepted.mean() > 2 and accepted.max() > 4, (accepted.mean(), accepted.max())
  return seen


@pytest.mark.slow
@pytest.mark.parametrize('name', DRAWN)
def test_samples_of_every_kind_have_the_law_and_those_of_a_wrong_rule_have_not(name):
  strategy, law = DRAWN[name](kit()), exact_law()
  assert p_value(drawn(strategy, 8), law) > 1e-3
  assert p_value(drawn(Careless(strategy), 8), law) < 1e-9
