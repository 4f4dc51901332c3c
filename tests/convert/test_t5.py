"""T5 from Hugging Face's tensors equals what `transformers` computed with them: logits, greedy, beams and scores."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.convert import t5

FOLDER = Path(__file__).parents[3] / 'shared' / 'reference' / 'hf' / 't5_tiny'
needs_reference = pytest.mark.skipif(not FOLDER.is_dir(), reason='needs ../shared/reference, which is not here')

CONFIG = {
  'model_type': 't5', 'd_model': 12, 'd_kv': 4, 'd_ff': 16, 'num_heads': 2, 'num_layers': 1, 'num_decoder_layers': 2,
  'vocab_size': 17, 'feed_forward_proj': 'gated-gelu', 'tie_word_embeddings': False, 'pad_token_id': 0,
  'eos_token_id': 1, 'decoder_start_token_id': 0, 'is_encoder_decoder': True, 'dropout_rate': 0.0,
}  # fmt: skip


@pytest.fixture(scope='module')
def loaded():
  from safetensors.numpy import load_file

  read = lambda name: json.loads((FOLDER / name).read_text())
  model = t5.model_of(read('config.json'), read('generation_config.json'), 'float32')
  return model, t5.params_of(model, load_file(FOLDER / 'model.safetensors')), np.load(FOLDER / 'expected.npz')


@needs_reference
def test_logits_are_theirs(loaded):
  model, params, expected = loaded

  @jax.jit
  def logits(params, source, target):
    cache = model.init_cache(params, model.encode(params, source), *target.shape)
    return model.unembed(params, model.apply(params, target, fd.models.api.causal(target.shape[1]), cache)[0])

  ours = logits(params, jnp.asarray(expected['source']), jnp.asarray(expected['target']))
  theirs = expected['logits']
  assert abs(ours - theirs).max() / abs(theirs).max() < 1e-5
  np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-4)


@needs_reference
@pytest.mark.parametrize(
  ('name', 'strategy'),
  [('greedy', fd.Greedy()), ('beam4', fd.Beam(4, length_penalty=fd.PowerPenalty(0.6)))],
  ids=['greedy', 'beam'],
)
def test_tokens_and_scores_are_theirs(loaded, name, strategy):
  model, params, expected = loaded
  theirs = expected[name][:, 1:]  # without the start token
  out = fd.decode(model, params, expected['source'], strategy, max_len=24)
  ended = np.cumsum(theirs == 1, axis=1) - (theirs == 1) > 0  # theirs pad beams with the end
  np.testing.assert_array_equal(np.asarray(out.tokens)[:, : theirs.shape[1]], np.where(ended, 0, theirs))
  if out.scores is not None:
    np.testing.assert_allclose(out.scores, expected['beam4_scores'], rtol=1e-5)
    assert (expected['greedy'][:, : theirs.shape[1]] != expected['beam4'][:, :-1]).any()
