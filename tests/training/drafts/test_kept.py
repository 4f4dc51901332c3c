"""Kept features are equal to computed ones, on any batch, also after a stop."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastdec.data.text.packing import PackedSource
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.training.drafts import kept
from tests.training.drafts.small import MODELS, bound
from tests.training.fakes import VOCAB

TAPS = (1, 2)


@pytest.fixture
def tokens():
  rng = np.random.default_rng(0)
  sides = [
    [rng.integers(4, VOCAB, size=n).tolist() for n in rng.integers(2, 7, size=9)] for _ in range(2)
  ]
  return TokenPairs(*map(Ragged.of, sides))


@pytest.mark.parametrize('task', ['translation', 'lm'])
def test_kept_features_are_those_of_a_batch(task, tokens, tmp_path, monkeypatch):
  target = bound(MODELS[task])
  calls = []
  place = kept.write_json

  def stopped(path, record):
    calls.append(record['batches'])
    place(path, record)
    if calls == [0, 1]:
      raise KeyboardInterrupt

  monkeypatch.setattr(kept, 'write_json', stopped)
  numbers = kept.number_tokens(tokens)
  batches = PackedSource(tokens, 1, 8, 0, numbers)
  same = {'target': target, 'taps': TAPS, 'batches': batches, 'numbers': numbers}
  with pytest.raises(KeyboardInterrupt):
    kept.keep_states(tmp_path, **same)
  kept.keep_states(tmp_path, **same)
  stored = kept.open_states(tmp_path)
  assert calls[:3] == [0, 1, 2]  # it continues
  batch = jax.tree.map(jnp.asarray, PackedSource(tokens, 2, 12, 3, stored)[1])
  seen = kept.read_batch(batch, target, TAPS).features
  plain = {name: value for name, value in batch.items() if not name.endswith('_kept')}
  expected = kept.read_batch(plain, target, TAPS).features
  is_real = {'target': batch['target_segment'] != 0, 'source': batch['source_segment'] != 0}
  sides = ['target', 'target', 'target', *(['source'] if task == 'translation' else [])]
  states, others = jax.tree.leaves(seen), jax.tree.leaves(expected)
  assert len(states) == len(others) == len(sides)
  for side, x, y in zip(sides, states, others, strict=True):
    np.testing.assert_allclose(x[is_real[side]], y[is_real[side]], rtol=2**-7, atol=1e-5)


def test_what_takes_too_much_of_the_disk_is_not_kept(tokens, tmp_path, monkeypatch):
  monkeypatch.setattr(shutil, 'disk_usage', lambda path: shutil._ntuple_diskusage(9, 9, 9))
  numbers = kept.number_tokens(tokens)
  batches = PackedSource(tokens, 1, 8, 0, numbers)
  target = bound(MODELS['lm'])
  kept.keep_states(tmp_path, target=target, taps=TAPS, batches=batches, numbers=numbers)
  assert kept.open_states(tmp_path) is None
