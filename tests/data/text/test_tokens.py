"""Tokens on disk are read exactly as they were stored, or not at all."""

import numpy as np
import pytest

from fastdec.data.text.tokens import Ragged, TokenPairs

TOKENS = TokenPairs(
  Ragged.of([[5, 6, 1], [1], [7, 1]]), Ragged.of([[8, 1], [9, 9, 9, 1], [1]]), dropped=4
)


def listed(tokens: TokenPairs) -> list[list[list[int]]]:
  return [[side[i].tolist() for i in range(len(side))] for side in (tokens.source, tokens.target)]


@pytest.mark.parametrize(
  'tokens', [TOKENS, TokenPairs(Ragged.of([]), Ragged.of([]))], ids=['three', 'none']
)
def test_what_is_stored_comes_back_without_being_read(tokens, tmp_path):
  tokens.save(tmp_path / 'deep' / 'tokens.npy')
  stored = TokenPairs.load(tmp_path / 'deep' / 'tokens.npy')
  assert listed(stored) == listed(tokens) and stored.dropped == tokens.dropped
  assert (
    isinstance(stored.source.tokens.base.base, np.memmap) and stored.target.tokens.dtype == np.int32
  )
  assert [file.name for file in (tmp_path / 'deep').iterdir()] == ['tokens.npy']


def test_the_file_is_laid_out_as_the_docstring_says(tmp_path):
  TOKENS.save(tmp_path / 'tokens.npy')
  assert np.load(tmp_path / 'tokens.npy').tolist() == [
    3, 4, 3, 1, 2, 2, 4, 1, 5, 6, 1, 1, 7, 1, 8, 1, 9, 9, 9, 1, 1,
  ]  # fmt: skip


@pytest.mark.parametrize('damage', [
  lambda content: b'', lambda content: content[:-4],
  lambda content: content[:130], lambda content: content + b'1234',
  lambda content: b'PK' + content,
], ids=['empty', 'cut', 'no tokens', 'longer', 'no array'])  # fmt: skip
def test_a_damaged_file_is_none(tmp_path, damage):
  path = tmp_path / 'tokens.npy'
  TOKENS.save(path)
  path.write_bytes(damage(path.read_bytes()))
  stored = TokenPairs.load(path)
  assert stored is None or listed(stored) == listed(TOKENS)  # what follows the array is not its own


@pytest.mark.parametrize('array', [
  np.arange(20.0), np.array([2, 0, 1, 1], np.int32), np.array([9], np.int32),
  np.array([1, 0, 2, 1, 5, 1, 1, 1], np.int32),
  np.array(3, np.int32),
])  # fmt: skip
def test_another_array_is_none(tmp_path, array):
  np.save(tmp_path / 'tokens.npy', array)
  assert TokenPairs.load(tmp_path / 'tokens.npy') is None
  assert TokenPairs.load(tmp_path / 'nothing.npy') is None


def test_joined_parts_follow_one_another():
  joined = Ragged.join([Ragged.of([[1, 2], []]), Ragged.of([]), Ragged.of([[3]])])
  assert [joined[i].tolist() for i in range(len(joined))] == [[1, 2], [], [3]]
  assert joined.tokens.dtype == np.int32
