"""Medusa (Cai et al. 2024): heads on a language model, their trees, and what they gain, beside what
is published. The experiment is experiments/cai2024.py, from the top.

  python -m experiments.medusa --config=configs/medusa.py:scale=smoke --workdir=out/medusa-smoke \\
    [--budget=540s]

The same command goes on where it was stopped.
"""

from experiments.lab import cli

PAGE = cli.Page('medusa')


def main(_: list[str]) -> None:
  from experiments import cai2024

  PAGE.run(cai2024.Medusa, cai2024.medusa)


if __name__ == '__main__':
  cli.run(main)
