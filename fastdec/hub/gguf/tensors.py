"""Tensors of GGUF files by Hugging Face's names, each turned into floats when a part is read."""

import re
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fastdec import extras
from fastdec.errors import UserError
from fastdec.folders.stored import Mapped, Stored
from fastdec.hub.dequantized import Dequantized
from fastdec.hub.gguf import ropes
from fastdec.hub.gguf.header import GgufTensor, Header
from fastdec.hub.gguf.metadata import Architecture
from fastdec.hub.tensors import Tensors

FLOATS = {'F32': np.float32, 'F16': np.float16, 'BF16': jnp.bfloat16}
NAMES = {  # beginnings of names outside the layers
  'token_embd': 'model.embed_tokens', 'output_norm': 'model.norm', 'output': 'lm_head',
}  # fmt: skip
OF_LAYERS = {
  'attn_norm': 'input_layernorm', 'attn_q': 'self_attn.q_proj', 'attn_k': 'self_attn.k_proj',
  'attn_v': 'self_attn.v_proj', 'attn_qkv': 'self_attn.qkv_proj', 'attn_output': 'self_attn.o_proj',
  'attn_q_norm': 'self_attn.q_norm', 'attn_k_norm': 'self_attn.k_norm',
  'ffn_norm': 'post_attention_layernorm', 'ffn_gate': 'mlp.gate_proj', 'ffn_up': 'mlp.up_proj',
  'ffn_down': 'mlp.down_proj', 'ffn_gate_inp': 'mlp.gate',
  'post_attention_norm': 'post_attention_layernorm', 'post_ffw_norm': 'post_feedforward_layernorm',
}  # fmt: skip
OF_GEMMA = OF_LAYERS | {'ffn_norm': 'pre_feedforward_layernorm'}
OF_PHI = OF_LAYERS | {'ffn_up': 'mlp.gate_up_proj'}
LAYER = re.compile(r'blk\.(\d+)\.(\w+)\.(weight|bias)')
EXPERTS = re.compile(r'ffn_(gate|up|down)_exps')  # all of a layer in one tensor
EXPERT = re.compile(r'blk\.(\d+)\.ffn_(gate|up|down)\.(\d+)\.weight')  # one tensor each (old files)
SINKS = 'attn_sinks'
Order = Callable[[Int[np.ndarray, ' n']], Int[np.ndarray, ' n']]


class GgufTensors(Tensors):
  """The tensors of a model in GGUF files by Hugging Face's names."""

  advice = 'its tensors and its metadata do not belong together, so copy or convert it again'

  def __init__(self, header: Header, row: Architecture, width: int, experts: int | None = None):
    """Translates names.

    Args:
      header: of the files.
      row: their architecture.
      width: of a head.
      experts: number of experts; tensors with a different number are not split.
    """
    self._tensors: dict[str, Any] = {}
    for tensor in header.tensors.values():
      if tensor.name not in ropes.TENSORS:  # which are in the config
        self._tensors |= _translate(tensor, row, width, experts)
    self.origin = f'the metadata of {header.path}'
    super().__init__(header.path, dict.fromkeys(self._tensors, header.path.name))

  def find(self, name: str) -> Any:
    return self._tensors[name]

  def _tied_to(self, name: str) -> None:
    """A file names each tensor once."""


def _translate(
  tensor: GgufTensor, row: Architecture, width: int, count: int | None
) -> dict[str, Any]:
  """Returns a tensor, or its experts, by Hugging Face's names; an unknown name does not change."""
  stem, _, end = tensor.name.rpartition('.')
  if stem in NAMES:
    return {f'{NAMES[stem]}.{end}': _read(tensor, row, None)}
  match = EXPERT.fullmatch(tensor.name)
  if match is not None:
    layer, kind, i = match.groups()
    return {f'model.layers.{layer}.mlp.experts.{i}.{kind}_proj.weight': _read(tensor, row, None)}
  match = LAYER.fullmatch(tensor.name)
  if match is None:
    return {tensor.name: _read(tensor, row, None)}
  prefix, kind, outputs = f'model.layers.{match[1]}.', match[2], tensor.shape[0]
  experts = EXPERTS.fullmatch(kind)
  if experts is not None and len(tensor.shape) > 1 and outputs == count:
    whole, named = _read(tensor, row, None), {}
    for i in range(outputs):
      part = whole.rows(i, i + 1).reshape(*tensor.shape[1:])
      named[f'{prefix}mlp.experts.{i}.{experts[1]}_proj.{end}'] = part
    return named
  if kind == SINKS:
    return {f'{prefix}self_attn.sinks': _read(tensor, row, None)}
  names = OF_LAYERS
  if row.adds_one:
    names = OF_GEMMA
  elif row.model_type == 'phi3':
    names = OF_PHI
  if kind not in names:
    return {tensor.name: _read(tensor, row, None)}
  order = None
  if row.is_permuted and kind in ('attn_q', 'attn_k') and outputs % width == 0:
    order = _make_order(width)
  return {f'{prefix}{names[kind]}.{end}': _read(tensor, row, order)}


def _make_order(width: int) -> Order:
  """Returns the stored place of each row: pairs of a head are rows i and i + 1, not i + w/2."""

  def order(rows: Int[np.ndarray, ' n']) -> Int[np.ndarray, ' n']:
    heads, inner = np.divmod(rows, width)
    halves, pairs = np.divmod(inner, width // 2)
    return heads * width + 2 * pairs + halves

  return order


def _read(tensor: GgufTensor, row: Architecture, order: Order | None) -> Any:
  """Returns a tensor, unread: as it is stored if it has floats, otherwise `Dequantized`.

  Args:
    tensor: in its file.
    row: its architecture, which may store the scales of norms plus 1.
    order: the place of each row in the file; None: the same.
  """
  dtype = FLOATS.get(tensor.kind.name)
  is_vector = len(tensor.shape) == 1
  if dtype is not None and (order is None or is_vector):
    stored = Stored(tensor.file, tensor.offset, np.dtype(dtype), tensor.shape)
    if order is not None:
      return stored[:][order(np.arange(tensor.shape[0]))]
    if row.adds_one and is_vector and tensor.name.endswith('norm.weight'):
      return Mapped(stored, lambda x: x.astype(np.float32) - 1, np.dtype(np.float32), stored.shape)
    return stored
  if is_vector:
    raise UserError(
      f'{tensor.name} of {tensor.file} is a vector in {tensor.kind.name}, which is not supported:'
      ' convert the model again'
    )
  return Dequantized(lambda start, stop: _read_floats(tensor, start, stop, order), tensor.shape)


def _read_floats(
  tensor: GgufTensor, start: int, stop: int, order: Order | None
) -> Float[np.ndarray, 'n d']:
  """Reads vectors along the last axis, as float32."""
  with extras.explained():
    from gguf.quants import dequantize
  shape = (tensor.rows, tensor.row_bytes)
  stored = np.memmap(tensor.file, np.uint8, 'r', tensor.offset, shape)
  places: Any = slice(start, stop)
  if order is not None:
    places = order(np.arange(start, stop))
  with np.errstate(all='ignore'):  # scales of a damaged file
    return dequantize(np.array(stored[places]), tensor.kind)
