"""What `--strategy` of generate and translate names: the file of `experiments.tune`, and how many
texts it is for."""

import pathlib
from collections.abc import Mapping
from typing import Any

from fastdec import folders
from fastdec.errors import UserError
from fastdec.files import read_json
from fastdec.tuning.tuned import NAME

ROWS = 16  # texts decoded at once, where nobody says how many


def tuned_file(name: str) -> str | None:
  """The file that --strategy names; None for the one beside the model."""
  if name != 'tuned' and not name.endswith('.json'):
    raise UserError(
      f"--strategy={name} is unknown: give 'tuned', or the JSON file that"
      ' experiments.tune has written'
    )
  return None if name == 'tuned' else name


def rows_at_once(asked: int | None, model: str, strategy: str | None) -> int:
  """How many texts are decoded at once: as many as asked for, or as were tuned for, or `ROWS`.

  What is wrong with a file is for `fd.load_tuned` to say; this reads it before JAX makes its
  backends.
  """
  if asked is not None or strategy is None:
    return asked or ROWS
  file = pathlib.Path(tuned_file(strategy) or folders.open(model).path / NAME)
  rows = figures_of(read_json(file)).get('rows') if file.is_file() else None
  return rows if type(rows) is int and rows > 0 else ROWS


def figures_of(tuned: Mapping[str, Any]) -> Mapping[str, Any]:
  """The figures in what a file holds; none where it is damaged."""
  figures = tuned.get('figures')
  return figures if isinstance(figures, dict) else {}
