"""The search for the strategy that is fastest on this machine, for a model and texts.

Candidates that keep the promise are compiled in the order given, for at most half of the budget.
Then they race (`tuning.race`) for half of the rest. In what is left those are compiled, and join,
for which there was no time. One token a call, `Greedy` or `Sample`, always takes part, and is kept
unless something is faster beyond noise: the answer is never slower.

What goes on is logged, as 'fastdec.tuning'.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any

import jax

from fastdec.decoding.description import label
from fastdec.decoding.methods.greedy import Greedy, Sample
from fastdec.decoding.protocol import Promise, promise_of
from fastdec.decoding.settings import Whole, count, is_number
from fastdec.decoding.strategy import LoopStrategy, check_strategy
from fastdec.errors import UserError
from fastdec.evaluation import machine
from fastdec.evaluation.wallclock import alone
from fastdec.models.api import Model, Params, check_model
from fastdec.struct import Bound
from fastdec.tuning.entrants import Entrant, figures_of
from fastdec.tuning.prompts import batches_of
from fastdec.tuning.race import Race
from fastdec.tuning.tuned import Figures, Tuned

BUDGET = 120.0  # seconds
IN_WORDS: dict[Promise, str] = {'exact': 'exact', 'law': 'for sampling', 'relaxed': 'relaxed'}
log = logging.getLogger('fastdec.tuning')
clock = time.perf_counter


class OutOfTime(UserError):
  """The budget ended before one round."""


def tune(
  model: Model,
  params: Params,
  strategies: Sequence[Any],
  inputs: Any,
  max_len: Whole | None = None,
  rows: Whole = 1,
  relaxed: bool = False,
  budget: int | float = BUDGET,
) -> Tuned:
  """Finds the fastest of some strategies, by decoding prompts with all of them in turn.

  Args:
    model, params, max_len: as of `decode`.
    strategies: the candidates, such as `[fd.PromptLookup(), *fd.Eagle(draft).sizes()]`. A `Sample`
      among them says that tokens are drawn from its law; without one they are `Greedy`'s.
    inputs: prompts such as will be decoded: ids of each, without padding, or pictures. Five batches
      of different ones at least; a few that are much longer than all others are left out.
    rows: prompts decoded at once.
    relaxed: lets candidates take part that write other text than the model would.
    budget: seconds for everything, compiling included.

  Raises:
    UserError: no inputs, a candidate that cannot decode them, or (`OutOfTime`) a budget that ends
      before one round.
  """
  begun = clock()
  rows = count('rows', rows, 1, '1 or more')
  check_model(model, params)
  if not is_number(budget) or not 0 < budget < float('inf'):
    raise UserError(f'budget={budget!r} is not possible: give seconds, more than 0')
  plain = next((one for one in strategies if isinstance(one, Sample)), Greedy())
  candidates = _named(plain, strategies)
  name = label(plain)
  is_drawn = relaxed or isinstance(plain, Sample)
  batches = batches_of(model, inputs, rows, jax.random.key(0) if is_drawn else None)
  entrants, left_out = {}, {}
  for other, one in candidates.items():
    left_out[other] = '' if relaxed else _breaks(one, plain)
    if not left_out[other]:
      entrants[other] = Entrant(Bound(model, params), one, batches, max_len)
  race = Race(name, len(batches))
  for late in _race(race, entrants, begun + budget):
    left_out[late] = 'not run: the budget was not enough to compile it'
  chosen, why = race.winner()
  table = []
  for other in candidates:
    if other in race.seconds:
      table.append(figures_of(other, entrants, race))
    else:
      table.append(Figures(other, said=left_out[other]))
  texts = [row for i in sorted(entrants[name].texts) for row in entrants[name].texts[i].tokens]
  return Tuned(
    name=chosen,
    why=why,
    plain=name,
    promise='relaxed' if relaxed else promise_of(plain.effective_rule),
    rows=rows,
    max_len=len(texts[0]),
    prompts=rows * min(race.rounds, len(batches)),
    seconds=clock() - begun,
    compile_seconds=sum(one.compile_seconds for one in entrants.values()),
    machine=machine.here(),
    table=tuple(table),
    strategy=candidates[chosen],
    texts=tuple(tuple(row.tolist()) for row in texts),
  )


def _named(plain: Any, strategies: Sequence[Any]) -> dict[str, Any]:
  """Names the plain strategy and the others by their labels; those of one label are numbered."""
  found = {label(plain): plain}
  for one in strategies:
    check_strategy(one)
    if not isinstance(one, LoopStrategy):
      raise UserError(f'{type(one).__name__} ranks whole outputs: leave it out, tune cannot')
    name = text = label(one)
    number = 2
    while name in found:
      name, number = f'{text} {number}', number + 1
    if one is not plain and not (isinstance(one, Greedy) and isinstance(plain, Greedy)):
      found[name] = one
  return found


def _breaks(strategy: LoopStrategy, plain: Any) -> str:
  """Says why a candidate does not keep the plain strategy's promise; '' if it does."""
  wanted, kept = promise_of(plain.effective_rule), promise_of(strategy.effective_rule)
  if kept != wanted:
    return f'not {IN_WORDS[wanted]}: its rule is {IN_WORDS[kept]}'
  if kept == 'law' and strategy.sampling != plain.sampling:
    return 'samples at other settings than the plain strategy'
  return ''


def _race(race: Race, entrants: dict[str, Entrant], ends: float) -> list[str]:
  """Compiles candidates for half of the time left, times them for half of the rest, and so on.

  Returns the names of those for which there was no time.

  Raises:
    OutOfTime: there was none for the first round.
    UserError: a candidate cannot decode the prompts.
  """
  late, least = list(entrants), 2
  while late and (least or clock() + max(e.compile_seconds for e in entrants.values()) < ends):
    number = _compile(late, entrants, (clock() + ends) / 2, least)
    if not number:
      break
    joining, late, least = late[:number], late[number:], 0
    if clock() >= ends and not race.rounds:
      seconds = sum(entrants[name].compile_seconds for name in joining)
      raise OutOfTime(
        f'the budget ended before one round: compiling {number} candidates took {seconds:.0f} s,'
        ' so give more, or fewer candidates'
      )
    race.join(joining)
    log.info(f'{number} candidates are compiled; {len(race.running)} are timed in turn')
    begun = clock()
    with alone():
      ends += clock() - begun  # waiting for others is no part of the budget
      _run(race, entrants, (clock() + ends) / 2 if late else ends)
  return late


def _compile(names: list[str], entrants: dict[str, Entrant], until: float, least: int) -> int:
  """Compiles candidates in their order until the clock says so, `least` in any case.

  Returns their number.
  """
  for number, name in enumerate(names):
    begun = clock()
    if number >= least and begun > until:
      return number
    log.info(f'compiling {name}')
    try:
      entrants[name](0)
    except UserError as error:
      raise UserError(f'{name}: {error}') from None
    entrants[name].compile_seconds = clock() - begun
  return len(names)


def _run(race: Race, entrants: dict[str, Entrant], ends: float) -> None:
  """Runs rounds until more would change nothing, or not fit into the time; one at least."""
  rounds, took = race.rounds, 0.0
  while race.rounds == rounds or (not race.is_over and clock() + took <= ends):
    started, before = clock(), list(race.running)
    race.run(entrants, clock)
    took = clock() - started
    for gone in before:
      if gone not in race.running:
        log.info(f'{gone} is dropped after {len(race.seconds[gone])} rounds')
