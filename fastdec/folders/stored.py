"""Tensors of safetensors files, read one by one straight onto their devices, written one by one."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array

from fastdec.errors import UserError
from fastdec.files import damage, open_file, to_json
from fastdec.kernels.packed import is_packed
from fastdec.kernels.products import kernels_of
from fastdec.kernels.quantized import (
  choose_scale_sharding,
  from_integers,
  is_quantized,
  quantize_kernel,
)
from fastdec.kernels.sharding import check_axes, choose_shardings, partition_of
from fastdec.models.api import Params

DTYPES = {
  'F64': np.float64, 'F32': np.float32, 'F16': np.float16, 'BF16': jnp.bfloat16,
  'F8_E4M3': jnp.float8_e4m3fn, 'F8_E5M2': jnp.float8_e5m2, 'BOOL': np.bool_,
  'I64': np.int64, 'I32': np.int32, 'I16': np.int16, 'I8': np.int8,
  'U64': np.uint64, 'U32': np.uint32, 'U16': np.uint16, 'U8': np.uint8,
}  # fmt: skip


LONGEST = 2**25  # bytes of a header: the largest published ones have a few million


@dataclasses.dataclass(frozen=True, eq=False)
class Stored:
  """A tensor in a file. Indexing reads the part that it selects, and nothing is read before."""

  file: pathlib.Path
  offset: int  # bytes before it in the file
  dtype: np.dtype
  shape: tuple[int, ...]

  @property
  def ndim(self) -> int:
    return len(self.shape)

  def reshape(self, *shape: int) -> 'Stored':
    return dataclasses.replace(self, shape=shape)

  def rows(self, start: int, stop: int) -> 'Stored':
    """Returns a part of the first axis, unread."""
    row = math.prod(self.shape[1:]) * self.dtype.itemsize
    shape = (stop - start, *self.shape[1:])
    return dataclasses.replace(self, offset=self.offset + start * row, shape=shape)

  def __getitem__(self, index: Any) -> np.ndarray:
    if 0 in self.shape:
      return np.zeros(self.shape, self.dtype)[index]  # an empty range cannot be mapped
    mapped = np.memmap(self.file, self.dtype, 'r', self.offset, self.shape)
    return np.array(mapped[index])  # a copy, so that the file's pages do not stay in memory


@dataclasses.dataclass(frozen=True, eq=False)
class Stacked:
  """Tensors of one shape as one with a new first axis. An index of all axes reads it."""

  parts: tuple[Any, ...]

  @property
  def dtype(self) -> np.dtype:
    return self.parts[0].dtype

  @property
  def shape(self) -> tuple[int, ...]:
    return (len(self.parts), *self.parts[0].shape)

  @property
  def ndim(self) -> int:
    return len(self.shape)

  def reshape(self, *shape: int) -> 'Stacked':
    """Returns the same parts, each reshaped to the axes after the first."""
    return Stacked(tuple(part.reshape(*shape[1:]) for part in self.parts))

  def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
    return np.stack([part[index[1:]] for part in self.parts[index[0]]])


def find_integers(leaf: Any) -> tuple[Any, Any] | None:
  """Returns values and scales, unread, of a kernel that is stored in int8, otherwise None."""
  if not isinstance(leaf, Stacked):
    return getattr(leaf, 'integers', None)
  parts = list(map(find_integers, leaf.parts))
  if not all(parts):
    return None
  values, scales = zip(*parts, strict=True)
  return Stacked(values), Stacked(scales)


@dataclasses.dataclass(frozen=True, eq=False)
class Mapped:
  """A function of a tensor, which keeps the first axis. An index of all axes reads it."""

  stored: Any
  change: Callable[[np.ndarray], np.ndarray]
  dtype: np.dtype
  shape: tuple[int, ...]

  @property
  def ndim(self) -> int:
    return len(self.shape)

  def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
    return self.change(self.stored[index[:1]])[(slice(None), *index[1:])]


def scales_plus_one(params: Params) -> Params:
  """Adds 1 to the scales of norms, in float32, since some families store them minus 1."""

  def add_one(path: Any, leaf: Any) -> Any:
    if path[-1].key != 'scale':
      return leaf
    return Mapped(leaf, lambda x: x.astype(np.float32) + 1, np.dtype('float32'), leaf.shape)

  return jax.tree.map_with_path(add_one, params)


def _header(file: pathlib.Path) -> tuple[dict[str, Any], int]:
  """Returns the header of a safetensors file, and the offset of its first tensor."""
  from safetensors import SafetensorError, safe_open

  try:
    with open_file(file) as opened:
      length = int.from_bytes(opened.read(8), 'little')
      if length > LONGEST:
        raise SafetensorError(f'its header would have {length:,} bytes')
      safe_open(file, 'numpy')  # checks that the header fits the file
      header = json.loads(opened.read(length))
  except (SafetensorError, OSError, ValueError, MemoryError) as error:
    if 'unknown variant' in str(error):  # a type of numbers
      raise UserError(f'{file} is not supported ({error}): convert it to F32') from None
    raise damage(file, f'is corrupt or cut short ({error})') from None
  return header, 8 + length


def read_metadata(file: pathlib.Path) -> dict[str, str]:
  """Returns the metadata of a safetensors file, such as the names of tied tensors."""
  return _header(file)[0].get('__metadata__') or {}


def stored_in(file: pathlib.Path) -> dict[str, Stored]:
  """Returns the tensors of a safetensors file, by name, in order, unread: it reads the header.

  Raises:
    UserError: the file is damaged.
  """
  header, begin = _header(file)
  header.pop('__metadata__', None)
  tensors = {}
  for name, entry in sorted(header.items()):
    if entry['dtype'] not in DTYPES:
      raise UserError(
        f'{name} of {file} is of type {entry["dtype"]}, which is not supported: convert it to F32'
      )
    offset = begin + entry['data_offsets'][0]
    tensors[name] = Stored(file, offset, np.dtype(DTYPES[entry['dtype']]), tuple(entry['shape']))
  return tensors


def write(file: pathlib.Path, params: Params) -> None:
  """Writes parameters as a safetensors file, named by paths. The host holds one at a time.

  Raises:
    UserError: they are in int8, or packed.
    OSError: it cannot be written.
  """
  if is_quantized(params):
    raise UserError(
      f'parameters in int8 are not written ({file}): save the ones that they were made from, and'
      " load with dtype='int8'"
    )
  if is_packed(params):
    raise UserError(
      f'packed parameters are not written ({file}): save the ones that they were packed from'
    )
  # Wide numbers come first, so that every tensor is aligned.
  named = sorted(
    flatten_dict(params, sep='/').items(), key=lambda entry: (-entry[1].dtype.itemsize, entry[0])
  )
  header, end = {}, 0
  for name, value in named:
    start, end = end, end + value.nbytes
    kind = next(kind for kind, dtype in DTYPES.items() if value.dtype == dtype)
    header[name] = {'dtype': kind, 'shape': list(value.shape), 'data_offsets': [start, end]}
  text = to_json(header, separators=(',', ':')).encode()
  text += b' ' * (-len(text) % 8)
  with open(file, 'wb') as opened:
    opened.write(len(text).to_bytes(8, 'little') + text)
    for _, value in named:
      opened.write(np.asarray(jax.device_get(value), order='C').reshape(-1).view(np.uint8).data)


def put(
  stored: Params, module: Any, dtype: str | None, mesh: Mesh | None, kernels: str | None = None
) -> Params:
  """Reads parameters one after the other, straight onto the device or onto their parts of a mesh.

  Args:
    stored: a nested dict of `Stored`, `Stacked` and NumPy arrays. An entry that occurs twice
      becomes one array.
    module: the model, or the heads, whose `partition` gives the layout on the mesh.
    dtype: type to convert to while reading, except integers; None: as they are stored.
    mesh: the devices; None: JAX's default device.
    kernels: type of the kernels of products ('int8', 'int8w'), each converted before the next is
      read; those that are stored in int8 stay as they are. None: as `dtype`.

  Raises:
    UserError: a mesh with other axes, or one that does not divide a parameter; int8 for a module
      that does not support it. Nothing has been read then.
  """
  named = jax.tree.leaves_with_path(stored)
  is_kernel = kernels_of(module) if kernels else lambda name: False
  shardings = [None] * len(named)
  if mesh is not None:
    check_axes(mesh)
    table = partition_of(module, mesh.shape['model'])
    shardings = jax.tree.leaves(choose_shardings(stored, mesh, table))
  arrays = {}
  for (path, leaf), sharding in zip(named, shardings, strict=True):
    if id(leaf) not in arrays:
      name = jax.tree_util.keystr(path, simple=True, separator='/')
      arrays[id(leaf)] = _read_parameter(
        leaf, dtype, sharding, kernels if is_kernel(name) else None
      )
  return jax.tree.structure(stored).unflatten([arrays[id(leaf)] for _, leaf in named])


def _read_parameter(
  leaf: Any, dtype: str | None, sharding: NamedSharding | None, kernel: str | None
) -> Any:
  """Reads a parameter. A kernel in int8 is read as it is stored, or quantized from its floats."""
  if kernel is None:
    return _put(leaf, dtype, sharding)
  stored = find_integers(leaf)
  if stored is None:
    return quantize_kernel(_put(leaf, dtype, sharding), kernel)
  values, scale = stored
  scale_sharding = None if sharding is None else choose_scale_sharding(leaf.ndim, sharding)
  placed = _put(values, None, sharding)
  return from_integers(placed, _put(scale, 'float32', scale_sharding), kernel)


def _put(leaf: Any, dtype: str | None, sharding: NamedSharding | None) -> Array:
  is_kept = dtype is None or jnp.issubdtype(leaf.dtype, jnp.integer)
  wanted = jax.dtypes.canonicalize_dtype(leaf.dtype if is_kept else dtype)
  if hasattr(leaf, 'astype'):  # converts while it reads
    leaf = leaf.astype(wanted)
  if sharding is None:
    return jnp.asarray(leaf[(slice(None),) * leaf.ndim].astype(wanted, copy=False))
  read = {}

  def part(index: Any) -> np.ndarray:
    """Returns one device's part; devices with the same part read it once."""
    if str(index) not in read:
      read[str(index)] = leaf[index].astype(wanted, copy=False)
    return read[str(index)]

  return jax.make_array_from_callback(leaf.shape, sharding, part)
