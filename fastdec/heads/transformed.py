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


@dataclasses.dataclass(frozen=True)
class Transformed:
  """A model whose p1 is the learned head 1 (`first='transformed'`).

  Hidden states are the trunk's, logits go through the head. Parameters: 'model' and 'heads'."""

  model: Any
  heads: BlockwiseHeads

  def __post_init__(self) -> None:
    if self.heads.first != 'transformed':
      raise UserError(
        'these heads leave p1 the identity: decode with the model itself, not with Transformed(...)'
      )

  @property
  def d_model(self) -> int:
    return self.model.d_model

  @property
  def vocab_size(self) -> int:
    return self.model.vocab_size

  @property
  def source_vocab_size(self) -> int | None:
    return self.model.source_vocab_size

  @property
  def eos_ids(self) -> tuple[int, ...]:
    return self.model.eos_ids

  @property
  def pad_id(self) -> int:
    return self.model.pad_id

  @property
  def source_pad_id(self) -> int:
    return source_pad(self.model)

  @property
  def start_id(self) -> int | None:
    return self.model.start_id

  @property
  def suppressed_ids(self) -> tuple[int, ...]:
    return self.model.suppressed_ids

  @property
  def max_positions(self) -> int | None:
    return self.model.max_positions

  @property
  def layers(self) -> int:
    return self.model.layers

  @property
  def fixed_length(self) -> int | None:
    return self.model.fixed_length

  def partition(self, devices: int) -> Table:
    """Lays out the parameters as trunk and heads do; see `kernels.sharding`."""
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
    return self.model.unembed(
      params['model'], self.heads.one(params['heads'], hidden, jnp.int32(0))
    )

  def project(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Applies the vocabulary projection alone, which all heads share."""
    return self.model.unembed(params['model'], hidden)
