"""The peer decodes what we decode: our parameters, written for CTranslate2, mean the same there."""

import json

import jax
import pytest

from fastdec import folders
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.models.transformer import Transformer, TransformerConfig

VARIANTS = [
  ('fastdec, greedy', 'float32', None),
  ('fastdec, blockwise k = 3', 'float32', None),
  ('CTranslate2', 'float32', 1),
  ('CTranslate2', 'int8', 1),
]
HABITS = [{}, {'positions': 'learned', 'attention_bias': True, 'activation': 'gelu'}]


@pytest.fixture
def workdir(table, tmp_path):
  """save(**settings): a model folder of the toy table's sizes whose parameters are all random,
  norms and biases too."""

  def save(**settings):
    sizes = {
      'd_model': 32,
      'd_ff': 64,
      'heads': 2,
      'encoder_layers': 1,
      'decoder_layers': 1,
      'max_positions': 128,
    }
    model = Transformer(TransformerConfig(vocab_size=300, **sizes | settings))
    leaves, tree = jax.tree.flatten(model.init(jax.random.key(0)))
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noisy = [x + 0.3 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)]
    params = tree.unflatten(noisy)
    # padding would often be the best token
    params['embedding'] = params['embedding'].at[0].multiply(4)
    heads = BlockwiseHeads(k=3, d_model=32, d_ff=32)
    tokenizer = table.folder / 'base' / 'model' / 'tokenizer.model'
    folders.save(
      tmp_path / 'random', model, params, tokenizer, (heads, heads.init(jax.random.key(2)))
    )
    return tmp_path / 'random'

  return save


@pytest.mark.parametrize('settings', HABITS, ids=['defaults', 'learned positions, biases, gelu'])
def test_a_random_model_writes_the_same_tokens_in_ctranslate2(table, launch, workdir, settings):
  pytest.importorskip(
    'ctranslate2', reason="CTranslate2 is not installed (pip install -e '.[benchmark]')"
  )
  folder = workdir(**settings)
  words = table.words(**{f'model.{name}': value for name, value in settings.items()})
  ended = launch('peers', *words, f'--workdir={folder}')
  assert (ended.code, ended.err) == (0, '')
  rows = [json.loads(line) for line in (folder / 'peers.jsonl').read_text().splitlines()]
  assert [(row['engine'], row['compute_type'], row['threads']) for row in rows] == VARIANTS
  assert [row['same_as_greedy'] for row in rows if row['compute_type'] == 'float32'] == [1.0] * 3
  assert (
    min(
      row['to_peer']
      for row in rows
      if row['engine'] == 'CTranslate2' and row['compute_type'] == 'float32'
    )
    == 1
  )
  assert all(
    row['ms_per_token'] > 0 and {'config', 'commit', 'CT2_USE_MKL'} <= row.keys() for row in rows
  )


@pytest.mark.parametrize(
  'settings, reason', [({'norm': 'post'}, 'only pre-norm'), ({'d_ff': 48}, 'other settings')]
)
def test_what_cannot_be_compared_is_a_sentence(table, launch, workdir, settings, reason):
  pytest.importorskip(
    'ctranslate2', reason="CTranslate2 is not installed (pip install -e '.[benchmark]')"
  )
  folder = workdir(**settings)
  ended = launch('peers', *table.words(), f'--workdir={folder}')
  assert ended.code == 2 and reason in ended.err and ended.err.count('\n') == 1
  assert not (folder / 'peers.jsonl').exists()
