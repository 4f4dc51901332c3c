"""Rows of an experiment are found again by the content of everything that decides them."""

import shutil
import types

import jax
import pytest

import fastdec as fd
from experiments.lab.bench import Bench, Texts
from experiments.lab.text import Text, TextConfig
from fastdec.data.text.corpus import open_text
from fastdec.data.text.sentencepiece import Tokenizer
from fastdec.heads.eagle import EagleNetwork
from fastdec.models.lm import LM, LMConfig
from fastdec.training.drafts.start import layers_like

MODEL = LM(LMConfig(vocab_size=24, d_model=8, d_ff=12, heads=2, layers=1))
NETWORK = EagleNetwork(layers=layers_like(MODEL, 1), vocab_size=24, d_target=8)


def save(folder, name, seed=1, words='a dog runs'):
  """Trains a model or a draft network: by other seeds it gets other parameters."""
  if name == 'network':
    fd.save_draft(folder / name, (NETWORK, NETWORK.init(jax.random.key(seed))))
    return
  tokenizer = Tokenizer.train([words, 'the cat sits'], folder / 'pieces', vocab_size=24)
  fd.save(MODEL, MODEL.init(jax.random.key(seed)), folder / name / 'model', tokenizer=tokenizer)


@pytest.fixture
def key(tmp_path, monkeypatch):
  """key() of a row that a target, a draft model and a draft network decide."""
  monkeypatch.setattr(Bench, 'text', types.SimpleNamespace(content='abc'))
  (tmp_path / 'run').mkdir()
  for name in ('target', 'draft', 'network'):
    save(tmp_path / 'run', name)

  def key(root=tmp_path / 'run', **texts):
    models = root / 'draft', root / 'network'
    return Bench(root / 'target', TextConfig(), Texts(**texts)).key(models=models)

  return key


@pytest.mark.parametrize('name, changed', [
  ('target', {'seed': 2}), ('draft', {'seed': 2}), ('network', {'seed': 2}),
  ('target', {'words': 'a boy reads'}), ('draft', {'words': 'a boy reads'}),
])  # fmt: skip
def test_a_model_that_is_trained_again_gives_other_rows(key, tmp_path, name, changed):
  before = key()
  assert key(shutil.copytree(tmp_path / 'run', tmp_path / 'moved')) == before == key()
  save(tmp_path / 'run', name, **changed)
  after = key()
  assert {field for field in after if after[field] != before[field]} == {'models'}


def test_settings_of_the_texts_are_in_the_key(key):
  for name, value in {'sentences': 7, 'max_len': 9, 'repeats': 1, 'split': 'dev'}.items():
    assert key(**{name: value}) == {**key(), name: value}


@pytest.mark.parametrize(
  'file', ['text/train.en', 'text/test.de', 'own/train.de', 'own/train-1.npy']
)
def test_text_that_changes_gives_other_rows(tmp_path, file):
  """People's, and that of a model, from which pools of n-grams are made."""
  for name in ('text/train', 'text/dev', 'text/test', 'own/train'):
    for language in ('en', 'de'):
      path = tmp_path / f'{name}.{language}'
      path.parent.mkdir(exist_ok=True)
      path.write_text('a dog\n')
  (tmp_path / 'own' / 'train-1.npy').write_text('ids')
  splits = {'train': 'train', 'dev': 'dev', 'test': 'test'}
  config = TextConfig(
    'files', f'{tmp_path}/text', **splits, own=f'{tmp_path}/own', cache=f'{tmp_path}/cache'
  )
  contents = []
  for line in ('a dog\n', 'a dog\n', 'the cat sits\n'):
    (tmp_path / file).write_text(line)
    people = open_text(config.data, config.cache)
    contents.append(Text(config, people, None, None).content)
  assert contents[0] == contents[1] != contents[2]
