"""What drafting costs: one draft proposed and its outcome observed, against a greedy call, at
transformer_base sizes.

  python -m experiments.benchmark --config=configs/draft_speed.py --workdir=out/draft-speed
  python -m experiments.benchmark --config=configs/draft_speed.py:scale=smoke
  --workdir=out/draft-speed-smoke

Random weights: how often drafts are right does not matter here. Ratios are what to quote.
"""

from configs import speed
from configs.common import locked, parse_arg


def get_config(arg=''):
  """scale=base is transformer_base over 32,000 words; smoke is small, to see it runs."""
  choice = parse_arg(arg, scale=('base', 'smoke'))
  config = speed.get_config(f'scale={choice.scale}')
  return locked(
    task='drafts',
    model=config.model,
    dtypes=('float32',),
    guesses=7,  # of a draft
    words={'base': (8000, 2000), 'smoke': (100,)}[choice.scale],  # of draft vocabularies
    markov=64,  # rank of a block's bias
    nodes=32,  # of the trees, the root included
    source=config.source,
    calls=config.calls,
    rounds=config.rounds,
    batch=config.batch,
    seed=config.seed,
  )
