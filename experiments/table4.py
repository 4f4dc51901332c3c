"""Table 4 of Stern et al. 2018: BLEU on the test set and single-sentence speed-up, per k, all of it
distilled. The experiment is experiments/stern2018/text.py, from the top.

  python -m experiments.table4 --config=configs/wmt14.py:scale=multi30k --workdir=out/multi30k
  [--budget=1h]

Shares its workdir and models with Table 1: trains and measures what is missing, and writes
table4.md and figure4.png, which shows the same rows. Beside ours stand the paper's figures and the
rivals that it quotes.
"""

from experiments.lab import cli

PAGE = cli.Page('wmt14')


def main(_: list[str]) -> None:
  from experiments.stern2018 import text

  PAGE.run(text.Translation, text.table4)


if __name__ == '__main__':
  cli.run(main)
