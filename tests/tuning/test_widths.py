"""What a call costs by its width, on a machine that is busy now and then."""

import itertools

import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.rules.matching import Exact
from fastdec.struct import Bound
from fastdec.tuning import widths
from fastdec.tuning.prompts import Batch
from tests.decoding.fakes import HashLM

STARTING = 5.0  # seconds that every program takes beside its calls


def test_what_comes_between_now_and_then_changes_nothing(monkeypatch):
  """Now the shorter run of a pair is held up and now the longer one: the difference of one pair
  would be anything."""
  now, held_up = [0.0], itertools.cycle([40.0, 0.0, 3.0, 90.0, 0.0, 7.0, 1.0, 0.0, 60.0, 2.0, 0.0])

  def calls(target, strategy, state, nodes):
    def run(count):
      now[0] += STARTING + count * (1.8 + 0.2 * nodes) + next(held_up)

    return run

  monkeypatch.setattr(widths, 'wide_calls', calls)
  batch = Batch(np.array([[3, 4, 5]], np.int32), None, None)
  found = widths.call_seconds(Bound(HashLM(), {}), Exact(), batch, 8, [1, 5], lambda: now[0])
  assert found == {1: pytest.approx(2.0), 4: pytest.approx(2.6), 5: pytest.approx(2.8)}


def test_calls_go_on_from_the_end_of_the_prompt_each_time(monkeypatch):
  """So none of them is of a text that has ended: the state that they are given is that of one
  token."""
  given = []
  monkeypatch.setattr(
    widths,
    'wide_calls',
    lambda target, strategy, state, nodes: given.append(state) or (lambda n: n),
  )
  batch = Batch(np.array([[3, 4, 5]], np.int32), None, None)
  widths.call_seconds(
    Bound(HashLM(), {}), fd.Greedy().rule, batch, 8, [2], itertools.count().__next__
  )
  assert given and all(state.length.tolist() == [1] and not state.done.any() for state in given)
