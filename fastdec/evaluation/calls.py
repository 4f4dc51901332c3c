"""Times single calls of the decoding loop, and counts the bytes that they must read."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fastdec import struct
from fastdec.decoding import loop
from fastdec.decoding.inputs import checked
from fastdec.decoding.protocol import Draft, Prompt
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.evaluation.wallclock import Timing, measure
from fastdec.struct import Bound

DECODER = ('decoder', 'layer', 'norm')  # how the parts that every call reads are named
LARGEST = 2**30  # bytes to measure the bandwidth by, beyond all caches
READS = 8  # of them in one program, which is started once
COLUMNS = {
  'dtype': '{dtype}',
  'batch': '{batch}',
  'variant': '{variant}',
  'ms a call': '{ms_per_call:.2f}',
  'to greedy': '{to_greedy:.2f}',
  'to the floor': '{to_floor:.2f}',
  'floor ms': '{floor_ms:.2f}',
}


def check_at_least(least: int, config: Any, *names: str) -> None:
  """Raises UserError where a field, or an entry of a field that is a tuple, is below `least`, or a tuple is empty."""
  for name in names:
    value = getattr(config, name)
    if not value and isinstance(value, tuple):
      raise UserError(f'{name}={value} is not possible: give one value at least')
    if min(value if isinstance(value, tuple) else (value,)) < least:
      raise UserError(f'{name}={value} is not possible: give {least} or more')


@struct.pytree
class FreeDraft:
  """A chain or tree of guesses that cost nothing and are never right; if sampled, of the law that knows nothing."""

  topology: Topology = struct.static()
  has_law: bool = struct.static(default=False)

  @property
  def nodes(self) -> int:
    return self.topology.n

  def init(self, target: Bound, prefill: Any) -> tuple[()]:
    return ()

  def propose(self, target: Bound, state: tuple[()], root: Any, keys: Any) -> tuple[Draft, tuple[()]]:
    words = target.module.vocab_size
    guesses = ((root[:, None] + 17 * jnp.arange(self.nodes)) % words).astype(jnp.int32)
    law = jnp.full((*guesses.shape, words), 1 / words) if self.has_law else None
    return Draft(guesses, self.topology, law), state

  def observe(self, target: Bound, state: tuple[()], step: Any) -> tuple[()]:
    return state


@functools.partial(jax.jit, static_argnames=('model', 'max_len'))
def _start(model: Any, params: Any, drafter: Any, prompt: Prompt, max_len: int) -> loop.DecodeState:
  return loop.init(Bound(model, params), drafter, Exact(), prompt, max_len, None)


@functools.partial(jax.jit, static_argnames=('model', 'calls'), donate_argnames='state')
def _turn(model: Any, params: Any, drafter: Any, state: loop.DecodeState, calls: int) -> loop.DecodeState:
  step = lambda _, s: loop.step(Bound(model, params), drafter, Exact(), s)
  return jax.lax.fori_loop(0, calls, step, state)


class Calls:
  """A decode after its prompt; called, it goes on for `calls` calls. Rows that have finished cost what they did."""

  def __init__(self, target: Bound, drafter: Any, inputs: Any, max_len: int, calls: int) -> None:
    _, prompt, _ = checked(target.module, inputs, None, None, max_len, None)
    self.target, self.drafter, self.calls = target, drafter, calls
    self.state = _start(*target, drafter, prompt, max_len)

  def __call__(self) -> loop.DecodeState:
    self.state = _turn(*self.target, self.drafter, self.state, self.calls)  # in place: a long cache is not copied
    return self.state

  def bytes(self, projection: str) -> int:
    """What a call must read: decoder weights without the memory's own projections, the vocabulary projection (named as
    in the parameters), the heads, the cache."""
    params = self.target.params
    decoder = [value for name, value in params.items() if name.startswith(DECODER)]
    once = _size(layer['cross']['kv'] for layer in decoder if 'cross' in layer)
    return _size(decoder) - once + _size((params[projection], self.drafter, self.state.cache))


def _size(trees: Iterable[Any]) -> int:
  return sum(x.nbytes for x in jax.tree.leaves(tuple(trees)))


def random_params(module: Any, seed: int, dtype: str) -> Any:
  """Fresh parameters of a model or of heads, all in `dtype`."""
  return jax.tree.map(lambda x: x.astype(dtype), jax.jit(module.init)(jax.random.key(seed)))


def measured(variants: Mapping[str, Calls], rounds: int, projection: str) -> list[dict[str, Any]]:
  """One row a variant, 'greedy' among them: milliseconds a call, the ratio to greedy's call, and to the floor."""
  return figures(measure(variants, rounds), variants, projection)


def figures(timings: Mapping[str, Timing], variants: Mapping[str, Calls], projection: str) -> list[dict[str, Any]]:
  """The rows of `measured` from their timings."""
  sizes = {name: variant.bytes(projection) for name, variant in variants.items()}
  bandwidth = _bandwidth(sizes['greedy'])
  return [
    {'variant': name, **_figures(timings[name], timings['greedy'], sizes[name], bandwidth, variant)}
    for name, variant in variants.items()
  ]


def _figures(timing: Timing, greedy: Timing, size: int, bandwidth: float, variant: Calls) -> dict[str, float]:
  floor = size / bandwidth
  return {
    'ms_per_call': timing.milliseconds / variant.calls,
    'to_greedy': 1 / timing.speedup_over(greedy),
    'to_floor': timing.median / variant.calls / floor,
    'floor_ms': 1e3 * floor,
    'megabytes': size / 1e6,
    'compile_seconds': timing.compile_seconds,
    'rounds': len(timing.seconds),
  }


def _bandwidth(size: int) -> float:
  """Bytes a second that a matrix-vector product of about `size` bytes reads, the fastest of seven programs."""
  matrix = jnp.ones((-(-min(size, LARGEST) // 4096), 1024), jnp.float32)
  again = lambda matrix: lambda _, vector: vector + 1e-30 * (matrix @ vector).sum()
  products = jax.jit(lambda matrix: jax.lax.fori_loop(0, READS, again(matrix), matrix[0]))
  return READS * matrix.nbytes / measure({'products': lambda: products(matrix)}, 7)['products'].spread[0]


def calls_table(rows: Sequence[Mapping[str, Any]]) -> str:
  """Rows of `measured`, with the columns dtype and batch, as a pipe table."""
  return table(rows, COLUMNS)


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
  """A pipe table; `columns` says by heading how a row's fields are written, as a format string."""
  lines = [list(columns), ['---'] * len(columns)]
  lines += [[form.format(**row) for form in columns.values()] for row in rows]
  return '\n'.join(f'| {" | ".join(cells)} |' for cells in lines)
