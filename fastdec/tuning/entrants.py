"""Candidates of a race, and the figures of each after the race."""

import dataclasses
from dataclasses import replace

import jax
import numpy as np

from fastdec.decoding.decode import decode
from fastdec.decoding.methods.greedy import Greedy
from fastdec.decoding.protocol import Decoded
from fastdec.decoding.strategy import LoopStrategy
from fastdec.struct import Bound
from fastdec.tuning.prompts import Batch
from fastdec.tuning.race import Race
from fastdec.tuning.tuned import Figures


@dataclasses.dataclass
class Entrant:
  """A candidate that keeps the promise: it decodes batches and keeps each batch's first output.

  Attributes:
    target: the model.
    strategy: how it decodes.
    batches: the prompts.
    max_len: as in `decode`.
    texts: the outputs, by the number of their batch.
    compile_seconds: time of the first batch, which compiles the program.
  """

  target: Bound
  strategy: LoopStrategy
  batches: list[Batch]
  max_len: int | None
  texts: dict[int, Decoded] = dataclasses.field(default_factory=dict)
  compile_seconds: float = 0.0

  def __call__(self, number: int) -> int:
    """Decodes the batch of this number; returns the number of tokens in all its rows."""
    model, params = self.target
    batch = self.batches[number]
    out = decode(
      model,
      params,
      batch.inputs,
      self.strategy,
      batch.lengths,
      max_len=self.max_len,
      key=batch.keys,
    )
    tokens = int(np.asarray(out.lengths).sum())
    if number not in self.texts:
      self.texts[number] = jax.tree.map(np.asarray, out.checked())
    return tokens

  def agreement(self, plain: 'Entrant') -> float | None:
    """Returns the share of texts that `plain` wrote too; None if tokens are drawn."""
    both = self.texts.keys() & plain.texts.keys()
    if not both or not isinstance(plain.strategy, Greedy):
      return None
    rows = [(self.texts[i].tokens == plain.texts[i].tokens).all(1) for i in both]
    return float(np.concatenate(rows).mean())


def compute_figures(name: str, entrants: dict[str, Entrant], race: Race) -> Figures:
  """Computes the figures of a candidate that was in the race."""
  entrant = entrants[name]
  # Count tokens and calls. The prompt's call, which is not counted, writes a row's first token.
  tokens, calls, steps = 0, 0, []
  for out in entrant.texts.values():
    tokens += int((out.lengths - 1).sum())
    calls += int(out.calls.sum())
    steps.append(out.calls.max())  # a batch runs until its slowest row is done
  # Candidates saw different batches. So a speed is the plain one's, times the ratio on the batches
  # that both saw.
  ratio = race.compare(name, race.plain)
  speed = race.tokens_per_second(race.plain) * ratio.value
  figures = Figures(
    name,
    ms_per_token=1e3 / speed,
    tokens_per_second=speed,
    speedup=ratio.value,
    low=ratio.low,
    high=ratio.high,
    same=entrant.agreement(entrants[race.plain]),
    rounds=len(race.seconds[name]),
    compile_seconds=entrant.compile_seconds,
  )
  if calls:
    ms_per_call = 1e3 * race.seconds_per_batch(name) / float(np.mean(steps))
    figures = replace(figures, tokens_per_call=tokens / calls, ms_per_call=ms_per_call)
  if name not in race.running:
    figures = replace(figures, note=f'dropped after {figures.rounds} rounds')
  return figures
