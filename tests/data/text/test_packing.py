"""Packing loses nothing and splits nothing, and can be resumed anywhere."""

import threading
from collections import Counter

import grain
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdec.data.text import packing
from fastdec.data.text.packing import PackedSource, first_fit, packed_batches, tokenise
from fastdec.data.text.sentencepiece import Tokenizer
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.errors import UserError

LENGTHS = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), min_size=1, max_size=40)


def token_pairs(lengths: list[tuple[int, int]]) -> TokenPairs:
  """Pair i has the tokens from 10 i + 2 on both sides, then EOS, so that all pairs differ."""
  sequence = lambda i, length: [*range(10 * i + 2, 10 * i + length + 1), 1]
  source, target = ([sequence(i, pair[side]) for i, pair in enumerate(lengths)] for side in (0, 1))
  return TokenPairs(Ragged.of(source), Ragged.of(target))


def random_pairs(count: int = 300, longest: int = 30) -> TokenPairs:
  return token_pairs(np.random.default_rng(0).integers(1, longest + 1, (count, 2)).tolist())


def unpacked(batch: dict[str, np.ndarray]) -> Counter:
  """Returns the pairs of a batch according to its segments."""
  pairs = Counter()
  for row in range(len(batch['source'])):
    for segment in range(1, batch['source_segment'][row].max() + 1):
      inside = {side: batch[f'{side}_segment'][row] == segment for side in ('source', 'target')}
      pairs[tuple(tuple(batch[side][row][places]) for side, places in inside.items())] += 1
  return pairs


def pairs_of(tokens: TokenPairs) -> Counter:
  return Counter((tuple(tokens.source[i]), tuple(tokens.target[i])) for i in range(len(tokens)))


def test_a_batch_written_out():
  batch = packed_batches(token_pairs([(3, 2)]), rows=1, length=4, seed=0)[0]
  assert {name: array.tolist() for name, array in batch.items()} == {
    'source': [[2, 3, 1, 0]],
    'source_segment': [[1, 1, 1, 0]],
    'source_position': [[0, 1, 2, 0]],
    'target': [[2, 1, 0, 0]],
    'target_segment': [[1, 1, 0, 0]],
    'target_position': [[0, 1, 0, 0]],
  }


@given(LENGTHS, st.integers(1, 5), st.integers(8, 20), st.integers(0, 3))
def test_the_first_epoch_has_every_pair_once(lengths, rows, length, seed):
  tokens = token_pairs(lengths)
  source = PackedSource(tokens, rows, length, seed, kept={})
  batches = [source[i] for i in range(source.batches_per_epoch)]
  assert sum(map(unpacked, batches), Counter()) == pairs_of(tokens)


@given(LENGTHS, st.integers(1, 5), st.integers(8, 20), st.integers(0, 100))
def test_any_batch_is_well_formed(lengths, rows, length, index):
  batch = packed_batches(token_pairs(lengths), rows, length, seed=0)[index]
  for side in ('source', 'target'):
    tokens, segments, positions = batch[side], batch[f'{side}_segment'], batch[f'{side}_position']
    assert all(
      array.shape == (rows, length) and array.dtype == np.int32 for array in batch.values()
    )
    np.testing.assert_array_equal(tokens == 0, segments == 0)
    ends, begins = tokens == 1, (positions == 0) & (segments > 0)
    np.testing.assert_array_equal(begins[:, 1:], ends[:, :-1] & (segments[:, 1:] > 0))
    np.testing.assert_array_equal(np.cumsum(begins, axis=1) * (segments > 0), segments)
    steps = np.diff(positions, axis=1)
    assert (steps[(segments[:, 1:] > 0) & ~begins[:, 1:]] == 1).all()
  np.testing.assert_array_equal(batch['source_segment'].max(1), batch['target_segment'].max(1))


def test_later_epochs_are_shuffled_again_and_nearly_whole():
  tokens = random_pairs()
  source = PackedSource(tokens, rows=4, length=60, seed=0, kept={})
  epochs = [
    [source[epoch * source.batches_per_epoch + i] for i in range(source.batches_per_epoch)]
    for epoch in range(3)
  ]
  for batches in epochs:
    counts = sum(map(unpacked, batches), Counter())
    assert counts <= pairs_of(tokens)
    assert counts.total() >= 0.97 * len(tokens)
  assert not np.array_equal(epochs[0][0]['source'], epochs[1][0]['source'])


def test_rows_are_nearly_full():
  source = PackedSource(random_pairs(3000), rows=16, length=128, seed=0, kept={})
  filled = [source[i]['source_segment'] > 0 for i in range(source.batches_per_epoch)]
  assert np.mean(filled) > 0.93


def test_the_seed_decides_the_order():
  first = lambda seed: packed_batches(random_pairs(), rows=4, length=60, seed=seed)[0]['source']
  np.testing.assert_array_equal(first(1), first(1))
  assert not np.array_equal(first(1), first(2))


def test_an_iterator_resumes_exactly_through_orbax(tmp_path):
  dataset = packed_batches(random_pairs(), rows=4, length=60, seed=0)
  new_iterator = lambda: iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=0)))
  iterator = new_iterator()
  for _ in range(50):
    next(iterator)
  with ocp.CheckpointManager(tmp_path) as manager:
    manager.save(50, args=ocp.args.Composite(data=grain.checkpoint.CheckpointSave(iterator)))
    manager.wait_until_finished()
    resumed = new_iterator()
    manager.restore(50, args=ocp.args.Composite(data=grain.checkpoint.CheckpointRestore(resumed)))
  for _ in range(50):
    expected, batch = next(iterator), next(resumed)
    for name, array in expected.items():
      np.testing.assert_array_equal(batch[name], array)


def test_the_next_epoch_is_planned_during_this_one(monkeypatch):
  planned, tokens = [], random_pairs(60)

  def first_fit_by(lengths, length):
    planned.append(threading.current_thread())
    return first_fit(lengths, length)

  monkeypatch.setattr(packing, 'first_fit', first_fit_by)
  source = PackedSource(tokens, rows=4, length=60, seed=0, kept={})
  again = PackedSource(tokens, rows=4, length=60, seed=0, kept={})
  # the first epoch's, which says how many batches there are
  assert planned.count(threading.main_thread()) == 2
  for epoch in range(3):
    for index in range(source.batches_per_epoch):
      source[epoch * source.batches_per_epoch + index]
    source._plans[epoch + 1].result(timeout=600)  # before any of its batches is read
  assert len(planned) == 5 and planned.count(threading.main_thread()) == 2
  assert len(source._plans) <= 3
  last = 3 * source.batches_per_epoch
  # the same batch as when it is the first one read
  np.testing.assert_array_equal(source[last]['target'], again[last]['target'])


def test_a_plan_that_fails_fails_where_it_is_wanted(monkeypatch):
  source = PackedSource(random_pairs(60), rows=4, length=60, seed=0, kept={})
  monkeypatch.setattr(source, '_assign', None)
  source[0]
  with pytest.raises(TypeError):
    source[source.batches_per_epoch]


def test_first_fit_is_the_docstring_s():
  assert first_fit(np.array([[3, 2], [2, 2], [1, 1]]), 4).tolist() == [0, 1, 0]
  # the target side counts as well
  assert first_fit(np.array([[1, 3], [1, 2]]), 4).tolist() == [0, 1]


@pytest.mark.parametrize(
  ('lengths', 'rows', 'message'),
  [
    ([], 2, 'at least one pair'),
    ([(3, 9)], 2, 'has 9 tokens, a row 8'),
    ([(1, 1)], 0, 'batch of 0 rows'),
  ],
)
def test_what_cannot_be_packed_is_refused(lengths, rows, message):
  with pytest.raises(UserError, match=message):
    packed_batches(token_pairs(lengths), rows=rows, length=8, seed=0)


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
  path = tmp_path_factory.mktemp('tokenizer') / 'tokenizer.model'
  return Tokenizer.train(['one two three', 'eins zwei drei'], path, vocab_size=30)


PAIRS = [('one two', 'eins zwei'), ('', 'drei'), ('three three three', 'drei')]


def test_tokens_end_in_eos_on_both_sides(tokenizer: Tokenizer):
  tokens = tokenise(PAIRS, tokenizer)
  assert (len(tokens), tokens.dropped) == (3, 0)
  for i, (source, target) in enumerate(PAIRS):
    assert tokens.source[i].tolist() == [*tokenizer.encode(source), 1]
    assert tokens.target[i].tolist() == [*tokenizer.encode(target), 1]


def test_pairs_with_a_side_too_long_are_dropped_and_counted(tokenizer: Tokenizer):
  longest = len(tokenizer.encode('three three three')) + 1
  tokens = tokenise(PAIRS, tokenizer, max_length=longest - 1)
  assert (len(tokens), tokens.dropped) == (2, 1)
  assert tokenise(PAIRS, tokenizer, max_length=longest).dropped == 0


def test_chunks_and_those_with_nothing_kept_make_no_difference(tokenizer: Tokenizer, monkeypatch):
  pairs = [('three three three', 'drei'), *PAIRS, ('two', 'zwei')]
  limit = len(tokenizer.encode('three three three'))
  whole = tokenise(pairs, tokenizer, limit)
  monkeypatch.setattr(packing, 'CHUNK', 1)
  chunked = tokenise(iter(pairs), tokenizer, limit)
  assert chunked.dropped == whole.dropped == 2 and pairs_of(chunked) == pairs_of(whole)
  assert chunked.source.tokens.tolist() == whole.source.tokens.tolist()
  assert len(tokenise(pairs, tokenizer, max_length=0)) == len(tokenise([], tokenizer)) == 0
