"""Settings of strategies and rules, checked where these are made and kept as arrays of one dtype.

A setting that changes no shape is an array leaf, so that one compiled program serves all its values. Inside the program
it is a tracer and has no value to check: it was checked outside, when the strategy was made.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from fastdec.errors import UserError

SMALLEST = float(np.finfo(np.float32).tiny)  # what lies below counts as 0 on the device
COLDEST, HOTTEST = 1e-6, 1e6  # temperatures beyond let float32 logits overflow to a law of NaN


def is_traced(value: Any) -> bool:
  """Whether the value is only known when the program runs."""
  return isinstance(value, Tracer)


def whole(value: Any, least: int, takes: str) -> Int[Array, '']:
  """The setting as int32, whatever kind of number it came as.

  Raises:
    UserError: '{takes} >= {least}, not {value}'.
  """
  if not is_traced(value) and value < least:
    raise UserError(f'{takes} >= {least}, not {value}')
  return jnp.asarray(value, jnp.int32)


def real(name: str, value: Any, least: float, most: float, allowed: str) -> Float[Array, '']:
  """The setting as float32.

  Raises:
    UserError: it is not from `least` to `most`; the sentence names the setting and says what is `allowed`.
  """
  if not is_traced(value) and not least <= value <= most:
    raise UserError(f'{name}={value} is not possible: give {allowed}')
  return jnp.asarray(value, jnp.float32)


def temperature(value: Any, allowed: str) -> Float[Array, '']:
  """A temperature above 0, as float32.

  Raises:
    UserError: it is not from 1e-6 to 1e6.
  """
  return real('temperature', value, COLDEST, HOTTEST, allowed)


def is_zero(value: Any) -> bool:
  """Whether a temperature asks for the most likely token: another rule, so another program. What is traced does not."""
  return not is_traced(value) and bool(value == 0)
