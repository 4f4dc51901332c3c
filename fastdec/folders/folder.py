"""The interface of a model folder, which each format implements; paths and hashes of folders."""

import abc
import dataclasses
import functools
import hashlib
import os
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import DTypeLike

from fastdec.errors import UserError
from fastdec.files import open_file, place
from fastdec.kernels.quantized import TYPES
from fastdec.models.api import Params

PathLike = str | os.PathLike[str]
DTYPES = ('float32', 'bfloat16', 'float16', 'float64')
TOKENIZER_FILES = (  # of Hugging Face's tokenizers
  'tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json', 'chat_template.jinja',
  'added_tokens.json', 'tokenizer.model', 'spiece.model', 'source.spm', 'target.spm', 'vocab.json',
  'sentencepiece.bpe.model', 'merges.txt',
)  # fmt: skip
TEMPLATES = 'additional_chat_templates'  # a folder of chat templates, NAME.jinja
DICTIONARIES = ('source.dict.txt', 'target.dict.txt')  # of fairseq
GENERATION, INDEX = 'generation_config.json', 'model.safetensors.index.json'
READ = {'config.json', GENERATION, INDEX, *TOKENIZER_FILES, *DICTIONARIES}  # besides weights
GGUF = '.gguf'
PART = re.compile(r'(.*)-(\d{5})-of-(\d{5})\.gguf')  # one of several files of a model
HUB_NAME = r'[\w-][\w.-]*/[\w-][\w.-]*'
DOWNLOADED = ['*.json', '*.safetensors', '*.jinja', '*.model', '*.spm', '*.txt']
COPIES = ['original/*', 'onnx/*', '*consolidated*']  # the same weights in other formats


@dataclasses.dataclass(frozen=True, eq=False)
class Folder(abc.ABC):
  """A folder whose config.json has been read; other files are read when they are used.

  Attributes:
    path: the folder of the files; for a training run, its `model/`.
    config: the contents of config.json.
    dtype: type of computation and parameters; None: the type that the model was trained to compute
      in.
    kernels: type of the kernels of products ('int8', 'int8w', `kernels.quantized`); None: the type
      of all parameters.
  """

  path: pathlib.Path
  config: Mapping[str, Any]
  dtype: str | None = None
  kernels: str | None = None

  @property
  @abc.abstractmethod
  def model(self) -> Any:
    """The model, a frozen value (`models/api.py`); its parameters are unread."""

  @property
  def ends(self) -> Iterable[int]:
    """The ids that end a text."""
    return self.model.eos_ids

  @property
  def generation(self) -> Mapping[str, Any]:
    """Settings of `generate`, for `Processors.of`."""
    return {}

  @abc.abstractmethod
  def params(self, mesh: Mesh | None = None, as_stored: bool = False) -> Params:
    """Reads the model's parameters one by one, straight onto the mesh (None: one device).

    They come in the type that the model computes in, since every program would first cast wider
    ones. Training wants them `as_stored`.
    """

  @property
  def has_heads(self) -> bool:
    """True if there are prediction heads."""
    return False

  @property
  def heads(self) -> Any:
    """The prediction heads, a frozen value; their parameters are unread."""
    raise UserError(f'{self.path} holds a model without heads: give a folder of heads for it')

  def head_params(self, mesh: Mesh | None = None, as_stored: bool = False) -> Params:
    """Reads the parameters of the prediction heads; see `params`."""
    return self.heads  # raises the error

  @property
  def content(self) -> str:
    """Hash of the files that the folder decodes with, as they are now: 16 hexadecimal digits."""
    return hash_content(self.path)


def find_folder(path: PathLike) -> pathlib.Path:
  """Returns a user's path; for a name of the Hugging Face hub, the downloaded folder.

  Raises:
    UserError: it cannot be downloaded.
  """
  path = place(path)
  if path.exists() or path.parent.is_dir() or path.suffix == GGUF:
    return path
  if not re.fullmatch(HUB_NAME, str(path)):
    return path
  try:
    from huggingface_hub import snapshot_download  # `tokenizers` brings it

    return pathlib.Path(
      snapshot_download(str(path), allow_patterns=DOWNLOADED, ignore_patterns=COPIES)
    )
  except Exception as error:  # its kind depends on the cause: no such name, no network, no access
    reason = str(error).split('\n')[0][:200] or type(error).__name__
    raise UserError(
      f'{path} is not a folder, and cannot be downloaded here ({reason}): fetch it elsewhere by hf'
      f' download {path} --local-dir={path.name}, and give that folder'
    ) from None


def model_folder(path: PathLike) -> pathlib.Path:
  """Returns the folder with the files of a model: the path itself, or `model/` of a finished run.

  A GGUF file is returned as it is.

  Raises:
    UserError: the folder does not exist.
  """
  folder = find_folder(path)
  if folder.suffix == GGUF and folder.is_file():
    return folder
  if (folder / 'model' / 'config.json').is_file():
    return folder / 'model'
  if folder.is_dir():
    return folder
  if folder.with_name(f'{folder.name}.old').is_dir():
    raise UserError(
      f'{folder} was being replaced when something stopped it: {folder}.old is what was'
      ' there, rename it'
    )
  if folder.is_file():
    raise UserError(
      f'{folder} is a file: give the folder of the model, such as {folder.parent}, or a {GGUF} file'
    )
  kind = 'there' if folder.suffix == GGUF else 'a folder'
  raise UserError(
    f'{folder} is not {kind}: give a model folder, a {GGUF} file, or the workdir of a finished'
    ' training run'
  )


def gguf_files(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files of a model in GGUF: with NAME-00001-of-00003.gguf there are two others."""
  match = PART.fullmatch(path.name)
  if match is None or not 1 <= int(match[2]) <= int(match[3]):
    return [path]
  name, _, parts = match.groups()
  return [path.with_name(f'{name}-{i:05d}-of-{parts}.gguf') for i in range(1, int(parts) + 1)]


def split_dtype(dtype: DTypeLike | None) -> tuple[str | None, str | None]:
  """Returns the dtype of computation (None: the model's), and that of kernels (None: the same).

  Raises:
    UserError: no model computes in this type.
  """
  if dtype is None:
    return None, None
  try:
    name = jnp.dtype(dtype).name
  except (TypeError, ValueError):
    name = str(dtype)
  if name in TYPES:
    return None, name
  if name not in DTYPES:
    raise UserError(f'dtype={name!r} is not possible: give one of {", ".join((*DTYPES, *TYPES))}')
  return name, None


def content(path: PathLike) -> str:
  """Returns a hash of the files that a folder or workdir decodes with; see `Folder.content`."""
  return hash_content(model_folder(path))


def hash_content(folder: pathlib.Path) -> str:
  """Returns a hash of a folder's files, or of a GGUF file, as now: 16 hexadecimal digits."""
  files, hashes = [], []
  if not folder.is_dir():
    files = gguf_files(folder)
  else:
    for file in sorted(folder.iterdir()):
      if file.name in READ or file.suffix == '.safetensors':
        files.append(file)
  for file in files:
    if file.is_file():
      hashes.append((file.name, hash_file(file)))
  return hashlib.sha256(repr(hashes).encode()).hexdigest()[:16]


def hash_file(file: pathlib.Path) -> str:
  """Returns a hash of a file's bytes: 64 hexadecimal digits."""
  stat = file.stat()
  return _sha256(file, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache
def _sha256(file: pathlib.Path, mtime_ns: int, size: int) -> str:
  """Returns the hash of a file, cached while its time and size stay the same."""
  with open_file(file) as opened:
    return hashlib.file_digest(opened, 'sha256').hexdigest()
