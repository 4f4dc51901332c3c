"""Drafters for a finished base: heads, EAGLE's autoregressive network, and the one-pass one of a
block (fastdec/heads).

  python -m experiments.train   --config=configs/wmt14.py:scale=smoke --workdir=out/base
  python -m experiments.distill --config=configs/wmt14.py:scale=smoke --config.distill.beam=1
  --teacher=out/base \\
    --workdir=out/own
  python -m experiments.train   --config=configs/drafts.py:scale=smoke,kind=eagle --config.base=out/base \\
    --config.data.own=out/own --workdir=out/eagle

The draft is in out/eagle/draft; heads are in out/heads/model, with the base. The base is a run of
experiments.train, or the target of experiments.speculative (task=lm): its sizes are read from its
folder, and --config.data is what it was trained on.

  python -m experiments.drafts --config=configs/drafts.py:scale=smoke,task=translation
  --workdir=out/drafts-smoke

makes the table of all kinds side by side, heads, a draft model and prompt lookup among them, on one
base: that of
--config.base, or one that it trains (`table` below).

scale
  smoke      the embedded corpus at toy size: every step runs, nothing is learnt
  tiny       the embedded corpus
  multi30k   Multi30k from data/multi30k (--config.data.folder=...)

task
  translation  the base is a translator: configs/wmt14.py
  lm           the base is a language model of captions: the target of configs/speculative.py

kind
  heads      Stern's, which read the root too and order their guesses behind the one before (fastdec/heads/context.py)
  eagle      guesses one after another, each behind the one before
  block      guesses all at once

regime
  regular    the base stays as it is: the draft loses nothing
  both       base and draft are trained together, on a teacher's text (--config.data.distilled=...)
"""

from configs.common import locked, parse_arg
from configs.speculative import captions, model, target, target_training
from configs.speculative import training as base_training
from configs.wmt14 import distill, heads, mesh, run, text

# of the table, see `table`
ROWS = ('heads', 'rooted', 'markov', 'block', 'block-2', 'eagle', 'model', 'lookup')


def get_config(arg=''):
  """The config of a draft of this kind, on a base for this task, at this scale."""
  scales = {'smoke': smoke, 'tiny': tiny, 'multi30k': multi30k}
  regimes, tasks = ('regular', 'both'), ('translation', 'lm')
  choice = parse_arg(
    arg, scale=tuple(scales), task=tasks, kind=('eagle', 'block', 'heads'), regime=regimes
  )
  config = scales[choice.scale](choice.task)
  drafters = {
    'heads': {
      'k': 8,
      'heads': config['table']['heads'] | {'rooted': True, 'markov': 64, 'p1_share': 0.5},
    },
    'eagle': {'draft': eagle(), 'loss': {'passes': 4, **loss()}, 'p1_share': 0.5},
    'block': {'draft': block(), 'loss': loss(), 'p1_share': 0.5},
  }
  named = {'scale': choice.scale, 'task': choice.task, 'kind': choice.kind, 'regime': choice.regime}
  return locked(**named, base='', seed=0, mesh=mesh(), **drafters[choice.kind], **config)


def smoke(task):
  """Every step of `multi30k` in seconds."""
  words, rows, lines = (300, 4, 400) if task == 'lm' else (600, 8, 1000)  # as the bases have them
  return {
    'data': text('embedded', vocab_size=words, rows=rows, row_length=64, max_train=lines),
    'train': training(steps=4, warmup=2),
    'finetune': training(steps=4, warmup=2),
    'table': table(
      base=model(task, width=32, layers=2),
      base_run=run(steps=20, warmup=10, every=10),
      small=model(task, width=16, layers=1),
      small_run=run(steps=4, warmup=2, every=2),
      d_ff=32,
      rows=('markov', 'block', 'eagle', 'lookup'),
      nodes=(8,),
      batches=(2,),
      temperatures=(0.0,),
      sentences=8,
      timed=2,
      calibrated=16,
      written=(0, 12),  # a base of 20 steps ends no sentence, and all would be longer than a row
      max_len=12,
      repeats=1,
    ),
  }


def tiny(task):
  """The embedded corpus: 20,000 generated pairs."""
  return {
    'data': text('embedded', vocab_size=2000, rows=16, row_length=64),
    'train': training(steps=400, warmup=50),
    'finetune': training(steps=300, warmup=50, constant=1e-3),
    'table': table(
      base=model(task, width=128, layers=2),
      base_run=run(steps=600, warmup=150, every=200, constant=0.6),
      small=model(task, width=32, layers=1),
      small_run=run(steps=400, warmup=100, every=200, constant=0.6),
      d_ff=256,
      sentences=200,
      timed=8,
      calibrated=200,
      max_len=64,
    ),
  }


def multi30k(task):
  """Real captions: steps of 1,024 tokens."""
  return {
    'data': captions(task),
    'train': training(steps=6000, warmup=200),
    'finetune': training(steps=2000, warmup=200, constant=1e-3),
    'table': table(
      base=target(task),
      base_run=target_training(task),
      taps=(2, 4, 6) if task == 'lm' else (1, 2, 3, 4),
      small=model(task, width=64, layers=1),
      small_run=base_training(steps=2400, constant=0.6),
      d_ff=512,
      max_len=80,
    ),
  }


def training(*, steps, warmup, constant=2e-3):
  """Adam with b2 = .98, up to a peak rate and down to 0."""
  every = max(steps // 20, 1)
  settings = run(
    steps=steps,
    warmup=warmup,
    every=every,
    schedule='linear',
    constant=constant,
    rows=16,
    span=0.05,
  )
  return settings | {'b2': 0.98}


def eagle():
  """A layer that reads the base's hidden state and the next token, and then its own."""
  return {**network(), 'guesses': 7}  # in a row, that it is looked at and calibrated for


def block(taps=()):
  """The rows of a block in one pass, and a bias from the token before each."""
  return {
    **network(taps),
    'k': 8,  # the root and 7 guesses
    'markov': 64,  # rank of the bias; 0: none
    'markov_kind': 'vanilla',  # or 'gated', 'rnn'
    'candidates': 0,  # words of each row that decoding has the bias put into order; 0: all
  }


def network(taps=()):
  """What both kinds have."""
  return {
    'layers': 1,  # of the base's kind and sizes
    'taps': taps,  # the base's layers whose states are read; (): the state that it predicts by
    'words': 0,  # of a draft vocabulary, the most frequent ones of the training text; 0: all
    'dropout': 0.0,
    # the layers begin as the base's last ones; or 'fresh'; or a folder: all of a trained draft's
    'init': 'target',
    'entry': 'joined',  # eagle: or 'beside' (EAGLE-3)
  }


def loss():
  """What is learnt at a place: the tokens that the base wrote behind it (ce), or its law (kl,
  tv)."""
  return {
    # places of each row of a batch that guesses are learnt at, drawn anew in each step; 0: all
    'anchors': 16,
    'ce': 1.0,
    'kl': 0.0,
    'tv': 0.0,
    'decay': 0.9,  # each later guess counts this many times the one before
  }


def table(
  *,
  base,
  base_run,
  small,
  small_run,
  d_ff,
  taps=(),  # of blocks
  rows=ROWS,
  nodes=(8, 16, 32),
  batches=(1, 8),
  temperatures=(0.0, 1.0),
  sentences=0,
  timed=32,
  calibrated=400,
  written=(1, 20),
  max_len,
  repeats=5,
):
  """The table of `experiments.drafts`: what stands beside the drafts, and what is measured, on how
  much."""
  return {
    'base': base,  # the model, where --config.base names none; it is trained by base_run
    'base_run': base_run,
    'small': small,  # the draft model, which is trained as people wrote by small_run
    'small_run': small_run,
    # trained as the drafts are (`train`)
    'heads': heads(d_ff=d_ff, draw='all', decay=0.9, dropout=0.0, anchors=16),
    'eagle': eagle(),
    'block': block(taps),
    # own text, where data.own names none
    'distill': distill(max_len=written, shard_size=1000) | {'beam': 1},
    'rows': rows,
    'nodes': nodes,  # of the trees, the root included
    'gamma': 7,  # tokens of a chain: of the heads, the draft model and prompt lookup too
    # tokens of further chains, such as (1, 3, 5), that are measured beside those of gamma
    'short': (),
    'lookup': 3,  # the longest n-gram that prompt lookup looks for
    'batches': batches,  # texts at once
    'temperatures': temperatures,
    'prompt': 4,  # tokens of a caption, if the task is lm
    'split': 'test',
    # of the split, evenly spaced: for tokens a call, acceptance and agreement; 0: all
    'sentences': sentences,
    'timed': timed,  # of them, evenly spaced: for wall clock
    'calibrated': calibrated,  # of the dev set: for the trees of heads
    'max_len': max_len,
    'repeats': repeats,
  }
