"""Stages: folders that are made once, named by the digest of what went into them.

  base = stage(root, 'base', train.base, model=c.model, run=c.train, data=c.data, seed=c.seed)
  heads = stage(root, 'heads', train.heads, base=base, ...)

In the root: base-3fa29c1d04/, with inputs.json, what `train.base` made, and DONE at the end; and
base, a link to the newest folder of that name. Another input is another folder, so nothing is ever
stale. An input that is itself a stage counts by its name, so digests chain, as in git. A process
that is killed lets go of its lock, and the next one continues from what is in the folder.
"""

import contextlib
import contextvars
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fastdec import folders
from fastdec.errors import UserError
from fastdec.files import locked, read_json, write_json, write_text
from fastdec.training.processes import agreed, is_first, wait

DIGITS = 10  # of a digest
POLL_SECONDS = 0.5  # between two looks at a lock that another process holds


class OutOfTime(Exception):
  """The budget is over: the same command continues from what there is."""


_end: contextvars.ContextVar[float | None] = contextvars.ContextVar('end', default=None)


@contextlib.contextmanager
def budget(seconds: float | None) -> Iterator[None]:
  """Limits the time of the block; None is endless."""
  token = _end.set(None if seconds is None else time.monotonic() + seconds)
  try:
    yield
  finally:
    _end.reset(token)


def seconds_left() -> float | None:
  """Seconds of the budget that are left; None is endless.

  Of several processes that compute together the first one's clock counts, so that all continue, or
  none.

  Raises:
    OutOfTime: none are left.
  """
  end = _end.get()
  if end is None:
    return None
  left = end - time.monotonic()
  if agreed(left <= 0):
    raise OutOfTime
  return max(left, 0.0)


def stage(
  root: pathlib.Path, name: str, make: Callable[..., object], **inputs: Any
) -> pathlib.Path:
  """A folder made once: by `make(folder, **inputs)`, which continues from what is in the folder.

  Args:
    root: the workdir that it lies in.
    name: a plain name; root/name is a link to the newest folder that it has named.
    make: fills the folder. It raises OutOfTime where the budget ends before it is whole.
    inputs: all that decides the result; see `digest`. The code is not among them, and `mesh`, the
      devices, decides nothing but rounding.

  Raises:
    OutOfTime: the budget ended first.
    UserError: the root holds something else under this name, or cannot be written to.
  """
  folder = folder_of(root, name, inputs)
  check_folder(root)
  link = root / name
  if link.exists() and not link.is_symlink():
    raise UserError(
      f'{link} was made by an earlier version of fastdec, or by hand: choose another workdir'
    )
  if not is_made(folder):
    seconds_left()  # checking the budget first avoids creating empty folders
    with exclusive(folder / 'lock'):
      _fill(folder, 'inputs.json', make, inputs)
  if is_first():
    _link(link, folder.name)
  wait(f'made {folder.name}')
  return folder


def folder_of(root: pathlib.Path, name: str, inputs: Mapping[str, Any]) -> pathlib.Path:
  """The folder of a stage, whether it is made or not."""
  return root / f'{name}-{digest(inputs)}'


def is_made(folder: pathlib.Path) -> bool:
  """Whether a stage's folder is finished."""
  return agreed((folder / 'DONE').exists())


def _fill(
  folder: pathlib.Path, record: str, make: Callable[..., object], inputs: Mapping[str, Any]
) -> bool:
  """Makes a stage in its folder, whose lock is held; False if another process has made it."""
  if is_made(folder):
    return False
  seconds_left()
  if is_first():
    write_json(folder / record, plain(inputs))
  make(folder, **inputs)
  if is_first():
    write_text(folder / 'DONE', '')
  return True


def in_place(folder: pathlib.Path, make: Callable[..., object], **inputs: Any) -> bool:
  """Fills a folder that the user names, or continues; False if it was whole before.

  Args:
    folder: made by one stage, which its settings.json describes.
    make, inputs: see `stage`.

  Raises:
    OutOfTime: the budget ended first.
    UserError: the folder holds something else, or cannot be written to.
  """
  check_folder(folder)
  record, wanted = folder / 'settings.json', json.loads(json.dumps(plain(inputs)))
  with exclusive(folder / 'lock'):
    files = {file.name for file in folder.iterdir() if file.suffix != '.partial'}
    others = files - {'lock', record.name} if is_first() else set()
    settings = read_json(record) if record.is_file() else {}
    if agreed(bool(others) and settings != wanted):
      names = [name for name, value in wanted.items() if settings.get(name) != value]
      made = 'by an earlier version, or by hand'
      if settings:
        made = f'with another {", ".join(names)}'
      raise UserError(f'{folder} was made {made}: choose another workdir')
    try:
      is_new = _fill(folder, record.name, make, inputs)
    except UserError:
      if is_first() and {file.name for file in folder.iterdir()} <= {'lock', record.name}:
        shutil.rmtree(folder)  # a mistake that showed before any work leaves nothing
      raise
  wait(f'filled {folder.name}')
  return is_new


def inputs_of(folder: pathlib.Path) -> dict[str, Any]:
  """The inputs that a stage's folder was made from; {} where no file records them."""
  for name in ('inputs.json', 'settings.json'):
    if (folder / name).is_file():
      return read_json(folder / name)
  return {}


@contextlib.contextmanager
def exclusive(lock: pathlib.Path) -> Iterator[None]:
  """Holds a lock, for which it waits within the budget. Of several processes that compute together
  the first one holds it.

  Raises:
    OutOfTime: the budget ended first.
  """
  while True:
    with locked(lock, wait=False) if is_first() else contextlib.nullcontext(False) as is_mine:
      if agreed(is_mine):
        yield
        return
    seconds_left()
    time.sleep(POLL_SECONDS)


def reason_of(error: Exception) -> str:
  """An error in words: with its kind where it is no sentence for a user."""
  return str(error) if isinstance(error, UserError) else f'{type(error).__name__}: {error}'


def digest(inputs: Mapping[str, Any]) -> str:
  """A short hash of inputs; see `plain` for what counts of each."""
  text = json.dumps(plain(inputs), sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def plain(value: Any) -> Any:
  """Inputs as JSON.

  What has a `key` counts by that (a text by its lines, not its place); a stage by its name; another
  folder by its model; a dataclass by its fields and its name; a mesh not at all.
  """
  if isinstance(value, pathlib.Path):
    folder = value.resolve()
    return folder.name if (folder / 'inputs.json').is_file() else folders.content(folder)
  if hasattr(value, 'key'):
    return {'key': value.key}
  if dataclasses.is_dataclass(value):
    fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return {'is': type(value).__name__, **fields}
  if isinstance(value, Mapping):
    return {name: plain(entry) for name, entry in value.items() if name != 'mesh'}
  if isinstance(value, tuple | list):
    return [plain(entry) for entry in value]
  if value is None or isinstance(value, bool | int | float | str):
    return value
  raise TypeError(f'{type(value).__name__} cannot be an input of a stage')


def check_folder(path: pathlib.Path) -> None:
  """Raises UserError where a folder, or one that it lies in, is a file."""
  for folder in (path, *path.parents):
    if folder.exists() and not folder.is_dir():
      raise UserError(f'{folder} is a file, where a folder is needed: choose another workdir')


def _link(link: pathlib.Path, target: str) -> None:
  """Points a plain name at a folder beside it, in one step."""
  if link.is_symlink() and os.readlink(link) == target:
    return
  partial = link.with_name(f'{link.name}.{os.getpid()}.partial')
  try:
    partial.unlink(missing_ok=True)
    partial.symlink_to(target)
    partial.replace(link)
  except OSError as error:
    raise UserError(f'cannot write {link} ({error.strerror}): choose another workdir') from None
