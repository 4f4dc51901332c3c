"""What can be asked of a model folder, whatever its format. `folders.open` makes one; each format
has a class."""

import abc
import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from fastdec.models.api import Params


@dataclasses.dataclass(frozen=True, eq=False)
class Folder(abc.ABC):
  """A folder whose config.json has been read, once; all else is read when it is asked for, and
  refused if not whole.

  Attributes:
    path: where the files are; of a training run, its `model/`.
    config: what config.json says.
    dtype: what is computed in, and what parameters are kept in; None: what the model was trained to
      compute in.
    in_int8: whether the kernels of products are kept in int8 (`fastdec.quantized`); then all else
      is as for None.
  """

  path: pathlib.Path
  config: Mapping[str, Any]
  dtype: str | None = None
  in_int8: bool = False

  @property
  @abc.abstractmethod
  def model(self) -> Any:
    """The model, a frozen value (`models/api.py`); its parameters are unread."""

  @abc.abstractmethod
  def params(self, mesh: Mesh | None = None, as_stored: bool = False) -> Params:
    """The model's parameters, read one after the other, each straight onto its parts of the mesh
    (None: one device).

    They come in the type that the model computes in: wider ones would be cast, whole, by every
    program. Training asks for them as they are stored.
    """

  @property
  @abc.abstractmethod
  def has_heads(self) -> bool:
    """Whether there are prediction heads."""

  @property
  @abc.abstractmethod
  def heads(self) -> Any:
    """The prediction heads, a frozen value; their parameters are unread."""

  @abc.abstractmethod
  def head_params(self, mesh: Mesh | None = None, as_stored: bool = False) -> Params:
    """The parameters of the prediction heads; see `params`."""

  @property
  @abc.abstractmethod
  def tokenizer(self) -> Any:
    """The tokenizer: .encode(str) -> list[int], .decode(ids) -> str."""

  @abc.abstractmethod
  def files(self) -> Sequence[pathlib.Path]:
    """All that the folder decodes with: of the model, its heads and its tokenizer; those that are
    not there too."""

  @property
  def content(self) -> str:
    """A hash of what the folder decodes with, as its files are now: 16 hexadecimal digits."""
    return content_of(self.files())


def content_of(files: Sequence[pathlib.Path]) -> str:
  """A hash of files as they are now, those that are there: 16 hexadecimal digits."""
  stats = [(file, file.stat()) for file in files if file.is_file()]
  sums = [(file.name, _sha256(file, stat.st_mtime_ns, stat.st_size)) for file, stat in stats]
  return hashlib.sha256(repr(sums).encode()).hexdigest()[:16]


@functools.lru_cache
def _sha256(file: pathlib.Path, mtime_ns: int, size: int) -> str:
  """The hash of a file, kept for as long as its time and size stay the same."""
  with open(file, 'rb') as opened:
    return hashlib.file_digest(opened, 'sha256').hexdigest()
