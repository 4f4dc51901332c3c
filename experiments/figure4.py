"""Figure 4 of Stern et al. 2018: wall-clock speed-up against mean accepted block size, on the test
set. The experiment is experiments/stern2018/text.py, from the top.

  python -m experiments.figure4 --config=configs/wmt14.py:scale=multi30k --workdir=out/multi30k
  [--budget=1h]

Shares its workdir, models and rows with Tables 1 and 4: trains and measures what is missing,
and writes figure4.png.
"""

from experiments.lab import cli

PAGE = cli.Page('wmt14')


def main(_: list[str]) -> None:
  from experiments.stern2018 import text

  PAGE.run(text.Translation, text.figure4)


if __name__ == '__main__':
  cli.run(main)
