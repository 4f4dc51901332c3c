"""Several models as one, whose probability of a token is the mean of the members' probabilities."""

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
  """The members' caches; each method applies to all of them."""

  members: tuple[Any, ...]

  @property
  def length(self) -> Int[Array, ' b']:
    return self.members[0].length

  def commit(self, path: Int[Array, 'b m'] | None, count: Int[Array, ' b']) -> 'Caches':
    return Caches(tuple(cache.commit(path, count) for cache in self.members))

  def gather(self, rows: Int[Array, ' w']) -> 'Caches':
    return Caches(tuple(cache.gather(rows) for cache in self.members))


@dataclasses.dataclass(frozen=True)
class Ensemble:
  """A model (protocol: `models/api.py`) made of models of any size or kind over one vocabulary.

  Its parameters are a tuple of the members' parameters, its hidden state is a concatenation of
  theirs, and its logits are the log of the members' mean probability. It has the members' values of
  `SHARED`, in which they agree.
  """

  models: tuple[Model, ...]

  def __post_init__(self) -> None:
    object.__setattr__(self, 'models', tuple(self.models))
    if not self.models:
      raise UserError('an ensemble of no models is not possible: give at least one')

    # Two models without a `source_pad_id` of their own agree if their pad ids do.
    values = []
    for model in self.models:
      settings = {name: getattr(model, name, None) for name in SHARED}
      values.append(settings | {'source_pad_id': source_pad(model)})
    for i, other in enumerate(values[1:], start=2):
      for name in SHARED:
        if other[name] != values[0][name]:
          raise UserError(
            f'model {i} of the ensemble has {name}={other[name]}, and the first has'
            f' {values[0][name]}: they must agree'
          )

    for name, value in values[0].items():
      object.__setattr__(self, name, value)

    for i, model in enumerate(self.models, start=1):
      if not isinstance(getattr(model, 'd_model', None), int):
        raise UserError(
          f'model {i} of the ensemble, {type(model).__name__}, has no d_model: give it the width'
          ' of the hidden states that apply returns, as a value d_model'
        )

  @property
  def widths(self) -> list[int]:
    """Width of each member's hidden states."""
    return [model.d_model for model in self.models]  # pyright: ignore  checked in __post_init__

  @property
  def d_model(self) -> int:
    """Sum of the members' widths."""
    return sum(self.widths)

  @property
  def reads_paths(self) -> bool:
    """True if each member does."""
    return all(getattr(model, 'reads_paths', False) for model in self.models)

  @property
  def max_positions(self) -> int | None:
    """The smallest limit of a member; None if no member has one."""
    limits = []
    for model in self.models:
      if model.max_positions is not None:
        limits.append(model.max_positions)
    return min(limits, default=None)

  def partition(self, devices: int) -> Table:
    """Returns the members' tables, each for the member's own parameters."""
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
    number = f'a {type(params).__name__}'
    if isinstance(params, tuple | list):
      number = f'{len(params)}'
    if number != f'{len(self.models)}':
      raise UserError(
        f'an ensemble of {len(self.models)} models needs a tuple of as many parameters, not'
        f' {number}'
      )
    return tuple(model.encode(p, inputs) for model, p in zip(self.models, params, strict=True))

  def init_cache(self, params: Params, memory: Any, rows: int, slots: int | Capacity) -> Caches:
    caches = []
    for model, p, m in zip(self.models, params, memory, strict=True):
      caches.append(model.init_cache(p, m, rows, slots))
    return Caches(tuple(caches))

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
        f'an ensemble has no layers of its own whose states taps={taps} could read: decode with one'
        ' of its models, or with a draft that reads no layers'
      )
    hidden, members = [], []
    for model, p, c in zip(self.models, params, cache.members, strict=True):
      states, _, c = model.apply(p, tokens, nodes, c)
      hidden.append(states)
      members.append(c)
    widths = [h.shape[-1] for h in hidden]
    if widths != self.widths:
      raise UserError(
        f'hidden states of the ensemble are {widths} wide, and its models have'
        f' d_model={self.widths}'
      )
    return jnp.concatenate(hidden, axis=-1), (), Caches(tuple(members))

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    ends = np.cumsum(self.widths)
    log_probs = []
    for model, p, h in zip(self.models, params, jnp.split(hidden, ends[:-1], axis=-1), strict=True):
      log_probs.append(jax.nn.log_softmax(model.unembed(p, h)))
    return jax.nn.logsumexp(jnp.stack(log_probs), axis=0) - np.log(len(log_probs)).astype(
      log_probs[0].dtype
    )
