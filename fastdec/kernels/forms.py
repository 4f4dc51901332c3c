"""Forms of a product of few rows by a kernel on a CPU, and the table of the fastest ones.

XLA's CPU backend takes up to three times as long for one form as for another, and machines differ.
`tuning.products` times all forms on this machine. `fastdec tune` keeps the resulting table in the
user's cache folder, where later processes read it (`text.programs`). Otherwise the table of this
kind of processor is used (`table_of_cpu`).
"""

import functools
import re
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Int32, Num

from fastdec.kernels.mesh import is_split
from fastdec.kernels.unsigned import unsigned_product

FEW = 64  # the most rows of a decoding call
LARGE = 2**14  # outputs, from which on a kernel is large: those of a vocabulary
NARROW = 512  # inputs, below which it is narrow: such models lie in a CPU's caches
COUNTS = (1, 2, 4, 8, 16)  # of rows; a number between two of them is served as the larger
LANES = 32  # sums of a kernel's row that are added up side by side
LONGEST = 1536  # inputs of such a row; with more terms its loop reads half as fast

Form = Callable[[Num[Array, 'r d'], Num[Array, '*f d'], DTypeLike], Num[Array, 'r *f']]
# By type, then by size: form and least rows for each of COUNTS. A product of fewer rows is filled
# up with zeros, in half precision and int8 always to two: XLA's own loop for one row is slow.
Table = dict[str, dict[str, list[tuple[str, int]]]]


def rows_first(
  x: Num[Array, 'r d'], kernel: Num[Array, '*f d'], wide: DTypeLike
) -> Num[Array, 'r *f']:
  """Returns x @ kernel^T, summed in the type `wide`.

  Outputs are one axis of the product: with several, XLA's CPU backend would transpose the kernel in
  every call. A mesh may split these axes, so there they stay.
  """
  outputs = kernel.shape[:-1]
  if not is_split():
    kernel = kernel.reshape(-1, kernel.shape[-1])
  axes = (((1,), (kernel.ndim - 1,)), ((), ()))
  y = jax.lax.dot_general(x, kernel, axes, preferred_element_type=wide)
  return y.reshape(len(x), *outputs)


def _kernel_first(
  x: Num[Array, 'r d'], kernel: Num[Array, '*f d'], wide: DTypeLike
) -> Num[Array, 'r *f']:
  # Without the axis of 1 XLA lays a float32 kernel out anew in either order.
  first = kernel if kernel.ndim > 2 else kernel[None]
  axes = (((first.ndim - 1,), (1,)), ((), ()))
  y = jax.lax.dot_general(first, x, axes, preferred_element_type=wide)
  return jnp.moveaxis(y, -1, 0).reshape(len(x), *kernel.shape[:-1])


def _in_lanes(
  x: Num[Array, 'r d'], kernel: Num[Array, '*f d'], wide: DTypeLike
) -> Num[Array, 'r *f']:
  """Multiplies int8 by XLA's generated loops, which read the kernel once, in place.

  Two products of numbers up to 127 fit into int16. Sums are those of the other forms, bit for bit.
  """
  d = kernel.shape[-1]
  # The kernel seems to change with x: otherwise a loop would keep a copy of it in int16.
  x, kernel = jax.lax.optimization_barrier((x, kernel))
  x_r1d = x.astype(jnp.int16).reshape(len(x), *(1,) * (kernel.ndim - 1), d)
  sums = jnp.zeros((), wide)
  for begin in range(0, d, 2 * LANES):
    pair = []
    for part in range(begin, min(begin + 2 * LANES, d), LANES):
      lanes = slice(part, part + LANES)
      pair.append(kernel[None, ..., lanes].astype(jnp.int16) * x_r1d[..., lanes])
    sums = sums + sum(pair[1:], pair[0]).astype(wide)
  return sums.sum(axis=-1)


SIZES = 'layer', 'large', 'narrow'
FORMS: dict[str, Form] = {'rows': rows_first, 'kernel': _kernel_first, 'lanes': _in_lanes}
UNSIGNED = 'unsigned'  # the form of `kernels.unsigned`, which also needs sums of the kernel
# Measured on an AMD EPYC with AVX-512 and VNNI.
TABLE: Table = {
  'float32': {
    'layer': [('rows', 1)] + [('kernel', 1)] * 4,
    'large': [('rows', 1)] + [('kernel', 1)] * 3 + [('rows', 1)],
    'narrow': [('rows', 1)] + [('kernel', 1)] * 4,
  },
  'bfloat16': dict.fromkeys(SIZES, [('rows', 2)] * 5),
  'int8': {
    'layer': [('lanes', 1)] + [(UNSIGNED, 1)] * 4,
    'large': [('lanes', 1)] + [(UNSIGNED, 1)] * 4,
    'narrow': [(UNSIGNED, 2)] + [(UNSIGNED, 1)] * 4,
  },
}
# Measured on an Intel Xeon with AMX, where signed bytes are as fast as unsigned ones, and four rows
# are faster than one.
AMX_TABLE: Table = {
  'float32': dict.fromkeys(SIZES, [('rows', 1)] + [('kernel', 1)] * 4),
  'bfloat16': dict.fromkeys(SIZES, [('kernel', 2)] + [('kernel', 1)] * 4),
  'int8': {
    'layer': [('kernel', 4)] * 2 + [('kernel', 1)] * 3,
    'large': [('kernel', 4)] * 2 + [('kernel', 1)] * 2 + [('rows', 1)],
    'narrow': [('kernel', 4)] * 2 + [('kernel', 1)] * 3,
  },
}
# By number of rows: where a kernel has no sums, as on a CPU without units for unsigned bytes.
WITHOUT_SUMS = [('kernel', 2)] + [('kernel', 1)] * 3 + [('rows', 1)]
_used: list[Table] = [{}]


def use(table: Table) -> None:
  """Chooses forms by this table in programs that are traced from now on; {}: by the CPU's."""
  _used[0] = table


def table_of_cpu() -> Table:
  """Returns the table of the kind of processor that this is."""
  return AMX_TABLE if 'amx_int8' in cpu_flags() else TABLE


def takes_unsigned(kernel: Array) -> bool:
  """True if a kernel in int8 is multiplied by unsigned rows where it lies, on a CPU with VNNI."""
  if {device.platform for device in kernel.sharding.device_set} != {'cpu'}:
    return False
  if not _used[0] and 'avx512_vnni' not in cpu_flags():
    return False
  table = _used[0] or table_of_cpu()
  return any(name == UNSIGNED for size in table['int8'].values() for name, _ in size)


@functools.cache
def cpu_flags() -> frozenset[str]:
  """Returns the names of what the CPU can do; none where the system does not list them."""
  try:
    flags = re.search(r'flags\s*: (.*)', Path('/proc/cpuinfo').read_text())
  except OSError:
    return frozenset()
  return frozenset(flags[1].split()) if flags else frozenset()


def cpu_product(
  x: Num[Array, 'r d'], kernel: Num[Array, '*f d'], sums: Int32[Array, '*f'] | None, wide: DTypeLike
) -> Num[Array, 'r *f']:
  """Returns x @ kernel^T in the form that is fastest on a CPU.

  More than two rows are filled up to a multiple of four, as six take longer than eight. Bytes with
  the sums of a kernel's outputs may be multiplied unsigned, however many rows there are.
  """
  rows = len(x)
  if rows > FEW:
    return rows_first(x, kernel, wide) if sums is None else unsigned_product(x, kernel, sums)
  inputs = kernel.shape[-1]
  if inputs < NARROW:
    size = 'narrow'
  else:
    size = 'large' if kernel.size // inputs >= LARGE else 'layer'
  number = sum(rows > count for count in COUNTS[:-1])
  kind = {1: 'int8', 2: 'bfloat16'}.get(x.dtype.itemsize, 'float32')
  name, least = (_used[0] or table_of_cpu())[kind][size][number]
  if name == 'lanes' and (kernel.dtype != jnp.int8 or inputs % LANES or inputs > LONGEST):
    name, least = UNSIGNED, 2
  if name == UNSIGNED and sums is None:
    name, least = WITHOUT_SUMS[number]
  filled = max(least, rows if rows <= 2 else -(-rows // 4) * 4)
  x = jnp.pad(x, ((0, filled - rows), (0, 0)))
  if name == UNSIGNED:
    return unsigned_product(x, kernel, sums)[:rows]
  return FORMS[name](x, kernel, wide)[:rows]
