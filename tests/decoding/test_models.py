"""Drafts on every kind of model: caches keep what was accepted, and take back what was not."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding import loop
from fastdec.decoding.inputs import checked
from fastdec.models.t5 import T5
from fastdec.struct import Bound
from tests.decoding.fakes import Recorded
from tests.decoding.models_table import MODELS, made

GAMMA, MAX_LEN = 4, 16


@pytest.fixture(autouse=True)
def in_float64():
  with jax.enable_x64(True):
    yield


@functools.cache
def programs(name):
  """Begins to decode with a draft of these parameters, and makes a step; both are compiled once a model."""
  case = made(name)
  rows, target = case.rows(), Bound(case.model, case.params)
  _, prompt, _ = checked(case.model, rows['inputs'], rows.get('prompt_lengths'), None, MAX_LEN, None)

  def parts(draft):
    strategy = fd.Speculative((case.model, draft), GAMMA, adaptive=True)
    return target, Recorded(strategy.drafter), strategy.effective_rule

  begin = jax.jit(lambda draft: loop.init(*parts(draft), prompt, MAX_LEN, None))
  step = jax.jit(lambda draft, state: loop.step(*parts(draft), state))
  return begin, step


def wanting(state, gamma):
  """The state in which the rows want so many drafts."""
  reading = dataclasses.replace(state.drafter.state, gamma=jnp.asarray(gamma, jnp.int32))
  return dataclasses.replace(state, drafter=dataclasses.replace(state.drafter, state=reading))


@pytest.mark.parametrize('name', MODELS)
def test_a_model_that_drafts_for_itself_is_accepted_whole(name):
  """By rows that want 1, 2 and 4 drafts, and more from call to call."""
  case, (begin, step) = made(name), programs(name)
  state = wanting(begin(case.params), [1, 2, 4])
  while not state.done.all():
    room = MAX_LEN - state.length
    expected = jnp.minimum(state.drafter.state.gamma + 1, room)
    before, state = state, step(case.params, state)
    assert (state.length - before.length).tolist() == expected.tolist()
  assert state.calls.tolist() == [4, 4, 3]


@pytest.mark.parametrize('name', MODELS)
def test_what_is_drafted_is_what_the_draft_model_would_write(name):
  """Where rows accept all, some and none of the drafts before, side by side."""
  case, (begin, step) = made(name), programs(name)
  state = begin(case.noisy)
  known, drafts, blocks = [], [], set()
  for _ in range(5):
    before, state = state, step(case.noisy, state)
    for row in np.flatnonzero(~before.done):
      known.append((row, before.tokens[row, : before.length[row]].tolist()))
      wanted = int(before.drafter.state.gamma[row])
      drafts.append(state.drafter.drafted[row, 1 : 1 + wanted].tolist())
      accepted = int(state.length[row] - before.length[row]) - 1
      blocks.add('all' if accepted == wanted else 'some' if accepted else 'none')
  assert blocks == {'all', 'some', 'none'}
  for drafted, written in zip(drafts, case.greedy_after(known, GAMMA), strict=True):
    assert drafted == written[: len(drafted)]


def test_a_draft_with_another_pad_id_gets_its_own_padding():
  """A row's blocks do not depend on how far its batch is padded. Id 0 stands for no word in either model's sources."""
  case = made('t5')
  draft = T5(dataclasses.replace(case.model.config, pad_id=0))
  target = T5(dataclasses.replace(case.model.config, pad_id=5))
  source = np.array([[1, 2, 3, 4], [2, 1, 5, 5]], np.int32)
  padded = np.pad(source, ((0, 0), (0, 12)), constant_values=5)
  decode = lambda model, inputs, of: fd.decode(
    model, case.params, inputs, fd.Speculative((of, case.params), 4), max_len=MAX_LEN
  )
  for inputs in (source, padded):
    out = decode(target, inputs, draft)
    assert out.block_sizes[:, :3].tolist() == [[5, 5, 5]] * 2
    np.testing.assert_array_equal(out.tokens, decode(target, source, target).tokens)


@pytest.mark.parametrize('gamma', [1, 2, 4])
def test_a_convolution_takes_back_as_many_as_are_drafted(gamma):
  """Its cache is the only one that is made for a number of tokens to take back."""
  case = made('fconv')
  greedy = case.decode(fd.Greedy(), MAX_LEN)
  sizes = []
  for draft in (case.params, case.noisy):
    out = case.decode(fd.Speculative((case.model, draft), gamma), MAX_LEN)
    np.testing.assert_array_equal(out.tokens, greedy.tokens)
    sizes.append(out.block_sizes)
  whole, rest = divmod(MAX_LEN - 1, gamma + 1)
  blocks = [gamma + 1] * whole + [rest] * (rest > 0)
  assert sizes[0][:, : len(blocks)].tolist() == [blocks] * 3
  assert (sizes[1] != sizes[0]).any()
