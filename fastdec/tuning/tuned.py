"""The result of `tune`: a strategy and the figures that chose it, kept with the model.

If the model's folder cannot be written, the file is in the user's own folder (`own_file`), where
`load_tuned` looks too.

tuned.json    strategy   in words (`decoding.description`), without heads or draft
              part       heads or draft: their folder, and a hash of its content
              model      a hash of the model that was measured
              figures    the table, the machine, and the arguments of `tune`
"""

import dataclasses
import hashlib
import os
import pathlib
from typing import Any, Literal

from fastdec import files, folders
from fastdec.decoding.description import describe
from fastdec.decoding.protocol import Heads, Promise
from fastdec.errors import UserError
from fastdec.evaluation.machine import Machine
from fastdec.folders.folder import PathLike, gguf_files
from fastdec.heads.draft import DraftNetwork
from fastdec.struct import Bound

NAME = 'tuned.json'
COMMAND = 'fastdec tune'
Kind = Literal['heads', 'draft network', 'draft model']


@dataclasses.dataclass(frozen=True)
class Figures:
  """A candidate's row of the table; None: neither measured nor predicted, for the reason in `note`.

  Ratios are to the plain strategy's speed. A candidate that was timed has what was measured; one
  that was not has the figures that follow from `predicted`."""

  name: str
  how: Literal['timed', 'predicted', ''] = ''
  tokens_per_call: float | None = None  # counted in texts, or in a replay of the plain ones
  ms_per_call: float | None = None  # time of a whole batch, its prompts included, over its calls
  ms_per_token: float | None = None
  tokens_per_second: float | None = None  # of all rows together
  predicted: float | None = None  # a ratio
  speedup: float | None = None  # the measured ratio, with its interval
  low: float | None = None
  high: float | None = None
  same: float | None = None  # share of texts equal to the greedy ones; None if tokens are drawn
  rounds: int = 0
  compile_seconds: float | None = None
  note: str = ''


COLUMNS = {  # of the table: figures and their formats
  'tokens/call': ('tokens_per_call', '.2f'),
  'ms/call': ('ms_per_call', '.3f'),
  'ms/token': ('ms_per_token', '.3f'),
  'tokens/s': ('tokens_per_second', '.0f'),
  'predicted': ('predicted', '.2f'),
  'of plain': ('speedup', '.2f'),
  'same': ('same', '.1%'),
}


@dataclasses.dataclass(frozen=True)
class Tuned:
  """The fastest strategy that keeps a promise, and the figures that show it."""

  name: str  # of the chosen candidate
  why: str  # it is chosen, a sentence
  plain: str  # name of the strategy of one token a call, kept unless another is faster beyond noise
  promise: Promise  # how the output relates to that of one token a call by the same model
  rows: int  # texts decoded at once
  max_len: int  # the most tokens of a text
  prompts: int
  seconds: float  # of tuning
  compile_seconds: float  # of them
  machine: Machine
  table: tuple[Figures, ...]  # all candidates, in their order
  call_ms: dict = dataclasses.field(default_factory=dict)  # milliseconds of a call on 1 token, ...
  dtype: str | None = None  # in which `fd.load` loads the model; None: its own
  strategy: Any = None  # the chosen candidate, for `decode`
  # Tokens that the plain strategy wrote, prompt by prompt; not saved.
  texts: tuple[tuple[int, ...], ...] = dataclasses.field(default=(), repr=False)

  @property
  def tokens_per_second(self) -> float:
    """Speed of the chosen candidate."""
    return next(one.tokens_per_second or 0.0 for one in self.table if one.name == self.name)

  def save(
    self, model: PathLike, part: PathLike | None = None, file: PathLike | None = None
  ) -> pathlib.Path:
    """Writes tuned.json, and returns its path.

    Args:
      model: the folder that the model was loaded from, or the workdir.
      part: the folder of the strategy's heads or draft (None: they are in the model's folder, or
        the strategy has none).
      file: where to write (None: `default_file`, or `own_file` if that cannot be written).

    Raises:
      UserError: a strategy that cannot be described, a draft model whose folder is not given, or a
        file that cannot be written.
    """
    part_of = None
    if self.strategy.part:
      part_of = dataclasses.asdict(_describe_part(self.strategy, model, part))
    figures = dataclasses.asdict(dataclasses.replace(self, strategy=None, texts=()))
    del figures['strategy'], figures['texts']
    content = {
      'strategy': describe(self.strategy),
      'part': part_of,
      'model': folders.content(folders.model_folder(model)),
      'figures': figures,
    }
    path = file_to_write(model) if file is None else files.place(file)
    files.write_json(path, content)
    return path

  def __str__(self) -> str:
    """Writes the table, with the choice marked."""
    lines = [['', *COLUMNS, '']]
    for figures in self.table:
      line = [('> ' if figures.name == self.name else '  ') + figures.name]
      for name, form in COLUMNS.values():
        value = getattr(figures, name)
        line.append('-' if value is None else f'{value:{form}}')
      if figures.speedup is not None:
        line[-2] += f'x ({figures.low:.2f}-{figures.high:.2f})'
      lines.append([*line, figures.note])
    # Names are aligned on the left, numbers on the right, and notes hang over.
    first, *widths, _ = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ''
    for name, *numbers, note in lines:
      padded = '  '.join([name.ljust(first), *map(str.rjust, numbers, widths), note])
      text += padded.rstrip() + '\n'
    return text.rstrip()


def default_file(model: PathLike) -> pathlib.Path:
  """Returns where a choice is kept: tuned.json in a folder, NAME.tuned.json for NAME.gguf."""
  path = folders.model_folder(model)
  if path.is_file():
    return gguf_files(path)[0].with_suffix(f'.{NAME}')
  return path / NAME


def file_to_write(model: PathLike) -> pathlib.Path:
  """Returns where a model's choice is written: with the model, or else in the user's own folder."""
  file = default_file(model)
  if os.access(file.parent, os.W_OK):
    return file
  return own_file(file)


def file_to_read(model: PathLike) -> pathlib.Path:
  """Returns the newer one of the choices kept with the model and in the user's own folder."""
  file = default_file(model)
  existing = filter(pathlib.Path.is_file, (file, own_file(file)))
  return max(existing, key=lambda one: one.stat().st_mtime, default=file)


def own_file(file: pathlib.Path) -> pathlib.Path:
  """Returns the place of such a file in the user's own folder, ~/.local/share/fastdec."""
  data = os.environ.get('XDG_DATA_HOME') or os.path.expanduser('~/.local/share')
  name = hashlib.sha256(os.fsencode(file.resolve())).hexdigest()[:16]
  return pathlib.Path(data) / 'fastdec' / name / file.name


@dataclasses.dataclass(frozen=True)
class Part:
  """Heads or a draft, as tuned.json describes them."""

  kind: Kind
  content: str  # a hash
  folder: str | None = None  # absolute path; None: the model's own


@dataclasses.dataclass(frozen=True)
class Saved:
  """The content of a tuned.json."""

  strategy: str
  model: str  # a hash
  figures: Tuned
  part: Part | None = None


def _describe_part(strategy: Any, model: PathLike, folder: PathLike | None) -> Part:
  """Describes the heads or the draft of a strategy; `folder`: where the user says they are."""
  module = Bound(*getattr(strategy, strategy.part)).module
  if isinstance(module, Heads):
    kind: Kind = 'heads'
  elif isinstance(module, DraftNetwork):
    kind = 'draft network'
  elif folder is None:
    raise UserError('this strategy drafts with a model of its own: give its folder as part')
  else:
    kind = 'draft model'

  # A part in the model's own folder is written without its path, so that the folder can be moved.
  given = pathlib.Path(model if folder is None else folder).resolve()
  own = pathlib.Path(model).resolve()
  if kind == 'heads':
    own, there = folders.model_folder(own), folders.model_folder(given)
  else:
    there = given
  return Part(kind, hash_part(kind, given), None if there == own else str(given))


def hash_part(kind: Kind, folder: PathLike) -> str:
  """Returns a hash of the files of heads or a draft."""
  if kind == 'draft network':
    return folders.draft_content(folder)
  return folders.content(folder)
