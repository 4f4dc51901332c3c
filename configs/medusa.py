"""Medusa (Cai et al. 2024): heads on a language model of captions, frozen or trained together with
it, and trees. The settings, with their defaults, are experiments/cai2024.py:Medusa.

  python -m experiments.medusa --config=configs/medusa.py:scale=multi30k \\
    --config.data.folder=path/to/multi30k --workdir=out/medusa [--budget=25m]

scale (2 cores: time for training and for measuring)
  smoke      the embedded corpus at toy size: every step runs, nothing is learnt; a minute
  multi30k   English captions from data/multi30k (--config.data.folder=...). The target takes half
             an hour (configs/speculative.py:scale=multi30k,task=lm trains the same: its folder
             target-... may be copied here), heads 5 to 10 minutes, measuring about 20. `taskset -c
             0` before the command makes these small models faster

text
  own        heads learn from what the target itself writes after the first tokens of the training
             captions, since that is what they will guess (self-distillation, section 2.3.2)
  data       heads learn from the captions as people wrote them
  mixed      own for Medusa-1, both for Medusa-2, which changes the model: so it keeps what it knows
             of people's text
"""

from typing import Any

from configs import presets
from experiments.cai2024 import Measure, Medusa, medusa, plans
from experiments.lab.cli import Paper
from experiments.lab.config import config_of, parse_arg
from experiments.lab.text import TextConfig
from fastdec.training.run import RunConfig

PAPER = Paper(
  Medusa,
  medusa,
  axes={'stage': 'measure.stages', 'tree': 'measure.trees', 'batch': 'measure.batches'},
  figures=(('Tokens a call', 'tokens_per_call', '.2f'), ('Speed-up', 'speedup', '.2f')),
  plans=lambda c: plans(c.measure),
)


def get_config(arg=''):
  """The config of a scale and a text."""
  scales = {'smoke': smoke, 'multi30k': multi30k}
  choice = parse_arg(arg, scale=tuple(scales), text=('own', 'data', 'mixed'))
  return config_of(scales[choice.scale](), **choice)


def smoke():
  """Every step of `multi30k` in seconds."""
  model: Any = presets.model('lm', width=32, layers=2)
  run = RunConfig(steps=4, warmup=2, every=2)
  return Medusa(
    data=TextConfig(vocab_size=300, rows=4, max_train=400),
    model=model,
    train=run,
    freeze=run,
    finetune=run,
    measure=Measure(nodes=8, most=12, batches=(1,), calibrated=16, timed=2, max_len=12, repeats=1),
  )


def multi30k():
  """The language model of configs/speculative.py; heads see their text twice, then as often with
  the model."""
  model: Any = presets.target('lm')
  return Medusa(
    data=presets.captions('lm'),
    model=model,
    train=presets.target_run('lm'),
    freeze=RunConfig(steps=1000, warmup=100, every=100, average=4, constant=0.2, rows=16),
    finetune=RunConfig(
      steps=800, warmup=200, every=100, average=4, constant=0.05, rows=16, heads_rate=4.0
    ),
  )
