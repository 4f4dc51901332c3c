"""Text that repeats itself: the source files of this repository, as passages of some lines."""

import pathlib

from fastdec.errors import UserError
from fastdec.files import whole_folder

LANGUAGE = 'code'  # the files' ending
ROOT = pathlib.Path(__file__).parents[3]
FOLDERS = ('fastdec', 'experiments', 'configs', 'tests')
BREAK = ' ⏎ '  # stands for the end of a line
LINES = 20  # of a passage
HELD_OUT = 10  # one file of this many is for the dev set, and one for the test set


def write_passages(folder: pathlib.Path) -> None:
  """Writes train.code, dev.code and test.code, a passage on each line, if they are not there.

  Raises:
    UserError: there are too few source files to hold some out.
  """
  if folder.is_dir():
    return
  files = [file for name in FOLDERS for file in sorted((ROOT / name).rglob('*.py'))]
  if len(files) < HELD_OUT:
    raise UserError(
      f'{ROOT} has {len(files)} source files, too few to learn code from: use the whole repository'
    )
  with whole_folder(folder) as partial:
    for name, places in (('dev', (4,)), ('test', (9,)), ('train', (0, 1, 2, 3, 5, 6, 7, 8))):
      found = [
        passage
        for i, file in enumerate(files)
        if i % HELD_OUT in places
        for passage in passages(file)
      ]
      (partial / f'{name}.{LANGUAGE}').write_text('\n'.join(found) + '\n')


def passages(file: pathlib.Path) -> list[str]:
  """The file's lines, a few at a time, without indentation and empty ones."""
  lines = [line.strip() for line in file.read_text().splitlines() if line.strip()]
  return [BREAK.join(lines[i : i + LINES]) for i in range(0, len(lines), LINES)]
