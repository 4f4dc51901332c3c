"""Ways to decode, ours and other engines', compared: they write the same texts, are timed in turn,
and become rows.

An engine that is compared with is a module of its own (`ctranslate2_model`, `huggingface_peer`)
that imports its package only when it is used.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console

from experiments.lab.cells import append_row
from fastdec.evaluation.wallclock import Timing, measure
from fastdec.files import write_text

REST = 0.02  # seconds after a variant that spins
Row = dict[str, Any]


class Written(NamedTuple):
  """A text, and the calls that it took, with those that read the prompt; 0 where calls are not
  counted."""

  ids: list[int]
  target_calls: int = 0
  draft_calls: int = 0


@dataclasses.dataclass(frozen=True)
class Variant:
  """One way to decode.

  Attributes:
    names: what tells it from the others: columns of the table, such as engine and type of numbers.
    decode: what is timed; takes one of the inputs.
    write: decodes all that is compared; its texts should be the first variant's. None: nothing is
      compared.
    spins: its threads spin on for milliseconds after a call (OpenMP's do), which the next call
      would pay for.
  """

  names: Mapping[str, Any]
  decode: Callable[..., Any]
  write: Callable[[], Sequence[Written]] | None = None
  spins: bool = False

  @property
  def name(self) -> str:
    return ', '.join(str(value) for value in self.names.values())


@dataclasses.dataclass(frozen=True)
class Compared:
  """What came out of one variant; `same` is the share of its texts that are the first variant's."""

  variant: Variant
  timing: Timing
  texts: Sequence[Written]
  same: float | None


def compare(
  variants: Sequence[Variant], rounds: int, inputs: Sequence[tuple] = ((),)
) -> list[Compared]:
  """Has every variant write its texts, then times all of them in turn; see `wallclock.measure` for
  the inputs."""
  texts = [variant.write() if variant.write else () for variant in variants]
  rests = {variant.name: REST for variant in variants if variant.spins}
  timings = measure({variant.name: variant.decode for variant in variants}, rounds, inputs, rests)
  compared = []
  for variant, own in zip(variants, texts, strict=True):
    same = [one.ids == first.ids for one, first in zip(own, texts[0], strict=True)] if own else []
    share = sum(same) / len(same) if same else None
    compared.append(Compared(variant, timings[variant.name], own, share))
  return compared


def publish(
  rows: Sequence[Row],
  conditions: Row,
  tables: str,
  lines: pathlib.Path,
  page: pathlib.Path | None = None,
) -> None:
  """Appends the rows, each a JSON line with all conditions, to `lines`; prints the tables with the
  conditions below, and writes them to `page` too."""
  for row in rows:
    append_row(lines, row | conditions)
  text = f'{tables}\n\n{"; ".join(f"{name} {value}" for name, value in conditions.items())}\n'
  if page is not None:
    write_text(page, text)
  Console(highlight=False, markup=False, emoji=False, soft_wrap=True).print(text, end='')
