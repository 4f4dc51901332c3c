"""Hugging Face folders: config.json, generation_config.json and safetensors, without PyTorch."""

import dataclasses
import functools
import warnings
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from jax.sharding import Mesh

from fastdec.errors import UserError, UserNote
from fastdec.files import read_json
from fastdec.folders.folder import DTYPES, Folder
from fastdec.folders.stored import put
from fastdec.hub.families import families
from fastdec.hub.generation import merge_ids, processors_in, warn_of_defaults
from fastdec.hub.quantized import open_tensors, read_quantization
from fastdec.hub.tensors import MTP, Tensors, fit
from fastdec.hub.weight_files import find_files
from fastdec.models.api import Params
from fastdec.models.fresh import shapes_of


@dataclasses.dataclass(frozen=True, eq=False)
class HuggingFaceFolder(Folder):
  """A folder with config.json and safetensors files; by default the dtype is config.json's."""

  @functools.cached_property
  def model(self) -> Any:
    """The model; a `UserNote` warns of defaults of `generate` that are ignored.

    Raises:
      UserError: config.json has an unknown model_type, an unsupported option or a value of a wrong
        type, or lacks a field.
    """
    family, generation = self._family, self._generation_file
    try:
      read_quantization(self.config)  # checked first: the most useful error
      dtype = self.dtype or self._own_dtype(family)
      model = family.model_of(self.config, generation, dtype)
    except UserError as error:
      raise UserError(f'{self.path}: {error}') from None
    warn_of_defaults(self.path, self.config, generation)
    return dataclasses.replace(model, generation=processors_in(self.generation))

  @functools.cached_property
  def _generation_file(self) -> Mapping[str, Any]:
    file = self.path / 'generation_config.json'
    return read_json(file) if file.is_file() else {}

  @property
  def ends(self) -> Iterable[int]:
    return merge_ids(self.config, self._generation_file).ends

  @property
  def generation(self) -> Mapping[str, Any]:
    return self._generation_file or self.config

  def _own_dtype(self, family: ModuleType) -> str:
    """Returns config.json's dtype; without one float32, or bfloat16 if the folder is quantized."""
    dtype = self.config.get('dtype') or self.config.get('torch_dtype')
    if dtype not in DTYPES:
      dtype = 'float32'
      if read_quantization(self.config) is not None:
        dtype = 'bfloat16'
    if dtype in family.OVERFLOWS:
      warnings.warn(
        f'{self.path} says {dtype}, in which such models overflow, and is read as float32:'
        " give dtype='bfloat16' for half the memory",
        UserNote,
        stacklevel=3,
      )
      return 'float32'
    return str(dtype)

  @functools.cached_property
  def _family(self) -> ModuleType:
    known, model_type = families(), self.config.get('model_type')
    if str(model_type) not in known:
      raise UserError(
        f'{self.path} is of model_type {model_type!r}: known are {", ".join(sorted(known))}'
      )
    return known[str(model_type)]

  def tensors(self) -> Tensors:
    """Returns the tensors by their names, unread."""
    files = {name: file for name, file in find_files(self.path).items() if not name.startswith(MTP)}
    is_tied = self.config.get('tie_word_embeddings')
    if is_tied is None:  # absent means true in the families with an encoder
      is_tied = self.config.get('is_encoder_decoder')
    return open_tensors(self.path, self.config, files, bool(is_tied))

  def params(self, mesh: Mesh | None = None, as_stored: bool = False) -> Params:
    """Reads the model's parameters.

    Raises:
      UserError: the weights are only a pickle, tensors are missing, unknown or do not fit
        config.json, or the mesh does not divide them.
    """
    model, tensors = self.model, self.tensors()
    stored = self._family.params_of(model, tensors)
    tensors.check()
    fit(stored, shapes_of(model))
    return put(stored, model, None if as_stored else model.config.dtype, mesh, self.kernels)
