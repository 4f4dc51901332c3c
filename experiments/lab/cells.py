"""The cells of the tables as JSON lines: one finished or failed measurement a line, with all its conditions."""

import dataclasses
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fastdec.errors import UserError

REGIMES = {'regular': 'Regular', 'distil': 'Distillation', 'finetune': 'Fine tuning', 'both': 'Both'}
RULE = r'exact|(top|min|beam|tree)-[1-9]\d*|distance-(0|[1-9]\d*)'
Key = tuple[int, str, str]

# Fields as older files name them.
RENAMED = {
  'tune': 'regime',
  'sentences': 'outputs',
  'calls_per_sentence': 'calls_per_output',
  'ms_per_sentence': 'ms_per_output',
  'greedy_ms_per_sentence': 'greedy_ms_per_output',
}


@dataclasses.dataclass(frozen=True)
class Cell:
  """One cell of Table 1, 2 or 4. None (in the file: null) is what was not measured.

  An output is a sentence or an image.
  """

  k: int
  regime: str  # a key of REGIMES
  rule: str  # 'exact', 'top-2', 'min-3', 'tree-32', 'beam-4' (beam search), ...
  bleu: float | None = None  # per cent
  bleu_signature: str | None = None
  compound_bleu: float | None = None  # per cent; as Tensor2Tensor has it, compounds split
  compound_bleu_signature: str | None = None
  bits_per_dimension: float | None = None  # of the originals, given the inputs
  psnr: float | None = None  # dB, against the originals; see `image_quality`
  ssim: float | None = None  # against the originals, -1 to 1
  psnr_to_greedy: float | None = None  # dB, against the same model's greedy output; infinite where equal
  mean_block_size: float | None = None  # tokens per call of the target
  calls_per_output: float | None = None
  ms_per_output: float | None = None  # batch 1, median
  greedy_ms_per_output: float | None = None  # of the same model, interleaved with the former
  speedup: float | None = None  # over that greedy: the median of the ratios of rounds side by side
  same_as_greedy: float | None = None  # share of outputs that are the same model's greedy ones
  compile_seconds: float | None = None
  head_accuracy: tuple[float | None, ...] = ()  # top-1 on the dev set of p1 .. pk, 0 to 1
  outputs: int | None = None
  split: str | None = None
  model: str | None = None  # a hash of what was measured; see `folders.content`
  error: str | None = None  # why there are no figures
  conditions: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # device, dtype, seed, commit, ...

  def __post_init__(self) -> None:
    if type(self.k) is not int or self.k < 1:
      raise UserError(f'a cell of a table cannot have k={self.k!r}: k is a whole number from 1')
    if self.regime not in REGIMES or not re.fullmatch(RULE, self.rule):
      allowed = f'regime is one of {", ".join(REGIMES)}, rule is exact, top-N, min-N, distance-N, tree-N or beam-N'
      raise UserError(f"a cell of a table cannot have regime '{self.regime}' and rule '{self.rule}': {allowed}")

  @property
  def key(self) -> Key:
    """What the cell is, whatever came out."""
    return self.k, self.regime, self.rule


FIELDS = tuple(field.name for field in dataclasses.fields(Cell) if field.name != 'conditions')


def flat(cell: Cell) -> dict[str, Any]:
  """One level of plain values, conditions included; what is not a finite number is None."""
  row = {name: getattr(cell, name) for name in FIELDS} | dict(cell.conditions)
  return {name: plain(value) for name, value in row.items()}


def plain(value: Any) -> Any:
  """A value as JSON has it: tuples as lists, what is not a finite number as None."""
  if isinstance(value, tuple):
    return [plain(entry) for entry in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value


def append(path: Path, cell: Cell) -> None:
  """Adds one line in one write, on disk when this returns."""
  append_row(path, flat(cell))


def append_row(path: Path, row: Mapping[str, Any]) -> None:
  """The same for a line of any fields."""
  line = json.dumps(row, ensure_ascii=False) + '\n'
  path.parent.mkdir(parents=True, exist_ok=True)
  with open(path, 'a+b', buffering=0) as file:
    file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
    cut = file.read(1) not in (b'', b'\n')  # a write that was killed: the new line does not join its fragment
    file.write(('\n' * cut + line).encode())
    os.fsync(file.fileno())


def read(path: Path) -> list[Cell]:
  """The cells in the file in their order, none where it does not exist.

  What is no JSON is passed over: the fragment of a write that was killed.

  Raises:
    UserError: a line that is JSON and no cell.
  """
  cells = []
  for number, row in rows(path):
    try:
      row = {RENAMED.get(name, name): value for name, value in row.items()}
      fields = {name: row.pop(name) for name in FIELDS if name in row}
      fields['head_accuracy'] = tuple(fields.get('head_accuracy', ()))
      cells.append(Cell(**fields, conditions=row))
    except (AttributeError, TypeError, UserError):
      raise no_cell(number, path) from None
  return cells


def rows(path: Path) -> Iterator[tuple[int, Any]]:
  """What stands in a file of JSON lines, with the numbers of the lines; see `read`."""
  try:
    lines = path.read_bytes().split(b'\n') if path.exists() else ()
  except OSError as error:
    raise UserError(f'cannot read {path} ({error.strerror}): use another workdir') from None
  for number, line in enumerate(lines, start=1):
    try:
      row = json.loads(line)
    except ValueError:
      continue
    yield number, row


def no_cell(number: int, path: Path) -> UserError:
  """What is said of a line that is no cell."""
  return UserError(f'line {number} of {path} is no cell of a table: remove the line, or use another workdir')


def latest(cells: Iterable[Cell]) -> dict[Key, Cell]:
  """Of each key the last cell that was measured, or, where there is none, the last failure."""
  found: dict[Key, Cell] = {}
  for cell in cells:
    if cell.error is None or found.get(cell.key, cell).error is not None:
      found[cell.key] = cell
  return found
