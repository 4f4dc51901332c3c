"""What a call of a language model costs: `experiments.benchmark` with configs/lm_speed.py."""

import dataclasses
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab.packing import rows_by_panels
from experiments.lab.report import Column
from experiments.speed.costs import COLUMNS, check_at_least, figures, table
from fastdec import struct
from fastdec.decoding.methods.greedy import NoDraft
from fastdec.decoding.methods.trees import medusa_choices
from fastdec.decoding.sampling import argmax
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.evaluation.calls import Calls, Drafted, FreeDraft, computing_in
from fastdec.evaluation.wallclock import Timing, measure
from fastdec.models.lm import LM, LMConfig
from fastdec.packed import pack
from fastdec.products import kernels_of
from fastdec.quantized import quantized_kernel
from fastdec.struct import Bound

Row = dict[str, Any]
# with fewer nodes it is a chain; it has 64 in all
TREE, TREE_WIDTHS = 'mc_sim_7b_63', range(16, 65)


@dataclasses.dataclass(frozen=True)
class SpeedConfig:
  """Fields as in `configs/lm_speed.py`; `model` is without its dtype and end tokens."""

  task: Literal['lm']
  model: LMConfig
  dtypes: tuple[str, ...]
  packed: bool
  widths: tuple[int, ...]
  prompt: int
  calls: int
  rounds: int
  batch: int
  seed: int

  def __post_init__(self) -> None:
    check_at_least(1, self, 'widths', 'prompt', 'calls', 'rounds', 'batch')
    if not self.dtypes:
      raise UserError('dtypes=() is not possible: give one value at least')
    for dtype in self.dtypes:
      self.computing(dtype)  # says which there are

  def computing(self, dtype: str) -> LMConfig:
    """The model's config, without ends; with parameters in int8 it computes in float32."""
    return dataclasses.replace(self.model, dtype=computing_in(dtype), eos_ids=())


@struct.pytree
class ModelAlone:
  """The model's part of a call: nodes in, the most likely token after each out, which the next call
  reads.

  There is no draft, no rule and no output; the cache keeps the root while it has room.
  """

  topology: Topology = struct.static()

  @property
  def nodes(self) -> int:
    return self.topology.n

  def step(self, target: Bound, state: tuple[Any, Any]) -> tuple[Any, Any]:
    tokens, cache = state
    hidden, _, cache = target.module.apply(target.params, tokens, self.topology.nodes, cache)
    has_room = cache.length + self.topology.n < cache.slots
    return argmax(target.module.unembed(target.params, hidden)), cache.commit(
      None, has_room.astype(jnp.int32)
    )


def model_alone(calls: Calls, topology: Topology) -> Calls:
  """The model's part of `calls`, alone, from what they have after the prompt; its state is (tokens
  [b, n], cache)."""
  tokens = jnp.tile(calls.state.root[:, None], topology.n)
  cache = jax.tree.map(jnp.copy, calls.state.cache)  # the calls' own is overwritten in place
  return Calls(calls.target, ModelAlone(topology), (tokens, cache), calls.calls)


def random_lm(model: LM, seed: int, dtype: str) -> Any:
  """Random matrices, scales of one, no biases; each tensor is made in `dtype`, so that no other
  copy is ever there.

  In int8 they are those of float32, quantized one by one.
  """
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  leaves, tree = jax.tree.flatten_with_path(shapes)
  keys = jax.random.split(jax.random.key(seed), len(leaves))
  is_kernel = kernels_of(model)
  wide = computing_in(dtype)

  def made(path: Any, shape: tuple[int, ...], key: Any) -> Any:
    if path[-1].key in ('scale', 'bias'):
      return jnp.full(shape, path[-1].key == 'scale', wide)
    matrix = _matrix(key, shape, wide)
    is_quantized = dtype == 'int8' and is_kernel(
      jax.tree_util.keystr(path, simple=True, separator='/')
    )
    return quantized_kernel(matrix) if is_quantized else matrix

  return tree.unflatten(
    made(path, leaf.shape, key) for (path, leaf), key in zip(leaves, keys, strict=True)
  )


@functools.partial(jax.jit, static_argnames=('shape', 'dtype'))
def _matrix(key: Any, shape: tuple[int, ...], dtype: str) -> Any:
  return jax.random.normal(key, shape, dtype) * jnp.asarray(shape[-1] ** -0.5, dtype)


def measure_speed(config: SpeedConfig, say: Callable[[str], None]) -> list[Row]:
  """One row a dtype and draft: those of `costs.measured`, the ratio to a chain of as many nodes,
  the share of the bandwidth, and what the loop adds."""
  return [row for dtype in config.dtypes for row in _measure_dtype(config, dtype, say)]


def drafts_of(widths: Sequence[int]) -> dict[str, Topology]:
  """What is timed, by the names of rows: greedy, a chain of each width, and a tree where there is
  one of that size."""
  drafts = {'greedy': Topology.chain(1)} | {
    f'width {n}': Topology.chain(n) for n in widths if n > 1
  }
  for n in widths:
    if n in TREE_WIDTHS:
      drafts[f'tree {n}'] = Topology.from_choices(medusa_choices(TREE)[: n - 1])
  return drafts


def _measure_dtype(config: SpeedConfig, dtype: str, say: Callable[[str], None]) -> list[Row]:
  model = LM(config.computing(dtype))
  target = Bound(model, random_lm(model, config.seed, dtype))
  few = rows_by_panels(dtype) if config.packed else 0
  packed = Bound(model, pack(model, target.params)) if few else target
  drafts = drafts_of(config.widths)
  say(f'{dtype}: compiling and timing {len(drafts)} drafts')
  prompts = np.random.default_rng(config.seed).integers(
    0, model.vocab_size, (config.batch, config.prompt), np.int32
  )
  max_len = config.calls + max(config.widths) + 1

  def drafter(topology):
    return FreeDraft(topology) if topology.n > 1 else NoDraft()

  # The prompt is read once, with room for the widest: none of these drafters has a state of its
  # own.
  widest = Topology.chain(max(one.n for one in drafts.values()))
  begun = Calls.after_prompt(target, drafter(widest), prompts, max_len, config.calls)
  loops, bare = {}, {}
  for name, topology in drafts.items():
    forms = {name: target}
    if config.batch * topology.n <= few:
      forms[f'{name}, packed'] = packed
    for form, bound in forms.items():
      loops[form] = Calls(
        bound, Drafted(drafter(topology)), jax.tree.map(jnp.copy, begun.state), config.calls
      )
      bare[f'bare {form}'] = model_alone(loops[form], topology)
  timings = measure(loops | bare, config.rounds)
  rows = figures(timings, loops, 'embedding' if config.model.tied else 'output')
  return [
    {
      'dtype': dtype,
      'batch': config.batch,
      **row,
      **_beside(row['variant'], row['to_floor'], timings, config),
    }
    for row in rows
  ]


def _beside(
  variant: str, to_floor: float, timings: Mapping[str, Timing], config: SpeedConfig
) -> Row:
  """The ratio to a chain, the share of the bandwidth that a call reaches, and by how much it
  exceeds the bare one, round by round."""
  own, bare, chain = (
    timings[name] for name in (variant, f'bare {variant}', variant.replace('tree', 'width'))
  )
  pairs = list(zip(own.seconds, bare.seconds, strict=True))
  return {
    'to_chain': 1 / own.speedup_over(chain),
    'bandwidth_share': 1 / to_floor,
    'bare_ms': bare.milliseconds / config.calls,
    'overhead_ms': 1e3 * statistics.median(whole - alone for whole, alone in pairs) / config.calls,
    'overhead_share': statistics.median(1 - alone / whole for whole, alone in pairs),
  }


MORE_COLUMNS = (
  Column('to the chain', 'to_chain', '.2f'),
  Column('of the bandwidth', 'bandwidth_share', '.0%'),
  Column('the model alone, ms', 'bare_ms', '.2f'),
  Column('the loop adds, ms', 'overhead_ms', '.3f'),
  Column('of a call', 'overhead_share', '.1%'),
)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
  """The rows as a pipe table."""
  return table(rows, (*COLUMNS, *MORE_COLUMNS))
