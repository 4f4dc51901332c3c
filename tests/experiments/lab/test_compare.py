"""Batches of prompts for comparisons with plain decoding."""

import numpy as np

from experiments.lab.compare import Counts, count_tokens, make_batches, regroup
from fastdec.decoding.protocol import Decoded

PAD = 0


def prompts_of(*lengths, width=64):
  rows = np.zeros((len(lengths), width), np.int32)
  for row, length in zip(rows, lengths, strict=True):
    row[:length] = np.arange(2, 2 + length)
  return rows


def test_each_batch_is_as_wide_as_its_longest_prompt_asks_for():
  prompts = prompts_of(40, 3, 17, 16)
  (short, _), (long, _) = make_batches(prompts, 2, PAD, None)
  assert short.shape == (2, 16) and (short == prompts[[1, 3], :16]).all()
  assert long.shape == (2, 64) and (long == prompts[[0, 2]]).all()
  assert [one.shape for one, _ in make_batches(prompts[:, :48], 1, PAD, None)] == [
    (1, 16),
    (1, 16),
    (1, 32),
    (1, 48),
  ]


def test_prompts_that_fill_no_batch_are_left_out_and_few_are_repeated():
  batches = make_batches(prompts_of(5, 4, 3, 2, 1), 2, PAD, None)
  assert [(one != PAD).sum(1).tolist() for one, _ in batches] == [[2, 1], [4, 3]]
  ((filled, _),) = make_batches(prompts_of(4, 3), 4, PAD, None)
  assert sorted((filled != PAD).sum(1).tolist()) == [3, 3, 4, 4]


def test_a_prompt_may_begin_with_the_id_that_pads():
  prompts = np.concatenate([np.full((3, 1), PAD, np.int32), prompts_of(16, 3, 1)], axis=1)
  assert count_tokens(prompts, PAD).tolist() == [17, 4, 2]
  assert [one.shape for one, _ in make_batches(prompts, 1, PAD, None)] == [
    (1, 16),
    (1, 16),
    (1, 32),
  ]


def decoded(*calls):
  """Texts of two tokens a call, after the first one."""
  calls = np.array(calls, np.int32)
  n = len(calls)
  sizes = np.where(np.arange(9) < calls[:, None], 2, 0)
  return Decoded(np.zeros((n, 9)), 1 + sizes.sum(1), sizes, calls, calls, np.ones(n, bool))


def test_a_batch_of_any_size_runs_until_its_slowest_text_ends():
  texts = [decoded(1, 4, 2), decoded(3, 5)]
  groups = regroup(texts, 2)
  assert [group.calls.tolist() for group in groups] == [[1, 4], [2, 3]]
  counts = Counts.of(groups)
  assert (counts.later, counts.per_step) == (2 * 10, 20 / (4 + 3))
  assert Counts.of(regroup(texts, 1)).per_step == 2
  assert [group.calls.tolist() for group in regroup(texts, 9)] == [[1, 4, 2, 3, 5]]
