"""Upscales a picture, by tiles of 8 x 8 pixels that become 32 x 32 or 16 x 16, each on its own.

  python -m experiments.upscale --workdir=out/images/k4-finetune photo.png [--rule=distance-2] \\
    [--output=large.png]

The workdir is that of a finished image run (experiments.table2). A base without heads drafts by its
own forecast; without a forecast it decodes greedily. If a side is not a multiple of 8, its last
pixels are repeated and later cut off. Tiles are enlarged independently, so seams may show.
"""

import pathlib
import time

from absl import flags

from experiments.lab import cli

WORKDIR = flags.DEFINE_string('workdir', None, 'folder of a finished image run', required=True)
RULE = flags.DEFINE_string(
  'rule', 'distance-2', 'when a guess is accepted: exact, distance-N, window-N, min-N'
)
OUTPUT = flags.DEFINE_string(
  'output', None, 'the PNG to write (default: <picture>-x4.png in its folder, or x2, ...)'
)
ROWS = flags.DEFINE_integer('rows', 16, 'tiles decoded at once', lower_bound=1)
MOST = flags.DEFINE_integer(
  'most_tiles', 1024, 'refuse pictures of more tiles than this', lower_bound=1
)


def main(words: list[str]) -> None:
  from experiments.stern2018 import tiles
  from fastdec.errors import UserError

  if len(words) != 1:
    raise UserError(
      f'{len(words)} pictures were named: give one, as in experiments.upscale'
      ' --workdir=... photo.png'
    )
  source = pathlib.Path(words[0])
  small = tiles.read(source, MOST.value)
  model, params, strategy = tiles.load(pathlib.Path(WORKDIR.value), RULE.value)
  times = model.config.size // tiles.SIDE
  name = OUTPUT.value or source.with_name(f'{source.stem}-x{times}.png')
  output = cli.picture_path(name, '--output')
  if output.exists() and output.samefile(source):
    raise UserError(f'--output={output} is the picture itself: give another name')
  start = time.monotonic()
  large, summary = tiles.enlarge(small, model, params, strategy, ROWS.value)
  tiles.write(output, large)
  print(f'{output}: {large.shape[1]} x {large.shape[0]} pixels')
  print(f'In {time.monotonic() - start:.1f} s with compilation: {summary}')


if __name__ == '__main__':
  cli.run(main, words=True)
