"""Times the forms of products (`kernels.forms`) on this machine, to make a table of the fastest.

Fast forms differ between machines, so `fastdec tune` measures them before it compiles anything.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fastdec.evaluation.wallclock import measure
from fastdec.kernels.forms import COUNTS, FORMS, SIZES, TABLE, UNSIGNED, Table
from fastdec.kernels.unsigned import unsigned_product

PARTS, BYTES = 16, 2**22  # kernels to measure with, and the bytes of each: more than caches hold
ROUNDS = 3  # the fastest counts
NOISE = 1.1  # a ratio of times

Times = dict[tuple[str, int], float]  # seconds, by form and number of rows


def measure_forms() -> Table:
  """Returns the table of this machine's fastest forms, after a few seconds."""
  table: Table = {}
  for dtype in TABLE:
    layer, large = _time_forms(dtype, is_large=False), _time_forms(dtype, is_large=True)
    # The lane form has the best memory bandwidth, but a long reduction: it takes twice as long as
    # others for narrow kernels, which are in the CPU's caches.
    narrow = {key: seconds for key, seconds in layer.items() if key[0] != 'lanes'}
    for size, times in zip(SIZES, (layer, large, narrow), strict=True):
      table.setdefault(dtype, {})[size] = choose_forms(times)
  return table


def _time_forms(dtype: str, is_large: bool) -> Times:
  """Times each form with each of COUNTS."""
  # The same bytes lie in one large kernel, or in many of a layer's size.
  inputs, parts, wide = 1024, PARTS, jnp.float32
  if is_large:
    parts = 1
  if dtype == 'int8':
    wide = jnp.int32
  shape = (PARTS // parts * BYTES // jnp.dtype(dtype).itemsize // inputs, inputs)
  kernels = [jnp.ones(shape, dtype) for _ in range(parts)]
  sums = jnp.zeros(shape[:1], jnp.int32)

  functions: dict[tuple[str, int], Any] = {}
  for count in COUNTS:
    x = jnp.ones((count, inputs), dtype)
    for name, form in FORMS.items():
      if name == 'lanes':
        takes_part = dtype == 'int8' and count <= 4
      else:
        takes_part = count > 1 or dtype == 'float32'  # other types have a slow loop of XLA's there
      if takes_part:
        functions[name, count] = jax.jit(lambda kernel, x=x, form=form: form(x, kernel, wide))
    if dtype == 'int8' and count > 1:
      functions[UNSIGNED, count] = jax.jit(lambda kernel, x=x: unsigned_product(x, kernel, sums))
  timings = measure(functions, ROUNDS, [(kernel,) for kernel in kernels])
  return {key: min(timing.seconds) for key, timing in timings.items()}


def choose_forms(times: Times) -> list[tuple[str, int]]:
  """Returns the fastest form for each of COUNTS, and how many rows it is filled up to.

  Rows are only filled up if that is faster by more than the times of a busy machine differ. The
  same holds for the kernel form, whose outputs are transposed: what follows may do that twice.
  """
  fastest = []
  for count in COUNTS:
    handicapped = {}
    for (name, rows), seconds in times.items():
      if rows >= count:
        if rows > count or name == 'kernel':
          seconds *= NOISE
        handicapped[name, rows] = seconds
    name, rows = min(handicapped, key=lambda key: handicapped[key])
    fastest.append((name, 1 if rows == count else rows))
  return fastest
