"""Formats of quantized matrices: the tensors that store one, and how to read them.

`FORMATS` is the table. A row's reader makes a `Dequantized` matrix from the `StoredMatrix`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Num

from fastdec.errors import UserError
from fastdec.fields import Between, Size
from fastdec.folders.stored import Stored
from fastdec.hub.dequantized import Dequantized, make_rows, read_outputs, unpack, words_for
from fastdec.hub.families import read_fields

AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # each output's place in its word, of 8 outputs
FLOAT8, INT8 = (jnp.float8_e4m3fn, jnp.float8_e5m2), (np.int8,)
FLOATS, WORDS, INDICES = (np.float32, np.float16, jnp.bfloat16), (np.int32,), (np.int32, np.int64)


@dataclasses.dataclass(frozen=True)
class QuantizationConfig:
  """Fields of config.json's quantization_config that determine the meaning of tensors."""

  quant_method: str
  bits: int | None = None
  w_bit: int | None = None  # in older folders of AWQ
  group_size: Annotated[int, Between(-1, 2**31 - 1)] | None = None  # -1: all inputs
  sym: bool | None = None  # of GPTQ: all zeros are half the range
  version: str | None = None  # of AWQ
  checkpoint_format: str | None = None  # of GPTQ
  format: str | None = None  # of compressed-tensors
  weight_block_size: tuple[Size, Size] | None = None
  config_groups: dict | None = None
  sparsity_config: dict | None = None
  transform_config: dict | None = None

  @property
  def groups(self) -> list[Mapping[str, Any]]:
    """The settings of each group of layers in compressed-tensors."""
    groups = (self.config_groups or {}).values()
    return [group for group in groups if isinstance(group, Mapping)]

  @property
  def variants(self) -> set[str]:
    """Words that distinguish the formats of one method."""
    if self.quant_method == 'compressed-tensors':
      sparsity = (self.sparsity_config or {}).get('format', 'dense')
      variants = {str(self.format), str(sparsity)}
      for group in self.groups:
        variants.add(str(group.get('format') or self.format))
      if self.transform_config:  # rotated weights, which no reader supports
        variants.add('transform_config')
      return variants
    if self.quant_method == 'gptq':
      return {f'{self.checkpoint_format or "gptq"} of {self.bits or 4} bits'}
    if self.quant_method == 'awq':
      return {f'{(self.version or "gemm").lower()} of {self.bits or self.w_bit or 4} bits'}
    return set()

  @property
  def block(self) -> tuple[int, int] | None:
    """Sizes of a block of outputs and inputs that share a scale; None without blocks."""
    if self.weight_block_size:
      return self.weight_block_size
    for group in self.groups:
      weights = group.get('weights')
      if isinstance(weights, Mapping) and weights.get('block_structure'):
        return read_fields(BlockFields, weights, 'config.json: weights').block_structure
    return None

  def group_of(self, inputs: int) -> Int[np.ndarray, ' d']:
    """Returns the group of each input, if groups follow one another."""
    size = self.group_size or -1
    if size < 0:
      size = inputs
    return np.arange(inputs) // size


@dataclasses.dataclass(frozen=True)
class BlockFields:
  """The field of compressed-tensors with the sizes of its blocks."""

  block_structure: tuple[Size, Size]


@dataclasses.dataclass(frozen=True)
class StoredMatrix:
  """The tensors that store a matrix, its parts, by the last word of their names."""

  name: str
  parts: Mapping[str, Stored]

  def __contains__(self, part: str) -> bool:
    return part in self.parts

  def __getitem__(self, part: str) -> Stored:
    if part not in self.parts:
      raise UserError(
        f'{self.name} has {", ".join(sorted(self.parts))}, and lacks {part}: copy the folder again'
      )
    return self.parts[part]

  def of(self, part: str, types: tuple[Any, ...], shape: tuple[int, ...] | None = None) -> Stored:
    """Returns a part, which must have one of these types and this shape (None: any matrix).

    Raises:
      UserError: it is missing, or has another type or shape.
    """
    tensor, dtypes = self[part], list(map(np.dtype, types))
    wanted, fits = 'a matrix', tensor.ndim == 2 and 0 not in tensor.shape
    if shape is not None:
      wanted, fits = f'{list(shape)}', tensor.shape == shape
    if tensor.dtype not in dtypes or not fits:
      raise UserError(
        f'{self.name}.{part} is {tensor.dtype}{list(tensor.shape)}, and its other parts and'
        f' quantization_config mean {" or ".join(map(str, dtypes))}, {wanted}: they do not belong'
        ' together'
      )
    return tensor

  def group_of(self, part: str, group: Int[np.ndarray, ' d']) -> Int[np.ndarray, ' d']:
    """Returns the group of each input: `group`, unless the file stores groups of sorted inputs.

    Raises:
      UserError: a stored group has no scale.
    """
    if part not in self:
      return group
    stored, groups = self.of(part, INDICES, group.shape)[:], group.max() + 1
    if stored.max() >= groups:
      raise UserError(
        f'{self.name}.{part} has a group {stored.max()}, and there are {groups}: copy the folder'
        ' again'
      )
    if stored.min() < 0:  # the file never set it
      return group
    return stored


def read_unpacked(matrix: StoredMatrix, config: QuantizationConfig) -> Dequantized:
  """Reads numbers in float8 or int8, with scales of blocks, outputs, groups, or one for all."""
  weight = matrix.of('weight', (*FLOAT8, *INT8))
  scale_name = 'weight_scale_inv' if 'weight_scale_inv' in matrix else 'weight_scale'
  outputs, inputs = weight.shape
  shape = matrix[scale_name].shape
  rows, columns = math.prod(shape[:1]), math.prod(shape[1:])
  # The outputs (tall) and inputs (wide) that share a scale: as configured, or as its shape means.
  tall, wide = config.block or (1, inputs)
  blocks = (math.ceil(outputs / tall), math.ceil(inputs / wide))
  if shape != blocks:
    if rows * columns == 1:
      tall, wide = outputs, inputs
    elif rows == outputs and columns and inputs % columns == 0:
      tall, wide = 1, inputs // columns
    else:
      shape = blocks  # the next line raises an error with this shape
  scale = matrix.of(scale_name, FLOATS, shape)

  def of_outputs(stored: Stored, start: int, stop: int) -> Num[np.ndarray, 'n g']:
    """Returns the entries of these outputs, of which `tall` share one."""
    first = start // tall
    entries = stored.reshape(rows, columns).rows(first, math.ceil(stop / tall))[:]
    return entries[np.arange(start, stop) // tall - first]

  zeros, integers = None, None
  if 'weight_zero_point' in matrix:
    zero = matrix.of('weight_zero_point', (*INT8, *FLOAT8), shape)
    zeros = functools.partial(of_outputs, zero)
  elif weight.dtype == np.int8 and (tall, columns) == (1, 1):
    integers = (weight, scale.reshape(outputs))
  return Dequantized(
    make_rows(
      lambda start, stop: weight.rows(start, stop)[:],
      zeros,
      functools.partial(of_outputs, scale),
      matrix.group_of('weight_g_idx', np.arange(inputs) // wide),
    ),
    (outputs, inputs),
    integers=integers,
  )


def read_packed(matrix: StoredMatrix, config: QuantizationConfig) -> Dequantized:
  """Reads words along the inputs. Half the range was added to each number, and to each zero."""
  words, sizes = matrix.of('weight_packed', WORDS), matrix.of('weight_shape', INDICES, (2,))
  outputs, inputs = (int(size) for size in sizes[:])
  # No field has the bits, so the width of the stored matrix decides; 4 also if neither fits.
  bits = 4
  if words.shape[1] == words_for(inputs, 8) != words_for(inputs, 4):
    bits = 8
  matrix.of('weight_packed', WORDS, (outputs, words_for(inputs, bits)))
  scale = matrix.of('weight_scale', FLOATS)
  columns = scale.shape[1]
  if inputs % columns:
    columns = 1  # the next line raises an error with this shape
  matrix.of('weight_scale', FLOATS, (outputs, columns))
  half = np.full((1, columns), 2 ** (bits - 1), np.uint8)

  def zeros(start: int, stop: int) -> np.ndarray:
    return half

  if 'weight_zero_point' in matrix:
    zero = matrix.of('weight_zero_point', WORDS, (words_for(outputs, bits), columns))
    zeros = functools.partial(read_outputs, zero, bits, axis=0)
  return Dequantized(
    make_rows(
      lambda start, stop: unpack(words.rows(start, stop)[:], bits)[:, :inputs],
      zeros,
      lambda start, stop: scale.rows(start, stop)[:],
      matrix.group_of('weight_g_idx', np.arange(inputs) // (inputs // columns)),
    ),
    (outputs, inputs),
  )


def read_gptq(matrix: StoredMatrix, config: QuantizationConfig) -> Dequantized:
  """Reads words along the inputs of a matrix [inputs, outputs].

  Older files store zeros minus 1. Where all zeros are half the range, files of both versions occur
  under either name, and the stored zeros only have to be one of both.
  """
  bits = config.bits or 4
  half, added_to_zero = 2 ** (bits - 1), int(config.checkpoint_format != 'gptq_v2')
  words = matrix.of('qweight', WORDS)
  inputs, outputs = words.shape[0] * 32 // bits, words.shape[1]
  group = config.group_of(inputs)
  groups = int(group.max()) + 1
  scale = matrix.of('scales', FLOATS, (groups, outputs))
  if 'qzeros' in matrix or not config.sym:
    zero = matrix.of('qzeros', WORDS, (groups, words_for(outputs, bits)))

  def zeros(start: int, stop: int) -> Int[np.ndarray, 'n g']:
    if config.sym and 'qzeros' not in matrix:
      return np.full((stop - start, groups), half, np.int16)
    stored = read_outputs(zero, bits, start, stop).astype(np.int16)
    if not config.sym:
      return stored + added_to_zero
    if not np.isin(stored, (half - 1, half)).all():
      raise UserError(
        f'{matrix.name}.qzeros has other zeros than {half}, which sym=true of quantization_config'
        ' means: they do not belong together'
      )
    return np.full_like(stored, half)

  return Dequantized(
    make_rows(
      lambda start, stop: unpack(words[:, start:stop].T, bits),
      zeros,
      lambda start, stop: scale[:, start:stop].T,
      matrix.group_of('g_idx', group),
    ),
    (outputs, inputs),
  )


def read_awq(matrix: StoredMatrix, config: QuantizationConfig) -> Dequantized:
  """Reads words along the outputs of a matrix [inputs, outputs], even outputs first."""
  words = matrix.of('qweight', WORDS)
  inputs, outputs = words.shape[0], words.shape[1] * 8
  group = config.group_of(inputs)
  groups = int(group.max()) + 1
  zero = matrix.of('qzeros', WORDS, (groups, outputs // 8))
  scale = matrix.of('scales', FLOATS, (groups, outputs))
  return Dequantized(
    make_rows(
      lambda start, stop: read_outputs(words, 4, start, stop, order=AWQ_ORDER),
      lambda start, stop: read_outputs(zero, 4, start, stop, order=AWQ_ORDER),
      lambda start, stop: scale[:, start:stop].T,
      group,
    ),
    (outputs, inputs),
  )


@dataclasses.dataclass(frozen=True)
class Format:
  """A row of the table of formats.

  Attributes:
    method: config.json's quant_method.
    variants: the words of `QuantizationConfig.variants` that are read; () if the method has one.
    numbers: the type of numbers, for the docs.
    shares: the numbers that have one scale, for the docs.
    suffixes: last words of the names of a matrix's tensors, some of which may be missing.
    reader: makes the matrix of its parts.
  """

  method: str
  variants: tuple[str, ...]
  numbers: str
  shares: str
  suffixes: tuple[str, ...]
  reader: Callable[[StoredMatrix, QuantizationConfig], Dequantized]


OF_WEIGHT = ('weight_zero_point', 'weight_g_idx')
FORMATS = (
  Format(
    'fp8', (), 'float8', 'a block, an output, or the matrix',
    ('weight', 'weight_scale_inv', 'weight_scale'), read_unpacked,
  ),
  Format(
    'compressed-tensors',
    ('int-quantized', 'float-quantized', 'naive-quantized', 'mixed-precision', 'dense'),
    'int8 or float8', 'a block, a group of inputs, an output, or the matrix',
    ('weight', 'weight_scale', *OF_WEIGHT), read_unpacked,
  ),
  Format(
    'compressed-tensors', ('pack-quantized',), '4 or 8 bits', 'a group of inputs, or an output',
    ('weight_packed', 'weight_shape', 'weight_scale', *OF_WEIGHT), read_packed,
  ),
  Format(
    'gptq', tuple(f'{of} of {bits} bits' for of in ('gptq', 'gptq_v2') for bits in (2, 4, 8)),
    '2, 4 or 8 bits', 'a group of inputs, which may be sorted (desc_act)',
    ('qweight', 'qzeros', 'scales', 'g_idx'), read_gptq,
  ),
  Format(
    'awq', ('gemm of 4 bits',), '4 bits', 'a group of inputs',
    ('qweight', 'qzeros', 'scales'), read_awq,
  ),
)  # fmt: skip


def table() -> str:
  """Returns the formats as the table of docs/own/folders.md; a test compares the two."""
  rows = ['| quant_method | kinds | numbers | what shares a scale |', '|---|---|---|---|']
  for row in FORMATS:
    names = dict.fromkeys(variant.split(' of ')[0] for variant in row.variants)  # without the bits
    kinds = ', '.join(f'`{name}`' for name in names) or 'all'
    rows.append(f'| `{row.method}` | {kinds} | {row.numbers} | {row.shares} |')
  return '\n'.join(rows)
