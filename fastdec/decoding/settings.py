"""Settings of strategies and rules, checked when these are made and kept as arrays of one dtype.

A setting that changes no shape is an array leaf, so one compiled program serves all its values.
Inside the program it is a tracer without a value: it was checked when the strategy was made.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from fastdec.errors import UserError
from fastdec.fields import quote

Whole = Any  # an int, Python's or NumPy's; anything else is an error (`count`)
SMALLEST = float(np.finfo(np.float32).tiny)  # smaller numbers count as 0 on the device
LARGEST = 2**31 - 1  # of int32
MOST_TOKENS = 2**22  # of an output: each row has room for all of them
MOST_NODES = 1024  # tokens of a row in one call: the mask grows with their square
COLDEST, HOTTEST = 1e-6, 1e6  # beyond these temperatures float32 logits overflow, and p is NaN


def is_traced(value: Any) -> bool:
  """True if the value is only known when the program runs."""
  return isinstance(value, Tracer)


def is_number(value: Any, kinds: str = 'iuf') -> bool:
  """True if it is one number of these kinds (NumPy's letters), perhaps in an array; not a bool."""
  if not isinstance(value, int | float | np.generic | np.ndarray | jax.Array):
    return False
  array = np.asarray(value)
  return array.ndim == 0 and array.dtype.kind in kinds


def is_whole(value: Any, least: int, kinds: str = 'iuf', most: int = LARGEST) -> bool:
  """True if it is one whole number, from `least` to `most`: by default the largest int32."""
  return is_number(value, kinds) and bool(least <= value <= most) and float(value).is_integer()


def count(name: str, value: Any, least: int, allowed: str, most: int = LARGEST) -> int:
  """Returns a size of a shape as a Python int.

  Raises:
    UserError: it is not an integer, below `least` or above `most`; the message has the name and
      `allowed`.
  """
  if is_traced(value) or not is_whole(value, least, 'iu', most):
    if is_number(value, 'f') and 'whole' not in allowed:
      allowed = f'a whole number, {allowed}'
    raise UserError(f'{name}={quote(value)} is not possible: give {allowed}')
  return int(value)


def size(name: str, value: Any, least: int, allowed: str, most: int = MOST_NODES) -> int:
  """Returns a setting that makes calls wider, or the program longer, as a Python int.

  Raises:
    UserError: as `count`, or it is above `most`, the size of a call.
  """
  number = count(name, value, least, allowed)
  if number > most:
    raise UserError(f'{name}={number} is more than a call can hold: give at most {most}')
  return number


def whole(value: Any, least: int, takes: str) -> Int[Array, '']:
  """Returns a setting as int32, from any kind of number.

  Raises:
    UserError: '{takes} >= {least}, a whole number, not {value}'.
  """
  if not is_traced(value) and not is_whole(value, least):
    raise UserError(f'{takes} >= {least}, a whole number, not {value}')
  return jnp.asarray(value, jnp.int32)


def real(name: str, value: Any, least: float, most: float, allowed: str) -> Float[Array, '']:
  """Returns a setting as float32.

  Raises:
    UserError: it is not from `least` to `most`; the message has the name and `allowed`.
  """
  if not is_traced(value) and not (is_number(value) and least <= value <= most):
    raise UserError(f'{name}={value} is not possible: give {allowed}')
  return jnp.asarray(value, jnp.float32)


def each(
  name: str, value: Any, least: int | float, most: int | float, allowed: str, whole: bool = False
) -> Any:
  """Returns a setting that is one number, or one for each row, as float32 or int32.

  Raises:
    UserError: a number is not from `least` to `most`, or is not whole if it must be.
  """
  dtype = np.int32 if whole else np.float32
  if is_traced(value):
    return jnp.asarray(value, dtype)
  try:
    array = np.asarray(value)
  except (TypeError, ValueError):  # rows of different lengths
    array = np.asarray(None)
  fits = array.dtype.kind in 'iuf' and array.ndim <= 1 and array.size > 0
  if fits:
    fits = bool(((array >= least) & (array <= most)).all())
  if fits and whole:
    fits = not (array % 1).any()
  if not fits:
    raise UserError(f'{name}={quote(value)} is not possible: give {allowed}')
  return array.astype(dtype)


def check_one_per_row(name: str, value: Any, rows: int) -> None:
  """Raises UserError for a setting with numbers for some other number of rows."""
  if np.ndim(value) and len(value) != rows:
    raise UserError(
      f'{name} has {len(value)} numbers, and there are {rows} rows: give one number, or one for'
      ' each row'
    )


def number(name: str, value: Any, allowed: str) -> Any:
  """Returns any finite number as a NumPy scalar of JAX's default type.

  Raises:
    UserError: it is something else; the message begins with the name, and has `allowed`.
  """
  if is_traced(value):
    return value
  if not is_number(value) or not np.isfinite(value):
    raise UserError(f'{name}{value!r} is not possible: give {allowed}')
  return np.asarray(value, jnp.result_type(float))[()]


def is_zero(value: Any) -> bool:
  """True if a temperature is 0 and not traced: it needs another rule, so another program."""
  return not is_traced(value) and is_number(value) and bool(value == 0)
