"""Several models as one: the next token's law is the mean of the members' laws."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fastdec import struct
from fastdec.errors import UserError
from fastdec.kernels.products import products_of
from fastdec.kernels.sharding import Table, partition_of, prefix_regex
from fastdec.models.api import Capacity, Model, Nodes, Params, source_pad

SHARED = (
  'vocab_size',
  'source_vocab_size',
  'eos_ids',
  'pad_id',
  'source_pad_id',
  'start_id',
  'suppressed_ids',
  'fixed_length',
)


@struct.pytree
class Caches:
  """The members' caches: every verb goes to each of them."""

  members: tuple[Any, ...]

  @property
  def length(self) -> Int[Array, ' b']:
    return self.members[0].length

  def commit(self, path: Int[Array, 'b m'] | None, count: Int[Array, ' b']) -> 'Caches':
    return Caches(tuple(cache.commit(path, count) for cache in self.members))

  def gather(self, rows: Int[Array, ' w']) -> 'Caches':
    return Caches(tuple(cache.gather(rows) for cache in self.members))

  def take(self, rows: Int[Array, ' r'], beams: int) -> 'Caches':
    return Caches(tuple(cache.take(rows, beams) for cache in self.members))


def _shared(name: str) -> Any:
  """Returns a property that reads `name` from the first member; all members agree on it."""
  return property(lambda self: getattr(self.models[0], name, None))


def _value(model: Model, name: str) -> Any:
  return source_pad(model) if name == 'source_pad_id' else getattr(model, name, None)


@dataclasses.dataclass(frozen=True)
class Ensemble:
  """A model (protocol: `models/api.py`) of models over one vocabulary, of any size or kind.

  Its parameters are a tuple of the members' parameters, its hidden state theirs side by side. Its
  logits are the log of the members' mean probability.
  """

  models: tuple[Model, ...]

  vocab_size = _shared('vocab_size')
  source_vocab_size = _shared('source_vocab_size')
  eos_ids = _shared('eos_ids')
  pad_id = _shared('pad_id')
  start_id = _shared('start_id')
  suppressed_ids = _shared('suppressed_ids')
  fixed_length = _shared('fixed_length')

  def __post_init__(self) -> None:
    object.__setattr__(self, 'models', tuple(self.models))
    if not self.models:
      raise UserError('an ensemble of no models is not possible: give at least one')
    first = self.models[0]
    for i, model in enumerate(self.models[1:], start=2):
      for name in SHARED:
        have, want = _value(model, name), _value(first, name)
        if have != want:
          raise UserError(
            f'model {i} of the ensemble has {name}={have}, and the first has {want}:'
            ' they must agree'
          )
    for i, model in enumerate(self.models, start=1):
      if not isinstance(getattr(model, 'd_model', None), int):
        raise UserError(
          f'model {i} of the ensemble, {type(model).__name__}, does not say how wide its hidden'
          ' states are: give it a value d_model, the length of the last axis of what apply returns'
        )

  @property
  def source_pad_id(self) -> int:
    """Id that fills up sources, of all members."""
    return source_pad(self.models[0])

  @property
  def d_model(self) -> int:
    """Sum of the members' widths."""
    return sum(self._widths)

  @property
  def _widths(self) -> list[int]:
    return [model.d_model for model in self.models]  # pyright: ignore  checked in __post_init__

  @property
  def max_positions(self) -> int | None:
    """Smallest of the members' limits."""
    return min((m.max_positions for m in self.models if m.max_positions is not None), default=None)

  def partition(self, devices: int) -> Table:
    """Lays out each member's parameters as the member does; see `kernels.sharding`."""
    rows = []
    for i, model in enumerate(self.models):
      for regex, spec in partition_of(model, devices):
        rows.append((prefix_regex(str(i), regex), spec))
    return tuple(rows)

  @property
  def products(self) -> tuple[str, ...]:
    """Each member's kernels; see `kernels.products`."""
    regexes = []
    for i, model in enumerate(self.models):
      for regex in products_of(model):
        regexes.append(prefix_regex(str(i), regex))
    return tuple(regexes)

  def encode(self, params: Params, inputs: Array | None) -> Any:
    if not isinstance(params, tuple | list) or len(params) != len(self.models):
      have = f'{len(params)}' if isinstance(params, tuple | list) else f'a {type(params).__name__}'
      raise UserError(
        f'an ensemble of {len(self.models)} models takes a tuple of as many parameters, not {have}'
      )
    return tuple(model.encode(p, inputs) for model, p in zip(self.models, params, strict=True))

  def init_cache(self, params: Params, memory: Any, rows: int, slots: int | Capacity) -> Caches:
    parts = zip(self.models, params, memory, strict=True)
    return Caches(tuple(model.init_cache(p, m, rows, slots) for model, p, m in parts))

  def apply(
    self,
    params: Params,
    tokens: Int[Array, 'b n'],
    nodes: Nodes,
    cache: Caches,
    taps: tuple[int, ...] = (),
  ) -> tuple[Float[Array, 'b n d'], tuple[()], Caches]:
    if taps:
      raise UserError(
        f'an ensemble has no layers of its own, and taps={taps} ask for their states: decode with'
        ' one of its models, or with a draft that reads none'
      )
    parts = zip(self.models, params, cache.members, strict=True)
    hidden, _, members = zip(
      *(model.apply(p, tokens, nodes, c) for model, p, c in parts), strict=True
    )
    widths = [h.shape[-1] for h in hidden]
    if widths != self._widths:
      raise UserError(
        f'hidden states of the ensemble are {widths} wide, and its models say'
        f' d_model={self._widths}'
      )
    return jnp.concatenate(hidden, axis=-1), (), Caches(members)

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    ends = np.cumsum(self._widths)
    parts = zip(self.models, params, jnp.split(hidden, ends[:-1], axis=-1), strict=True)
    laws = [jax.nn.log_softmax(model.unembed(p, h)) for model, p, h in parts]
    return jax.nn.logsumexp(jnp.stack(laws), axis=0) - np.log(len(laws)).astype(laws[0].dtype)
