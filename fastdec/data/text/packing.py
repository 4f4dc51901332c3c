"""Pairs of sentences to batches of one fixed shape: tokenised once, packed several to a row.

One shape means one compilation. A first-fit plan, made once for each (seed, epoch), decides which
pairs share a row (Krell et al. 2021, section 3). Batches are then read by index, so a training run
can resume at any index. In a row, source segment i and target segment i are a pair:

    source           [ 7 8 9 1 4 5 1 0 0 ]     target           [ 5 6 1 9 9 9 1 0 0 ]
    source_segment   [ 1 1 1 1 2 2 2 0 0 ]     target_segment   [ 1 1 1 2 2 2 2 0 0 ]
    source_position  [ 0 1 2 3 0 1 2 0 0 ]     target_position  [ 0 1 2 0 1 2 3 0 0 ]

Targets are not shifted: the model does that.
"""

import itertools
import sys
import threading
from collections.abc import Iterable, Mapping
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
Kept = Mapping[str, np.ndarray]  # 'source', 'target': data of each token of a side
CHUNK = 10_000  # pairs tokenised at once
OPEN_ROWS = 256  # rows that first fit considers; with four times as many they are 0.5 % fuller


def tokenise(
  pairs: Iterable[tuple[str, str]], tokenizer: Any, max_length: int | None = None
) -> TokenPairs:
  """Returns the ids of all pairs, EOS appended to both sides.

  Args:
    pairs: lines of source and target; they are encoded some thousand at a time.
    tokenizer: of any kind; its `encode_lines` ends each line.
    max_length: pairs with a longer side, EOS included, are left out and counted (None: none are).
  """
  pairs, sources, targets, dropped = iter(pairs), [], [], 0
  target_tokenizer = getattr(tokenizer, 'target', tokenizer)  # of a pair of dictionaries
  while chunk := list(itertools.islice(pairs, CHUNK)):
    source_ids = tokenizer.encode_lines([source for source, _ in chunk])
    target_ids = target_tokenizer.encode_lines([target for _, target in chunk])
    kept_sources, kept_targets = [], []
    for source, target in zip(source_ids, target_ids, strict=True):
      if max_length is None or max(len(source), len(target)) <= max_length:
        kept_sources.append(source)
        kept_targets.append(target)
    dropped += len(chunk) - len(kept_sources)
    sources.append(Ragged.of(kept_sources))
    targets.append(Ragged.of(kept_targets))
  return TokenPairs(Ragged.join(sources), Ragged.join(targets), dropped)


def packed_batches(
  tokens: TokenPairs, rows: int, length: int, seed: int, kept: Kept | None = None
) -> grain.MapDataset:
  """Makes endless training batches, by index: int32[rows, length] arrays named as above.

  Every epoch is a new shuffle of all pairs, packed again into the same number of batches (that of
  the first epoch's plan, rounded up). If a plan needs fewer rows than the batches have, the empty
  ones are scattered; if it needs a few more, these are left out of that epoch.

  Args:
    tokens: the pairs.
    rows: rows in a batch.
    length: tokens in a row, for source and for target.
    seed: of the shuffles.
    kept: arrays [tokens of the side, ...]; batches have their parts, such as 'target_kept'.

  Raises:
    UserError: rows is below 1, there is nothing to pack, or a pair is longer than a row.
  """
  if rows < 1:
    raise UserError(f'a batch of {rows} rows is not possible: give at least 1')
  if not len(tokens):
    raise UserError(
      'training needs at least one pair: give text, or longer rows if all were too long'
    )
  longest = tokens.lengths.max()
  if longest > length:
    raise UserError(
      f'a sentence has {longest} tokens, a row {length}: give longer rows or limit max_length'
    )
  return grain.MapDataset.source(PackedSource(tokens, rows, length, seed, kept or {}))


class _Plan(NamedTuple):
  """The pairs of each row: row i of the epoch has order[starts[i]:starts[i + 1]], in this order."""

  order: Int[np.ndarray, ' n']
  starts: Int[np.ndarray, ' rows_plus_1']


class PackedSource:
  """Batches by index, for Grain: index = epoch * batches_per_epoch + batch."""

  def __init__(self, tokens: TokenPairs, rows: int, length: int, seed: int, kept: Kept):
    self._tokens, self._rows, self._length, self._seed = tokens, rows, length, seed
    self._kept = kept
    self._lock = threading.Lock()  # Grain reads from several threads
    pairs, row = self._assign(0)
    self.batches_per_epoch = -(-int(row.max() + 1) // rows)
    self._plans: dict[int, Future[_Plan]] = {0: Future()}
    self._plans[0].set_result(self._scatter(0, pairs, row))

  def __len__(self) -> int:
    return sys.maxsize

  def __getitem__(self, index: int) -> Batch:
    epoch, batch = divmod(index, self.batches_per_epoch)
    # The next epoch's plan is made while this one's batches are read.
    order, starts = self._begin_plan(epoch).result()
    self._begin_plan(epoch + 1)
    # Find the pairs of the batch, and the row of each and its number within the row.
    starts = starts[batch * self._rows : (batch + 1) * self._rows + 1]
    pairs, counts = order[starts[0] : starts[-1]], np.diff(starts)
    row = np.repeat(np.arange(self._rows), counts)
    segment = 1 + np.arange(len(pairs)) - np.repeat(starts[:-1] - starts[0], counts)
    shape, batch = (self._rows, self._length), {}
    for name in ('source', 'target'):
      side: Ragged = getattr(self._tokens, name)
      batch |= _lay_out(name, side, self._kept.get(name), pairs, row, segment, shape)
    return batch

  def _assign(self, epoch: int) -> tuple[Int[np.ndarray, ' n'], Int[np.ndarray, ' n']]:
    """Returns the epoch's shuffle, and the row of each of its pairs."""
    pairs = np.random.default_rng((self._seed, epoch)).permutation(len(self._tokens))
    return pairs, first_fit(self._tokens.lengths[pairs], self._length)

  def _begin_plan(self, epoch: int) -> 'Future[_Plan]':
    """Returns an epoch's plan, which another thread makes."""
    with self._lock:
      if epoch not in self._plans:
        # Some readers are ahead of others, so the plans of two epochs before are kept.
        self._plans = {e: plan for e, plan in self._plans.items() if epoch - 2 <= e <= epoch}
        self._plans[epoch] = Future()
        # A daemon, so that a process can end without waiting for the plan.
        threading.Thread(target=self._make, args=(epoch, self._plans[epoch]), daemon=True).start()
      return self._plans[epoch]

  def _make(self, epoch: int, plan: 'Future[_Plan]') -> None:
    """Makes a plan, which takes half a minute for the pairs of WMT."""
    try:
      plan.set_result(self._scatter(epoch, *self._assign(epoch)))
    except BaseException as error:
      plan.set_exception(error)

  def _scatter(self, epoch: int, pairs: Int[np.ndarray, ' n'], row: Int[np.ndarray, ' n']) -> _Plan:
    """Assigns the rows to random places in the epoch's batches."""
    places = self.batches_per_epoch * self._rows
    rng = np.random.default_rng((self._seed, epoch, 1))
    place = rng.permutation(max(places, row.max() + 1))[row]
    by_place = np.argsort(place, kind='stable')
    return _Plan(pairs[by_place], np.searchsorted(place[by_place], np.arange(places + 1)))


def first_fit(lengths: Int[np.ndarray, 'n 2'], length: int) -> Int[np.ndarray, ' n']:
  """Returns the row of each pair: the first open row in which both sides fit.

  If none fits, a new row takes the place of the fullest one.

  (3, 2), (2, 2), (1, 1) with length 4 -> rows 0, 1, 0
  """
  free_source, free_target = free = np.full((2, OPEN_ROWS), length, np.int32)
  ids, opened = list(range(OPEN_ROWS)), OPEN_ROWS
  rows = np.empty(len(lengths), np.int64)
  for i, (source, target) in enumerate(lengths.tolist()):
    # argmax finds the first row that fits
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
  kept: np.ndarray | None,
  pairs: Int[np.ndarray, ' n'],
  row: Int[np.ndarray, ' n'],
  segment: Int[np.ndarray, ' n'],
  shape: tuple[int, int],
) -> Batch:
  """Lays out one side of a batch: tokens, segments, positions and `kept`."""
  # For each token: its position in the sentence, and its place in the flat array of rows.
  lengths = side.lengths[pairs]
  ends = np.cumsum(lengths)
  position = np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)
  # tokens of the batch in earlier rows
  rows_before = np.concatenate([[0], ends])[np.searchsorted(row, row)]
  flat = np.repeat(row * shape[1] - rows_before, lengths) + np.arange(lengths.sum())
  numbers = np.repeat(side.offsets[pairs], lengths) + position
  values = side.tokens[numbers], np.repeat(segment, lengths), position
  batch = {}
  for key, value in zip((name, f'{name}_segment', f'{name}_position'), values, strict=True):
    batch[key] = np.zeros(shape, np.int32)
    batch[key].ravel()[flat] = value
  if kept is not None:
    laid = np.zeros((shape[0] * shape[1], *kept.shape[1:]), kept.dtype)
    laid[flat] = kept[numbers]
    batch[f'{name}_kept'] = laid.reshape(*shape, *kept.shape[1:])
  return batch
