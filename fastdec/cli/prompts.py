"""Files of prompts: a line each, or JSON lines."""

import pathlib

from fastdec.errors import UserError
from fastdec.files import explained, parse_json, read_bytes, text_of


def read_lines(path: pathlib.Path, content: str = 'a prompt') -> list[str]:
  """Reads the lines of a text file; empty ones at its end do not count.

  Raises:
    UserError: it cannot be read, is empty or not UTF-8, or has an empty line before others. The
      message names the `content` of a line.
  """
  with explained('read', path, f'give a text file with {content} on each line'):
    data = read_bytes(path)
  text = text_of(data, path)
  if not text.strip():
    raise UserError(f'{path} is empty: give {content} on each line')
  lines = text.split('\n')  # only a newline ends a line, as for `wc -l`
  while not lines[-1].strip():
    lines.pop()
  for number, line in enumerate(lines, 1):
    if not line.strip():
      raise UserError(f'line {number} of {path} is empty: give {content} on each line')
  return [line.removesuffix('\r') for line in lines]


def read_prompts(path: pathlib.Path) -> list[str]:
  """Reads a file's prompts: its lines, or "prompt" of each line of a .jsonl file.

  Raises:
    UserError: as `read_lines`, or a line has no prompt.
  """
  prompts = read_lines(path)
  if path.suffix != '.jsonl':
    return prompts
  for i, line in enumerate(prompts):
    reason = ''
    try:
      record = parse_json(line)
    except ValueError as error:
      record, reason = None, f' (no JSON: {error})'
    prompt = record.get('prompt') if isinstance(record, dict) else None
    if not isinstance(prompt, str) or not prompt.strip():
      raise UserError(
        f'line {i + 1} of {path} has no prompt{reason}: give {{"prompt": "..."}} on each line, or'
        ' a .txt file'
      )
    prompts[i] = prompt
  return prompts
