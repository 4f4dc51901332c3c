"""What incremental decoding saves: time per token against length, without a cache, with one driven
from the host, and with the whole loop on the device; the latter two in the layout of
FasterTransformer's tables.

  python -m experiments.incremental --config=configs/incremental.py:scale=small \\
    --workdir=out/incremental [--budget=9m]
  python -m experiments.incremental --config=configs/incremental.py:scale=smoke \\
    --workdir=out/incremental-smoke
  python -m experiments.incremental --config=configs/incremental.py:scale=paper \\
    --workdir=out/incremental-gpu

scale
  smoke   toy models, to see that all runs; seconds
  small   small models over 8,000 words, all lengths; of the tables the rows up to 32 sentences; about ten minutes on 2
          cores
  paper   transformer_base and fconv_wmt_en_ro; FasterTransformer's sizes and all its rows; for a GPU, where
          JAX_DEFAULT_MATMUL_PRECISION=highest makes float32 what it was on a T4

Random weights and no end token: every output has as many tokens as asked for. Expected: (a) without
a cache time per token grows with length, (b) and (c) are nearly flat; FConv's is the same at 512 as
at 32 tokens (ratio under 1.1).
"""

from configs.common import locked, parse_arg


def get_config(arg=''):
  """The config of a scale."""
  choice = parse_arg(arg, scale=('small', 'smoke', 'paper'))
  config = {'small': small, 'smoke': smoke, 'paper': paper}[choice.scale]()
  return locked(scale=choice.scale, seed=0, **config)


def smoke():
  """Every part in seconds."""
  return {
    'models': {
      'transformer': transformer(words=60, width=16, heads=2, layers=1),
      'fconv': fconv(words=60, width=16, encoder=1, decoder=1),
    },
    'growth': growth(lengths=(4, 8), batches=(1, 2), steps=4, rounds=1),
    'layout': layout(
      transformer(words=60, width=16, heads=2, layers=1), ((1, 4), (2, 4)), ((1, 4),), rounds=1
    ),
    'encoder': encoder(source=8, batches=(1, 2), rounds=1),
  }


def small():
  """What two cores do in ten minutes."""
  return {
    'models': {
      'transformer': transformer(words=8000, width=256, heads=4, layers=3),
      # the layers of fconv_iwslt_de_en
      'fconv': fconv(words=8000, width=256, encoder=4, decoder=3),
    },
    'growth': growth(lengths=(32, 64, 128, 256, 512), batches=(1, 32), steps=4, rounds=3),
    'layout': layout(
      transformer(words=8000, width=256, heads=4, layers=3), ((1, 32), (1, 64), (1, 128), (32, 32)), ((1, 32),),
      rounds=3,
    ),
    'encoder': encoder(source=32, batches=(1, 32), rounds=5),
  }  # fmt: skip


def paper():
  """FasterTransformer's decoder: 6 layers, 8 heads of 64, 30,000 words, beam 4."""
  rows = ((1, 32), (1, 64), (1, 128), (32, 32), (64, 32), (128, 32), (256, 32))
  return {
    'models': {
      'transformer': transformer(words=32000, width=512, heads=8, layers=6),
      'fconv': fconv(words=32000, width=512, encoder=20, decoder=20),
    },
    'growth': growth(lengths=(32, 64, 128, 256, 512), batches=(1, 32), steps=32, rounds=7),
    'layout': layout(transformer(words=30000, width=512, heads=8, layers=6), rows, rows, rounds=7),
    'encoder': encoder(source=32, batches=(1, 32), rounds=7),
  }


def transformer(*, words, width, heads, layers):
  """Sizes of a Transformer."""
  return {
    'vocab_size': words,
    'd_model': width,
    'd_ff': 4 * width,
    'heads': heads,
    'encoder_layers': layers,
    'decoder_layers': layers,
  }


def fconv(*, words, width, encoder, decoder):
  """Sizes of an FConv: (width, kernel) of each layer."""
  return {
    'vocab_size': words,
    'd_embed': width,
    'd_out': width,
    'encoder_layers': ((width, 3),) * encoder,
    'decoder_layers': ((width, 3),) * decoder,
  }


def growth(*, lengths, batches, steps, rounds):
  """Time per token against length."""
  return {
    'models': ('transformer', 'fconv'),
    'lengths': lengths,  # tokens; each its own program
    'batches': batches,
    'source': 16,  # tokens
    # without a cache a step's time grows with the length: at most this many of each length are
    # timed
    'steps': steps,
    'rounds': rounds,
  }


def layout(model, float32, bfloat16, *, rounds):
  """FasterTransformer's tables: (sentences, tokens) of each row, by dtype; a source has as many
  tokens."""
  return {'model': model, 'beams': 4, 'float32': float32, 'bfloat16': bfloat16, 'rounds': rounds}


def encoder(*, source, batches, rounds):
  """The encoder alone, compiled against one operation at a time."""
  return {'source': source, 'batches': batches, 'rounds': rounds}
