"""Draws how a sentence is written: greedy decoding and blocks, a column a call, against the clock.

  python -m experiments.blocks --model=out/quickstart/k8-finetune --strategy='blockwise(k=4)' \\
    --out=docs/figures/blocks.png "A sentence to translate."

Both are timed in turn: medians of rounds, and the median, least and largest of the rounds' ratios.
A decode's calls are drawn equally wide.
"""

from absl import flags

from experiments.lab import cli

MODEL = flags.DEFINE_string('model', None, 'folder of a finished run', required=True)
STRATEGY = flags.DEFINE_string('strategy', 'tuned', "in words, or 'tuned'")
OUT = flags.DEFINE_string('out', 'blocks.png', 'the picture, a PNG')


def main(words: list[str]) -> None:
  from fastdec.cli import cores
  from fastdec.errors import UserError

  if len(words) != 1:
    raise UserError(f'there are {len(words)} sentences, and one is drawn: put it in quotes')
  out = cli.picture_path(OUT.value)
  cores.restrict(MODEL.value, rows=1)  # as `fastdec tune` did, before JAX looks for them
  import fastdec as fd
  from experiments.pictures.blocks import figure, measure_lanes
  from fastdec.evaluation import drawing

  g = fd.Generator.load(MODEL.value, strategy=STRATEGY.value)
  lanes, speed = measure_lanes(g, words[0])
  drawing.save(figure(words[0], lanes, speed), out)
  print(f'{speed} as greedy decoding. The picture is in {out}')


if __name__ == '__main__':
  cli.run(main, words=True)
