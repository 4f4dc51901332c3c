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
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from fastdec.decoding.inputs import count_shared, make_prompt
from fastdec.decoding.law import LawMaker
from fastdec.decoding.protocol import Decoded, Prompt
from fastdec.decoding.request import Request, Settings, prepare_each
from fastdec.decoding.run import NOBODY, Run
from fastdec.decoding.settings import Whole, count
from fastdec.decoding.sizes import BATCH, PROMPTS, Ladders, choose_widths
from fastdec.decoding.strategy import Strategy
from fastdec.errors import UserError
from fastdec.kernels.sharding import check_rows as check_divides
from fastdec.models.api import Model, Params, source_pad

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
  request, sources = prepare_each(model, params, inputs, strategy, settings)
  if not sources:
    return iter(())
  unit = 1 if request.mesh is None else request.mesh.shape['data']
  check_divides(rows, unit)

  # Choose the sizes: programs that lists share, or the list's own.
  module = request.target.module
  lengths = np.array([len(source) for source in sources])
  sizes = request.choose_sizes(ladders, int(lengths.max()))
  if sizes.ladders.joint:
    is_long = len(sources) >= LEAST_POOLFULS * rows
    if is_long or count_shared(module, sources) >= LONG_SHARED:
      own = dataclasses.replace(BATCH, outputs=ladders.outputs)
      sizes = request.choose_sizes(own, int(lengths.max()))

  # A short list gets a smaller pool. Its size is a power of two, or of four, since each size needs
  # a program.
  octaves = (len(sources) - 1).bit_length()
  if sizes.ladders.joint:
    octaves = 2 * max(-(-octaves // 2), 1)
  rows = min(rows, -(-(2**octaves) // unit) * unit)
  quarter = rows
  if sizes.ladders.joint or len(sources) > rows:
    quarter = max(1, rows // (EXCHANGED * unit)) * unit
  pool = _Pool(request, sizes, sources, rows - rows % quarter, quarter)
  groups = groups_of(lengths, LEAST_POOLFULS * rows)
  return itertools.chain.from_iterable(map(pool.decode, groups))


@dataclasses.dataclass(frozen=True)
class _Pool:
  """A decoder of groups of sources, `rows` at once; `quarter` of them leave and come together."""

  request: Request
  sizes: Any
  sources: Sequence[np.ndarray]
  rows: int  # a multiple of `quarter`
  quarter: int

  def decode(self, group: Int[np.ndarray, ' n']) -> Iterator[Finished]:
    """Yields the sources of a group as they end."""
    request, model, is_joint = self.request, self.request.target.module, self.sizes.ladders.joint
    width = max(len(self.sources[i]) for i in group)
    sizes = self.sizes.bound(width)
    alike = 0  # tokens that all prompts of the group begin with
    if model.start_id is None and request.mesh is None and not is_joint:
      alike = count_shared(model, [self.sources[i] for i in group])
    filler = self.sources[group[0]][: alike + 1]

    # Fillers take all places of a small pool that are left: one program runs in any case.
    places_left = self.rows - len(group)
    if is_joint and places_left > 0:
      group = np.pad(group, (0, places_left), constant_values=NOBODY)

    run, calls = Run(request, sizes, self.rows), 0
    for taken in range(0, len(group), self.quarter):
      # The next sources come; after the last one fillers do.
      coming = group[taken : taken + self.quarter]
      coming = np.pad(coming, (0, self.quarter - len(coming)), constant_values=NOBODY)
      is_last = taken + self.quarter >= len(group)

      # They take places that were never filled, or those of finished rows, then of fillers.
      if taken < self.rows:
        places = np.arange(taken, taken + self.quarter)
      else:
        is_filler = run.owners == NOBODY
        readiness = np.where(is_filler, 1, np.where(run.done, 0, 2))
        places = np.argsort(readiness, kind='stable')[: self.quarter]
      if (run.owners[places] != NOBODY).any():
        yield self._take_results(run, places, calls, width, filler)
        calls = 0
      prompt = sizes.begin(self._make_prompt(coming, width, filler))
      prompt = dataclasses.replace(prompt, shared=alike)
      run.exchange(places, coming, prompt)

      # The pool runs until a quarter of its sources is finished, and at the end until all are.
      most_running = max(int((run.owners != NOBODY).sum()) - self.quarter, 0)
      if is_last:
        most_running = 0
      elif taken + self.quarter < self.rows:
        most_running = self.rows  # it is being filled, and does not run
      run.advance(most_running=most_running)
      calls += run.calls
    yield self._take_results(run, np.arange(self.rows), calls, width, filler)

  def _take_results(
    self,
    run: Run,
    places: Int[np.ndarray, ' q'],
    calls: int,
    width: int,
    filler: Int[np.ndarray, ' f'],
  ) -> Finished:
    """Returns the results of the rows in these places, which leave them; fillers are left out."""
    leaving = run.owners[places]
    decoded = jax.tree.map(lambda x: np.asarray(x)[places], run.decoded)
    prompt = None
    if self.request.logprobs and decoded.logprobs is None:
      prompt = run.sizes.begin(self._make_prompt(leaving, width, filler))
    decoded = run.finish(decoded, prompt)
    kept = np.flatnonzero(leaving != NOBODY)
    decoded = jax.tree.map(lambda x: np.asarray(x)[kept], decoded)
    return Finished(leaving[kept], decoded, calls * self.rows)

  def _make_prompt(
    self, indices: Int[np.ndarray, ' q'], width: int, filler: Int[np.ndarray, ' f']
  ) -> Prompt:
    """Returns the prompt of these sources as `decode` would; fillers are empty rows that end."""
    request, model = self.request, self.request.model
    is_filler = indices == NOBODY
    inputs = np.full((len(indices), width), source_pad(model), np.int32)
    lengths = np.ones(len(indices), int)
    for row, index in enumerate(indices):
      source = filler if index == NOBODY else self.sources[index]
      lengths[row] = len(source)
      inputs[row, : lengths[row]] = source
    prompt = make_prompt(model, inputs, lengths if model.start_id is None else None, None)
    limit = request.limit[indices.clip(0)].astype(np.int32)
    prompt = dataclasses.replace(prompt, limit=limit, empty=prompt.empty | is_filler)
    if self.sizes.ladders.joint:  # whose fillers take no time to read
      prompt = dataclasses.replace(prompt, length=np.where(is_filler, 0, prompt.length))
    return prompt
