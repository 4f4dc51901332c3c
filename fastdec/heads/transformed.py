"""A learned p1: a model whose `unembed` applies head 1 (Stern et al. 2018)."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec.errors import UserError
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.kernels.products import products_of
from fastdec.kernels.sharding import Table, partition_of, prefix_regex
from fastdec.models.api import Capacity, Params, embedding_of, source_of, source_pad
from fastdec.models.taps import apply_with

OF_TRUNK = (
  'd_model', 'layers', 'vocab_size', 'source_vocab_size', 'eos_ids', 'pad_id', 'start_id',
  'suppressed_ids', 'max_positions', 'fixed_length', 'reads_paths',
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Transformed:
  """A model whose p1 is the learned head 1 (`first='transformed'`).

  Hidden states and `OF_TRUNK` are the trunk's; logits are made from the states by the head. The
  parameters are a dict of 'model' and 'heads'."""

  model: Any  # the trunk
  heads: BlockwiseHeads

  def __post_init__(self) -> None:
    if self.heads.first != 'transformed':
      raise UserError(
        'these heads have no learned p1: decode with the model itself, not with Transformed(...)'
      )
    for name in OF_TRUNK:
      if hasattr(self.model, name):
        object.__setattr__(self, name, getattr(self.model, name))

  @property
  def source_pad_id(self) -> int:
    return source_pad(self.model)

  def partition(self, devices: int) -> Table:
    """Returns the tables of trunk and heads, each for its own parameters."""
    rows = []
    for name, part in (('model', self.model), ('heads', self.heads)):
      for regex, spec in partition_of(part, devices):
        rows.append((prefix_regex(name, regex), spec))
    return tuple(rows)

  @property
  def products(self) -> tuple[str, ...]:
    """The trunk's kernels and the heads'; see `kernels.products`."""
    regexes = []
    for name, part in (('model', self.model), ('heads', self.heads)):
      for regex in products_of(part):
        regexes.append(prefix_regex(name, regex))
    return tuple(regexes)

  def encode(self, params: Params, inputs: Array) -> Any:
    return self.model.encode(params['model'], inputs)

  def init_cache(self, params: Params, memory: Any, rows: int, slots: int | Capacity) -> Any:
    return self.model.init_cache(params['model'], memory, rows, slots)

  def apply(
    self,
    params: Params,
    tokens: Int[Array, 'b n'],
    nodes: Any,
    cache: Any,
    taps: tuple[int, ...] = (),
    **how: Any,
  ) -> Any:
    return apply_with(self.model, taps)(params['model'], tokens, nodes, cache, **how)

  def features(
    self, params: Params, batch: Any, taps: tuple[int, ...] = (), dropout_key: Array | None = None
  ) -> Any:
    return self.model.features(params['model'], batch, taps, dropout_key)

  def source(self, memory: Any) -> Any:
    return source_of(self.model)(memory)

  def embedding(self, params: Params, tokens: Int[Array, '*b']) -> Float[Array, '*b e']:
    return embedding_of(self.model)(params['model'], tokens)

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    transformed = self.heads.one(params['heads'], hidden, jnp.int32(0))
    return self.model.unembed(params['model'], transformed)

  def project(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Applies only the vocabulary projection, which all heads share."""
    return self.model.unembed(params['model'], hidden)


def without_heads(model: Any, params: Params) -> tuple[Any, Params]:
  """Returns the model that heads were trained on: a `Transformed` without its head of p1."""
  if isinstance(model, Transformed):
    return model.model, params['model']
  return model, params
