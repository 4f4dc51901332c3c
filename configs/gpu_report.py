"""What one NVIDIA GPU shows of fastdec, in ten minutes at a time: `experiments.gpu_report`, which
has this page as its default.

  python -m experiments.gpu_report --workdir=out/gpu --budget=540s
  [--config.data.folder=data/multi30k] python -m experiments.gpu_report
  --config=configs/gpu_report.py:scale=smoke --workdir=out/gpu-smoke

scale
  paper   the models' real shapes with random weights; for a GPU. 7b needs 13.5 GB of weights in bfloat16; a smaller
          device shows it as failed and goes on
  smoke   toy models, to see that all parts run; a few minutes on one core of a CPU

Parts, in their order: parity of float32 with the CPU; exact strategies against greedy decoding;
what calls cost against their width (configs/lm_speed.py); and, where data.folder is given, Table 1
trained on it (configs/wmt14.py:scale=multi30k). `seconds` says how much of the budget must be left
for a piece of a part to begin: guesses for one GPU, most of which is compiling.
"""

from configs import wmt14
from configs.common import locked, parse_arg

# Multi30k's
FILES = {
  'kind': 'files',
  'train': 'train',
  'dev': 'val',
  'test': 'test_2016_flickr',
  'suffix': '.gz',
}


def get_config(arg=''):
  """The config of a scale."""
  choice = parse_arg(arg, scale=('paper', 'smoke'))
  config = {'paper': paper, 'smoke': smoke}[choice.scale]()
  table1 = config['table1']
  data = {**table1.pop('data'), **FILES, 'folder': ''}  # a folder asks for Table 1
  return locked(scale=choice.scale, seed=0, **config | {'table1': table1, 'data': data})


def paper():
  """Real shapes."""
  return {
    'parity': sizes(words=8000, width=256, layers=4, rows=4, tokens=64),
    'exact': sizes(models=('lm', 'transformer'), words=16, width=64, layers=2, rows=8, tokens=64),
    'widths': {
      'shapes': ('1b', '7b', '110m'),
      'dtypes': ('bfloat16', 'int8'),
      'widths': (1, 2, 4, 8, 16, 32, 64),
    },
    'table1': wmt14.get_config('scale=multi30k').to_dict(),
    'seconds': {'parity': 20.0, 'exact': 10.0, 'widths': 120.0, 'training': 60.0, 'cells': 90.0},
  }


def smoke():
  """Every part in seconds."""
  real = paper()
  return {
    'parity': sizes(words=30, width=16, layers=1, rows=2, tokens=8),
    'exact': sizes(models=('lm',), words=8, width=16, layers=1, rows=2, tokens=12),
    'widths': {'shapes': ('smoke',), 'dtypes': real['widths']['dtypes'], 'widths': (1, 16)},
    'table1': wmt14.get_config('scale=smoke').to_dict(),
    'seconds': dict.fromkeys(real['seconds'], 0.0),
  }


def sizes(
  *, models=('lm', 'transformer', 'fconv', 't5', 'image'), words, width, layers, rows, tokens
):
  """Random models of one size; few words let random drafts be right now and then."""
  return {
    'models': models,
    'words': words,
    'width': width,  # of every kind
    'layers': layers,  # of every stack
    'rows': rows,  # prompts, or sources, of as many tokens as are written
    'tokens': tokens,
  }
