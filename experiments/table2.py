"""Table 2 of Stern et al. 2018: mean accepted block sizes of super-resolution, and what the paper
does not give. The experiment is experiments/stern2018/images.py, from the top.

  python -m experiments.table2 --config=configs/celeba.py:scale=tiny --workdir=out/images \\
    [--config.table.own=true] [--budget=540s]

In the workdir: the base and the heads, a folder each; images/, what each row made; results.jsonl, a
line a row. table2.md has block sizes, likeness to the originals, wall clock and a sweep over
tau. Pictures: table2.png (block sizes), tau.png (the sweep), figure4.png (speed-up),
samples.png (the paper's last page).
"""

from experiments.lab import cli

PAGE = cli.Page('celeba')


def main(_: list[str]) -> None:
  import skimage  # noqa: F401  measures likeness: that it is missing should show before training

  from experiments.stern2018 import images

  PAGE.run(images.Table2, images.table2)


if __name__ == '__main__':
  cli.run(main)
