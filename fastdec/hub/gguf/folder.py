"""A GGUF file as a folder: its metadata is config.json, its tensors have Hugging Face's names."""

import dataclasses
import pathlib

from fastdec.hub.gguf.config import make_config
from fastdec.hub.gguf.header import Header, read_header
from fastdec.hub.gguf.metadata import find_architecture, read_metadata
from fastdec.hub.gguf.tensors import GgufTensors
from fastdec.hub.huggingface import HuggingFaceFolder


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class GgufFile(HuggingFaceFolder):
  """A GGUF file; `path` is the file, or the first of several."""

  header: Header

  def tensors(self) -> GgufTensors:
    fields = read_metadata(self.header)
    row = find_architecture(self.header)
    return GgufTensors(self.header, row, fields.width, fields.expert_count)


def open_file(path: pathlib.Path, dtype: str | None = None, kernels: str | None = None) -> GgufFile:
  """Reads the header of a GGUF file.

  Args:
    path: the file, or any of several of one model.
    dtype, kernels: as in `Folder`; by default float32 if all matrices are, else bfloat16.

  Raises:
    UserError: the file is missing, damaged or of an unknown architecture, or the package `gguf` is
      not installed.
  """
  header = read_header(path)
  return GgufFile(header.path, make_config(header), dtype, kernels, header=header)
