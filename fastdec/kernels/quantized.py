"""Parameters in int8: integers from -127 to 127, and a float32 scale for each output of a product.

  params = fd.quantize(model, params)          # or fd.load(path, dtype='int8')
  params = fd.quantize(model, params, 'int8w') # or fd.load(path, dtype='int8w')

A kernel [*outputs, inputs] becomes a `Quantized`, by which `models.layers.project` multiplies. In
'int8' the inputs are rounded to int8 in each call, with a scale for each row, and the sum is an
integer, so the product of a row does not depend on other rows. In 'int8w' only the weights are in
int8: inputs and sums keep their type. A module names its kernels in `products` (see
`kernels.products`). Norms, biases and positions stay the same.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, DTypeLike, Float, Int, Int8, Int32

from fastdec import struct
from fastdec.errors import UserError
from fastdec.kernels import forms
from fastdec.kernels.packed import is_packed
from fastdec.kernels.products import with_kernels
from fastdec.kernels.sums import row_max

LARGEST = 127  # not -128: the range is the same on both sides
TYPES = ('int8', 'int8w')


@struct.pytree
class Quantized:
  """A kernel in int8: values * scale, up to rounding.

  It has the kernel's shape, and may be sliced along outputs only.

  Attributes:
    values: the integers.
    scale: one for each output.
    rounds_inputs: rows that are multiplied by it are rounded to int8 too.
    sums: the sum of each output's integers, on a CPU that multiplies unsigned bytes
      (`kernels.unsigned`); else None.
  """

  values: Int8[Array, '*f d']
  scale: Float[Array, '*f']
  rounds_inputs: bool = struct.static(default=True)
  sums: Int32[Array, '*f'] | None = None

  @property
  def shape(self) -> tuple[int, ...]:
    return self.values.shape

  @property
  def ndim(self) -> int:
    return self.values.ndim

  def __getitem__(self, index: Any) -> 'Quantized':
    """Returns a part of its outputs."""
    sums = self.sums
    if sums is not None:
      sums = sums[index]
    return dataclasses.replace(self, values=self.values[index], scale=self.scale[index], sums=sums)

  def rows(self, ids: Int[Array, '*b']) -> Float[Array, '*b d']:
    """Returns some of its rows in float32: the embeddings of tokens."""
    return self.values[ids].astype(self.scale.dtype) * self.scale[ids][..., None]


def to_int8(
  x: Float[Array, '*f d'], dtype: DTypeLike = jnp.float32
) -> tuple[Int8[Array, '*f d'], Float[Array, '*f']]:
  """Returns (values, scale): each row divided by its scale, max |x| / 127, and rounded.

  A row of zeros has scale 0.

  Args:
    x: a kernel, or rows that are multiplied by one.
    dtype: type of the scales, and of the computation before rounding.
  """
  wide = x.astype(dtype)
  scale = row_max(jnp.abs(wide)) / LARGEST
  divisor = jnp.where(scale > 0, scale, 1)
  values = jnp.round(wide / divisor[..., None]).astype(jnp.int8)
  return values, scale


def round_kernel(kernel: Float[Array, '*f d']) -> Quantized:
  """Returns the kernel in int8; see `to_int8`."""
  return Quantized(*to_int8(kernel))


def quantize_kernel(kernel: Float[Array, '*f d'], dtype: str = 'int8') -> Quantized:
  """Returns the kernel in one of `TYPES`, on the same devices, with scales split as its outputs."""
  shardings = None
  if isinstance(kernel.sharding, NamedSharding):
    shardings = expand_sharding(jax.eval_shape(round_kernel, kernel), kernel.sharding)
  in_int8 = jax.jit(round_kernel, out_shardings=shardings)(kernel)
  return from_integers(in_int8.values, in_int8.scale, dtype)


def from_integers(
  values: Int8[Array, '*f d'], scale: Float[Array, '*f'], dtype: str = 'int8'
) -> Quantized:
  """Returns a kernel in one of `TYPES`, with the sums of its integers if the CPU needs them."""
  rounds_inputs = dtype == 'int8'
  sums = None
  if rounds_inputs and forms.takes_unsigned(values):
    add_up = jax.jit(
      lambda values: values.sum(axis=-1, dtype=jnp.int32), out_shardings=scale.sharding
    )
    sums = add_up(values)
  return Quantized(values, scale, rounds_inputs, sums)


def expand_sharding(leaf: Any, sharding: NamedSharding) -> Any:
  """Returns the sharding of each array of a parameter: a kernel in int8 also has scales."""
  if not isinstance(leaf, Quantized):
    return sharding
  others = choose_scale_sharding(leaf.ndim, sharding)
  parts = []
  for part in jax.tree.leaves(leaf):
    parts.append(sharding if part is leaf.values else others)
  return jax.tree.unflatten(jax.tree.structure(leaf), parts)


def choose_scale_sharding(ndim: int, sharding: NamedSharding) -> NamedSharding:
  """Returns the sharding of the scales of a kernel with `ndim` axes: that of its outputs."""
  return NamedSharding(sharding.mesh, P(*sharding.spec[: ndim - 1]))


def quantize(module: Any, params: Any, dtype: str = 'int8') -> Any:
  """Returns the parameters with all kernels in int8, a quarter of the bytes of float32.

  Args:
    module: the owner of the parameters: a model, prediction heads or a draft network.
    params: in any floating type; they are not changed.
    dtype: 'int8': the inputs of products are rounded to int8 too, in each call. 'int8w': they keep
      their type, which loses less; on a CPU a call then takes about as long as without int8.

  Raises:
    UserError: the parameters are in int8 already, packed, or not this module's; the module does not
      name its kernels; `dtype` is another type.
  """
  if is_packed(params):
    raise UserError('these parameters are packed: give the parameters from before packing')
  if is_quantized(params):
    raise UserError('these parameters are in int8 already: quantize them only once')
  if dtype not in TYPES:
    raise UserError(f'dtype={dtype!r} is not possible: give one of {", ".join(TYPES)}')
  return with_kernels(module, params, lambda kernel: quantize_kernel(jnp.asarray(kernel), dtype))


def is_quantized(params: Any, types: Sequence[str] = TYPES) -> bool:
  """True if a kernel among the parameters has one of these types."""
  for leaf in jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, Quantized)):
    if isinstance(leaf, Quantized):
      dtype = 'int8' if leaf.rounds_inputs else 'int8w'
      if dtype in types:
        return True
  return False
