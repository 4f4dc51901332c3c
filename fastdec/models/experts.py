"""Mixtures of experts: many MLPs, of which a router chooses a few for each token.

Mixtral (Jiang et al. 2024), Qwen3-MoE and gpt-oss are settings of it. Over a cache, a loop runs
over the experts that a call has chosen, so the weights of the others are not read: a call on more
tokens reads more experts. Packed rows, which training differentiates, go through all experts.
"""

import dataclasses
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, DTypeLike, Float, Int

from fastdec import struct
from fastdec.errors import UserError
from fastdec.kernels.sharding import Table, axes_in_use
from fastdec.models.layers import Kernel, project, project_each, unit_scaling

FEW, MANY = 16, 256  # the fewest and most (token, expert) pairs in a step of the loop


@dataclasses.dataclass(frozen=True)
class ExpertsConfig:
  """Sizes and options of the experts of an `LMConfig`."""

  count: int = 8
  chosen: int = 2  # experts of a token
  d_ff: int = 512
  normed: bool = True  # the weights of the chosen ones sum to 1
  bias: bool = False  # of the router and of all experts
  # gpt-oss: bound of the gates above, and of the other inputs on both sides
  limit: float | None = None
  slope: float = 1.702  # of the gates, with a limit
  dense: tuple[int, ...] = ()  # layers with a plain MLP instead

  def __post_init__(self) -> None:
    for name in ('count', 'chosen', 'd_ff', 'limit', 'slope'):
      if getattr(self, name) is not None and not getattr(self, name) > 0:
        raise UserError(f'experts.{name}={getattr(self, name)} is not possible: give more than 0')
    if self.chosen > self.count:
      raise UserError(f'experts.chosen={self.chosen} of experts.count={self.count}: give fewer')

  def partition(self, devices: int) -> Table:
    """Splits the experts over `devices`; if their number does not divide, each device has all."""
    spec = P('model')
    if self.count % devices:
      spec = P()
    return ((r'/experts/(gate_up|down)/(kernel|bias)$', spec),)


@struct.pytree
class PerExpert:
  """A kernel for each expert, and perhaps a bias."""

  kernel: Kernel
  bias: Float[Array, '*f'] | None

  def multiply(self, x: Float[Array, 'r d'], expert: Int[Array, '']) -> Float[Array, 'r *f']:
    """Returns the products of all rows with one expert's kernel, plus its bias."""
    y = project(x, self.kernel[expert]).astype(x.dtype)
    if self.bias is not None:
      y += self.bias[expert].astype(x.dtype)[None]
    return y

  def add_biases(self, y: Float[Array, 'r e *f'], dtype: DTypeLike) -> Float[Array, 'r e *f']:
    """Returns products with all experts' kernels, plus their biases."""
    y = y.astype(dtype)
    if self.bias is not None:
      y += self.bias.astype(dtype)[None]
    return y


class Kernels(nn.Module):
  """The parameters of a `PerExpert`."""

  features: tuple[int, ...]
  has_bias: bool

  @nn.compact
  def __call__(self, inputs: int) -> PerExpert:
    def init(key):
      return unit_scaling(key, (math.prod(self.features), inputs)).reshape(*self.features, inputs)

    kernel, bias = self.param('kernel', init), None
    if self.has_bias:
      bias = self.param('bias', nn.initializers.zeros, self.features)
    return PerExpert(kernel, bias)


class Experts(nn.Module):
  """The router and the experts of a layer."""

  config: ExpertsConfig
  activation: Callable[[Array], Array]
  dtype: DTypeLike

  @nn.compact
  def __call__(self, x: Float[Array, 'b n d'], reads_all: bool) -> Float[Array, 'b n d']:
    """Returns the weighted sum of the chosen experts' outputs.

    Args:
      x: the tokens' states.
      reads_all: all experts read all tokens, so that the sum can be differentiated.
    """
    # The router scores all experts and chooses the best.
    c, d = self.config, x.shape[-1]
    wide = np.promote_types(x.dtype, np.float32)
    router = self.param('router', unit_scaling, (c.count, d)).astype(wide)
    scores = jnp.einsum('bnd,ed->bne', x.astype(wide), router, precision='highest')
    if c.bias:
      bias = self.param('router_bias', nn.initializers.zeros, (c.count,))
      scores += bias.astype(wide)[None, None]
    weights, ids = jax.lax.top_k(jax.nn.softmax(scores), c.chosen)
    if c.normed:
      weights /= weights.sum(-1, keepdims=True)

    # The experts read the states.
    gate_up = Kernels((c.count, 2, c.d_ff), c.bias, name='gate_up')(d)
    down = Kernels((c.count, d), c.bias, name='down')(c.d_ff)
    read = self.read_all if reads_all else self.read_chosen
    return read((gate_up, down), x.astype(self.dtype), weights, ids).astype(self.dtype)

  def apply_gate(self, gate_up: Float[Array, '*b 2 f']) -> Float[Array, '*b f']:
    """Returns the inner states of the MLPs."""
    c, gate, up = self.config, gate_up[..., 0, :], gate_up[..., 1, :]
    if c.limit is None:
      return self.activation(gate) * up
    gate, up = jnp.minimum(gate, c.limit), jnp.clip(up, -c.limit, c.limit)
    return gate * jax.nn.sigmoid(c.slope * gate) * (up + 1)

  def read_all(
    self,
    experts: tuple[PerExpert, PerExpert],
    x: Float[Array, 'b n d'],
    weights: Float[Array, 'b n k'],
    ids: Int[Array, 'b n k'],
  ) -> Float[Array, 'b n d']:
    """Returns the weighted sums by products of all rows with all experts."""
    gate_up, down = experts
    x_rd = x.reshape(-1, x.shape[-1])
    inner = self.apply_gate(gate_up.add_biases(project(x_rd, gate_up.kernel), x.dtype))
    y_red = down.add_biases(project_each(inner, down.kernel), x.dtype).astype(weights.dtype)

    # Experts that a token has not chosen get the weight 0.
    is_chosen = jax.nn.one_hot(ids, self.config.count, dtype=weights.dtype)
    share = jnp.einsum('bnk,bnke->bne', weights, is_chosen)
    return jnp.einsum('re,red->rd', share.reshape(len(x_rd), -1), y_red).reshape(x.shape)

  def read_chosen(
    self,
    experts: tuple[PerExpert, PerExpert],
    x: Float[Array, 'b n d'],
    weights: Float[Array, 'b n k'],
    ids: Int[Array, 'b n k'],
  ) -> Float[Array, 'b n d']:
    """Returns the same sums by a loop over the chosen experts, on a mesh over each device's own."""
    sizes = axes_in_use()
    if not sizes:
      return self._loop_over_experts(experts, 0, x, weights, ids)
    by_row = P('data') if len(x) % sizes['data'] == 0 else P()
    is_split = self.config.count % sizes['model'] == 0

    def read_own(experts, x, weights, ids):
      if not is_split:
        return self._loop_over_experts(experts, 0, x, weights, ids)
      first = jax.lax.axis_index('model') * (self.config.count // sizes['model'])
      return jax.lax.psum(self._loop_over_experts(experts, first, x, weights, ids), 'model')

    specs = P('model') if is_split else P(), by_row, by_row, by_row
    by_device = jax.shard_map(
      read_own, in_specs=specs, out_specs=by_row, axis_names={*sizes}, check_vma=False
    )
    return by_device(experts, x, weights, ids)

  def _loop_over_experts(
    self,
    experts: tuple[PerExpert, PerExpert],
    first_expert: int | Int[Array, ''],
    x: Float[Array, 'b n d'],
    weights: Float[Array, 'b n k'],
    ids: Int[Array, 'b n k'],
  ) -> Float[Array, 'b n d']:
    """Returns the part of the sums that comes from these experts, which begin at `first_expert`.

    The (row, expert) pairs are sorted by expert, and cut into blocks with one expert each. The end
    of a block may overlap the next expert's pairs, which the next block overwrites.
    """
    gate_up, down = experts
    count, k, d = gate_up.kernel.shape[0], ids.shape[-1], x.shape[-1]
    x_rd, ids = x.reshape(-1, d), ids.reshape(-1) - first_expert
    rows, pairs = len(x_rd), len(ids)
    size = min(rows, max(FEW, 2 * -(-pairs // self.config.count)), MANY)

    # Sort the pairs by expert; pairs of other devices' experts come last.
    is_here = (ids >= 0) & (ids < count)
    ids = jnp.where(is_here, ids, count)
    order = jnp.argsort(ids)
    held = jnp.bincount(ids, length=count)
    first, blocks = jnp.cumsum(held) - held, -(-held // size)
    ends = jnp.cumsum(blocks)
    x_pd = jnp.pad(x_rd[order // k], ((0, size), (0, 0)))

    def block(i, y_pd):
      expert = (ends <= i).sum()
      start = first[expert] + (i - ends[expert] + blocks[expert]) * size
      rows_of_expert = jax.lax.dynamic_slice_in_dim(x_pd, start, size)
      inner = self.apply_gate(gate_up.multiply(rows_of_expert, expert))
      return jax.lax.dynamic_update_slice_in_dim(y_pd, down.multiply(inner, expert), start, 0)

    # Run the blocks, then put the outputs back into the order of rows, and add them up by weight.
    y_pd = jax.lax.fori_loop(0, ends[-1], block, jnp.zeros_like(x_pd))
    y_pd = jnp.where(is_here[:, None], y_pd[jnp.argsort(order)], 0).astype(weights.dtype)
    y_rkd = y_pd.reshape(rows, k, d)
    return (weights.reshape(rows, k, 1) * y_rkd).sum(1).reshape(x.shape)
