"""Lookahead decoding (Fu et al. 2024): its sizes swept, its pool taken apart, beside Jacobi and
prompt lookup. The experiment is experiments/fu2024.py, from the top.

  python -m experiments.lookahead --config=configs/lookahead.py:scale=smoke,task=lm \\
    --workdir=out/lookahead-smoke
  python -m experiments.lookahead --config=configs/lookahead.py:scale=multi30k,task=code \\
    --workdir=out/lookahead-code

With --config.measure.repeats=0 it counts tokens and times nothing.
"""

from experiments.lab import cli

PAGE = cli.Page('lookahead')


def main(_: list[str]) -> None:
  from experiments import fu2024

  PAGE.run(fu2024.Lookahead, fu2024.lookahead)


if __name__ == '__main__':
  cli.run(main)
