"""Beam search on a Transformer and an FConv: rows, prefixes, and caches that follow their beams
while the memory stays."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

import fastdec as fd
from fastdec.decoding.beam.search import Beam
from fastdec.models.fconv import FConv, FConvConfig
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.struct import Bound
from tests.decoding.beam.by_hand import by_hand
from tests.decoding.fakes import EOS

MAX_LEN = 7


@pytest.fixture(scope='module', autouse=True)
def float64():
  with jax.enable_x64(True):
    yield


TRANSFORMER = Transformer(TransformerConfig(
  vocab_size=11, d_model=8, d_ff=16, heads=2, encoder_layers=1, decoder_layers=2, max_positions=32,
  dtype='float64',
))  # fmt: skip
FCONV = FConv(FConvConfig(
  vocab_size=11, d_embed=8, d_out=8, encoder_layers=((8, 3),), decoder_layers=((8, 3), (6, 4)),
  max_positions=32, dtype='float64',
))  # fmt: skip
SOURCES = np.array([[3, 4, 5, 6, 1], [7, 8, 1, 0, 0], [9, 1, 0, 0, 0], [1, 0, 0, 0, 0]], np.int32)


@pytest.fixture(scope='module', params=[TRANSFORMER, FCONV], ids=['transformer', 'fconv'])
def made(request):
  """(model, params)"""
  fresh = request.param.init(jax.random.key(7))
  return request.param, jax.tree.map(lambda x: jnp.asarray(2 * np.asarray(x, float)), fresh)


@pytest.mark.wide('transformer')
def test_a_batch_is_its_rows_and_an_empty_source_ends_at_once(made):
  model, params = made
  together = fd.decode(model, params, SOURCES, Beam(3, n_best=3), max_len=9)
  for i in range(len(SOURCES)):
    alone = fd.decode(model, params, SOURCES[[i] * 4], Beam(3, n_best=3), max_len=9)
    np.testing.assert_array_equal(together.nbest_tokens[i], alone.nbest_tokens[0])
    np.testing.assert_allclose(together.nbest_scores[i], alone.nbest_scores[0], rtol=1e-9)
    assert together.calls[i] == alone.calls[0]
  assert together.lengths[3] == 1 and together.tokens[3, 0] == EOS
  assert (np.diff(together.nbest_scores[:3]) <= 0).all()
  assert all(
    len({tuple(words) for words in row}) == 3 for row in together.nbest_tokens.tolist()[:3]
  )


@pytest.mark.wide('transformer')
def test_a_prefix_is_followed_and_not_repeated(made):
  model, params = made
  prefix = np.array([[5, 6], [7, 0], [8, 9], [2, 0]])
  out = fd.decode(model, params, SOURCES, Beam(3), [2, 1, 2, 1], prefix, max_len=6)
  forced = fd.score(model, params, SOURCES, out.tokens, out.lengths, [2, 1, 2, 1], prefix)
  scores = forced.total / ((5 + np.asarray(out.lengths, float)) / 6) ** 0.6
  np.testing.assert_allclose(out.scores[:3], scores[:3], rtol=1e-6)


def test_caches_follow_their_beams(made):
  """Against the search written with lists, where the model reads every prefix without a cache."""
  model, params = made

  @jax.jit
  def laws(source, target):
    part = lambda x: {
      '': x,
      '_segment': (x > 0).astype(x.dtype),
      '_position': jnp.arange(x.shape[1], dtype=x.dtype)[None],
    }
    sides = {'source': source, 'target': target}
    batch = {f'{side}{name}': y for side, x in sides.items() for name, y in part(x).items()}
    batch['target_segment'] = jnp.ones_like(target)
    return jax.nn.log_softmax(model.unembed(params, model.hidden(params, batch)))[0]

  def afresh(source):
    def law(_, words):
      padded = np.array([words + [0] * (MAX_LEN - len(words))], np.int32)
      logprobs = np.asarray(laws(source, padded)[len(words)])
      return [-math.inf, *logprobs[1:].tolist()]

    return law

  beam = Beam(3, n_best=3)
  out = fd.decode(model, params, SOURCES, beam, max_len=MAX_LEN)
  for row in range(3):
    expected = by_hand(model, [], beam, MAX_LEN, afresh(SOURCES[row : row + 1]))
    padded = [words + [0] * (MAX_LEN - len(words)) for _, words in expected]
    assert out.nbest_tokens[row].tolist() == padded
    np.testing.assert_allclose(out.nbest_scores[row], [score for score, _ in expected], rtol=1e-6)


def test_memory_is_not_copied_for_each_beam(made):
  """Neither in the state nor on the way: no array with the source's width is larger than the
  attention's weights."""
  model, params = made
  strategy, target, width = Beam(5), Bound(model, params), 13
  source = np.pad(SOURCES, ((0, 0), (0, width - SOURCES.shape[1])))
  prompt = fd.decoding.inputs.check_inputs(model, source, None, None, 9, None)[1]
  state = jax.eval_shape(lambda prompt: strategy.init(target, prompt, 9, None), prompt)
  assert all(leaf.shape[0] == len(SOURCES) for leaf in jax.tree.leaves(state.cache.cache.memory))
  made = jax.make_jaxpr(lambda state: strategy.step(target, state))(state)
  wide = [shape for _, shape in results_of(made.jaxpr) if width in shape]
  heads = 2 if model is TRANSFORMER else 1
  assert max(map(math.prod, wide)) == len(SOURCES) * heads * 5 * width  # rows, heads, beams, source


@pytest.mark.parametrize(('model', 'is_copied'), [(TRANSFORMER, False), (FCONV, True)])
def test_a_step_copies_no_cache_whose_slots_beams_share(model, is_copied):
  strategy, target = Beam(5), Bound(model, model.init(jax.random.key(0)))
  prompt = fd.decoding.inputs.check_inputs(model, SOURCES, None, None, 9, None)[1]
  state = jax.eval_shape(lambda prompt: strategy.init(target, prompt, 9, None), prompt)
  entries = {x.shape for x in jax.tree.leaves(state.cache.cache.own.layers)}
  step = jax.make_jaxpr(lambda state: strategy.step(target, state))(state)
  gathered = {shape for name, shape in results_of(step.jaxpr) if name == 'gather'}
  assert bool(entries & gathered) == is_copied


def results_of(jaxpr):
  """(operation, shape) of all results of a program, and of the programs inside it."""
  for equation in jaxpr.eqns:
    yield from ((equation.primitive.name, out.aval.shape) for out in equation.outvars)
    for inner in jaxprs_in_params(equation.params):
      yield from results_of(inner)
