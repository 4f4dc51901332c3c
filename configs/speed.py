"""What a call costs: time against block width at the sizes of transformer_base, batch 1 (design section 6).

  python -m experiments.benchmark --config=configs/speed.py --workdir=out/speed
  python -m experiments.benchmark --config=configs/speed.py:scale=smoke --workdir=out/speed-smoke

Expected on 2 cores: five minutes. Ratios are what to quote: absolute times drift with the machine.
"""

from configs.common import locked, parse_arg


def get_config(arg=''):
  """scale=base is transformer_base over 32,000 words; smoke is small, to see that all runs."""
  choice = parse_arg(arg, scale=('base', 'smoke'))
  sizes = {
    'base': {'vocab_size': 32000, 'd_model': 512, 'd_ff': 2048, 'heads': 8, 'encoder_layers': 6, 'decoder_layers': 6},
    'smoke': {'vocab_size': 500, 'd_model': 32, 'd_ff': 64, 'heads': 2, 'encoder_layers': 1, 'decoder_layers': 1},
  }[choice.scale]
  return locked(
    task='translation',
    model=sizes,
    dtypes=('float32', 'bfloat16'),
    widths=(1, 2, 4, 8, 16),
    k=8,  # of the heads
    heads_d_ff=sizes['d_ff'],
    source=32,  # tokens
    calls=32,  # of a round
    rounds=7,
    batch=1,
    seed=0,
  )
