"""Coupled Jacobi keeps the law of samples, and its guesses stay where distributions do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec import struct
from fastdec.decoding.methods.coupled_jacobi import CoupledDrafter, Window
from fastdec.decoding.protocol import Draft
from fastdec.decoding.topology import Topology
from fastdec.struct import Bound
from tests.decoding.fakes import HashLM
from tests.decoding.methods.test_draft_networks import OF, WARM, check_million
from tests.decoding.models_table import made
from tests.decoding.rules.test_rejection import p_value
from tests.decoding.test_models import counts, law_by_scores

K = 4
SAMPLING = fd.Sampling(WARM)


def state(rows):
  """Two places: the same distribution as before, and a different one."""
  q = jnp.tile(jnp.array([[0.5, 0.3, 0.2], [0.7, 0.2, 0.1]]), (rows, 1, 1))
  p = jnp.tile(jnp.array([[0.5, 0.3, 0.2], [0.1, 0.3, 0.6]]), (rows, 1, 1))
  tokens = jax.random.categorical(jax.random.key(1), jnp.log(q)).astype(jnp.int32)
  return Window(tokens, q, p)


@pytest.mark.usefixtures('in_float64')
def test_guesses_have_the_new_distribution_and_stay_as_often_as_possible():
  rows = 20_000
  old, keys = state(rows), jax.random.split(jax.random.key(2), rows)
  root = jnp.zeros(rows, jnp.int32)
  drafter = CoupledDrafter(3, fd.Sampling())
  window = drafter.propose(Bound(HashLM(), {}), old, root, keys)[1]
  np.testing.assert_array_equal(window.q, old.p)  # what they were drawn from
  for place in range(2):
    guesses = np.asarray(window.tokens[:, place])
    times = np.bincount(guesses, minlength=3)
    assert p_value(times, dict(enumerate(np.asarray(old.p[0, place])))) > 1e-3
    stays = (guesses == np.asarray(old.tokens[:, place])).mean()
    most = np.minimum(old.p, old.q)[0, place].sum()
    assert abs(stays - most) < 0.02  # 1 - total variation
  assert (
    p_value(
      np.bincount(np.asarray(old.tokens[:, 1]), minlength=3),
      dict(enumerate(np.asarray(old.p[0, 1]))),
    )
    < 1e-9
  )


@struct.pytree
class Lazy(CoupledDrafter):
  """Wrong: guesses stay whatever the new distributions are."""

  def propose(self, target, state, root, keys):
    draft, window = CoupledDrafter.propose(self, target, state, root, keys)
    had_guess = (state.q > 0).any(-1)
    guesses = jnp.where(had_guess, state.tokens, window.tokens)
    tokens = jnp.concatenate([root[:, None], guesses], axis=1)
    return Draft(tokens, Topology.chain(self.nodes), draft.probabilities), Window(
      guesses, window.q, window.p
    )


@struct.pytree
class Wrong(fd.CoupledJacobi):
  @property
  def drafter(self):
    return Lazy(self.k, self.sampling)


def seen(strategy, name, rows, chunks=1):
  """Counts how often each text of three tokens is written."""
  case, law, times = made(name), law_by_scores(name), 0
  inputs = {field: np.repeat(x[:1], rows, axis=0) for field, x in case.rows().items()}
  for chunk in range(chunks):
    key = jax.random.key(chunk)
    out = fd.decode(case.model, case.params, **inputs, strategy=strategy, max_len=5, key=key)
    assert out.mean_block_size > 1.1
    times = times + counts(out, law)
  return times


@pytest.mark.usefixtures('in_float64')
@pytest.mark.parametrize('rule', [fd.Rejection(), fd.BlockVerification()])
def test_samples_have_the_law_and_those_of_guesses_that_always_stay_have_not(rule):
  law, settings = law_by_scores(OF), {'sampling': SAMPLING, 'rule': rule}
  assert p_value(seen(fd.CoupledJacobi(K, **settings), OF, 10_000), law) > 1e-3
  assert p_value(seen(Wrong(K, **settings), OF, 10_000), law) < 1e-9


@pytest.mark.slow
@pytest.mark.usefixtures('in_float64')
def test_a_million_samples_show_a_shift_of_one_percent_and_there_is_none():
  strategy = fd.CoupledJacobi(K, sampling=SAMPLING)
  check_million(seen(strategy, OF, 10_000, 100), law_by_scores(OF))
