"""Kernels with a second copy in panels, which a call on one or a few tokens reads faster.

  params = fd.pack(model, params)          # on a CPU, before decoding; params may be in int8

XLA's CPU backend reads a kernel [outputs, inputs] as it lies when it meets one row, and lays it out
anew in every call when it meets more: a call on two tokens then takes twice as long as a call on
one. A panel is a kernel's part of a few outputs (`width_of`), laid out [inputs, width], as products
of few rows want it; one row goes in twice, which is faster by panels than one row by the kernel as
it lies. What a product of more rows reads stays as it was, and so does everything else; the copy
costs the kernels' memory a second time.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Int, Num

from fastdec import struct
from fastdec.errors import UserError
from fastdec.products import with_kernels

WIDTH = 64  # outputs of a panel
ROOM = 2**17  # entries of a panel in int8, which has twice the width where that fits


@struct.pytree
class Packed:
  """A kernel, and its copy in panels: the last one is filled up with zeros. It has the kernel's
  shape. Of a kernel in int8 (`quantized.Quantized`) it stands for the whole numbers."""

  kernel: Num[Array, '*f d']
  panels: Num[Array, 'n d w']

  @property
  def shape(self) -> tuple[int, ...]:
    return self.kernel.shape

  @property
  def ndim(self) -> int:
    return self.kernel.ndim

  @property
  def width(self) -> int:
    """Outputs of a panel."""
    return self.panels.shape[-1]

  def serves(self, x: Num[Array, 'r ...']) -> bool:
    """Whether panels are the faster way to multiply these rows."""
    return 0 < len(x) <= most_rows(x.dtype)

  def serves_each(self, x: Num[Array, 'r h d']) -> bool:
    """`serves`, for products of one vector of each row with one kernel of several: no panel reaches
    into two."""
    return self.serves(x) and int(np.prod(self.shape[1:-1])) % self.width == 0

  def __getitem__(self, index: Any) -> 'Packed | Num[Array, "..."]':
    """A part of its outputs; with its panels if it is a slice of the first axis that begins and
    ends at their edges."""
    kernel = self.kernel[index]
    if not isinstance(index, slice):
      return kernel
    first, end, step = index.indices(len(self.kernel))
    each, width = int(np.prod(self.shape[1:-1])), self.width
    is_whole = (
      step == 1
      and first * each % width == 0
      and (end * each % width == 0 or end == len(self.kernel))
    )
    return (
      Packed(kernel, self.panels[first * each // width : -(-end * each // width)])
      if is_whole
      else kernel
    )

  def rows(self, ids: Int[Array, '*b']) -> Num[Array, '*b d']:
    """Some of its rows: the embeddings of tokens."""
    return self.kernel[ids]


def most_rows(dtype: DTypeLike) -> int:
  """How many rows a product in this type has at most that reads panels, as measured on CPUs with
  AVX-512; 0: none does. (In bfloat16, on a CPU with AMX, panels take up to 2.5 times as long.)"""
  dtype = jnp.dtype(dtype)
  if dtype == jnp.int8:
    return 2
  return 12 if dtype.itemsize >= 4 else 0


def width_of(kernel: Num[Array, '*f d']) -> int | None:
  """How many outputs of a kernel make a panel, as measured there too; None: it lies well as it
  is."""
  *outputs, d = kernel.shape
  if not most_rows(kernel.dtype):
    return None
  widths = (2 * WIDTH, WIDTH) if kernel.dtype == jnp.int8 else (WIDTH,)
  for width in widths:
    fits = kernel.dtype != jnp.int8 or width * d <= ROOM
    if fits and width <= np.prod(outputs):
      return width
  return None


def packed(kernel: Num[Array, '*f d'], width: int = WIDTH) -> Packed:
  """The kernel with its copy in panels of so many outputs."""
  return Packed(kernel, _panels(kernel, width))


@functools.partial(jax.jit, static_argnames='width')
def _panels(kernel: Num[Array, '*f d'], width: int) -> Num[Array, 'n d w']:
  d = kernel.shape[-1]
  flat = kernel.reshape(-1, d)
  filled = jnp.pad(flat, ((0, -len(flat) % width), (0, 0)))
  return filled.reshape(-1, width, d).swapaxes(1, 2)


def panel_product(x: Num[Array, 'r d'], kernel: Packed, wide: DTypeLike) -> Num[Array, 'r *f']:
  """x @ kernel^T by the kernel's panels, summed in the type `wide`: one product a panel."""
  rows, outputs = len(x), int(np.prod(kernel.shape[:-1]))
  y = _by_panels(x[None], kernel.panels[None], wide)[0]
  return y[:, :outputs].reshape(rows, *kernel.shape[:-1])


def panel_product_each(
  x: Num[Array, 'r h d'], kernels: Packed, wide: DTypeLike
) -> Num[Array, 'r h f']:
  """x[:, i] @ kernels[i]^T for each i, likewise."""
  y = _by_panels(
    x.swapaxes(0, 1),
    kernels.panels.reshape(len(kernels.kernel), -1, *kernels.panels.shape[1:]),
    wide,
  )
  return y.swapaxes(0, 1)


def _by_panels(
  x: Num[Array, 'h r d'], panels: Num[Array, 'h n d w'], wide: DTypeLike
) -> Num[Array, 'h r m']:
  """One row goes in twice: XLA's CPU backend makes the product of one row and a panel in a loop
  that takes longer."""
  h, rows, d = x.shape
  twice = jnp.concatenate([x, x], axis=1) if rows == 1 else x
  x_hnrd = jnp.broadcast_to(twice[:, None], (h, panels.shape[1], twice.shape[1], d)).reshape(
    -1, *twice.shape[1:]
  )
  panels_cdw = panels.reshape(-1, *panels.shape[2:]).astype(x.dtype)
  y_crw = jax.lax.dot_general(
    x_hnrd, panels_cdw, (((2,), (1,)), ((0,), (0,))), preferred_element_type=wide
  )
  y = y_crw.reshape(h, panels.shape[1], *y_crw.shape[1:]).swapaxes(1, 2)
  return y.reshape(h, twice.shape[1], -1)[:, :rows]


def pack(module: Any, params: Any) -> Any:
  """The parameters, the kernels of all products with a copy in panels; those in half precision lie
  well as they are.

  What comes out is for decoding on one CPU: calls on 1 to 12 tokens are cheaper, in int8 on 1 and
  2, and everything else is as it was. Panels are multiplied by one core: where there are several,
  measure.

  Args:
    module: what the parameters are of: a model, prediction heads or a draft network.
    params: in any type, in int8 too (`fd.quantize`); they are not changed, nor copied but for the
      panels.

  Raises:
    UserError: they are packed already, lie on several devices, or are not this module's; or the
      module does not say which are kernels.
  """
  if is_packed(params):
    raise UserError('these parameters are packed already: pack them once')
  return with_kernels(module, params, _packed)


def _packed(leaf: Any) -> Any:
  array = jnp.asarray(leaf)
  if len(array.sharding.device_set) > 1:
    raise UserError(
      'parameters that lie on several devices are not packed: a mesh decodes with them as they are'
    )
  width = width_of(array)
  return array if width is None else packed(array, width)


def is_packed(params: Any) -> bool:
  """Whether there is a kernel with panels among parameters."""
  return any(isinstance(leaf, Packed) for leaf in jax.tree.leaves(params, is_leaf=_is_packed))


def unpacked(params: Any) -> Any:
  """The parameters without panels: what they were packed from."""
  return jax.tree.map(
    lambda leaf: leaf.kernel if _is_packed(leaf) else leaf, params, is_leaf=_is_packed
  )


def _is_packed(leaf: Any) -> bool:
  return isinstance(leaf, Packed)
