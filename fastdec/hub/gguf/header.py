"""The header of a GGUF file: metadata, and the place of each tensor.

The package `gguf` knows the types of tensors. It can read headers too, but makes two arrays for
each string (8 seconds for 262,144 tokens) and trusts every count. This reader takes half a second,
and checks each count against the size of the file before it makes anything.
"""

import dataclasses
import functools
import math
import mmap
import os
import pathlib
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from fastdec import extras
from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.files import damage, explained
from fastdec.files import open_file as open_regular
from fastdec.folders.folder import gguf_files

MAGIC, VERSIONS = b'GGUF', (2, 3)
LONGEST = 2**27  # bytes of a header: published ones have up to 30 million
MOST_STRINGS, MOST_TENSORS = 2**22, 2**17
MOST_AXES = 4
NUMBERS = {  # codes of `struct`, by the types of values
  0: 'B', 1: 'b', 2: 'H', 3: 'h', 4: 'I', 5: 'i', 6: 'f', 7: '?', 10: 'Q', 11: 'q', 12: 'd',
}  # fmt: skip
TEXT, ARRAY = 8, 9
LENGTH = struct.Struct('<Q')
ALIGNMENT = 32


@dataclasses.dataclass(frozen=True)
class GgufTensor:
  """A tensor in a file; `kind` is a GGMLQuantizationType, and the last axis is stored in blocks."""

  name: str
  file: pathlib.Path
  offset: int
  kind: Any
  shape: tuple[int, ...]
  row_bytes: int

  @property
  def rows(self) -> int:
    """The number of vectors along the last axis."""
    return math.prod(self.shape[:-1])

  @property
  def end(self) -> int:
    """The byte of the file after the last one."""
    return self.offset + self.rows * self.row_bytes


@dataclasses.dataclass(frozen=True)
class Header:
  """The headers of a model's GGUF files; the first one has the metadata."""

  path: pathlib.Path
  metadata: Mapping[str, Any]
  tensors: Mapping[str, GgufTensor]

  @property
  def architecture(self) -> str:
    """The kind of model, by llama.cpp's name."""
    return self.text('general.architecture') or 'none'

  def text(self, name: str) -> str | None:
    """Returns a text of the metadata; None: there is none."""
    return self._of(str, name)

  def number(self, name: str) -> int | None:
    """Returns a whole number of the metadata; None: there is none."""
    return self._of(int, name)

  def flag(self, name: str) -> bool | None:
    """Returns true or false of the metadata; None: there is neither."""
    return self._of(bool, name)

  def entries(self, name: str) -> list[Any] | None:
    """Returns an array of the metadata; None: there is none."""
    return self._of(list, name)

  def _of(self, kind: Any, name: str) -> Any:
    value = self.metadata.get(name)
    if value is not None and type(value) is not kind:
      raise damage(self.path, f'has {name}={quote(value)}, which must be {kind.__name__}')
    return value


class _Damage(ValueError):
  """A file is damaged."""


def read_header(path: pathlib.Path) -> Header:
  """Reads the header of a GGUF file, and of the model's other files.

  Raises:
    UserError: a file is missing, damaged, of an unknown version, or has tensors of an unknown type;
      or the package `gguf` is not installed.
  """
  with extras.explained():
    import gguf.constants  # noqa: F401  (before any work)
  files = gguf_files(path)
  absent = [file.name for file in files if not file.is_file()]
  if absent:
    raise UserError(f'{path.parent} lacks {quote(absent[0])}, a part of the model: copy it there')
  metadata, tensors = {}, {}
  for i, file in enumerate(files):
    own, own_tensors = _read_one(file)
    number: Any = own.get('split.no', 0)
    count: Any = own.get('split.count', 1) or 1
    if (number, count) != (i, len(files)):
      raise UserError(
        f'{file} says split.no={quote(number)} and split.count={quote(count)}, but by its name it'
        f' is file {i + 1} of {len(files)}: give all files their names NAME-00001-of-0000N.gguf'
      )
    metadata = metadata or own
    for name in own_tensors:
      if name in tensors:
        raise damage(file, f'has {quote(name)}, which is in another file of the model too')
    tensors |= own_tensors
  return Header(files[0], metadata, tensors)


def _read_one(file: pathlib.Path) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
  """Reads one file: its metadata, and its tensors by their names."""
  try:
    with explained('read', file, 'copy it again'), open_regular(file) as opened:
      size = os.fstat(opened.fileno()).st_size
      start = opened.read(8)
      if start[:4] != MAGIC or len(start) < 8:
        raise _Damage('it does not begin as a GGUF file')
      version = int.from_bytes(start[4:], 'little')
      if version not in VERSIONS:
        order = ' in the other order of bytes' if not version & 0xFFFF else ''
        raise UserError(
          f'{file} is of version {version}{order} of GGUF: known are 2 and 3, so convert it again'
        )
      with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Reader(data, size).header(file)
  except UserError:
    raise
  except ValueError as error:
    raise damage(file, f'is corrupt or cut short ({error})') from None


class _Reader:
  """A place in the bytes of a header."""

  def __init__(self, data: Any, size: int):
    self._data, self._size, self._place = data, size, 8
    self._end = min(size, LONGEST)
    self._strings = 0

  def header(self, file: pathlib.Path) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    """Returns the metadata, and the tensors by their names."""
    tensor_count, value_count = self._number('Q'), self._number('Q')
    self._check_count(value_count, 13, 'values')
    metadata = {}
    for _ in range(value_count):
      name, kind = self._text(), self._number('I')
      if name in metadata:
        raise _Damage(f'it has {quote(name)} twice')
      metadata[name] = self._value(kind, name)

    self._check_count(tensor_count, 32, 'tensors')
    if tensor_count > MOST_TENSORS:
      raise _Damage(f'it would have {tensor_count:,} tensors')
    described = [self._tensor() for _ in range(tensor_count)]
    alignment = metadata.get('general.alignment', ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= 2**20 or alignment & (alignment - 1):
      raise _Damage(f'general.alignment={quote(alignment)} must be a power of two')
    begin = -(-self._place // alignment) * alignment

    tensors: dict[str, GgufTensor] = {}
    for name, shape, number, offset in described:
      kind, row_bytes = _layout(name, shape, number, file)
      tensor = GgufTensor(name, file, begin + offset, kind, shape, row_bytes)
      if tensor.end > self._size:
        raise _Damage(f'it has {self._size:,} bytes, and ends before {quote(name)} does')
      if name in tensors:
        raise _Damage(f'it has {quote(name)} twice')
      tensors[name] = tensor

    # As in llama.cpp, tensors begin at multiples of the alignment, and none inside another one.
    end = begin
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
      if tensor.offset < end or tensor.offset % alignment:
        raise _Damage(
          f'{quote(tensor.name)} would begin at byte {tensor.offset:,}: inside another tensor, or'
          f' at no multiple of {alignment}'
        )
      end = tensor.end
    return metadata, tensors

  def _take(self, count: int) -> bytes:
    """Returns the next bytes."""
    start, stop = self._place, self._place + count
    if stop > self._size:
      raise _Damage('it ends in its header')
    if stop > self._end:
      raise _Damage(f'its header has over {LONGEST:,} bytes')
    self._place = stop
    return self._data[start:stop]

  def _number(self, code: str) -> Any:
    return struct.unpack(f'<{code}', self._take(struct.calcsize(f'<{code}')))[0]

  def _text(self) -> str:
    """Returns the next text; bytes that are not UTF-8 become replacement characters."""
    self._strings += 1
    if self._strings > MOST_STRINGS:
      raise _Damage(f'it has more than {MOST_STRINGS:,} texts')
    (length,) = LENGTH.unpack(self._take(8))
    return self._take(length).decode('utf-8', 'replace')

  def _check_count(self, count: int, least: int, what: str) -> None:
    """Refuses a count of things, of at least `least` bytes each, that the file has no room for."""
    if count * least > self._end - self._place:
      raise _Damage(f'it would have {count:,} {what}')

  def _value(self, kind: int, name: str) -> Any:
    if kind == TEXT:
      return self._text()
    if kind in NUMBERS:
      return self._number(NUMBERS[kind])
    if kind != ARRAY:
      raise _Damage(f'{quote(name)} is of the unknown type {kind}')
    kind, count = self._number('I'), self._number('Q')
    if kind == TEXT:
      self._check_count(count, 8, f'texts in {quote(name)}')
      return [self._text() for _ in range(count)]
    if kind not in NUMBERS:
      raise _Damage(f'{quote(name)} is an array of the unknown type {kind}')
    size = struct.calcsize(f'<{NUMBERS[kind]}')
    self._check_count(count, size, f'numbers in {quote(name)}')
    dtype = np.dtype(NUMBERS[kind]).newbyteorder('<')
    return np.frombuffer(self._take(count * size), dtype).tolist()

  def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
    """Returns the name, shape, type and offset of the next tensor."""
    name, axes = self._text(), self._number('I')
    if not 0 < axes <= MOST_AXES:
      raise _Damage(f'{quote(name)} would have {axes:,} axes')
    shape = tuple(self._number('Q') for _ in range(axes))
    if not all(0 < size < 2**31 for size in shape):
      raise _Damage(f'{quote(name)} would be of shape {list(shape)}')
    # the file names the axis of neighbours first
    return name, shape[::-1], self._number('I'), self._number('Q')


def _layout(name: str, shape: tuple[int, ...], number: int, file: pathlib.Path) -> tuple[Any, int]:
  """Returns the type of a tensor, and the bytes of a vector along its last axis."""
  kind, block, size = _find_type(number)
  if kind is None or not block:
    known = f'type {number}' if kind is None else kind.name
    raise UserError(
      f'{quote(name)} of {file} is of {known}, which the installed package gguf cannot turn into'
      ' floats: run pip install -U gguf, or give the model in another type'
    )
  if shape[-1] % block:
    raise _Damage(f'{quote(name)} has rows of {shape[-1]}, in blocks of {block}')
  return kind, shape[-1] // block * size


@functools.cache
def _find_type(number: int) -> tuple[Any, int, int]:
  """Returns a type of tensors, and the numbers and bytes of its blocks; 0: it is not read."""
  with extras.explained():
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize
  if number not in list(GGMLQuantizationType):
    return None, 0, 0
  kind = GGMLQuantizationType(number)
  block, size = GGML_QUANT_SIZES[kind]
  try:
    dequantize(np.zeros((1, size), np.uint8), kind)
  except NotImplementedError:
    return kind, 0, 0
  return kind, block, size
