"""`tune`: which strategy is fastest on this machine, for this model and these texts, and keeps a
promise.

Candidates that keep the promise are compiled in the order given, for at most half of the budget;
then they race (`tuning.race`) for half of the rest, and in what is left those are compiled, and
join, for which there was no time. One token a call, `Greedy` or `Sample`, always takes part and is
kept unless something is faster beyond noise: the answer is never slower.

Types of numbers and numbers of rows are in the same race: all candidates decode the same prompts,
and tokens a second are compared. A model in int8 is another model than in float32, and writes other
text here and there: so what a candidate promises is about the output of one token a call in its own
type.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fastdec.decoding.methods.greedy import Sample
from fastdec.decoding.protocol import Promise, promise_of
from fastdec.decoding.settings import Whole
from fastdec.errors import UserError
from fastdec.evaluation import machine
from fastdec.evaluation.wallclock import alone
from fastdec.models.api import Model, Params
from fastdec.struct import Bound
from fastdec.tuning.asked import breaks, check_types, named, promised, seconds_of, sizes_of
from fastdec.tuning.entrants import Entrant, compiled, figures_of
from fastdec.tuning.prompts import Batch, batches_of
from fastdec.tuning.race import Race
from fastdec.tuning.tuned import Figures, Tuned

BUDGET = 120.0  # seconds


def tune(
  model: Model,
  params: Params,
  strategies: Mapping[str, Any] | Sequence[Any],
  inputs: Any,
  promise: str | None = None,
  plain: Any = None,
  max_len: Whole | None = None,
  key: Any = None,
  rows: Whole | Sequence[Whole] = 1,
  dtype: str | None = None,
  types: Mapping[str, tuple[Model, Params, Any]] = MappingProxyType({}),
  budget: int | float = BUDGET,
  said: Callable[[str], None] = lambda line: None,
  clock: Callable[[], float] = time.perf_counter,
) -> Tuned:
  """Finds the fastest of some strategies, by decoding prompts with all of them in turn.

  Only one process of a user takes times at a time; waiting for another is not part of the budget.

  Args:
    model, params, max_len: see `decode`.
    strategies: the candidates, by names of your choice; a list's are named by their kind and place.
    inputs: prompts such as will be decoded: the ids of each, without padding, in a list or an
      array; or pictures. At least five batches of different ones; those that make all others much
      wider are left out.
    promise: 'exact' lets candidates take part whose output is the model's own greedy output; 'law'
      those whose tokens have the law of `plain`'s; 'relaxed' all (None: 'exact', or 'law' if
      `plain` samples).
    plain: one token a call, which is always a candidate: `Greedy()` or `Sample(...)` (None:
      `Sample()` for 'law', else `Greedy()`).
    key: for strategies that sample.
    rows: prompts decoded at once; several numbers are all tried, and the first is that of the plain
      strategy.
    dtype: the type that `params` were loaded in (`load`), which the answer names; None: the model's
      own.
    types: other types in which the model takes part: by the name that `load` has for them, the
      model, its parameters, and the candidates, their heads or drafts in the same type.
    budget: seconds for everything, compiling included.
    said: called with sentences about what goes on.
    clock: seconds.

  Raises:
    UserError: an unknown promise, no inputs, a candidate that cannot decode them, a type of another
      model, or a budget that ends before one round.
  """
  begun = clock()
  sizes, budget = sizes_of(rows), seconds_of(budget)
  plain, promise = promised(plain, promise)
  name = 'sampling' if isinstance(plain, Sample) else 'greedy'
  check_types(model, dtype, types)
  batches = batches_of(model, inputs, math.lcm(*sizes), key)
  everything = {dtype: (model, params, strategies), **types}
  candidates = _candidates(everything, batches, sizes, plain, name, max_len)
  left_out = {
    other: why for other, one in candidates.items() if (why := breaks(one.strategy, plain, promise))
  }
  entrants = _in_turn({other: one for other, one in candidates.items() if other not in left_out})
  race = Race(name, len(batches))
  late = _race(race, entrants, begun + budget, said, clock)
  left_out |= dict.fromkeys(late, 'not run: the budget was not enough to compile it')
  chosen, why = race.winner()
  figures = _figures(candidates, entrants, race, left_out)
  return Tuned(
    name=chosen,
    why=why + _about_type(figures[chosen], promise, dtype),
    plain=name,
    promise=promise,
    rows=candidates[chosen].rows,
    max_len=entrants[name].texts[0].tokens.shape[1],
    prompts=len(batches[0].inputs) * min(race.rounds, len(batches)),
    seconds=clock() - begun,
    compile_seconds=sum(one.compile_seconds for one in entrants.values()),
    machine=machine.here(),
    table=tuple(figures.values()),
    dtype=candidates[chosen].dtype,
    strategy=candidates[chosen].strategy,
  )


def _candidates(
  types: Mapping[str | None, tuple[Model, Params, Any]],
  batches: Sequence[Batch],
  sizes: Sequence[int],
  plain: Any,
  name: str,
  max_len: Whole | None,
) -> dict[str, Entrant]:
  """Every strategy in every type and at every number of rows, named by these where they are not the
  first.

  Raises:
    UserError: two would have the same name.
  """
  candidates: dict[str, Entrant] = {}
  first = next(iter(types))
  for kind, (model, params, given) in types.items():
    target, found = Bound(model, params), named(given, plain, name)
    for size in sizes:
      suffix = _suffix(kind if kind != first else None, size if size != sizes[0] else None)
      parts = [batch.split(size) for batch in batches]
      for other, one in found.items():
        if other + suffix in candidates:
          raise UserError(
            f'two candidates have the name {other + suffix}: give one of them another'
          )
        candidates[other + suffix] = Entrant(target, one, parts, max_len, name + suffix, kind, size)
  return candidates


def _in_turn(entrants: Mapping[str, Entrant]) -> dict[str, Entrant]:
  """The first of each type and number of rows, then the second of each, and so on: none waits for
  all of another."""
  places: dict[str, int] = {}
  seen: dict[str, int] = {}
  for name, one in entrants.items():
    places[name] = seen[one.plain] = seen.get(one.plain, -1) + 1
  return {name: entrants[name] for name in sorted(entrants, key=places.__getitem__)}


def _suffix(dtype: str | None, rows: int | None) -> str:
  """What tells the candidates of a type and a number of rows from the first's: ', int8, 8 rows'."""
  return (f', {dtype}' if dtype else '') + (f', {rows} rows' if rows else '')


def _about_type(chosen: Figures, promise: Promise, first: str | None) -> str:
  """What to say where another type was chosen: whose output it is."""
  if chosen.dtype == first or promise == 'relaxed':
    return ''
  whose = "the model's own type" if first is None else first
  text = f'; in {chosen.dtype} it is another model, and it is the output of that one which is kept'
  if chosen.as_first is None:
    return text
  return f'{text}: {100 * chosen.as_first:.1f} % of the texts are those of {whose}'


def _race(
  race: Race,
  entrants: Mapping[str, Entrant],
  ends: float,
  said: Callable[[str], None],
  clock: Callable[[], float],
) -> list[str]:
  """Compiles candidates for half of the time that is left, times them for half of the rest, and so
  on.

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
        f' {sum(entrants[name].compile_seconds for name in names):.0f} s, so give more, or fewer'
        ' candidates'
      )
    race.join(names)
    said(f'{len(names)} candidates are compiled; {len(race.running)} are timed in turn')
    begun = clock()
    with alone():
      ends += clock() - begun  # waiting for others is no part of the budget
      _run(race, entrants, (clock() + ends) / 2 if late else ends, said, clock)
  return list(late)


def _figures(
  candidates: Mapping[str, Entrant],
  entrants: Mapping[str, Entrant],
  race: Race,
  left_out: Mapping[str, str],
) -> dict[str, Figures]:
  """What is known of every candidate: its times, or why it did not run."""
  found = {}
  for name, one in candidates.items():
    if name in race.seconds:
      found[name] = figures_of(name, entrants, race)
    else:
      kept = promise_of(one.strategy.effective_rule)
      found[name] = Figures(name, kept, said=left_out[name], dtype=one.dtype, rows=one.rows)
  return found


def _longest(entrants: Mapping[str, Entrant]) -> float:
  return max(one.compile_seconds for one in entrants.values())


def _run(
  race: Race,
  entrants: Mapping[str, Entrant],
  ends: float,
  said: Callable[[str], None],
  clock: Callable[[], float],
) -> None:
  """Rounds until nothing more can change, or another one would not fit into the time; at least
  one."""
  rounds, took = race.rounds, 0.0
  while race.rounds == rounds or (not race.is_over and clock() + took <= ends):
    started, before = clock(), list(race.running)
    race.run(entrants, clock)
    took = clock() - started
    for gone in before:
      if gone not in race.running:
        said(f'{gone} is dropped after {len(race.seconds[gone])} rounds')
