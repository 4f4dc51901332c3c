"""Medusa (Cai et al. 2024): heads on a language model of captions, frozen or trained together with
it, and trees.

  python -m experiments.medusa --config=configs/medusa.py:scale=smoke --workdir=out/medusa-smoke
  python -m experiments.medusa --config=configs/medusa.py:scale=multi30k
  --config.data.folder=path/to/multi30k \\
    --workdir=out/medusa [--budget=25m]

scale (2 cores: time for training and for measuring)
  smoke      the embedded corpus at toy size: every step runs, nothing is learnt; a minute
  multi30k   English captions from data/multi30k (--config.data.folder=...): the target of configs/speculative.py
             (scale=multi30k,task=lm: its run may be copied here as target/), half an hour; heads 5
             to 10 minutes; measuring about 20. `taskset -c 0` before the command makes these small
             models faster

text
  own        heads are trained on what the target itself writes after the first tokens of the training captions: what
             they are to guess (self-distillation, section 2.3.2)
  data       on the captions as people wrote them
  mixed      own for Medusa-1, both for Medusa-2, which changes the model: it keeps what it knows of people's text
"""

from configs.common import locked, parse_arg
from configs.speculative import captions, model, target, target_training
from configs.wmt14 import mesh, run, text


def get_config(arg=''):
  """The config of a scale and a text."""
  choice = parse_arg(arg, scale=('smoke', 'multi30k'), text=('own', 'data', 'mixed'))
  config = {'smoke': smoke, 'multi30k': multi30k}[choice.scale]()
  return locked(scale=choice.scale, text=choice.text, seed=0, mesh=mesh(), **config)


def smoke():
  """Every step of `multi30k` in seconds."""
  return {
    'data': text('embedded', vocab_size=300, rows=4, row_length=64, max_train=400),
    'model': model('lm', width=32, layers=2),
    'train': run(steps=4, warmup=2, every=2),
    'freeze': run(steps=4, warmup=2, every=2),
    'finetune': run(steps=4, warmup=2, every=2),
    'heads': heads(),
    'measure': measure(
      nodes=8, most=12, batches=(1,), calibrated=16, timed=2, max_len=12, repeats=1
    ),
  }


def multi30k():
  """The language model of configs/speculative.py; heads see their text twice, then as often with
  the model."""
  return {
    'data': captions('lm'),
    'model': target('lm'),
    'train': target_training('lm'),
    'freeze': run(steps=1000, warmup=100, every=100, average=4, constant=0.2, rows=16),
    'finetune': run(
      steps=800, warmup=200, every=100, average=4, constant=0.05, rows=16, heads_rate=4.0
    ),
    'heads': heads(),
    'measure': measure(
      nodes=32, most=64, batches=(1, 8, 32), calibrated=1000, timed=32, max_len=60, repeats=3
    ),
  }


def heads():
  """Four: as many as the published trees are deep."""
  return {
    'depth': 4,
    'layers': 1,  # residual blocks a head
    'own_projection': True,  # false: all share the model's
    'rooted': False,  # heads read the embedding of the root too (Ankner et al. 2024)
    # rank of a bias from the token guessed before, that puts each head's words in order; 0: none
    'markov': 0,
    'draw': 'all',  # heads a minibatch
    # places of each row that all heads at once learn at, drawn anew in each step; 0: all places
    'anchors': 0,
    'decay': 0.8,  # each later head's loss counts this many times the one before
    # of the loss, for the model's own, where heads train together with it: 1 to 0.2 (1 + 0.8 + ...)
    'p1_share': 0.6,
  }


def measure(*, nodes, most, batches, calibrated, timed, max_len, repeats):
  """What is measured, and on how much."""
  return {
    'published': 'mc_sim_7b_63',  # the tree beside the calibrated ones
    'nodes': nodes,  # of the calibrated tree, the root included
    'most': most,  # of the tree with the most tokens a second
    'batches': batches,  # prompts at once
    'typical': 0.09,  # epsilon of typical acceptance, with delta its root
    'prompt': 4,  # tokens of a caption
    'calibrated': calibrated,  # captions of the dev set that the trees are grown on
    'split': 'test',
    'timed': timed,  # captions of the split, evenly spaced
    'max_len': max_len,
    'repeats': repeats,
  }
