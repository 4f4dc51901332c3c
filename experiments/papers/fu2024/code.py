"""Text that repeats itself: the source files of this repository, as passages of a few lines."""

import pathlib

import fastdec
from fastdec.errors import UserError
from fastdec.files import whole_folder

LANGUAGE = 'code'  # the files' ending
BREAK = ' ⏎ '  # stands for the end of a line
LINES = 10  # of a passage
HELD_OUT = 10  # of so many files one is for the dev set, and one for the test set


def write_passages(folder: pathlib.Path) -> None:
  """Writes train.code, dev.code and test.code, a passage on each line, if they are not there.

  Raises:
    UserError: there are too few source files to hold some out.
  """
  if folder.is_dir():
    return
  root = pathlib.Path(fastdec.__file__).parent
  files = sorted(root.rglob('*.py'))
  if len(files) < HELD_OUT:
    raise UserError(f'{root} has {len(files)} source files, too few to learn code from: use the whole repository')
  with whole_folder(folder) as partial:
    for name, places in (('dev', (4,)), ('test', (9,)), ('train', (0, 1, 2, 3, 5, 6, 7, 8))):
      found = [passage for i, file in enumerate(files) if i % HELD_OUT in places for passage in passages(file)]
      (partial / f'{name}.{LANGUAGE}').write_text('\n'.join(found) + '\n')


def passages(file: pathlib.Path) -> list[str]:
  """The file's lines, a few at a time, without indentation and empty ones."""
  lines = [line.strip() for line in file.read_text().splitlines() if line.strip()]
  return [BREAK.join(lines[i : i + LINES]) for i in range(0, len(lines), LINES)]
