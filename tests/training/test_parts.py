"""A batch in parts has the gradients, losses and metrics of the whole batch, whatever a task counts
and whatever it draws; and means divide by what exists."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.medusa import MedusaHeads
from fastdec.models.fconv import FConv, FConvConfig
from fastdec.models.image_transformer import ImageTransformer, ImageTransformerConfig
from fastdec.models.lm import LM
from fastdec.models.t5 import T5, T5Config
from fastdec.models.transformer import Transformer
from fastdec.struct import Bound
from fastdec.training.drafts.losses import DraftLoss
from fastdec.training.drafts.tasks import finetuned_draft_task, frozen_draft_task
from fastdec.training.gradients import compute_gradients
from fastdec.training.state import base_task, finetuned_heads_task, frozen_heads_task
from tests.training.drafts.small import LAYERS_OF, MODELS, D, network
from tests.training.fakes import VOCAB, Bigram, Matrices

SIZES = {'vocab_size': VOCAB, 'd_model': D, 'd_ff': 12, 'heads': 2}
WIDE = {name: dataclasses.replace(model.config, dtype='float64') for name, model in MODELS.items()}
TRUNKS = {
  'lm': LM(dataclasses.replace(WIDE['lm'], layers=1)),
  'translation': Transformer(
    dataclasses.replace(WIDE['translation'], decoder_layers=1, attention_dropout=0.2)
  ),
  't5': T5(T5Config(**SIZES, d_kv=4, encoder_layers=1, decoder_layers=1, dtype='float64')),
  'fconv': FConv(FConvConfig(vocab_size=VOCAB, d_embed=D, d_out=D, encoder_layers=((D, 3),),
                             decoder_layers=((D, 3),), dtype='float64')),
  'images': ImageTransformer(ImageTransformerConfig(
    d_model=D, d_ff=12, heads=2, encoder_layers=1, decoder_layers=1, source_size=2, size=2,
    block_length=6, dtype='float64')),
}  # fmt: skip
FEW = {'lm': {'layers': 1}, 'translation': {}}  # the least to compile
HEADS = BlockwiseHeads(k=4, d_model=D, d_ff=10, dropout=0.3)
TRANSFORMED = dataclasses.replace(HEADS, first='transformed')
MEDUSA = MedusaHeads(depth=3, d_model=D, vocab_size=VOCAB)
LENGTHS = {
  'ragged': ((7, 5), (3,), (6, 2, 3), (2,)),
  'one part is empty': ((9,), (1,), (4, 3), ()),
  'nothing for the last guesses': ((3,), (3, 1), (2,), (3,)),
  'nothing to guess': ((1,), (1, 1), (1,), ()),
}


def text(lengths, with_source=False):
  """Rows of 12 places with sentences of these lengths; each source has the length plus one."""
  rng, batch = np.random.default_rng(0), {}
  for side in ('target', 'source')[: 1 + with_source]:
    for part in ('', '_segment', '_position'):
      batch[side + part] = np.zeros((len(lengths), 18), np.int32)
    for row, sizes in enumerate(lengths):
      start = 0
      for segment, size in enumerate(sizes, start=1):
        words = slice(start, start + size + (side == 'source'))
        count = words.stop - start
        batch[side][row, words] = rng.integers(1, VOCAB, count)
        batch[f'{side}_segment'][row, words] = segment
        batch[f'{side}_position'][row, words] = np.arange(count)
        start = words.stop
  return jax.tree.map(jnp.asarray, batch)


def draft_on(target, kind, task, words):
  """A draft network of one of the kinds, in float64; with `words` it lacks some of the text's."""
  layers = dataclasses.replace(LAYERS_OF[task], dtype='float64', **FEW[task])
  module = network(kind, task, layers=layers, words=words)
  params = jax.jit(module.init)(jax.random.key(1))
  if words:
    params['ids'] = jnp.array([1, 2, 3, 5, 6, 9][:words])
  return Bound(module, params)


def widen(params):
  return jax.tree.map(lambda x: jnp.asarray(np.float64(x)), params)


@functools.partial(jax.jit, static_argnums=(0,))
def fresh(model):
  return jax.tree.map(lambda x: x.astype(jnp.float64), model.init(jax.random.key(0)))


def make_task(kind, name='lm'):
  """One of the tasks, on a trunk, with every kind of dropout, weights, anchors and word lists."""
  model = TRUNKS[name]
  trunk = fresh(model)
  on, together = (model, HEADS, trunk), (model, TRANSFORMED, trunk)
  losses = DraftLoss(passes=3, decay=0.6), DraftLoss(passes=3, ce=0.1, kl=0.9, anchors=4)
  draft = lambda kind, words=None: (Bound(model, trunk), draft_on(model, kind, name, words))
  makers = {
    'base': lambda: base_task(model, start=trunk),
    'a drawn head': lambda: frozen_heads_task(*on, decay=0.7),
    'a drawn head, together': lambda: finetuned_heads_task(*together, p1_share=0.4),
    'all heads': lambda: frozen_heads_task(*on, draw='all', decay=0.5),
    'all heads, together': lambda: finetuned_heads_task(
      *together, p1_share=0.4, draw='all', anchors=3
    ),
    'medusa': lambda: frozen_heads_task(model, MEDUSA, trunk, draw='all', anchors=2),
    'eagle': lambda: frozen_draft_task(*draft('eagle'), losses[0]),
    'eagle, few words': lambda: frozen_draft_task(*draft('eagle', 4), losses[1]),
    'block': lambda: frozen_draft_task(*draft('block', 6), losses[0]),
    'eagle, together': lambda: finetuned_draft_task(*draft('eagle', 4), losses[1], 0.3, 0.1),
    'block, together': lambda: finetuned_draft_task(*draft('block'), losses[0], 0.3, 0.1),
  }
  return makers[kind]()


def same(a, b, rtol=1e-12):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-14), a, b)


@pytest.mark.parametrize(('kind', 'name'), [
  ('base', 'lm'), ('base', 'translation'), ('base', 't5'), ('base', 'fconv'), ('base', 'images'),
  ('a drawn head', 'lm'), ('a drawn head, together', 'translation'),
  ('all heads', 'lm'), ('all heads, together', 'lm'), ('all heads, together', 'translation'),
  ('medusa', 'lm'),
  ('eagle', 'lm'), ('eagle', 'translation'), ('eagle, few words', 'lm'), ('block', 'lm'),
  ('eagle, together', 'lm'), ('block, together', 'translation'),
], ids=lambda value: value)  # fmt: skip
@pytest.mark.wide('base-lm', 'a drawn head-lm', 'eagle, together-lm')
@pytest.mark.usefixtures('in_float64')
def test_parts_add_up_to_the_whole_batch(kind, name):
  task = make_task(kind, name)
  params = widen(task.init(jax.random.key(2)))

  @jax.jit
  def split(batch, key):
    return [compute_gradients(task, params, task.frozen, batch, key, parts) for parts in (1, 4)]

  for number, lengths in enumerate(LENGTHS.values()):
    batch = text(lengths, with_source=name != 'lm')
    if name == 'images':
      batch = images()
    whole, in_parts = split(batch, jax.random.key(number))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(whole[0]))
    same(in_parts, whole)


def images():
  rng = np.random.default_rng(0)
  return {
    'source': jnp.asarray(rng.integers(0, 256, (4, 2, 2, 3), np.uint8)),
    'target': jnp.asarray(rng.integers(0, 256, (4, 12), np.int32)),
    'target_segment': jnp.ones((4, 12), jnp.int32),
  }


@pytest.mark.parametrize('model', [TRUNKS['lm'], Bigram()], ids=['ours', 'another'])
@pytest.mark.usefixtures('in_float64')
def test_equal_rows_drop_independently_in_any_parts(model):
  """A model that draws by itself gets another key in each part."""
  task, key = base_task(model), jax.random.key(7)
  params = widen(task.init(jax.random.key(0)))
  loss = jax.jit(
    lambda batch, parts: compute_gradients(task, params, {}, batch, key, parts)[1]['loss'],
    static_argnums=1,
  )
  alone, four = text(((10,),)), jax.tree.map(lambda x: jnp.repeat(x, 4, axis=0), text(((10,),)))
  found = loss(alone, 1), loss(four, 1), loss(four, 4)
  losses = {round(float(x), 12) for x in found}
  assert len(losses) == (2 if model is TRUNKS['lm'] else 3)


@pytest.mark.parametrize('words', [None, 4])
@pytest.mark.wide('4')
@pytest.mark.usefixtures('in_float64')
def test_positions_without_a_guess_do_not_count(words):
  """Sentences of three tokens have two guesses: more passes add nothing to the loss."""
  model = TRUNKS['lm']
  target, batch = Bound(model, fresh(model)), text(((3,), (3, 3)))
  draft, found = draft_on(model, 'eagle', 'lm', words), []
  for passes in (2, 4):
    task = frozen_draft_task(target, draft, DraftLoss(passes=passes))
    loss, metrics = jax.jit(task.loss)(task.init(None), task.frozen, batch, jax.random.key(0))
    found.append(float(loss))
    assert [bool(np.isnan(metrics[f'accuracy_{i + 1}'])) for i in range(passes)] == [
      i >= 2 for i in range(passes)
    ]
  np.testing.assert_allclose(found[1], found[0], rtol=1e-12)


@pytest.mark.parametrize('p1_share', [0.0, 0.4])
@pytest.mark.usefixtures('in_float64')
def test_heads_without_a_sentence_do_not_count_and_are_not_drawn(p1_share):
  """Sentences of two tokens teach p1 and head 2 of four."""
  model, heads = Bigram(), Matrices()
  trunk = model.init(jax.random.key(0))
  make = functools.partial(finetuned_heads_task, model, heads, trunk, p1_share=p1_share)
  together, drawn = make(draw='all'), make()
  params, batch = together.init(jax.random.key(1)), text(((2,), (2, 1)))
  loss, metrics = jax.jit(together.loss)(params, {}, batch, jax.random.key(2))
  each = [float(metrics[f'loss_head_{i}']) for i in (1, 2)]
  share = p1_share or 0.5
  np.testing.assert_allclose(loss, share * each[0] + (1 - share) * each[1], rtol=1e-12)
  assert np.isnan(metrics['loss_head_3']) and np.isnan(metrics['loss_head_4'])
  keys = jax.random.split(jax.random.key(3), 50)
  draw = jax.jit(jax.vmap(lambda key: drawn.loss(params, {}, batch, key)[1]['head']))
  found = draw(keys)
  assert set(found.tolist()) == {1, 2}
