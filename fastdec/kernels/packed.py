"""Kernels with a second copy in panels, which calls on a few tokens read faster.

  params = fd.pack(model, params)          # on a CPU, before decoding

For one row, XLA's CPU backend reads a kernel [outputs, inputs] in place. For several rows it
re-tiles the kernel in every call: a call on two tokens takes twice as long as a call on one. A
panel holds 64 outputs of a kernel as [inputs, width], the layout that XLA wants for products of few
rows. A single row is multiplied twice, which is still faster than one row by the kernel. Products
of more rows read the kernel as before. The copy doubles the kernels' memory.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Int, Num

from fastdec import struct
from fastdec.errors import UserError
from fastdec.kernels.products import with_kernels

WIDTH = 64  # outputs of a panel


@struct.pytree
class Packed:
  """A kernel, and its copy in panels; the last panel ends with zeros. Its shape is the kernel's."""

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
    """Number of outputs of a panel."""
    return self.panels.shape[-1]

  def serves(self, x: Num[Array, 'r ...']) -> bool:
    """True if panels multiply these rows faster than the kernel does."""
    return 0 < len(x) <= most_rows(x.dtype)

  def serves_each(self, x: Num[Array, 'r h d']) -> bool:
    """True if panels multiply each row's vectors by their own kernels faster.

    No panel may hold outputs of two kernels."""
    return self.serves(x) and int(np.prod(self.shape[1:-1])) % self.width == 0

  def __getitem__(self, index: Any) -> 'Packed | Num[Array, "..."]':
    """Returns a part of the outputs; it has panels if it begins and ends with a panel.

    Args:
      index: of the first axis, an integer (perhaps traced) or a slice.
    """
    kernel = self.kernel[index]
    count, each, width = len(self.kernel), int(np.prod(self.shape[1:-1])), self.width

    # One entry: it has panels of its own if its outputs fill whole panels.
    if not isinstance(index, slice):
      if np.ndim(index) or each % width:
        return kernel
      return Packed(kernel, self.panels.reshape(count, -1, *self.panels.shape[1:])[index])

    # A slice: both ends must be ends of panels.
    first, end, step = index.indices(count)
    begins = first * each % width == 0
    ends = end * each % width == 0 or end == count
    if step != 1 or not begins or not ends:
      return kernel
    return Packed(kernel, self.panels[first * each // width : -(-end * each // width)])

  def rows(self, ids: Int[Array, '*b']) -> Num[Array, '*b d']:
    """Returns some of its rows: the embeddings of tokens."""
    return self.kernel[ids]


def most_rows(dtype: DTypeLike) -> int:
  """Most rows that panels multiply faster in this type, measured on CPUs with AVX-512; 0: none.

  (On a CPU with AMX panels take up to 2.8 times as long in float32, 2.5 in bfloat16, 2 in int8.)"""
  return 12 if jnp.dtype(dtype).itemsize >= 4 else 0


def pack_kernel(kernel: Num[Array, '*f d'], width: int = WIDTH) -> Packed:
  """Returns the kernel with its copy in panels of `width` outputs."""
  return Packed(kernel, _make_panels(kernel, width))


@functools.partial(jax.jit, static_argnames='width')
def _make_panels(kernel: Num[Array, '*f d'], width: int) -> Num[Array, 'n d w']:
  d = kernel.shape[-1]
  flat = kernel.reshape(-1, d)
  filled = jnp.pad(flat, ((0, -len(flat) % width), (0, 0)))
  panels_nwd = filled.reshape(-1, width, d)
  return panels_nwd.swapaxes(1, 2)


def panel_product(x: Num[Array, 'r d'], kernel: Packed, wide: DTypeLike) -> Num[Array, 'r *f']:
  """Returns x @ kernel^T, summed in the type `wide`, by one product per panel."""
  rows, outputs = len(x), int(np.prod(kernel.shape[:-1]))
  y = _by_panels(x[None], kernel.panels[None], wide)[0]
  return y[:, :outputs].reshape(rows, *kernel.shape[:-1])


def panel_product_each(
  x: Num[Array, 'r h d'], kernels: Packed, wide: DTypeLike
) -> Num[Array, 'r h f']:
  """Returns x[:, i] @ kernels[i]^T for each i, as `panel_product`."""
  panels = kernels.panels.reshape(len(kernels.kernel), -1, *kernels.panels.shape[1:])
  return _by_panels(x.swapaxes(0, 1), panels, wide).swapaxes(0, 1)


def _by_panels(
  x: Num[Array, 'h r d'], panels: Num[Array, 'h n d w'], wide: DTypeLike
) -> Num[Array, 'h r m']:
  """Multiplies by panels. A single row is multiplied twice: XLA's loop for one row is slower."""
  h, rows, d = x.shape
  if rows == 1:
    x = jnp.concatenate([x, x], axis=1)
  x_hnrd = jnp.broadcast_to(x[:, None], (h, panels.shape[1], x.shape[1], d))
  x_crd = x_hnrd.reshape(-1, *x.shape[1:])
  panels_cdw = panels.reshape(-1, *panels.shape[2:]).astype(x.dtype)
  y_crw = jax.lax.dot_general(
    x_crd, panels_cdw, (((2,), (1,)), ((0,), (0,))), preferred_element_type=wide
  )
  y = y_crw.reshape(h, panels.shape[1], *y_crw.shape[1:]).swapaxes(1, 2)
  return y.reshape(h, x.shape[1], -1)[:, :rows]


def pack(module: Any, params: Any) -> Any:
  """Returns the parameters with a copy in panels of each kernel in float32 or float64.

  With it, calls on 1 to 12 tokens are faster on one core of a CPU without AMX. Everything else
  stays the same. XLA multiplies by panels on one core: if you decode on several, measure both.

  Args:
    module: the owner of the parameters: a model, prediction heads or a draft network.
    params: in any type; they are not changed, and not copied except into the panels.

  Raises:
    UserError: the parameters are packed already, are on several devices, or are not this module's;
      the module does not name its kernels.
  """
  if is_packed(params):
    raise UserError('these parameters are packed already: pack them only once')

  def pack_leaf(leaf: Any) -> Any:
    array = jnp.asarray(leaf)
    if len(array.sharding.device_set) > 1:
      raise UserError(
        'parameters on several devices cannot be packed: decode with them as they are'
      )
    if most_rows(array.dtype) and array.size >= WIDTH * array.shape[-1]:
      return pack_kernel(array)
    return array

  return with_kernels(module, params, pack_leaf)


def is_packed(params: Any) -> bool:
  """True if a kernel among the parameters has panels."""
  for leaf in jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, Packed)):
    if isinstance(leaf, Packed):
      return True
  return False


def drop_panels(params: Any) -> Any:
  """Returns the parameters without panels, as they were before packing."""
  leaves, structure = jax.tree.flatten(params, is_leaf=lambda leaf: isinstance(leaf, Packed))
  for i, leaf in enumerate(leaves):
    if isinstance(leaf, Packed):
      leaves[i] = leaf.kernel
  return jax.tree.unflatten(structure, leaves)
