"""Quantized folders: matrices stored as small numbers and scales, which families read as floats.

`tensors_of` puts one tensor, NAME.weight, in the place of its parts, such as NAME.qweight and
NAME.scales, so no family knows of quantization. `quantized_formats.FORMATS` is the table of
formats. Layers that a folder keeps in floats are read as in any other folder.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import shown
from fastdec.hub.dequantized import Dequantized
from fastdec.hub.families import read_fields
from fastdec.hub.quantized_formats import FORMATS, Format, QuantizationConfig, StoredMatrix
from fastdec.hub.tensors import Tensors

# Scales and zeros of activations and caches, which a server quantizes too; here they stay floats.
OF_ACTIVATIONS = (
  '.input_scale', '.output_scale', '.activation_scale', '.input_zero_point', '.output_zero_point',
  '.q_scale', '.k_scale', '.v_scale',
)  # fmt: skip


def quantization_of(config: Mapping[str, Any]) -> QuantizationConfig | None:
  """Returns the quantization_config of a config.json; None: all tensors are floats.

  Raises:
    UserError: a format that is not read.
  """
  settings = config.get('quantization_config') or config.get('compression_config')
  if not settings:
    return None
  method = settings.get('quant_method') if isinstance(settings, Mapping) else settings
  known: dict[str, set[str]] = {}
  for row in FORMATS:
    known.setdefault(row.method, set()).update(row.variants)
  if not isinstance(settings, Mapping) or not isinstance(method, str) or method not in known:
    raise UserError(
      f'it is quantized by quant_method={shown(method)}, which is not read: known are'
      f' {", ".join(known)}, so give the checkpoint that it was made from'
    )
  quantization = read_fields(QuantizationConfig, settings, 'config.json: quantization_config')
  unknown = sorted(quantization.variants - known[method])
  if unknown:
    raise UserError(
      f'it is quantized by {method}, {", ".join(unknown)}, which is not read: known are'
      f' {", ".join(sorted(known[method]))}, so give the checkpoint that it was made from'
    )
  return quantization


def tensors_of(
  folder: pathlib.Path, config: Mapping[str, Any], files: Mapping[str, str], is_tied: bool = False
) -> Tensors:
  """Returns the tensors of a folder; quantized ones are `Dequantized`, by the name NAME.weight.

  Args:
    folder: the folder of the files.
    config: the content of config.json.
    files: the file of each tensor, as in `weight_files.files_of`.
    is_tied: as in `Tensors`.

  Raises:
    UserError: a format that is not read.
  """
  quantization = quantization_of(config)
  if quantization is None:
    return Tensors(folder, files, is_tied)
  return QuantizedTensors(folder, files, is_tied, quantization)


class QuantizedTensors(Tensors):
  """Tensors of a folder in which matrices are stored in parts."""

  def __init__(
    self,
    folder: pathlib.Path,
    files: Mapping[str, str],
    is_tied: bool,
    quantization: QuantizationConfig,
  ):
    self._quantization, self._stored = quantization, Tensors(folder, files)
    self._formats: dict[str, Format] = {}  # of the matrices
    self._matrices: dict[str, Dequantized] = {}
    whole = {name: file for name, file in files.items() if not name.endswith(OF_ACTIVATIONS)}
    for row in FORMATS:
      if row.method == quantization.quant_method:
        self._join_parts(row, whole)
    super().__init__(folder, whole, is_tied)

  def _join_parts(self, row: Format, files: dict[str, str]) -> None:
    """Replaces the parts of each matrix of this format by NAME.weight, in place."""
    numbers = row.suffixes[0]
    for name in [name for name in files if name.endswith(f'.{numbers}')]:
      stem = name.removesuffix(numbers)
      suffixes = [suffix for suffix in row.suffixes if stem + suffix in files]
      if numbers == 'weight' and not any('scale' in suffix for suffix in suffixes):
        continue  # a matrix of floats
      file = files[name]
      for suffix in suffixes:
        del files[stem + suffix]
      files[f'{stem}weight'] = file
      self._formats[f'{stem}weight'] = row

  def find(self, name: str) -> Any:
    """Returns a matrix made of its parts, or a tensor that is stored whole.

    Raises:
      UserError: parts that are missing, or do not belong together.
    """
    if name in self._matrices:
      return self._matrices[name]
    if name in self._formats:
      row, stem = self._formats[name], name.removesuffix('weight')
      parts = {}
      for suffix in row.suffixes:
        if stem + suffix in self._stored:
          parts[suffix] = self._stored.find(stem + suffix)
      matrix = StoredMatrix(stem.removesuffix('.'), parts)
      self._matrices[name] = row.reader(matrix, self._quantization)
      return self._matrices[name]
    tensor = self._stored.find(name)
    if tensor.dtype.itemsize == 1 and name.endswith('weight'):
      raise UserError(f'{name} is {tensor.dtype}, and has no scale: copy the folder again')
    return tensor
