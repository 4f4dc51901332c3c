"""Candidates that take part in a race: strategies that decode batches of prompts, and what came of
them.

All decode the same batches, each in parts of as many rows as it is about. A model in another type
of numbers is another model: so a candidate's texts are compared with those of one token a call in
its own type.
"""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import numpy as np

from fastdec.decoding.decode import decode
from fastdec.decoding.methods.greedy import Greedy
from fastdec.decoding.protocol import Decoded, promise_of
from fastdec.decoding.strategy import LoopStrategy
from fastdec.errors import UserError
from fastdec.struct import Bound
from fastdec.tuning.prompts import Batch
from fastdec.tuning.race import Race
from fastdec.tuning.tuned import Figures


@dataclasses.dataclass
class Entrant:
  """A candidate that keeps the promise: it decodes batches, and remembers what came of them.

  Attributes:
    target: the model, in the type `dtype`.
    strategy: how it decodes.
    batches: each in parts of `rows` prompts.
    max_len: as of `decode`.
    plain: the name of one token a call in the same type, with as many rows.
    dtype: as of `load`; None: the model's own.
    rows: prompts decoded at once.
    texts: what was written, by batches.
    steps: calls of the target for that, by batches.
    compile_seconds: what the first batch took.
  """

  target: Bound
  strategy: LoopStrategy
  batches: list[list[Batch]]
  max_len: int | None
  plain: str
  dtype: str | None
  rows: int
  texts: dict[int, Decoded] = dataclasses.field(default_factory=dict)
  steps: dict[int, int] = dataclasses.field(default_factory=dict)
  compile_seconds: float = 0.0

  def __call__(self, number: int) -> int:
    """Decodes a batch. Returns the tokens of all its rows."""
    outs = [self._decode(part) for part in self.batches[number]]
    tokens = sum(int(np.asarray(out.lengths).sum()) for out in outs)
    if number not in self.texts:
      self.texts[number] = jax.tree.map(
        lambda *parts: np.concatenate(parts), *(out.checked() for out in outs)
      )
      self.steps[number] = sum(int(np.max(out.calls)) for out in outs)
    return tokens

  def _decode(self, part: Batch) -> Decoded:
    model, params = self.target
    return decode(
      model, params, part.inputs, self.strategy, part.lengths, max_len=self.max_len, key=part.keys
    )


def compiled(
  entrants: Mapping[str, Entrant],
  until: float,
  said: Callable[[str], None],
  clock: Callable[[], float],
  least: int = 0,
) -> list[str]:
  """Compiles candidates in their order until the clock says so much, but so many at least. Returns
  their names.

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
  calls = float(np.mean(list(entrant.steps.values())))
  later = sum(int(np.sum(out.lengths - 1)) for out in texts.values())
  called = sum(int(np.sum(out.calls)) for out in texts.values())
  seconds = race.seconds_per_batch(name, name)
  ratio = race.ratio(name, race.plain)
  # of all batches, also for those that saw some
  speed = race.tokens_per_second(race.plain) * ratio.value
  is_other = entrant.dtype != entrants[race.plain].dtype
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
    same=_same(entrant, entrants[entrant.plain]),
    rounds=rounds,
    compile_seconds=entrant.compile_seconds,
    said='' if name in race.running else f'dropped after {rounds} rounds',
    dtype=entrant.dtype,
    rows=entrant.rows,
    as_first=_same(entrant, entrants[race.plain]) if is_other else None,
  )


def _same(one: Entrant, plain: Entrant) -> float | None:
  """The share of texts that are those of one token a call; None where tokens are drawn, or both
  wrote none."""
  both = one.texts.keys() & plain.texts.keys()
  if not both or not isinstance(plain.strategy, Greedy):
    return None
  rows = [
    (np.asarray(one.texts[i].tokens) == np.asarray(plain.texts[i].tokens)).all(1) for i in both
  ]
  return float(np.concatenate(rows).mean())
