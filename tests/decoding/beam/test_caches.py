"""Beams that share the slots of their row write what beams with a cache row each write."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.cache.kv import KVCache
from fastdec.decoding.beam.caches import PathCache
from tests.decoding.models_table import MODELS, SOURCES, TRANSFORMER, made

pytestmark = pytest.mark.usefixtures('in_float64')
READ_PATHS = [name for name, model in MODELS.items() if getattr(model, 'reads_paths', False)]


@dataclasses.dataclass(frozen=True)
class Copying:
  """A model that knows nothing of `Nodes.paths`."""

  model: Any
  reads_paths = False

  def __getattr__(self, name):
    return getattr(self.model, name)


def check_same(one, other):
  np.testing.assert_array_equal(one.nbest_tokens, other.nbest_tokens)
  np.testing.assert_allclose(one.nbest_scores, other.nbest_scores, rtol=1e-9)


def test_beams_see_the_prompt_and_their_own_ancestors():
  """The example in `PathCache`."""
  beams = PathCache(KVCache((), jnp.array([2])), jnp.ones((1, 2, 6), bool))
  beams = beams.reorder(jnp.array([[0, 0]]))
  assert beams.sees[0].astype(int).tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0]]
  beams = dataclasses.replace(beams, cache=beams.cache.commit(None, jnp.array([2])))
  beams = beams.reorder(jnp.array([[1, 0]]))
  assert beams.sees[0].astype(int).tolist() == [[1, 1, 0, 1, 1, 0], [1, 1, 1, 0, 0, 1]]


def test_which_models_read_paths():
  """A model whose cache is not a list of slots does not; an ensemble does if all its members do."""
  missing = {'fconv', 'image', 'image that forecasts', 'ensemble'}
  assert set(READ_PATHS) == set(MODELS) - missing
  assert fd.Ensemble((TRANSFORMER, TRANSFORMER)).reads_paths


@pytest.mark.parametrize('name', READ_PATHS)
@pytest.mark.wide('lm with windows', 't5')
def test_paths_are_read_like_rows(name):
  """Windows, biases and rotations go by positions, and the caches grow."""
  case = made(name)
  copying = dataclasses.replace(case, model=Copying(case.model))
  for beam, max_len in ((fd.Beam(3, n_best=3), 70), (fd.Beam(4, groups=2, diversity=0.5), 9)):
    check_same(case.decode(beam, max_len), copying.decode(beam, max_len))


def test_a_pool_exchanges_rows_between_beams():
  case, beam = made('lm with windows'), fd.Beam(3, n_best=3)
  prompts = [SOURCES[0, : 1 + i % 5].tolist() for i in range(7)]
  limits = [3, 9, 4, 12, 5, 7, 2]
  pooled = fd.decode_all(case.model, case.params, prompts, beam, limits, rows=4)
  for i, limit in enumerate(limits):
    one = fd.decode(case.model, case.params, [prompts[i]], beam, max_len=limit)
    np.testing.assert_array_equal(pooled.tokens[i, :limit], one.tokens[0])
    np.testing.assert_allclose(pooled.scores[i], one.scores[0], rtol=1e-9)
