"""Lookahead decoding (Fu et al. 2024): no draft and no training; what window, n-grams, guesses and
pool bring.

  python -m experiments.lookahead --config=configs/lookahead.py:scale=smoke,task=lm \\
    --workdir=out/lookahead-smoke
  python -m experiments.lookahead --config=configs/lookahead.py:scale=multi30k,task=lm \\
    --config.data.folder=path/to/multi30k --workdir=out/lookahead-lm [--budget=25m]
  python -m experiments.lookahead --config=configs/lookahead.py:scale=multi30k,task=code \\
    --workdir=out/lookahead-code
  python -m experiments.lookahead --config=configs/lookahead.py:scale=multi30k,task=translation \\
    --config.data.folder=path/to/multi30k --config.base=out/base --workdir=out/lookahead-translation

--config.base names a finished run on the same text, whose model is measured as it is; without it
one is trained.
--config.measure.repeats=0 counts tokens and takes no times, for a machine that has other work.

scale
  smoke      toy sizes: every step runs, nothing is learnt; a few minutes, which are compiling
  multi30k   the base of configs/drafts.py: an hour of training on 2 cores (captions: half an hour); of task=code a
             model of four layers over this repository's source files: 300 steps of 4,096 tokens, 5
             minutes

task
  lm           English captions, from their first tokens
  translation  en-de by an encoder-decoder Transformer
  code         text that repeats itself: this repository's source files, twenty lines a passage

The paper (A100, Llama-2 7B, batch 1): 1.5 times as fast as greedy decoding on MT-Bench, more than 2
times on code, at W = G = 15 and N = 5. A call there costs little more when it is 120 tokens wide;
on a CPU it does.
"""

from configs import drafts
from configs.common import locked, parse_arg
from configs.speculative import model
from configs.wmt14 import falling, mesh, run, text

TASKS = ('lm', 'translation', 'code')


def get_config(arg=''):
  """The config of a scale and a task."""
  choice = parse_arg(arg, scale=('smoke', 'multi30k'), task=TASKS)
  config = {'smoke': smoke, 'multi30k': multi30k}[choice.scale](choice.task)
  return locked(task=choice.task, scale=choice.scale, base='', seed=0, mesh=mesh(), **config)


def smoke(task):
  """Every step of `multi30k` at toy size."""
  data = text('embedded', vocab_size=300, rows=4, row_length=64, max_train=400)
  sizes = {'windows': (3, 2), 'ngrams': (3, 4), 'guesses': (2, 3)}
  return {
    'data': code(vocab_size=400, rows=2, row_length=768, max_train=400) if task == 'code' else data,
    'model': model(model_of(task), width=32, layers=2),
    'train': run(steps=4, warmup=2, every=2),
    'measure': measure(
      **sizes, batches=(1, 2), prompt=4, sentences=8, timed=2, max_len=12, repeats=1
    ),
  }


def multi30k(task):
  """The paper's sizes first, then smaller ones."""
  sizes = {'windows': (15, 2, 5, 10), 'ngrams': (5, 3, 4, 7), 'guesses': (15, 2, 5, 10)}
  many = {'batches': (1, 8), 'timed': 32, 'repeats': 3}
  if task == 'code':
    return {
      'data': code(vocab_size=2000, rows=8, row_length=512),
      'model': model('lm', width=128, layers=4),
      'train': falling(steps=300, warmup=100, constant=3e-3, every=100),
      'measure': measure(**sizes, **many, sentences=32, prompt=64, max_len=128),
    }
  of_drafts = drafts.multi30k(task)
  return {
    'data': of_drafts['data'],
    'model': of_drafts['table']['base'],
    'train': of_drafts['table']['base_run'],
    'measure': measure(**sizes, **many, sentences=100, prompt=4, max_len=64),
  }


def model_of(task):
  """The task of configs/speculative.py whose models these are."""
  return 'translation' if task == 'translation' else 'lm'


def code(**sizes):
  """This repository's source files, which are written into the workdir."""
  return text('files', train='train', dev='dev', test='test', **sizes) | {
    'source': 'code',
    'target': 'code',
  }


def measure(*, windows, ngrams, guesses, batches, prompt, sentences, timed, max_len, repeats):
  """What is measured, and on how much."""
  return {
    # columns; the first of each with the first of the others, then the others one at a time
    'windows': windows,
    'ngrams': ngrams,  # tokens, the key included
    'guesses': guesses,  # n-grams verified a call
    'batches': batches,  # texts at once; the sweep is at the first
    'prompt': prompt,  # tokens of a line, if the task has no source
    'split': 'test',
    'sentences': sentences,  # of the split, evenly spaced: for tokens a call and agreement; 0: all
    'timed': timed,  # of them, evenly spaced: for wall clock
    'max_len': max_len,
    'repeats': repeats,  # of timing; 0: nothing is timed, and a later run with more adds the times
  }
