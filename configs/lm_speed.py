"""What a call of a decoder-only language model costs: time against width, chain against tree, the
bandwidth reached, what the loop adds.

  python -m experiments.benchmark --config=configs/lm_speed.py:scale=110m --workdir=out/lm-speed
  python -m experiments.benchmark --config=configs/lm_speed.py:scale=smoke
  --workdir=out/lm-speed-smoke
  python -m experiments.benchmark --config=configs/lm_speed.py:scale=7b --workdir=out/lm-speed-7b     # on a GPU

scale
  110m   Llama-style, 12 layers of 768; minutes on 2 cores
  smoke  to see that all runs
  1b     the shape of Llama-3.2-1B: 2.5 GB of weights in bfloat16
  7b     the shape of Llama-2-7B: 13.5 GB

Random weights, made in the type they are used in; beside weights in int8 everything is float32.
Ratios are what to quote: absolute times drift with the machine.

A tree of n nodes is the root and the first n - 1 nodes of Medusa's mc_sim_7b_63, shortest paths
first (16: 2 deep; 64: the whole tree, 4 deep). It runs through the same loop as the chain of n
nodes, except its mask, the search for the longest accepted path, and the commit, which gathers that
path: "to the chain" is what all this costs.
"""

from configs.common import locked, parse_arg

SIZES = {
  '110m': {'vocab_size': 32000, 'd_model': 768, 'd_ff': 2048, 'layers': 12, 'heads': 12},
  'smoke': {'vocab_size': 500, 'd_model': 32, 'd_ff': 64, 'layers': 1, 'heads': 2},
  '1b': {
    'vocab_size': 128256, 'd_model': 2048, 'd_ff': 8192, 'layers': 16, 'heads': 32, 'key_heads': 8, 'rope_theta': 5e5,
  },
  '7b': {'vocab_size': 32000, 'd_model': 4096, 'd_ff': 11008, 'layers': 32, 'heads': 32, 'tied': False},
}  # fmt: skip


def get_config(arg=''):
  """The config of a scale."""
  choice = parse_arg(arg, scale=tuple(SIZES))
  is_large = choice.scale in ('1b', '7b')
  return locked(
    task='lm',
    model=SIZES[choice.scale],
    dtypes=('bfloat16', 'int8') if is_large else ('float32', 'bfloat16', 'int8'),
    # whether calls on few tokens are timed by a packed model too (`fd.pack`), in turn
    packed=not is_large,
    widths=(1, 2, 4, 8, 16, 32, 64),  # those from 16 to 64 as a tree, too
    prompt=64,  # tokens
    calls=32 if is_large else 16,  # of a round
    rounds=7,
    batch=1,
    seed=0,
  )
