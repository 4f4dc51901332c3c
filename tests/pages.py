"""Reads the pages of docs/add as changes to this repository.

A block of code belongs to the file or module that the paragraph before it names first. A block of
Python is a new file, or more of one; a block of diff changes a file. Its hunks are separated by @@,
and their lines are found by their text. A block whose paragraph names no file is code that uses the
change.
"""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
ADD = sorted((ROOT / 'docs' / 'add').glob('*.md'))

FENCE = re.compile(r'^```(python|py|diff)\n(.*?)^```', re.DOTALL | re.MULTILINE)
FILE = re.compile(r'`(?:fastdec|experiments|configs|tests|docs)/[\w/.]+\.\w+`')
MODULE = re.compile(r'`((?:fastdec|experiments|configs|tests)\.[\w.]+)`')


@dataclasses.dataclass(frozen=True)
class Block:
  """A block of code. `file` is '' for code that uses the change."""

  file: str
  is_diff: bool
  code: str


def blocks_of(page: Path) -> list[Block]:
  text, end = page.read_text(), 0
  blocks = []
  for fence in FENCE.finditer(text):
    paragraph = text[end : fence.start()].rstrip().split('\n\n')[-1]
    blocks.append(Block(_file_in(paragraph), fence[1] == 'diff', fence[2]))
    end = fence.end()
  return blocks


def _file_in(paragraph: str) -> str:
  file = FILE.search(paragraph)
  if file is not None:
    return file[0].strip('`')
  module = MODULE.search(paragraph)
  return '' if module is None else f'{module[1].replace(".", "/")}.py'


def files_of(page: Path, tree: Path) -> dict[str, str] | None:
  """Returns the files that a page makes or changes in a copy of the repository, by name.

  Code that uses the change becomes a test. A change that the code has already, since somebody made
  it, is made once. Returns None if the code has moved on: a hunk of the page finds no place.
  """
  files: dict[str, str] = {}
  for block in blocks_of(page):
    file = block.file or f'tests/test_page_{page.stem.replace("-", "_")}.py'
    if not block.is_diff:
      files[file] = files.get(file, '') + block.code
      continue
    changed = patched(files.get(file) or (tree / file).read_text(), block.code)
    if changed is None:
      return None
    files[file] = changed
  return files


def patched(text: str, diff: str) -> str | None:
  """Applies the hunks of a diff; None if one of them has no place, or several.

  A hunk that only adds lines goes after the line before it: others may have added lines there too.
  """
  text = '\n' + text
  for hunk in re.split(r'^@@.*\n', diff, flags=re.MULTILINE):
    lines = [line or ' ' for line in hunk.splitlines()]
    old = _joined(line[1:] for line in lines if line[0] in ' -')
    new = _joined(line[1:] for line in lines if line[0] in ' +')
    first = next(i for i, line in enumerate(lines) if line[0] != ' ')
    if text.count(old) != 1 and first and not any(line[0] == '-' for line in lines):
      added = _joined(line[1:] for line in lines if line[0] == '+')
      old = _joined(line[1:] for line in lines[:first])
      new = old + added[1:]
    if new in text:
      continue
    if text.count(old) != 1:
      return None
    text = text.replace(old, new)
  return text[1:]


def _joined(lines: Iterable[str]) -> str:
  """Joins whole lines, with the end of the line before them."""
  return '\n' + ''.join(f'{line}\n' for line in lines)
