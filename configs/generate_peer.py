"""Against Hugging Face's generate: a Llama-style model of 110 million weights and a draft model of
11 million.

  python -m experiments.generate_peer --config=configs/generate_peer.py:scale=110m
  --workdir=out/peer python -m experiments.generate_peer
  --config=configs/generate_peer.py:scale=smoke --workdir=out/peer-smoke

Minutes on 2 cores. Needs `fastdec[benchmark]`. With
--model=folder [--draft=folder] the sizes here are not read.
"""

from configs import lm_speed
from configs.common import locked, parse_arg


def get_config(arg=''):
  """The config of a scale."""
  choice = parse_arg(arg, scale=('110m', 'smoke'))
  smoke = choice.scale == 'smoke'
  model = lm_speed.SIZES[choice.scale]
  draft = (
    {'d_model': 16, 'd_ff': 32, 'layers': 1}
    if smoke
    else {'d_model': 256, 'd_ff': 688, 'layers': 4, 'heads': 4}
  )
  return locked(
    model=model,
    draft=model | draft,
    dtype='float32',
    prompt=8 if smoke else 64,  # tokens, random ids
    tokens=12 if smoke else 128,
    gamma=3 if smoke else 5,  # drafted tokens a call
    ngram=3,  # the longest that prompt lookup looks for
    prompts=3 if smoke else 4,  # whose tokens are compared
    timed=1,  # of them
    rounds=1 if smoke else 5,
    seed=0,
  )
