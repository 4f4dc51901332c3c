"""Table 1 of Stern et al. 2018: trains what is missing, measures what is missing, writes the table
and the picture. The experiment is experiments/stern2018/text.py, from the top.

  python -m experiments.table1 --config=configs/wmt14.py:scale=tiny --workdir=out/quickstart
  [--budget=540s]

In the workdir: the models, results.jsonl (one line a row), table1.md, table1.png. The same command
goes on where it was stopped; what failed is shown as failed (exit code 1), and the rest goes on.
"""

from experiments.lab import cli

PAGE = cli.Page('wmt14')


def main(_: list[str]) -> None:
  from experiments.stern2018 import text

  PAGE.run(text.Translation, text.table1)


if __name__ == '__main__':
  cli.run(main)
