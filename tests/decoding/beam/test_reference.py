"""Beam search against what Hugging Face's `generate` wrote and scored, on tiny checkpoints of
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
  """Model, parameters, and what was computed with them."""
  folder = FOLDER / request.param
  return *fd.load(folder), np.load(folder / 'expected.npz')


@pytest.mark.parametrize(('name', 'strategy'), [
  ('greedy', fd.Greedy()), ('beam4', fd.Beam(4, length_penalty=fd.PowerPenalty(0.6))),
], ids=['greedy', 'beam'])  # fmt: skip
def test_tokens_and_scores_are_theirs(reference, name, strategy):
  model, params, expected = reference
  theirs = expected[name][:, 1:]  # without the start token
  ends = np.isin(theirs, model.eos_ids)
  ended = np.cumsum(ends, axis=1) - ends > 0  # some pad with the end
  out = fd.decode(model, params, expected['source'], strategy, max_len=24)
  ours = np.asarray(out.tokens)[:, : theirs.shape[1]]
  np.testing.assert_array_equal(ours, np.where(ended, model.pad_id, theirs))
  if out.scores is not None:
    np.testing.assert_allclose(out.scores, expected['beam4_scores'], rtol=1e-5)


@pytest.mark.wide('t5_tiny')
def test_a_greedier_search_would_not_pass(reference):
  """The case tells beam search from greedy decoding, and this length penalty from GNMT's."""
  model, params, expected = reference
  n = min(expected['greedy'].shape[1], expected['beam4'].shape[1])
  assert (expected['greedy'][:, :n] != expected['beam4'][:, :n]).any()
  out = fd.decode(model, params, expected['source'], fd.Beam(4, length_penalty=0.6), max_len=24)
  assert not np.allclose(out.scores, expected['beam4_scores'], rtol=1e-3)
