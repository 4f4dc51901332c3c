"""Draws who sees what in one call of a model: the picture of docs/masks.md, made by the code that
decodes.

python -m experiments.masks --out=docs/figures/masks.png
"""

from absl import flags

from experiments.lab import cli

OUT = flags.DEFINE_string('out', 'masks.png', 'the picture, a PNG')


def main(_: list[str]) -> None:
  out = cli.picture_path(OUT.value)
  from experiments.pictures import masks
  from fastdec.evaluation import drawing

  drawing.save(masks.figure(masks.every_mask()), out)
  print(f'The picture is in {out}')


if __name__ == '__main__':
  cli.run(main)
