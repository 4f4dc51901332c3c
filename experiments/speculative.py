"""Speculative decoding, theory against practice: Tables 2 to 4 of Leviathan et al. 2022, beside our
own figures. The experiment is experiments/leviathan2022.py, from the top.

  python -m experiments.speculative --config=configs/speculative.py:scale=smoke,task=translation \\
    --workdir=out/spec [--budget=540s]

The same command goes on where it was stopped.
"""

from experiments.lab import cli

PAGE = cli.Page('speculative')


def main(_: list[str]) -> None:
  from experiments import leviathan2022

  PAGE.run(leviathan2022.Speculative, leviathan2022.speculative)


if __name__ == '__main__':
  cli.run(main)
