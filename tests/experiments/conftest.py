"""Launchers run in this process, as often as a test likes, and one small table that all tests here
share."""

import dataclasses
import io
import os
import runpy
import sys
from pathlib import Path

import pytest
from absl import flags

from fastdec.files import locked

ROOT = Path(__file__).parent.parent.parent


@dataclasses.dataclass(frozen=True)
class Ended:
  """How a command ended. A bug is no Ended: it is raised."""

  code: int
  out: str
  err: str


@pytest.fixture
def launch(monkeypatch, capfd):
  """launch('translate', '--workdir=w', 'a sentence', stdin=b'') -> Ended"""

  def launch(name, *words, stdin=b''):
    monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(stdin)))
    capfd.readouterr()
    code = run(name, *words)
    return Ended(code, *capfd.readouterr())

  return launch


def run(name, *words):
  """Runs a launcher as `python -m experiments.<name> words` would; its flags are gone afterwards.
  The exit code."""
  file = f'experiments/{name}.py'
  argv, sys.argv = sys.argv, [file, *map(str, words)]
  cores = os.sched_getaffinity(0)
  try:
    runpy.run_module(f'experiments.{name}', run_name='__main__')
  except SystemExit as end:
    return end.code or 0
  finally:
    sys.argv = argv
    os.sched_setaffinity(0, cores)
    own = {flag.name for flag in flags.FLAGS.flags_by_module_dict().get(file, ())}
    for flag in own | {flag for flag in flags.FLAGS if flag.startswith('config.')}:
      delattr(flags.FLAGS, flag)
  raise AssertionError('a launcher ends its process')


def with_settings(config, settings):
  """The config with other leaves, as --config.a.b=... would set them, but of any type."""
  config = config.unlock()
  for name, value in settings.items():
    *parts, leaf = name.split('.')
    place = config
    for part in parts:
      place = place[part]
    place[leaf] = value
  return config


SETTINGS = {
  'data.max_train': 200,
  'data.vocab_size': 300,
  'model.max_positions': 128,
  'train.steps': 4,
  'train.every': 2,
  'freeze.steps': 4,
  'freeze.every': 2,
  'retrain.steps': 4,
  'retrain.every': 2,
  'finetune.steps': 4,
  'finetune.every': 2,
  'table.ks': (2,),
  'table.regimes': ('regular', 'finetune'),
  'table.rules': ('exact', 'top-2'),
  'table.sentences': 6,
  'table.timed': 1,
  'table.repeats': 1,
  'table.max_len': 16,
}


@dataclasses.dataclass(frozen=True)
class Table:
  """A finished table, and the words that made it."""

  folder: Path
  cache: Path

  def words(self, choices='', **changed):
    """`--config=` and all that follows, but for --workdir."""
    settings = SETTINGS | {'data.cache': self.cache} | changed
    page = f'{ROOT}/configs/wmt14.py:' + ','.join(filter(None, ('scale=smoke', choices)))
    return [f'--config={page}', *(f'--config.{name}={value}' for name, value in settings.items())]


@pytest.fixture(scope='session')
def together(tmp_path_factory, worker_id):
  """A folder of this run of the tests, shared by pytest's processes (xdist gives each a folder of
  its own in it)."""
  own = tmp_path_factory.getbasetemp()
  return own if worker_id == 'master' else own.parent


@pytest.fixture(scope='session')
def table(together):
  """Table 1 at toy size: the base, k = 2 frozen and fine-tuned, five cells. Tests that write copy
  it first."""
  table = Table(together / 'table' / 'run', together / 'table' / 'cache')
  finished = together / 'table.finished'
  with locked(together / 'table.lock'):  # one process makes it for all
    if not finished.exists():
      assert run('table1', *table.words(), f'--workdir={table.folder}') == 0
      finished.touch()
  return table


@pytest.fixture(scope='session')
def translator(tmp_path_factory):
  """The folder of a model without training, with heads. Beside it: 'smaller', which reads alike;
  'short', which reads less far; 'other', of another tokenizer; 'wide' and 'wordy', Medusa heads for
  other models."""
  import jax
  import numpy as np

  from fastdec import folders
  from fastdec.folders import medusa
  from fastdec.heads.blockwise import BlockwiseHeads
  from fastdec.heads.medusa import MedusaHeads
  from fastdec.models.transformer import Transformer, TransformerConfig
  from fastdec.tokenizers.sentencepiece import Tokenizer

  place = tmp_path_factory.mktemp('models')
  sizes = dict(d_model=8, d_ff=12, heads=2, encoder_layers=1, decoder_layers=1)
  module = BlockwiseHeads(k=3, d_model=8, d_ff=6)
  heads = (module, jax.jit(module.init)(jax.random.key(3)))
  model = Transformer(TransformerConfig(vocab_size=30, max_positions=32, **sizes))
  init = jax.jit(model.init)
  Tokenizer.train(
    ['a dog runs', 'ein Hund rennt', 'the cat sits', 'die Katze sitzt'],
    place / 'pieces',
    vocab_size=30,
  )
  folders.save(model, init(jax.random.key(0)), place / 'model', heads, tokenizer=place / 'pieces')
  smaller = init(jax.random.key(1))
  folders.save(model, smaller, place / 'smaller', heads, tokenizer=place / 'pieces')
  short = Transformer(TransformerConfig(vocab_size=30, max_positions=4, **sizes))
  folders.save(short, smaller, place / 'short', tokenizer=place / 'pieces')
  Tokenizer.train(['zu viel', 'quer', 'hin'], place / 'others', vocab_size=18)
  other = Transformer(TransformerConfig(vocab_size=18, max_positions=32, **sizes))
  zeros = jax.tree.map(
    lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(other.init, jax.random.key(0))
  )
  folders.save(other, zeros, place / 'other', tokenizer=place / 'others')
  for name, module in (
    ('wide', MedusaHeads(2, d_model=6)),
    ('wordy', MedusaHeads(2, d_model=8, vocab_size=31)),
  ):
    shapes = jax.eval_shape(module.init, jax.random.key(0))
    medusa.save_heads(
      place / name, (module, jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)), 'another'
    )
  return place / 'model'


@pytest.fixture(scope='session')
def networks(translator):
  """Untrained draft networks for the translator, by their kind."""
  import jax

  import fastdec as fd
  from fastdec.heads.block import BlockNetwork
  from fastdec.heads.eagle import EagleNetwork
  from fastdec.training.drafts.start import layers_like

  model, _ = fd.load(translator)
  sizes = {'layers': layers_like(model, 1), 'vocab_size': 30, 'd_target': 8}
  found = {}
  for kind, module in (
    ('eagle', EagleNetwork(**sizes)),
    ('block', BlockNetwork(**sizes, k=4, markov=2)),
  ):
    found[kind] = translator.parent / kind
    fd.save_draft(found[kind], (module, jax.jit(module.init)(jax.random.key(5))))
  return found
