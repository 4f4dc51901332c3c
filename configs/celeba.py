"""Super-resolution by blockwise parallel decoding: Stern, Shazeer, Uszkoreit 2018, Tables 2 and 3,
Figure 4 (CelebA). The settings, with their defaults, are experiments/stern2018/images.py:Table2.

  python -m experiments.table2  --config=configs/celeba.py:scale=tiny --workdir=out/images

8 x 8 pixels become 32 x 32, one intensity after another: 3,072 tokens an image; or 16 x 16, a
quarter of them. With --config.table.own=true heads learn from what the base itself writes: exact
acceptance compares their guesses with that. For a single run: experiments.train, with k and regime.

scale (2 cores: time for the whole of table2; what to expect)
  tiny     windows of photographs that come with scikit-image; about ten minutes
  smoke    the same at toy size: every step runs, nothing is learnt; about a minute
  faces16  real faces in an npz, shrunk to 16 x 16 (--config.data.path=.../faces32.npz), heads that
           see more than the paper's, one run for all k: about two hours on one core, see
           docs/results/faces16.md
  faces32  the same recipe for the faces as they are, without those that have a black corner, and a
           base whose inputs have a forecast: three hours and a half on one core, see
           docs/results/faces32.md
  celeba   the paper's: img2img_transformer_b3 on CelebA as TFDS has prepared it; not for a CPU. The
           paper: k = 10, fine-tuned, approximate: a mean accepted block size of 6.79
  celeba-day  the same images and model for a day on 8 GPUs: see `celeba_day` for what differs and
           what to expect. celeba-day,rehearsal: every stage of it, with 1/1000 of the steps, few
           images and a toy model; on a CPU too

regime (the paper's columns)
  regular   heads on the frozen base; with acceptance within 2 intensities: Approximate
  finetune  heads and base trained together; with acceptance within 2 intensities: Both

Acceptance within 2 is also measured with each guess at the middle of the five intensities that are
likeliest together (the rule window-2). A base whose inputs have a forecast of each intensity (all
scales but faces16 and celeba) is also measured with blocks that this forecast guesses, without
heads (table.forecast).
"""

import dataclasses
from typing import Any

from configs import presets
from experiments.lab.cli import Paper
from experiments.lab.config import config_of, parse_arg
from experiments.lab.train import HeadsConfig
from experiments.stern2018.images import ImagesConfig, Measure, OwnConfig, Table2, plans, table2
from fastdec.models.image_transformer import ImageTransformerConfig
from fastdec.training.run import RunConfig

SMALL: Any = {  # dropout is for the paper's million steps
  'norm': 'pre',
  'dropout': 0.0,
  'block_length': 96,  # a row of pixels: the rows above are in sight
}
INPUTS: Any = {'grid': True, 'forecast': True}  # more of them than the paper's base has
ADAM: Any = {'label_smoothing': 0.0, 'b2': 0.98}  # images have no smoothing; T2T's b2 for them


PAPER = Paper(
  Table2,
  table2,
  axes={'k': 'table.ks', 'regime': 'table.regimes', 'tolerance': 'table.taus'},
  figures=(
    ('Tokens a call', 'mean_block_size', '.2f'),
    ('Speed-up', 'speedup', '.2f'),
    ('PSNR', 'psnr', '.2f'),
    ('Rule', 'rule', ''),  # window-2 has no tolerance
  ),
  plans=plans,
  partial='--config.table.taus_of=all measures all tolerances at every k, not only at the largest',
)


def get_config(arg=''):
  """The config of a scale; k, regime and base say which run of Table 2 `experiments.train` does."""
  scales = {'tiny': tiny, 'smoke': smoke, 'faces16': faces16, 'faces32': faces32, 'celeba': celeba}
  scales['celeba-day'] = celeba_day
  regimes = 'regular', 'finetune'
  choice = parse_arg(arg, scale=tuple(scales), k=1, regime=regimes, rehearsal=False)
  settings = scales[choice.scale]()
  if choice.rehearsal:
    settings = rehearsal(settings)
  return config_of(settings, scale=choice.scale, k=choice.k, regime=choice.regime)


def tiny():
  """2,000 windows of four photographs."""
  sizes: Any = {'d_model': 64, 'd_ff': 256, 'heads': 2, 'encoder_layers': 1, 'decoder_layers': 2}
  return Table2(
    data=ImagesConfig(),
    model=ImageTransformerConfig(**SMALL, **INPUTS, **sizes),
    train=RunConfig(steps=400, warmup=50, every=100, constant=0.15, **ADAM),
    freeze=RunConfig(steps=150, warmup=25, every=50, constant=0.1, **ADAM),
    finetune=RunConfig(steps=150, warmup=25, every=50, constant=0.05, **ADAM),
    heads=HeadsConfig(d_ff=128, p1_share=0.5, draw='all', dropout=0.0),
    table=Measure(ks=(2, 4), taus=(1, 2, 4), images=8, rows=8, forecast=(4, 10)),
  )


def smoke():
  """Every step of `tiny` in seconds."""
  sizes: Any = {'d_model': 32, 'd_ff': 32, 'heads': 2, 'encoder_layers': 1, 'decoder_layers': 1}
  return Table2(
    data=ImagesConfig(max_train=20),
    model=ImageTransformerConfig(**SMALL, **INPUTS, **sizes),
    train=RunConfig(steps=4, warmup=2, every=2, **ADAM),
    freeze=RunConfig(steps=2, warmup=2, every=2, **ADAM),
    finetune=RunConfig(steps=2, warmup=2, every=2, **ADAM),
    heads=HeadsConfig(d_ff=16, draw='all', dropout=0.0),
    table=Measure(ks=(2, 4), taus=(2, 8), images=2, rows=2, forecast=(4,)),
  )


def faces16():
  """The same faces at 16 x 16: 768 tokens an image, a quarter of the cost, so that two cores train
  a model of them."""
  sizes: Any = {'d_model': 128, 'd_ff': 512, 'heads': 4, 'encoder_layers': 1, 'decoder_layers': 3}
  seen: Any = {'anchors': 128, 'rooted': True, 'markov': 64}
  return Table2(
    data=ImagesConfig('npz', 'data/faces32/faces32.npz', rows=4, side=16, mirrored=True),
    model=ImageTransformerConfig(**SMALL | {'block_length': 48}, **sizes, size=16, grid=True),
    train=RunConfig.falling(steps=5000, warmup=200, constant=2e-3, every=500, **ADAM),
    freeze=RunConfig.falling(steps=600, warmup=50, constant=1e-3, every=200, **ADAM),
    finetune=RunConfig.falling(
      steps=3000, warmup=50, constant=7e-4, every=500, heads_rate=2.0, **ADAM
    ),
    heads=HeadsConfig(d_ff=256, p1_share=0.5, draw='all', decay=0.9, dropout=0.0, **seen),
    table=Measure(images=64, rows=32, timed=2, one_run=True),
  )


def faces32():
  """Real faces as they are: 3,072 tokens an image, so fewer images a step, and fewer steps."""
  small = faces16()
  together: Any = {'constant': 7e-4, 'heads_rate': 2.0}
  return dataclasses.replace(
    small,
    data=dataclasses.replace(small.data, rows=2, side=32, black_corners=False, moved=1),
    model=dataclasses.replace(small.model, **INPUTS, size=32, block_length=96),
    distill=OwnConfig(images=2400),  # what fine-tuning sees once
    train=RunConfig.falling(steps=4800, warmup=200, constant=2e-3, every=400, **ADAM),
    freeze=RunConfig.falling(steps=400, warmup=50, constant=1e-3, every=200, **ADAM),
    finetune=RunConfig.falling(steps=1200, warmup=50, every=200, **together, **ADAM),
    table=Measure(
      taus=(1, 2, 4, 6, 8),
      images=32,
      rows=32,
      timed=4,
      one_run=True,
      forecast=(2, 4, 6, 8, 10, 16, 24),
    ),
  )


def celeba():
  """The paper's: 1,000,000 steps of 2 images on each of 8 GPUs, and 250,000 for each k."""
  noam: Any = {'schedule': 'noam', 'constant': 0.2, 'warmup': 12_000, 'average': 10, **ADAM}
  heads = RunConfig(steps=250_000, every=10_000, **noam)
  return Table2(
    data=ImagesConfig('tfds', rows=16),
    model=ImageTransformerConfig(),
    train=RunConfig(steps=1_000_000, every=10_000, **noam),
    freeze=heads,
    finetune=heads,
    heads=HeadsConfig(d_ff=2048, layout='paper'),
    table=Measure(timed=16),
  )


def celeba_day():
  """CelebA in a day on 8 H100s; `--plan` says what each stage takes.

  It differs from the paper: bfloat16 with float32 weights; batches eight times as large, so that
  100,000 steps of the base see 80 % of the images of the paper's million; one run for the largest k
  serves all, with separate heads that all learn at once at 128 places of an image; 2,048 images of
  the dev set. Expect the paper's order of block sizes: at k = 10 1.10 on a frozen base, 2.04
  fine-tuned, and 6.79 when intensities up to 2 away are accepted (Stern et al. 2018, Table 2). It
  has no bits an intensity.
  """
  paper: Any = {'schedule': 'noam', 'constant': 0.2, 'warmup': 12_000, 'average': 10, **ADAM}
  heads: Any = {'warmup': 500, 'every': 2500, **ADAM}
  return dataclasses.replace(
    celeba(),
    data=ImagesConfig('tfds', rows=128),
    model=ImageTransformerConfig(dtype='bfloat16'),
    train=RunConfig(steps=100_000, every=2500, **paper),
    freeze=RunConfig.falling(steps=10_000, constant=1e-3, **heads),
    finetune=RunConfig.falling(steps=30_000, constant=5e-4, heads_rate=2.0, **heads),
    heads=HeadsConfig(d_ff=2048, p1_share=0.5, draw='all', anchors=128),
    table=Measure(timed=16, images=2048, one_run=True),
  )


def rehearsal(settings):
  """A scale with 1/1000 of its steps, few images, and a toy model."""
  sizes: Any = {'d_model': 32, 'd_ff': 32, 'heads': 2, 'encoder_layers': 1, 'decoder_layers': 1}
  table: Any = {'ks': (2, 4), 'taus': (2, 8), 'images': 2, 'rows': 2}
  return presets.rehearsal(settings, ImagesConfig(max_train=160), sizes, **table)
