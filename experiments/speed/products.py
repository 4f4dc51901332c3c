"""What a product costs in each form that it may have: `experiments.benchmark` with
configs/products.py."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab.report import Column
from experiments.speed.costs import check_at_least, table
from fastdec.errors import UserError
from fastdec.evaluation.wallclock import measure
from fastdec.models.layers import product
from fastdec.packed import packed, panel_product, width_of

DTYPES = ('float32', 'bfloat16', 'int8')
Row = dict[str, Any]
Form = Callable[[Any, Any, Any], Any]  # (rows [r, d], kernel [*f, d], type of the sums) -> [r, *f]


@dataclasses.dataclass(frozen=True)
class SpeedConfig:
  """Fields as in `configs/products.py`."""

  task: Literal['products']
  kernels: tuple[tuple[int, ...], ...]
  dtypes: tuple[str, ...]
  rows: tuple[int, ...]
  calls: int
  rounds: int
  seed: int

  def __post_init__(self) -> None:
    check_at_least(1, self, 'rows', 'calls', 'rounds')
    for dtype in self.dtypes:
      if dtype not in DTYPES:
        raise UserError(f'dtypes={self.dtypes} is not possible: give some of {", ".join(DTYPES)}')
    for kernel in self.kernels:
      if len(kernel) < 2 or min(kernel) < 1:
        raise UserError(
          f'a kernel of {kernel} is not possible: give the sizes of its outputs, and'
          ' last of its inputs'
        )


def rows_first(x: Any, kernel: Any, wide: Any) -> Any:
  """x @ kernel^T."""
  return jax.lax.dot_general(
    x, kernel, (((1,), (kernel.ndim - 1,)), ((), ())), preferred_element_type=wide
  )


def kernel_first(x: Any, kernel: Any, wide: Any) -> Any:
  """(kernel @ x^T)^T."""
  y = jax.lax.dot_general(
    kernel, x, (((kernel.ndim - 1,), (1,)), ((), ())), preferred_element_type=wide
  )
  return jnp.moveaxis(y, -1, 0)


def axis_first(x: Any, kernel: Any, wide: Any) -> Any:
  """The same with an axis of 1 before the kernel's."""
  return kernel_first(x, kernel[None], wide)[:, 0]


FORMS: dict[str, Form] = {
  'rows first': rows_first,
  'kernel first': kernel_first,
  'axis first': axis_first,
}
COLUMNS = (
  Column('dtype', 'dtype'),
  Column('kernel', 'kernel'),
  Column('rows', 'rows'),
  *(Column(f'{name}, µs', name, '.0f') for name in FORMS),
  *(
    Column(f'twice, {name}, µs', lambda row, name=name: row.get(f'twice, {name}'), '.0f')
    for name in FORMS
  ),
  Column('chosen, µs', 'chosen', '.0f'),
  Column('to the fastest', 'to_fastest', '.2f'),
  Column('panels, µs', lambda row: row.get('panels'), '.0f'),
)


def twice(form: Form, x: Any, kernel: Any, wide: Any) -> Any:
  """The form with every row given twice."""
  return form(jnp.concatenate([x, x]), kernel, wide)[: len(x)]


def measure_speed(config: SpeedConfig, say: Callable[[str], None]) -> list[Row]:
  """One row a type, kernel and number of rows: microseconds a product in each form, the call that
  starts it included, and the time of the chosen form over that of the fastest; panels beside, which
  kernels must be laid out in before, in the types that have them."""
  rows = []
  for dtype in config.dtypes:
    for axes in config.kernels:
      say(f'{dtype}: timing products with a kernel of {list(axes)}')
      rows += [_measure(config, dtype, axes, count) for count in config.rows]
  return rows


def _measure(config: SpeedConfig, dtype: str, axes: tuple[int, ...], count: int) -> Row:
  rng = np.random.default_rng(config.seed)
  x, kernel = _random(rng, (count, axes[-1]), dtype), _random(rng, axes, dtype)
  forms = {**FORMS, 'chosen': product}
  if count == 1:
    forms |= {f'twice, {name}': functools.partial(twice, form) for name, form in FORMS.items()}
  functions = {name: _repeated(form, x, kernel, config.calls) for name, form in forms.items()}
  width = width_of(kernel)
  if width is not None:
    # as `fd.pack` makes them
    functions['panels'] = _repeated(panel_product, x, packed(kernel, width), config.calls)
  timings = measure(functions, config.rounds)
  fastest = {name: 1e6 * timing.spread[0] / config.calls for name, timing in timings.items()}
  ratio = fastest['chosen'] / min(fastest[name] for name in forms)
  return {
    'dtype': dtype,
    'kernel': ' x '.join(map(str, axes)),
    'rows': count,
    **fastest,
    'to_fastest': ratio,
  }


def _repeated(form: Form, x: Any, kernel: Any, calls: int) -> Callable[[], Any]:
  """A function that makes so many products."""
  wide = jnp.int32 if x.dtype == jnp.int8 else jnp.float32
  compiled = jax.jit(lambda x, kernel: form(x, kernel, wide))
  return lambda: [compiled(x, kernel) for _ in range(calls)]


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
  if dtype == 'int8':
    return jnp.asarray(rng.integers(-127, 128, shape, np.int8))
  return jnp.asarray(rng.standard_normal(shape, np.float32), dtype)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
  """The rows as a pipe table."""
  return table(rows, COLUMNS)
