"""fairseq state dicts from .safetensors, or .pt (with PyTorch). No code in a file is run."""

import argparse
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from fastdec.errors import UserError
from fastdec.files import place
from fastdec.hub.tensors import Tensors, shaped
from fastdec.hub.weight_files import files_in

PICKLES = ('.pt', '.pth', '.bin')
PAD, END = 1, 2  # in every dictionary
# Tables that fairseq computes, and its version numbers, which the shapes reveal as well.
DERIVED = re.compile(
  r'(^|\.)(version|_float_tensor|_linearized_weight|_future_mask)$|\.embed_positions\.weights$'
)


class StateDict(Tensors):
  """The tensors of a state dict in float32, and the file's options of training, if any."""

  origin = 'the rest of the state dict'
  advice = 'give the whole state dict of a plain FConv or Transformer'

  def __init__(
    self, file: pathlib.Path, loaded: Mapping[str, np.ndarray] | None = None, options: Any = None
  ):
    if loaded is None:
      files = files_in(file.parent, file.name)
    else:
      files = dict.fromkeys(loaded, file.name)
    super().__init__(file.parent, files)
    self.where, self.options = file, options or {}
    self._loaded = loaded
    self.used |= {name for name in files if DERIVED.search(name)}
    for name in files:
      shape = self.shape(name)
      if 0 in shape:
        raise UserError(
          f'{name} of {file} is of shape {list(shape)}, and no width can be 0: save'
          ' the state dict again'
        )

  def __getitem__(self, name: str) -> np.ndarray:
    return np.asarray(super().__getitem__(name)[...], np.float32)

  def find(self, name: str) -> Any:
    return super().find(name) if self._loaded is None else self._loaded[name]

  def shape(self, name: str) -> tuple[int, ...]:
    """Returns the shape of an existing tensor."""
    return self.find(name).shape

  def sizes(self, name: str, axes: str) -> tuple[int, ...]:
    """Returns the shape of a tensor with these axes, such as 'words, width'.

    Raises:
      UserError: the tensor is missing, or has other axes.
    """
    if name not in self:
      self.missing.append(name)
      self.check()
    shape = self.shape(name)
    if len(shape) != axes.count(',') + 1:
      raise UserError(
        f'{name} of {self.where} is of shape {list(shape)}, and must be of shape'
        f' [{axes}]: {self.advice}'
      )
    return shape

  def count(self, prefix: str) -> int:
    """Counts the layers with this prefix, up to the last that has tensors; at least 1."""
    last = 0
    for name in self:
      match = re.match(rf'{re.escape(prefix)}(\d+)\.', name)
      if match:
        last = max(last, int(match[1]))
    return last + 1

  def positions(self, side: str, width: int) -> Float[np.ndarray, 't d']:
    """Returns the learned positions of 'encoder' or 'decoder'; fairseq counts from PAD + 1 on."""
    name = f'{side}.embed_positions.weight'
    rows = self.sizes(name, 'positions, width')[0]
    return np.asarray(shaped(self, name, rows, width))[PAD + 1 :]


def load(file: pathlib.Path) -> StateDict:
  """Reads the state dict of a file, which may be a whole checkpoint.

  Raises:
    UserError: the file does not exist, is corrupt, or has more than tensors and options.
  """
  if not place(file).is_file():
    raise UserError(
      f'{file} is not a file: give a .safetensors or .pt file with a fairseq state dict'
    )
  if file.suffix == '.safetensors':
    return StateDict(file)
  if file.suffix not in PICKLES:
    raise UserError(f'{file} ends in {file.suffix or "nothing"}: give a .safetensors or .pt file')
  return _unpickled(file)


def _unpickled(file: pathlib.Path) -> StateDict:
  """Reads a pickle by PyTorch's `weights_only`: tensors, numbers, strings and their containers.

  fairseq's options are an argparse.Namespace, a class without behaviour of its own.
  """
  try:
    import torch
  except ImportError:
    raise UserError(
      f'{file} needs PyTorch: install it, or, where it is, {_by_hand(file)}'
    ) from None
  if not hasattr(torch.serialization, 'safe_globals'):
    raise UserError(
      f'{file} needs PyTorch 2.5 or newer, not {torch.__version__}: upgrade it, or {_by_hand(file)}'
    )
  try:
    with torch.serialization.safe_globals([argparse.Namespace]):
      content = torch.load(file, map_location='cpu', weights_only=True)
  except Exception as error:  # the kind of exception depends on the file
    refused = re.search(r'GLOBAL ([\w.]+)', str(error))
    if refused is None:
      raise UserError(
        f'{file} is corrupt, or not a PyTorch checkpoint ({type(error).__name__}): copy it again'
      ) from None
    reason = f'{file} has {refused[1]} in it, which is not a tensor or an option, so it is not read'
    raise UserError(f'{reason}: {_by_hand(file)}') from None
  if not isinstance(content, Mapping):
    content = {}
  tensors = content.get('model', content)
  is_state_dict = isinstance(tensors, Mapping) and all(map(torch.is_tensor, tensors.values()))
  if not is_state_dict or not tensors:
    raise UserError(
      f"{file} is not a state dict, and has none as its 'model': give a fairseq checkpoint"
    )
  loaded = {str(name): tensor.detach().float().numpy() for name, tensor in tensors.items()}
  return StateDict(file, loaded, _options(content))


def _options(content: Mapping[str, Any]) -> dict[str, Any]:
  """Returns fairseq's options by flat names: 'args' of older checkpoints, 'cfg' of newer ones."""
  options = content.get('args')
  if options is None and isinstance(content.get('cfg'), Mapping):
    options = content['cfg'].get('model')
  if isinstance(options, argparse.Namespace):
    options = vars(options)
  return _flat(options) if isinstance(options, Mapping) else {}


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
  """Returns nested options by flat names: {'encoder': {'layers': 6}} -> {'encoder_layers': 6}."""
  flat = {}
  for name, value in options.items():
    if isinstance(value, Mapping):
      flat |= {f'{name}_{inner}': deeper for inner, deeper in _flat(value).items()}
    else:
      flat[name] = value
  return flat


def _by_hand(file: pathlib.Path) -> str:
  """Returns the advice to unpickle a file outside fastdec, with the command."""
  content = f"torch.load('{file}', map_location='cpu', weights_only=False)['model']"
  command = (
    f's.save_file({{k: v.clone() for k, v in {content}.items()}},'
    f" '{file.with_suffix('.safetensors')}')"
  )
  return (
    'if you trust it, save its state dict by python -c "import torch, safetensors.torch as s;'
    f' {command}"'
  )
