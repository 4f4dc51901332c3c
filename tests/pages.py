"""The pages of docs/add as what they are about: changes of this repository.

A block of code belongs to the file or module that the paragraph before it names first. A block of
Python is a new file, or more of one; a block of diff changes a file. Its hunks are separated by @@,
and their lines are found by their text. A block whose paragraph names no file is code that uses the
change.
"""

import dataclasses
import re
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


def is_change(page: Path) -> bool:
  """True if the page says which files its code is."""
  return any(block.file for block in blocks_of(page))


def apply(page: Path, tree: Path) -> list[str]:
  """Changes a copy of the repository as a page says; code that uses the change becomes a test.

  Returns the files of Python that were made or changed.
  """
  files: dict[str, None] = {}
  for block in blocks_of(page):
    if block.is_diff:
      changed = patched((tree / block.file).read_text(), block.code, f'{page.name}: {block.file}')
      (tree / block.file).write_text(changed)
    else:
      file = block.file or f'tests/test_page_{page.stem.replace("-", "_")}.py'
      path = tree / file
      assert block.file in ('', *files) or not path.exists(), f'{page.name}: {file} exists already'
      path.parent.mkdir(parents=True, exist_ok=True)
      with path.open('a') as opened:
        opened.write(block.code)
      files[file] = None
    if block.file.endswith('.py'):
      files[block.file] = None
  return list(files)


def patched(text: str, diff: str, where: str) -> str:
  """Applies the hunks of a diff, each to the one place that has its old lines."""
  text = '\n' + text
  for hunk in re.split(r'^@@.*\n', diff, flags=re.MULTILINE):
    lines = [line or ' ' for line in hunk.splitlines()]
    old = '\n'.join(line[1:] for line in lines if line[0] in ' -')
    new = '\n'.join(line[1:] for line in lines if line[0] in ' +')
    count = text.count(f'\n{old}\n')
    assert count == 1, f'{where}: these lines are there {count} times:\n{old}'
    text = text.replace(f'\n{old}\n', f'\n{new}\n')
  return text[1:]
