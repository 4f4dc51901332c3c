"""What a call costs: time against block width at the sizes of the papers' models, batch 1
(docs/results/calls.md).

  python -m experiments.benchmark --config=configs/speed.py --workdir=out/speed
  python -m experiments.benchmark --config=configs/speed.py:model=fconv --workdir=out/speed-fconv
  python -m experiments.benchmark --config=configs/speed.py:scale=smoke --workdir=out/speed-smoke

Expected on 2 cores: five minutes. Ratios are what to quote: absolute times drift with the machine.
"""

from configs.common import locked, parse_arg
from configs.wmt14 import FCONV


def get_config(arg=''):
  """scale=base is transformer_base, or FConv's fconv_wmt_en_de, over 32,000 words; smoke is small,
  to see it runs."""
  choice = parse_arg(arg, scale=('base', 'smoke'), model=('transformer', 'fconv'))
  sizes = {
    'base': {
      'vocab_size': 32000,
      'd_model': 512,
      'd_ff': 2048,
      'heads': 8,
      'encoder_layers': 6,
      'decoder_layers': 6,
    },
    'smoke': {
      'vocab_size': 500,
      'd_model': 32,
      'd_ff': 64,
      'heads': 2,
      'encoder_layers': 1,
      'decoder_layers': 1,
    },
  }[choice.scale]
  heads_d_ff = sizes['d_ff']
  if choice.model == 'fconv':
    sizes = {
      'vocab_size': sizes['vocab_size'],
      **sizes_of(FCONV[{'base': 'wmt14', 'smoke': 'smoke'}[choice.scale]]),
    }
  return locked(
    task='translation',
    model=sizes,
    dtypes=('float32', 'bfloat16', 'int8'),
    # whether each is timed by a packed model too (`fd.pack`), in turn, in the types that are packed
    packed=True,
    # whether CTranslate2 is timed in turn, on a Transformer (needs `fastdec[benchmark]`)
    peer=False,
    widths=(1, 2, 4, 8, 16),
    k=8,  # of the heads
    heads_d_ff=heads_d_ff,
    source=32,  # tokens
    calls=32,  # of a round
    rounds=7,
    batch=1,
    seed=0,
  )


def sizes_of(model):
  """The widths and layers of an FConv."""
  names = 'd_embed', 'd_out', 'encoder_layers', 'decoder_layers'
  return {name: getattr(model, name) for name in names}
