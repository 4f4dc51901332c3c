"""The search for the strategy that is fastest on this machine, for a model and prompts.

Candidates that keep the promise are compiled in their order, for at most half of the budget. Then
they race (`tuning.race`) for half of the rest. In the remaining time the other candidates are
compiled, and join the race. One token a call, `Greedy` or `Sample`, always takes part, and is kept
unless something is faster beyond noise: the answer is never slower.

Progress is logged as 'fastdec.tuning'.
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
    strategies: the candidates, such as `[fd.PromptLookup(), *fd.Eagle(draft).sizes()]`. If a
      `Sample` is among them, tokens are drawn from its law; otherwise they are `Greedy`'s.
    inputs: prompts like those to decode later: ids of each, without padding, or pictures; those of
      texts and chats are `fd.Generator.read(prompt)[0]`. At least five batches of different ones;
      the few that are much longer than the others are left out.
    rows: prompts decoded at once.
    relaxed: also races candidates that write other text than the model would.
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
  samples = [strategy for strategy in strategies if isinstance(strategy, Sample)]
  plain = samples[0] if samples else Greedy()
  candidates = _named(plain, strategies)
  may_draw = relaxed or isinstance(plain, Sample)
  batches = batches_of(model, inputs, rows, jax.random.key(0) if may_draw else None)

  # Candidates that break the promise are left out, and so are those compiled too late.
  entrants, notes = {}, {}
  for name, strategy in candidates.items():
    notes[name] = '' if relaxed else _broken_promise(strategy, plain)
    if not notes[name]:
      entrants[name] = Entrant(Bound(model, params), strategy, batches, max_len)
  race = Race(label(plain), len(batches))
  for name in _compile_and_race(race, entrants, begun + budget):
    notes[name] = 'not run: the budget was not enough to compile it'

  fastest, why = race.winner()
  table = []
  for name in candidates:
    if name in race.seconds:
      table.append(figures_of(name, entrants, race))
    else:
      table.append(Figures(name, note=notes[name]))
  texts = []
  for _, out in sorted(entrants[race.plain].texts.items()):
    texts.extend(out.tokens)
  return Tuned(
    name=fastest,
    why=why,
    plain=race.plain,
    promise='relaxed' if relaxed else promise_of(plain.effective_rule),
    rows=rows,
    max_len=len(texts[0]),
    prompts=rows * min(race.rounds, len(batches)),
    seconds=clock() - begun,
    compile_seconds=sum(entrant.compile_seconds for entrant in entrants.values()),
    machine=machine.here(),
    table=tuple(table),
    strategy=candidates[fastest],
    texts=tuple(tuple(row.tolist()) for row in texts),
  )


def _named(plain: Any, strategies: Sequence[Any]) -> dict[str, Any]:
  """Names the plain strategy and the others by their labels; repeated labels get a number."""
  candidates = {label(plain): plain}
  for strategy in strategies:
    check_strategy(strategy)
    if not isinstance(strategy, LoopStrategy):
      raise UserError(f'{type(strategy).__name__} ranks whole outputs: leave it out, tune cannot')
    if strategy is plain or (isinstance(strategy, Greedy) and isinstance(plain, Greedy)):
      continue
    name, number = label(strategy), 2
    while name in candidates:
      name, number = f'{label(strategy)} {number}', number + 1
    candidates[name] = strategy
  return candidates


def _broken_promise(strategy: LoopStrategy, plain: Any) -> str:
  """Explains why a candidate does not keep the plain strategy's promise; '' if it does."""
  wanted, kept = promise_of(plain.effective_rule), promise_of(strategy.effective_rule)
  if kept != wanted:
    return f'not {IN_WORDS[wanted]}: its rule is {IN_WORDS[kept]}'
  if kept == 'law' and strategy.sampling != plain.sampling:
    return 'samples at other settings than the plain strategy'
  return ''


def _compile_and_race(race: Race, entrants: dict[str, Entrant], ends: float) -> list[str]:
  """Compiles candidates for half of the time left, times them for half of the rest, and so on.

  Returns the names of those that there was no time to compile.

  Raises:
    OutOfTime: no time was left for the first round.
    UserError: a candidate cannot decode the prompts.
  """
  waiting = list(entrants)
  while waiting:
    # The plain candidate and another are compiled in any case, more only while time is left.
    least = 0 if race.rounds else 2
    slowest = max(entrant.compile_seconds for entrant in entrants.values())
    if not least and clock() + slowest >= ends:
      break
    number = _compile(waiting, entrants, (clock() + ends) / 2, least)
    if not number:
      break
    joining, waiting = waiting[:number], waiting[number:]
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
      ends += clock() - begun  # waiting for other programs is no part of the budget
      _run(race, entrants, (clock() + ends) / 2 if waiting else ends)
  return waiting


def _compile(names: list[str], entrants: dict[str, Entrant], until: float, least: int) -> int:
  """Compiles candidates in their order until the time is up, but at least `least`.

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
  """Runs at least one round, and more until they change nothing or do not fit into the time."""
  is_first, last_round = True, 0.0  # seconds
  while is_first or (not race.is_over and clock() + last_round <= ends):
    started, before = clock(), list(race.running)
    race.run(entrants, clock)
    is_first, last_round = False, clock() - started
    for name in before:
      if name not in race.running:
        log.info(f'{name} is dropped after {len(race.seconds[name])} rounds')
