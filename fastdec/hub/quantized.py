"""Quantized folders: matrices stored as small numbers and scales, which families read as floats.

Of a matrix [outputs, inputs] a number q means (q - zero) * scale. Groups of inputs, and in blocks
outputs too, share zero and scale. `FORMATS` is the table of formats. `tensors_of` puts one tensor,
NAME.weight, in the place of its parts, such as NAME.qweight and NAME.scales: no family knows of it.
Layers that a folder keeps in floats are read as anywhere.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Num, UInt8

from fastdec.errors import UserError
from fastdec.fields import Between, Size, read, shown
from fastdec.folders.stored import Stored
from fastdec.hub.tensors import Tensors

BLOCK = 2**22  # entries that are computed at once
AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # the place in its word of each of 8 outputs
FLOAT8, INT8 = (jnp.float8_e4m3fn, jnp.float8_e5m2), (np.int8,)
FLOATS, WORDS, INDICES = (np.float32, np.float16, jnp.bfloat16), (np.int32,), (np.int32, np.int64)
# what activations and caches are quantized by where such a model is served; here they stay floats
OF_ACTIVATIONS = (
  '.input_scale', '.output_scale', '.activation_scale', '.input_zero_point', '.output_zero_point',
  '.q_scale', '.k_scale', '.v_scale',
)  # fmt: skip

Rows = Callable[[int, int], np.ndarray]  # reads outputs, from one to before the other: [n, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Dequantized:
  """A quantized matrix in float32. An index reads its part; until then nothing is read.

  Attributes:
    numbers: reads numbers [n, inputs].
    zeros: reads their zeros [n, groups]; None: all are 0.
    scales: reads their scales [n, groups].
    group: the group of each input.
    shape: [*outputs, inputs].
    first: outputs of the stored matrix that come before.
    integers: values and scales of a kernel that may stay in int8, as they are stored.
  """

  numbers: Rows
  zeros: Rows | None
  scales: Rows
  group: Int[np.ndarray, ' d']
  shape: tuple[int, ...]
  first: int = 0
  integers: tuple[Stored, Stored] | None = None
  dtype = np.dtype(np.float32)

  @property
  def ndim(self) -> int:
    return len(self.shape)

  def reshape(self, *shape: int) -> 'Dequantized':
    """Returns it with other axes of outputs."""
    integers = self.integers
    if integers is not None:
      integers = (integers[0].reshape(*shape), integers[1].reshape(*shape[:-1]))
    return dataclasses.replace(self, shape=shape, integers=integers)

  def rows(self, start: int, stop: int) -> 'Dequantized':
    """Returns a part of the first axis, unread."""
    integers = self.integers
    if integers is not None:
      integers = (integers[0].rows(start, stop), integers[1].rows(start, stop))
    first = self.first + start * math.prod(self.shape[1:-1])
    shape = (stop - start, *self.shape[1:])
    return dataclasses.replace(self, first=first, shape=shape, integers=integers)

  def __getitem__(self, index: Any) -> Float[np.ndarray, '...']:
    of_first, *others = index if isinstance(index, tuple) else (index,)
    start, stop, step = of_first.indices(self.shape[0])
    part = self.rows(start, max(start, stop))
    flat = np.empty((math.prod(part.shape[:-1]), part.shape[-1]), np.float32)
    each = max(1, BLOCK // part.shape[-1])
    for begin in range(0, len(flat), each):
      end = min(begin + each, len(flat))
      flat[begin:end] = part._computed(part.first + begin, part.first + end)
    return flat.reshape(part.shape)[(slice(None, None, step), *others)]

  def _computed(self, start: int, stop: int) -> Float[np.ndarray, 'n d']:
    found = self.numbers(start, stop).astype(np.float32)
    if self.zeros is not None:
      found -= self.zeros(start, stop).astype(np.float32)[:, self.group]
    found *= self.scales(start, stop).astype(np.float32)[:, self.group]
    return found


@dataclasses.dataclass(frozen=True)
class Said:
  """Fields of config.json's quantization_config that tell what tensors mean."""

  quant_method: str
  bits: int | None = None
  w_bit: int | None = None  # in older folders of AWQ
  group_size: Annotated[int, Between(-1, 2**31 - 1)] | None = None  # -1: all inputs
  version: str | None = None  # of AWQ
  checkpoint_format: str | None = None  # of GPTQ
  format: str | None = None  # of compressed-tensors
  weight_block_size: tuple[Size, Size] | None = None
  config_groups: dict | None = None
  sparsity_config: dict | None = None
  transform_config: dict | None = None

  @property
  def groups(self) -> list[Mapping[str, Any]]:
    """The groups of layers of compressed-tensors, each with its settings."""
    return [one for one in (self.config_groups or {}).values() if isinstance(one, Mapping)]

  @property
  def variants(self) -> set[str]:
    """Words that tell apart formats of one method."""
    if self.quant_method == 'compressed-tensors':
      each = {str(group.get('format') or self.format) for group in self.groups}
      sparse = (self.sparsity_config or {}).get('format', 'dense')
      rotated = {'transform_config'} if self.transform_config else set()
      return {str(self.format), str(sparse), *each, *rotated}
    if self.quant_method == 'gptq':
      return {f'{self.checkpoint_format or "gptq"} of {self.bits or 4} bits'}
    if self.quant_method == 'awq':
      return {f'{(self.version or "gemm").lower()} of {self.bits or self.w_bit or 4} bits'}
    return set()

  @property
  def block(self) -> tuple[int, int] | None:
    """Outputs and inputs that share a scale, where both do."""
    if self.weight_block_size:
      return self.weight_block_size
    for group in self.groups:
      weights = group.get('weights')
      if isinstance(weights, Mapping) and weights.get('block_structure'):
        return read(Block, weights, 'config.json: weights', ': ', ignores=True).block_structure
    return None

  def group_of(self, inputs: int) -> Int[np.ndarray, ' d']:
    """Returns the group of each input, where they lie one after the other."""
    size = self.group_size or -1
    return np.arange(inputs) // (size if size > 0 else inputs)


@dataclasses.dataclass(frozen=True)
class Block:
  """The field of compressed-tensors that tells its blocks."""

  block_structure: tuple[Size, Size]


@dataclasses.dataclass(frozen=True)
class Parts:
  """The tensors that a matrix is stored in, by the last words of their names."""

  name: str
  stored: Mapping[str, Stored]

  def __contains__(self, part: str) -> bool:
    return part in self.stored

  def __getitem__(self, part: str) -> Stored:
    if part not in self.stored:
      raise UserError(
        f'{self.name} has {", ".join(sorted(self.stored))}, and lacks {part}: copy the folder again'
      )
    return self.stored[part]

  def of(self, part: str, types: tuple[Any, ...], shape: tuple[int, ...] | None = None) -> Stored:
    """Returns a part, which must be of one of these types and of this shape (None: a matrix).

    Raises:
      UserError: it is not there, or is another.
    """
    found, kinds = self[part], [np.dtype(one) for one in types]
    fits = found.ndim == 2 and 0 not in found.shape if shape is None else found.shape == shape
    if found.dtype not in kinds or not fits:
      raise UserError(
        f'{self.name}.{part} is {found.dtype}{list(found.shape)}, and its other parts and'
        f' quantization_config mean {" or ".join(map(str, kinds))},'
        f' {"a matrix" if shape is None else list(shape)}: they do not belong together'
      )
    return found

  def group_of(self, part: str, group: Int[np.ndarray, ' d']) -> Int[np.ndarray, ' d']:
    """Returns the group of each input: `group`, unless it is stored, as where inputs are sorted.

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
    return group if stored.min() < 0 else stored  # -1: was never set


def as_it_lies(parts: Parts, said: Said) -> Dequantized:
  """Reads numbers in float8 or int8, with scales of blocks, outputs, groups, or one for all."""
  weight = parts.of('weight', (*FLOAT8, *INT8))
  name = 'weight_scale_inv' if 'weight_scale_inv' in parts else 'weight_scale'
  outputs, inputs = weight.shape
  shape = parts[name].shape
  rows, columns = math.prod(shape[:1]), math.prod(shape[1:])
  tall, wide = said.block or (1, inputs)
  blocks = (-(-outputs // tall), -(-inputs // wide))
  if shape != blocks and rows * columns == 1:
    tall, wide = outputs, inputs
  elif shape != blocks and rows == outputs and columns and inputs % columns == 0:
    tall, wide = 1, inputs // columns
  elif shape != blocks:
    shape = blocks
  scale, zeros, integers = parts.of(name, FLOATS, shape), None, None

  def shared(stored: Stored, start: int, stop: int) -> Num[np.ndarray, 'n g']:
    first = start // tall
    found = stored.reshape(rows, columns).rows(first, -(-stop // tall))[:]
    return found[np.arange(start, stop) // tall - first]

  if 'weight_zero_point' in parts:
    zeros = functools.partial(shared, parts.of('weight_zero_point', (*INT8, *FLOAT8), shape))
  elif weight.dtype == np.int8 and (tall, columns) == (1, 1):
    integers = (weight, scale.reshape(outputs))
  return Dequantized(
    lambda start, stop: weight.rows(start, stop)[:],
    zeros,
    functools.partial(shared, scale),
    parts.group_of('weight_g_idx', np.arange(inputs) // wide),
    (outputs, inputs),
    integers=integers,
  )


def in_words(parts: Parts, said: Said) -> Dequantized:
  """Reads words along the inputs; a number has half its range added, also where it is a zero."""
  words, known = parts.of('weight_packed', WORDS), parts.of('weight_shape', INDICES, (2,))
  outputs, inputs = (int(size) for size in known[:])
  bits = next((bits for bits in (4, 8) if -(-inputs * bits // 32) == words.shape[1]), 4)
  parts.of('weight_packed', WORDS, (outputs, -(-inputs * bits // 32)))
  scale = parts.of('weight_scale', FLOATS)
  columns = scale.shape[1] if inputs % scale.shape[1] == 0 else 1
  parts.of('weight_scale', FLOATS, (outputs, columns))
  half = np.full((1, columns), 2 ** (bits - 1), np.uint8)
  zero = None
  if 'weight_zero_point' in parts:
    zero = parts.of('weight_zero_point', WORDS, (-(-outputs * bits // 32), columns))
  return Dequantized(
    lambda start, stop: unpacked(words.rows(start, stop)[:], bits)[:, :inputs],
    lambda start, stop: half if zero is None else outputs_of(zero, bits, start, stop, axis=0),
    lambda start, stop: scale.rows(start, stop)[:],
    parts.group_of('weight_g_idx', np.arange(inputs) // (inputs // columns)),
    (outputs, inputs),
  )


def by_gptq(parts: Parts, said: Said) -> Dequantized:
  """Reads words along the inputs of a matrix [inputs, outputs]; older files store zeros less 1."""
  bits, less = said.bits or 4, said.checkpoint_format != 'gptq_v2'
  words = parts.of('qweight', WORDS)
  inputs, outputs = words.shape[0] * 32 // bits, words.shape[1]
  group = said.group_of(inputs)
  groups = int(group.max()) + 1
  zero = parts.of('qzeros', WORDS, (groups, -(-outputs * bits // 32)))
  scale = parts.of('scales', FLOATS, (groups, outputs))
  return Dequantized(
    lambda start, stop: unpacked(words[:, start:stop].T, bits),
    lambda start, stop: outputs_of(zero, bits, start, stop).astype(np.int16) + int(less),
    lambda start, stop: scale[:, start:stop].T,
    parts.group_of('g_idx', group),
    (outputs, inputs),
  )


def by_awq(parts: Parts, said: Said) -> Dequantized:
  """Reads words along the outputs of a matrix [inputs, outputs], even outputs first."""
  words = parts.of('qweight', WORDS)
  inputs, outputs = words.shape[0], words.shape[1] * 8
  group = said.group_of(inputs)
  groups = int(group.max()) + 1
  zero = parts.of('qzeros', WORDS, (groups, outputs // 8))
  scale = parts.of('scales', FLOATS, (groups, outputs))
  return Dequantized(
    lambda start, stop: outputs_of(words, 4, start, stop, order=AWQ_ORDER),
    lambda start, stop: outputs_of(zero, 4, start, stop, order=AWQ_ORDER),
    lambda start, stop: scale[:, start:stop].T,
    group,
    (outputs, inputs),
  )


def unpacked(words: Int[np.ndarray, '*b n'], bits: int) -> UInt8[np.ndarray, '*b m']:
  """Returns the numbers of 2, 4 or 8 bits in words of 32, lowest bits first."""
  octets = np.ascontiguousarray(words).view(np.uint8)
  numbers = (octets[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8(2**bits - 1)
  return numbers.reshape(*words.shape[:-1], -1)


def outputs_of(
  words: Stored, bits: int, start: int, stop: int, axis: int = 1, order: list[int] | None = None
) -> UInt8[np.ndarray, 'n d']:
  """Returns the numbers [outputs, others] in words that lie along outputs.

  Args:
    words: a matrix.
    bits: of a number.
    start, stop: the outputs, from one to before the other.
    axis: of the outputs.
    order: the place in its word of each output (None: one after the other).
  """
  per = 32 // bits
  first, last = start // per, -(-stop // per)
  numbers = unpacked(words[:, first:last] if axis else words[first:last].T, bits)
  if order is not None:
    numbers = numbers.reshape(len(numbers), -1, per)[..., order].reshape(len(numbers), -1)
  return numbers[:, start - first * per : stop - first * per].T


@dataclasses.dataclass(frozen=True)
class Format:
  """A row of the table of formats.

  Attributes:
    method: config.json's quant_method.
    variants: words of quantization_config that tell what is read; () where there is one kind.
    numbers: their type.
    shares: the numbers that have one scale.
    parts: last words of the names of a matrix's tensors, some of which may be missing.
    reader: makes the matrix of its parts.
  """

  method: str
  variants: tuple[str, ...]
  numbers: str
  shares: str
  parts: tuple[str, ...]
  reader: Callable[[Parts, Said], Dequantized]


OF_WEIGHT = ('weight_zero_point', 'weight_g_idx')
FORMATS = (
  Format(
    'fp8', (), 'float8', 'a block, an output, or the matrix',
    ('weight', 'weight_scale_inv', 'weight_scale'), as_it_lies,
  ),
  Format(
    'compressed-tensors',
    ('int-quantized', 'float-quantized', 'naive-quantized', 'mixed-precision', 'dense'),
    'int8 or float8', 'a block, a group of inputs, an output, or the matrix',
    ('weight', 'weight_scale', *OF_WEIGHT), as_it_lies,
  ),
  Format(
    'compressed-tensors', ('pack-quantized',), '4 or 8 bits', 'a group of inputs, or an output',
    ('weight_packed', 'weight_shape', 'weight_scale', *OF_WEIGHT), in_words,
  ),
  Format(
    'gptq', tuple(f'{of} of {bits} bits' for of in ('gptq', 'gptq_v2') for bits in (2, 4, 8)),
    '2, 4 or 8 bits', 'a group of inputs, which may be sorted (desc_act)',
    ('qweight', 'qzeros', 'scales', 'g_idx'), by_gptq,
  ),
  Format(
    'awq', ('gemm of 4 bits',), '4 bits', 'a group of inputs',
    ('qweight', 'qzeros', 'scales'), by_awq,
  ),
)  # fmt: skip


def table() -> str:
  """Returns the formats as a table of docs/own/folders.md; a test holds that it is there."""
  rows = ['| quant_method | kinds | numbers | what shares a scale |', '|---|---|---|---|']
  for row in FORMATS:
    names = dict.fromkeys(kind.split(' of ')[0] for kind in row.variants)  # without the bits
    kinds = ', '.join(f'`{name}`' for name in names) or 'all'
    rows.append(f'| `{row.method}` | {kinds} | {row.numbers} | {row.shares} |')
  return '\n'.join(rows)


def said_of(config: Mapping[str, Any]) -> Said | None:
  """Returns what a config.json says of its quantized tensors; None: nothing, all are floats.

  Raises:
    UserError: a format that is not read.
  """
  given = config.get('quantization_config') or config.get('compression_config')
  if not given:
    return None
  method = given.get('quant_method') if isinstance(given, Mapping) else given
  known = {one: set[str]() for one in dict.fromkeys(row.method for row in FORMATS)}
  for row in FORMATS:
    known[row.method] |= set(row.variants)
  if not isinstance(given, Mapping) or not isinstance(method, str) or method not in known:
    raise UserError(
      f'it is quantized by quant_method={shown(method)}, which is not read: known are'
      f' {", ".join(known)}, so give the checkpoint that it was made from'
    )
  said = read(Said, given, 'config.json: quantization_config', ': ', ignores=True)
  if unknown := sorted(said.variants - known[method]):
    raise UserError(
      f'it is quantized by {method}, {", ".join(unknown)}, which is not read: known are'
      f' {", ".join(sorted(known[method]))}, so give the checkpoint that it was made from'
    )
  return said


def tensors_of(
  folder: pathlib.Path, config: Mapping[str, Any], files: Mapping[str, str], is_tied: bool = False
) -> Tensors:
  """Returns the tensors of a folder; quantized ones are `Dequantized`, by the name NAME.weight.

  Args:
    folder: where they are.
    config: the content of config.json.
    files: the file of each tensor, as of `tensors.files_of`.
    is_tied: as of `Tensors`.

  Raises:
    UserError: a format that is not read.
  """
  said = said_of(config)
  return Tensors(folder, files, is_tied) if said is None else OfParts(folder, files, is_tied, said)


class OfParts(Tensors):
  """Tensors of a folder in which matrices are stored in parts."""

  def __init__(self, folder: pathlib.Path, files: Mapping[str, str], is_tied: bool, said: Said):
    self._said, self._stored = said, Tensors(folder, files)
    self._formats: dict[str, Format] = {}  # of the matrices
    self._made: dict[str, Dequantized] = {}
    whole = {name: file for name, file in files.items() if not name.endswith(OF_ACTIVATIONS)}
    for row in [row for row in FORMATS if row.method == said.quant_method]:
      numbers = row.parts[0]
      for name in [name for name in whole if name.endswith(f'.{numbers}')]:
        stem = name.removesuffix(numbers)
        there = [part for part in row.parts if stem + part in whole]
        if numbers == 'weight' and not any('scale' in part for part in there):
          continue  # it is a plain one
        self._formats[f'{stem}weight'], file = row, whole[name]
        for part in there:
          del whole[stem + part]
        whole[f'{stem}weight'] = file
    super().__init__(folder, whole, is_tied)

  def find(self, name: str) -> Any:
    """Returns a matrix made of its parts, or a tensor that is stored whole.

    Raises:
      UserError: parts that are missing, or do not belong together.
    """
    if name in self._formats and name not in self._made:
      row, stem = self._formats[name], name.removesuffix('weight')
      stored = {
        part: self._stored.find(stem + part) for part in row.parts if stem + part in self._stored
      }
      self._made[name] = row.reader(Parts(stem[:-1], stored), self._said)
    if name in self._made:
      return self._made[name]
    found = self._stored.find(name)
    if found.dtype.itemsize == 1 and name.endswith('weight'):
      raise UserError(f'{name} is {found.dtype}, and has no scale: copy the folder again')
    return found
