"""Times single calls of the decoding loop, and counts the bytes they must read."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastdec import struct
from fastdec.decoding import loop
from fastdec.decoding.drafters.heads import HeadsDrafter
from fastdec.decoding.drafters.none import NoDraft
from fastdec.decoding.protocol import Draft, Prompt
from fastdec.decoding.rules import Exact
from fastdec.decoding.topology import Topology
from fastdec.evaluation.wallclock import Timing, measure
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.struct import Bound


@dataclasses.dataclass(frozen=True)
class SpeedConfig:
  """Fields as in `configs/speed.py`; `model` but for its dtype and ends."""

  model: TransformerConfig
  dtypes: tuple[str, ...]
  widths: tuple[int, ...]
  k: int
  heads_d_ff: int
  source: int
  calls: int
  rounds: int
  batch: int
  seed: int


@struct.pytree
class FreeDraft:
  """A chain of guesses that cost nothing and are never right."""

  nodes: int = struct.static()

  def init(self, target: Bound, prefill: Any) -> tuple[()]:
    return ()

  def propose(self, target: Bound, state: tuple[()], root: Any, keys: Any) -> tuple[Draft, tuple[()]]:
    guesses = (root[:, None] + 17 * jnp.arange(self.nodes)) % target.module.vocab_size
    return Draft(guesses.astype(jnp.int32), Topology.chain(self.nodes)), state

  def observe(self, target: Bound, state: tuple[()], step: Any) -> tuple[()]:
    return state


@functools.partial(jax.jit, static_argnames=('model', 'max_len'))
def _start(model: Any, params: Any, drafter: Any, prompt: Prompt, max_len: int) -> loop.DecodeState:
  return loop.init(Bound(model, params), drafter, Exact(), prompt, max_len, None)


@functools.partial(jax.jit, static_argnames=('model', 'calls'))
def _turn(model: Any, params: Any, drafter: Any, state: loop.DecodeState, calls: int) -> loop.DecodeState:
  step = lambda _, s: loop.step(Bound(model, params), drafter, Exact(), s)
  return jax.lax.fori_loop(0, calls, step, state)


def measure_calls(config: SpeedConfig, say: Callable[[str], None]) -> list[dict[str, Any]]:
  """One row a dtype and variant: milliseconds a call, the ratio to greedy's call, and to the floor."""
  return [row for dtype in config.dtypes for row in _measure_dtype(config, dtype, say)]


def _measure_dtype(config: SpeedConfig, dtype: str, say: Callable[[str], None]) -> list[dict[str, Any]]:
  model = Transformer(dataclasses.replace(config.model, dtype=dtype, eos_ids=()))
  made = lambda module, seed: jax.tree.map(lambda x: x.astype(dtype), jax.jit(module.init)(jax.random.key(seed)))
  params = made(model, config.seed)
  drafters = {'greedy': NoDraft()} | {f'width {n}': FreeDraft(n) for n in config.widths if n > 1}
  for layout in ('separate', 'paper'):
    heads = BlockwiseHeads(k=config.k, d_model=config.model.d_model, d_ff=config.heads_d_ff, layout=layout)
    bound = Bound(heads, made(heads, config.seed + 1))
    drafters[f'k = {config.k}, {layout} heads'] = HeadsDrafter(bound, Topology.chain(config.k))
  functions = {name: _caller(model, params, drafter, config) for name, drafter in drafters.items()}
  say(f'{dtype}: compiling and timing {len(functions)} variants')
  timings, bandwidth = measure(functions, config.rounds), _bandwidth(params)
  floors = {name: _bytes(params, drafter) / bandwidth for name, drafter in drafters.items()}
  return [_row(dtype, name, timing, timings['greedy'], floors[name], config) for name, timing in timings.items()]


def _caller(model: Any, params: Any, drafter: Any, config: SpeedConfig) -> Callable[[], Any]:
  rng = np.random.default_rng(config.seed)
  source = jnp.asarray(rng.integers(2, model.vocab_size, (config.batch, config.source)), jnp.int32)
  start = jnp.zeros((config.batch, 1), jnp.int32)
  prompt = Prompt(source, start, jnp.ones(config.batch, jnp.int32), jnp.zeros(config.batch, bool))
  # One max_len for all, so that all caches have about the same slots; a row that finishes costs what it did.
  state = _start(model, params, drafter, prompt, config.calls + max(config.widths) + 1)
  return lambda: _turn(model, params, drafter, state, config.calls)


def _bytes(params: Any, drafter: Any) -> int:
  """What one call must read: decoder weights without the memory's own projections, the embedding, the heads."""
  size = lambda tree: sum(x.nbytes for x in jax.tree.leaves(tree))
  decoder = [value for name, value in params.items() if name.startswith('decoder')]
  once = sum(size(layer['cross']['kv']) for layer in decoder if 'cross' in layer)
  return size(decoder) - once + size(params['embedding']) + size(drafter)


def _bandwidth(params: Any) -> float:
  """Bytes a second that a matrix-vector product of the parameters' size reads, the fastest of seven."""
  matrix = jnp.ones((sum(x.nbytes for x in jax.tree.leaves(params)) // 4096, 1024), jnp.float32)
  product = jax.jit(lambda matrix: matrix @ matrix[0])
  return matrix.nbytes / measure({'product': lambda: product(matrix)}, 7)['product'].spread[0]


def _row(dtype: str, name: str, timing: Timing, greedy: Timing, floor: float, config: SpeedConfig) -> dict[str, Any]:
  return {
    'dtype': dtype,
    'variant': name,
    'ms_per_call': timing.milliseconds / config.calls,
    'to_greedy': 1 / timing.speedup_over(greedy),
    'to_floor': timing.median / config.calls / floor,
    'floor_ms': 1e3 * floor,
    'compile_seconds': timing.compile_seconds,
    'rounds': config.rounds,
  }


def markdown(rows: Sequence[Mapping[str, Any]], conditions: Mapping[str, Any]) -> str:
  """The rows as a pipe table, the conditions below."""
  lines = ['| dtype | variant | ms a call | to greedy | to the floor | floor ms |', '|---|---|---|---|---|---|']
  for row in rows:
    figures = (row['ms_per_call'], row['to_greedy'], row['to_floor'], row['floor_ms'])
    lines.append(f'| {row["dtype"]} | {row["variant"]} | ' + ' | '.join(f'{x:.2f}' for x in figures) + ' |')
  return '\n'.join([*lines, '', '; '.join(f'{name} {value}' for name, value in conditions.items()), ''])
