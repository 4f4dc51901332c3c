"""`tune`: which strategy is fastest on this machine, for this model and these texts, and keeps a promise.

Candidates that keep the promise are compiled in the order given, for at most half of the budget; then they race
(`tuning.race`) for half of the rest, and in what is left those are compiled, and join, for which there was no time.
One token a call, `Greedy` or `Sample`, always takes part and is kept unless something is faster beyond noise: the
answer is never slower.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from fastdec import gate
from fastdec.decoding.methods.greedy import Greedy, Sample
from fastdec.decoding.protocol import Promise, promise_of
from fastdec.decoding.rules.rejection import Warped
from fastdec.decoding.rules.sampling import Sampling
from fastdec.decoding.settings import Whole, count, is_number
from fastdec.decoding.strategy import LoopStrategy, check_strategy
from fastdec.errors import UserError
from fastdec.models.api import Model, Params
from fastdec.struct import Bound
from fastdec.tuning import machine
from fastdec.tuning.entrants import Entrant, compiled, figures_of, predictions
from fastdec.tuning.prompts import batches_of
from fastdec.tuning.race import Race
from fastdec.tuning.tuned import Figures, Tuned
from fastdec.tuning.widths import call_seconds

BUDGET = 120.0  # seconds
PREDICTING = 0.15  # of the budget
WIDTHS_COST = 5  # compiling the programs that time calls by their width, in compilations of the plain strategy


def tune(
  model: Model,
  params: Params,
  strategies: Mapping[str, Any] | Sequence[Any],
  inputs: Any,
  promise: str | None = None,
  plain: Any = None,
  max_len: Whole | None = None,
  key: Any = None,
  rows: Whole = 1,
  budget: int | float = BUDGET,
  said: Callable[[str], None] = lambda line: None,
  clock: Callable[[], float] = time.perf_counter,
) -> Tuned:
  """Finds the fastest of some strategies, by decoding prompts with all of them in turn.

  While times are taken, trainings of other processes on the machine stand still (`fastdec.gate`); waiting for them is
  not part of the budget.

  Args:
    model, params, max_len: see `decode`.
    strategies: the candidates, by names of your choice; a list's are named by their kind and place.
    inputs: prompts such as will be decoded: the ids of each, without padding, in a list or an array; or pictures. At
      least five batches of different ones; those that make all others much wider are left out.
    promise: 'exact' lets candidates take part whose output is the model's own greedy output; 'law' those whose tokens
      have the law of `plain`'s; 'relaxed' all (None: 'exact', or 'law' if `plain` samples).
    plain: one token a call, which is always a candidate: `Greedy()` or `Sample(...)` (None: `Sample()` for 'law', else
      `Greedy()`).
    key: for strategies that sample.
    rows: prompts decoded at once.
    budget: seconds for everything, compiling included.
    said: called with sentences about what goes on.
    clock: seconds.

  Raises:
    UserError: an unknown promise, no inputs, a candidate that cannot decode them, or a budget that ends before one
      round.
  """
  begun = clock()
  rows, budget = count('rows', rows, 1, '1 or more'), _budget(budget)
  plain, promise = _asked(plain, promise)
  name = 'sampling' if isinstance(plain, Sample) else 'greedy'
  candidates = _candidates(strategies, plain, name)
  left_out = {other: why for other, one in candidates.items() if (why := _breaks(one, plain, promise))}
  batches = batches_of(model, inputs, rows, key)
  taking_part = {other: one for other, one in candidates.items() if other not in left_out}
  entrants = {other: Entrant(model, params, one, batches, max_len) for other, one in taking_part.items()}
  race = Race(name, len(batches))
  late = _race(race, entrants, begun + (1 - PREDICTING) * budget, said, clock)
  left_out |= dict.fromkeys(late, 'not run: the budget was not enough to compile it')
  chosen, why = race.winner()
  figures = {other: figures_of(other, entrants, race) for other in race.seconds}
  for other, reason in left_out.items():
    figures[other] = Figures(other, promise_of(candidates[other].effective_rule), said=reason)
  for other, speedup in _predicted(race, entrants, begun + budget, said, clock).items():
    figures[other] = dataclasses.replace(figures[other], predicted=1e3 / race.tokens_per_second(name) / speedup)
  return Tuned(
    name=chosen,
    why=why,
    plain=name,
    promise=promise,
    rows=rows,
    max_len=entrants[name].texts[0].tokens.shape[1],
    prompts=rows * min(race.rounds, len(batches)),
    seconds=clock() - begun,
    compile_seconds=sum(one.compile_seconds for one in entrants.values()),
    machine=machine.here(),
    table=tuple(figures[other] for other in candidates),
    strategy=candidates[chosen],
  )


def _race(
  race: Race, entrants: Mapping[str, Entrant], ends: float, said: Callable[[str], None], clock: Callable[[], float]
) -> list[str]:
  """Compiles candidates for half of the time that is left, times them for half of the rest, and so on.

  Returns the names of those for which there was no time.

  Raises:
    UserError: there was none for the first round.
  """
  late, least = dict(entrants), 2
  while late and (least or clock() + _longest(entrants) < ends):
    names = compiled(late, (clock() + ends) / 2, said, clock, least)
    if not names:
      break
    late, least = {name: one for name, one in late.items() if name not in names}, 0
    if clock() >= ends and not race.rounds:
      raise UserError(
        f'the budget ended before one round: compiling {len(names)} candidates took'
        f' {sum(entrants[name].compile_seconds for name in names):.0f} s, so give more, or fewer candidates'
      )
    race.join(names)
    said(f'{len(names)} candidates are compiled; {len(race.running)} are timed in turn')
    begun = clock()
    with gate.alone():
      ends += clock() - begun  # waiting for others is no part of the budget
      _run(race, entrants, (clock() + ends) / 2 if late else ends, said, clock)
  return list(late)


def _predicted(
  race: Race, entrants: Mapping[str, Entrant], ends: float, said: Callable[[str], None], clock: Callable[[], float]
) -> dict[str, float]:
  """How many times as fast as the plain strategy some candidates should be; {} where nothing can be said, or where the
  programs that time calls would take longer to compile than there is time."""
  nodes = {name: one.strategy.drafter.nodes for name, one in entrants.items()}
  plain = entrants[race.plain]
  if len(race.seconds) < 2 or clock() + WIDTHS_COST * plain.compile_seconds > ends:
    return {}
  said('timing calls by their width, for predictions')
  target, texts = Bound(plain.model, plain.params), plain.texts[0].tokens.shape[1]
  wide = call_seconds(target, plain.strategy.rule, plain.batches[0], texts, nodes.values(), clock)
  return predictions(entrants, race, nodes, wide)


def _longest(entrants: Mapping[str, Entrant]) -> float:
  return max(one.compile_seconds for one in entrants.values())


def _run(
  race: Race,
  entrants: Mapping[str, Entrant],
  ends: float,
  said: Callable[[str], None],
  clock: Callable[[], float],
) -> None:
  """Rounds until nothing more can change, or another one would not fit into the time; at least one."""
  rounds, took = race.rounds, 0.0
  while race.rounds == rounds or (not race.is_over and clock() + took <= ends):
    started, before = clock(), list(race.running)
    race.run(entrants, clock)
    took = clock() - started
    for gone in before:
      if gone not in race.running:
        said(f'{gone} is dropped after {len(race.seconds[gone])} rounds')


def _budget(given: Any) -> float:
  if not is_number(given) or not 0 < given < float('inf'):
    raise UserError(f'budget={given!r} is not possible: give seconds, more than 0')
  return float(given)


def _asked(plain: Any, promise: Any) -> tuple[Any, Promise]:
  """The strategy of one token a call and the promise that go together."""
  if promise is None:
    promise = 'law' if isinstance(plain, Sample) else 'exact'
  if promise not in get_args(Promise):
    raise UserError(f'promise={promise!r} is unknown: give {", ".join(get_args(Promise))}')
  if plain is None:
    plain = Sample() if promise == 'law' else Greedy()
  if not isinstance(plain, Greedy | Sample):
    raise UserError(f'plain={type(plain).__name__} is not one token a call: give fd.Greedy() or fd.Sample(...)')
  if isinstance(plain, Sample) and promise == 'exact':
    raise UserError("what is sampled is never exact: give promise='law', or plain=fd.Greedy()")
  if isinstance(plain, Greedy) and promise == 'law':
    raise UserError("greedy decoding draws nothing: give promise='exact', or plain=fd.Sample(...)")
  return plain, promise


def _candidates(strategies: Any, plain: Any, name: str) -> dict[str, Any]:
  """The plain strategy and the others, by name."""
  if not isinstance(strategies, Mapping):
    strategies = {f'{type(one).__name__} {place}': one for place, one in enumerate(strategies)}
  found = {name: plain}
  for other, strategy in strategies.items():
    check_strategy(strategy)
    if not isinstance(strategy, LoopStrategy):
      raise UserError(f'{other} is a {type(strategy).__name__}, which ranks whole outputs: leave it out, tune cannot')
    if other == name and type(strategy) is not type(plain):
      raise UserError(f'{name} is the name of one token a call, and {type(strategy).__name__} has it: give it another')
    if not (isinstance(strategy, Greedy) and isinstance(plain, Greedy)):
      found.setdefault(other, strategy)
  return found


def _breaks(strategy: LoopStrategy, plain: Any, promise: Promise) -> str:
  """Why a candidate does not keep the promise; '' where it does."""
  kept = promise_of(strategy.effective_rule)
  if promise == 'relaxed' or strategy is plain:
    return ''
  if promise == 'exact':
    return '' if kept == 'exact' else f'not exact: its rule is {_in_words(kept)}'
  if kept != 'law':
    return f'not in law: its rule is {_in_words(kept)}'
  return (
    '' if _law(strategy.effective_rule) == _law(plain.rule) else 'samples at other settings than the plain strategy'
  )


def _in_words(kept: Promise) -> str:
  return {'exact': 'exact', 'law': 'for sampling', 'relaxed': 'relaxed'}[kept]


def _law(rule: Any) -> tuple[float, ...]:
  """Temperature, top-k and top-p of a rule that samples; nothing for another, which equals nothing."""
  sampling = rule.sampling if isinstance(rule, Warped) else rule
  if not isinstance(sampling, Sampling):
    return ()
  return tuple(float(x) for x in (sampling.temperature, sampling.top_k, sampling.top_p))
