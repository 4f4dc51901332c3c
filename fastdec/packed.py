"""Kernels with a second copy in panels, so that a call on several tokens reads them as fast as a call on one.

  params = fd.pack(model, params)          # on a CPU, before decoding

XLA's CPU backend reads a kernel [outputs, inputs] as it lies when it meets one row, and lays it out anew in every call
when it meets more: a call on two tokens then takes twice as long as a call on one. A panel is a kernel's part of
`WIDTH` outputs, laid out [inputs, WIDTH], as products of 2 to `FEW` rows want it. What a product of more rows, or of
one, reads stays as it was, and so does everything else; the copy costs the kernels' memory a second time.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Int, Num

from fastdec import struct
from fastdec.errors import UserError
from fastdec.products import kernels_of

WIDTH = 64  # outputs of a panel
FEW = 12  # rows of a product that reads panels


@struct.pytree
class Packed:
  """A kernel, and its copy in panels: the last one is filled up with zeros. It has the kernel's shape."""

  kernel: Float[Array, '*f d']
  panels: Float[Array, 'n d w']

  @property
  def shape(self) -> tuple[int, ...]:
    return self.kernel.shape

  @property
  def ndim(self) -> int:
    return self.kernel.ndim

  def serves(self, x: Num[Array, 'r d']) -> bool:
    """Whether panels are the faster way to multiply these rows: a few, in float32 or wider. (In bfloat16, on a CPU with
    AMX, they take up to 2.5 times as long.)"""
    return x.dtype.itemsize >= 4 and 2 <= len(x) <= FEW

  def __getitem__(self, index: Any) -> Float[Array, '...']:
    """A part of its outputs, without panels."""
    return self.kernel[index]

  def rows(self, ids: Int[Array, '*b']) -> Float[Array, '*b d']:
    """Some of its rows: the embeddings of tokens."""
    return self.kernel[ids]


def packed(kernel: Float[Array, '*f d']) -> Packed:
  """The kernel with its copy in panels."""
  return Packed(kernel, _panels(kernel))


@jax.jit
def _panels(kernel: Float[Array, '*f d']) -> Float[Array, 'n d w']:
  d = kernel.shape[-1]
  flat = kernel.reshape(-1, d)
  filled = jnp.pad(flat, ((0, -len(flat) % WIDTH), (0, 0)))
  return filled.reshape(-1, WIDTH, d).swapaxes(1, 2)


def panel_product(x: Num[Array, 'r d'], kernel: Packed, wide: DTypeLike) -> Num[Array, 'r *f']:
  """x @ kernel^T by the kernel's panels, summed in the type `wide`: one product a panel."""
  panels = kernel.panels.astype(x.dtype)
  rows, outputs = len(x), int(np.prod(kernel.shape[:-1]))
  x_nrd = jnp.broadcast_to(x, (len(panels), *x.shape))
  y_nrw = jax.lax.dot_general(x_nrd, panels, (((2,), (1,)), ((0,), (0,))), preferred_element_type=wide)
  y = y_nrw.swapaxes(0, 1).reshape(rows, -1)
  return y[:, :outputs].reshape(rows, *kernel.shape[:-1])


def pack(module: Any, params: Any) -> Any:
  """The parameters, the kernels of all products with a copy in panels; those in int8 and in half precision
  lie well as they are.

  What comes out is for decoding on one CPU: calls on 2 to 12 tokens are cheaper, and everything else is as it was.

  Args:
    module: what the parameters are of: a model, prediction heads or a draft network.
    params: in any type; they are not changed, nor copied but for the panels.

  Raises:
    UserError: they are packed already, or lie on several devices, or the module does not say which are kernels.
  """
  if is_packed(params):
    raise UserError('these parameters are packed already: pack them once')
  is_kernel = kernels_of(module)
  done = {}  # what stands in the tree twice stays one array

  def converted(path: Any, leaf: Any) -> Any:
    if not is_kernel(jax.tree_util.keystr(path, simple=True, separator='/')):
      return leaf
    if id(leaf) not in done:
      done[id(leaf)] = _packed(leaf)
    return done[id(leaf)]

  return jax.tree.map_with_path(converted, params)


def _packed(leaf: Any) -> Any:
  array = jnp.asarray(leaf)
  if len(array.sharding.device_set) > 1:
    raise UserError('parameters that lie on several devices are not packed: a mesh decodes with them as they are')
  is_served = array.dtype.itemsize >= 4 and int(np.prod(array.shape[:-1])) >= WIDTH
  return packed(array) if is_served else array


def is_packed(params: Any) -> bool:
  """Whether there is a kernel with panels among parameters."""
  leaves = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, Packed))
  return any(isinstance(leaf, Packed) for leaf in leaves)
