"""The interface of a model folder. `folders.open` makes one; each format has a class."""

import abc
import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from fastdec.files import open_file
from fastdec.models.api import Params


@dataclasses.dataclass(frozen=True, eq=False)
class Folder(abc.ABC):
  """A folder whose config.json has been read; other files are read on use, and must be whole.

  Attributes:
    path: the folder of the files; of a training run, its `model/`.
    config: the contents of config.json.
    dtype: type of computation and parameters; None: the type that the model was trained to compute
      in.
    kernels: type that the kernels of products are kept in ('int8', 'int8w', `fastdec.kernels.quantized`);
      None: as all others.
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
  def generation(self) -> Mapping[str, Any]:
    """Settings of `generate`, for `Processors.of`."""
    return {}

  @abc.abstractmethod
  def params(self, mesh: Mesh | None = None, as_stored: bool = False) -> Params:
    """Reads the model's parameters one by one, straight onto the mesh (None: one device).

    They come in the type that the model computes in: every program would cast wider ones whole.
    Training asks for them as they are stored.
    """

  @property
  @abc.abstractmethod
  def has_heads(self) -> bool:
    """True if there are prediction heads."""

  @property
  @abc.abstractmethod
  def heads(self) -> Any:
    """The prediction heads, a frozen value; their parameters are unread."""

  @abc.abstractmethod
  def head_params(self, mesh: Mesh | None = None, as_stored: bool = False) -> Params:
    """Reads the parameters of the prediction heads; see `params`."""

  @property
  @abc.abstractmethod
  def tokenizer(self) -> Any:
    """The tokenizer: .encode(str) -> list[int], .decode(ids) -> str."""

  @abc.abstractmethod
  def files(self) -> Sequence[pathlib.Path]:
    """Returns all files of model, heads and tokenizer, existing or not."""

  @property
  def content(self) -> str:
    """Hash of the files that the folder decodes with, as they are now: 16 hexadecimal digits."""
    return content_of(self.files())


def content_of(files: Sequence[pathlib.Path]) -> str:
  """Returns a hash of the existing ones of these files, as they are now: 16 hexadecimal digits."""
  stats = [(file, file.stat()) for file in files if file.is_file()]
  sums = [(file.name, _sha256(file, stat.st_mtime_ns, stat.st_size)) for file, stat in stats]
  return hashlib.sha256(repr(sums).encode()).hexdigest()[:16]


@functools.lru_cache
def _sha256(file: pathlib.Path, mtime_ns: int, size: int) -> str:
  """Returns the hash of a file; it is kept while the file's time and size stay the same."""
  with open_file(file) as opened:
    return hashlib.file_digest(opened, 'sha256').hexdigest()
