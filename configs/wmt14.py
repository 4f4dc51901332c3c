"""Blockwise parallel decoding for translation: Stern, Shazeer, Uszkoreit 2018, Tables 1 and 4,
Figure 4 (WMT14 en-de). The settings, with their defaults, are
experiments/stern2018/text.py:Translation.

  python -m experiments.table1   --config=configs/wmt14.py:scale=tiny --workdir=out/tiny

So do table4, figure4 and example. For one run of Table 1: experiments.train, with k and regime.

scale (2 cores: time for the whole of table1; what to expect)
  tiny       the embedded corpus, without distillation, and heads that see more than the paper's;
             about 9 minutes
  smoke      the same at toy size with all four regimes: every step runs, nothing is learnt; about
             a minute
  multi30k   Multi30k from data/multi30k (--config.data.folder=...), heads that see more than the
             paper's: the base under an hour, heads two and a half hours more by one core; base 35
             BLEU. The table and its commands: docs/results/multi30k.md
  wmt14      the paper's sizes and text, as TFDS has prepared it; or --config.data.kind=archives
             with --config.data.folder=... (see fastdec/data/text/wmt14.py): not for a CPU. The
             paper: base 25.56 BLEU, k = 10 on distilled data, fine-tuned: 25.60 at a mean accepted
             block size of 4.95
  wmt14-day  the same text and model for a day on 8 GPUs: see `wmt14_day` for what differs and what
             to expect. wmt14-day,rehearsal: every stage of it, with 1/1000 of the steps and the
             text, and a toy model; on a CPU too

regime (the paper's columns; k=1 is the base, with regime=distil the base trained on)
  regular    heads on the frozen base
  distil     heads on the frozen base, all on a teacher's translations
  finetune   heads and base trained together
  both       heads and base trained together on a teacher's translations

model (with any scale; --workdir of its own)
  transformer  the paper's, tensor2tensor's transformer_base
  fconv        Gehring et al. 2017, fairseq's fconv: multi30k as fconv_iwslt_de_en at half its
               width, wmt14 as fconv_wmt_en_de; trained by Adam with weight normalisation, where
               fairseq has Nesterov's method
"""

import dataclasses
from typing import Any

from configs import presets
from experiments.lab.cli import Paper
from experiments.lab.config import config_of, parse_arg
from experiments.lab.own import DistillConfig
from experiments.lab.text import TextConfig
from experiments.lab.train import HeadsConfig
from experiments.stern2018.text import RULES, TREES, TableConfig, Translation, table1
from fastdec.models.fconv import FConvConfig
from fastdec.models.transformer import TransformerConfig
from fastdec.training.run import RunConfig

PAPER = Paper(
  Translation,
  table1,
  axes={'k': 'table.ks', 'regime': 'table.regimes', 'rule': 'table.rules'},
  figures=(
    ('Mean block', 'mean_block_size', '.2f'),
    ('BLEU', 'bleu', '.2f'),
    ('Speed-up', 'speedup', '.2f'),
  ),
)


def get_config(arg=''):
  """The config of a scale; k, regime and base say which run of Table 1 `experiments.train` does."""
  scales = {'tiny': tiny, 'smoke': smoke, 'multi30k': multi30k, 'wmt14': wmt14}
  scales['wmt14-day'] = wmt14_day
  regimes, models = ('regular', 'distil', 'finetune', 'both'), ('transformer', 'fconv')
  choice = parse_arg(arg, scale=tuple(scales), model=models, k=1, regime=regimes, rehearsal=False)
  settings = scales[choice.scale]()
  if choice.rehearsal:
    settings = rehearsal(settings)
  if choice.model == 'fconv':
    settings = fconv(settings, choice.scale)
  return config_of(settings, scale=choice.scale, k=choice.k, regime=choice.regime)


def tiny():
  """The embedded corpus: 20,000 generated pairs. A decoder of 6 layers, as the paper's: 24 MB of
  weights are read for every token, so that a call on a few tokens costs little more than a call on
  one."""
  sizes: Any = {'d_model': 256, 'd_ff': 1024, 'heads': 4, 'encoder_layers': 1}
  for name in ('dropout', 'attention_dropout', 'activation_dropout'):
    sizes[name] = 0.0  # two epochs forget nothing
  return Translation(
    data=TextConfig(vocab_size=2000, rows=16),
    model=TransformerConfig(**sizes),
    train=RunConfig.falling(steps=210, warmup=50, constant=3e-3, every=105, b2=0.98),
    retrain=RunConfig.falling(steps=150, warmup=30, constant=1e-3, every=150),
    freeze=RunConfig.falling(steps=80, warmup=10, constant=2e-3, every=80),
    finetune=RunConfig.falling(
      steps=180, warmup=30, constant=2e-3, every=90, heads_rate=2.0, b2=0.98
    ),
    heads=seeing_heads(d_ff=128),
    table=TableConfig(
      ks=(2, 4, 8),
      regimes=('regular', 'finetune'),
      rules=('exact', 'top-2', 'top-3'),
      max_len=64,
      timed=12,
      sentences=256,
      one_run=True,
    ),
  )


def smoke():
  """Every step of `tiny` in seconds."""
  short = RunConfig(steps=6, warmup=3, every=3)
  return Translation(
    data=TextConfig(vocab_size=600, rows=8, max_train=400),
    model=TransformerConfig(d_model=32, d_ff=64, heads=2, encoder_layers=1, decoder_layers=1),
    train=RunConfig(steps=20, warmup=10, every=10),
    retrain=short,
    freeze=short,
    finetune=short,
    heads=HeadsConfig(d_ff=32, draw='all', dropout=0.0),
    distill=DistillConfig(beam=2, shard_size=200),
    table=TableConfig(
      ks=(2,), rules=('exact', 'top-2', 'min-2', 'tree-8'), max_len=24, timed=1, sentences=32
    ),
  )


def multi30k():
  """Real captions: 29,000 pairs. Fine tuning on people's text was measured after half as many steps
  (the page)."""
  falling = RunConfig.falling
  return Translation(
    data=presets.captions('translation'),
    model=presets.target('translation'),
    train=presets.target_run('translation'),
    retrain=falling(steps=1500, warmup=60, constant=1e-3, every=500, rows=16),
    freeze=falling(steps=2000, warmup=60, constant=2e-3, every=500, rows=16),
    finetune=falling(steps=5000, warmup=100, constant=1e-3, every=1000, rows=16, heads_rate=2.0),
    heads=seeing_heads(d_ff=512),
    table=TableConfig(
      ks=(2, 4, 6, 8, 10),
      rules=(*RULES, *TREES),
      max_len=80,
      timed=30,
      split='test',
      rows=50,
      one_run=True,
    ),
  )


def wmt14():
  """The paper's: transformer_base on 8 GPUs of 4,096 tokens, 1,000,000 steps, and as many again for
  each k."""
  long = RunConfig(steps=1_000_000, warmup=8000, every=10_000, average=10)
  return Translation(
    data=TextConfig(kind='tfds', vocab_size=32000, rows=128, row_length=256),
    model=TransformerConfig(),
    train=long,
    retrain=long,
    freeze=long,
    finetune=long,
    heads=HeadsConfig(d_ff=2048, layout='paper'),
    distill=DistillConfig(max_len=(1, 50), shard_size=20_000, rows=256),
    table=TableConfig(ks=(2, 4, 6, 8, 10), rules=(*RULES, *TREES), max_len=256, timed=100),
  )


def wmt14_day():
  """WMT14 in a day on 8 H100s; `--plan` says what each stage takes.

  It differs from the paper: bfloat16 with float32 weights; batches six times as large, so that
  100,000 steps of the base see 60 % of the tokens of the paper's million; one run for the largest k
  serves all, with separate heads that all learn at once at 64 places of a row; rates of heads fall
  to 0. Expect the paper's order of figures, not its figures: there 25.56 BLEU of the base on
  newstest2013; k = 8, distilled: blocks of 1.91 on a frozen base and 4.69 fine-tuned, at 26.11 BLEU
  (Stern et al. 2018, Table 1). Tensor2Tensor names 28 BLEU on newstest2014 for this base after half
  as many tokens. In bfloat16 near ties may flip, so exact rows may differ from greedy ones.
  """
  heads: Any = {'warmup': 1000, 'every': 2500}
  return dataclasses.replace(
    wmt14(),
    data=TextConfig(kind='tfds', vocab_size=32000, rows=768, row_length=256),
    model=TransformerConfig(dtype='bfloat16'),
    train=RunConfig(steps=100_000, warmup=8000, every=2500, average=10),
    retrain=RunConfig.falling(steps=30_000, constant=5e-4, **heads),
    freeze=RunConfig.falling(steps=20_000, constant=1e-3, **heads),
    finetune=RunConfig.falling(steps=50_000, constant=5e-4, heads_rate=2.0, **heads),
    heads=HeadsConfig(d_ff=2048, p1_share=0.5, draw='all', anchors=64),
    distill=DistillConfig(max_len=(1, 50), shard_size=20_000, rows=1024),
    table=dataclasses.replace(wmt14().table, one_run=True),
  )


def rehearsal(settings):
  """A scale with 1/1000 of its steps and text, and a toy model."""
  sizes: Any = {'d_model': 64, 'd_ff': 128, 'heads': 2, 'encoder_layers': 1, 'decoder_layers': 2}
  data = TextConfig(vocab_size=600, rows=16, max_train=4500)
  table: Any = {'ks': (2, 10), 'rules': ('exact', 'top-2', 'tree-8'), 'max_len': 24}
  settings = presets.rehearsal(settings, data, sizes, sentences=32, **table)
  distill = dataclasses.replace(settings.distill, max_len=(1, 4), rows=64)
  return dataclasses.replace(settings, distill=distill)


def seeing_heads(d_ff):
  """Heads that see the root and the token guessed before, all trained at once, on some places."""
  return HeadsConfig(
    d_ff=d_ff, p1_share=0.5, draw='all', decay=0.8, dropout=0.0, anchors=16, rooted=True, markov=64
  )


def fconv(settings, scale):
  """A scale for FConv: another model, whose base's kernels are trained as directions and
  lengths."""
  runs = {}
  for name in ('train', 'retrain', 'finetune'):
    runs[name] = dataclasses.replace(getattr(settings, name), weight_norm=True)
  return dataclasses.replace(settings, model=FCONV[scale], **runs)


def convolutions(width, encoder, decoder):
  """FConv of one width."""
  layers = {'encoder_layers': ((width, 3),) * encoder, 'decoder_layers': ((width, 3),) * decoder}
  return FConvConfig(d_embed=width, d_out=width, is_tied=True, **layers)  # tied as the Transformer


FCONV = {
  'tiny': convolutions(128, 2, 2),
  'smoke': convolutions(32, 1, 1),
  'multi30k': convolutions(128, 4, 3),
  'wmt14': FConvConfig(),  # fairseq's fconv_wmt_en_de
  'wmt14-day': FConvConfig(dtype='bfloat16'),
}
