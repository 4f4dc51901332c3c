"""Outputs that differ from plain greedy decoding: the gap at that place, by known laws, and whether
it is a near tie."""

import numpy as np
import pytest

import fastdec as fd
from fastdec.evaluation.agreement import check_gaps, find_gaps
from fastdec.models.ngram import NGram
from tests.evaluation.test_acceptance import P, bigram, texts

MODEL = NGram(4, successors=4)  # 1 is the end
PROMPTS = np.array([[0], [2], [3]])


def test_the_gap_is_that_of_the_two_tokens_where_a_row_parts():
  plain, ours = texts([2, 3, 0, 1], [3, 1], [0, 3, 3, 1]), texts([2, 2, 3, 3], [3, 1], [0, 3, 0, 1])
  gaps = find_gaps((MODEL, bigram(P)), PROMPTS, ours, plain)
  np.testing.assert_allclose(gaps, [np.log(0.7 / 0.2), np.log(0.5 / 0.1)], rtol=1e-5)
  assert find_gaps((MODEL, bigram(P)), PROMPTS, plain, plain).shape == (0,)


@pytest.mark.parametrize(
  'ours', [[2, 3, 0, 1, 2, 3], [2, 3], [2, 0, 1]], ids=['too long', 'too short', 'impossible']
)
def test_rounding_explains_neither_a_different_length_nor_an_impossible_token(ours):
  plain = texts([2, 3, 0, 1])
  assert find_gaps((MODEL, bigram(P)), PROMPTS[:1], texts(ours), plain).tolist() == [np.inf]


def test_only_near_ties_pass_and_half_precision_is_not_judged():
  check_gaps(np.array([]), 8, 'float32')
  check_gaps(np.array([2e-5, 9e-5]), 8, 'float32')
  with pytest.raises(fd.UserError, match=r'1 of 8 outputs differ .* leads by up to 0.25 in logits'):
    check_gaps(np.array([2e-5, 0.25]), 8, 'float32')
  with pytest.raises(fd.UserError, match='1 of 8 outputs differ'):
    check_gaps(np.array([np.nan]), 8, 'float64')
  check_gaps(np.array([0.25, np.inf]), 8, 'bfloat16')
