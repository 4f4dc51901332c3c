"""Predictions of how fast strategies decode texts that the plain strategy has written.

    seconds of a batch = prompt + steps x call + drafts

  prompt, call    the plain strategy's, by its times up to its first call and of a whole text; calls
                  on more tokens are timed with guesses that cost nothing (`calls.FreeDraft`), for
                  few widths; those between them are on the line that joins them
  steps           counted in a replay of the texts (`evaluation.replay`)
  drafts          the time of this replay, in which only the drafter works

So the target's layers are compiled once for each width, and for no strategy.
"""

import copy
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fastdec.decoding.methods.adaptive import Adaptive
from fastdec.decoding.run import Run
from fastdec.decoding.sizes import FIRST
from fastdec.decoding.strategy import LoopStrategy, nodes_of
from fastdec.decoding.topology import Topology
from fastdec.evaluation import wallclock
from fastdec.evaluation.calls import wide_calls
from fastdec.evaluation.replay import begin_replay, can_replay
from fastdec.tuning.race import Candidate, count_steps

CALLS = 8  # that are timed together
ROUNDS, MOST_ROUNDS = 3, 20
FOR_CALLS, FOR_DRAFTS = 2.0, 0.5  # seconds for more rounds than the fewest


def can_predict(strategy: LoopStrategy) -> bool:
  """True if a text decides what a strategy's calls accept, and all have one width."""
  return can_replay(strategy) and not isinstance(strategy, Adaptive)


class Predictor:
  """Predicts by the texts of the plain strategy.

  Machines change their speed from one second to the next. So times are ratios here: to the time in
  which the plain strategy makes its first calls on a batch, taken in turn with it.

  Attributes:
    plain: the plain strategy, which has decoded some batches.
    calls: time of a call of a batch, in these units, by the numbers of tokens that were timed.
    unit, seconds: of these first calls, and of the whole batch.
  """

  def __init__(self, plain: Candidate) -> None:
    self.plain = plain
    _, self._steps = count_steps(plain.texts.values())
    self._longest = int(self._steps.argmax())
    one, self._first_calls, whole = (
      lambda calls=calls: _advance(plain.begin(self._longest), calls) for calls in (1, CALLS, None)
    )
    times = _time({'one': one, 'first': self._first_calls, 'whole': whole}, FOR_CALLS)
    self.unit, self.seconds = times['first'], times['whole']
    later = max(times['whole'] - times['one'], 0.0) / max(int(self._steps.max()) - 1, 1)
    self.calls = {1: later / self.unit}
    self._prompt = max(times['one'] - later, 0.0) / self.unit

  def replay(self, candidate: Candidate) -> None:
    """Counts a candidate's calls on the texts of the plain strategy, and times its drafts."""
    runs = [self._begin_replay(candidate, number) for number in self.plain.texts]
    for run in runs:
      run.advance()
    candidate.tokens_per_call, candidate.steps = count_steps([run.decoded for run in runs])

    # The first draft reads the whole prompt.
    run = self._begin_replay(candidate, self._longest)
    first, whole = (functools.partial(_advance, run, calls) for calls in (1, None))
    times = _time({'first': first, 'whole': whole}, FOR_DRAFTS)
    later = max(times['whole'] - times['first'], 0.0) / max(candidate.steps[self._longest] - 1, 1)
    candidate.drafts = (times['first'] + later * (candidate.steps - 1)) / self.unit

  def time_call(self, strategy: Any) -> None:
    """Times a call on as many tokens as this strategy's, in a chain or a tree."""
    target, state = self.plain.request.target, self._first_calls()
    nodes = min(nodes_of(strategy), FIRST, state.tokens.shape[1])  # that the state has slots for
    topology = Topology.chain(nodes)
    if strategy.most_accepted < nodes_of(strategy) - 1:
      topology = Topology.from_parents([-1, *((node - 1) // 2 for node in range(1, nodes))])
    calls = wide_calls(target, self.plain.strategy, state, topology)
    # A function that follows itself is faster: the plain strategy's calls precede both.
    times = _time({
      'plain': self._first_calls, 'one': lambda: calls(1),
      'again': self._first_calls, 'more': lambda: calls(1 + CALLS),
    }, FOR_CALLS)  # fmt: skip
    call = 2 * max(times['more'] - times['one'], 0.0) / CALLS / (times['plain'] + times['again'])
    self.calls[nodes_of(strategy)] = call * nodes_of(strategy) / nodes

  def predict(self, candidates: Sequence[Candidate]) -> None:
    """Predicts those that were replayed, by the calls timed so far.

    No call costs less than a smaller one. Those larger than all grow as these do."""
    plain = self._prompt + self._steps * self.calls[1]
    nodes = sorted(self.calls)
    calls = np.maximum.accumulate([self.calls[n] for n in nodes])
    slope = (calls[-1] - calls[0]) / nodes[-1]
    for one in filter(lambda one: len(one.steps), candidates):
      wide = nodes_of(one.strategy)
      call = np.interp(wide, nodes, calls) + slope * max(wide - nodes[-1], 0)
      one.predicted = float(plain.sum() / (self._prompt + one.steps * call + one.drafts).sum())

  def _begin_replay(self, candidate: Candidate, number: int) -> Run:
    """Begins the replay of a batch."""
    request, rows = candidate.request, candidate.batches[number]
    inputs, lengths = request.prompt.tokens[rows], request.prompt.length[rows]
    if request.prompt.inputs is not None:
      inputs, lengths = request.prompt.inputs[rows], None
    texts, params = self.plain.texts[number], request.target.params
    return begin_replay(request.model, params, inputs, texts, candidate.strategy, lengths)


def _advance(run: Run, calls: int | None) -> Any:
  """Makes the first calls of a run, which stays as it was, and returns the state."""
  again = copy.copy(run)
  again.advance(calls)
  return again.state


def _time(functions: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
  """Returns the median seconds of functions in turn, after a round that compiles."""
  wallclock.time_round(functions, 0)
  rounds, until = [], wallclock.now() + seconds
  while len(rounds) < ROUNDS or (len(rounds) < MOST_ROUNDS and wallclock.now() < until):
    rounds.append(wallclock.time_round(functions, len(rounds)))
  return {name: statistics.median([times[name] for times in rounds]) for name in functions}
