"""Products of unsigned by signed bytes, for which CPUs with VNNI have an instruction.

XLA's library multiplies unsigned by signed bytes about twice as fast as signed by signed. So 128 is
added to a row in int8, which makes it unsigned, and the result is corrected:

  x . kernel = (x + 128) . kernel - 128 sum(kernel)

which is exact in int32. The sums of a kernel's outputs are computed once (`kernels.quantized`). JAX
would convert all bytes to int32 before it multiplies them; the primitive here does not.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir
from jaxtyping import Array, Int8, Int32

MIDDLE = 128  # added to signed bytes

dot_p = Primitive('unsigned_by_signed_dot')


@dot_p.def_abstract_eval
def _(x: Any, kernel: Any) -> Any:
  return x.update(shape=(x.shape[0], kernel.shape[0]), dtype=jnp.dtype('int32'))


def _lower(context: mlir.LoweringRuleContext, x: ir.Value, kernel: ir.Value) -> list[ir.Value]:
  (out,) = context.avals_out
  result = ir.RankedTensorType.get(out.shape, ir.IntegerType.get_signless(32))
  last_of_both = stablehlo.DotDimensionNumbers.get([], [], [1], [1])
  return [stablehlo.dot_general(result, x, kernel, last_of_both)]


mlir.register_lowering(dot_p, _lower)


@jax.custom_batching.custom_vmap
@jax.jit
def unsigned_product(
  x: Int8[Array, 'r d'], kernel: Int8[Array, '*f d'], sums: Int32[Array, '*f']
) -> Int32[Array, 'r *f']:
  """Returns x @ kernel^T for two rows or more; `sums` has the sum of each output's integers."""
  unsigned = jax.lax.bitcast_convert_type(x, jnp.uint8) ^ jnp.uint8(MIDDLE)
  y = dot_p.bind(unsigned, kernel.reshape(-1, kernel.shape[-1]))

  # The subtraction also keeps XLA from swapping the two factors where the result is transposed.
  y = y - MIDDLE * sums.reshape(1, -1)
  return y.reshape(len(x), *sums.shape)


@unsigned_product.def_vmap
def _(
  size: int, batched: list[bool], x: Array, kernel: Array, sums: Array
) -> tuple[Int32[Array, 'b r *f'], bool]:
  # One kernel for all rows: a single product.
  if batched == [True, False, False]:
    y = unsigned_product(x.reshape(-1, x.shape[-1]), kernel, sums)
    return y.reshape(*x.shape[:-1], *sums.shape), True

  # Several kernels: one product after the other.
  args = []
  for part, is_batched in zip((x, kernel, sums), batched, strict=True):
    args.append(part if is_batched else jnp.broadcast_to(part, (size, *part.shape)))
  return jax.lax.map(lambda one: unsigned_product(*one), tuple(args)), True
