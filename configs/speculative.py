"""Speculative decoding, theory against practice (Leviathan et al. 2022, Tables 2 and 3): one
target, two draft models.

  python -m experiments.speculative --config=configs/speculative.py:scale=smoke,task=lm \\
    --workdir=out/spec-smoke
  python -m experiments.speculative \\
    --config=configs/speculative.py:scale=multi30k,task=translation \\
    --config.data.folder=path/to/multi30k --workdir=out/spec-multi30k [--budget=25m]
  python -m experiments.speculative --config=configs/speculative.py:scale=multi30k,task=lm \\
    --config.data.folder=path/to/multi30k --workdir=out/spec-lm

scale (2 cores: time for training and for measuring)
  smoke      the embedded corpus at toy size: every step runs, nothing is learnt; a minute
  multi30k   Multi30k from data/multi30k (--config.data.folder=...): the target under an hour (captions: half an hour),
             drafts of 2 layers and of 1, about 6 minutes each; measuring about 30 minutes. These
             models are so small that a second core only costs: with `taskset -c 0` before the
             command a call takes two thirds of the time, and ratios are steadier (train first,
             measure then: the same command goes on). The language model of docs/results learnt five
             times as many captions, those of folder/captions.en.gz (--config.data.train=captions);
             Multi30k's 29,000 alone it sees twenty times

task
  translation  en-de by an encoder-decoder Transformer; a draft model has an encoder of its own
  lm           a decoder-only language model over the English captions; a prompt is the first tokens of one
"""

from configs.common import locked, parse_arg
from configs.wmt14 import TRANSFORMER, falling, mesh, run, text
from configs.wmt14 import multi30k as multi30k_translation

TASKS = ('translation', 'lm')


def get_config(arg=''):
  """The config of a scale and a task."""
  choice = parse_arg(arg, scale=('smoke', 'multi30k'), task=TASKS)
  config = {'smoke': smoke, 'multi30k': multi30k}[choice.scale](choice.task)
  return locked(task=choice.task, scale=choice.scale, seed=0, mesh=mesh(), **config)


def smoke(task):
  """Every step of `multi30k` in seconds."""
  short = run(steps=4, warmup=2, every=2)
  return {
    'data': text('embedded', vocab_size=300, rows=4, row_length=64, max_train=400),
    'target': {'model': model(task, width=32, layers=2), 'train': short},
    'large': {'model': model(task, width=16, layers=2), 'train': short},
    'small': {'model': model(task, width=16, layers=1), 'train': short},
    'measure': measure(gammas=(1, 2), batches=(1, 2), sentences=8, timed=2, max_len=12, repeats=1),
  }


def multi30k(task):
  """Real captions. An epoch is about 240 batches of 32 rows, for a language model 190."""
  return {
    'data': captions(task),
    'target': {'model': target(task), 'train': target_training(task)},
    'large': {
      'model': model(task, width=96, layers=2),
      'train': training(steps=1400, constant=0.6),
    },
    'small': {
      'model': model(task, width=64, layers=1),
      'train': training(steps=2400, constant=0.6),
    },
    'measure': measure(
      gammas=(3, 5, 7), batches=(1, 8, 32), sentences=200, timed=32, max_len=80, repeats=5
    ),
  }


def captions(task):
  """Multi30k's; for a language model their English side alone."""
  data = text(
    'files',
    folder='data/multi30k',
    train='train',
    dev='val',
    test='test_2016_flickr',
    suffix='.gz',
    vocab_size=4000,
    rows=32,
    row_length=64,
  )
  return data | {'target': 'en'} if task == 'lm' else data


def target(task):
  """The target, which the experiments of drafts, Medusa and lookahead measure too; a translator is
  Table 1's."""
  return model(task, width=128, layers=6) if task == 'lm' else multi30k_translation()['model']


def target_training(task):
  """The target's run, whose rate falls to 0."""
  return (
    falling(steps=4000, warmup=400, constant=3e-3, every=500)
    if task == 'lm'
    else multi30k_translation()['train']
  )


def training(*, steps, constant):
  """The drafts' runs: a peak rate of about 3e-3."""
  return run(steps=steps, warmup=400, every=100, average=4, constant=constant)


def model(task, *, width, layers):
  """A model of `layers` layers, an encoder's and the decoder's; the feed-forward part has four
  times the width, a gated one eight thirds."""
  heads = max(2, width // 32)
  if task == 'lm':
    sizes = {'d_model': width, 'd_ff': width // 3 * 8, 'heads': heads, 'layers': layers}
    return {**sizes, 'suppressed_ids': (0,), 'dropout': 0.1}
  sizes = {
    'd_model': width,
    'd_ff': 4 * width,
    'heads': heads,
    'encoder_layers': layers,
    'decoder_layers': layers,
  }
  return TRANSFORMER | sizes


def measure(*, gammas, batches, sentences, timed, max_len, repeats):
  """What is measured, and on how much."""
  return {
    # drafted tokens a call, one sentence at a time; the adapted gamma is at most the largest
    'gammas': gammas,
    # sentences at once; the first takes all gammas, the others the one that was the fastest
    'batches': batches,
    'temperatures': (0.0, 1.0),
    'ngram_gamma': gammas[0],  # of the unigram and bigram drafts
    'lookup': 3,  # the longest n-gram that prompt lookup looks for
    'prompt': 4,  # tokens of a caption, if the task is lm
    'split': 'test',
    'sentences': sentences,  # of the split, evenly spaced: for alpha
    'timed': timed,  # of them, evenly spaced: for wall clock and tokens per call
    'max_len': max_len,
    'repeats': repeats,
  }
