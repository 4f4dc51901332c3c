"""The search for the strategy that is fastest on this machine, for a model and prompts.

Candidates that keep the promise are compiled in their order: first two, then as many as half of the
budget allows, if the rest of it is enough to tell them apart. They race (`tuning.race`) for half of
the rest. In the remaining time other candidates are compiled and join the race. The plain strategy
with one token a call, `Greedy` or `Sample`, always takes part. It is kept unless another one is
faster beyond noise, so the answer is never slower.

Progress is logged as 'fastdec.tuning'.
"""

import logging
import math
from collections.abc import Sequence
from typing import Any

import jax

from fastdec.decoding.description import label
from fastdec.decoding.methods.greedy import Greedy, Sample
from fastdec.decoding.protocol import Promise, promise_of
from fastdec.decoding.settings import Whole, count, is_number
from fastdec.decoding.strategy import LoopStrategy, read_strategy
from fastdec.errors import UserError
from fastdec.evaluation import machine, wallclock
from fastdec.models.api import Model, Params, check_model
from fastdec.struct import Bound
from fastdec.tuning.entrants import Entrant, compute_figures
from fastdec.tuning.prompts import make_batches
from fastdec.tuning.race import LEAST, Race
from fastdec.tuning.tuned import Figures, Tuned

BUDGET = 120.0  # seconds
IN_WORDS: dict[Promise, str] = {'exact': 'exact', 'law': 'for sampling', 'relaxed': 'relaxed'}
log = logging.getLogger('fastdec.tuning')


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
    model, params, max_len: as in `decode`.
    strategies: the candidates, such as `['prompt_lookup', *fd.Eagle(draft).sizes()]`. If a `Sample`
      is among them, tokens are drawn as it draws them; otherwise they are `Greedy`'s.
    inputs: prompts like those to decode later: the ids of each without padding, or pictures.
      `fd.Generator.read(prompt)[0]` gives the ids of texts and chats. Give at least five batches of
      different prompts; the few that are much longer than the others are left out.
    rows: prompts decoded at once.
    relaxed: also races candidates that may write other text than the model would.
    budget: seconds for everything, compiling included.

  Raises:
    UserError: no inputs, a candidate that cannot decode them, or (`OutOfTime`) a budget that ends
      before one round.
  """
  start = wallclock.now()
  rows = count('rows', rows, 1, '1 or more')
  check_model(model, params)
  if not is_number(budget) or not 0 < budget < float('inf'):
    raise UserError(f'budget={budget!r} is not possible: give seconds, more than 0')
  strategies = [*map(read_strategy, strategies)]
  plain = next((one for one in strategies if isinstance(one, Sample)), Greedy())
  candidates = _name_candidates(plain, strategies)
  key = None
  if relaxed or isinstance(plain, Sample):
    key = jax.random.key(0)
  batches = make_batches(model, inputs, rows, key)

  # Candidates that break the promise are left out, and so are those compiled too late.
  entrants: dict[str, Entrant] = {}
  notes: dict[str, str] = {}
  for name, strategy in candidates.items():
    if not relaxed:
      notes[name] = _find_broken_promise(strategy, plain)
    if not notes.get(name):
      entrants[name] = Entrant(Bound(model, params), strategy, batches, max_len)
  race = Race(label(plain), len(batches))
  for name in _compile_and_race(race, entrants, start + budget):
    notes[name] = 'not run: the budget was not enough to compile it'

  fastest, why = race.choose_winner()
  if race.rounds < min(LEAST, len(batches)):
    why += f'; these candidates need {_describe_time_for_all(race, entrants)}'
  table = []
  for name in candidates:
    if name in race.seconds:
      table.append(compute_figures(name, entrants, race))
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
    seconds=wallclock.now() - start,
    compile_seconds=sum(entrant.compile_seconds for entrant in entrants.values()),
    machine=machine.here(),
    table=tuple(table),
    strategy=candidates[fastest],
    texts=tuple(tuple(row.tolist()) for row in texts),
  )


def _name_candidates(plain: Any, strategies: Sequence[Any]) -> dict[str, Any]:
  """Names the plain strategy and the others by their labels; repeated labels get a number."""
  candidates = {label(plain): plain}
  for strategy in strategies:
    if not isinstance(strategy, LoopStrategy):
      name = type(strategy).__name__
      raise UserError(f'{name} ranks whole outputs, which tune cannot time: leave it out')
    if strategy is plain or (isinstance(strategy, Greedy) and isinstance(plain, Greedy)):
      continue
    name, number = label(strategy), 2
    while name in candidates:
      name, number = f'{label(strategy)} {number}', number + 1
    candidates[name] = strategy
  return candidates


def _find_broken_promise(strategy: LoopStrategy, plain: Any) -> str:
  """Returns how a candidate breaks the plain strategy's promise; '' if it keeps it."""
  wanted, kept = promise_of(plain.effective_rule), promise_of(strategy.effective_rule)
  if kept != wanted:
    return f'not {IN_WORDS[wanted]}: its rule is {IN_WORDS[kept]}'
  if kept == 'law' and strategy.sampling != plain.sampling:
    return 'samples at other settings than the plain strategy'
  return ''


def _compile_and_race(race: Race, entrants: dict[str, Entrant], ends: float) -> list[str]:
  """Compiles the plain candidate and another, and times them once, to learn how many others fit.

  Others are compiled for half of the time left, then all are timed for half of the rest, and so on,
  as long as the rest is enough to tell candidates apart (`LEAST` rounds).

  Returns the names of the candidates that were not compiled for lack of time.

  Raises:
    OutOfTime: no time was left for the first round.
    UserError: a candidate cannot decode the prompts.
  """
  waiting = list(entrants)
  while waiting:
    number = _compile(race, waiting, entrants, ends)
    if not number:
      break
    joining, waiting = waiting[:number], waiting[number:]
    is_first = not race.rounds
    race.join(joining)
    log.info(f'{number} candidates are compiled; {len(race.running)} are timed in turn')
    asked_at = wallclock.now()
    with wallclock.alone():
      ends += wallclock.now() - asked_at  # the budget does not count waiting for other programs
      until = ends
      if waiting and is_first:
        until = wallclock.now()  # one round
      elif waiting:
        until = (wallclock.now() + ends) / 2
      _run(race, entrants, until, least=1)
  with wallclock.alone():
    _run(race, entrants, ends)
  return waiting


def _compile(race: Race, names: list[str], entrants: dict[str, Entrant], ends: float) -> int:
  """Compiles candidates in their order while there is time; returns their number."""
  until = (wallclock.now() + ends) / 2
  least = 0 if race.rounds else 2
  for number, name in enumerate(names):
    # Stop when the next one would leave too little time to race.
    start = wallclock.now()
    slowest = max(entrant.compile_seconds for entrant in entrants.values())
    has_time = start <= until and start + slowest + _estimate_race(race, number + 1) <= ends
    if number >= least and not (race.rounds and has_time):
      return number
    if number and start + slowest >= ends:
      raise OutOfTime(
        f'the budget ended before one round: compiling {number} of {len(entrants)} candidates took'
        f' {slowest:.0f} s, so give {_describe_time_for_all(race, entrants)}, or fewer candidates'
      )
    log.info(f'compiling {name}')
    try:
      entrants[name](0)
    except UserError as error:
      raise UserError(f'{name}: {error}') from None
    entrants[name].compile_seconds = wallclock.now() - start
  return len(names)


def _estimate_race(race: Race, more: int) -> float:
  """Estimates the seconds it takes to tell the running candidates and some more apart."""
  timed = [name for name in race.running if race.seconds[name]]
  if not timed:
    return 0.0
  mean = sum(map(race.seconds_per_batch, timed)) / len(timed)
  return LEAST * mean * (len(race.running) + more)


def _describe_time_for_all(race: Race, entrants: dict[str, Entrant]) -> str:
  """Estimates the time that all candidates need, in words."""
  compiled = [one.compile_seconds for one in entrants.values() if one.compile_seconds]
  seconds = len(entrants) * sum(compiled) / max(len(compiled), 1)
  seconds += _estimate_race(race, len(entrants) - len(race.running)) or seconds / 2
  minutes = math.ceil(seconds / 60)
  if minutes <= 1:
    return 'about a minute'
  return f'about {minutes} minutes'


def _run(race: Race, entrants: dict[str, Entrant], ends: float, least: int = 0) -> None:
  """Runs at least `least` rounds, until more would change nothing or do not fit into the time."""
  rounds, last_round = 0, _estimate_race(race, 0) / LEAST  # seconds
  while rounds < least or (not race.is_over and wallclock.now() + last_round <= ends):
    started, before = wallclock.now(), list(race.running)
    race.run(entrants)
    rounds, last_round = rounds + 1, wallclock.now() - started
    for name in before:
      if name not in race.running:
        log.info(f'{name} is dropped after {len(race.seconds[name])} rounds')
