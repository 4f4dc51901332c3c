"""The layers that models share: products that no backend handles badly, norms, positions."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Int, Num

from fastdec.packed import Packed, panel_product, panel_product_each
from fastdec.quantized import Quantized, whole

# T2T's uniform_unit_scaling, for kernels [outputs, inputs]: the variance of the output is that of
# the input.
unit_scaling = nn.initializers.variance_scaling(1.0, 'fan_in', 'uniform', in_axis=-1, out_axis=-2)

FEW = 64  # rows of a call that decodes
FEW_WHOLE = 16  # in int8
# entries of a product that are worth being turned around; of whole numbers half as many
TURNED = 2**19


Kernel = Float[Array, '*f d'] | Quantized | Packed


def project(x: Float[Array, '*b d'], kernel: Kernel) -> Float[Array, '...']:
  """x @ kernel^T [*b, *f] in x's dtype, accumulated and returned in float32 at least.

  A kernel in int8 meets rows in int8, each over its own scale; their product is summed in int32,
  and only then multiplied by the two scales. So each row's result is the same, bit for bit,
  whatever rows come with it. A packed kernel is read in panels by few rows, and as it lies by many.
  """
  *lead, d = x.shape
  x_rd = x.reshape(-1, d)
  wide = np.promote_types(x.dtype, np.float32)
  if isinstance(kernel, Quantized):
    values, scale = whole(x_rd, wide)
    y = product(values, kernel.values, jnp.int32).astype(wide)
    y = rounded(y * scale.reshape(-1, *(1,) * (kernel.ndim - 1)) * kernel.scale.astype(wide)[None])
  else:
    y = product(x_rd, kernel, wide)
  return y.reshape(*lead, *kernel.shape[:-1])


def rounded(x: Float[Array, '*b']) -> Float[Array, '*b']:
  """x, which is rounded to its type before anything is added to it.

  XLA computes anew, wherever it is read, what takes no more than a few multiplications; and where
  an addition follows, LLVM may make both one operation with one rounding, here and not there. Then
  a logit is not equal to itself, and `sampling.argmax` finds no largest one. What is neither
  multiplication nor addition keeps them apart.
  """
  largest = jnp.finfo(x.dtype).max
  return jnp.clip(x, -largest, largest)


def product(
  x: Num[Array, 'r d'], kernel: Num[Array, '*f d'] | Packed, wide: DTypeLike
) -> Num[Array, 'r *f']:
  """x @ kernel^T in x's type, summed in the type `wide`.

  Habits of XLA's CPU backend decide the form (`experiments.benchmark --config=configs/products.py`
  times the forms). Kernels lie as [outputs, inputs] and are contracted on their last axis: with a
  few rows the other layout takes up to
  1.8 times as long. One row in half precision or in int8 goes in twice: a one-row product is sent
  to a generated loop, several times slower than the product of two rows. And a bfloat16 result is
  slower than a float32 one. A kernel of several output axes that comes second is laid out anew in
  every call, which for a few rows is most of the time: so it comes first. (One output axis instead
  would not be split by heads.) A kernel of one output axis comes first too, with an axis of 1
  before it, where several rows meet it (`comes_first`): in float32 it is laid out anew in either
  order, but not so, and 2 to 16 rows take 0.5 to 0.8 times as long; in bfloat16 and int8, on a CPU
  with AMX, 0.5 to 0.7.
  """
  if isinstance(kernel, Packed):
    if kernel.serves(x):
      return panel_product(x, kernel, wide)
    kernel = kernel.kernel
  kernel = kernel.astype(x.dtype)
  rows = len(x)
  if rows == 1 and x.dtype.itemsize < 4:
    x = jnp.concatenate([x, x])
  if comes_first(len(x), kernel):
    first = kernel if kernel.ndim > 2 else kernel[None]
    y = jax.lax.dot_general(
      first, x, (((first.ndim - 1,), (1,)), ((), ())), preferred_element_type=wide
    )
    y = jnp.moveaxis(y, -1, 0)
  else:
    y = jax.lax.dot_general(
      x, kernel, (((1,), (kernel.ndim - 1,)), ((), ())), preferred_element_type=wide
    )
  return y[:rows].reshape(rows, *kernel.shape[:-1])


def comes_first(rows: int, kernel: Num[Array, '*f d']) -> bool:
  """Whether a kernel comes first in its product with so many rows: few rows, and a product that is
  soon turned around.

  What comes out of it is [outputs, rows], and is read in strides: beyond a processor's second-level
  cache (32,000 outputs and more than 16 rows; of whole numbers, whose product is made more quickly,
  8) that costs more than it saves.
  """
  if kernel.ndim > 2 or rows == 1:
    return kernel.ndim > 2 and rows <= FEW
  entries = rows * len(kernel)
  if kernel.dtype.itemsize == 1:
    return rows <= FEW_WHOLE and entries <= TURNED // 2
  return rows <= FEW and entries <= TURNED


def project_each(x: Float[Array, 'b h d'], kernels: Kernel) -> Float[Array, 'b h f']:
  """Each of a row's h vectors by its own kernel: x[:, i] @ kernels[i]^T, in the types of
  `project`."""
  wide = np.promote_types(x.dtype, np.float32)
  if isinstance(kernels, Quantized):
    values, scale = whole(x, wide)
    y = product_each(values, kernels.values, jnp.int32).astype(wide)
    return rounded(y * scale[..., None] * kernels.scale.astype(wide)[None])
  return product_each(x, kernels, wide)


def product_each(
  x: Num[Array, 'b h d'], kernels: Num[Array, 'h f d'] | Packed, wide: DTypeLike
) -> Num[Array, 'b h f']:
  """x[:, i] @ kernels[i]^T for each i in x's type, summed in the type `wide`.

  Here XLA's CPU backend wants another form than for one kernel (`product`): one row once; of
  several the kernels first, which takes half as long; and in int8 one product after the other, a
  sixth, since all kernels at once would be made int32 before the loop, and read so in every call.
  """
  if isinstance(kernels, Packed):
    if kernels.serves_each(x):
      return panel_product_each(x, kernels, wide)
    kernels = kernels.kernel
  kernels = kernels.astype(x.dtype)
  if x.dtype.itemsize == 1:
    return jnp.stack([product(x[:, i], kernel, wide) for i, kernel in enumerate(kernels)], axis=1)
  if len(x) == 1:
    y_hbf = jax.lax.dot_general(
      x.swapaxes(0, 1), kernels, (((2,), (2,)), ((0,), (0,))), preferred_element_type=wide
    )
    return y_hbf.swapaxes(0, 1)
  x_hbd = x.swapaxes(0, 1)
  y_hfb = jax.lax.dot_general(
    kernels, x_hbd, (((2,), (2,)), ((0,), (0,))), preferred_element_type=wide
  )
  return jnp.moveaxis(y_hfb, -1, 0)


def look_up(table: Kernel, ids: Int[Array, '*b']) -> Float[Array, '*b d']:
  """The rows of a table of embeddings, which may be in int8 or packed."""
  return table.rows(ids) if isinstance(table, Quantized | Packed) else table[ids]


def affine(
  x: Float[Array, '*b d'], kernel: Kernel, bias: Float[Array, ' f']
) -> Float[Array, '*b f']:
  """x @ kernel^T + bias, in x's dtype."""
  y = project(x, kernel).astype(x.dtype)
  return y + bias.astype(y.dtype).reshape((1,) * (y.ndim - 1) + (-1,))


class Dense(nn.Module):
  """A projection from the last axis to the axes `features`, computed in `dtype`; parameters stay
  float32.

  The kernel has these axes too, [*features, inputs], so that it can be split along any of them (by
  attention heads).
  """

  features: tuple[int, ...]
  use_bias: bool
  dtype: DTypeLike
  init: Callable[..., Array | np.ndarray] = unit_scaling  # (key, (outputs, inputs)) -> kernel

  @nn.compact
  def __call__(self, x: Float[Array, '*b d']) -> Float[Array, '...']:
    outputs, inputs = int(np.prod(self.features)), x.shape[-1]

    def init(key):
      return jnp.asarray(self.init(key, (outputs, inputs))).reshape(*self.features, inputs)

    y = project(x.astype(self.dtype), self.param('kernel', init)).astype(self.dtype)
    if self.use_bias:
      bias = self.param('bias', nn.initializers.zeros, self.features)
      y = y + bias.astype(self.dtype).reshape((1,) * (y.ndim - bias.ndim) + bias.shape)
    return y


def dropout(x: Float[Array, '*b d'], rate: float, key: Array) -> Float[Array, '*b d']:
  """x with entries zeroed at `rate` and the rest scaled up to the same mean.

  The mask is a hash of each entry's index and the key (Wellons' lowbias32), not one random number
  an entry: on CPUs a training step is mostly dropout otherwise (threefry 2.3 times, XLA's Philox 4
  times the rest of the step).
  """
  low, high = jax.random.bits(key, (2,), jnp.uint32)
  bits = jax.lax.iota(jnp.uint32, x.size).reshape(x.shape) ^ low
  for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
    bits = (bits ^ (bits >> shift)) * np.uint32(factor) + high
  return jnp.where(bits >= np.uint32(rate * 2**32), x / (1 - rate), 0).astype(x.dtype)


class Dropout(nn.Module):
  """`dropout` by linen's 'dropout' key; nothing outside training."""

  rate: float

  def __call__(self, x: Float[Array, '*b d'], train: bool) -> Float[Array, '*b d']:
    return dropout(x, self.rate, self.make_rng('dropout')) if train and self.rate else x


def sinusoids(
  positions: Num[Array, '*b n'], d: int, longest: float = 1e4
) -> Float[Array, '*b n d']:
  """T2T's and fairseq's position signal: sines, then cosines, of wavelengths 2 pi .. 2 pi *
  longest, spaced geometrically."""
  inverse_timescales = np.exp(-np.arange(d // 2) * np.log(longest) / max(d // 2 - 1, 1)).astype(
    np.float32
  )
  angles = positions[..., None].astype(jnp.float32) * inverse_timescales.reshape(
    (1,) * positions.ndim + (-1,)
  )
  return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
