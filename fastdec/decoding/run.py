"""The driver: rows of a request while they are decoded, one text, a batch or a data set alike.

    run = Run.begin(request)
    run.advance(0)                 reads the prompts
    run.advance(1)                 one more call for all rows that are not done
    run.advance()                  calls until all rows are done
    run.exchange(places, rows)     other rows take some places; the next `advance` reads them
    run.grow()                     slots for longer texts; `advance` does it when needed

Each `advance` starts one program on the device, `make_calls`, and nothing leaves the device in it.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from fastdec import struct
from fastdec.cache.loops import while_loop
from fastdec.decoding.inputs import find_shared
from fastdec.decoding.protocol import LOGPROB_FIELDS, Decoded, Prompt, check_finite, listed
from fastdec.decoding.request import Request, Settings, prepare
from fastdec.decoding.score import add_logprobs
from fastdec.decoding.settings import MOST_TOKENS
from fastdec.decoding.sizes import BATCH, Ladders, Sizes
from fastdec.decoding.strategy import Strategy, nodes_of, select_rows
from fastdec.kernels.sharding import place_rows, using
from fastdec.models.api import Model, Params
from fastdec.struct import Bound

NOBODY = -1  # owner of a place that holds no row of the request


@struct.pytree
class Coming:
  """Rows that begin with the next call."""

  prompt: Prompt
  keys: Array | None
  places: Any = None  # int32[q], where they go in a state that exists; None: they are its rows


@struct.pytree
class Limits:
  """When the program stops, besides the end of all rows: data, so one program serves all limits."""

  most_running: Any = 0  # stops when no more rows than these run
  calls: Any = MOST_TOKENS  # most calls to make
  # int32[b]: stops when a running row has emitted its number of tokens; None: never
  room: Any = None


@struct.pytree
class Progress:
  """What the host reads after some calls."""

  decoded: Decoded
  done: Bool[Array, ' b']
  is_full: Bool[Array, '']  # a running row has filled its slots
  calls: Int[Array, '']  # made


@functools.partial(jax.jit, static_argnames='most_tokens')
def begin(
  target: Bound, strategy: Strategy, prompt: Prompt, keys: Array | None, most_tokens: int
) -> Any:
  """Reads the prompt, and returns the strategy's state before the first call.

  `most_tokens` is how many tokens of a row the state has room for."""
  return strategy.init(target, prompt, most_tokens, keys)


@functools.partial(jax.jit, static_argnames='most_tokens', donate_argnames='state')
def make_calls(
  target: Bound,
  strategy: Any,
  state: Any,
  coming: Coming | None,
  limits: Limits | None,
  most_tokens: int,
) -> tuple[Any, Progress]:
  """Lets new rows begin, and makes calls of the target until a limit is reached.

  Args:
    target: the model; its laws have the settings of the new rows.
    strategy: with the settings of all rows.
    state: of the strategy, overwritten; None: the new rows are all there are.
    coming: new rows; None: there are none.
    limits: when to stop; None: before the first call.
    most_tokens: see `begin`.
  """
  if coming is not None:
    own = strategy if coming.places is None else select_rows(strategy, coming.places)
    new = begin(target, own, coming.prompt, coming.keys, most_tokens)
    state = new if coming.places is None else _put_rows(state, coming.places, new)

  is_full, calls = jnp.array(False), jnp.zeros((), jnp.int32)
  if limits is not None:

    def is_full_now(state: Any) -> Bool[Array, '']:
      if limits.room is None:
        return jnp.array(False)
      return (~state.done & (state.length >= limits.room)).any()

    def continues(carry: tuple[Any, Array]) -> Bool[Array, '']:
      state, calls = carry
      is_wanted = (~state.done).sum(dtype=jnp.int32) > limits.most_running
      return is_wanted & (calls < limits.calls) & ~is_full_now(state)

    def make_call(carry: tuple[Any, Array]) -> tuple[Any, Array]:
      state, calls = carry
      return strategy.step(target, state), calls + 1

    state, calls = while_loop(continues, make_call, (state, calls), nodes_of(strategy))
    is_full = is_full_now(state)
  return state, Progress(strategy.result(state), state.done, is_full, calls)


class Run:
  """Rows of a request, in the places of a state that the device holds.

  Attributes:
    request: the rows with their settings; their prompts have the first size.
    sizes: of its programs.
    owners: int[b], the row of the request in each place, or `NOBODY`.
    prompt: of the newest rows, in the size that the state has.
    state: the strategy's; each `advance` overwrites it.
  """

  def __init__(self, request: Request, sizes: Sizes, places: int) -> None:
    prompt = sizes.begin(request.prompt)
    if request.mesh is None and not sizes.ladders.joint:
      prompt = find_shared(request.target.module, prompt)
    self.request = dataclasses.replace(request, prompt=prompt)
    self.sizes = sizes
    self.owners = np.full(places, NOBODY)
    self.prompt: Any = None
    self.state: Any = None
    self._target = request.target  # its laws have the settings of the newest rows
    self._strategy: Any = request.strategy
    self._lengths = np.zeros(places, np.int32)  # of the prompts in all places
    self._coming: Coming | None = None
    self._progress: Any = None
    self._calls_before = 0  # that the last `advance` made before the state grew
    self._is_full = False
    self._exchanges = False
    self._read = np.zeros(places, np.int32)  # tokens that `read_new` has returned

  @classmethod
  def begin(cls, request: Request, ladders: Ladders = BATCH) -> 'Run':
    """Places all rows of a request; the first `advance` reads their prompts."""
    rows = len(request.prompt.length)
    run = cls(request, request.choose_sizes(ladders), rows)
    run.owners, run._lengths = np.arange(rows), np.asarray(run.request.prompt.length)
    run.prompt, keys = place_rows((run.request.prompt, request.keys), request.mesh)
    run._coming = Coming(run.prompt, keys)
    return run

  def exchange(self, places: Int[np.ndarray, ' q'], rows: Int[np.ndarray, ' q']) -> None:
    """Lets rows of the request take the places of others; the next `advance` reads their prompts.

    The first exchanges fill all places, and each has the same number of rows, since every number
    needs a program.

    Args:
      places: to be taken.
      rows: of the request; `NOBODY` for a filler, which is done at once.
    """
    newest, prompt = self.request.take(rows.clip(0)), self.make_prompt(rows)
    self._target = newest.target
    self.owners[places], self._lengths[places] = rows, prompt.length
    self._strategy = select_rows(self.request.strategy, self.owners.clip(0))

    # The prompt takes the size to which the state has grown.
    if self.prompt is not None:
      size = self.prompt
      more = size.tokens.shape[1] - prompt.tokens.shape[1]
      prompt = dataclasses.replace(
        prompt, tokens=np.pad(prompt.tokens, ((0, 0), (0, more))), slots=size.slots,
        chunk=size.chunk, most=size.most,
      )  # fmt: skip
    self.prompt, keys = place_rows((prompt, newest.keys), self.request.mesh)
    self._coming = Coming(self.prompt, keys)
    if len(places) == len(self.owners) >= len(self.request.prompt.length):
      return  # all rows begin together, and none follow: they are the state
    self._coming, self._exchanges = Coming(self.prompt, keys, places), True
    if self.state is None:
      self.state = self._make_blank(self._coming)

  def make_prompt(self, rows: Int[np.ndarray, ' q']) -> Prompt:
    """Returns the prompt of these rows in the first size; those of `NOBODY` are empty."""
    prompt = jax.tree.map(lambda x: x[rows.clip(0)], self.request.prompt)
    is_filler = rows == NOBODY
    least = 0 if self.sizes.ladders.joint else prompt.shared + 1
    length = np.where(is_filler, least, prompt.length).astype(np.int32)
    return dataclasses.replace(prompt, length=length, empty=prompt.empty | is_filler)

  def advance(self, calls: int | None = None, most_running: int = 0) -> None:
    """Makes calls until all rows are done; the state grows as often as a text fills its slots.

    Args:
      calls: most calls to make; 0 only reads prompts. None: any number.
      most_running: stops when no more rows than these run.
    """
    if self.sizes.ladders.joint and calls != 0 and self._coming is not None and not self._exchanges:
      self.advance(0)  # by a program that streams and whole texts share
    self._calls_before = 0
    while True:
      if self._is_full:
        self.grow()
      limits = None
      if calls != 0:
        left = MOST_TOKENS if calls is None else calls - self._calls_before
        room = self.sizes.count_room(self.prompt, self._lengths)
        limits = Limits(np.int32(most_running), np.int32(left), room)
      with using(self.request.mesh):
        self.state, self._progress = make_calls(
          self._target, self._strategy, self.state, self._coming, limits,
          self.sizes.most_tokens(self.prompt),
        )  # fmt: skip
      self._coming = None

      # Nothing is fetched where nothing is left to decide: the host runs on.
      self._is_full = self.prompt.slots is not None and bool(self._progress.is_full)
      if not self._is_full or (calls is not None and self.calls >= calls):
        return
      self._calls_before = self.calls

  def grow(self) -> None:
    """Gives the state the next size. Slots after a row's length are unused, so more can follow."""
    request, places = self.request, np.full(len(self.prompt.length), len(self.owners))
    longest = 0
    if self.sizes.ladders.joint:
      longest = int((self._lengths + np.asarray(self.state.length)).max())
    self.prompt = self.sizes.grow(self.prompt, longest)
    keys = None
    if request.keys is not None:
      keys = request.keys[: len(places)]
    strategy = select_rows(self._strategy, np.arange(len(places)))
    arguments = (self._target, strategy, self.prompt, keys)
    most_tokens = self.sizes.most_tokens(self.prompt)
    if request.mesh is None:
      # The host copies the state: this compiles nothing, and takes as long as a few calls.
      shapes = begin.eval_shape(*arguments, most_tokens)
      self.state = jax.tree.map(_widen, self.state, shapes)
    else:
      with using(request.mesh):
        self.state = _widen_on_mesh(*arguments, most_tokens, self.state)
    self._is_full = False

    # A pool continues by the program that exchanges rows, although none are new.
    if self._exchanges:
      nothing = np.full(len(places), self.prompt.shared + 1, np.int32)
      prompt = dataclasses.replace(self.prompt, length=nothing, empty=np.ones(len(places), bool))
      prompt, keys = place_rows((prompt, keys), request.mesh)
      self._coming = Coming(prompt, keys, places)

  @property
  def calls(self) -> int:
    """Calls of the target that the last `advance` made."""
    return self._calls_before + int(self._progress.calls)

  @property
  def is_over(self) -> bool:
    """True if all rows are done."""
    return bool(self.done.all())

  @property
  def done(self) -> Bool[np.ndarray, ' b']:
    """True in the places of rows that are done."""
    return np.asarray(self._progress.done)

  @property
  def decoded(self) -> Decoded:
    """The results so far of the rows in all places."""
    return self._progress.decoded

  def finish(self, decoded: Decoded, prompt: Prompt | None) -> Decoded:
    """Returns results as users want them: in the width of their limit, scored if they ask for it.

    Args:
      decoded: of the rows of `prompt`.
      prompt: in any size; None if nothing needs scores.
    """
    request = self.request
    max_len, pad_id = request.max_len, request.target.module.pad_id
    with using(request.mesh):
      if prompt is not None and request.logprobs and decoded.logprobs is None:
        # The texts of a search are read again.
        decoded = add_logprobs(request.target, prompt, decoded, request.logprobs)
      if isinstance(decoded.tokens, np.ndarray):
        decoded = decoded.resized(max_len, pad_id)
      elif decoded.tokens.shape[1] != max_len:
        decoded = _resize(decoded, max_len, pad_id)
    return dataclasses.replace(decoded, ruled_by=request.ruled_by)

  def read_new(self) -> list[list[int]]:
    """Returns each row's tokens since the last time; `Noted` ones with `logprobs`.

    Raises:
      UserError: tokens were chosen by logits without a best one (`protocol.check_finite`).
    """
    decoded = self.decoded
    noted = {}
    if decoded.logprobs is not None:
      noted = {name: getattr(decoded, name) for name in LOGPROB_FIELDS}
    tokens, lengths, finite, stuck, noted = jax.device_get(
      (decoded.tokens, decoded.lengths, decoded.finite, decoded.stuck, noted)
    )
    check_finite(finite, stuck, self.request.ruled_by)
    blocks = []
    for row, (first, last) in enumerate(zip(self._read.tolist(), lengths.tolist(), strict=True)):
      own = {name: values[row] for name, values in noted.items()}
      blocks.append(listed(tokens[row], first, last, own))
    self._read = lengths
    return blocks

  def _make_blank(self, coming: Coming) -> Any:
    """Returns a state of zeros; the first exchanges overwrite all its rows."""
    strategy = select_rows(self._strategy, coming.places)
    shapes = begin.eval_shape(
      self._target, strategy, coming.prompt, coming.keys, self.sizes.most_tokens(self.prompt)
    )
    times = len(self.owners) // len(coming.prompt.length)

    def make_zeros(x: jax.ShapeDtypeStruct) -> Array:
      xp = jnp if jnp.issubdtype(x.dtype, jax.dtypes.extended) else np  # compiles nothing
      return jax.device_put(xp.zeros((x.shape[0] * times, *x.shape[1:]), x.dtype))

    return place_rows(jax.tree.map(make_zeros, shapes), self.request.mesh)


def start(
  model: Model,
  params: Params,
  inputs: Any,
  strategy: Strategy | str,
  settings: Settings,
  prompt_lengths: Any = None,
  prefix: Any = None,
  ladders: Ladders = BATCH,
) -> Run:
  """Checks a caller's arguments (see `decode`), and places the rows in a run."""
  request = prepare(model, params, inputs, strategy, settings, prompt_lengths, prefix)
  return Run.begin(request, ladders)


def _put_rows(state: Any, places: Int[Array, ' q'], new: Any) -> Any:
  """Puts the rows of `new` into these places; beams have several entries a row, side by side.

  Places outside the state are dropped."""

  def put(old: Array, new: Array) -> Array:
    entries = new.shape[0] // places.shape[0]
    index = places[:, None] * entries + jnp.arange(entries, dtype=places.dtype)[None]
    return old.at[index.reshape(-1)].set(new, mode='drop')

  return jax.tree.map(put, state, new)


def _widen(x: Array, like: jax.ShapeDtypeStruct, xp: Any = np) -> Array:
  """Returns x with more entries at the end of its axes after the rows: copies of the last one."""
  more = [(0, new - old) for old, new in zip(x.shape[1:], like.shape[1:], strict=True)]
  if not any(last for _, last in more):
    return x
  wide = xp.pad(xp.asarray(x), [(0, 0), *more], mode='edge')
  return jax.device_put(wide) if xp is np else wide


@functools.partial(jax.jit, static_argnames='most_tokens')
def _widen_on_mesh(
  target: Bound, strategy: Any, prompt: Prompt, keys: Array | None, most_tokens: int, state: Any
) -> Any:
  shapes = jax.eval_shape(
    lambda prompt, keys: strategy.init(target, prompt, most_tokens, keys), prompt, keys
  )
  return jax.tree.map(functools.partial(_widen, xp=jnp), state, shapes)


@functools.partial(jax.jit, static_argnames=('max_len', 'pad_id'))
def _resize(decoded: Decoded, max_len: int, pad_id: int) -> Decoded:
  return decoded.resized(max_len, pad_id)
