"""Savings of incremental decoding: without a cache, with one driven from the host, with the whole
loop on the device. The experiment is experiments/incremental_decoding.py, from the top.

  python -m experiments.incremental --config=configs/incremental.py:scale=small \\
    --workdir=out/incremental [--budget=9m]

The same command goes on where it was stopped. Use an idle machine: rounds run in turn, but times
are the machine's.
"""

from experiments.lab import cli

PAGE = cli.Page('incremental')


def main(_: list[str]) -> None:
  from experiments import incremental_decoding

  PAGE.run(incremental_decoding.Incremental, incremental_decoding.incremental)


if __name__ == '__main__':
  cli.run(main)
