"""Mixtures of experts: many MLPs; a router chooses the few that read each token.

Mixtral (Jiang et al. 2024), Qwen3-MoE and gpt-oss are settings of it. Over a cache, a loop turns
once for each expert that a call has chosen, so the weights of the others are not read: a call on
more tokens reads more experts. Packed rows, which training differentiates, meet all experts.
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

FEW, MANY = 16, 256  # pairs of a token and an expert in a turn of the loop: at least, and at most


@dataclasses.dataclass(frozen=True)
class ExpertsConfig:
  """Sizes and options of the experts of an `LMConfig`."""

  count: int = 8
  chosen: int = 2  # experts of a token
  d_ff: int = 512
  normed: bool = True  # the weights of the chosen ones sum to 1
  bias: bool = False  # of the router and of all experts
  # gpt-oss: gates are bounded above, and the rest on both sides; the gate's slope
  limit: float | None = None
  slope: float = 1.702
  dense: tuple[int, ...] = ()  # layers with a plain MLP instead

  def __post_init__(self) -> None:
    for name in ('count', 'chosen', 'd_ff', 'limit', 'slope'):
      if getattr(self, name) is not None and not getattr(self, name) > 0:
        raise UserError(f'experts.{name}={getattr(self, name)} is not possible: give more than 0')
    if self.chosen > self.count:
      raise UserError(f'experts.chosen={self.chosen} of experts.count={self.count}: give fewer')

  def partition(self, devices: int) -> Table:
    """Splits the experts over `devices`; each device has all of a number that does not divide."""
    whole = self.count % devices
    return ((r'/experts/(gate_up|down)/(kernel|bias)$', P() if whole else P('model')),)


@struct.pytree
class PerExpert:
  """A kernel and perhaps a bias for each expert."""

  kernel: Kernel
  bias: Float[Array, '*f'] | None

  def one(self, x: Float[Array, 'r d'], expert: Int[Array, '']) -> Float[Array, 'r *f']:
    """Returns the products of all rows with one expert's kernel."""
    y = project(x, self.kernel[expert]).astype(x.dtype)
    return y if self.bias is None else y + self.bias[expert].astype(x.dtype)[None]

  def biased(self, y: Float[Array, 'r e *f'], dtype: DTypeLike) -> Float[Array, 'r e *f']:
    """Returns products with all experts' kernels, and their biases."""
    y = y.astype(dtype)
    return y if self.bias is None else y + self.bias.astype(dtype)[None]


class Kernels(nn.Module):
  """The parameters of a `PerExpert`."""

  features: tuple[int, ...]
  has_bias: bool

  @nn.compact
  def __call__(self, inputs: int) -> PerExpert:
    def init(key):
      return unit_scaling(key, (math.prod(self.features), inputs)).reshape(*self.features, inputs)

    zeros, kernel = nn.initializers.zeros, self.param('kernel', init)
    return PerExpert(kernel, self.param('bias', zeros, self.features) if self.has_bias else None)


class Experts(nn.Module):
  """The router and the experts of a layer."""

  config: ExpertsConfig
  activation: Callable[[Array], Array]
  dtype: DTypeLike

  @nn.compact
  def __call__(self, x: Float[Array, 'b n d'], reads_all: bool) -> Float[Array, 'b n d']:
    """Returns the sum of the chosen experts' outputs, weighted.

    Args:
      x: the tokens' states.
      reads_all: all experts meet all tokens, so that the sum can be differentiated.
    """
    c, d = self.config, x.shape[-1]
    wide = np.promote_types(x.dtype, np.float32)
    scores = jnp.einsum(
      'bnd,ed->bne',
      x.astype(wide),
      self.param('router', unit_scaling, (c.count, d)).astype(wide),
      precision='highest',
    )
    if c.bias:
      bias = self.param('router_bias', nn.initializers.zeros, (c.count,))
      scores += bias.astype(wide)[None, None]
    weights, ids = jax.lax.top_k(jax.nn.softmax(scores), c.chosen)
    if c.normed:
      weights /= weights.sum(-1, keepdims=True)
    gate_up = Kernels((c.count, 2, c.d_ff), c.bias, name='gate_up')(d)
    down = Kernels((c.count, d), c.bias, name='down')(c.d_ff)
    read = self.read_all if reads_all else self.read_chosen
    return read((gate_up, down), x.astype(self.dtype), weights, ids).astype(self.dtype)

  def gated(self, gate_up: Float[Array, '*b 2 f']) -> Float[Array, '*b f']:
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
    inner = self.gated(gate_up.biased(project(x_rd, gate_up.kernel), x.dtype))
    y_red = down.biased(project_each(inner, down.kernel), x.dtype).astype(weights.dtype)
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
    """Returns the same sums by a loop over the chosen experts: on a mesh, each device's own."""
    sizes = axes_in_use()
    if not sizes:
      return self._looped(experts, 0, x, weights, ids)
    by_row = P('data') if len(x) % sizes['data'] == 0 else P()
    is_split = self.config.count % sizes['model'] == 0

    def of_device(experts, x, weights, ids):
      own = jax.lax.axis_index('model') * (self.config.count // sizes['model'])
      y = self._looped(experts, own if is_split else 0, x, weights, ids)
      return jax.lax.psum(y, 'model') if is_split else y

    specs = P('model') if is_split else P(), by_row, by_row, by_row
    return jax.shard_map(
      of_device, in_specs=specs, out_specs=by_row, axis_names={*sizes}, check_vma=False
    )(experts, x, weights, ids)

  def _looped(
    self,
    experts: tuple[PerExpert, PerExpert],
    own: int | Int[Array, ''],
    x: Float[Array, 'b n d'],
    weights: Float[Array, 'b n k'],
    ids: Int[Array, 'b n k'],
  ) -> Float[Array, 'b n d']:
    """Returns these experts' part of the sums; `own` is the number of the first one.

    The pairs of a row and its expert are sorted by experts, and cut into blocks of one expert each.
    A block's last places may hold the next expert's pairs, which the next block writes again.
    """
    gate_up, down = experts
    count, k, d = gate_up.kernel.shape[0], ids.shape[-1], x.shape[-1]
    x_rd, ids = x.reshape(-1, d), ids.reshape(-1) - own
    rows, pairs = len(x_rd), len(ids)
    size = min(rows, max(FEW, 2 * -(-pairs // self.config.count)), MANY)
    # Sort the pairs by expert; those of other devices' experts come last.
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
      inner = self.gated(gate_up.one(jax.lax.dynamic_slice_in_dim(x_pd, start, size), expert))
      return jax.lax.dynamic_update_slice_in_dim(y_pd, down.one(inner, expert), start, 0)

    # Run the blocks, then bring the outputs back into the order of rows, and weigh them.
    y_pd = jax.lax.fori_loop(0, ends[-1], block, jnp.zeros_like(x_pd))
    y_pd = jnp.where(is_here[:, None], y_pd[jnp.argsort(order)], 0).astype(weights.dtype)
    y_rkd = y_pd.reshape(rows, k, d)
    return (weights.reshape(rows, k, 1) * y_rkd).sum(1).reshape(x.shape)
