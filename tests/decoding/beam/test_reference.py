"""Beam search against what Hugging Face's `generate` wrote and scored, on a tiny Marian checkpoint
with its weights."""

from pathlib import Path

import numpy as np
import pytest

import fastdec as fd

FOLDER = Path(__file__).parents[4] / 'shared' / 'reference' / 'hf' / 'marian_tiny'
pytestmark = pytest.mark.skipif(
  not FOLDER.is_dir(), reason='needs ../shared/reference, which is not here'
)


@pytest.fixture(scope='module')
def marian():
  return fd.load(FOLDER)


@pytest.mark.parametrize(
  ('name', 'strategy'),
  [('greedy', fd.Greedy()), ('beam4', fd.Beam(4, length_penalty=fd.PowerPenalty(0.6)))],
  ids=['greedy', 'beam'],
)
def test_tokens_and_scores_are_theirs(marian, name, strategy):
  expected = np.load(FOLDER / 'expected.npz')
  theirs = expected[name][:, 1:]  # without the start token
  out = fd.decode(*marian, expected['source'], strategy, max_len=24)
  np.testing.assert_array_equal(np.asarray(out.tokens)[:, : theirs.shape[1]], theirs)
  if out.scores is not None:
    np.testing.assert_allclose(out.scores, expected['beam4_scores'], rtol=1e-5)


def test_a_greedier_search_would_not_pass(marian):
  """The case tells beam search from greedy decoding, and this length penalty from GNMT's."""
  expected = np.load(FOLDER / 'expected.npz')
  assert (expected['greedy'] != expected['beam4']).any()
  out = fd.decode(*marian, expected['source'], fd.Beam(4, length_penalty=0.6), max_len=24)
  assert not np.allclose(out.scores, expected['beam4_scores'], rtol=1e-3)
