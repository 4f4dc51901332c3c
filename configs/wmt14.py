"""Blockwise parallel decoding for translation: Stern, Shazeer, Uszkoreit 2018, Tables 1 and 4,
Figure 4 (WMT14 en-de).

  python -m experiments.table1   --config=configs/wmt14.py:scale=tiny --workdir=out/tiny
  python -m experiments.table4   --config=configs/wmt14.py:scale=tiny --workdir=out/tiny
  python -m experiments.figure4  --config=configs/wmt14.py:scale=tiny --workdir=out/tiny
  python -m experiments.example  --config=configs/wmt14.py:scale=tiny --workdir=out/tiny
  python -m experiments.train    --config=configs/wmt14.py:scale=tiny --workdir=out/base
  python -m experiments.train    --config=configs/wmt14.py:k=8,regime=regular --config.base=out/base --workdir=out/k8
  python -m experiments.evaluate --config=configs/wmt14.py:k=8,regime=regular --workdir=out/k8
  python -m experiments.distill  --config=configs/wmt14.py:scale=tiny --teacher=out/base --workdir=out/distil

scale (2 cores: time for the whole of table1; what to expect)
  tiny       the embedded corpus, without distillation, and heads that see more than the paper's; about 8 minutes
  smoke      the same at toy size with all four regimes: every step runs, nothing is learnt; about two minutes
  multi30k   Multi30k from data/multi30k (--config.data.folder=...), heads that see more than the paper's: the base
             under an hour, two and a half hours more by one core for the heads of all four regimes,
             as one run serves all k, and half an hour by two where the base is to write its own
             text (experiments.distill, captions too); base 35 BLEU. The table, its commands and
             what else was tried: docs/results/multi30k.md
  wmt14      the paper's sizes and text, as TFDS has prepared it; or --config.data.kind=archives with
             --config.data.folder=... (see fastdec/data/text/wmt14.py): not for a CPU. The paper:
             base 25.56 BLEU, k = 10 on distilled data, fine-tuned: 25.60 at a mean accepted block
             size of 4.95

regime (the paper's columns)
  regular    heads on the frozen base             distil     heads on the frozen base, all on a teacher's translations
  finetune   heads and base trained together      both       heads and base trained together on a teacher's translations
model (with any scale; --workdir of its own)
  transformer  the paper's, tensor2tensor's transformer_base
  fconv        Gehring et al. 2017, fairseq's fconv: multi30k as fconv_iwslt_de_en at half its width, wmt14 as
               fconv_wmt_en_de; trained by Adam with weight normalisation, where fairseq has
               Nesterov's method

With k=1, regime=regular is the base, and regime=distil is the base trained on, on a teacher's
translations.
"""

from configs.common import locked, parse_arg

RULES = ('exact', 'top-2', 'top-3', 'min-2', 'min-3')
TREES = ('tree-8', 'tree-16', 'tree-32', 'tree-64')  # exact acceptance on a tree of this many nodes
REGIMES = ('regular', 'distil', 'finetune', 'both')
# T2T's transformer_base v3, with other sizes (facts: pre-norm, dropout 0.1 everywhere)
TRANSFORMER = {
  'norm': 'pre',
  'positions': 'sinusoidal',
  'max_positions': 1024,
  'activation': 'relu',
  'attention_bias': False,
  'dropout': 0.1,
  'attention_dropout': 0.1,
  'activation_dropout': 0.1,
  'dtype': 'float32',
}
FCONV = {
  'is_tied': True,  # logits by the embedding, as the Transformer's here
  'dropout': 0.1,
  'max_positions': 1024,
  'dtype': 'float32',
}
FCONV_SIZES = {  # (channels, kernel width) of each layer
  'tiny': {
    'd_embed': 128,
    'd_out': 128,
    'encoder_layers': ((128, 3),) * 2,
    'decoder_layers': ((128, 3),) * 2,
  },
  'smoke': {'d_embed': 32, 'd_out': 32, 'encoder_layers': ((32, 3),), 'decoder_layers': ((32, 3),)},
  'multi30k': {
    'd_embed': 128,
    'd_out': 128,
    'encoder_layers': ((128, 3),) * 4,
    'decoder_layers': ((128, 3),) * 3,
  },
  'wmt14': {
    'd_embed': 768,
    'd_out': 512,
    'is_tied': False,
    'encoder_layers': ((512, 3),) * 9 + ((1024, 3),) * 4 + ((2048, 1),) * 2,
    'decoder_layers': ((512, 3),) * 9 + ((1024, 3),) * 4 + ((2048, 1),) * 2,
  },
}


def get_config(arg=''):
  """The config of a scale; k, regime and base say which run of Table 1 `experiments.train` does."""
  scales = {'tiny': tiny, 'smoke': smoke, 'multi30k': multi30k, 'wmt14': wmt14}
  choice = parse_arg(arg, scale=tuple(scales), model=('transformer', 'fconv'), k=1, regime=REGIMES)
  config = scales[choice.scale]()
  if choice.model == 'fconv':
    config = config | fconv(config, FCONV_SIZES[choice.scale])
  chosen = {'scale': choice.scale, 'k': choice.k, 'regime': choice.regime}
  return locked(task='translation', **chosen, base='', seed=0, mesh=mesh(), **config)


def tiny():
  """The embedded corpus: 20,000 generated pairs. A decoder of 6 layers, as the paper's: 24 MB of
  weights are read for every token, so that a call on a few tokens costs little more than a call on
  one."""
  sizes = {'d_model': 256, 'd_ff': 1024, 'heads': 4, 'encoder_layers': 1, 'decoder_layers': 6}
  # two epochs forget nothing
  nothing_dropped = {'dropout': 0.0, 'attention_dropout': 0.0, 'activation_dropout': 0.0}
  return {
    'data': text('embedded', vocab_size=2000, rows=16, row_length=64),
    'model': {**TRANSFORMER, **sizes, **nothing_dropped},
    'train': falling(steps=230, warmup=50, constant=2e-3, every=115),
    'retrain': falling(steps=150, warmup=30, constant=1e-3, every=150),
    'freeze': falling(steps=80, warmup=10, constant=2e-3, every=80),
    'finetune': falling(steps=250, warmup=30, constant=1e-3, every=125, heads_rate=2.0),
    'heads': heads(
      d_ff=128, p1_share=0.5, draw='all', decay=0.8, dropout=0.0, anchors=16, rooted=True, markov=64
    ),
    'distill': distill(),
    'table': table(
      ks=(2, 4, 8),
      regimes=('regular', 'finetune'),
      rules=('exact', 'top-2', 'top-3'),
      max_len=64,
      timed=12,
      sentences=256,
      one_run=True,
    ),
  }


def smoke():
  """Every step of `tiny` in seconds."""
  return {
    **tiny(),
    'data': text('embedded', vocab_size=600, rows=8, row_length=64, max_train=1000),
    'model': {
      **TRANSFORMER,
      'd_model': 32,
      'd_ff': 64,
      'heads': 2,
      'encoder_layers': 1,
      'decoder_layers': 1,
    },
    'train': run(steps=20, warmup=10, every=10),
    'retrain': run(steps=6, warmup=3, every=3),
    'freeze': run(steps=6, warmup=3, every=3),
    'finetune': run(steps=6, warmup=3, every=3),
    'heads': heads(d_ff=32, draw='all', dropout=0.0),
    'distill': distill(shard_size=250, rows=16),
    'table': table(ks=(2, 4), rules=(*RULES, 'tree-32'), max_len=32, timed=3, sentences=32),
  }


def multi30k():
  """Real captions: 29,000 pairs. Fine tuning on people's text was measured after half as many steps
  (the page)."""
  sizes = {'d_model': 128, 'd_ff': 512, 'heads': 4, 'encoder_layers': 4, 'decoder_layers': 4}
  return {
    'data': text(
      'files',
      folder='data/multi30k',
      train='train',
      dev='val',
      test='test_2016_flickr',
      suffix='.gz',
      vocab_size=4000,
      rows=32,
      row_length=64,
    ),
    'model': {**TRANSFORMER, **sizes, 'dropout': 0.3},
    'train': falling(steps=6000, warmup=400, constant=2e-3, every=250, rows=32),
    'retrain': falling(steps=1500, warmup=60, constant=1e-3, every=500, rows=16),
    'freeze': falling(steps=2000, warmup=60, constant=2e-3, every=500, rows=16),
    'finetune': falling(steps=5000, warmup=100, constant=1e-3, every=1000, rows=16, heads_rate=2.0),
    'heads': heads(
      d_ff=512, p1_share=0.5, draw='all', decay=0.8, dropout=0.0, anchors=16, rooted=True, markov=64
    ),
    'distill': distill(),
    'table': table(
      ks=(2, 4, 6, 8, 10),
      rules=(*RULES, *TREES),
      max_len=80,
      timed=30,
      split='test',
      rows=50,
      one_run=True,
    ),
  }


def wmt14():
  """The paper's: transformer_base on 8 GPUs of 4,096 tokens, 1,000,000 steps, and as many again for
  each k."""
  return {
    'data': text('tfds', vocab_size=32000, rows=128, row_length=256),
    'model': {
      **TRANSFORMER,
      'd_model': 512,
      'd_ff': 2048,
      'heads': 8,
      'encoder_layers': 6,
      'decoder_layers': 6,
    },
    'train': run(steps=1_000_000, warmup=8000, every=10_000, average=10),
    'retrain': run(steps=1_000_000, warmup=8000, every=10_000, average=10),
    'freeze': run(steps=1_000_000, warmup=8000, every=10_000, average=10),
    'finetune': run(steps=1_000_000, warmup=8000, every=10_000, average=10),
    'heads': heads(d_ff=2048, layout='paper'),
    'distill': distill(max_len=(1, 50), shard_size=20_000, rows=256),
    'table': table(ks=(2, 4, 6, 8, 10), rules=(*RULES, *TREES), max_len=256, timed=100),
  }


def fconv(config, sizes):
  """What changes in a scale for FConv: the model, and that its base's kernels are trained as
  directions and lengths."""
  trained = ('train', 'retrain', 'finetune')
  runs = {name: {**config[name], 'weight_norm': True} for name in trained}
  return {'model': {**FCONV, **sizes}, **runs}


def text(
  kind,
  *,
  folder='',
  train='',
  dev='',
  test='',
  suffix='',
  vocab_size,
  rows,
  row_length,
  max_train=0,
):
  """Where the text is (kind 'files': folder/train.en<suffix> and so on), and how it is cut into
  batches."""
  return {
    'kind': kind,
    'folder': folder,
    'train': train,
    'dev': dev,
    'test': test,
    'suffix': suffix,
    'source': 'en',
    'target': 'de',
    'vocab_size': vocab_size,  # joint, SentencePiece
    'rows': rows,  # a batch packs sentences into rows x row_length tokens a side
    'row_length': row_length,
    'max_train': max_train,  # 0: all pairs
    'cache': 'out/data',  # prepared text; shared by all runs
    'distilled': '',  # folder of a finished experiments.distill: train on its train.en and train.de
    # the same, by the base itself and greedily (distill.beam=1): what regular and finetune train
    # heads on
    'own': '',
    # of both: several folders, with commas between them, are trained on together; own's first must
    # have beam=1
  }


def mesh(*, data=1, model=1):
  """Devices along each axis: rows are divided over data, parameters over model
  (fastdec/sharding.py)."""
  return {'data': data, 'model': model}


def run(
  *,
  steps,
  warmup,
  every,
  average=2,
  constant=2.0,
  rows=0,
  heads_rate=1.0,
  schedule='rsqrt',
  span=0.0,
):
  """One training run, by Adam and T2T v3's schedule: constant * d^-0.5 * min(1, t / warmup) *
  max(t, warmup)^-0.5.

  'noam' is T2T's older one. 'linear' and 'cosine' fall from a peak of `constant` itself to 0 at the
  last step.
  """
  return {
    'steps': steps,
    'schedule': schedule,
    'constant': constant,  # with a short warm-up the paper's 2.0 would peak too high
    'warmup': warmup,
    'label_smoothing': 0.1,
    'every': every,  # steps between evaluations and checkpoints
    'average': average,  # checkpoints whose mean is the result
    # the share of the run over which they stand, such as the last 0.05; 0: they stand `every` apart
    'span': span,
    'rows': rows,  # of a batch; 0: the text's. All heads at once train faster on small batches
    'accumulate': 1,  # parts of a batch computed one after the other, to save memory
    'b2': 0.997,  # Adam's, as in T2T v3
    'clip': 0.0,  # longer gradients are shortened to this norm; 0: none is
    # heads that train together with the base learn at this many times its rate
    'heads_rate': heads_rate,
    'weight_norm': False,  # kernels as directions and lengths (Salimans and Kingma 2016)
  }


def falling(*, steps, warmup, constant, every, rows=0, heads_rate=1.0):
  """A run whose rate falls from its peak `constant` to 0, averaged over its last twentieth."""
  short = {'steps': steps, 'warmup': warmup, 'every': every, 'rows': rows, 'heads_rate': heads_rate}
  return run(**short, schedule='linear', constant=constant, average=5, span=0.05)


def heads(
  *,
  d_ff,
  layout='separate',
  first='identity',
  p1_share=0.0,
  draw='one',
  decay=1.0,
  dropout=0.1,
  anchors=0,
  rooted=False,
  markov=0,
):
  """layout='paper' is the paper's dense layer; first='transformed' its p1 (see
  fastdec/heads/blockwise.py)."""
  return {
    'd_ff': d_ff,
    'layout': layout,
    'first': first,
    # of the loss in fine-tuning; 0: that of head 2, as in the paper. Short runs need more
    'p1_share': p1_share,
    # 'one' head's loss a minibatch, drawn at random, as in the paper; or 'all' of them
    'draw': draw,
    'decay': decay,  # each later head's loss counts this many times the one before
    'dropout': dropout,  # on the heads' hidden units and outputs; short runs need none
    # heads read the embedding of the root too (Ankner et al. 2024), which the paper's do not
    'rooted': rooted,
    # rank of a bias from the token guessed before, that puts each head's words in order; 0: none
    'markov': markov,
    # places of each row that all heads at once learn at, drawn anew in each step; 0: all places
    'anchors': anchors,
  }


def distill(*, max_len=(1, 20), shard_size=2000, rows=64):
  """How `experiments.distill` has a teacher rewrite the training text: beam 4, alpha 0.6, as
  Vaswani et al. 2017.

  With beam=1 it writes greedily: `data.own` asks for that. With samples=n it draws n outputs a
  source instead.
  """
  return {
    'beam': 4,
    'length_penalty': 0.6,
    # tokens of an output, its end too. With 1 a search finds nothing at all best for some sources
    'min_len': 2,
    # (a, b): a * source + b tokens. The paper's +50 costs time where sentences are short
    'max_len': max_len,
    'n_best': 1,  # outputs of a source
    # with beam=1: outputs drawn for a source at this temperature, by this seed; 0: none, it
    # searches
    'samples': 0,
    'temperature': 1.0,
    'seed': 0,
    # files of the source language, with commas between them, rewritten in place of the training
    # text
    'sources': '',
    'shard_size': shard_size,  # sources decoded between two points to resume from
    'rows': rows,  # sources decoded at once
  }


def table(
  *,
  ks,
  max_len,
  timed,
  regimes=REGIMES,
  rules=RULES,
  sentences=0,
  split='dev',
  rows=64,
  one_run=False,
):
  """Which cells, on what."""
  return {
    'ks': ks,
    'regimes': regimes,
    'rules': rules,
    'split': split,  # of Table 1; Table 4 and Figure 4 are about the test set
    'sentences': sentences,  # 0: all
    'max_len': max_len,
    'rows': rows,  # sentences decoded at once, for BLEU and block sizes
    'timed': timed,  # sentences timed one by one
    'repeats': 3,
    # one run for the largest k, with its first heads, serves all ks; the paper trains one for each
    'one_run': one_run,
  }
