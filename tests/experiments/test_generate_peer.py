"""The peer generates what we generate, and is timed beside us."""

import json
import sys

import jax
import numpy as np
import pytest

import fastdec as fd
from experiments.speed.peer_variants import load
from fastdec import folders
from fastdec.models.lm import LM, LMConfig
from fastdec.models.transformer import Transformer, TransformerConfig

PAGE = '--config=configs/generate_peer.py:scale=smoke'
STRATEGIES = ['greedy', 'draft model', 'draft = target', 'prompt lookup']


def test_random_models_write_the_same_tokens_in_transformers(launch, tmp_path):
  for name in ('torch', 'transformers'):
    pytest.importorskip(name, reason=f"{name} is not installed (pip install 'fastdec[benchmark]')")
  ended = launch('generate_peer', PAGE, f'--workdir={tmp_path}')
  assert (ended.code, ended.err) == (0, '')
  rows = [json.loads(line) for line in (tmp_path / 'generate_peer.jsonl').read_text().splitlines()]
  named = {(row['strategy'], row['engine']): row for row in rows}
  assert list(named) == [
    (name, engine) for name in STRATEGIES for engine in ('fastdec', 'transformers')
  ]
  assert {row['same_as_greedy'] for row in rows} == {1.0}
  calls = {key: (row['target_calls'], row['draft_calls']) for key, row in named.items()}
  assert calls['greedy', 'fastdec'] == calls['greedy', 'transformers'] == (12, 0)
  # Of gamma = 3 all is accepted: 1 + 4 + 4 + 3 tokens, and 4 + 4 + 4 of transformers, which drafts
  # after the prompt.
  assert calls['draft = target', 'fastdec'] == (4, 1 + 9)
  assert calls['draft = target', 'transformers'][0] == 3
  assert all(row['to_peer'] == 1 for row in rows if row['engine'] == 'transformers')
  assert all(
    row['ms_per_token'] > 0 and {'commit', 'torch', 'torch_threads', 'gamma'} <= row.keys()
    for row in rows
  )
  # the random folders are gone
  assert [file.name for file in tmp_path.iterdir()] == ['generate_peer.jsonl']


def test_a_package_that_is_missing_is_a_sentence(launch, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'torch', None)
  ended = launch('generate_peer', PAGE, f'--workdir={tmp_path / "new"}')
  assert ended.code == 2 and 'fastdec[benchmark]' in ended.err and ended.err.count('\n') == 1
  assert not (tmp_path / 'new').exists()


@pytest.mark.parametrize(
  ('words', 'reason'),
  [
    (['--draft=small'], 'nothing to draft for'),
    (['--model=absent'], 'no Hugging Face folder'),
    (['--config.gamma=0'], 'gamma=0'),
    (['--config.dtype=int8'], 'dtype'),
  ],
)
def test_a_mistake_is_a_sentence(launch, tmp_path, words, reason):
  ended = launch('generate_peer', PAGE, *words, f'--workdir={tmp_path / "new"}')
  assert ended.code == 2 and reason in ended.err and ended.err.count('\n') == 1
  assert not (tmp_path / 'new').exists()


def test_both_models_are_decoder_only_and_speak_of_the_same_words(tmp_path):
  def saved(name, model):
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    folders.save(
      tmp_path / name, model, jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes), None
    )
    return str(tmp_path / name)

  sizes = {'d_model': 8, 'd_ff': 8, 'heads': 2}
  lm = lambda words: LM(LMConfig(vocab_size=words, **sizes, layers=1, suppressed_ids=(3,)))
  first, second = saved('first', lm(20)), saved('second', lm(21))
  model, _ = load({'model': first, 'draft': first}, 'float32')['draft']
  assert (model.eos_ids, model.suppressed_ids) == ((), ())
  with pytest.raises(fd.UserError, match='the model has 20 tokens and the draft model 21'):
    load({'model': first, 'draft': second}, 'float32')
  encoder = Transformer(
    TransformerConfig(vocab_size=20, **sizes, encoder_layers=1, decoder_layers=1)
  )
  with pytest.raises(fd.UserError, match='holds a Transformer'):
    load({'model': saved('third', encoder)}, 'float32')
