"""Predictions of how fast strategies decode texts that the plain strategy has written.

    seconds of a batch = prompt + steps x (call on the strategy's nodes + draft)

  prompt, call on one node   the plain strategy's times, up to its first call and to its end
  calls on more nodes        timed with guesses that cost nothing (`calls.FreeDraft`), for few
                             widths; those between them are on the line that joins them
  steps                      counted in a replay of the texts (`evaluation.replay`)
  draft                      the time of that replay, in which only the drafter works

So the target's layers are compiled once for each width, and for no strategy.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fastdec.decoding.request import Settings
from fastdec.decoding.run import Run, start
from fastdec.decoding.strategy import LoopStrategy, nodes_of
from fastdec.decoding.topology import Topology
from fastdec.evaluation import wallclock
from fastdec.evaluation.calls import wide_calls
from fastdec.evaluation.replay import begin_replay
from fastdec.tuning.race import ONE, Candidate, Prediction, Shape

CALLS = 8  # in a round, which is timed
ROUNDS, MOST_ROUNDS = 4, 20
LEAST_SECONDS = 0.5  # that a time takes, as long as these are few rounds


class Predictor:
  """Predicts by the texts of the plain strategy.

  Machines change their speed from one second to the next. So all times here are ratios: to the time
  in which the plain strategy makes its first calls on a batch, taken in turn with it.

  Attributes:
    plain: the plain strategy, which has decoded some batches.
    numbers: of these batches.
    prompt: time of a batch before its first call.
    calls: time of a call of a batch, by the shapes that were timed.
  """

  def __init__(self, plain: Candidate) -> None:
    self.plain, self.numbers = plain, list(plain.seconds)
    self._steps = np.array([plain.texts[number].calls.max() for number in self.numbers])
    self._longest = self.numbers[int(self._steps.argmax())]
    self._first_calls = min(CALLS, max(int(self._steps.max()), 2))
    self._seconds = 0.0  # of the first calls
    self._state: Any = None

    one_call = self._time(functools.partial(self._begin, 1))
    self.calls: dict[Shape, float] = {ONE: max(1 - one_call, 0.0) / (self._first_calls - 1)}
    self.prompt = max(one_call - self.calls[ONE], 0.0)

  def time_call(self, shape: Shape) -> None:
    """Times a call on a chain or a tree."""
    topology = Topology.chain(shape.nodes)
    if shape.is_tree:
      topology = Topology.from_parents([-1, *((node - 1) // 2 for node in range(1, shape.nodes))])
    calls = wide_calls(self.plain.target, self.plain.strategy, self._state, topology)
    self.calls[shape] = self._time(lambda: calls(CALLS)) / CALLS

  def replay(self, strategy: LoopStrategy) -> Prediction:
    """Counts a strategy's calls on the texts of the plain one, and times its drafts."""
    model, params = self.plain.target

    def begin(number: int) -> Run:
      batch, texts = self.plain.batches[number], self.plain.texts[number]
      return begin_replay(model, params, batch.inputs, texts, strategy, batch.lengths)

    def advance(calls: int | None) -> float:
      """Replays the longest batch up to a number of calls, and returns the seconds."""
      run = begin(self._longest)
      jax.block_until_ready(run.request.target.params)
      started = wallclock.now()
      run.advance(calls)
      jax.block_until_ready(run.state)
      return wallclock.now() - started

    steps, calls, tokens = [], 0, 0
    for number in self.numbers:
      run = begin(number)
      run.advance()
      steps.append(run.calls)
      calls += int(np.asarray(run.decoded.calls).sum())
      tokens += int(np.asarray(run.decoded.lengths - 1).sum())

    # What a text takes more than its first call are the drafts of all others.
    one_call, all_calls = [], []
    for _ in range(2 * ROUNDS):
      one_call.append(advance(1))
      all_calls.append(advance(None))
    more = steps[self.numbers.index(self._longest)] - 1
    draft = max(min(all_calls) - min(one_call), 0.0) / max(more, 1) / self._seconds
    nodes = nodes_of(strategy)
    shape = Shape(nodes, strategy.most_accepted < nodes - 1)
    return Prediction(1.0, shape, tokens / max(calls, 1), tuple(steps), draft)

  def weigh(self, prediction: Prediction) -> Prediction:
    """Returns the prediction with the speed-up that follows from the calls timed so far.

    A chain or tree that is larger than those costs what the largest one costs."""
    widths, times = [], []
    for shape in sorted(self.calls):
      if shape.nodes == 1 or shape.is_tree == prediction.shape.is_tree:
        widths.append(shape.nodes)
        times.append(self.calls[shape])
    call = float(np.interp(prediction.shape.nodes, widths, times))
    plain = self.prompt + self._steps * self.calls[ONE]
    predicted = self.prompt + np.array(prediction.steps) * (call + prediction.draft)
    return dataclasses.replace(prediction, speedup=float(plain.sum() / predicted.sum()))

  @property
  def milliseconds(self) -> dict[str, float]:
    """The milliseconds of a call, by the shapes that were timed."""
    return {str(one): 1e3 * self._seconds * self.calls[one] for one in sorted(self.calls)}

  def _begin(self, calls: int) -> None:
    """Reads a batch's prompts and makes calls, by the program that decodes whole texts."""
    model, params = self.plain.target
    batch = self.plain.batches[self._longest]
    settings = Settings(max_len=self.plain.max_len, key=batch.keys)
    run = start(model, params, batch.inputs, self.plain.strategy, settings, batch.lengths)
    run.advance(calls)
    self._state = jax.block_until_ready(run.state)

  def _time(self, function: Callable[[], Any]) -> float:
    """Returns the time of a function, which may compile a program first."""
    first_calls = functools.partial(self._begin, self._first_calls)
    rounds = ROUNDS
    if self._seconds:
      rounds = max(ROUNDS, min(int(LEAST_SECONDS / self._seconds), MOST_ROUNDS))
    timings = wallclock.measure({'first calls': first_calls, 'function': function}, rounds)
    self._seconds = timings['first calls'].median
    return timings['first calls'].speedup_over(timings['function'])
