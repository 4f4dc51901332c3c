"""Tensors of safetensors files: found by name, checked by shape, and read one by one straight onto their devices."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array

from fastdec.errors import UserError
from fastdec.files import read_json
from fastdec.models.api import Params
from fastdec.sharding import check_axes, partition_of, shardings_of

INDEX, SINGLE = 'model.safetensors.index.json', 'model.safetensors'
# No harm where nobody asks for them: computed tables, copies of tied matrices, prediction heads (`folders.medusa`).
HARMLESS = re.compile(r'(rotary_emb\.inv_freq|lm_head\.weight|\.masked_bias|embed_positions\.weights?)$|^medusa_head\.')
SHOWN = 8
DTYPES = {
  'F64': np.float64, 'F32': np.float32, 'F16': np.float16, 'BF16': jnp.bfloat16,
  'F8_E4M3': jnp.float8_e4m3fn, 'F8_E5M2': jnp.float8_e5m2, 'BOOL': np.bool_,
  'I64': np.int64, 'I32': np.int32, 'I16': np.int16, 'I8': np.int8,
  'U64': np.uint64, 'U32': np.uint32, 'U16': np.uint16, 'U8': np.uint8,
}  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Stored:
  """A tensor in a file. An index reads what it takes, and no more; until then nothing is read."""

  file: pathlib.Path
  offset: int  # bytes before it
  dtype: np.dtype
  shape: tuple[int, ...]

  @property
  def ndim(self) -> int:
    return len(self.shape)

  def reshape(self, *shape: int) -> 'Stored':
    return dataclasses.replace(self, shape=shape)

  def __getitem__(self, index: Any) -> np.ndarray:
    mapped = np.memmap(self.file, self.dtype, 'r', self.offset, self.shape)
    return np.array(mapped[index])  # a copy, so that the file's pages do not stay in memory


@dataclasses.dataclass(frozen=True, eq=False)
class Stacked:
  """Tensors of one shape as one with an axis more, its first. It is read as they are: by an index for every axis."""

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
    """The same parts, each with the axes after the first."""
    return Stacked(tuple(part.reshape(*shape[1:]) for part in self.parts))

  def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
    return np.stack([part[index[1:]] for part in self.parts[index[0]]])


def put(stored: Params, module: Any, dtype: str | None, mesh: Mesh | None) -> Params:
  """Reads parameters one after the other, each straight onto the device or onto its parts of the mesh.

  Args:
    stored: a nested dict of `Stored`, `Stacked` and NumPy arrays. What stands in it twice becomes one array.
    module: the model, or the heads, whose `partition` says how they lie on the mesh.
    dtype: what they are converted to while they are read; None: as they are stored.
    mesh: the devices; None: JAX's default device.

  Raises:
    UserError: a mesh with other axes, or one that does not divide a parameter. Nothing has been read then.
  """
  leaves, structure = jax.tree.flatten(stored)
  shardings = [None] * len(leaves)
  if mesh is not None:
    check_axes(mesh)
    shardings = jax.tree.leaves(shardings_of(stored, mesh, partition_of(module, mesh.shape['model'])))
  arrays = {}
  for leaf, sharding in zip(leaves, shardings, strict=True):
    if id(leaf) not in arrays:
      arrays[id(leaf)] = _put(leaf, dtype, sharding)
  return structure.unflatten([arrays[id(leaf)] for leaf in leaves])


def _put(leaf: Any, dtype: str | None, sharding: NamedSharding | None) -> Array:
  wanted = jax.dtypes.canonicalize_dtype(leaf.dtype if dtype is None else dtype)
  if sharding is None:
    return jnp.asarray(leaf[(slice(None),) * leaf.ndim].astype(wanted, copy=False))
  read = {}

  def part(index: tuple[slice, ...]) -> np.ndarray:
    """What one device holds; devices that hold the same read it once."""
    if str(index) not in read:
      read[str(index)] = leaf[index].astype(wanted, copy=False)
    return read[str(index)]

  return jax.make_array_from_callback(leaf.shape, sharding, part)


class Tensors(Mapping[str, Any]):
  """The tensors of a folder by name, each a `Stored`.

  In the place of one that is missing comes another of its shape, so that `check` can list all that are missing.
  """

  origin = 'config.json'  # what says their sizes
  advice = 'its tensors and its config.json do not belong together'  # where they are not what is needed

  def __init__(self, folder: pathlib.Path, files: Mapping[str, str] | None = None):
    self.where, self.folder = folder, folder
    self.asked: set[str] = set()
    self.missing: list[str] = []
    self._read: dict[str, dict[str, Stored]] = {}
    self._files = files_of(folder) if files is None else files  # the file that holds each tensor

  def __iter__(self) -> Iterator[str]:
    return iter(self._files)

  def __len__(self) -> int:
    return len(self._files)

  def __contains__(self, name: object) -> bool:
    return name in self._files

  def __getitem__(self, name: str) -> Any:
    self.asked.add(name)
    if name not in self._files:
      self.missing.append(name)
      parts = (r'\d+' if part.isdigit() else re.escape(part) for part in name.split('.'))
      alike = re.compile(r'\.'.join(parts))  # that of another layer has its shape
      name = next((other for other in self._files if alike.fullmatch(other)), '')
      if not name:
        self.check()
    return self.find(name)

  def find(self, name: str) -> Any:
    """A tensor that is there, without a note that it was asked for."""
    file = self._files[name]
    if file not in self._read:
      self._read[file] = stored_in(self.folder / file)
    if name not in self._read[file]:
      where = f'{self.folder / file} has no {name}, which {INDEX} says is there'
      raise UserError(f'{where}: copy the folder again')
    return self._read[file][name]

  def check(self) -> None:
    """Raises UserError where a tensor was missing, or one is there that nobody asked for."""
    extra = [] if self.missing else [n for n in self._files if n not in self.asked and not HARMLESS.search(n)]
    parts = [f'{word} {listed(names)}' for word, names in (('lacks', self.missing), ('has unknown', extra)) if names]
    if parts:
      raise UserError(f'{self.where} {" and ".join(parts)}: {self.advice}')


def files_of(folder: pathlib.Path) -> dict[str, str]:
  """The file that holds each tensor."""
  if (folder / INDEX).is_file():
    files = read_json(folder / INDEX).get('weight_map')
    if not isinstance(files, dict):
      raise UserError(f'{folder / INDEX} has no weight_map: restore the file')
    if absent := sorted({file for file in files.values() if not (folder / file).is_file()}):
      raise UserError(f'{folder} lacks {listed(absent)}, which {INDEX} names: copy the folder again')
    return files
  if not (folder / SINGLE).is_file():
    if pickled := sorted(file.name for file in folder.glob('*.bin')):
      command = (
        'python -c "import transformers as t; m = t.AutoModel'
        f'{"ForSeq2SeqLM" if read_json(folder / "config.json").get("is_encoder_decoder") else "ForCausalLM"}'
        f".from_pretrained('{folder}'); m.save_pretrained('{folder}-safe', safe_serialization=True)\""
      )
      raise UserError(f'{folder} has its weights only as pickle ({pickled[0]}), which is refused: convert by {command}')
    raise UserError(f'{folder} has no {SINGLE}: copy the folder again, with its weights')
  return files_in(folder, SINGLE)


def files_in(folder: pathlib.Path, file: str) -> dict[str, str]:
  """The same where one file holds all."""
  return dict.fromkeys(stored_in(folder / file), file)


def stored_in(file: pathlib.Path) -> dict[str, Stored]:
  """The tensors of a safetensors file, by name, in order: its header says where each of them lies.

  Raises:
    UserError: the file is not whole.
  """
  from safetensors import SafetensorError, safe_open

  try:
    safe_open(file, 'numpy')  # checks that header and file belong together
  except (SafetensorError, OSError) as error:
    raise UserError(f'{file} is corrupt or cut short ({error}): copy it again') from None
  with open(file, 'rb') as opened:
    length = int.from_bytes(opened.read(8), 'little')
    header = json.loads(opened.read(length))
  header.pop('__metadata__', None)
  found = {}
  for name, entry in sorted(header.items()):
    if entry['dtype'] not in DTYPES:
      raise UserError(f'{name} of {file} is of type {entry["dtype"]}, which is not supported: convert it to F32')
    offset = 8 + length + entry['data_offsets'][0]
    found[name] = Stored(file, offset, np.dtype(DTYPES[entry['dtype']]), tuple(entry['shape']))
  return found


def shaped(tensors: Mapping[str, Any], name: str, *shape: int) -> Any:
  """The tensor of this name.

  Raises:
    UserError: it has another shape.
  """
  tensor = tensors[name]
  if tensor.shape != shape:
    have, want = list(tensor.shape), list(shape)
    origin = getattr(tensors, 'origin', Tensors.origin)
    raise UserError(f'{name} is of shape {have}, and {origin} means {want}: the two do not belong together')
  return tensor


def are_equal(a: Any, b: Any) -> bool:
  """Whether one tensor is a copy of the other."""
  return a.shape == b.shape and bool((a[:] == b[:]).all())


def fit(params: Params, expected: Params) -> None:
  """Gives matrices [outputs, inputs] the axes of their outputs, in place."""
  for name, value in params.items():
    if isinstance(value, dict):
      fit(value, expected[name])
    elif name in expected and value.shape != expected[name].shape:
      params[name] = value.reshape(*expected[name].shape)


def listed(names: list[str]) -> str:
  return ', '.join(names[:SHOWN]) + (f' and {len(names) - SHOWN} more' if len(names) > SHOWN else '')
