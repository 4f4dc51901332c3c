"""Published Medusa heads: safetensors under several names, mostly with a config.json.

  {i}.{j}.linear.weight|bias, {i}.{last}.weight   only heads (medusa_lm_head.safetensors), TGI
  medusa_head.{i}. ...                            the same in a whole model's folder (Medusa-2)
  blocks.{i}.layers.{j}.weight|bias, lm_heads.{i}.weight, or one lm_head.weight for all   vLLM

i is the head, j the residual block. Heads without projections use the model's; blocks without
biases get zeros. The tensors decide the number of heads: the published Vicuna has 5, although its
config.json says 2.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh

from fastdec import struct
from fastdec.errors import UserError
from fastdec.files import place, whole_folder, write_json
from fastdec.folders.folder import INDEX
from fastdec.folders.stored import put, write
from fastdec.heads.medusa import MedusaHeads
from fastdec.hub.families import read_fields
from fastdec.hub.huggingface import HuggingFaceFolder
from fastdec.hub.tensors import Tensors
from fastdec.hub.weight_files import SINGLE, files_in, find_files, list_names, pickle_error
from fastdec.models.api import Params

FILE = 'medusa_lm_head.safetensors'
PREFIX = re.compile(r'^medusa_heads?\.')
# vLLM: a projection for all heads; the words of a truncated one
SHARED, TOKEN_MAP = 'lm_head/kernel', 'token_map'
RENAMES = {  # ours by theirs
  r'(\d+)\.(\d+)\.linear\.(weight|bias)': r'head_\1/block_\2/\3',
  r'(\d+)\.\d+\.(weight)': r'head_\1/projection/\2',
  r'blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)': r'head_\1/block_\2/\3',
  r'lm_heads\.(\d+)\.(weight)': r'head_\1/projection/\2',
  r'lm_head\.(weight)': r'lm_head/\1',
  TOKEN_MAP: TOKEN_MAP,
}


@dataclasses.dataclass(frozen=True)
class MedusaFields:
  """Fields of config.json, by its names: the Medusa project's first, then vLLM's."""

  medusa_num_heads: int | None = None
  medusa_num_layers: int | None = None
  model_type: str | None = None
  num_heads: int | None = None
  num_hidden_layers: int | None = None
  vocab_size: int | None = None
  truncated_vocab_size: int | None = None
  original_lm_head: bool | None = None


def holds_heads(folder: pathlib.Path, config: Mapping[str, Any]) -> bool:
  """True if a folder holds published heads, with or without their model; config may be {}."""
  if any(folder.glob('medusa_lm_head.*')):
    return True
  if 'format' in config:  # our own format
    return False
  if 'medusa_num_heads' in config or config.get('model_type') == 'medusa':
    return True
  with contextlib.suppress(UserError):  # reading the model will say what is wrong
    return any(PREFIX.match(name) for name in find_files(folder))
  return False


@dataclasses.dataclass(frozen=True, eq=False)
class MedusaFolder(HuggingFaceFolder):
  """Published heads, with or without their model."""

  @functools.cached_property
  def model(self) -> Any:
    if self.config.get('model_type') in (None, 'medusa'):
      raise UserError(
        f'{self.path} only holds prediction heads: give the folder of the model that they are for'
      )
    return super().model

  @property
  def has_heads(self) -> bool:
    return True

  @functools.cached_property
  def heads(self) -> MedusaHeads:
    """The heads.

    Raises:
      UserError: the heads are only a pickle, have unknown tensors or a truncated vocabulary, or are
        fewer than config.json says.
    """
    names, tensors = self._names, self._tensors
    depth, layers = _count(names, 'head'), _count(names, 'block')
    _check_counts(self._fields, depth, layers, self.path)
    if depth * layers > len(names):
      raise UserError(
        f'{self.path} has {len(names)} tensors for {depth} heads of {layers} blocks: copy it again'
      )
    d_model = tensors[next(iter(names.values()))].shape[-1]  # the last axis of every tensor
    vocab_size = None
    for name, stored_name in names.items():
      if '/projection/' in name:
        vocab_size = tensors[stored_name].shape[0]
        break
    return MedusaHeads(depth, d_model, vocab_size, layers)

  def head_params(self, mesh: Mesh | None = None, as_stored: bool = False) -> Params:
    """Reads the heads' parameters.

    Raises:
      UserError: as in `heads`; or tensors are missing, or have other shapes.
    """
    # Each tensor is looked up once, so that a shared projection stays one array.
    tensors, stored = {}, {}
    for name, stored_name in self._names.items():
      if stored_name not in tensors:
        tensors[stored_name] = self._tensors[stored_name]
      stored[name] = tensors[stored_name]
    params = _checked_params(self.heads, stored, self.path)
    return put(params, self.heads, self.dtype, mesh, self.kernels)

  @functools.cached_property
  def _tensors(self) -> Tensors:
    return Tensors(self.path, _files(self.path))

  @functools.cached_property
  def _names(self) -> dict[str, str]:
    """Stored name of each parameter."""
    return _stored_names(self._tensors, self._fields, self.path)

  @functools.cached_property
  def _fields(self) -> MedusaFields:
    return read_fields(MedusaFields, self.config, f'{self.path}/config.json')


def save_heads(
  folder: str | os.PathLike[str],
  heads: tuple[Any, Params],
  base_model: str | os.PathLike[str] | None = None,
) -> None:
  """Writes Medusa heads in the published format: config.json and medusa_lm_head.safetensors.

  Args:
    folder: a new one.
    heads: (module, params).
    base_model: name or folder of their model, for config.json; required.

  Raises:
    UserError: the folder exists or cannot be written, the format cannot store such heads, or
      base_model is missing.
  """
  module, params = struct.bound(heads, 'heads')
  if base_model is None:
    raise UserError(
      'config.json of published heads names their model: give base_model, its folder or name'
    )
  is_published_kind = isinstance(module, MedusaHeads) and not (
    module.output_bias or module.rooted or module.markov or module.short
  )
  if not is_published_kind:
    raise UserError(
      'the published format has only residual blocks on a hidden state and projections to all words'
      ' without a bias: keep these heads in a model folder (fastdec.folders.save)'
    )
  folder = place(folder)
  if folder.exists():
    raise UserError(f'{folder} is there already: give a new folder for the heads')
  config = {
    'medusa_num_heads': module.depth,
    'medusa_num_layers': module.layers,
    'base_model_name_or_path': str(base_model),
    'version': '2',
  }
  tensors = {}
  for name, value in flatten_dict(params, sep='/').items():
    tensors[_published_name(name, module.layers)] = value
  with whole_folder(folder) as partial:
    write(partial / FILE, tensors)
    write_json(partial / 'config.json', config)


def _published_name(name: str, layers: int) -> str:
  """Returns the published name: head_2/block_0/kernel -> 2.0.linear.weight."""
  head, layer, part = name.replace('kernel', 'weight').split('/')
  head = head.removeprefix('head_')
  if layer == 'projection':
    return f'{head}.{layers}.{part}'
  return f'{head}.{layer.removeprefix("block_")}.linear.{part}'


def _files(folder: pathlib.Path) -> dict[str, str]:
  """Returns the file that holds each tensor."""
  if (folder / FILE).is_file():
    return files_in(folder, FILE)
  pickles = sorted(folder.glob('*.pt'))
  if (folder / INDEX).is_file() or (folder / SINGLE).is_file() or not pickles:
    return find_files(folder)
  raise pickle_error(pickles[0], 'heads', file=FILE)


def _stored_names(
  tensors: Mapping[str, Any], fields: MedusaFields, folder: pathlib.Path
) -> dict[str, str]:
  """Returns the stored name of each parameter."""
  prefixed = [name for name in tensors if PREFIX.match(name)]  # all others are then the model's
  names, unknown = {}, []
  for stored_name in prefixed or tensors:
    # Translate its name by the first pattern that fits.
    theirs = PREFIX.sub('', stored_name)
    for pattern, replacement in RENAMES.items():
      match = re.fullmatch(pattern, theirs)
      if match:
        names[match.expand(replacement).replace('weight', 'kernel')] = stored_name
        break
    else:
      unknown.append(stored_name)
  if unknown or not _count(names, 'block'):
    problem = 'holds no residual blocks'
    if unknown:
      problem = f'has unknown {list_names(unknown)}'
    raise UserError(
      f'{folder} {problem}: Medusa heads are called 0.0.linear.weight, 0.1.weight, ... or as in'
      ' vLLM'
    )
  shared = names.pop(SHARED, None)
  if shared is None and fields.original_lm_head:
    shared = names.get('head_0/projection/kernel')
  is_truncated = (fields.truncated_vocab_size or 0) < (fields.vocab_size or 0)
  if names.pop(TOKEN_MAP, None) and is_truncated:
    raise UserError(
      f'{folder} has heads for a part of the vocabulary, which is not supported: give heads for all'
      ' words'
    )
  if shared is None:
    return names
  # Heads with projections of their own keep them.
  for i in range(_count(names, 'head')):
    names.setdefault(f'head_{i}/projection/kernel', shared)
  return names


def _count(names: Mapping[str, str], part: str) -> int:
  """Counts the parts, 'head' or 'block', by the highest index in the names."""
  indices = [int(index) for name in names for index in re.findall(rf'{part}_(\d+)', name)]
  return max(indices, default=-1) + 1


def _check_counts(fields: MedusaFields, depth: int, layers: int, folder: pathlib.Path) -> None:
  """Raises UserError if config.json promises more heads or blocks than the tensors hold."""
  heads, blocks = fields.medusa_num_heads, fields.medusa_num_layers
  if fields.model_type == 'medusa':
    heads, blocks = fields.num_heads, fields.num_hidden_layers
  for promised, stored, name in ((heads, depth, 'heads'), (blocks, layers, 'blocks a head')):
    if promised is not None and promised > stored:
      raise UserError(
        f'{folder} has {stored} {name}, and its config.json says {promised}: copy it'
        ' again, or fix one of them'
      )


def _checked_params(heads: MedusaHeads, stored: Mapping[str, Any], folder: pathlib.Path) -> Params:
  """Returns the parameters, checked, unread, with zeros for biases that are not stored."""
  expected: dict[str, Any] = flatten_dict(jax.eval_shape(heads.init, jax.random.key(0)), sep='/')
  missing = [name for name in expected if name not in stored and not name.endswith('/bias')]
  if missing:
    raise UserError(
      f'{folder} lacks {list_names(missing)} of its {heads.depth} heads: copy it again'
    )
  dtype = next(iter(stored.values())).dtype
  params = {}
  for name, want in expected.items():
    params[name] = stored[name] if name in stored else np.zeros(want.shape, dtype)
    if params[name].shape != want.shape:
      raise UserError(
        f'{folder} holds {list(params[name].shape)} for {name}, but its first tensor means'
        f' {list(want.shape)}: copy it again'
      )
  return unflatten_dict(params, sep='/')
