"""Candidates that take part in a race: strategies that decode batches of prompts, and what came of them."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import numpy as np

from fastdec.decoding.decode import decode
from fastdec.decoding.methods.greedy import Greedy
from fastdec.decoding.protocol import Decoded, promise_of
from fastdec.decoding.strategy import LoopStrategy
from fastdec.errors import UserError
from fastdec.evaluation.acceptance import accepted_by_place
from fastdec.models.api import Model, Params
from fastdec.tuning.prediction import STEPWISE, Member, Ran, member_of, predicted
from fastdec.tuning.prompts import Batch
from fastdec.tuning.race import Race
from fastdec.tuning.tuned import Figures


@dataclasses.dataclass
class Entrant:
  """A candidate that keeps the promise: it decodes batches, and remembers what came of them."""

  model: Model
  params: Params
  strategy: LoopStrategy
  batches: list[Batch]
  max_len: int | None
  texts: dict[int, Decoded] = dataclasses.field(default_factory=dict)
  compile_seconds: float = 0.0

  def __call__(self, number: int) -> int:
    """Decodes a batch. Returns the tokens of all its rows."""
    batch = self.batches[number]
    out = decode(
      self.model, self.params, batch.inputs, self.strategy, batch.lengths, max_len=self.max_len, key=batch.keys
    )
    lengths = np.asarray(out.lengths)
    if number not in self.texts:
      self.texts[number] = out.checked()
    return int(lengths.sum())


def compiled(
  entrants: Mapping[str, Entrant], until: float, said: Callable[[str], None], clock: Callable[[], float], least: int = 0
) -> list[str]:
  """Compiles candidates in their order until the clock says so much, but so many at least. Returns their names.

  Raises:
    UserError: a candidate cannot decode the prompts; it is named.
  """
  found: list[str] = []
  for name, entrant in entrants.items():
    begun = clock()
    if len(found) >= least and begun > until:
      break
    said(f'compiling {name}')
    try:
      entrant(0)
    except UserError as error:
      raise UserError(f'{name}: {error}') from None
    entrant.compile_seconds = clock() - begun
    found.append(name)
  return found


def figures_of(name: str, entrants: Mapping[str, Entrant], race: Race) -> Figures:
  """What the race and the texts of a candidate come to."""
  entrant = entrants[name]
  texts = entrant.texts
  calls = float(np.mean([int(np.max(out.calls)) for out in texts.values()]))
  later = sum(int(np.sum(out.lengths - 1)) for out in texts.values())
  called = sum(int(np.sum(out.calls)) for out in texts.values())
  seconds = race.seconds_per_batch(name, name)
  ratio = race.ratio(name, race.plain)
  speed = race.tokens_per_second(race.plain) * ratio.value  # of all batches, also for those that saw some
  theirs = entrants[race.plain].texts
  same = None
  if isinstance(entrants[race.plain].strategy, Greedy):
    rows = [(np.asarray(texts[i].tokens) == np.asarray(theirs[i].tokens)).all(1) for i in texts.keys() & theirs.keys()]
    same = float(np.concatenate(rows).mean())
  rounds = len(race.seconds[name])
  return Figures(
    name,
    promise_of(entrant.strategy.effective_rule),
    tokens_per_call=later / called if called else None,
    ms_per_call=1e3 * seconds / calls if calls else None,
    ms_per_token=1e3 / speed,
    tokens_per_second=speed,
    speedup=ratio.value,
    low=ratio.low,
    high=ratio.high,
    same=same,
    rounds=rounds,
    compile_seconds=entrant.compile_seconds,
    said='' if name in race.running else f'dropped after {rounds} rounds',
  )


def predictions(
  entrants: Mapping[str, Entrant], race: Race, nodes: Mapping[str, int], wide: Mapping[int, float]
) -> dict[str, float]:
  """How many times as fast as the plain strategy candidates should be (`prediction.predicted`).

  Args:
    entrants: all that keep the promise, whether they were in the race or not.
    nodes: of each one's calls.
    wide: seconds of a call of the target, by its nodes.
  """
  members = {name: member for name, one in entrants.items() if (member := member_of(one.strategy)) is not None}
  ran = {name: _shown(name, members[name], entrants, race) for name in members if name in race.seconds}
  stepwise = frozenset(name for name in members if isinstance(entrants[name].strategy, STEPWISE))
  return predicted(members, ran, nodes, wide, stepwise)


def _shown(name: str, member: Member, entrants: Mapping[str, Entrant], race: Race) -> Ran:
  """What a candidate has shown, beside the plain one on the same batches."""
  rounds = race.seconds[name].keys()
  batches = sorted({number % race.batches for number in rounds})
  ours, theirs = ([entrants[one].texts[i] for i in batches] for one in (name, race.plain))
  later, called = (sum(int(np.sum(x)) for x in of) for of in ([o.lengths - 1 for o in ours], [o.calls for o in ours]))
  together = jax.tree.map(lambda *parts: np.concatenate(parts), *ours)
  return Ran(
    seconds=race.seconds_per_batch(name, name),
    steps=max(float(np.mean([np.max(out.calls) for out in ours])), 1.0),
    plain_seconds=race.seconds_per_batch(race.plain, name),
    plain_steps=max(float(np.mean([np.max(out.calls) for out in theirs])), 1.0),
    tokens_per_call=later / max(called, 1),
    accepted=accepted_by_place(together, member.size) if member.is_chain else (),
  )
