"""All experiments by one command: `python -m experiments table1 --config=... --workdir=...`.

Without a name it lists them. `python -m experiments NAME --help` shows the flags of one.
"""

import ast
import difflib
import pathlib
import re
import runpy
import sys

HERE = pathlib.Path(__file__).parent


def experiments() -> dict[str, str]:
  """The first sentence about each command, by name: files of this folder that call `cli.run`."""
  sentences = {}
  for file in sorted(HERE.glob('*.py')):
    source = file.read_text()
    if '\n  cli.run' in source:
      about = ast.get_docstring(ast.parse(source)) or ''
      paragraph = ' '.join(about.split('\n\n')[0].split())
      sentences[file.stem] = re.split(r'\.(?= [A-Z]|$)|:$', paragraph)[0]
  return sentences


def main() -> int:
  """Runs the experiment that the first word names, with the other words as its flags; the exit
  code."""
  known = experiments()
  name = sys.argv[1] if len(sys.argv) > 1 else '--help'
  if name in known:
    sys.argv = [str(HERE / f'{name}.py'), *sys.argv[2:]]
    runpy.run_module(f'experiments.{name}', run_name='__main__', alter_sys=True)
  elif name in ('--help', '-h'):
    print('python -m experiments NAME --config=... --workdir=... (NAME --help: all flags)\n')
    for name, sentence in known.items():
      print(f'  {name:<12} {sentence}')
  else:
    near = difflib.get_close_matches(name, known, 1)
    advice = f'did you mean {near[0]}?' if near else f'known are {", ".join(known)}'
    print(f'there is no experiment {name}: {advice}', file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  sys.exit(main())
