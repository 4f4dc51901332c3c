"""Decoding call by call, to time it: a strategy continues from the state after the prompt.

`repeat_calls` makes any number of calls in one program; all else here prepares its arguments.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fastdec import struct
from fastdec.cache.loops import fori_loop, while_loop
from fastdec.decoding.inputs import check_inputs
from fastdec.decoding.loop import DecodeState
from fastdec.decoding.protocol import Draft
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.rules.rejection import Warped
from fastdec.decoding.run import begin
from fastdec.decoding.sizes import BATCH, Sizes, exact_widths
from fastdec.decoding.strategy import LoopStrategy, nodes_of
from fastdec.decoding.topology import Topology
from fastdec.evaluation.machine import computes_bfloat16
from fastdec.evaluation.rows import Row
from fastdec.evaluation.wallclock import measure
from fastdec.kernels.packed import drop_panels
from fastdec.kernels.products import kernels_of
from fastdec.kernels.quantized import TYPES, quantize_kernel
from fastdec.struct import Bound

DECODER = ('decoder', 'layer', 'norm')  # beginnings of the names of parameters that a call reads


@struct.pytree
class FreeDraft:
  """A drafter whose guesses cost nothing and are never right.

  With `has_probs` it claims that they are drawn from the uniform distribution.
  """

  topology: Topology = struct.static()
  has_probs: bool = struct.static(default=False)

  @property
  def nodes(self) -> int:
    return self.topology.n

  def init(self, target: Bound, prefill: Any) -> tuple[()]:
    return ()

  def propose(
    self, target: Bound, state: tuple[()], root: Any, keys: Any
  ) -> tuple[Draft, tuple[()]]:
    words = target.module.vocab_size
    guesses = (root[:, None] + 17 * jnp.arange(self.nodes, dtype=root.dtype)[None]) % words
    probs = None
    if self.has_probs:
      probs = jnp.full((*guesses.shape, words), 1 / words)
    return Draft(guesses, self.topology, probs), state

  def observe(self, target: Bound, state: tuple[()], step: Any) -> tuple[()]:
    return state


@struct.pytree
class Drafted(LoopStrategy):
  """A strategy of any drafter and any rule."""

  drafter: Any = None  # needs a default: a plain attribute replaces the base's property
  rule: Any = Exact()


@dataclasses.dataclass
class Calls:
  """A function that decodes `calls` more calls.

  A call takes the same time after a row has finished, so ends are ignored. The state is overwritten
  in place, so that a long cache is not copied.
  """

  target: Bound
  strategy: Any
  state: Any
  calls: int

  @classmethod
  def after_prompt(
    cls, target: Bound, drafter: Any, inputs: Any, max_len: int, calls: int
  ) -> 'Calls':
    """Runs the prompt; then `drafter` proposes and `Exact` judges. Arguments as in `fd.decode`.

    Caches have the slots that `fd.decode` starts with, and nothing is padded."""
    strategy = Drafted(drafter)
    _, prompt, _ = check_inputs(target.module, inputs, None, None, max_len, None)
    ladders = exact_widths(prompt, max_len)
    prompt = Sizes(ladders, target.module, strategy, max_len, max_len).begin(prompt)
    state = begin(target, strategy, prompt, None, max_len)
    return cls(target, strategy, state, calls)

  def __call__(self) -> Any:
    self.state = _continue(self.target, self.strategy, self.state, self.calls)
    return self.state

  @property
  def bytes(self) -> int:
    """The bytes that one call must read.

    These are the decoder's weights, except those that project the memory once; the vocabulary
    projection; the heads and the cache. If there are experts, it reads as many as one token needs.
    """
    params = self.target.params
    decoder = [value for name, value in params.items() if name.startswith(DECODER)]
    once = _size(layer['cross']['kv'] for layer in decoder if 'cross' in layer)
    experts = getattr(getattr(self.target.module, 'config', None), 'experts', None)
    if experts is not None:
      unread = (experts.count - experts.chosen) / experts.count
      once += round(unread * _size(layer['experts'] for layer in decoder if 'experts' in layer))
    projection = params['output' if 'output' in params else 'embedding']
    return _size(decoder) - once + _size((projection, self.strategy.drafter, self.state.cache))


def measure_costs(
  variants: Mapping[str, Calls], rounds: int, bytes_per_second: float = 0.0
) -> list[Row]:
  """Times calls; returns rows with milliseconds, and their ratios to greedy's and to the floor.

  The floor is the time to read the bytes that a call must read.

  Args:
    variants: the calls to time in turn, 'greedy' among them.
    rounds: number of rounds.
    bytes_per_second: the memory's bandwidth; 0 measures it.
  """
  timings, greedy = measure(variants, rounds), variants['greedy']
  bytes_per_second = bytes_per_second or measure_bandwidth(greedy.bytes)
  rows = []
  for name, variant in variants.items():
    timing, floor = timings[name], variant.bytes / bytes_per_second
    rows.append({
      'variant': name,
      'ms_per_call': timing.milliseconds / variant.calls,
      'to_greedy': 1 / timing.speedup_over(timings['greedy']),
      'spread': timings['greedy'].speedups_over(timing),
      'to_floor': timing.median / variant.calls / floor,
      'floor_ms': 1e3 * floor,
      'megabytes': variant.bytes / 1e6,
      'compile_seconds': timing.compile_seconds,
      'rounds': rounds,
    })  # fmt: skip
  return rows


def measure_bandwidth(size: int) -> float:
  """Measures how many bytes a second matrix-vector products read, by the fastest of seven runs.

  The matrix has about `size` bytes, 2^30 at most.
  """
  matrix = jnp.ones((-(-min(size, 2**30) // 4096), 1024), jnp.float32)

  @jax.jit
  def products(matrix: Array) -> Array:
    # Eight in one program, so that the time to start it hardly counts.
    return jax.lax.fori_loop(0, 8, lambda _, v: v + 1e-30 * (matrix @ v).sum(), matrix[0])

  fastest, _ = measure({'products': lambda: products(matrix)}, 7)['products'].spread
  return 8 * matrix.nbytes / fastest


def _make_calls(target: Bound, strategy: Any, state: Any, calls: int | Array) -> Any:
  return fori_loop(0, calls, lambda _, s: strategy.step(target, s), state, nodes_of(strategy))


# The state after `calls` more calls. Here `calls` is data, so one program serves every number.
repeat_calls = jax.jit(_make_calls)
_continue = jax.jit(_make_calls, static_argnames='calls', donate_argnames='state')


def wide_calls(
  target: Bound, strategy: LoopStrategy, state: DecodeState, topology: Topology
) -> Callable[[int], Any]:
  """Returns a function of a number of calls on such nodes, judged by the strategy's rule."""
  drafter = FreeDraft(topology, has_probs=isinstance(strategy.effective_rule, Warped))
  without_draft = dataclasses.replace(state, drafter=())
  return lambda calls: repeat_calls(
    target, Drafted(drafter, strategy.effective_rule), without_draft, calls
  )


def draft_calls(target: Bound, strategy: LoopStrategy, state: DecodeState) -> Callable[[int], Any]:
  """Returns a function of the number of whole drafts that the strategy's drafter proposes."""
  return lambda drafts: _propose(target, strategy.drafter, state, drafts)


@jax.jit
def _propose(target: Bound, drafter: Any, state: DecodeState, drafts: int | Array) -> Any:
  def propose(_: Array, carry: tuple[Any, Array, Any]) -> tuple[Any, Array, Any]:
    # Without the barrier XLA would compute the parts that all drafts share only once.
    inner, root, keys = jax.lax.optimization_barrier(carry)
    draft, inner = drafter.propose(target, inner, root, keys)
    return inner, draft.tokens[:, -1], keys

  return jax.lax.fori_loop(0, drafts, propose, (state.drafter, state.root, state.keys))


def decode_repeatedly(
  target: Bound, strategy: LoopStrategy, inputs: Any, max_len: int, key: Array | None, times: int
) -> Any:
  """Runs the prompt once and decodes the same text `times` times; with 0, returns the first state.

  Arguments as in `fd.decode`; `times` is data, so one program serves every number.

  Raises:
    UserError: as `fd.decode`.
  """
  model = target.module
  max_len, prompt, keys = check_inputs(model, inputs, None, None, max_len, key)
  strategy.check(model, prompt, max_len)
  sizes = Sizes(BATCH, model, strategy, max_len, max_len)
  prompt = dataclasses.replace(sizes.begin(prompt), slots=None)
  return _decode_repeatedly(target, strategy, prompt, keys, sizes.most_tokens(prompt), times)


@functools.partial(jax.jit, static_argnames='slots')
def _decode_repeatedly(
  target: Bound, strategy: LoopStrategy, prompt: Any, keys: Any, slots: int, times: int | Array
) -> DecodeState:
  state, nodes = strategy.init(target, prompt, slots, keys), nodes_of(strategy)

  def decode_again(_: Array, last: DecodeState) -> DecodeState:
    # No length is below 0. XLA does not know that, so it really decodes the text each time.
    first = dataclasses.replace(state, root=state.root + (last.length < 0))
    return while_loop(lambda s: ~s.done.all(), lambda s: strategy.step(target, s), first, nodes)

  return jax.lax.fori_loop(0, times, decode_again, state)


def choose_compute_dtype(dtype: str) -> str:
  """Returns the type of activations for a type of `random_params`.

  For int8 it is float32; for int8w bfloat16, if the machine has units for it."""
  if dtype not in TYPES:
    return dtype
  if dtype == 'int8w' and computes_bfloat16():
    return 'bfloat16'
  return 'float32'


def random_params(module: Any, seed: int, dtype: str) -> Any:
  """Draws matrices for a model, heads or a draft network; scales are one and biases zero.

  The words of a draft vocabulary are the first ones.

  Each tensor is made in `dtype`, so memory never holds a second copy of a large model. For int8 and
  int8w each is drawn in the type of `choose_compute_dtype`, then quantized.
  """
  leaves, tree = jax.tree.flatten_with_path(jax.eval_shape(module.init, jax.random.key(0)))
  keys, wide = jax.random.split(jax.random.key(seed), len(leaves)), choose_compute_dtype(dtype)
  is_kernel: Any = None
  if dtype in TYPES:
    is_kernel = kernels_of(module)
  params = []
  for (path, leaf), key in zip(leaves, keys, strict=True):
    if path[-1].key in ('scale', 'bias'):
      params.append(jnp.full(leaf.shape, path[-1].key == 'scale', wide))
      continue
    if jnp.issubdtype(leaf.dtype, jnp.integer):
      params.append(jnp.arange(leaf.size, dtype=leaf.dtype).reshape(leaf.shape))
      continue
    matrix = _draw_matrix(key, leaf.shape, wide)
    if is_kernel is not None and is_kernel(jax.tree_util.keystr(path, simple=True, separator='/')):
      matrix = quantize_kernel(matrix, dtype)
    params.append(matrix)
  return tree.unflatten(params)


@functools.partial(jax.jit, static_argnames=('shape', 'dtype'))
def _draw_matrix(key: Array, shape: tuple[int, ...], dtype: str) -> Array:
  return jax.random.normal(key, shape, dtype) * jnp.asarray(shape[-1] ** -0.5, dtype)


def _size(trees: Iterable[Any]) -> int:
  """Counts the bytes of some trees; a packed kernel is read once, in one of its two forms."""
  return sum(leaf.nbytes for leaf in jax.tree.leaves(drop_panels(tuple(trees))))
