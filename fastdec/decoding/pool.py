"""Decoding of a data set: ended rows make room for others, so none waits for its batch's longest.

Sources are sorted by length and cut into groups of one padded width. A group goes through a pool of
rows. The pool runs, in one `lax.while_loop`, until a quarter of its rows has ended. These leave
with their results, and new sources take their places. A width needs one compiled program, and
another each time its caches grow, for any number of sources: the same exchange fills the pool. The
last sources run until all have ended, and leave together: nobody waits for their places. Sources
that fill one pool at most come together too. Where sources are few, fillers, which have ended
before they begin, take their places.

    sources 0..5, two rows, one exchanged at a time (- is a filler)
    pool     0 -   0 1   2 1   2 3   4 3   4 5
    leaves           0     1     2     3     4 5

A list that somebody waits for (`few.decode_each`) has one program for each of few sizes, of pools
of 4, 16, 64, ... rows, and of texts. Fillers take the places that are left.

    width of the longest prompt            64   256   512   1,024   2,048   4,096   ...
    slots for prompt and output, at first 128   320   640   1,280   2,560   5,120   ...

Where this would cost more than compilers do, programs are its own: for `LEAST_POOLFULS`, and for
prompts that begin with the same `LONG_SHARED` tokens, which are read once.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from fastdec.cache.loops import while_loop
from fastdec.decoding.decode import start
from fastdec.decoding.inputs import begun_alike, checked, most_of, padded, width_of
from fastdec.decoding.law import LawMaker
from fastdec.decoding.prefill import (
  LISTED,
  few_width,
  has_few_sizes,
  has_slots,
  in_few_sizes,
  room_of,
  with_first_slots,
  with_more_slots,
)
from fastdec.decoding.protocol import Decoded, Prompt
from fastdec.decoding.request import Request, prepare_each
from fastdec.decoding.score import add_logprobs
from fastdec.decoding.settings import Whole, count
from fastdec.decoding.strategy import Strategy, nodes_of, select_rows
from fastdec.errors import UserError
from fastdec.kernels.sharding import check_rows as check_divides
from fastdec.kernels.sharding import place_rows, using
from fastdec.models.api import Model, Params, source_pad
from fastdec.struct import Bound

EXCHANGED = 4  # a pool's rows leave by quarters
LEAST_POOLFULS = 8  # of a group: another width must save more than its compilation costs
LONG_SHARED = 256  # tokens: to read them once saves more than compilation costs
NOBODY = -1


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
  strategy: Strategy,
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
  rows = count('rows', rows, 1, '1 or more')
  request, sources = prepare_each(
    model, params, inputs, strategy, max_len=most_of(max_len, max_new_tokens), key=key,
    processors=processors, constraint=constraint, logprobs=logprobs,
  )  # fmt: skip
  return decode_request(request, sources, rows)


def decode_request(
  request: Request, sources: Sequence[Int[np.ndarray, ' _']], rows: int
) -> Iterator[Finished]:
  """Decodes what `prepare_each` has checked, as `decode_each`."""
  if not sources:
    return iter(())
  unit = 1 if request.mesh is None else request.mesh.shape['data']
  check_divides(rows, unit)
  few = request.few and request.mesh is None and len(sources) < LEAST_POOLFULS * rows
  few = few and has_few_sizes(request.model, request.strategy)
  few = few and begun_alike(request.target.module, sources) < LONG_SHARED
  # A short list gets a smaller pool. Its size is a power of two, or of four, since each size needs
  # a program.
  octaves = (len(sources) - 1).bit_length()
  enough = 4 ** max(-(-octaves // 2), 1) if few else 2**octaves
  rows = min(rows, -(-enough // unit) * unit)
  comes_together = len(sources) <= rows and not few
  quarter = rows if comes_together else max(1, rows // (EXCHANGED * unit)) * unit
  pool = _Pool(request, sources, rows - rows % quarter, quarter, few)
  lengths = np.array([len(source) for source in sources])
  groups = groups_of(lengths, LEAST_POOLFULS * rows)
  return itertools.chain.from_iterable(map(pool.decode, groups))


def decode_all(*args: Any, **kwargs: Any) -> Decoded:
  """Decodes as `decode_each`, and returns all in the order of the inputs, as NumPy arrays."""
  return in_order(decode_each(*args, **kwargs))


def in_order(parts: Iterable[Finished]) -> Decoded:
  """Joins the parts that `decode_each` yields, in the order of the inputs, as NumPy arrays.

  Raises:
    UserError: there are no parts.
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
  widths = width_of(lengths[order])
  groups, start = [], 0
  while start < len(order):
    end = max(start + least, int((widths == widths[start]).nonzero()[0][-1]) + 1)
    end = end if len(order) - end >= least else len(order)
    groups.append(order[start:end])
    start = end
  return groups


@dataclasses.dataclass(frozen=True)
class _Pool:
  """A decoder of groups of sources, `rows` at once; `quarter` of them leave and come together."""

  request: Request
  sources: Sequence[np.ndarray]
  rows: int  # a multiple of `quarter`
  quarter: int
  few: bool  # it has one of few sizes

  def decode(self, group: Int[np.ndarray, ' n']) -> Iterator[Finished]:
    """Yields the sources of a group as they end."""
    request, model = self.request, self.request.target.module
    longest = max(len(self.sources[i]) for i in group)
    width = few_width(longest, None, LISTED) if self.few else int(width_of(np.array(longest)))
    width = min(width, model.max_positions or width)
    may_share = model.start_id is None and request.mesh is None and not self.few
    alike = begun_alike(model, [self.sources[i] for i in group]) if may_share else 0
    filler = self.sources[group[0]][: alike + 1]

    owners = np.full(self.rows, NOBODY)  # the source in each row of the pool
    length = np.zeros(self.rows, np.int32)  # of its prompt
    is_done, row_calls, state, slots, decoded = np.ones(self.rows, bool), 0, None, None, None
    if self.few:  # fillers take all places that are left: one program runs in any case
      group = np.pad(group, (0, max(self.rows - len(group), 0)), constant_values=NOBODY)
    for taken in itertools.count(0, self.quarter):
      # The next sources come; behind the last one fillers do.
      coming = group[taken : taken + self.quarter]
      coming = np.pad(coming, (0, self.quarter - len(coming)), constant_values=NOBODY)
      prompt, keys = self._prompt(coming, width, filler, slots)
      if state is None:
        if not self.few:
          prompt = with_first_slots(model, request.strategy, prompt, self._bucket(prompt))
        state = self._blank(prompt, keys, coming)

      # They take the places of rows that have ended, or places that were never filled.
      if taken < self.rows:
        places = np.arange(taken, taken + self.quarter)
      else:
        places = _by_readiness(owners, is_done)[: self.quarter]
      if (owners[places] != NOBODY).any():
        yield self._finished(owners, decoded, places, row_calls, width, filler)
        row_calls = 0
      owners[places], length[places] = coming, np.asarray(prompt.length)

      # The pool runs until a quarter of its sources has ended, and at the end until all have.
      is_last = taken + self.quarter >= len(group)
      most_running = 0 if is_last else max(int((owners != NOBODY).sum()) - self.quarter, 0)
      if taken + self.quarter < self.rows and not is_last:
        most_running = self.rows  # it is being filled, and does not run
      strategy, target = select_rows(request.strategy, owners.clip(0)), self._target(coming)
      while True:
        room = None if prompt.slots is None else room_of(prompt) - length
        bucket = self._bucket(prompt)
        with using(request.mesh):
          state, calls, is_done, decoded, is_full = _exchange(
            target, strategy, state, places, prompt, keys, bucket, room, most_running
          )
        row_calls += int(calls) * self.rows
        if not is_full:
          break
        # A row has filled its slots: the state grows, and runs on, but nobody comes.
        if self.few:
          width = few_width(width + 1, model.max_positions, LISTED)
        else:
          slots = with_more_slots(prompt, bucket).slots
        nobody, places = np.full(self.quarter, NOBODY), np.full(self.quarter, self.rows)
        prompt, keys = self._prompt(nobody, width, filler, slots)
        with using(request.mesh):
          own = select_rows(request.strategy, coming.clip(0))
          state, _ = start(target, own, prompt, keys, self._bucket(prompt), state)
      slots = prompt.slots
      if is_last:
        yield self._finished(owners, decoded, np.arange(self.rows), row_calls, width, filler)
        return
      is_done = np.asarray(is_done)

  def _finished(
    self,
    owners: Int[np.ndarray, ' r'],
    decoded: Any,
    places: Int[np.ndarray, ' q'],
    row_calls: int,
    width: int,
    filler: Int[np.ndarray, ' f'],
  ) -> Finished:
    """Returns the results of sources that leave their places, fillers excepted."""
    request, leaving = self.request, owners[places]
    decoded = jax.tree.map(lambda x: np.asarray(x)[places], decoded)
    if request.logprobs and decoded.logprobs is None:
      prompt, _ = self._prompt(leaving, width, filler)
      with using(request.mesh):
        decoded = add_logprobs(request.target, prompt, decoded, request.logprobs)
    (kept,) = (leaving != NOBODY).nonzero()
    decoded = jax.tree.map(lambda x: np.asarray(x)[kept], decoded)
    decoded = decoded.resized(request.max_len, request.target.module.pad_id)
    decoded = dataclasses.replace(decoded, ruled_by=request.ruled_by)
    return Finished(leaving[kept], decoded, row_calls)

  def _target(self, coming: Int[np.ndarray, ' q']) -> Bound:
    """Returns the model with the laws of these sources; those of fillers are ignored."""
    target = self.request.target
    laws = tuple(law.take(coming.clip(0)) for law in target.laws)
    return dataclasses.replace(target, laws=laws)

  def _prompt(
    self,
    indices: Int[np.ndarray, ' q'],
    width: int,
    filler: Int[np.ndarray, ' f'],
    slots: int | None = None,
  ) -> tuple[Prompt, Array | None]:
    """Returns the prompt of these sources as `decode` would; fillers are empty rows that end."""
    request, model = self.request, self.request.model
    inputs = np.full((len(indices), width), source_pad(model), np.int32)
    lengths = np.ones(len(indices), int)
    for row, index in enumerate(indices):
      source = filler if index == NOBODY else self.sources[index]
      lengths[row] = len(source)
      inputs[row, : lengths[row]] = source
    keys = None if request.keys is None else request.keys[indices.clip(0)]
    limit = request.limit[indices.clip(0)]
    prompt_lengths = lengths if model.start_id is None else None
    _, prompt, keys = checked(model, inputs, prompt_lengths, None, limit, keys)
    is_filler = indices == NOBODY
    prompt = dataclasses.replace(prompt, empty=prompt.empty | is_filler)
    if self.few:
      longest = max(map(len, self.sources)) + request.max_len
      prompt = dataclasses.replace(prompt, length=np.where(is_filler, 0, prompt.length))
      return in_few_sizes(request.target.module, prompt, longest, LISTED), keys
    prompt = dataclasses.replace(padded(model, prompt), slots=slots, shared=len(filler) - 1)
    return place_rows((prompt, keys), request.mesh)

  def _bucket(self, prompt: Prompt) -> int:
    """Returns how many tokens of a row a state has room for."""
    strategy = self.request.strategy
    if self.few:
      return room_of(prompt) + nodes_of(strategy)
    # `request.bucket` is that of the largest limit in all groups, so that there are few programs.
    source = prompt.tokens if prompt.inputs is None else prompt.inputs
    return strategy.most_tokens(source.shape[1], self.request.bucket)

  def _blank(self, prompt: Prompt, keys: Array | None, coming: Int[np.ndarray, ' q']) -> Any:
    """Returns a state of the pool's shapes; every row is overwritten before the first step."""
    strategy = select_rows(self.request.strategy, coming.clip(0))
    bucket = self._bucket(prompt)
    shapes = _begun.eval_shape(self._target(coming), strategy, prompt, keys, bucket)
    quarters = self.rows // self.quarter

    def zeros(x: jax.ShapeDtypeStruct) -> Array:
      xp = jnp if jnp.issubdtype(x.dtype, jax.dtypes.extended) else np  # compiles nothing
      return jax.device_put(xp.zeros((x.shape[0] * quarters, *x.shape[1:]), x.dtype))

    return place_rows(jax.tree.map(zeros, shapes), self.request.mesh)


def _by_readiness(
  owners: Int[np.ndarray, ' r'], is_done: Bool[np.ndarray, ' r']
) -> Int[np.ndarray, ' r']:
  """Returns all rows: ended ones first, then fillers, then running ones."""
  return np.argsort(np.where(owners == NOBODY, 1, np.where(is_done, 0, 2)), kind='stable')


@functools.partial(jax.jit, static_argnames='bucket')
def _begun(
  target: Bound, strategy: Strategy, prompt: Prompt, keys: Array | None, bucket: int
) -> Any:
  """Returns the state of rows that begin; traced once for its shapes and for `_exchange`."""
  return strategy.init(target, prompt, bucket, keys)


@functools.partial(jax.jit, static_argnames='bucket', donate_argnames='state')
def _exchange(
  target: Bound,
  strategy: Strategy,
  state: Any,
  places: Int[Array, ' q'],
  prompt: Prompt,
  keys: Array | None,
  bucket: int,
  room: Int[Array, ' b'] | None,
  most_running: Int[Array, ''],
) -> tuple[Any, Int[Array, ''], Bool[Array, ' b'], Decoded, Bool[Array, '']]:
  """Puts new rows into `places`, and runs the pool until at most `most_running` rows run.

  It stops early where a running row has emitted `room` tokens; None: no row can. `strategy` has
  the settings of all rows in the pool; the laws have those of the new rows. Places outside the pool
  take nobody. Returns the state, the number of calls, a mask of ended rows, the results so far, and
  true if the pool has stopped early.
  """
  coming = _begun(target, select_rows(strategy, places), prompt, keys, bucket)

  def is_wanted(state: Any) -> Bool[Array, '']:
    return (~strategy.done(state)).sum() > most_running

  state, calls = while_loop(
    lambda carry: is_wanted(carry[0]) & has_slots(strategy, carry[0], room),
    lambda carry: (strategy.step(target, carry[0]), carry[1] + 1),
    (_put(state, places, coming), jnp.zeros((), jnp.int32)),
    nodes_of(strategy),
  )
  return state, calls, strategy.done(state), strategy.result(state), is_wanted(state)


def _put(state: Any, places: Int[Array, ' q'], new: Any) -> Any:
  """Puts the rows of `new` into these places; beams have several entries a row, side by side."""

  def put(old: Array, new: Array) -> Array:
    entries = new.shape[0] // places.shape[0]
    return old.at[
      (places[:, None] * entries + jnp.arange(entries, dtype=places.dtype)[None]).reshape(-1)
    ].set(new, mode='drop')

  return jax.tree.map(put, state, new)
