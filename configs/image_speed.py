"""What an image costs: milliseconds a call and an image, and a call's cost against the image's
length.

  python -m experiments.benchmark --config=configs/image_speed.py --workdir=out/image-speed
  python -m experiments.benchmark --config=configs/image_speed.py:scale=smoke
  --workdir=out/image-speed-smoke

scale (2 cores: time)
  small  a model of 1 + 3 layers of 128, whole images decoded as well
  smoke  to see that all runs
  b3     the paper's img2img_transformer_b3; calls only, an image's time is calculated

Ratios are what to quote: absolute times drift with the machine.
"""

import dataclasses

from configs import celeba
from configs.common import locked, parse_arg


def get_config(arg=''):
  """The config of a scale; the sizes of model and heads are those of a scale of
  configs/celeba.py."""
  choice = parse_arg(arg, scale=('small', 'smoke', 'b3'))
  sizes = {'small': small, 'smoke': celeba.smoke, 'b3': celeba.celeba}[choice.scale]()
  smoke = choice.scale == 'smoke'
  sides = (8, 12) if smoke else (8, 16, 32)
  return locked(
    task='images',
    # the signal is the paper's
    model={**dataclasses.asdict(sizes.model), 'size': max(sides), 'grid': False, 'forecast': False},
    dtypes=('float32',) if smoke else ('float32', 'int8'),
    widths=(4,) if smoke else (2, 4, 8, 16),
    ks=(2,) if smoke else (4, 10),
    heads_d_ff=sizes.heads.d_ff,
    sides=sides,  # pixels, of the outputs whose lengths are compared
    batches=(1, 2) if smoke else (1, 16),
    # for which an image's time is calculated; 6.79: the paper's best, with k = 10
    mean_blocks=(2.0, 4.0, 6.79),
    calls=4 if smoke else 16,  # of a round
    rounds=1 if smoke else 7,
    decodes=0 if choice.scale == 'b3' else 1,  # rounds of whole images
    seed=0,
  )


def small():
  """The sizes of `faces32` with two heads."""
  sizes = celeba.faces32()
  return dataclasses.replace(sizes, model=dataclasses.replace(sizes.model, heads=2))
