"""Shows how far the experiment of a workdir is: its stages, its rows, what failed, what is next.

  python -m experiments status --workdir=out/wmt14

It only reads, so it may run at any time, also on another machine that sees the folder.
"""

import pathlib

from absl import flags

from experiments.lab import cli

WORKDIR = flags.DEFINE_string('workdir', None, 'folder of an experiment', required=True)


def main(_: list[str]) -> None:
  from experiments.lab.status import describe

  print('\n'.join(describe(pathlib.Path(WORKDIR.value))))


if __name__ == '__main__':
  cli.run(main)
