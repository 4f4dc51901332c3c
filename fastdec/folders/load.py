"""Opening of model folders of any format: ours, Hugging Face's, or published Medusa heads."""

import os
import pathlib
import re
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import DTypeLike

from fastdec.errors import UserError
from fastdec.files import place, read_json
from fastdec.folders import native
from fastdec.folders.folder import Folder
from fastdec.heads.draft import DraftNetwork
from fastdec.hub import huggingface, medusa
from fastdec.hub.generation import warn_of_processors
from fastdec.hub.tokenizers import huggingface as tokenizer
from fastdec.kernels import packed as packing
from fastdec.kernels.quantized import TYPES, is_quantized
from fastdec.kernels.sharding import mesh_of
from fastdec.models.api import Params

PathLike = str | os.PathLike[str]
HUB_NAME = r'[\w-][\w.-]*/[\w-][\w.-]*'
WANTED = ['*.json', '*.safetensors', '*.jinja', '*.model', '*.spm', '*.txt']  # of a hub's model
TWICE = ['original/*', 'onnx/*', '*consolidated*']  # the same weights in other forms
NARROW = 256  # the kernels of a narrower model stay in the cache: packed ones are no faster there
# of models as wide and wider, and of all in int8, XLA's own form is as fast where it has several
# cores
WIDE = 512


def open(path: PathLike, dtype: DTypeLike | None = None) -> Folder:
  """Opens a folder by its format, and reads its config.json.

  Args:
    path: a model folder, the workdir of a finished training run, or a folder of published heads; or
      a name of the Hugging Face hub, such as Qwen/Qwen3-0.6B.
    dtype: computes and keeps the parameters in this type (None: the type that the model was trained
      to compute in); 'int8', 'int8w': as None, with the kernels of products in int8.

  Raises:
    UserError: a folder that does not exist or has an unknown format; a type that no model computes
      in.
  """
  path = found(path)
  if not path.is_dir() and path.with_name(f'{path.name}.old').is_dir():
    raise UserError(
      f'{path} was being replaced when something stopped it: {path}.old is what was'
      ' there, rename it'
    )
  if not path.is_dir():
    raise UserError(
      f'{path} is not a folder: give a model folder or the workdir of a finished training run'
    )
  if (path / 'model' / 'config.json').is_file():
    path = path / 'model'  # of a finished run
  kept = kept_in(dtype)
  # published heads may have none
  config = read_json(path / 'config.json') if (path / 'config.json').is_file() else {}
  if medusa.holds_heads(path, config):
    return medusa.MedusaFolder(path, config, *kept)
  if huggingface.is_theirs(config):
    return huggingface.HuggingFaceFolder(path, config, *kept)
  native.check_is_ours(path, config)
  return native.NativeFolder(path, config, *kept)


def found(path: PathLike) -> pathlib.Path:
  """Returns a path that a user gives; of a name of the Hugging Face hub, the downloaded folder.

  Raises:
    UserError: it cannot be downloaded.
  """
  path = place(path)
  if path.exists() or path.parent.is_dir() or not re.fullmatch(HUB_NAME, str(path)):
    return path
  try:
    from huggingface_hub import snapshot_download  # `tokenizers` brings it

    return pathlib.Path(snapshot_download(str(path), allow_patterns=WANTED, ignore_patterns=TWICE))
  except Exception as error:  # of many kinds: there is no such name, no network, no access
    reason = str(error).split('\n')[0][:200] or type(error).__name__
    raise UserError(
      f'{path} is not a folder, and cannot be downloaded here ({reason}): fetch it elsewhere by hf'
      f' download {path} --local-dir={path.name}, and give that folder'
    ) from None


def load(
  path: PathLike,
  dtype: DTypeLike | None = None,
  mesh: Mesh | None = None,
  pack: bool | Literal['auto'] = False,
) -> tuple[Any, Params]:
  """Reads the model of a folder, or of a training run's workdir, and its parameters.

  Each parameter is read by itself, straight onto its devices. So a model larger than one device
  loads onto a mesh, and the host holds one parameter at a time.

  Args:
    path: the folder, ours or one of Hugging Face's with safetensors.
    dtype: computes and keeps the parameters in this type (None: the type that the model was trained
      to compute in). 'int8', 'int8w': as None, with the kernels of products in int8, as
      `fd.quantize` makes them: a quarter of the bytes. In 'int8w' their inputs keep their type.
    mesh: devices (`sharding.make_mesh`) over which the model lies as its `partition` says (None:
      one device).
    pack: True: packs the parameters, as `fd.pack`; 'auto': if that makes decoding here faster.

  Raises:
    UserError: a folder that does not exist, is not whole, or does not fit its config; a mesh that
      does not divide the model.
  """
  folder = open(path, dtype)
  loaded = folder.model, folder.params(mesh)
  warn_of_processors(folder.path, folder.generation)
  if pack == 'auto':
    return packed(*loaded)
  return (loaded[0], packing.pack(*loaded)) if pack else loaded


def load_heads(
  path: PathLike, dtype: DTypeLike | None = None, mesh: Mesh | None = None
) -> tuple[Any, Params]:
  """Reads a folder's or workdir's prediction heads, ours or Medusa's, and parameters as `load`."""
  folder = open(path, dtype)
  return folder.heads, folder.head_params(mesh)


def load_tokenizer(path: PathLike) -> Any:
  """Reads the tokenizer of a folder or workdir, or of a folder of a tokenizer's files alone.

  .encode(str, special=True) -> list[int], .decode(ids) -> str; for chats .render(messages) -> str
  and .encode_chat(messages) -> list[int].
  """
  path = found(path)
  has_model = any((folder / 'config.json').is_file() for folder in (path, path / 'model'))
  if not has_model and any((path / name).is_file() for name in tokenizer.FILES):
    return tokenizer.load(path)
  return open(path).tokenizer


def content(path: PathLike) -> str:
  """Returns a hash of the files that a folder or workdir decodes with; see `Folder.content`."""
  return open(path).content


def kept_in(dtype: DTypeLike | None) -> tuple[str | None, str | None]:
  """Returns the computing type (None: the model's), and that of kernels (None: the same)."""
  try:
    name = None if dtype is None else jnp.dtype(dtype).name
  except (TypeError, ValueError):
    name = str(dtype)
  if name not in (None, *TYPES, *huggingface.DTYPES):
    raise UserError(
      f'dtype={name!r} is not possible: give one of {", ".join((*huggingface.DTYPES, *TYPES))}'
    )
  return (None, name) if name in TYPES else (name, None)


def packed(module: Any, params: Params) -> tuple[Any, Params]:
  """Returns (module, params), the parameters packed (`fd.pack`) if that makes decoding faster.

  It does on a CPU, at widths that gain on the cores of this process, for modules that say which
  parameters are kernels. On a mesh and in int8w they stay as they are.
  """
  is_here = jax.default_backend() == 'cpu' and mesh_of(params) is None
  if not (is_here and getattr(module, 'products', ())) or is_quantized(params, ['int8w']):
    return module, params
  width = module.d_target if isinstance(module, DraftNetwork) else module.d_model
  cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
  has_one_core = cores == 1
  gains = width >= NARROW and (has_one_core or (width < WIDE and not is_quantized(params)))
  return module, packing.pack(module, params) if gains else params
