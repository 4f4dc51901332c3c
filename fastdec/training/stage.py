"""Stages: folders that are made once, named by the digest of what went into them.

  base = stage(root, 'base', train.base, model=c.model, run=c.train, data=c.data, seed=c.seed)
  heads = stage(root, 'heads', train.heads, base=base, ...)

The root then holds base-3fa29c1d04/ (inputs.json, what `train.base` wrote, and DONE when it is
finished) and base, a link to the folder that was used last. A changed input gives another folder,
so no folder is stale by its inputs. The code is not an input: after changing it, use another
workdir. An input that is itself a stage counts by its folder's name, so digests chain, as in git. A
killed process loses its lock, and the next one continues from what is in the folder.
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
from fastdec.evaluation import wallclock
from fastdec.files import lock, place_to_write, read_json, to_json, write_json, write_text
from fastdec.training.processes import agreed, is_first, wait

DIGITS = 10  # of a digest
ANOTHER = 'choose another workdir'
NEWER = {'newer': True}  # metadata of a field: with its default, a stage is named as without it
POLL_SECONDS = 0.5  # between two looks at a lock that another process holds


class OutOfTime(Exception):
  """The budget is over: running the command again continues from what is on the disk."""


_end: contextvars.ContextVar[float | None] = contextvars.ContextVar('end', default=None)


@contextlib.contextmanager
def budget(seconds: float | None) -> Iterator[None]:
  """Limits the time of the block; None: no limit."""
  end = None
  if seconds is not None:
    end = wallclock.now() + seconds
  token = _end.set(end)
  try:
    yield
  finally:
    _end.reset(token)


def check_budget() -> None:
  """Raises OutOfTime if the budget is over.

  If several processes compute together, only the first one's clock counts, so that all of them
  continue or all stop.
  """
  end = _end.get()
  if end is not None and agreed(wallclock.now() >= end):
    raise OutOfTime


def seconds_left() -> float | None:
  """Returns the seconds that are left of the budget; None without one.

  Raises:
    OutOfTime: none are left, see `check_budget`.
  """
  check_budget()
  end = _end.get()
  if end is None:
    return None
  return max(end - wallclock.now(), 0.0)


def stage(
  root: pathlib.Path, name: str, make: Callable[..., object], **inputs: Any
) -> pathlib.Path:
  """Returns the folder of a stage. If it is not finished, `make(folder, **inputs)` first makes it,
  or continues from what is in the folder.

  Args:
    root: the workdir, which holds the folder.
    name: a plain name; root/name becomes a link to this folder.
    make: fills the folder. It raises OutOfTime where the budget ends before the folder is finished.
    inputs: all that decides the result, see `plain`. `mesh`, the devices, changes nothing but
      rounding.

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
    check_budget()  # before the lock, which would create an empty folder
    with exclusive(folder / 'lock'):
      _fill(folder, 'inputs.json', make, inputs)
  if is_first():
    _link(link, folder.name)
  wait(f'made {folder.name}')
  return folder


def folder_of(root: pathlib.Path, name: str, inputs: Mapping[str, Any]) -> pathlib.Path:
  """Returns the folder of a stage, whether it is made or not."""
  return root / f'{name}-{digest(inputs)}'


def is_made(folder: pathlib.Path) -> bool:
  """Returns whether a stage's folder is finished."""
  return agreed((folder / 'DONE').exists())


def _fill(
  folder: pathlib.Path, record: str, make: Callable[..., object], inputs: Mapping[str, Any]
) -> bool:
  """Makes a stage in its folder, whose lock is held. Returns False if it was finished before."""
  # again, under the lock: another process may have made it meanwhile
  if is_made(folder):
    return False
  check_budget()  # again: waiting for the lock took time
  if is_first():
    write_json(folder / record, plain(inputs))
  make(folder, **inputs)
  if is_first():
    write_text(folder / 'DONE', '')
  return True


def in_place(
  folder: pathlib.Path, make: Callable[..., object], *, remedy: str = ANOTHER, **inputs: Any
) -> bool:
  """Makes a stage in a folder that the user names, or continues it. Returns False if it was
  finished before.

  Args:
    folder: holds only this stage; settings.json in it records the inputs.
    make, inputs: see `stage`.
    remedy: what to do if the folder holds something else.

  Raises:
    OutOfTime: the budget ended first.
    UserError: the folder holds something else, or cannot be written to.
  """
  check_folder(folder)
  record = folder / 'settings.json'
  plain(inputs)  # raises before the lock would create the folder
  with exclusive(folder / 'lock'):
    check_inputs(folder, inputs, remedy)
    try:
      is_new = _fill(folder, record.name, make, inputs)
    except UserError:
      # A mistake that showed before any work leaves no folder.
      if is_first() and {file.name for file in folder.iterdir()} <= {'lock', record.name}:
        shutil.rmtree(folder)
      raise
  wait(f'filled {folder.name}')
  return is_new


def check_inputs(folder: pathlib.Path, inputs: Mapping[str, Any], remedy: str = ANOTHER) -> None:
  """Raises UserError if a folder of `in_place` holds what was made from other inputs."""
  record, wanted = folder / 'settings.json', json.loads(to_json(plain(inputs)))
  settings = {}
  if record.is_file():
    settings = read_json(record)

  # A folder without results may change its settings.
  has_results = False
  if is_first() and folder.is_dir():
    for file in folder.iterdir():
      if file.suffix != '.partial' and file.name not in ('lock', record.name):
        has_results = True
  if not agreed(has_results and settings != wanted):
    return

  if not settings:
    how = 'by an earlier version, by hand, or by a different experiment'
    raise UserError(f'{folder} was made {how}: {remedy}')
  check_same(settings, wanted, folder, remedy)


def check_same(
  before: Mapping[str, Any], wanted: Mapping[str, Any], path: pathlib.Path, remedy: str
) -> None:
  """Raises UserError with the names of settings that have changed since a path was made."""
  changed = []
  for name in {**wanted, **before}:
    if before.get(name) != wanted.get(name):
      changed.append(name)
  if changed:
    raise UserError(f'{path} was made with other settings ({", ".join(changed)}): {remedy}')


def inputs_of(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the inputs that a stage's folder was made from; {} where no file records them."""
  for name in ('inputs.json', 'settings.json'):
    if (folder / name).is_file():
      return read_json(folder / name)
  return {}


@contextlib.contextmanager
def exclusive(file: pathlib.Path) -> Iterator[None]:
  """Holds a file's lock during the block; waits for it within the budget. If several processes
  compute together, only the first one takes the lock.

  Raises:
    OutOfTime: the budget ended first.
  """
  while True:
    holder: Any = contextlib.nullcontext(False)
    if is_first():
      holder = lock(file, wait=False)
    with holder as is_mine:
      if agreed(is_mine):
        yield
        return
    check_budget()
    time.sleep(POLL_SECONDS)


def reason_of(error: Exception) -> str:
  """Returns the message of an error, preceded by its type unless it is a UserError."""
  return str(error) if isinstance(error, UserError) else f'{type(error).__name__}: {error}'


def digest(inputs: Mapping[str, Any]) -> str:
  """Returns a short hash of inputs; `plain` says what counts of each."""
  text = json.dumps(plain(inputs), sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def plain(value: Any) -> Any:
  """Returns an input as JSON, by which it counts.

  A value with a `key` is represented by that (a text by its lines, wherever they lie); a stage by
  its folder's name; another folder by the hash of its model; a dataclass by its class and fields,
  without those that are marked as `NEWER` and have their default.
  Entries of mappings, such as the inputs, that are named 'mesh' are left out; a dataclass's field
  of that name counts.
  """
  if isinstance(value, pathlib.Path):
    folder = value.resolve()
    return folder.name if (folder / 'inputs.json').is_file() else folders.content(folder)
  if hasattr(value, 'key'):
    return {'key': value.key}
  if dataclasses.is_dataclass(value):
    settings = {'is': type(value).__name__}
    for field in dataclasses.fields(value):
      if field.metadata != NEWER or getattr(value, field.name) != field.default:
        settings[field.name] = plain(getattr(value, field.name))
    return settings
  if isinstance(value, Mapping):
    return {name: plain(entry) for name, entry in value.items() if name != 'mesh'}
  if isinstance(value, tuple | list):
    return [plain(entry) for entry in value]
  if value is None or isinstance(value, bool | int | float | str):
    return value
  raise TypeError(f'{type(value).__name__} cannot be an input of a stage')


def check_folder(path: pathlib.Path) -> None:
  """Raises UserError if a folder, or one of its parents, is a file or cannot be written."""
  for folder in (path, *path.parents):
    if folder.exists() and not folder.is_dir():
      raise UserError(f'{folder} is a file, where a folder is needed: choose another workdir')
  place_to_write(path / 'DONE')


def _link(link: pathlib.Path, target: str) -> None:
  """Points a plain name at a folder next to it, in one step."""
  if link.is_symlink() and os.readlink(link) == target:
    return
  partial = link.with_name(f'{link.name}.{os.getpid()}.partial')
  try:
    partial.unlink(missing_ok=True)
    partial.symlink_to(target)
    partial.replace(link)
  except OSError as error:
    raise UserError(f'cannot write {link} ({error.strerror}): choose another workdir') from None
