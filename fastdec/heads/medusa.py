"""Medusa's prediction heads (Cai et al. 2024, section 2.1.1).

Head i, from 0, guesses the token i + 1 positions after the model's own prediction. From the same
hidden state it takes residual blocks x + SiLU(W x + b), then a projection to the vocabulary. W and
b begin at zero, an own projection as the model's (`MedusaHeads.start`): so every head begins by
predicting the model's token. Beyond the paper, heads may see the root and the guess before:
`heads.context`.

Heads may share the model's projection, even if it is more than a product (T5 scales, Marian adds a
bias). That takes a fraction of the memory, and one read of it for all heads.
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
from fastdec.heads.context import BIAS_TABLE, Context
from fastdec.kernels.products import KERNELS
from fastdec.kernels.sharding import Table
from fastdec.models.api import Params, float_type, vocabulary_projection
from fastdec.models.layers import add_bias, affine, unit_scaling
from fastdec.models.layers import project as product

Project = Callable[[Array], Array]


@dataclasses.dataclass(frozen=True)
class MedusaHeads(Context):
  """The heads' sizes: a hashable value. Parameters, a dict per head, so a few are used uncopied:

  head_0/block_0/kernel [d, d]    head_0/block_0/bias [d]    ...    head_0/projection/kernel [v, d]
  """

  depth: int  # heads: tokens below the root that they draft
  d_model: int
  # words of each head's own projection; None: all share the model's projection
  vocab_size: int | None = None
  layers: int = 1  # residual blocks a head
  # own projections have one, for models whose projection does (published heads have none)
  output_bias: bool = False
  rooted: bool = False  # the first block reads the root's embedding too: its kernel is [d, d + e]
  d_embed: int | None = None  # the width e of that (None: d_model)
  # rank of a bias from the token guessed before, by before [words, markov] and after; 0: none
  markov: int = 0
  words: int | None = None  # of the vocabulary, for that bias
  # words that they guess among, with an output of their own (`heads.shortlist`); 0: all
  short: int = 0

  products = (KERNELS, r'(^|/)(output|after)$')  # see `kernels.products`

  def __post_init__(self) -> None:
    for name in ('depth', 'd_model', 'layers'):
      if getattr(self, name) < 1:
        raise UserError(f'{name}={getattr(self, name)} is not possible: give 1 or more')
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
    """Splits every matrix by outputs, own projections so by words; see `kernels.sharding`."""
    row = (r'(^|/)(head_\d+/(block_\d+|projection)/(kernel|bias)|output)$', P('model'))
    return (row, *(BIAS_TABLE if self.markov else ()))

  def init(self, key: Array) -> Params:
    """Returns fresh float32 parameters: blocks at zero, own projections random. See `start`."""
    if self.vocab_size is None:
      return self._blocks(jnp.float32) | self.fresh_bias(key) | self.fresh_words()

    shape = (self.vocab_size, self.d_model)
    kernels = [unit_scaling(own_key, shape) for own_key in jax.random.split(key, self.depth)]
    words = {'ids': jnp.arange(self.short, dtype=jnp.int32)} if self.short else {}
    return self._projecting(kernels, jnp.zeros(self.vocab_size)) | self.fresh_bias(key) | words

  def start(self, model: Any, params: Params) -> Params:
    """Returns parameters to train from: every head predicts the model's own prediction.

    Args:
      model: the trunk, with parameters `params`; its logits must be an affine function of its
        hidden state.

    Raises:
      UserError: own projections of another size than the model's, or without the bias that it has.
    """
    self.check_whole()
    dtype = np.result_type(np.float32, float_type(params))
    fresh_bias = self.fresh_bias(jax.random.key(0))
    if self.vocab_size is None:
      return self._blocks(dtype) | fresh_bias
    project = functools.partial(vocabulary_projection(model), params)
    with jax.default_matmul_precision('highest'):  # a product with the identity is then exact
      bias = project(jnp.zeros((1, self.d_model), dtype))[0]
      kernel = (project(jnp.eye(self.d_model, dtype=dtype)) - bias[None]).T
    if kernel.shape[0] != self.vocab_size:
      raise UserError(
        f'vocab_size={self.vocab_size}, and the model has {kernel.shape[0]} words: give as many'
      )
    if not self.output_bias and bias.any():
      raise UserError(
        'this model adds a bias to its logits: give the heads output_bias=True, or no vocab_size'
      )
    return self._projecting([kernel] * self.depth, bias) | fresh_bias

  def drafting(self, params: Params, depth: int) -> tuple['MedusaHeads', Params]:
    """Returns the first `depth` heads."""
    own = {name: params[name] for name in _names(depth)}
    return dataclasses.replace(self, depth=depth), own | self.shared(params)

  def logits(
    self,
    params: Params,
    hidden: Float[Array, 'b d'],
    project: Project,
    root: Float[Array, 'b e'] | None = None,
  ) -> Float[Array, 'b h v']:
    """Returns each head's logits, before any Markov bias.

    Args:
      params: the heads' parameters.
      hidden: of the last accepted node.
      project: the model's vocabulary projection, for heads without their own.
      root: the root's embedding, for rooted heads.
    """
    heads = [self._output(params[name], hidden, root) for name in _names(self.depth)]
    outputs = jnp.stack(heads, axis=1)
    return project(outputs) if self.vocab_size is None else outputs

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
    """Returns the logits of the head `offset` positions beyond p1, for training; 0 is the model.

    `dropout_key` is not used. `before` is the token before the predicted one, for a Markov bias.
    The rest is as in `logits`, at any positions.
    """
    self.check_whole()
    heads = [
      functools.partial(self._output, params[name], root=root) for name in _names(self.depth)
    ]
    if self.vocab_size is None:
      logits = project(jax.lax.switch(offset, [lambda x: x, *heads], hidden))
    else:
      logits = jax.lax.switch(offset, [project, *heads], hidden)
    return self.corrected(params, logits, offset, before)

  def _output(
    self, own: Params, hidden: Float[Array, '*b d'], root: Float[Array, '*b e'] | None = None
  ) -> Float[Array, '*b _']:
    """Returns a head's logits; without a projection of its own, the state for the model's."""
    for i, name in enumerate(_names(self.layers, 'block')):
      block, seen = own[name], self.seen(hidden, root) if i == 0 else hidden
      hidden = hidden + jax.nn.silu(affine(seen, block['kernel'], block['bias']))
    if self.vocab_size is None:
      return hidden
    logits = product(hidden, own['projection']['kernel'])
    if self.output_bias:
      logits = add_bias(logits, own['projection']['bias'])
    return logits

  def _blocks(self, dtype: DTypeLike) -> Params:
    """Returns residual blocks that change nothing yet."""
    d = self.d_model

    def block(inputs: int) -> Params:
      return {'kernel': jnp.zeros((d, inputs), dtype), 'bias': jnp.zeros(d, dtype)}

    def head() -> Params:
      first, *others = _names(self.layers, 'block')
      return {first: block(d + self.beside)} | {name: block(d) for name in others}

    return {name: head() for name in _names(self.depth)}

  def _projecting(self, kernels: list[Float[Array, 'v d']], bias: Float[Array, ' v']) -> Params:
    """Returns `_blocks`, and own projections."""
    heads = self._blocks(bias.dtype)
    for head, kernel in zip(heads.values(), kernels, strict=True):
      head['projection'] = {'kernel': kernel}
      if self.output_bias:
        head['projection']['bias'] = bias
    return heads


def _names(count: int, part: str = 'head') -> list[str]:
  return [f'{part}_{i}' for i in range(count)]
