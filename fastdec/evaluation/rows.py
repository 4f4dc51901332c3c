"""Rows of measurements: JSON lines with all their conditions, and pipe tables of them."""

import datetime
import errno
import importlib.metadata
import itertools
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import jax

from fastdec.evaluation import machine
from fastdec.files import lock, to_json, without_folders

Row = dict[str, Any]


def conditions() -> Row:
  """Returns the machine, versions, commit and day of this process."""
  here = machine.here()
  row = {
    'platform': jax.default_backend(),
    'device': here.device,
    'devices': jax.device_count(),
    'processor': here.processor,
    'cpus': here.cpus,
    'jax': jax.__version__,
    'jaxlib': importlib.metadata.version('jaxlib'),
    'commit': commit(),
    'date': datetime.date.today().isoformat(),
  }
  flags = os.environ.get('XLA_FLAGS')
  if flags:
    row['xla_flags'] = without_folders(flags)
  return row


def command() -> str:
  """Returns the words of this command, with the names of files instead of absolute paths."""
  return without_folders(' '.join(sys.argv[1:]))


def commit() -> str:
  """Names this checkout's commit, with '-dirty' if tracked files differ; 'unknown' outside git."""
  folder = pathlib.Path(__file__).parent
  words = ['git', '-C', folder, 'describe', '--always', '--dirty', '--exclude=*', '--abbrev=12']
  try:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    return 'unknown'


def append(file: pathlib.Path, *rows: Row) -> None:
  """Appends a whole line for each row to a file, and waits until they are on the disk."""
  # Machines that share a file system append one after the other.
  with lock(file.parent / 'locks' / file.name):
    add(file, *rows)


def add(file: pathlib.Path, *rows: Row) -> None:
  """Appends as `append`, if only this process writes the file.

  A last line that a killed process cut short is ended, so that readers skip only that line.
  """
  file.parent.mkdir(parents=True, exist_ok=True)
  with open(file, 'a+b', buffering=0) as out:
    out.seek(max(0, out.seek(0, os.SEEK_END) - 1))
    is_cut = out.read(1) not in (b'', b'\n')
    lines = ''.join(to_json(row, ensure_ascii=False) + '\n' for row in rows)
    data = ('\n' * is_cut + lines).encode()
    if out.write(data) < len(data):
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
    os.fsync(out.fileno())


def table(rows: Iterable[Row], hidden: Iterable[str] = ()) -> str:
  """Draws a pipe table of the rows' entries, without the `hidden` ones."""
  rows, hidden = list(rows), set(hidden)
  names = []
  for name in dict.fromkeys(itertools.chain(*rows)):
    if name not in hidden and any(row.get(name) is not None for row in rows):
      names.append(name)
  lines = [[name.replace('_', ' ') for name in names], ['---'] * len(names)]
  for row in rows:
    lines.append([_format(row.get(name)) for name in names])
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def _format(value: Any) -> str:
  """Formats an entry: three digits of a number that is not whole, more of a large one."""
  if value is None:
    return '–'
  if isinstance(value, tuple | list):
    return ' .. '.join(map(_format, value))
  if isinstance(value, float) and abs(value) < 1000:
    return f'{value:.3g}'
  if isinstance(value, float):
    return f'{value:,.0f}'
  return str(value).replace('|', r'\|')
