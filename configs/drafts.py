"""Drafters for a finished base: heads, EAGLE's network, and the one-pass one of a block. The
settings, with their defaults, are experiments/drafters.py:Drafters and experiments/lab/networks.py.

All kinds side by side, with a draft model and prompt lookup, on one base: that of --config.base, or
one that it trains.

  python -m experiments.drafts --config=configs/drafts.py:scale=smoke,task=translation \\
    --workdir=out/drafts-smoke
  python -m experiments.drafts --config=configs/drafts.py:scale=smoke,kind=losses \\
    --workdir=out/losses-smoke

One drafter, with a kind, on a run of experiments.train (task=translation), or the target of
experiments.speculative (task=lm); --config.data is what that was trained on (docs/own/drafter.md).

  python -m experiments.train  --config=configs/drafts.py:scale=smoke,kind=eagle \\
    --config.base=out/base --config.data.own=out/own --workdir=out/eagle

scale
  smoke      the embedded corpus at toy size: every step runs, nothing is learnt
  tiny       the embedded corpus
  multi30k   Multi30k from data/multi30k (--config.data.folder=...): steps of 1,024 tokens

task
  translation  the base is a translator: configs/wmt14.py
  lm           the base is a language model of captions: the target of configs/speculative.py

kind
  all        the table
  six        the draft networks of 2026 at equal steps, as chains and as trees of up to 64 nodes;
             --config.table.repeats=0 counts calls, and times nothing
  losses     EAGLE by cross entropy and by KL, at equal steps
  heads      Stern's, which also read the root and order their guesses by the one before
  eagle      guesses one after another, each from the one before
  block      guesses all at once

regime
  regular    the base stays as it is: the draft loses nothing
  both       base and draft are trained together, on a teacher's text (--config.data.distilled=...)
"""

import dataclasses
import itertools
from typing import Any

from configs import presets
from experiments.drafters import LOSSES, SIX, Drafters, TableConfig, drafters, plans
from experiments.lab.cli import Paper
from experiments.lab.config import config_of, parse_arg
from experiments.lab.networks import HeadsOnBase, NetworkOnBase
from experiments.lab.own import DistillConfig
from experiments.lab.text import TextConfig
from experiments.lab.train import HeadsConfig
from fastdec.training.drafts.settings import BlockConfig, EagleConfig
from fastdec.training.run import RunConfig

PAPER = Paper(
  Drafters,
  drafters,
  axes={
    'drafter': 'table.rows',
    'tree': 'table.nodes',
    'temperature': 'table.temperatures',
    'batch': 'table.batches',
  },
  figures=(('Tokens a call', 'tokens', '.2f'), ('Speed-up', 'speedup', '.2f')),
  plans=lambda c: itertools.chain(*plans(c.table)),
)


def get_config(arg=''):
  """The config of the table, or of one drafter, for a task at a scale."""
  scales = {'smoke': smoke, 'tiny': tiny, 'multi30k': multi30k}
  kinds, regimes = ('all', 'six', 'losses', 'eagle', 'block', 'heads'), ('regular', 'both')
  choice = parse_arg(
    arg, scale=tuple(scales), task=('translation', 'lm'), kind=kinds, regime=regimes
  )
  whole, finetune = scales[choice.scale](choice.task)
  if choice.kind == 'losses':
    whole = dataclasses.replace(whole, table=by_loss(whole.table))
  if choice.kind == 'six':
    whole = dataclasses.replace(whole, table=side_by_side(whole.table, choice.scale))
  if choice.kind in ('all', 'six', 'losses'):
    return config_of(whole, scale=choice.scale, task=choice.task)
  same = {'data': whole.data, 'train': whole.train, 'finetune': finetune}
  if choice.kind == 'heads':
    seeing = dataclasses.replace(whole.table.heads, rooted=True, markov=64, p1_share=0.5)
    return config_of(HeadsOnBase(heads=seeing, **same), **choice)
  draft = EagleConfig() if choice.kind == 'eagle' else BlockConfig()
  return config_of(NetworkOnBase(draft=draft, **same), **choice)


def smoke(task):
  """Every step of `multi30k` in seconds."""
  data = TextConfig(vocab_size=600, rows=8, max_train=1000)
  if task == 'lm':
    data = TextConfig(vocab_size=300, rows=4, max_train=400)
  table = TableConfig(
    base=presets.model(task, width=32, layers=2),
    base_run=RunConfig(steps=20, warmup=10, every=10),
    small=presets.model(task, width=16, layers=1),
    small_run=RunConfig(steps=4, warmup=2, every=2),
    heads=heads(32),
    # a base of 20 steps ends no sentence, and all would be longer than a row
    distill=DistillConfig(beam=1, max_len=(0, 12), shard_size=1000),
    rows=('markov', 'block', 'eagle', 'lookup'),
    nodes=(8,),
    batches=(2,),
    temperatures=(0.0,),
    sentences=8,
    timed=2,
    calibrated=16,
    max_len=12,
    repeats=1,
  )
  short = dataclasses.replace(run(steps=10, warmup=2), every=5)
  return Drafters(data, short, table), short


def tiny(task):
  """The embedded corpus: 20,000 generated pairs."""
  table = TableConfig(
    base=presets.model(task, width=128, layers=2),
    base_run=RunConfig(steps=600, warmup=150, every=200, constant=0.6),
    small=presets.model(task, width=32, layers=1),
    small_run=RunConfig(steps=400, warmup=100, every=200, constant=0.6),
    heads=heads(256),
    sentences=200,
    timed=8,
    calibrated=200,
    max_len=64,
  )
  data = TextConfig(vocab_size=2000, rows=16)
  finetune = run(steps=300, warmup=50, constant=1e-3)
  return Drafters(data, run(steps=400, warmup=50), table), finetune


def multi30k(task):
  """Real captions."""
  taps = (2, 4, 6) if task == 'lm' else (1, 2, 3, 4)
  table = TableConfig(
    base=presets.target(task),
    base_run=presets.target_run(task),
    small=presets.model(task, width=64, layers=1),
    small_run=presets.draft_run(steps=2400),
    heads=heads(512),
    block=BlockConfig(taps=taps),
  )
  finetune = run(steps=2000, warmup=200, constant=1e-3)
  return Drafters(presets.captions(task), run(steps=6000, warmup=200), table), finetune


def by_loss(table):
  """EAGLE's rows by both losses, as chains and as trees of 16, eight texts at once."""
  rows: Any = ('eagle', *LOSSES)
  return dataclasses.replace(table, rows=rows, nodes=(16,), batches=(8,))


def side_by_side(table, scale):
  """The rows of six networks."""
  rows: Any = SIX
  if scale == 'smoke':
    return dataclasses.replace(table, rows=rows)
  return dataclasses.replace(table, rows=rows, nodes=(8, 16, 32, 64), batches=(1, 32))


def run(*, steps, warmup, constant=2e-3):
  """Adam with b2 = .98, up to a peak rate and down to 0, averaged over its last twentieth."""
  every = max(steps // 20, 1)
  settings = {'constant': constant, 'rows': 16, 'average': 2, 'b2': 0.98}
  return RunConfig.falling(steps=steps, warmup=warmup, every=every, **settings)


def heads(d_ff):
  """Heads all at once, at a sample of places, without dropout."""
  return HeadsConfig(d_ff=d_ff, draw='all', decay=0.9, dropout=0.0, anchors=16)
