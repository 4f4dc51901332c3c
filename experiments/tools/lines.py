"""Files with a text on each line."""

import pathlib

from fastdec.errors import UserError
from fastdec.files import parse_json


def read_prompts(path: pathlib.Path) -> list[str]:
  """The prompts of a file: its lines, or of a .jsonl file, whose prompts may have several lines,
  each "prompt".

  Raises:
    UserError: as `read_lines`, or a line that has no prompt.
  """
  lines = read_lines(path)
  if path.suffix != '.jsonl':
    return lines
  found = []
  for i, line in enumerate(lines, 1):
    try:
      prompt = parse_json(line)['prompt']
    except (ValueError, KeyError, TypeError):
      prompt = None
    if not isinstance(prompt, str) or not prompt.strip():
      raise UserError(
        f'line {i} of {path} has no prompt: give {{"prompt": "..."}} on each line, or a .txt file'
      )
    found.append(prompt)
  return found


def read_lines(path: pathlib.Path, what: str = 'a prompt') -> list[str]:
  """The lines of a file of prompts, or of `what` a file has on each line.

  Raises:
    UserError: it cannot be read, is empty or not UTF-8, or has an empty line.
  """
  try:
    data = path.read_bytes()
    text = data.decode()
  except OSError as error:
    raise UserError(
      f'cannot read {path} ({error.strerror}): give a text file with {what} on each line'
    ) from None
  except UnicodeDecodeError as error:
    line = data[: error.start].count(b'\n') + 1
    raise UserError(f'line {line} of {path} is not UTF-8: convert the text') from None
  if not text:
    raise UserError(f'{path} is empty: give {what} on each line')
  lines = text.removesuffix('\n').split('\n')  # only a newline ends a line, as for `wc -l`
  for i, line in enumerate(lines):
    if not line.strip():
      raise UserError(f'line {i + 1} of {path} is empty: give {what} on each line')
  return [line.removesuffix('\r') for line in lines]
