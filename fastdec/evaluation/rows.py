"""Rows of measurements: JSON lines with all their conditions, drawn as pipe tables."""

import datetime
import importlib.metadata
import json
import os
import pathlib
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax

from fastdec.evaluation import machine

Row = dict[str, Any]


class Column(NamedTuple):
  """A column of a table.

  Attributes:
    heading: the text above it.
    key: the entry of a row that it shows.
    form: how a number is formatted, such as '.2f'.
    beside: the entry with the least and the largest value, shown in parentheses.
  """

  heading: str
  key: str
  form: str = ''
  beside: str = ''

  def text(self, row: Mapping[str, Any]) -> str:
    """Formats the entry of a row; a dash without one."""
    value, ends = row.get(self.key), row.get(self.beside)
    if value is None:
      return '–'
    shown = value if isinstance(value, str) else f'{value:{self.form}}'
    return f'{shown} ({ends[0]:.2f} .. {ends[1]:.2f})' if ends else shown


def conditions() -> Row:
  """Returns machine, versions, commit and day of this process."""
  here, flags = machine.here(), os.environ.get('XLA_FLAGS')
  return {
    'platform': jax.default_backend(),
    'device': here.device,
    'devices': jax.device_count(),
    'processor': here.processor,
    'cpus': here.cpus,
    'jax': jax.__version__,
    'jaxlib': importlib.metadata.version('jaxlib'),
    'commit': commit(),
    'date': datetime.date.today().isoformat(),
    **({'xla_flags': flags} if flags else {}),
  }


def commit() -> str:
  """Names this checkout's commit, '-dirty' where tracked files differ; 'unknown' outside git."""
  folder = pathlib.Path(__file__).parent
  words = ['git', '-C', folder, 'describe', '--always', '--dirty', '--exclude=*', '--abbrev=12']
  try:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    return 'unknown'


def append(file: pathlib.Path, row: Row) -> None:
  """Adds a whole line to a file, on the disk before this returns."""
  file.parent.mkdir(parents=True, exist_ok=True)
  with open(file, 'a+b', buffering=0) as out:
    out.seek(max(0, out.seek(0, os.SEEK_END) - 1))
    is_cut = out.read(1) not in (b'', b'\n')  # by a write that was killed
    out.write(('\n' * is_cut + json.dumps(row, ensure_ascii=False) + '\n').encode())
    os.fsync(out.fileno())


def table(rows: Iterable[Mapping[str, Any]], columns: Iterable[Column]) -> str:
  """Draws a pipe table; columns without any entry are left out."""
  rows = list(rows)
  shown = [one for one in columns if any(row.get(one.key) is not None for row in rows)]
  lines = [[one.heading for one in shown], ['---'] * len(shown)]
  lines += [[one.text(row).replace('|', r'\|') for one in shown] for row in rows]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)
