"""Speculative decoding, theory against practice (Leviathan et al. 2022, Tables 2 to 4): one target,
two draft models. The settings, with their defaults, are experiments/leviathan2022.py:Speculative.

  python -m experiments.speculative \\
    --config=configs/speculative.py:scale=multi30k,task=translation \\
    --config.data.folder=path/to/multi30k --workdir=out/spec-multi30k [--budget=25m]

scale (2 cores: time for training and for measuring)
  smoke      the embedded corpus at toy size: every step runs, nothing is learnt; a minute
  multi30k   Multi30k from data/multi30k (--config.data.folder=...). The target takes under an hour
             (captions: half an hour), drafts of 2 layers and of 1 about 6 minutes each; measuring
             about 30 minutes. These models are so small that a second core slows them down: with
             `taskset -c 0` before the command a call takes two thirds of the time (train without
             it, then measure with it: the same command continues). The language model of
             docs/results learnt five times as many captions, those of folder/captions.en.gz
             (--config.data.train=captions)

task
  translation  en-de by an encoder-decoder Transformer; a draft model has an encoder of its own
  lm           a decoder-only language model over the English captions, from their first tokens
"""

from configs import presets
from experiments.lab.config import config_of, parse_arg
from experiments.lab.text import TextConfig
from experiments.leviathan2022 import Measure, Speculative, Trained
from fastdec.training.run import RunConfig


def get_config(arg=''):
  """The config of a scale and a task."""
  scales = {'smoke': smoke, 'multi30k': multi30k}
  choice = parse_arg(arg, scale=tuple(scales), task=('translation', 'lm'))
  return config_of(scales[choice.scale](choice.task), **choice)


def smoke(task):
  """Every step of `multi30k` in seconds."""
  short = RunConfig(steps=4, warmup=2, every=2)
  return Speculative(
    data=TextConfig(vocab_size=300, rows=4, max_train=400),
    target=Trained(presets.model(task, width=32, layers=2), short),
    large=Trained(presets.model(task, width=16, layers=2), short),
    small=Trained(presets.model(task, width=16, layers=1), short),
    measure=Measure(gammas=(1, 2), batches=(1, 2), sentences=8, timed=2, max_len=12, repeats=1),
  )


def multi30k(task):
  """Real captions. An epoch is about 240 batches of 32 rows, for a language model 190."""
  return Speculative(
    data=presets.captions(task),
    target=Trained(presets.target(task), presets.target_run(task)),
    large=Trained(presets.model(task, width=96, layers=2), presets.draft_run(steps=1400)),
    small=Trained(presets.model(task, width=64, layers=1), presets.draft_run(steps=2400)),
  )
