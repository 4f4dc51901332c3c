"""Savings of incremental decoding: time a token against length, without a cache, with one driven
from the host, and with the whole loop on the device. FasterTransformer's
tables have the latter two. The settings, with their defaults, are
experiments/incremental_decoding.py:Incremental.

  python -m experiments.incremental --config=configs/incremental.py:scale=small \\
    --workdir=out/incremental [--budget=9m]

scale
  small   small models over 8,000 words, all lengths; of the tables the rows up to 32 sentences;
          about ten minutes on 2 cores
  smoke   toy models, to see that all runs; a minute
  paper   transformer_base and fconv_wmt_en_ro; FasterTransformer's sizes and all its rows; for a
          GPU, where JAX_DEFAULT_MATMUL_PRECISION=highest makes float32 what it was on a T4

Random weights and no end token: every output is as long as its setting. Expected: (a) without
a cache time a token grows with length, (b) and (c) are nearly flat; FConv's is the same at 512 as
at 32 tokens (ratio under 1.1).
"""

from typing import Any

from experiments.incremental_decoding import Growth, Incremental, Layout, Models
from experiments.lab.config import config_of, parse_arg
from fastdec.models.fconv import ARCHITECTURES, FConvConfig
from fastdec.models.transformer import TransformerConfig


def get_config(arg=''):
  """The config of a scale."""
  scales = {'small': small, 'smoke': smoke, 'paper': paper}
  choice = parse_arg(arg, scale=tuple(scales))
  return config_of(scales[choice.scale](), **choice)


def smoke():
  """Every part at toy size."""
  model = transformer(words=60, width=16, heads=2, layers=1)
  layers = ((16, 3),)
  fconv = FConvConfig(
    vocab_size=60, d_embed=16, d_out=16, encoder_layers=layers, decoder_layers=layers
  )
  return Incremental(
    models=Models(model, fconv),
    growth=Growth(lengths=(4, 8), batches=(1, 2), rounds=1),
    layout=Layout(model, float32=((1, 4), (2, 4)), bfloat16=((1, 4),), rounds=1),
  )


def small():
  """The sizes that two cores do in ten minutes."""
  model = transformer(words=8000, width=256, heads=4, layers=3)
  sizes: Any = ARCHITECTURES['fconv_iwslt_de_en']
  fconv = FConvConfig(vocab_size=8000, **sizes)
  return Incremental(models=Models(model, fconv), layout=Layout(model))


def paper():
  """FasterTransformer's decoder: 6 layers, 8 heads of 64, 30,000 words, beam 4."""
  rows = ((1, 32), (1, 64), (1, 128), (32, 32), (64, 32), (128, 32), (256, 32))
  sizes: Any = ARCHITECTURES['fconv_wmt_en_ro']
  return Incremental(
    models=Models(TransformerConfig(), FConvConfig(**sizes)),
    growth=Growth(steps=32, rounds=7),
    layout=Layout(TransformerConfig(vocab_size=30000), float32=rows, bfloat16=rows, rounds=7),
  )


def transformer(*, words, width, heads, layers):
  """A Transformer whose feed-forward part has four times the width."""
  sizes = {'encoder_layers': layers, 'decoder_layers': layers}
  return TransformerConfig(vocab_size=words, d_model=width, d_ff=4 * width, heads=heads, **sizes)
