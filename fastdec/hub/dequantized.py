"""Quantized matrices: small numbers with scales, computed as floats when a part is read.

In a matrix [outputs, inputs], a number q means (q - zero) * scale. Groups of inputs, and in blocks
outputs too, share zero and scale. Numbers of less than 8 bits are packed in words of 32 bits. GGUF
files have their own formats (`hub.gguf`).
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8

from fastdec.folders.stored import Stored

BLOCK = 2**22  # entries that are computed at once
Rows = Callable[[int, int], np.ndarray]  # reads the outputs from `start` to before `stop`: [n, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Dequantized:
  """A quantized matrix in floats. Indexing reads the part that it selects, and nothing before.

  Attributes:
    outputs: computes outputs of the stored matrix [n, inputs] in float32.
    shape: [*outputs, inputs].
    dtype: type of what is read.
    first: number of outputs of the stored matrix before the first of these.
    integers: stored values and scales of a kernel that may stay in int8.
  """

  outputs: Rows
  shape: tuple[int, ...]
  dtype: np.dtype = np.dtype(np.float32)  # noqa: RUF009
  first: int = 0
  integers: tuple[Stored, Stored] | None = None

  @property
  def ndim(self) -> int:
    return len(self.shape)

  def reshape(self, *shape: int) -> 'Dequantized':
    """Returns the matrix with other axes of outputs."""
    integers = self.integers
    if integers is not None:
      integers = (integers[0].reshape(*shape), integers[1].reshape(*shape[:-1]))
    return dataclasses.replace(self, shape=shape, integers=integers)

  def astype(self, dtype: Any) -> 'Dequantized':
    """Returns the matrix in another type, unread: it is never whole in float32."""
    return dataclasses.replace(self, dtype=np.dtype(dtype))

  def rows(self, start: int, stop: int) -> 'Dequantized':
    """Returns a part of the first axis, unread."""
    integers = self.integers
    if integers is not None:
      integers = (integers[0].rows(start, stop), integers[1].rows(start, stop))
    first = self.first + start * math.prod(self.shape[1:-1])
    shape = (stop - start, *self.shape[1:])
    return dataclasses.replace(self, first=first, shape=shape, integers=integers)

  def __getitem__(self, index: Any) -> Float[np.ndarray, '...']:
    first_axis, *others = index if isinstance(index, tuple) else (index,)
    start, stop, step = first_axis.indices(self.shape[0])
    part = self.rows(start, max(start, stop))
    flat = np.empty((math.prod(part.shape[:-1]), part.shape[-1]), self.dtype)
    rows = max(1, BLOCK // part.shape[-1])
    for begin in range(0, len(flat), rows):
      end = min(begin + rows, len(flat))
      flat[begin:end] = part.outputs(part.first + begin, part.first + end)
    return flat.reshape(part.shape)[(slice(None, None, step), *others)]


def make_rows(
  numbers: Rows, zeros: Rows | None, scales: Rows, group: Int[np.ndarray, ' d']
) -> Rows:
  """Returns the function that computes outputs as (number - zero) * scale.

  Args:
    numbers: reads numbers [n, inputs].
    zeros: reads their zeros [n, groups]; None: all are 0.
    scales: reads their scales [n, groups].
    group: the group of each input.
  """

  def outputs(start: int, stop: int) -> Float[np.ndarray, 'n d']:
    values = numbers(start, stop).astype(np.float32)
    if zeros is not None:
      values -= zeros(start, stop).astype(np.float32)[:, group]
    values *= scales(start, stop).astype(np.float32)[:, group]
    return values

  return outputs


def words_for(numbers: int, bits: int) -> int:
  """Returns how many words of 32 bits hold these numbers."""
  return math.ceil(numbers * bits / 32)


def unpack(words: Int[np.ndarray, '*b n'], bits: int) -> UInt8[np.ndarray, '*b m']:
  """Returns the numbers of 2, 4 or 8 bits in words of 32, lowest bits first."""
  octets = np.ascontiguousarray(words).view(np.uint8)
  numbers = (octets[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8(2**bits - 1)
  return numbers.reshape(*words.shape[:-1], -1)


def read_outputs(
  words: Stored, bits: int, start: int, stop: int, axis: int = 1, order: list[int] | None = None
) -> UInt8[np.ndarray, 'n d']:
  """Returns the numbers [outputs, others] from a matrix of words whose numbers are outputs.

  Args:
    words: the matrix.
    bits: size of a number.
    start, stop: the range of outputs; `stop` is excluded.
    axis: the axis of the outputs.
    order: each output's place in its word (None: one after the other).
  """
  per_word = 32 // bits
  first, last = start // per_word, math.ceil(stop / per_word)
  numbers = unpack(words[:, first:last] if axis else words[first:last].T, bits)
  if order is not None:
    numbers = numbers.reshape(len(numbers), -1, per_word)[..., order].reshape(len(numbers), -1)
  skipped = first * per_word
  return numbers[:, start - skipped : stop - skipped].T
