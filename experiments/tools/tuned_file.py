"""`--strategy` of generate and translate: the file of `experiments.tune`, and its rows."""

import pathlib
from collections.abc import Mapping
from typing import Any

from fastdec import folders
from fastdec.errors import UserError
from fastdec.files import read_json
from fastdec.tuning.tuned import NAME

ROWS = 16  # texts decoded at once, where nobody says how many


def names_file(name: str) -> bool:
  """True if --strategy names a file, and is no strategy in words."""
  return name == 'tuned' or name.endswith('.json')


def tuned_file(name: str) -> str | None:
  """Returns the file that --strategy names; None for the one beside the model."""
  if not names_file(name):
    raise UserError(
      f"--strategy={name} is unknown: give 'tuned', or the JSON file that"
      ' experiments.tune has written'
    )
  return None if name == 'tuned' else name


def rows_at_once(asked: int | None, model: str, strategy: str | None) -> int:
  """Returns the number of texts decoded at once: as asked for, or as tuned for, or `ROWS`.

  Mistakes in a file are for `fd.load_tuned` to say. This reads it before JAX makes its backends.
  """
  if asked is not None or strategy is None or not names_file(strategy):
    return asked or ROWS
  file = pathlib.Path(tuned_file(strategy) or folders.open(model).path / NAME)
  rows = figures_of(read_json(file)).get('rows') if file.is_file() else None
  return rows if type(rows) is int and rows > 0 else ROWS


def figures_of(tuned: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns the figures of a file's content; none if it is damaged."""
  figures = tuned.get('figures')
  return figures if isinstance(figures, dict) else {}
