"""Predictions of how fast strategies decode texts that the plain strategy has written.

    seconds of a batch = prompt + steps x call + drafts

  prompt, call    the plain strategy's, by its times up to its first call and to a later one; calls
                  on more tokens are timed with guesses that cost nothing (`calls.FreeDraft`), for
                  few widths; those between them are on the line that joins them
  steps           counted in a replay of the texts (`evaluation.replay`)
  drafts          the time of this replay, in which only the drafter works

So the target's layers are compiled once for each width, and for no strategy.
"""

import copy
import functools
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fastdec.decoding.request import Settings
from fastdec.decoding.run import Run, start
from fastdec.decoding.strategy import LoopStrategy, nodes_of
from fastdec.decoding.topology import Topology
from fastdec.evaluation import wallclock
from fastdec.evaluation.calls import wide_calls
from fastdec.evaluation.replay import begin_replay
from fastdec.tuning.race import ONE, Candidate, Shape

CALLS = 8  # that are timed together
ROUNDS, MOST_ROUNDS = 3, 20
SECONDS = 0.5  # for more rounds than the fewest


class Predictor:
  """Predicts by the texts of the plain strategy.

  Machines change their speed from one second to the next. So times are ratios here: to the time in
  which the plain strategy makes its first calls on a batch, taken in turn with it.

  Attributes:
    plain: the plain strategy, which has decoded some batches.
    predicted: the candidates whose speeds are known, the better the more calls are timed.
    calls: time of a call of a batch, by the shapes that were timed.
    seconds: that the slowest of these took to compile and to time.
  """

  def __init__(self, plain: Candidate) -> None:
    self.plain, self.predicted, self.seconds = plain, list[Candidate](), 0.0
    self._steps = np.array([out.calls.max() for out in plain.texts.values()])
    self._longest = int(self._steps.argmax())
    count = min(CALLS, max(int(self._steps.max()), 2))
    self._first_calls = functools.partial(self._decode, count)

    times = _time({'first': self._first_calls, 'one': functools.partial(self._decode, 1)})
    self._unit = times['first']
    one_call = times['one'] / times['first']
    self.calls = {ONE: max(1 - one_call, 0.0) / (count - 1)}
    self._prompt = max(one_call - self.calls[ONE], 0.0)

  def replay(self, candidate: Candidate) -> None:
    """Counts a candidate's calls on the texts of the plain strategy, and times its drafts."""
    steps, calls, tokens, longest = [], 0, 0, self._longest
    for number in self.plain.texts:
      run = self._replay(candidate.strategy, number)
      run.advance()
      steps.append(run.calls)
      calls += int(np.asarray(run.decoded.calls).sum())
      tokens += int(np.asarray(run.decoded.lengths - 1).sum())

    # The first draft reads the whole prompt.
    run = self._replay(candidate.strategy, longest)
    times = _time({
      'first': functools.partial(_repeat, run, 1), 'all': functools.partial(_repeat, run, None),
    })  # fmt: skip
    later = max(times['all'] - times['first'], 0.0) / max(steps[longest] - 1, 1)
    candidate.steps = steps
    candidate.drafts = (times['first'] + later * (np.array(steps) - 1)) / self._unit
    candidate.tokens_per_call = tokens / max(calls, 1)
    nodes = nodes_of(candidate.strategy)
    candidate.shape = Shape(nodes, candidate.strategy.most_accepted < nodes - 1)
    self.predicted.append(candidate)
    self._predict()

  def time_call(self, shape: Shape) -> None:
    """Times a call on a chain or a tree."""
    begin = wallclock.now()
    topology = Topology.chain(shape.nodes)
    if shape.is_tree:
      topology = Topology.from_parents([-1, *((node - 1) // 2 for node in range(1, shape.nodes))])
    state = self._first_calls()
    calls = wide_calls(self.plain.target, self.plain.strategy, state, topology)
    # A function that follows itself is faster: the plain strategy's calls precede both.
    times = _time({
      'plain': self._first_calls, 'one': lambda: calls(1),
      'again': self._first_calls, 'more': lambda: calls(1 + CALLS),
    })  # fmt: skip
    plain = (times['plain'] + times['again']) / 2
    self.calls[shape] = max(times['more'] - times['one'], 0.0) / CALLS / plain
    self.seconds = max(self.seconds, wallclock.now() - begin)
    self._predict()

  @property
  def milliseconds(self) -> dict[str, float]:
    """The milliseconds of a call, by the shapes that were timed."""
    return {str(one): 1e3 * self._unit * self.calls[one] for one in sorted(self.calls)}

  def _predict(self) -> None:
    """Predicts by the calls timed so far. A larger one costs what the largest of them costs."""
    plain = self._prompt + self._steps * self.calls[ONE]
    for one in self.predicted:
      nodes, times = [], []
      for shape in sorted(self.calls):
        if shape == ONE or shape.is_tree == one.shape.is_tree:
          nodes.append(shape.nodes)
          times.append(self.calls[shape])
      steps, call = np.array(one.steps), np.interp(one.shape.nodes, nodes, times)
      one.predicted = float(plain.sum() / (self._prompt + steps * call + one.drafts).sum())

  def _decode(self, calls: int) -> Any:
    """Reads a batch's prompts and makes calls, by the program that decodes whole texts."""
    model, params = self.plain.target
    batch = self.plain.batches[self._longest]
    settings = Settings(max_len=self.plain.max_len, key=batch.keys)
    run = start(model, params, batch.inputs, self.plain.strategy, settings, batch.lengths)
    run.advance(calls)
    return run.state

  def _replay(self, strategy: LoopStrategy, number: int) -> Run:
    """Begins the replay of a batch."""
    model, params = self.plain.target
    batch, texts = self.plain.batches[number], self.plain.texts[number]
    return begin_replay(model, params, batch.inputs, texts, strategy, batch.lengths)


def _repeat(run: Run, calls: int | None) -> Any:
  """Makes the first calls of a run, which stays as it was, and returns the state."""
  again = copy.copy(run)
  again.advance(calls)
  return again.state


def _time(functions: Mapping[Any, Callable[[], Any]]) -> dict[Any, float]:
  """Returns the median seconds of functions in turn, after a round that compiles."""
  wallclock.time_round(functions, 0)
  rounds, until = [], wallclock.now() + SECONDS
  while len(rounds) < ROUNDS or (len(rounds) < MOST_ROUNDS and wallclock.now() < until):
    rounds.append(wallclock.time_round(functions, len(rounds)))
  return {name: statistics.median([seconds[name] for seconds in rounds]) for name in functions}
