"""Layers that the models share: products in forms that backends compute quickly, dropout, waves."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, DTypeLike, Float, Int, Int8, Int32, Num

from fastdec.kernels.forms import FEW, cpu_product, rows_first
from fastdec.kernels.mesh import axes_in_use, is_split
from fastdec.kernels.packed import Packed, panel_product, panel_product_each
from fastdec.kernels.quantized import Quantized, to_int8
from fastdec.kernels.sums import row_mean

# T2T's uniform_unit_scaling, for kernels [outputs, inputs]: the variance of the output is that of
# the input.
unit_scaling = nn.initializers.variance_scaling(1.0, 'fan_in', 'uniform', in_axis=-1, out_axis=-2)

PART = 2**19  # entries of a kernel in int8 that are converted to floats at once
Kernel = Float[Array, '*f d'] | Quantized | Packed


def project(x: Float[Array, '*b d'], kernel: Kernel) -> Float[Array, '...']:
  """Returns x @ kernel^T [*b, *f] of inputs in x's dtype, summed and returned in float32 or wider.

  For a kernel in int8, rows are rounded to int8 too, each with its own scale. Their product is
  summed in int32, and only then multiplied by both scales, so each row's result is the same, bit
  for bit, in any batch. In 'int8w' rows are not rounded, and the sum is multiplied by the kernel's
  scale. Few rows are multiplied by the panels of a packed kernel, many rows by the kernel itself.
  """
  *lead, d = x.shape
  x_rd = x.reshape(-1, d)
  wide = np.promote_types(x.dtype, np.float32)
  if not isinstance(kernel, Quantized):
    y = product(x_rd, kernel, wide)
  elif kernel.rounds_inputs:
    values, scale = to_int8(x_rd, wide)
    scale = scale.reshape(-1, *(1,) * (kernel.ndim - 1))
    y = product(values, kernel.values, jnp.int32, kernel.sums).astype(wide)
    y = round_to_type(y * scale * kernel.scale.astype(wide)[None])
  else:
    y = product_in_parts(x_rd, kernel.values, wide)
    y = round_to_type(y * kernel.scale.astype(wide)[None])
  return y.reshape(*lead, *kernel.shape[:-1])


def round_to_type(x: Float[Array, '*b']) -> Float[Array, '*b']:
  """Returns x, rounded to its type before anything is added to it.

  XLA repeats a few multiplications for each reader. If an addition follows, LLVM may fuse both into
  one operation with one rounding, for one reader and not for another. Then a logit does not equal
  itself, and `sampling.argmax` does not find the largest one. The clip, which is neither a
  multiplication nor an addition, prevents that.
  """
  largest = jnp.finfo(x.dtype).max
  return jnp.clip(x, -largest, largest)


def product(
  x: Num[Array, 'r d'],
  kernel: Num[Array, '*f d'] | Packed,
  wide: DTypeLike,
  sums: Int32[Array, '*f'] | None = None,
) -> Num[Array, 'r *f']:
  """Returns x @ kernel^T in x's type, summed in the type `wide`.

  A CPU multiplies few rows, and bytes if there are sums, in the form that is fastest there
  (`kernels.forms`). These forms merge and cut axes, which a mesh may split: there all backends
  multiply in one form. `sums` has the sums of the kernel's outputs, see `Quantized`.
  """
  if isinstance(kernel, Packed):
    if kernel.serves(x):
      return panel_product(x, kernel, wide)
    kernel = kernel.kernel
  if len(x) > FEW and x.dtype == jnp.bfloat16:
    return narrow_product(x, kernel, wide)
  kernel = kernel.astype(x.dtype)
  if (len(x) > FEW and sums is None) or is_split():
    return rows_first(x, kernel, wide)
  return jax.lax.platform_dependent(
    x,
    kernel,
    sums,
    cpu=functools.partial(cpu_product, wide=wide),
    default=lambda x, kernel, _: rows_first(x, kernel, wide),
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def narrow_product(
  x: Num[Array, 'r d'], kernel: Num[Array, '*f d'], wide: DTypeLike
) -> Num[Array, 'r *f']:
  """Returns `product` of many rows in bfloat16, whose gradients are such products too.

  JAX would take the gradient, which is as wide as the sums, times x and the kernel in that type.
  """
  return rows_first(x, kernel.astype(x.dtype), wide)


def _keep_factors(x: Array, kernel: Array, wide: DTypeLike) -> tuple[Array, tuple[Array, Array]]:
  return narrow_product(x, kernel, wide), (x, kernel)


def _multiply_back(
  wide: DTypeLike, factors: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array]:
  x, kernel = factors
  gradient, outputs = gradient.astype(x.dtype), tuple(range(kernel.ndim - 1))
  after_rows = tuple(range(1, kernel.ndim))
  multiply = functools.partial(jax.lax.dot_general, preferred_element_type=wide)
  of_x = multiply(gradient, kernel.astype(x.dtype), ((after_rows, outputs), ((), ())))
  of_kernel = multiply(gradient, x, (((0,), (0,)), ((), ())))
  return of_x.astype(x.dtype), of_kernel.astype(kernel.dtype)


narrow_product.defvjp(_keep_factors, _multiply_back)


def narrow_in_training(x: Float[Array, '*b'], dtype: DTypeLike) -> Float[Array, '*b']:
  """Returns x; where a gradient is computed, rounded to a model's type.

  It is for the largest arrays between kernels, logits and scores: a GPU writes and reads them in
  half as many bytes, and that takes most of the time of these kernels.
  """
  if x.dtype == dtype:
    return x

  def narrow(x: Array) -> tuple[Array, None]:
    return jax.lax.optimization_barrier(x.astype(dtype)).astype(x.dtype), None

  identity: Any = jax.custom_vjp(lambda x: x)
  identity.defvjp(narrow, lambda _, gradient: (gradient,))
  return identity(x)


def product_in_parts(
  x: Float[Array, 'r d'], kernel: Int8[Array, '*f d'], wide: DTypeLike
) -> Float[Array, 'r *f']:
  """Returns `product` with a kernel in int8, which is converted to x's type part by part.

  XLA's CPU backend would write the whole kernel in x's type in every call, which takes ten times as
  long. Accelerators convert as they read, and so does a mesh, see `product`.
  """
  *lead, outputs, d = kernel.shape
  n = 1 << min((-(-kernel.size // PART) - 1).bit_length(), outputs.bit_length() - 1)
  if n == 1 or is_split():
    return product(x, kernel, wide)

  def by_parts(x: Array, kernel: Array) -> Array:
    whole = outputs - outputs % n
    parts = kernel[..., :whole, :].reshape(*lead, whole // n, n, d)

    def multiply_part(i: Int[Array, '']) -> Float[Array, '...']:
      return product(x, jax.lax.dynamic_index_in_dim(parts, i, -2, keepdims=False), wide)

    y = jax.lax.map(multiply_part, jnp.arange(n))
    y = jnp.moveaxis(y, 0, -1).reshape(len(x), *lead, whole)
    if whole == outputs:
      return y
    return jnp.concatenate([y, product(x, kernel[..., whole:, :], wide)], axis=-1)

  whole = functools.partial(product, wide=wide)
  return jax.lax.platform_dependent(x, kernel, cpu=by_parts, default=whole)


def project_each(x: Float[Array, 'b h d'], kernels: Kernel) -> Float[Array, 'b h f']:
  """Returns x[:, i] @ kernels[i]^T for each of a row's h vectors, in the types of `project`."""
  wide = np.promote_types(x.dtype, np.float32)
  if not isinstance(kernels, Quantized):
    return product_each(x, kernels, wide)
  if kernels.rounds_inputs:
    values, scale = to_int8(x, wide)
    y = product_each(values, kernels.values, jnp.int32, kernels.sums).astype(wide)
    return round_to_type(y * scale[..., None] * kernels.scale.astype(wide)[None])
  products = []
  for i in range(len(kernels.scale)):
    products.append(product_in_parts(x[:, i], kernels.values[i], wide))
  return round_to_type(jnp.stack(products, axis=1) * kernels.scale.astype(wide)[None])


def product_each(
  x: Num[Array, 'b h d'],
  kernels: Num[Array, 'h f d'] | Packed,
  wide: DTypeLike,
  sums: Int32[Array, 'h f'] | None = None,
) -> Num[Array, 'b h f']:
  """Returns x[:, i] @ kernels[i]^T for each i in x's type, summed in the type `wide`.

  The fast forms on XLA's CPU backend differ from those for one kernel (`product`). A single row is
  not multiplied twice. For several rows the kernels are the first factor, which takes half the
  time. In int8 there is a product for each kernel, which takes a sixth of the time: XLA would
  convert all kernels to int32 and read that in every call.
  """
  if isinstance(kernels, Packed):
    if kernels.serves_each(x):
      return panel_product_each(x, kernels, wide)
    kernels = kernels.kernel
  kernels = kernels.astype(x.dtype)
  if x.dtype.itemsize == 1:
    parts = []
    for i, kernel in enumerate(kernels):
      parts.append(product(x[:, i], kernel, wide, None if sums is None else sums[i]))
    return jnp.stack(parts, axis=1)

  x_hbd = x.swapaxes(0, 1)
  last_of_both = (((2,), (2,)), ((0,), (0,)))
  if len(x) == 1:
    y_hbf = jax.lax.dot_general(x_hbd, kernels, last_of_both, preferred_element_type=wide)
    return y_hbf.swapaxes(0, 1)
  y_hfb = jax.lax.dot_general(kernels, x_hbd, last_of_both, preferred_element_type=wide)
  return jnp.moveaxis(y_hfb, -1, 0)


def look_up(table: Kernel, ids: Int[Array, '*b']) -> Float[Array, '*b d']:
  """Returns rows of a table of embeddings, which may be in int8 or packed.

  XLA's CPU backend converts a table in half precision to float32 before it looks up rows. In a loop
  it would convert the whole table before the first step: 50 ms and 110 MB for 49,152 words of width
  576, at each start of a program. The barrier prevents that: XLA cannot know that the table does
  not change with the ids.

  On a mesh each device looks up its own words, and devices exchange the rows that they found.
  """
  sizes = axes_in_use()
  if sizes.get('model', 1) == 1 or table.shape[0] % sizes['model']:
    return _rows_of(table, ids)

  def add_rows(table: Kernel, ids: Int[Array, '*b']) -> Float[Array, '*b d']:
    own = ids - jax.lax.axis_index('model') * table.shape[0]
    is_own = (own >= 0) & (own < table.shape[0])
    rows = _rows_of(table, jnp.where(is_own, own, 0))
    return jax.lax.psum(jnp.where(is_own[..., None], rows, 0), 'model')

  by_row = P()
  if 'data' in sizes and ids.ndim and len(ids) % sizes['data'] == 0:
    by_row = P('data')
  by_words = jax.shard_map(
    add_rows, in_specs=(P('model'), by_row), out_specs=by_row, axis_names={*sizes}
  )
  return by_words(table, ids)


def _rows_of(table: Kernel, ids: Int[Array, '*b']) -> Float[Array, '*b d']:
  if isinstance(table, Quantized | Packed):
    return table.rows(ids)
  if table.dtype.itemsize < 4:
    rows, ids = jax.lax.optimization_barrier((table, ids))
    return rows[ids]
  return table[ids]


def add_bias(y: Float[Array, '*b'], bias: Float[Array, '*f']) -> Float[Array, '*b']:
  """Returns y plus a bias over its last axes, in y's dtype."""
  return y + bias.astype(y.dtype).reshape((1,) * (y.ndim - bias.ndim) + bias.shape)


def affine(
  x: Float[Array, '*b d'], kernel: Kernel, bias: Float[Array, ' f']
) -> Float[Array, '*b f']:
  """Returns x @ kernel^T + bias, in x's dtype."""
  return add_bias(project(x, kernel).astype(x.dtype), bias)


class Dense(nn.Module):
  """A projection from the last axis to the axes `features`, in `dtype`; parameters are float32.

  The kernel is [*features, inputs], so it can be split along any of these axes, such as heads.
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
      y = add_bias(y, self.param('bias', nn.initializers.zeros, self.features))
    return y


def make_around(around: Callable[[], nn.Module] | None) -> Callable[[Array], tuple[Array, Any]]:
  """Returns what is around a sublayer f: of f's input it makes another, and a function of f's
  output. None: both stay as they are."""
  return (lambda x: (x, lambda y: y)) if around is None else around()


class LayerNorm(nn.Module):
  """Layer norm (Ba et al. 2016) as `nn.LayerNorm` computes it, in float32 or wider.

  If `is_centred` is false, it has neither mean nor bias, like T5's."""

  epsilon: float
  dtype: DTypeLike
  is_centred: bool = True

  @nn.compact
  def __call__(self, x: Float[Array, '*b d']) -> Float[Array, '*b d']:
    wide, width = x.astype(np.promote_types(x.dtype, np.float32)), (x.shape[-1],)
    # The maximum, as `round_to_type`: a mean is a multiplication, which may be fused with a sum.
    variance = jnp.maximum(row_mean(jnp.square(wide)), 0)
    if self.is_centred:
      mean = round_to_type(row_mean(wide))
      wide, variance = wide - mean, jnp.maximum(variance - round_to_type(jnp.square(mean)), 0)
    lead = (1,) * (x.ndim - 1)
    scale = self.param('scale', nn.initializers.ones, width).astype(wide.dtype).reshape(*lead, -1)
    y = round_to_type(wide * (jax.lax.rsqrt(variance + self.epsilon) * scale))
    if self.is_centred:
      y = add_bias(y, self.param('bias', nn.initializers.zeros, width))
    return y.astype(self.dtype)


# The numbers, in the whole batch, of a part's rows.
_rows: contextvars.ContextVar[Any] = contextvars.ContextVar('rows', default=(0,))


@contextlib.contextmanager
def numbering_rows(rows: Int[Array, ' b']) -> Iterator[None]:
  """Makes `dropout` in the block drop what it would drop from these rows of the whole batch."""
  token = _rows.set(rows)
  try:
    yield
  finally:
    _rows.reset(token)


def dropout(x: Float[Array, 'b *n'], rate: float, key: Array) -> Float[Array, 'b *n']:
  """Returns x with a share `rate` of its entries zeroed, and the others scaled up to the same mean.

  The mask hashes each entry's index in the whole batch, whose rows are x's first axis or its
  outermost part, with the key (Wellons' lowbias32). A random number for each
  entry would dominate a training step on CPUs: threefry takes 2.3 times as long as the rest of the
  step, XLA's Philox 4 times.
  """
  low, high = jax.random.bits(key, (2,), jnp.uint32)
  row = jnp.asarray(_rows.get(), jnp.uint32)
  in_row = jax.lax.iota(jnp.uint32, x.size // len(row))
  bits = (row[:, None] * np.uint32(in_row.size) + in_row[None]).reshape(x.shape) ^ low
  for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
    bits = (bits ^ (bits >> shift)) * np.uint32(factor) + high
  return jnp.where(bits >= np.uint32(rate * 2**32), x / (1 - rate), 0).astype(x.dtype)


class Dropout(nn.Module):
  """`dropout` by linen's 'dropout' key, in training only."""

  rate: float

  def __call__(self, x: Float[Array, '*b d'], train: bool) -> Float[Array, '*b d']:
    if not train or not self.rate:
      return x
    return dropout(x, self.rate, self.make_rng('dropout'))


def sinusoids(
  positions: Num[Array, '*b n'], d: int, longest: float = 1e4
) -> Float[Array, '*b n d']:
  """Returns the position signal of T2T and fairseq: sines, then cosines.

  Their wavelengths are 2 pi .. 2 pi * longest, spaced geometrically."""
  exponents = -np.arange(d // 2) * np.log(longest) / max(d // 2 - 1, 1)
  scales = np.exp(exponents).astype(np.float32)
  scales = scales.reshape((1,) * positions.ndim + (-1,))
  angles = round_to_type(positions[..., None].astype(jnp.float32) * scales)
  return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
