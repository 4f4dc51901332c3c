"""Beam search against the texts and scores of Hugging Face's `generate`, on tiny checkpoints of
Marian and T5."""

from pathlib import Path

import numpy as np
import pytest

import fastdec as fd

FOLDER = Path(__file__).parents[4] / 'shared' / 'reference' / 'hf'
pytestmark = pytest.mark.skipif(
  not FOLDER.is_dir(), reason='needs ../shared/reference, which is not here'
)


@pytest.fixture(scope='module', params=['marian_tiny', 't5_tiny'])
def reference(request):
  """Model, parameters, and their texts and scores."""
  folder = FOLDER / request.param
  return *fd.load(folder), np.load(folder / 'expected.npz')


@pytest.mark.wide('marian_tiny')
def test_tokens_and_scores_are_theirs(reference):
  """The case tells beam search from greedy decoding."""
  model, params, expected = reference
  theirs = expected['beam4'][:, 1:]  # without the start token
  assert not np.array_equal(theirs, expected['greedy'][:, 1:])
  ends = np.isin(theirs, model.eos_ids)
  ended = np.cumsum(ends, axis=1) - ends > 0  # some pad with the end
  strategy = fd.Beam(4, length_penalty=fd.PowerPenalty(0.6))
  out = fd.decode(model, params, expected['source'], strategy, max_len=24)
  ours = np.asarray(out.tokens)[:, : theirs.shape[1]]
  np.testing.assert_array_equal(ours, np.where(ended, model.pad_id, theirs))
  np.testing.assert_allclose(out.scores, expected['beam4_scores'], rtol=1e-5)


@pytest.mark.slow
def test_the_scores_are_not_those_of_another_length_penalty(reference):
  model, params, expected = reference
  out = fd.decode(model, params, expected['source'], fd.Beam(4, length_penalty=0.6), max_len=24)
  assert not np.allclose(out.scores, expected['beam4_scores'], rtol=1e-3)
