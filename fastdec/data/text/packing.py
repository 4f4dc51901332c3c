"""Pairs of sentences to batches of one fixed shape: tokenised once, packed several to a row.

One shape means one compilation. A first-fit plan made once for each (seed, epoch) says which pairs
share a row (Krell et al. 2021, section 3); batches are then read by index, so a training run
resumes at any batch by this index alone. In a row, source segment i and target segment i are a
pair:

    source           [ 7 8 9 1 4 5 1 0 0 ]     target           [ 5 6 1 9 9 9 1 0 0 ]
    source_segment   [ 1 1 1 1 2 2 2 0 0 ]     target_segment   [ 1 1 1 2 2 2 2 0 0 ]
    source_position  [ 0 1 2 3 0 1 2 0 0 ]     target_position  [ 0 1 2 0 1 2 3 0 0 ]

Targets are not shifted: the model does that.
"""

import itertools
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Int32

from fastdec import extras
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.errors import UserError

with extras.explained():
  import grain

Batch = dict[str, Int32[np.ndarray, 'r l']]
CHUNK = 10_000  # pairs tokenised at once
OPEN_ROWS = 256  # rows that first fit looks at; four times as many fill half a per cent more


def tokenise(
  pairs: Iterable[tuple[str, str]], tokenizer: Any, max_length: int | None = None
) -> TokenPairs:
  """The ids of all pairs, EOS appended to both sides, some thousand pairs at a time.

  Args:
    tokenizer: of any kind; its `encode_lines` ends each line.
    max_length: pairs with a longer side, EOS included, are left out and counted (None: none are).
  """
  pairs, parts, dropped = iter(pairs), ([], []), 0
  sides = (tokenizer, getattr(tokenizer, 'target', tokenizer))  # dictionaries are two
  while chunk := list(itertools.islice(pairs, CHUNK)):
    lines = zip(sides, zip(*chunk, strict=True), strict=True)
    encoded = zip(*(side.encode_lines(part) for side, part in lines), strict=True)
    kept = [pair for pair in encoded if max_length is None or max(map(len, pair)) <= max_length]
    dropped += len(chunk) - len(kept)
    # nothing kept has no sides
    for part, side in zip(parts, zip(*kept, strict=True), strict=False):
      part.append(Ragged.of(side))
  source, target = map(Ragged.joined, parts)
  return TokenPairs(source, target, dropped)


def packed_batches(tokens: TokenPairs, rows: int, length: int, seed: int) -> grain.MapDataset:
  """Training batches without end: int32[rows, length] arrays named as in the table above, by index.

  Every epoch is a new shuffle of all pairs, packed anew, in the same number of batches (that of the
  first epoch's plan, rounded up). Places for rows that a plan does not need lie scattered and
  empty; the few rows that a later plan may need more than there are places are left out of that
  epoch.

  Args:
    rows: rows in a batch.
    length: tokens in a row, for source and for target.

  Raises:
    UserError: no rows, no pairs, or a pair longer than a row.
  """
  if rows < 1:
    raise UserError(f'a batch of {rows} rows is not possible: give at least 1')
  if not len(tokens):
    raise UserError(
      'there are no pairs to train on: give text, or longer rows if all were too long'
    )
  longest = tokens.lengths.max()
  if longest > length:
    raise UserError(
      f'a sentence has {longest} tokens, a row {length}: give longer rows or limit max_length'
    )
  return grain.MapDataset.source(_PackedSource(tokens, rows, length, seed))


class _Plan(NamedTuple):
  """Pairs of each row: row i of the epoch holds order[starts[i]:starts[i + 1]], in this order."""

  order: Int[np.ndarray, ' n']
  starts: Int[np.ndarray, ' rows_plus_1']


class _PackedSource:
  """Batches by index, for Grain: index = epoch * batches_per_epoch + batch."""

  def __init__(self, tokens: TokenPairs, rows: int, length: int, seed: int):
    self._tokens, self._rows, self._length, self._seed = tokens, rows, length, seed
    self._lock = threading.Lock()  # Grain reads from several threads
    pairs, row = self._assign(0)
    self.batches_per_epoch = -(-int(row.max() + 1) // rows)
    self._plans: dict[int, Future[_Plan]] = {0: Future()}
    self._plans[0].set_result(self._scatter(0, pairs, row))

  def __len__(self) -> int:
    return sys.maxsize

  def __getitem__(self, index: int) -> Batch:
    epoch, batch = divmod(index, self.batches_per_epoch)
    order, starts = self._plan(epoch)
    starts = starts[batch * self._rows : (batch + 1) * self._rows + 1]
    pairs, counts = order[starts[0] : starts[-1]], np.diff(starts)
    row = np.repeat(np.arange(self._rows), counts)
    segment = 1 + np.arange(len(pairs)) - np.repeat(starts[:-1] - starts[0], counts)
    shape = self._rows, self._length
    return {
      **_lay_out('source', self._tokens.source, pairs, row, segment, shape),
      **_lay_out('target', self._tokens.target, pairs, row, segment, shape),
    }

  def _assign(self, epoch: int) -> tuple[Int[np.ndarray, ' n'], Int[np.ndarray, ' n']]:
    """The epoch's shuffle, and the row of each of its pairs."""
    pairs = np.random.default_rng((self._seed, epoch)).permutation(len(self._tokens))
    return pairs, first_fit(self._tokens.lengths[pairs], self._length)

  def _plan(self, epoch: int) -> _Plan:
    """The plan of an epoch. While its batches are read, that of the next one is made."""
    plan = self._begun(epoch).result()
    self._begun(epoch + 1)
    return plan

  def _begun(self, epoch: int) -> 'Future[_Plan]':
    with self._lock:
      if epoch not in self._plans:
        # readers run ahead
        self._plans = {e: plan for e, plan in self._plans.items() if epoch - 2 <= e <= epoch}
        self._plans[epoch] = Future()
        threading.Thread(target=self._make, args=(epoch, self._plans[epoch]), daemon=True).start()
      return self._plans[epoch]

  def _make(self, epoch: int, plan: 'Future[_Plan]') -> None:
    """Makes a plan, which takes half a minute for the pairs of WMT; nobody waits for it at the end
    of the process."""
    try:
      plan.set_result(self._scatter(epoch, *self._assign(epoch)))
    except BaseException as error:
      plan.set_exception(error)

  def _scatter(self, epoch: int, pairs: Int[np.ndarray, ' n'], row: Int[np.ndarray, ' n']) -> _Plan:
    """Scatters the rows over the places that the epoch's batches have."""
    places = self.batches_per_epoch * self._rows
    rng = np.random.default_rng((self._seed, epoch, 1))
    place = rng.permutation(max(places, row.max() + 1))[row]
    by_place = np.argsort(place, kind='stable')
    return _Plan(pairs[by_place], np.searchsorted(place[by_place], np.arange(places + 1)))


def first_fit(lengths: Int[np.ndarray, 'n 2'], length: int) -> Int[np.ndarray, ' n']:
  """The row of each pair: the first open one with room on both sides, else a new one for the
  fullest.

  (3, 2), (2, 2), (1, 1) with length 4 -> rows 0, 1, 0
  """
  free_source, free_target = free = np.full((2, OPEN_ROWS), length, np.int32)
  ids, opened = list(range(OPEN_ROWS)), OPEN_ROWS
  rows = np.empty(len(lengths), np.int64)
  for i, (source, target) in enumerate(lengths.tolist()):
    fits = (free_source >= source) & (free_target >= target)
    place = int(fits.argmax())
    if not fits[place]:
      place = int((free_source + free_target).argmin())
      ids[place], opened = opened, opened + 1
      free[:, place] = length
    free_source[place] -= source
    free_target[place] -= target
    rows[i] = ids[place]
  return rows


def _lay_out(
  name: str,
  side: Ragged,
  pairs: Int[np.ndarray, ' n'],
  row: Int[np.ndarray, ' n'],
  segment: Int[np.ndarray, ' n'],
  shape: tuple[int, int],
) -> Batch:
  """One side of a batch: its pairs' tokens, segments and positions, one behind the other in each
  row."""
  lengths = side.lengths[pairs]
  ends = np.cumsum(lengths)
  position = np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)
  # tokens of the batch ahead of the row
  rows_before = np.concatenate([[0], ends])[np.searchsorted(row, row)]
  flat = np.repeat(row * shape[1] - rows_before, lengths) + np.arange(lengths.sum())
  tokens = side.tokens[np.repeat(side.offsets[pairs], lengths) + position]
  values = tokens, np.repeat(segment, lengths), position
  batch = {}
  for key, value in zip((name, f'{name}_segment', f'{name}_position'), values, strict=True):
    batch[key] = np.zeros(shape, np.int32)
    batch[key].ravel()[flat] = value
  return batch
