"""`experiments.evaluate --dtype`: a model in several types of numbers, on sentences, captions and
pictures."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

import fastdec as fd
from configs import celeba, speculative
from experiments import precision
from experiments.lab import rows
from experiments.lab.config import to_dataclass
from experiments.lab.workdir import Workdir
from experiments.leviathan2022 import Speculative
from experiments.stern2018.images import Table2
from fastdec import folders
from tests.experiments.conftest import ROOT, with_settings


def measured(folder):
  return {row['dtype']: row for row in rows.read(folder / 'types.jsonl')}


@pytest.fixture
def base(table, tmp_path):
  return shutil.copytree(table.folder / 'base', tmp_path / 'base')


@pytest.mark.slow
def test_a_translator_in_int8_compared_with_float32(table, launch, base):
  command = ('evaluate', *table.words(), f'--workdir={base}', '--dtype=int8')
  ended = launch(*command)
  assert ended.code == 0, ended.err
  rows_of = measured(base)
  assert list(rows_of) == ['float32', 'int8'] and 'int8' in ended.out and 'BLEU' in ended.out
  plain = rows_of['float32']
  assert (
    plain['same_texts'] == plain['same_tokens'] == 1 and plain['outputs'] == 6 and plain['nll'] > 0
  )
  assert plain['bleu_signature'] and plain['computes_in'] == 'float32'
  before = (base / 'types.jsonl').read_bytes()
  again = launch(*command)
  assert again.out == f'2 of 2 rows are there\n{ended.out}'
  assert (base / 'types.jsonl').read_bytes() == before


def test_figures_are_those_of_the_texts_one_by_one(translator, tmp_path, monkeypatch):
  """A different model is loaded for the other type, so that texts differ."""
  rng, most, load = np.random.default_rng(0), 4, fd.load
  sources, targets = (rng.integers(3, 30, (5, width)).astype(np.int32) for width in (4, 3))
  lengths = np.array([3, 2, 3, 1, 3])
  (model, params), (_, others) = load(translator), load(translator.parent / 'smaller')
  monkeypatch.setattr(
    precision.folders, 'load', lambda _, dtype: (model, others if dtype == 'int8' else params)
  )
  sample = precision.Sample('dev', sources, sources, targets, lengths, most, rows=4, scored=4)
  results = Workdir(tmp_path, file='types.jsonl')
  plain, other = precision.measure(translator, sample, ['int8'], results)
  written, own = (
    fd.decode(model, one, sources, fd.Greedy(), max_len=most) for one in (params, others)
  )
  choices = []
  for place in range(most):
    after = {'prefix': np.asarray(written.tokens)[:, :place]} if place else {}
    choices.append(
      np.asarray(fd.decode(model, others, sources, fd.Greedy(), **after, max_len=1).tokens)[:, 0]
    )
  is_same = np.stack(choices, 1) == written.tokens
  counts = np.arange(most) < np.asarray(written.lengths)[:, None]
  np.testing.assert_allclose(other['same_tokens'], is_same[counts].mean(), rtol=1e-6)
  assert other['same_texts'] == (own.tokens == written.tokens).all(1).mean()
  assert (
    other['same_tokens'] < 1
    and other['same_texts'] < 1
    and plain['same_tokens'] == plain['same_texts'] == 1
  )
  nats = [
    -fd.score(model, others, sources[i : i + 1], targets[i : i + 1, :n]).total[0]
    for i, n in enumerate(lengths)
  ]
  np.testing.assert_allclose(other['nll'], sum(nats) / 12, rtol=1e-5)


@pytest.mark.slow
def test_a_language_model_on_captions(launch, tmp_path):
  settings = {'data.cache': str(tmp_path / 'cache'), 'data.max_train': 200, 'data.vocab_size': 200}
  c = to_dataclass(
    Speculative, with_settings(speculative.get_config('scale=smoke,task=lm'), settings)
  )
  text = c.data.open()
  sizes = {'d_model': 8, 'd_ff': 12, 'heads': 2, 'layers': 1}
  model = text.model_of(dataclasses.replace(c.target.model, **sizes))
  folders.save(
    model, jax.jit(model.init)(jax.random.key(0)), tmp_path / 'lm', tokenizer=text.tokenizer_path
  )
  words = [
    f'--config={ROOT}/configs/speculative.py:scale=smoke,task=lm',
    *(f'--config.{k}={v}' for k, v in settings.items()),
  ]
  ended = launch('evaluate', *words, f'--workdir={tmp_path}/lm', '--dtype=float32,int8')
  assert ended.code == 0, ended.err
  plain, int8 = measured(tmp_path / 'lm').values()
  assert 'bleu' not in int8 and abs(int8['nll'] / plain['nll'] - 1) < 0.1
  assert int8['outputs'] == 8 and 0 <= int8['same_texts'] <= 1


@pytest.mark.slow
def test_a_model_of_pictures(launch, tmp_path):
  settings = {'data.max_train': 4, 'model.d_model': 16, 'model.d_ff': 8, 'model.heads': 1}
  config = celeba.get_config('scale=smoke')
  config.model.update(d_model=16, d_ff=8, heads=1)
  model = folders.model_of(to_dataclass(Table2, config).model)
  folders.save(model, jax.jit(model.init)(jax.random.key(0)), tmp_path / 'run')
  words = [
    f'--config={ROOT}/configs/celeba.py:scale=smoke',
    *(f'--config.{k}={v}' for k, v in settings.items()),
  ]
  ended = launch('evaluate', *words, f'--workdir={tmp_path}/run', '--dtype=int8')
  assert ended.code == 0, ended.err
  plain, int8 = measured(tmp_path / 'run').values()
  bits = plain['bits_per_dimension']
  assert 6 < bits < 12 and abs(int8['bits_per_dimension'] / bits - 1) < 0.1  # nothing is learnt
  assert 'nll' not in plain and plain['same_texts'] == 1


@pytest.mark.parametrize('words, message', [
  (['--dtype=int4'], '--dtype=int4 is not possible: give one or more of float32, bfloat16, int8'),
  (['--dtype=int8,int8'], 'each once'),
  (['--dtype='], 'is not possible'),
  (['--dtype=int8', '--config.data.max_train=190'], 'was trained on other text'),
])  # fmt: skip
def test_mistakes_are_one_sentence(table, launch, base, words, message):
  ended = launch('evaluate', *table.words(), f'--workdir={base}', *words)
  assert ended.code == 2 and message in ended.err, ended.err


def test_a_config_of_something_else(launch, tmp_path):
  words = (
    f'--config={ROOT}/configs/speculative.py:scale=smoke,task=translation',
    f'--workdir={tmp_path}',
  )
  ended = launch('evaluate', *words, '--dtype=int8')
  assert ended.code == 2 and 'give configs/wmt14.py, configs/celeba.py' in ended.err
  ended = launch('evaluate', *words)
  assert ended.code == 2 and 'this config has no table of rules' in ended.err


def test_the_table_says_each_type_once_and_what_is_not_measured_is_a_dash():
  plan = {**dict(zip(precision.KEY, ('LM', 'float32', 'test', 10, 60), strict=True)), 'nll': 2.5}
  plan |= {'same_texts': 1.0, 'same_tokens': 1.0}
  cells = [plan, {**plan, 'dtype': 'int8', 'nll': 2.6, 'same_tokens': 0.987}, {**plan, 'nll': 2.4}]
  drawn = precision.table(cells)
  assert [list(row) for row in drawn.rows] == [
    ['LM', 'float32', '–', '2.4000', '–', '100.0', '100.00'],
    ['LM', 'int8', '–', '2.6000', '–', '100.0', '98.70'],
  ]
