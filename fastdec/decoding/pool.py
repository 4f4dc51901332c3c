"""Decoding of a data set: finished rows make room for others, so none waits for the longest.

Sources are sorted by length and cut into groups of one padded width. A group goes through a pool of
rows, which runs in one program until a quarter of its rows is finished. These leave with their
results, and new sources take their places. A width needs one compiled program, and another each
time its caches grow, for any number of sources: the same exchange fills the pool. The last sources
leave together, since none are left to replace them. If all sources fit into one pool, they also
start together. Unused rows hold fillers that are finished from the start.

    sources 0..5, two rows, one exchanged at a time (- is a filler)
    pool     0 -   0 1   2 1   2 3   4 3   4 5
    leaves           0     1     2     3     4 5

For a list that somebody waits for (`sizes.LISTED`), pools have 4, 16, 64, ... rows, so that lists
of all lengths share a few programs. A list gets programs of its own where these cost less than the
padding: `LEAST_POOLFULS`, or prompts that begin with the same `LONG_SHARED` tokens, which are read
once.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from fastdec.decoding.inputs import find_shared, read_rows
from fastdec.decoding.law import LawMaker
from fastdec.decoding.protocol import Decoded
from fastdec.decoding.request import Settings, prepare
from fastdec.decoding.run import NOBODY, Run
from fastdec.decoding.settings import Whole, count
from fastdec.decoding.sizes import BATCH, PROMPTS, Ladders, choose_widths
from fastdec.decoding.strategy import Strategy
from fastdec.errors import UserError
from fastdec.kernels.sharding import check_rows as check_divides
from fastdec.models.api import Model, Params

EXCHANGED = 4  # a pool's rows leave by quarters
LEAST_POOLFULS = 8  # of a group: another width must save more than its compilation costs
LONG_SHARED = 256  # tokens: to read them once saves more than compilation costs


@dataclasses.dataclass(frozen=True)
class Finished:
  """Rows that have left the pool."""

  indices: Int[np.ndarray, ' m']  # of their sources
  decoded: Decoded  # of NumPy arrays with m rows
  row_calls: int  # calls of the target times rows of the pool, since the last rows left


def decode_each(
  model: Model,
  params: Params,
  inputs: Any,
  strategy: Strategy | str,
  max_len: Whole | Sequence[Whole] | None = None,
  rows: Whole = 64,
  key: Any = None,
  max_new_tokens: Whole | Sequence[Whole] | None = None,
  processors: LawMaker | None = None,
  constraint: LawMaker | None = None,
  logprobs: Whole = 0,
) -> Iterator[Finished]:
  """Decodes any number of inputs as `decode`, the longest first, and yields them as they end.

  Args:
    model, params, strategy, max_len, max_new_tokens, processors, constraint, logprobs: see
      `decode`. Where it takes a setting for each row, give one for each input.
    inputs: the ids of each, without padding, in a list or an array: source ids, or prompts of a
      decoder-only model.
    rows: most inputs decoded at once, on all devices of a mesh together. A multiple of 4 times the
      devices along 'data' is used whole.
    key: for strategies that sample; input i draws like row i of one batch of all inputs.

  Yields:
    `Finished`: some rows with the indices of their inputs, in NumPy arrays.

  Raises:
    UserError: as `decode`, before anything is decoded; rows < 1, or not a multiple of the devices
      along 'data'.
  """
  settings = Settings(max_len, max_new_tokens, key, processors, constraint, logprobs)
  return decode_list(model, params, inputs, strategy, rows, settings, BATCH)


def decode_all(*args: Any, **kwargs: Any) -> Decoded:
  """Decodes as `decode_each`, and returns all in the order of the inputs, as NumPy arrays."""
  return in_order(decode_each(*args, **kwargs))


def in_order(parts: Iterable[Finished]) -> Decoded:
  """Joins the parts that `decode_each` yields, in the order of the inputs, as NumPy arrays.

  Raises:
    UserError: nothing was decoded.
  """
  parts = list(parts)
  if not parts:
    raise UserError('there is nothing to decode: give at least one input')
  order = np.argsort(np.concatenate([part.indices for part in parts]))
  return jax.tree.map(lambda *x: np.concatenate(x)[order], *(part.decoded for part in parts))


def groups_of(lengths: Int[np.ndarray, ' n'], least: int) -> list[Int[np.ndarray, ' m']]:
  """Returns indices of sources, longest first, in groups of at least `least`, one width a group.

  The widths of these sources are 16, 64, 16 and 32:

  >>> lengths = np.array([9, 40, 3, 20])
  >>> [group.tolist() for group in groups_of(lengths, least=1)]
  [[1], [3], [0, 2]]
  >>> [group.tolist() for group in groups_of(lengths, least=2)]
  [[1, 3], [0, 2]]
  """
  order = np.argsort(-lengths, kind='stable')
  widths = choose_widths(PROMPTS, lengths[order])
  groups, start = [], 0
  while start < len(order):
    end = max(start + least, int((widths == widths[start]).nonzero()[0][-1]) + 1)
    end = end if len(order) - end >= least else len(order)
    groups.append(order[start:end])
    start = end
  return groups


def decode_list(
  model: Model,
  params: Params,
  inputs: Any,
  strategy: Strategy | str,
  rows: Whole,
  settings: Settings,
  ladders: Ladders,
) -> Iterator[Finished]:
  """Decodes as `decode_each`, in sizes of a policy."""
  rows = count('rows', rows, 1, '1 or more')
  if isinstance(inputs, Sized) and not len(inputs):
    return iter(())
  request = prepare(model, params, inputs, strategy, settings)
  unit = 1 if request.mesh is None else request.mesh.shape['data']
  check_divides(rows, unit)

  # Choose the sizes: programs that lists share, or the list's own.
  lengths = np.array([len(row) for row in read_rows(model, request.prompt)])
  sizes = request.choose_sizes(ladders)
  if sizes.ladders.joint:
    is_long = len(lengths) >= LEAST_POOLFULS * rows
    if is_long or find_shared(request.target.module, request.prompt).shared >= LONG_SHARED:
      sizes = request.choose_sizes(dataclasses.replace(BATCH, outputs=ladders.outputs))

  # A short list gets a smaller pool. Its size is a power of two, or of four, since each size needs
  # a program.
  octaves = (len(lengths) - 1).bit_length()
  if sizes.ladders.joint:
    octaves = 2 * max(-(-octaves // 2), 1)
  rows = min(rows, -(-(2**octaves) // unit) * unit)
  quarter = rows
  if sizes.ladders.joint or len(lengths) > rows:
    quarter = max(1, rows // (EXCHANGED * unit)) * unit

  def decode_groups() -> Iterator[Finished]:
    for indices in groups_of(lengths, LEAST_POOLFULS * rows):
      width = int(lengths[indices].max())
      run = Run(request.take(indices, width), sizes.bound(width), rows - rows % quarter)
      yield from _decode_group(run, indices, quarter)

  return decode_groups()


def _decode_group(run: Run, indices: Int[np.ndarray, ' n'], quarter: int) -> Iterator[Finished]:
  """Yields the sources with these indices, the rows of `run`, as they end.

  The places of the run are a multiple of `quarter`, the number of rows that come together.
  """
  calls, coming = 0, np.arange(len(indices))
  places_left = len(run.owners) - len(indices)

  # Fillers take all places of a small pool that are left: one program runs in any case.
  if run.sizes.ladders.joint and places_left > 0:
    coming = np.pad(coming, (0, places_left), constant_values=NOBODY)
  coming = np.pad(coming, (0, -len(coming) % quarter), constant_values=NOBODY)

  # The next rows take places that were never filled, or those of finished rows, then of fillers.
  for taken in range(0, len(coming), quarter):
    if taken < len(run.owners):
      places = np.arange(taken, taken + quarter)
    else:
      is_filler = run.owners == NOBODY
      readiness = np.where(is_filler, 1, np.where(run.done, 0, 2))
      places = np.argsort(readiness, kind='stable')[:quarter]
    if (run.owners[places] != NOBODY).any():
      yield _take_results(run, places, indices, calls)
      calls = 0
    run.exchange(places, coming[taken : taken + quarter])

    # The pool runs until a quarter of its sources is finished, and at the end until all are.
    most_running = max(int((run.owners != NOBODY).sum()) - quarter, 0)
    if taken + quarter >= len(coming):
      most_running = 0
    elif taken + quarter < len(run.owners):
      most_running = len(run.owners)  # it is being filled, and does not run
    run.advance(most_running=most_running)
    calls += run.calls
  yield _take_results(run, np.arange(len(run.owners)), indices, calls)


def _take_results(
  run: Run, places: Int[np.ndarray, ' q'], indices: Int[np.ndarray, ' n'], calls: int
) -> Finished:
  """Returns the results of the rows in these places, which leave them; fillers are left out."""
  leaving = run.owners[places]
  decoded = jax.tree.map(lambda x: np.asarray(x)[places], run.decoded)
  decoded = run.finish(decoded, run.make_prompt(leaving))
  kept = np.flatnonzero(leaving != NOBODY)
  decoded = jax.tree.map(lambda x: np.asarray(x)[kept], decoded)
  return Finished(indices[leaving[kept]], decoded, calls * len(run.owners))
