"""Decoding of a data set: ended rows make room for others, so none waits for its batch's longest.

Sources are sorted by length and cut into groups of one padded width. A group goes through a pool of
rows. The pool runs, in one `lax.while_loop`, until a quarter of its rows has ended. These leave
with their results, and new sources take their places. One compiled program a width does all of it,
for any number of sources: the same exchange fills the pool. At the end fillers, which have ended
before they begin, come in place of sources.

    sources 0..5, two rows, one exchanged at a time (- is a filler)
    pool     0 -   0 1   2 1   2 3   4 3   4 5   - 5   - -
    leaves           0     1     2     3     4     5
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int

from fastdec.cache.loops import while_loop
from fastdec.decoding.inputs import (
  begun_alike,
  checked,
  limit_of,
  most_of,
  padded,
  room_of,
  row_keys,
  rows_of,
  width_of,
  without_left_pads,
)
from fastdec.decoding.law import Law, LawMaker
from fastdec.decoding.protocol import Decoded, Prompt
from fastdec.decoding.request import ended_by, laws_of
from fastdec.decoding.rooms import fits, sized, with_more, with_room
from fastdec.decoding.score import scored
from fastdec.decoding.settings import Whole, check_rows, count
from fastdec.decoding.strategy import Strategy, check_settings, check_strategy, nodes_of, of_rows
from fastdec.errors import UserError
from fastdec.kernels.sharding import check_rows as check_divides
from fastdec.kernels.sharding import mesh_of, place_rows, using
from fastdec.models.api import Model, Params, check_model, source_pad, source_words
from fastdec.struct import Bound

EXCHANGED = 4  # a pool's rows leave by quarters
LEAST_POOLFULS = 8  # of a group: another width must save more than its compilation costs
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
      `decode`. Settings of rows are of inputs here.
    inputs: the ids of each, without padding, in a list or an array: source ids, or prompts of a
      decoder-only model.
    rows: most inputs decoded at once (a multiple of 4 is used whole); on a mesh, for all of its
      devices.
    key: for strategies that sample; input i draws like row i of one batch of all inputs.

  Yields:
    `Finished`: some rows with the indices of their inputs, in NumPy arrays.

  Raises:
    UserError: as `decode`, before anything is decoded; rows < 1, or not a multiple of the devices
      along 'data'.
  """
  rows = count('rows', rows, 1, '1 or more')
  check_model(model, params)
  check_strategy(strategy)
  model = ended_by(model, processors)
  sources = rows_of('inputs', inputs, source_words(model))
  name = 'prompt' if model.start_id is None else 'source'
  sources = [without_left_pads(model, name, i, row) for i, row in enumerate(sources)]
  lengths = np.array([len(source) for source in sources], int)
  if not lengths.size:
    return iter(())
  if model.start_id is None and not lengths.all():
    raise UserError(f'prompt {int(lengths.argmin())} is empty: give at least one token')
  limit = limit_of(model, most_of(max_len, max_new_tokens))
  check_rows('max_len', limit, len(lengths))
  limit = np.full(len(lengths), limit)
  check_settings(strategy, len(lengths))
  for i in {int(lengths.argmax()), int((lengths + limit).argmax())}:
    _, longest, _ = checked(model, sources[i][None], None, None, int(limit[i]), None)
    strategy.check(model, longest, int(limit[i]))
  mesh = mesh_of(params)
  unit = 1 if mesh is None else mesh.shape['data']
  check_divides(rows, unit)
  several = 2 ** (len(lengths) - 1).bit_length()  # lists of few lengths: each is a program
  rows = min(rows, -(-several // unit) * unit)
  quarter = max(1, rows // (EXCHANGED * unit)) * unit
  keys = None if key is None else row_keys(key, len(lengths))
  laws = laws_of(model, strategy, len(lengths), processors, constraint, logprobs)
  top = int(logprobs)
  pool = _Pool(model, params, strategy, laws, top, sources, limit, keys, rows, quarter, mesh)
  return (
    finished
    for group in groups_of(lengths, LEAST_POOLFULS * rows)
    for finished in pool.decode(group)
  )


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
  """A decoder of groups of sources, `rows` at once; at least `quarter` leave and come together."""

  model: Model
  params: Params
  strategy: Strategy
  laws: tuple[Law, ...]
  top: int  # likeliest tokens of each place, if log-probabilities are wanted
  sources: Sequence[np.ndarray]
  limit: Int[np.ndarray, ' n']  # most tokens of each source
  keys: Array | None  # one a source
  rows: int
  quarter: int
  mesh: Mesh | None

  def decode(self, group: Int[np.ndarray, ' n']) -> Iterator[Finished]:
    """Yields the sources of a group as they end."""
    pool_rows = self.rows - self.rows % self.quarter
    width = int(width_of(np.array([len(self.sources[i]) for i in group])).max())
    width = min(width, self.model.max_positions or width)
    # not of the longest: few programs
    max_len = int(self.limit.max())
    room = self.strategy.most_tokens(width, room_of(self.model, max_len))
    owners, is_done, row_calls, state, space = (
      np.full(pool_rows, NOBODY),
      np.ones(pool_rows, bool),
      0,
      None,
      None,
    )
    is_prompt = self.model.start_id is None and self.mesh is None
    alike = begun_alike(self.model, [self.sources[i] for i in group]) if is_prompt else 0
    filler = self.sources[group[0]][: alike + 1]
    for begun in itertools.count(0, self.quarter):
      come = group[begun : begun + self.quarter]
      come = np.pad(come, (0, self.quarter - len(come)), constant_values=NOBODY)
      prompt, keys = self._prompt(come, width, filler)
      if state is None:
        space = with_room(self.model, self.strategy, prompt, room).room
      prompt = dataclasses.replace(prompt, room=space, shared=alike)
      if state is None:
        state = self._nothing(prompt, keys, room, come, pool_rows // self.quarter)
      order = np.arange(begun, pool_rows) if begun < pool_rows else _by_readiness(owners, is_done)
      slots = order[: self.quarter]
      left, owners[slots] = owners[slots], come
      wanted = max(int((owners != NOBODY).sum()) - self.quarter, 0)
      # nothing runs before the pool is full
      still = pool_rows if begun + self.quarter < pool_rows else wanted
      strategy = of_rows(self.strategy, owners.clip(0))
      target = self._target(come)
      with using(self.mesh):
        state, calls, is_done, decoded, is_full = _exchange(
          target, strategy, state, slots, prompt, keys, room, still
        )
        while prompt.room is not None and is_full:
          prompt = with_more(prompt, room)
          state, more, is_done, is_full = _go_on(
            target, strategy, state, slots, prompt, keys, room, still
          )
          calls += more
        space = prompt.room
      (kept,) = (left != NOBODY).nonzero()
      if kept.size:
        if self.top and decoded.logprobs is None:
          before, _ = self._prompt(left, width, filler)
          with using(self.mesh):
            decoded = scored(self.model, self.params, before, decoded, self.top)
        decoded = jax.tree.map(functools.partial(_rows_of, rows=kept), decoded)
        yield Finished(left[kept], decoded.resized(max_len, self.model.pad_id), row_calls)
        row_calls = 0
      if (owners == NOBODY).all():
        return
      is_done, row_calls = np.asarray(is_done), row_calls + int(calls) * pool_rows

  def _target(self, come: Int[np.ndarray, ' q']) -> Bound:
    """Returns the model with the laws of these sources; those of fillers matter to nobody."""
    return Bound(self.model, self.params, tuple(law.take(come.clip(0)) for law in self.laws))

  def _prompt(
    self, indices: Int[np.ndarray, ' q'], width: int, filler: Int[np.ndarray, ' f']
  ) -> tuple[Prompt, Array | None]:
    """Returns the prompt of these sources as `decode` would; fillers are empty rows that end."""
    inputs = np.full((len(indices), width), source_pad(self.model), np.int32)
    lengths = np.ones(len(indices), int)
    for row, index in enumerate(indices):
      source = filler if index == NOBODY else self.sources[index]
      lengths[row] = len(source)
      inputs[row, : lengths[row]] = source
    is_prompt = self.model.start_id is None
    keys = None if self.keys is None else self.keys[indices.clip(0)]
    limit = self.limit[indices.clip(0)]
    _, prompt, keys = checked(self.model, inputs, lengths if is_prompt else None, None, limit, keys)
    prompt = padded(self.model, prompt)
    prompt = dataclasses.replace(prompt, empty=prompt.empty | jnp.asarray(indices == NOBODY))
    return place_rows((prompt, keys), self.mesh)

  def _nothing(
    self, prompt: Prompt, keys: Array | None, room: int, come: Int[np.ndarray, ' q'], quarters: int
  ) -> Any:
    """Returns a state of the pool's shapes; every row is overwritten before the first step."""
    strategy = of_rows(self.strategy, come.clip(0))
    shapes = _begun.eval_shape(self._target(come), strategy, prompt, keys, room)
    nothing = jax.tree.map(
      lambda x: jnp.zeros((x.shape[0] * quarters, *x.shape[1:]), x.dtype), shapes
    )
    return place_rows(nothing, self.mesh)


def _by_readiness(
  owners: Int[np.ndarray, ' r'], is_done: Bool[np.ndarray, ' r']
) -> Int[np.ndarray, ' r']:
  """Returns all rows: ended ones first, then fillers, then running ones."""
  return np.argsort(np.where(owners == NOBODY, 1, np.where(is_done, 0, 2)), kind='stable')


def _rows_of(x: Array, rows: Int[np.ndarray, ' r']) -> np.ndarray:
  return np.asarray(x)[rows]


@functools.partial(jax.jit, static_argnames='room')
def _begun(target: Bound, strategy: Strategy, prompt: Prompt, keys: Array | None, room: int) -> Any:
  """Returns the state of rows that begin; traced once for its shapes and for `_exchange`."""
  return strategy.init(target, prompt, room, keys)


@functools.partial(jax.jit, static_argnames='room', donate_argnames='state')
def _exchange(
  target: Bound,
  strategy: Strategy,
  state: Any,
  slots: Int[Array, ' q'],
  prompt: Prompt,
  keys: Array | None,
  room: int,
  still: Int[Array, ''],
) -> tuple[Any, Int[Array, ''], Bool[Array, ' b'], Decoded, Bool[Array, '']]:
  """Puts new rows into `slots`, and runs the pool until at most `still` rows run.

  Settings of rows are those of the pool's rows in `strategy`, and of the new ones in the laws.
  Returns the state, the number of calls, a mask of ended rows, the results of the slots' rows
  before, and true if the pool stopped for want of room.
  """
  left = strategy.result(strategy.take(state, slots))
  coming = _begun(target, of_rows(strategy, slots), prompt, keys, room)
  state = _put(state, slots, coming)
  state, calls, is_done, is_full = _run(target, strategy, state, prompt, still)
  return state, calls, is_done, left, is_full


@functools.partial(jax.jit, static_argnames='room')
def _go_on(
  target: Bound,
  strategy: Strategy,
  state: Any,
  slots: Int[Array, ' q'],
  prompt: Prompt,
  keys: Array | None,
  room: int,
  still: Int[Array, ''],
) -> tuple[Any, Int[Array, ''], Bool[Array, ' b'], Bool[Array, '']]:
  """Runs the pool on, with the room of `prompt`; returns what `_exchange` does, without results."""
  state = sized(target, of_rows(strategy, slots), prompt, keys, room, state)
  return _run(target, strategy, state, prompt, still)


def _run(
  target: Bound, strategy: Strategy, state: Any, prompt: Prompt, still: Int[Array, '']
) -> tuple[Any, Int[Array, ''], Bool[Array, ' b'], Bool[Array, '']]:
  def is_wanted(state: Any) -> Bool[Array, '']:
    return (~strategy.done(state)).sum() > still

  state, calls = while_loop(
    lambda carry: is_wanted(carry[0]) & fits(strategy, carry[0], prompt),
    lambda carry: (strategy.step(target, carry[0]), carry[1] + 1),
    (state, jnp.zeros((), jnp.int32)),
    nodes_of(strategy),
  )
  return state, calls, strategy.done(state), is_wanted(state)


def _put(state: Any, slots: Int[Array, ' q'], new: Any) -> Any:
  """Puts the rows of `new` into these slots; beams have several entries a row, side by side."""

  def put(old: Array, new: Array) -> Array:
    entries = new.shape[0] // slots.shape[0]
    return old.at[
      (slots[:, None] * entries + jnp.arange(entries, dtype=slots.dtype)[None]).reshape(-1)
    ].set(new)

  return jax.tree.map(put, state, new)
