"""Blockwise parallel decoding for super-resolution: Stern, Shazeer, Uszkoreit 2018, Tables 2 and 3,
Figure 4 (CelebA).

  python -m experiments.table2      --config=configs/celeba.py:scale=tiny --workdir=out/images
  python -m experiments.human_eval  --workdir=out/images --serve
  python -m experiments.upscale     --workdir=out/images/k4-finetune photo.png
  python -m experiments.train       --config=configs/celeba.py:scale=tiny --workdir=out/base
  python -m experiments.train       --config=configs/celeba.py:k=4 --config.base=out/base --workdir=out/k4

Heads that learn from what the base itself writes, which is what exact acceptance asks of them:

  python -m experiments.train   --config=configs/celeba.py:scale=tiny --workdir=out/face/base
  python -m experiments.distill --config=configs/celeba.py:scale=tiny --teacher=out/face/base
  --workdir=out/face-own
  python -m experiments.table2  --config=configs/celeba.py:scale=tiny --config.data.own=out/face-own --workdir=out/face

8 x 8 pixels become 32 x 32, one intensity after another: 3,072 tokens an image; or 16 x 16, a
quarter of them.

scale (2 cores: time for the whole of table2; what to expect)
  tiny       windows of photographs that come with scikit-image; about ten minutes
  smoke      the same at toy size: every step runs, nothing is learnt; about a minute
  faces16    real faces in an npz, shrunk to 16 x 16 (--config.data.path=.../faces32.npz), heads that see more than the
             paper's, one run for all k: about two hours by one core, see docs/results/faces16.md
  faces32    the same recipe for the faces as they are, without those that have a black corner, and a base that is told
             a forecast: three hours and a half by one core, see docs/results/faces32.md
  celeba     the paper's: img2img_transformer_b3 on CelebA as TFDS has prepared it; not for a CPU. The paper: k = 10,
             fine-tuned, approximate: a mean accepted block size of 6.79

regime (the paper's columns)
  regular    heads on the frozen base; with acceptance within 2 intensities: Approximate
  finetune   heads and base trained together; with acceptance within 2 intensities: Both

Beside the paper's acceptance within 2 stands the same with each guess at the middle of the five
intensities that are likeliest together (the rule window-2); and, for a base whose inputs tell a
forecast of each intensity (all scales but faces16 and celeba), blocks that this forecast guesses,
without heads (table.forecast).
"""

from configs.common import locked, parse_arg
from configs.wmt14 import falling, heads, mesh, run

REGIMES = ('regular', 'finetune')
SMALL = {  # dropout is for the paper's million steps
  'norm': 'pre',
  'activation': 'relu',
  'attention_bias': False,
  'dropout': 0.0,
  'attention_dropout': 0.0,
  'activation_dropout': 0.0,
  'block_length': 96,  # a row of pixels: what lies above is in sight
  'dtype': 'float32',
}
TOLD = {'grid': True, 'forecast': True}  # what inputs tell besides, which the paper's do not


def get_config(arg=''):
  """The config of a scale; k, regime and base say which run of Table 2 `experiments.train` does."""
  scales = {'tiny': tiny, 'smoke': smoke, 'faces16': faces16, 'faces32': faces32, 'celeba': celeba}
  choice = parse_arg(arg, scale=tuple(scales), k=1, regime=REGIMES)
  config = scales[choice.scale]()
  chosen = {'scale': choice.scale, 'k': choice.k, 'regime': choice.regime}
  # that a base writes in experiments.distill; 0: of all
  written = {'images': 0} | config.pop('distill', {})
  return locked(task='images', **chosen, base='', seed=0, mesh=mesh(), distill=written, **config)


def tiny():
  """2,000 windows of four photographs."""
  return {
    'data': images('embedded', rows=2),
    'model': {
      **SMALL,
      **TOLD,
      'd_model': 64,
      'd_ff': 256,
      'heads': 2,
      'encoder_layers': 1,
      'decoder_layers': 2,
    },
    'train': trained(steps=400, warmup=50, every=100, constant=0.15),
    'freeze': trained(steps=150, warmup=25, every=50, constant=0.1),
    'finetune': trained(steps=150, warmup=25, every=50, constant=0.05),
    'heads': heads(d_ff=128, p1_share=0.5, draw='all', dropout=0.0),
    'table': table(ks=(2, 4), taus=(1, 2, 4), images=8, rows=8, timed=1, forecast=(4, 10)),
  }


def smoke():
  """Every step of `tiny` in seconds."""
  return {
    **tiny(),
    'data': images('embedded', rows=2, max_train=20),
    'model': {
      **SMALL,
      **TOLD,
      'd_model': 32,
      'd_ff': 32,
      'heads': 2,
      'encoder_layers': 1,
      'decoder_layers': 1,
    },
    'train': trained(steps=4, warmup=2, every=2),
    'freeze': trained(steps=2, warmup=2, every=2),
    'finetune': trained(steps=2, warmup=2, every=2),
    'heads': heads(d_ff=16, draw='all', dropout=0.0),
    'table': table(ks=(2, 4), taus=(2, 8), images=2, rows=2, timed=1, forecast=(4,)),
  }


def faces16():
  """The same faces at 16 x 16: 768 tokens an image, a quarter of the cost, so that two cores train
  a model of them."""
  sizes = {'size': 16, 'block_length': 48, 'grid': True, 'd_model': 128, 'd_ff': 512, 'heads': 4}
  layers = {'encoder_layers': 1, 'decoder_layers': 3}
  return {
    'data': images('npz', path='data/faces32/faces32.npz', rows=4, side=16, mirrored=True),
    'model': {**SMALL, **sizes, **layers},
    'train': annealed(steps=5000, warmup=200, constant=2e-3, every=500),
    'freeze': annealed(steps=600, warmup=50, constant=1e-3, every=200),
    'finetune': annealed(steps=3000, warmup=50, constant=7e-4, every=500, heads_rate=2.0),
    'heads': heads(
      d_ff=256,
      p1_share=0.5,
      draw='all',
      decay=0.9,
      dropout=0.0,
      anchors=128,
      rooted=True,
      markov=64,
    ),
    'table': table(
      ks=(2, 4, 6, 8, 10), taus=tuple(range(9)), images=64, rows=32, timed=2, one_run=True
    ),
  }


def faces32():
  """Real faces as they are: 3,072 tokens an image, so fewer images a step, and fewer steps."""
  small = faces16()
  return {
    'data': images(
      'npz', path='data/faces32/faces32.npz', rows=2, mirrored=True, black_corners=False, moved=1
    ),
    'model': {**small['model'], **TOLD, 'size': 32, 'block_length': 96},
    'distill': {'images': 2400},  # what fine-tuning sees once
    'train': annealed(steps=4800, warmup=200, constant=2e-3, every=400),
    'freeze': annealed(steps=400, warmup=50, constant=1e-3, every=200),
    'finetune': annealed(steps=1200, warmup=50, constant=7e-4, every=200, heads_rate=2.0),
    'heads': small['heads'],
    'table': {
      **small['table'],
      'taus': (1, 2, 4, 6, 8),
      'images': 32,
      'timed': 4,
      'forecast': (2, 4, 6, 8, 10, 16, 24),
    },
  }


def celeba():
  """The paper's: 1,000,000 steps of 2 images on each of 8 GPUs, and 250,000 for each k."""
  return {
    'data': images('tfds', rows=16),
    'model': {
      **SMALL, 'norm': 'post', 'dropout': 0.1, 'block_length': 128,
      'd_model': 512, 'd_ff': 2048, 'heads': 8, 'encoder_layers': 4, 'decoder_layers': 8,
    },
    'train': trained(steps=1_000_000, warmup=12_000, every=10_000, average=10, constant=0.2, schedule='noam'),
    'freeze': trained(steps=250_000, warmup=12_000, every=10_000, average=10, constant=0.2, schedule='noam'),
    'finetune': trained(steps=250_000, warmup=12_000, every=10_000, average=10, constant=0.2, schedule='noam'),
    'heads': heads(d_ff=2048, layout='paper'),
    'table': table(ks=(2, 4, 6, 8, 10), taus=tuple(range(9)), images=0, rows=64, timed=16),
  }  # fmt: skip


def images(
  kind,
  *,
  path='',
  folder='',
  rows,
  max_train=0,
  side=32,
  mirrored=False,
  black_corners=True,
  moved=0,
):
  """Where the images are, and how many make a batch."""
  return {
    'kind': kind,
    'path': path,  # of kind npz
    'folder': folder,  # of kind tfds: its data_dir
    'rows': rows,
    'max_train': max_train,  # 0: all
    # pixels of the images that are written: 32, or 16, to which they are shrunk as they are read
    'side': side,
    'mirrored': mirrored,  # every other training image is, drawn anew each time
    # of kind npz; False: without images that have one, as pictures that were turned
    'black_corners': black_corners,
    # intensities by which those of training images are moved at most, drawn anew each time
    'moved': moved,
    'cache': 'out/data',  # where processes that open the same data wait for one another
    # folder of a finished experiments.distill by the base: heads, with the base or not, learn from
    # that
    'own': '',
  }


def trained(**settings):
  """One training run; see `configs/wmt14.py`. Images have no label smoothing, and T2T gives Adam
  another b2."""
  return {**run(**settings), 'label_smoothing': 0.0, 'b2': 0.98}


def annealed(**settings):
  """A run whose rate falls to 0, without label smoothing; see `falling` in `configs/wmt14.py`."""
  return {**falling(**settings), 'label_smoothing': 0.0, 'b2': 0.98}


def table(*, ks, taus, images, rows, timed, one_run=False, forecast=()):
  """Which cells, on what."""
  return {
    'ks': ks,
    'regimes': REGIMES,
    # acceptance within this many intensities, for the largest k; the table's own 2 is always there
    'taus': taus,
    'split': 'dev',
    'images': images,  # 0: all
    'rows': rows,  # images decoded at once
    'timed': timed,  # images timed one by one, evenly spaced
    'repeats': 3,
    # block sizes that the base's linear forecast guesses (model.forecast=True), without heads
    'forecast': forecast,
    # one run for the largest k, with its first heads, serves all ks; the paper trains one for each
    'one_run': one_run,
  }
