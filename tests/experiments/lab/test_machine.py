"""Programs are counted as XLA runs them on a GPU: products, bytes, and memory."""

import jax
import jax.numpy as jnp
import pytest

from experiments.lab.machine import FEW, GPUS, count_program, machine_of
from fastdec.errors import UserError

H100 = GPUS['h100']
WIDE = 2 * FEW  # entries of a row that no kernel reduces and reads again


def counted(f, *shapes, dtype=jnp.float32):
  arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
  return count_program(jax.make_jaxpr(f)(*arguments).jaxpr, H100)


def test_products_count_wherever_they_are():
  """2 m n k FLOPs; in a loop as often as it runs, which XLA's own count does not do."""
  assert counted(jnp.matmul, (3, 5), (5, 7)).flops == 2 * 3 * 5 * 7
  assert counted(jnp.matmul, (4, 3, 5), (4, 5, 7)).flops == 4 * 2 * 3 * 5 * 7

  def loop(x, y):
    return jax.lax.scan(lambda x, _: (jax.jit(jnp.matmul)(x, y), None), x, length=6)[0]

  def choice(x, y):
    return jax.lax.cond(x[0, 0] > 0, jnp.matmul, lambda x, y: x, x, y)

  assert counted(loop, (5, 5), (5, 5)).flops == 6 * 2 * 5**3
  assert counted(choice, (5, 5), (5, 5)).flops == 2 * 5**3
  assert counted(lambda x, y: (x @ y, x + y)[1], (5, 5), (5, 5)).flops == 0  # nothing reads it


def reads_rows(table, ids):
  return table[ids.astype(jnp.int32)]


def adds_rows(table, ids, rows):
  return table.at[ids.astype(jnp.int32)].add(rows)


def moments(weights, mean, gradient):
  mean = 0.9 * mean + 0.1 * gradient
  return weights - mean, mean


def by_platform(x):
  return jax.lax.platform_dependent(x, cpu=lambda x: jnp.sort(jnp.sort(x)), default=jnp.sin)


@pytest.mark.parametrize(('f', 'shapes', 'entries'), [
  (jnp.matmul, [(3, 5), (5, 7)], 15 + 35 + 21),
  # Elementwise operations read and write once, next to a product too.
  (lambda x: jnp.sin(jnp.cos(x) + x), [(1000,)], 2 * 1000),
  (lambda x, y: jnp.sin(x @ y) + 1, [(3, 5), (5, 7)], 15 + 35 + 21 + 2 * 21),
  (lambda x: jnp.cumsum(jnp.sin(x)), [(1000,)], 2 * 1000 + 2 * 1000),
  # A reduction reads what its operand is computed from.
  (lambda x: jnp.square(x).sum(), [(1000,)], 1000 + 1),
  (lambda x: x - jnp.square(x).sum(-1, keepdims=True), [(8, 100)], 2 * 800),
  # The largest entry of a wide row is found first, then the sum: two more kernels.
  (jax.nn.softmax, [(8, 100)], 2 * 800),
  (jax.nn.softmax, [(8, WIDE)], 4 * 8 * WIDE + 5 * 8),
  (lambda x: (x.sum(-1), jnp.square(x).sum(-1), x.max(-1)), [(8, WIDE)], 8 * WIDE + 3 * 8),
  # Rows of a table are read and changed, not the table.
  (reads_rows, [(1000, 16), (5,)], 2 * 5 * 16 + 5),
  (adds_rows, [(1000, 16), (5,), (5, 16)], 3 * 5 * 16 + 3 * 5),
  # Results of one step share what they read.
  (moments, [(1000,), (1000,), (1000,)], 5 * 1000),
  (by_platform, [(1000,)], 2 * 1000),
  # A loop writes nothing that is not read.
  (lambda x: jax.lax.scan(lambda x, _: (jnp.sin(x), x + 1), x, length=6)[0], [(10,)], 6 * 20),
])  # fmt: skip
def test_bytes_are_those_that_a_gpu_moves(f, shapes, entries):
  assert counted(f, *shapes).bytes == 4 * entries


def test_a_product_is_written_in_the_type_that_is_read():
  def round_product(x, y):
    return jnp.matmul(x, y, preferred_element_type=jnp.float32).astype(jnp.bfloat16)

  assert counted(round_product, (3, 5), (5, 7), dtype=jnp.bfloat16).bytes == 2 * (15 + 35 + 21)


def test_memory_is_what_is_alive_at_once():
  def chain(x, y):
    for _ in range(9):
      x = x @ y
    return x

  def fan(x, y):
    return sum((x * i) @ y for i in range(9))

  assert counted(chain, (10, 10), (10, 10)).memory == 4 * 3 * 100
  assert counted(fan, (10, 10), (10, 10)).memory == 4 * 100 * 11
  assert counted(lambda x: sum(jnp.sin(x * i) for i in range(9)), (1000,)).memory == 2 * 4000


def test_gradients_are_exchanged_within_a_node_and_between_nodes():
  within, between = H100.links
  assert H100.exchange_seconds(8e9, 1) == 0
  assert H100.exchange_seconds(8e9, 8) == pytest.approx(2 * 7 / 8 * 8e9 / within)
  of_node = H100.exchange_seconds(8e9, 8)
  assert H100.exchange_seconds(8e9, 64) == pytest.approx(of_node + 2 * 7 / 8 * 1e9 / between)


@pytest.mark.parametrize('name', ['h100', 'v100x8', 'h100x0', ''])
def test_a_machine_has_a_kind_and_a_number(name):
  with pytest.raises(UserError, match=f'--plan={name} is not a machine: give h100x8'):
    machine_of(name)
