"""Opens a model folder of any format: ours, Hugging Face's, or that of published Medusa heads."""

import os
import pathlib
import re
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import DTypeLike

from fastdec.errors import UserError
from fastdec.files import read_json
from fastdec.folders import huggingface, medusa, native
from fastdec.folders.folder import Folder
from fastdec.models.api import Params

PathLike = str | os.PathLike[str]


def open(path: PathLike, dtype: DTypeLike | None = None) -> Folder:
  """A folder by its format, its config.json read.

  Args:
    path: a model folder, the workdir of a finished training run, or a folder of published heads.
    dtype: computes and keeps the parameters in this type (None: in the type that the model was
      trained to compute in); 'int8': as None, with the kernels of products in int8.

  Raises:
    UserError: there is no such folder, it is of no format that we know, or no model computes in
      such a type.
  """
  path = pathlib.Path(path)
  if not path.is_dir() and path.with_name(f'{path.name}.old').is_dir():
    raise UserError(
      f'{path} was being replaced when something stopped it: {path}.old is what was'
      ' there, rename it'
    )
  if not path.is_dir():
    wanted = 'give a model folder or the workdir of a finished training run'
    if re.fullmatch(r'[\w.-]+/[\w.-]+', str(path)) and not path.parent.is_dir():
      wanted += (
        f', or download the model of this name first: hf download {path} --local-dir={path.name}'
      )
    raise UserError(f'{path} is not a folder: {wanted}')
  if (path / 'model' / 'config.json').is_file():
    path = path / 'model'  # of a finished run
  kept = kept_in(dtype)
  # published heads do without
  config = read_json(path / 'config.json') if (path / 'config.json').is_file() else {}
  if medusa.holds_heads(path, config):
    return medusa.MedusaFolder(path, config, *kept)
  if huggingface.is_theirs(config):
    return huggingface.HuggingFaceFolder(path, config, *kept)
  native.check_is_ours(path, config)
  return native.NativeFolder(path, config, *kept)


def load(
  path: PathLike, dtype: DTypeLike | None = None, mesh: Mesh | None = None
) -> tuple[Any, Params]:
  """The model of a folder, or of a training run's workdir, and its parameters.

  Each parameter is read by itself, and goes straight to where it belongs: a model larger than one
  device loads onto a mesh as it is, and the host holds no more than one parameter beside.

  Args:
    path: the folder, ours or one of Hugging Face's with safetensors.
    dtype: computes and keeps the parameters in this type (None: in the type that the model was
      trained to compute in). 'int8': as None, with the kernels of products in int8, as
      `fd.quantize` makes them: a quarter of the bytes.
    mesh: devices (`sharding.make_mesh`) over which the model lies as its `partition` says (None:
      one device).

  Raises:
    UserError: there is no such folder, it is not whole, or of other shapes than its config says; or
      the mesh does not divide the model.
  """
  folder = open(path, dtype)
  return folder.model, folder.params(mesh)


def load_heads(
  path: PathLike, dtype: DTypeLike | None = None, mesh: Mesh | None = None
) -> tuple[Any, Params]:
  """The prediction heads of a folder or workdir, ours or published Medusa heads, and their
  parameters; see `load`."""
  folder = open(path, dtype)
  return folder.heads, folder.head_params(mesh)


def load_tokenizer(path: PathLike) -> Any:
  """The tokenizer of a folder or workdir: .encode(str) -> list[int], .decode(ids) -> str."""
  return open(path).tokenizer


def content(path: PathLike) -> str:
  """A hash of what a folder or workdir decodes with; see `Folder.content`."""
  return open(path).content


def kept_in(dtype: DTypeLike | None) -> tuple[str | None, bool]:
  """The name of a type that models compute in (None: their own), and whether kernels are kept in
  int8."""
  try:
    name = None if dtype is None else jnp.dtype(dtype).name
  except (TypeError, ValueError):
    name = str(dtype)
  if name not in (None, 'int8', *huggingface.DTYPES):
    raise UserError(
      f'dtype={name!r} is not possible: give one of {", ".join(huggingface.DTYPES)}, int8'
    )
  return (None, True) if name == 'int8' else (name, False)
