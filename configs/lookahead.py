"""Lookahead decoding (Fu et al. 2024): no draft and no training; what window, n-grams, guesses and
pool bring. The settings, with their defaults, are experiments/fu2024.py:Lookahead.

  python -m experiments.lookahead --config=configs/lookahead.py:scale=multi30k,task=lm \\
    --config.data.folder=path/to/multi30k --workdir=out/lookahead-lm [--budget=25m]

scale
  smoke      toy sizes: every step runs, nothing is learnt; a few minutes, which are compiling
  multi30k   the base of configs/drafts.py (or --config.base=out/base): an hour of training on 2
             cores (captions: half an hour); of task=code a model of four layers: 300 steps of 4,096
             tokens, 5 minutes

task
  lm           English captions, from their first tokens
  translation  en-de by an encoder-decoder Transformer
  code         text that repeats itself: this repository's source files, twenty lines a passage

The paper (A100, Llama-2 7B, batch 1): 1.5 times as fast as greedy decoding on MT-Bench, more than 2
times on code, at W = G = 15 and N = 5. A call there costs little more when it is 120 tokens wide;
on a CPU it does.
"""

from typing import Any

from configs import presets
from experiments.fu2024 import LANGUAGE, Lookahead, Measure, lookahead, plans
from experiments.lab.cli import Paper
from experiments.lab.config import config_of, parse_arg
from experiments.lab.text import TextConfig
from fastdec.training.run import RunConfig

CODE: Any = {'kind': 'files', 'train': 'train', 'dev': 'dev', 'test': 'test'}
CODE |= {'source': LANGUAGE, 'target': LANGUAGE}

PAPER = Paper(
  Lookahead,
  lookahead,
  axes={
    'window': 'measure.windows',
    'ngram': 'measure.ngrams',
    'guesses': 'measure.guesses',
    'batch': 'measure.batches',
  },
  figures=(('Tokens a call', 'tokens', '.2f'), ('Speed-up', 'speedup', '.2f')),
  names=('method', 'pool'),
  plans=lambda c: plans(c.measure),
)


def get_config(arg=''):
  """The config of a scale and a task."""
  scales = {'smoke': smoke, 'multi30k': multi30k}
  choice = parse_arg(arg, scale=tuple(scales), task=('lm', 'translation', 'code'))
  return config_of(scales[choice.scale](choice.task), **choice)


def smoke(task):
  """Every step of `multi30k` at toy size."""
  data = TextConfig(vocab_size=300, rows=4, max_train=400)
  if task == 'code':
    data = TextConfig(**CODE, vocab_size=400, rows=2, row_length=768, max_train=400)
  return Lookahead(
    data=data,
    model=presets.model(task, width=32, layers=2),
    train=RunConfig(steps=4, warmup=2, every=2),
    measure=Measure(
      windows=(3, 2),
      ngrams=(3, 4),
      guesses=(2, 3),
      batches=(1, 2),
      sentences=8,
      timed=2,
      max_len=12,
      repeats=1,
    ),
  )


def multi30k(task):
  """The paper's sizes first, then smaller ones."""
  if task == 'code':
    return Lookahead(
      data=TextConfig(**CODE, vocab_size=2000, rows=8, row_length=512),
      model=presets.model('lm', width=128, layers=4),
      train=RunConfig.falling(steps=300, warmup=100, constant=3e-3, every=100),
      measure=Measure(sentences=32, prompt=64, max_len=128),
    )
  return Lookahead(
    data=presets.captions(task), model=presets.target(task), train=presets.target_run(task)
  )
