"""Quantized folders: matrices stored as small numbers and scales, which families read as floats.

`open_tensors` replaces the parts of a matrix, such as NAME.qweight and NAME.scales, by one tensor,
NAME.weight, so families do not depend on quantization. `quantized_formats.FORMATS` is the table of
formats. Layers in floats are read as in any other folder.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.hub.dequantized import Dequantized
from fastdec.hub.families import read_fields
from fastdec.hub.quantized_formats import FORMATS, Format, QuantizationConfig, StoredMatrix
from fastdec.hub.tensors import Tensors

# Scales and zeros of activations and caches, which servers quantize too; here they stay floats.
OF_ACTIVATIONS = (
  '.input_scale', '.output_scale', '.activation_scale', '.input_zero_point', '.output_zero_point',
  '.q_scale', '.k_scale', '.v_scale',
)  # fmt: skip


def read_quantization(config: Mapping[str, Any]) -> QuantizationConfig | None:
  """Returns the quantization_config of a config.json; None: all tensors are floats.

  Raises:
    UserError: the format is not supported.
  """
  settings = config.get('quantization_config') or config.get('compression_config')
  if not settings:
    return None
  method = settings
  if isinstance(settings, Mapping):
    method = settings.get('quant_method')
  known: dict[str, set[str]] = {}
  for row in FORMATS:
    known.setdefault(row.method, set()).update(row.variants)
  if not isinstance(settings, Mapping) or not isinstance(method, str) or method not in known:
    raise UserError(
      f'it is quantized by quant_method={quote(method)}, which is not supported: known are'
      f' {", ".join(known)}, so give the checkpoint that it was made from'
    )
  quantization = read_fields(QuantizationConfig, settings, 'config.json: quantization_config')
  unknown = sorted(quantization.variants - known[method])
  if unknown:
    raise UserError(
      f'it is quantized by {method}, {", ".join(unknown)}, which is not supported: known are'
      f' {", ".join(sorted(known[method]))}, so give the checkpoint that it was made from'
    )
  return quantization


def open_tensors(
  folder: pathlib.Path, config: Mapping[str, Any], files: Mapping[str, str], is_tied: bool = False
) -> Tensors:
  """Returns the tensors of a folder; quantized ones are `Dequantized`, by the name NAME.weight.

  Args:
    folder: the folder of the files.
    config: the content of config.json.
    files: the file of each tensor, as in `weight_files.find_files`.
    is_tied: as in `Tensors`.

  Raises:
    UserError: the format is not supported.
  """
  quantization = read_quantization(config)
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
      if row.method != quantization.quant_method:
        continue
      # Replace the parts of each matrix of this format by NAME.weight.
      numbers = row.suffixes[0]
      for name, file in list(whole.items()):
        if not name.endswith(f'.{numbers}'):
          continue
        stem = name.removesuffix(numbers)
        suffixes = [suffix for suffix in row.suffixes if stem + suffix in whole]
        if numbers == 'weight' and not any('scale' in suffix for suffix in suffixes):
          continue  # a matrix of floats
        for suffix in suffixes:
          del whole[stem + suffix]
        whole[f'{stem}weight'] = file
        self._formats[f'{stem}weight'] = row
    super().__init__(folder, whole, is_tied)

  def find(self, name: str) -> Any:
    """Returns a matrix made of its parts, or a tensor that is stored whole.

    Raises:
      UserError: parts are missing, or do not fit one another.
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
