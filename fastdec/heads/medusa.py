"""Medusa's prediction heads (Cai et al. 2024, section 2.1.1).

Head i guesses the token i + 1 positions after the one that the model itself predicts (i from 0), from the same hidden
state: residual blocks x + SiLU(W x + b), then a projection to the vocabulary. W and b begin at zero, an own projection
begins as the model's (`MedusaHeads.start`): so every head begins by predicting what the model does.

Heads without projections of their own share the model's, whatever that does beside a product (T5 scales, Marian adds a
bias): a fraction of the memory, and one read of it for all heads.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, DTypeLike, Float, Int

from fastdec.errors import UserError
from fastdec.models.api import Params, vocabulary_projection
from fastdec.models.layers import affine, unit_scaling
from fastdec.models.layers import project as product
from fastdec.sharding import Table

Project = Callable[[Array], Array]


@dataclasses.dataclass(frozen=True)
class MedusaHeads:
  """The heads' sizes: a hashable value. Parameters, a dict a head, so that nothing is sliced or copied to use a few:

  head_0/block_0/kernel [d, d]    head_0/block_0/bias [d]    ...    head_0/projection/kernel [v, d]
  """

  depth: int  # heads: tokens below the root that they draft
  d_model: int
  vocab_size: int | None = None  # words that each head's own projection knows; None: all share the model's projection
  layers: int = 1  # residual blocks a head
  output_bias: bool = False  # own projections have one: for models whose projection does (published heads have none)

  def __post_init__(self) -> None:
    for name in ('depth', 'd_model', 'layers'):
      if getattr(self, name) < 1:
        raise UserError(f'{name}={getattr(self, name)} is not possible: give 1 or more')
    if self.output_bias and self.vocab_size is None:
      raise UserError('output_bias=True is for own projections, and these heads have none: give vocab_size too')

  @property
  def offsets(self) -> tuple[int, ...]:
    """Head j predicts the target `offsets[j]` positions after the one p1 predicts; p1 is the model itself."""
    return tuple(range(1, self.depth + 1))

  def partition(self, devices: int) -> Table:
    """Every matrix by its outputs, own projections so by words, as the model's; see `fastdec.sharding`."""
    return ((r'(^|/)head_\d+/(block_\d+|projection)/(kernel|bias)$', P('model')),)

  def init(self, key: Array) -> Params:
    """Fresh float32 parameters: blocks at zero, own projections random. See `start`."""
    if self.vocab_size is None:
      return self._blocks(jnp.float32)

    def kernel(key):
      return unit_scaling(key, (self.vocab_size, self.d_model))

    return self._projecting([kernel(one) for one in jax.random.split(key, self.depth)], jnp.zeros(self.vocab_size))

  def start(self, model: Any, params: Params) -> Params:
    """Parameters by which every head predicts what the model predicts: where training begins.

    Args:
      model: the trunk, with parameters `params`; any whose logits are an affine function of its hidden state.

    Raises:
      UserError: own projections of another size than the model's, or without the bias that it has.
    """
    dtype = np.result_type(np.float32, *(x.dtype for x in jax.tree.leaves(params)))
    if self.vocab_size is None:
      return self._blocks(dtype)
    project = functools.partial(vocabulary_projection(model), params)
    with jax.default_matmul_precision('highest'):  # a product with the identity is then exact
      bias = project(jnp.zeros((1, self.d_model), dtype))[0]
      kernel = (project(jnp.eye(self.d_model, dtype=dtype)) - bias[None]).T
    if kernel.shape[0] != self.vocab_size:
      raise UserError(f'vocab_size={self.vocab_size}, and the model has {kernel.shape[0]} words: give as many')
    if not self.output_bias and bias.any():
      raise UserError('this model adds a bias to its logits: give the heads output_bias=True, or no vocab_size')
    return self._projecting([kernel] * self.depth, bias)

  def drafting(self, params: Params, depth: int) -> tuple['MedusaHeads', Params]:
    """The first `depth` heads."""
    return dataclasses.replace(self, depth=depth), {name: params[name] for name in _names(depth)}

  def logits(self, params: Params, hidden: Float[Array, 'b d'], project: Project) -> Float[Array, 'b h v']:
    """What each head predicts; `project` is the model's vocabulary projection, for heads without their own."""
    outputs = jnp.stack([self._output(params[name], hidden) for name in _names(self.depth)], axis=1)
    return project(outputs) if self.vocab_size is None else outputs

  def logits_at(
    self,
    params: Params,
    hidden: Float[Array, '*b d'],
    offset: Int[Array, ''],
    project: Project,
    dropout_key: Array | None = None,
  ) -> Float[Array, '*b v']:
    """What the one head predicts that looks `offset` positions beyond p1; 0 is p1, the model itself (for training).

    There is no dropout here: `dropout_key` is not used.
    """
    heads = [functools.partial(self._output, params[name]) for name in _names(self.depth)]
    if self.vocab_size is None:
      return project(jax.lax.switch(offset, [lambda x: x, *heads], hidden))
    return jax.lax.switch(offset, [project, *heads], hidden)

  def _output(self, own: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b _']:
    """A head's logits; without a projection of its own, the hidden state for the model's."""
    for block in (own[name] for name in _names(self.layers, 'block')):
      hidden = hidden + jax.nn.silu(affine(hidden, block['kernel'], block['bias']))
    if self.vocab_size is None:
      return hidden
    logits = product(hidden, own['projection']['kernel'])
    if not self.output_bias:
      return logits
    return logits + own['projection']['bias'].astype(logits.dtype).reshape((1,) * (logits.ndim - 1) + (-1,))

  def _blocks(self, dtype: DTypeLike) -> Params:
    """Residual blocks that change nothing yet."""
    d = self.d_model

    def block():
      return {'kernel': jnp.zeros((d, d), dtype), 'bias': jnp.zeros(d, dtype)}

    return {name: {block_name: block() for block_name in _names(self.layers, 'block')} for name in _names(self.depth)}

  def _projecting(self, kernels: list[Float[Array, 'v d']], bias: Float[Array, ' v']) -> Params:
    """Such blocks, and own projections."""
    biases = {'bias': bias} if self.output_bias else {}
    own = self._blocks(bias.dtype)
    return {name: own[name] | {'projection': {'kernel': k, **biases}} for name, k in zip(own, kernels, strict=True)}


def _names(count: int, of: str = 'head') -> list[str]:
  return [f'{of}_{i}' for i in range(count)]
