"""The meaning of the numbers of taps, and the other features that drafts read: states of packed
batches, and of the source."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.transformed import Transformed
from fastdec.models.api import causal, embedding_of, source_of
from fastdec.models.layers import sinusoids
from fastdec.models.lm import RMSNorm
from tests.decoding.models_table import PICTURES, made

pytestmark = pytest.mark.usefixtures('in_float64')

NAMES = ('lm with windows', 't5', 'transformer', 'fconv', 'image')
TRANSLATORS = ('t5', 'transformer', 'fconv')
# Two pairs in one row, where the second pair's source comes first; and each pair in its own row.
PACKED = {
  'source': [[3, 4, 1, 5, 2, 1, 4, 0]],
  'source_segment': [[2, 2, 2, 1, 1, 1, 1, 0]],
  'source_position': [[0, 1, 2, 0, 1, 2, 3, 0]],
  'target': [[4, 1, 2, 5, 3]],
  'target_segment': [[1, 1, 2, 2, 2]],
  'target_position': [[0, 1, 0, 1, 2]],
}
ALONE = {
  1: ([[5, 2, 1, 4]], slice(3, 7), [[4, 1]], slice(0, 2)),
  2: ([[3, 4, 1]], slice(0, 3), [[2, 5, 3]], slice(2, 5)),
}


def a_batch(lists):
  return {name: jnp.array(rows, jnp.int32) for name, rows in lists.items()}


@functools.partial(jax.jit, static_argnums=(0, 3))
def features_of(model, params, batch, taps=(), key=None):
  return model.features(params, batch, taps, key)


hidden_of = jax.jit(
  lambda model, params, batch, key=None: model.hidden(params, batch, key), static_argnums=0
)


@functools.partial(jax.jit, static_argnums=0)
def read_source(model, params, inputs):
  return source_of(model)(model.encode(params, inputs))


def every_tap(model):
  return tuple(range(model.layers + 1))


PICTURE_BATCH = {'source': PICTURES[:1], 'target': np.array([[7, 200, 31, 4, 90]], np.int32)}


def batch_of(model):
  if model.fixed_length is not None:
    return {name: jnp.asarray(x) for name, x in PICTURE_BATCH.items()}
  return a_batch(PACKED)


@pytest.mark.parametrize('name', NAMES)
def test_the_last_tap_lacks_nothing_but_what_ends_the_model(name):
  """Its final norm, where it has one; a convolution's last projection; nothing where norms come
  last."""
  case = made(name)
  model, c = case.model, case.model.config
  features = features_of(model, case.params, batch_of(model), every_tap(model))
  last = features.taps[-1]
  match name:
    case 'lm with windows':
      expected = RMSNorm(c).apply({'params': case.params['norm']}, last)
    case 't5' | 'transformer':
      expected = c.make_norm().apply({'params': case.params['decoder_norm']}, last)
    case 'fconv':
      leave = case.params['decoder_leave']
      expected = jnp.einsum('btd,ed->bte', last, leave['kernel']) + leave['bias'][None, None]
    case _:
      expected = last
  np.testing.assert_allclose(features.hidden, expected, rtol=1e-9, atol=1e-12)
  assert name == 'image' or not np.allclose(last.std(), features.hidden.std())


@pytest.mark.parametrize('name', ('lm with windows', 't5', 'transformer'))
def test_tap_0_is_the_embedding_with_its_position_where_that_is_added(name):
  """It is the embedding of the token before, or of the start token at the beginning of a
  sentence."""
  case, batch = made(name), a_batch(PACKED)
  entering = features_of(case.model, case.params, batch, every_tap(case.model)).taps[0]
  read = jnp.array([[0, 4, 0, 2, 5]], jnp.int32)  # `start_id` and `bos_id` are 0 here
  expected = embedding_of(case.model)(case.params, read)
  if name == 'transformer':
    signal = sinusoids(batch['target_position'] + case.model.config.first_position, 8)
    expected = expected * 8**0.5 + signal.astype(expected.dtype)
    norm = case.model.config.make_norm()
    expected = norm.apply({'params': case.params['target_embedding_norm']}, expected)
  np.testing.assert_allclose(entering, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.wide('lm with windows')
def test_taps_come_in_their_order_and_leave_the_hidden_states_as_they_are(name):
  case = made(name)
  batch, every = batch_of(case.model), every_tap(case.model)
  alone = features_of(case.model, case.params, batch)
  forth, back = (features_of(case.model, case.params, batch, taps) for taps in (every, every[::-1]))
  assert alone.taps == () and len(forth.taps) == len(every)
  for one, other in zip(forth.taps, back.taps[::-1], strict=True):
    np.testing.assert_array_equal(one, other)
  for features in (alone, forth):
    np.testing.assert_array_equal(features.hidden, hidden_of(case.model, case.params, batch))
  assert not np.allclose(forth.taps[0].std(), forth.taps[-1].std())


@pytest.mark.parametrize('name', TRANSLATORS)
@pytest.mark.wide('t5', 'fconv')
def test_the_source_of_packed_pairs_is_that_of_each_pair(name):
  """What a draft's cross-attention is trained on is what it reads in decoding; taps of packed pairs
  likewise."""
  case = made(name)
  packed = features_of(case.model, case.params, a_batch(PACKED), every_tap(case.model))
  for source, at_source, target, at_target in ALONE.values():
    source_states = read_source(case.model, case.params, jnp.array(source, jnp.int32))
    np.testing.assert_allclose(
      packed.source[:, at_source], source_states.hidden, rtol=1e-9, atol=1e-12
    )
    assert source_states.mask.all() and source_states.mask.shape == source_states.hidden.shape[:2]
    alone = {}
    for side, ids in (('source', source), ('target', target)):
      places = list(range(len(ids[0])))
      alone |= {side: ids, f'{side}_segment': [[1] * len(places)], f'{side}_position': [places]}
    features = features_of(case.model, case.params, a_batch(alone), every_tap(case.model))
    for states, expected in zip(packed.taps, features.taps, strict=True):
      np.testing.assert_allclose(states[:, at_target], expected, rtol=1e-9, atol=1e-12)


def test_padding_is_masked_in_the_source():
  for name in TRANSLATORS:
    case = made(name)
    source_states = read_source(case.model, case.params, jnp.array([[3, 4, 0, 0]], jnp.int32))
    assert source_states.mask.tolist() == [[True, True, False, False]]


def test_a_picture_s_source_is_all_of_it():
  case = made('image')
  features = features_of(case.model, case.params, batch_of(case.model))
  source_states = read_source(case.model, case.params, jnp.asarray(PICTURES[:1]))
  np.testing.assert_allclose(features.source, source_states.hidden, rtol=1e-9)
  assert source_states.mask.shape == (1, 3) and source_states.mask.all()


def test_a_model_without_an_encoder_has_no_source():
  case = made('lm with windows')
  assert features_of(case.model, case.params, a_batch(PACKED)).source is None
  assert source_of(case.model)(case.model.encode(case.params, None)) is None


def test_a_convolution_s_source_distinguishes_tokens_at_the_same_place():
  """It holds the embedding of the token itself, as a Transformer's states do: here times the root
  of a half."""
  case = made('fconv')
  params = jax.tree.map(jnp.zeros_like, case.params) | {'embedding': case.params['embedding']}
  source_states = read_source(case.model, params, jnp.array([[3, 4]], jnp.int32))
  np.testing.assert_allclose(
    source_states.hidden[0], 0.5**0.5 * params['embedding'][jnp.array([3, 4])], rtol=1e-9
  )


def test_features_have_dropout_with_a_key():
  """A target may be trained together with its draft, which then reads what the target's own loss
  has seen."""
  case, key = made('transformer'), jax.random.key(0)
  model = type(case.model)(dataclasses.replace(case.model.config, dropout=0.5))
  features = features_of(model, case.params, a_batch(PACKED), (1,), key)
  np.testing.assert_array_equal(
    features.hidden, hidden_of(model, case.params, a_batch(PACKED), key)
  )
  quiet = features_of(model, case.params, a_batch(PACKED), (1,))
  assert not np.allclose(features.hidden, quiet.hidden) and not np.allclose(
    features.taps[0], quiet.taps[0]
  )


def test_a_learned_p1_passes_on_what_its_trunk_gives():
  case, heads = made('transformer'), BlockwiseHeads(k=3, d_model=8, d_ff=8, first='transformed')
  source = jnp.array([[3, 4, 1]], jnp.int32)

  @functools.partial(jax.jit, static_argnums=0)
  def all_of(model, params):
    memory = model.encode(params, source)
    cache = model.init_cache(params, memory, 1, 4)
    taps = model.apply(params, source, causal(3), cache, taps=(1, 0))[1]
    return model.features(params, a_batch(PACKED), (1, 0)), source_of(model)(memory).hidden, taps

  outer = all_of(
    Transformed(case.model, heads), {'model': case.params, 'heads': heads.init(jax.random.key(0))}
  )
  jax.tree.map(np.testing.assert_array_equal, outer, all_of(case.model, case.params))


def test_features_of_a_text_are_those_of_its_prefill(shared):
  """The same states from a packed row, which begins with the token that the text begins with."""
  folder = shared / 'reference' / 'drafts' / 'eagle3'
  (model, params), case = fd.load(folder / 'target'), np.load(folder / 'cases.npz')
  prompt = case['p17_prompt']
  begins = type(model)(dataclasses.replace(model.config, bos_id=int(prompt[0])))
  batch = {
    'target': [[*prompt[1:].tolist(), 0]], 'target_segment': [[1] * 17],
    'target_position': [list(range(17))]
  }  # fmt: skip
  features = features_of(begins, params, a_batch(batch), (2, 4, 5))
  np.testing.assert_allclose(
    jnp.concatenate(features.taps, axis=-1)[0], case['p17_target_features'], atol=5e-4
  )
  np.testing.assert_allclose(features.hidden[0], case['p17_target_last_hidden'], atol=5e-4)
