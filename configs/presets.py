"""Models, texts and runs that several experiments share.

The task is 'lm' (captions) or 'translation'.
"""

import dataclasses
from typing import Any

from experiments.lab.text import TextConfig
from fastdec.models.lm import LMConfig
from fastdec.models.transformer import TransformerConfig
from fastdec.training.run import RunConfig


def model(task, *, width, layers):
  """A model of `layers` layers, an encoder's and the decoder's.

  The feed-forward part has four times the width, a gated one eight thirds.
  """
  heads = max(2, width // 32)
  if task != 'translation':
    d_ff = width // 3 * 8
    return LMConfig(
      d_model=width, d_ff=d_ff, heads=heads, layers=layers, suppressed_ids=(0,), dropout=0.1
    )
  sizes: Any = {'encoder_layers': layers, 'decoder_layers': layers}
  return TransformerConfig(d_model=width, d_ff=4 * width, heads=heads, **sizes)


def captions(task):
  """Multi30k: 29,000 pairs; for a language model only their English side."""
  return TextConfig(
    kind='files',
    folder='data/multi30k',
    train='train',
    dev='val',
    test='test_2016_flickr',
    suffix='.gz',
    target='en' if task == 'lm' else 'de',
  )


def target(task) -> Any:
  """The model that drafts, Medusa, lookahead and speculation are measured on; a translator is Table
  1's base."""
  if task == 'lm':
    return model(task, width=128, layers=6)
  sizes: Any = {'d_model': 128, 'd_ff': 512, 'heads': 4, 'encoder_layers': 4, 'decoder_layers': 4}
  return TransformerConfig(**sizes, dropout=0.3)


def target_run(task):
  """The run of that model, whose rate falls to 0."""
  if task == 'lm':
    return RunConfig.falling(steps=4000, warmup=400, constant=3e-3, every=500)
  return RunConfig.falling(steps=6000, warmup=400, constant=2e-3, every=250, rows=32)


def draft_run(*, steps):
  """The run of a small draft model, with a peak rate of about 3e-3."""
  return RunConfig(steps=steps, warmup=400, every=100, average=4, constant=0.6)


def rehearsal(settings, data, sizes, **table):
  """A scale with a thousandth of its steps, at least ten, on few examples, and with a toy model."""
  heads = settings.heads
  changed: dict[str, Any] = {'data': data, 'model': dataclasses.replace(settings.model, **sizes)}
  changed['heads'] = dataclasses.replace(heads, d_ff=32, anchors=min(heads.anchors, 16))
  changed['table'] = dataclasses.replace(settings.table, timed=1, repeats=1, **table)
  for name, run in vars(settings).items():
    if isinstance(run, RunConfig):
      steps = max(run.steps // 1000, 10)
      changed[name] = dataclasses.replace(run, steps=steps, warmup=steps // 5, every=steps)
  return dataclasses.replace(settings, **changed)
