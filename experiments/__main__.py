"""All experiments by one command: `python -m experiments table1 --config=... --workdir=...`.

Without a name it lists them. `python -m experiments NAME --help` shows the flags of one.
"""

import difflib
import pathlib
import sys

from experiments import EXPERIMENTS, run

REMOVED = {  # earlier experiments, and what to use instead
  'beside': 'read the table of each workdir, table1.md, or its rows, results.jsonl'
}


def main() -> int:
  """Runs the experiment that the first word names, with the other words as its flags, or lists all
  experiments. Returns the exit code."""
  name = sys.argv[1] if len(sys.argv) > 1 else '--help'
  if name in EXPERIMENTS:
    sys.argv = [str(pathlib.Path(__file__).with_name(f'{name}.py')), *sys.argv[2:]]
    run(name)
  elif name in ('--help', '-h'):
    print('python -m experiments NAME --config=... --workdir=... (NAME --help: all flags)\n')
    for name, experiment in EXPERIMENTS.items():
      print(f'  {name:<12} {experiment.about}')
  elif name in REMOVED:
    print(f'experiments {name} is no longer supported: {REMOVED[name]}', file=sys.stderr)
    return 2
  else:
    advice = f'known are {", ".join(EXPERIMENTS)}'
    if near := difflib.get_close_matches(name, EXPERIMENTS, 1):
      advice = f'did you mean {near[0]}?'
    print(f'there is no experiment {name}: {advice}', file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  sys.exit(main())
