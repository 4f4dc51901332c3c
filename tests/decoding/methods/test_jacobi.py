"""Jacobi decoding: its guesses are the model's own choices in the call before."""

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding import loop
from fastdec.decoding.inputs import check_inputs
from fastdec.decoding.methods.jacobi import JacobiDrafter
from fastdec.decoding.rules.matching import Exact
from fastdec.struct import Bound
from tests.decoding.fakes import Recorded
from tests.decoding.methods.test_lookup import Copier
from tests.decoding.models_table import made

K, MAX_LEN = 4, 14


@pytest.mark.slow
def test_guesses_are_the_model_s_choices_in_the_call_before():
  """Compared with the definition: each guess is the model's greedy token after a beginning of the
  last draft."""
  with jax.enable_x64(True):
    case = made('lm with windows')
    target = Bound(case.model, case.params)
    drafter = Recorded(JacobiDrafter(K))
    prompt = [3, 2, 4]

    def predict(texts):
      out = fd.decode(case.model, case.params, texts, fd.Greedy(), max_len=1)
      return np.asarray(out.tokens)[:, 0].tolist()

    _, begun, _ = check_inputs(case.model, [prompt], None, None, MAX_LEN, None)
    begun = jax.device_put(begun)  # for what is not compiled
    state = jax.jit(lambda: loop.init(target, drafter, Exact(), begun, MAX_LEN, None))()
    step = jax.jit(lambda state: loop.step(target, drafter, Exact(), state))
    expected, sizes = prompt, []
    while not state.done.all():
      text = prompt + state.tokens[0, : int(state.length[0])].tolist()
      before, state = state, step(state)
      assert state.drafter.drafted[0].tolist() == [text[-1], *expected]
      sizes.append(int(state.length[0] - before.length[0]))
      after = predict([text + expected[:i] for i in range(K)])
      expected = [after[min(sizes[-1] + i, K - 1)] for i in range(K - 1)]
  assert len(sizes) > 3


def test_a_model_that_looks_at_the_position_alone_is_right_at_once():
  """Its choice for a position does not depend on the guesses, so all are right a call later."""
  source = np.array([[5, 6, 7, 8, 9, 10, 11, 12, 13, 1]], np.int32)
  out = fd.decode(Copier(), {}, source, fd.Jacobi(K), max_len=12)
  np.testing.assert_array_equal(out.tokens[:, :10], source)
  # after a whole block the model has not been called yet
  assert out.block_sizes[0, :5].tolist() == [1, 4, 1, 3, 0]
