"""Medusa's prediction heads (Cai et al. 2024, section 2.1.1).

Head i, from 0, guesses the token i + 1 positions after the model's own prediction. It reads the
same hidden state, and has residual blocks x + SiLU(W x + b) and a projection to the vocabulary.
W and b start at zero, and the projection starts as a copy of the model's (`MedusaHeads.start`), so
every head first predicts the model's token. Unlike the paper's, heads may also read the root and
the guess before: `heads.context`.

Heads may share the model's projection, even if it is more than a product (T5 scales, Marian adds a
bias). That takes a fraction of the memory, and the matrix is read once for all heads.
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
from fastdec.fields import check_sizes
from fastdec.heads.context import Context
from fastdec.kernels.products import KERNELS
from fastdec.kernels.sharding import WORDS, Table
from fastdec.models.api import Params, float_type, vocabulary_projection
from fastdec.models.layers import add_bias, affine, unit_scaling
from fastdec.models.layers import project as product

Project = Callable[[Array], Array]


@dataclasses.dataclass(frozen=True)
class MedusaHeads(Context):
  """The heads' sizes: a hashable value. Each head has a dict of parameters:

  head_0/block_0/kernel [d, d]    head_0/block_0/bias [d]    ...    head_0/projection/kernel [v, d]
  """

  depth: int  # number of heads, and of tokens that they draft below the root
  d_model: int
  # words of each head's own projection; None: all share the model's projection
  vocab_size: int | None = None
  layers: int = 1  # residual blocks of a head
  # own projections have a bias, for models whose projection has one (published heads have none)
  output_bias: bool = False
  rooted: bool = False  # the first block reads the root's embedding too: its kernel is [d, d + e]
  d_embed: int | None = None  # its width e (None: d_model)
  # rank of a bias by the token guessed before, with before [words, markov] and after; 0: none
  markov: int = 0
  words: int | None = None  # size of the vocabulary, for that bias
  # number of words that they guess among, with their own output (`heads.shortlist`); 0: all
  short: int = 0

  products = (KERNELS, r'(^|/)(output|after)$')  # see `kernels.products`

  def __post_init__(self) -> None:
    check_sizes(self, 'depth', 'd_model', 'layers')
    if self.output_bias and self.vocab_size is None:
      raise UserError(
        'output_bias=True is for own projections, and these heads have none: give vocab_size too'
      )
    self.check_context()

  @property
  def offsets(self) -> tuple[int, ...]:
    """Distances: head j predicts the target `offsets[j]` positions after p1's; p1 is the model."""
    return tuple(range(1, self.depth + 1))

  def partition(self, devices: int) -> Table:
    """Splits every matrix by outputs (a projection by words); see `kernels.sharding`."""
    return ((r'(^|/)head_\d+/(block_\d+|projection)/(kernel|bias)$', P('model')), *WORDS)

  def init(self, key: Array) -> Params:
    """Returns fresh float32 parameters: blocks of zeros, and random projections. See `start`."""
    if self.vocab_size is None:
      return self._init_blocks(jnp.float32) | self.init_bias(key) | self.init_words()

    shape = (self.vocab_size, self.d_model)
    kernels = [unit_scaling(own_key, shape) for own_key in jax.random.split(key, self.depth)]
    params = self._init_heads(kernels, jnp.zeros(self.vocab_size)) | self.init_bias(key)
    if self.short:
      params['ids'] = jnp.arange(self.short, dtype=jnp.int32)
    return params

  def start(self, model: Any, params: Params) -> Params:
    """Returns parameters to train from: every head predicts what the model predicts.

    Args:
      model: the trunk, with parameters `params`; its logits must be an affine function of its
        hidden state.

    Raises:
      UserError: the heads have their own projections, but not of the model's size, or without the
        bias that the model has.
    """
    self.check_whole()
    dtype = np.result_type(np.float32, float_type(params))
    markov_bias = self.init_bias(jax.random.key(0))
    if self.vocab_size is None:
      return self._init_blocks(dtype) | markov_bias

    # The model's projection, found by projecting zero and the identity.
    project = functools.partial(vocabulary_projection(model), params)
    with jax.default_matmul_precision('highest'):  # a product with the identity is then exact
      bias = project(jnp.zeros((1, self.d_model), dtype))[0]
      kernel = (project(jnp.eye(self.d_model, dtype=dtype)) - bias[None]).T
    if kernel.shape[0] != self.vocab_size:
      raise UserError(
        f'vocab_size={self.vocab_size} must be the number of words of the model, {kernel.shape[0]}'
      )
    if not self.output_bias and bias.any():
      raise UserError(
        'this model adds a bias to its logits: give the heads output_bias=True, or no vocab_size'
      )
    return self._init_heads([kernel] * self.depth, bias) | markov_bias

  def drafting(self, params: Params, depth: int) -> tuple['MedusaHeads', Params]:
    """Returns the first `depth` heads."""
    own = {name: params[name] for name in _names(depth)}
    return dataclasses.replace(self, depth=depth), own | self.take_shared(params)

  def logits(
    self,
    params: Params,
    hidden: Float[Array, 'b d'],
    project: Project,
    root: Float[Array, 'b e'] | None = None,
  ) -> Float[Array, 'b h v']:
    """See `Context`; heads with their own projections do not call `project`."""
    outputs = []
    for name in _names(self.depth):
      outputs.append(self._read_head(params[name], hidden, root))
    stacked = jnp.stack(outputs, axis=1)
    if self.vocab_size is None:
      stacked = project(stacked)
    return stacked

  def logits_at(
    self,
    params: Params,
    hidden: Float[Array, '*b d'],
    offset: Int[Array, ''],
    project: Project,
    dropout_key: Array | None = None,
    root: Float[Array, '*b e'] | None = None,
    before: Int[Array, '*b'] | None = None,
  ) -> Float[Array, '*b v']:
    """See `Context`; offset 0 is the model, and `dropout_key` is not used."""
    self.check_whole()
    heads = []
    for name in _names(self.depth):
      heads.append(functools.partial(self._read_head, params[name], root=root))
    if self.vocab_size is None:
      logits = project(jax.lax.switch(offset, [lambda x: x, *heads], hidden))
    else:
      logits = jax.lax.switch(offset, [project, *heads], hidden)
    return self.add_markov_bias(params, logits, offset, before)

  def _read_head(
    self, own: Params, hidden: Float[Array, '*b d'], root: Float[Array, '*b e'] | None = None
  ) -> Float[Array, '*b _']:
    """Returns a head's logits or, if it has no projection of its own, its state."""
    read = self.join_root(hidden, root)
    for name in _names(self.layers, 'block'):
      block = own[name]
      hidden = hidden + jax.nn.silu(affine(read, block['kernel'], block['bias']))
      read = hidden
    if self.vocab_size is None:
      return hidden
    logits = product(hidden, own['projection']['kernel'])
    if self.output_bias:
      logits = add_bias(logits, own['projection']['bias'])
    return logits

  def _init_blocks(self, dtype: DTypeLike) -> Params:
    """Returns residual blocks that change nothing yet."""
    heads, d = {}, self.d_model
    for head in _names(self.depth):
      blocks, inputs = {}, d + self.root_width
      for block in _names(self.layers, 'block'):
        blocks[block] = {'kernel': jnp.zeros((d, inputs), dtype), 'bias': jnp.zeros(d, dtype)}
        inputs = d
      heads[head] = blocks
    return heads

  def _init_heads(self, kernels: list[Float[Array, 'v d']], bias: Float[Array, ' v']) -> Params:
    """Returns `_init_blocks` with the heads' own projections."""
    heads = self._init_blocks(bias.dtype)
    for head, kernel in zip(heads.values(), kernels, strict=True):
      head['projection'] = {'kernel': kernel}
      if self.output_bias:
        head['projection']['bias'] = bias
    return heads


def _names(count: int, part: str = 'head') -> list[str]:
  return [f'{part}_{i}' for i in range(count)]
