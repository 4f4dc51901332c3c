"""The texts that n-grams or words are counted in: lines of a file, or what `experiments.generate`
has written."""

import pathlib
from collections.abc import Sequence

from fastdec.errors import UserError
from fastdec.files import parse_json, read_lines


def texts_of(files: Sequence[pathlib.Path]) -> list[str]:
  """All texts, file by file.

  Raises:
    UserError: there is no file, one cannot be read, or has a line that is no text.
  """
  if not files:
    raise UserError('there are no files of texts: name one or more, with commas between them')
  found = []
  for file in files:
    lines = read_lines(file, 'a text')
    found += (
      [_output(file, i, line) for i, line in enumerate(lines, 1)]
      if file.suffix == '.jsonl'
      else lines
    )
  return found


def _output(file: pathlib.Path, number: int, line: str) -> str:
  """The text of a line that `experiments.generate` has written."""
  try:
    text = parse_json(line)['text']
  except (ValueError, KeyError, TypeError):
    text = None
  if not isinstance(text, str):
    raise UserError(
      f'line {number} of {file} is no output of experiments.generate: give its'
      ' --output, or a .txt file'
    )
  return text
