"""Published Medusa heads: safetensors under several names, mostly with a config.json.

  {i}.{j}.linear.weight|bias, {i}.{last}.weight   heads alone (medusa_lm_head.safetensors), TGI
  medusa_head.{i}. ...                            the same beside a whole model's tensors (Medusa-2)
  blocks.{i}.layers.{j}.weight|bias, lm_heads.{i}.weight, or one lm_head.weight for all   vLLM

i is the head, j the residual block. Heads without projections of their own share the model's;
blocks without biases get zeros. The tensors tell the number of heads: the published Vicuna heads
are 5, and config.json says 2.
"""

import dataclasses
import functools
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh

from fastdec.errors import UserError
from fastdec.fields import read
from fastdec.files import place, whole_folder
from fastdec.folders.folder import INDEX
from fastdec.folders.stored import put, write
from fastdec.heads.medusa import MedusaHeads
from fastdec.hub.huggingface import HuggingFaceFolder
from fastdec.hub.tensors import SINGLE, Tensors, conversion, files_in, files_of, listed
from fastdec.models.api import Params

FILE = 'medusa_lm_head.safetensors'
PREFIX = re.compile(r'^medusa_heads?\.')
# vLLM: a projection for all heads; the words of a truncated one
SHARED, TOKEN_MAP = 'lm_head/kernel', 'token_map'
RENAMES = tuple(
  (re.compile(theirs), ours)
  for theirs, ours in (
    (r'(\d+)\.(\d+)\.linear\.(weight|bias)', r'head_\1/block_\2/\3'),
    (r'(\d+)\.\d+\.(weight)', r'head_\1/projection/\2'),
    (r'blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)', r'head_\1/block_\2/\3'),
    (r'lm_heads\.(\d+)\.(weight)', r'head_\1/projection/\2'),
    (r'lm_head\.(weight)', r'lm_head/\1'),
    (TOKEN_MAP, TOKEN_MAP),
  )
)


@dataclasses.dataclass(frozen=True)
class Said:
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
  """True if a folder holds published heads, alone or with their model; config may be {}."""
  if any(folder.glob('medusa_lm_head.*')):
    return True
  return 'format' not in config and (
    'medusa_num_heads' in config or config.get('model_type') == 'medusa'
  )


@dataclasses.dataclass(frozen=True, eq=False)
class MedusaFolder(HuggingFaceFolder):
  """Published heads: alone, or with the tensors of the model that they are for."""

  @functools.cached_property
  def model(self) -> Any:
    if self.config.get('model_type') in (None, 'medusa'):
      raise UserError(
        f'{self.path} holds prediction heads alone: give the folder of the model that they are for'
      )
    return super().model

  @property
  def has_heads(self) -> bool:
    return True

  @functools.cached_property
  def heads(self) -> MedusaHeads:
    """The heads.

    Raises:
      UserError: heads only as pickle, unknown tensors, fewer heads than config.json says, a
        truncated vocabulary.
    """
    names, tensors = self._names, self._tensors
    depth, layers = (_count(names, of) for of in ('head', 'block'))
    _check_counts(self._said, depth, layers, self.path)
    if depth * layers > len(names):
      raise UserError(
        f'{self.path} has {len(names)} tensors for {depth} heads of {layers} blocks: copy it again'
      )
    projections = [name for ours, name in names.items() if '/projection/' in ours]
    vocab_size = tensors[projections[0]].shape[0] if projections else None
    return MedusaHeads(depth, tensors[next(iter(names.values()))].shape[-1], vocab_size, layers)

  def head_params(self, mesh: Mesh | None = None, as_stored: bool = False) -> Params:
    """Reads the heads' parameters.

    Raises:
      UserError: as `heads`; tensors that are missing, or of other shapes.
    """
    # a shared projection stays one array
    stored = {name: self._tensors[name] for name in set(self._names.values())}
    found = {ours: stored[name] for ours, name in self._names.items()}
    return put(_fitted(self.heads, found, self.path), self.heads, self.dtype, mesh, self.kernels)

  @functools.cached_property
  def _tensors(self) -> Tensors:
    return Tensors(self.path, _files(self.path))

  @functools.cached_property
  def _names(self) -> dict[str, str]:
    """Stored name of each parameter."""
    return _our_names(self._tensors, self._said, self.path)

  @functools.cached_property
  def _said(self) -> Said:
    return read(Said, self.config, f'{self.path}/config.json', ': ', ignores=True)


def save_heads(folder: str | os.PathLike[str], heads: tuple[Any, Params], base_model: str) -> None:
  """Writes Medusa heads in the published format: config.json and medusa_lm_head.safetensors.

  Args:
    folder: a new one.
    heads: (module, params).
    base_model: name or folder of their model, for config.json.

  Raises:
    UserError: the folder exists or cannot be written; heads of a kind that the format lacks.
  """
  module, params = heads
  if (
    not isinstance(module, MedusaHeads)
    or module.output_bias
    or module.rooted
    or module.markov
    or module.short
  ):
    raise UserError(
      'published heads are residual blocks on a hidden state and projections to all words without a'
      ' bias, and these are others: keep them in a model folder (fastdec.folders.save)'
    )
  folder = place(folder)
  if folder.exists():
    raise UserError(f'{folder} is there already: give a new folder for the heads')
  config = {
    'medusa_num_heads': module.depth,
    'medusa_num_layers': module.layers,
    'base_model_name_or_path': base_model,
    'version': '2',
  }
  tensors: dict[str, Any] = flatten_dict(params, sep='/')
  with whole_folder(folder) as partial:
    write(
      partial / FILE, {_their_name(name, module.layers): value for name, value in tensors.items()}
    )
    (partial / 'config.json').write_text(json.dumps(config, indent=2) + '\n')


def _their_name(ours: str, layers: int) -> str:
  """Returns the published name: head_2/block_0/kernel -> 2.0.linear.weight."""
  head, layer, part = ours.replace('kernel', 'weight').split('/')
  head, block = head.removeprefix('head_'), layer.removeprefix('block_')
  return f'{head}.{layers}.{part}' if layer == 'projection' else f'{head}.{block}.linear.{part}'


def _files(folder: pathlib.Path) -> dict[str, str]:
  """Returns the file that holds each tensor."""
  if (folder / FILE).is_file():
    return files_in(folder, FILE)
  pickled = sorted(folder.glob('*.pt'))
  if (folder / INDEX).is_file() or (folder / SINGLE).is_file() or not pickled:
    return files_of(folder)
  command = conversion(pickled[0], folder / FILE)
  raise UserError(
    f'{folder} has its heads only as pickle ({pickled[0].name}), which is refused:'
    f' convert by {command}'
  )


def _our_names(theirs: Mapping[str, Any], said: Said, folder: pathlib.Path) -> dict[str, str]:
  """Returns the stored name of each parameter."""
  prefixed = [name for name in theirs if PREFIX.match(name)]  # then all others are the model's
  names, unknown = {}, []
  for name in prefixed or theirs:
    matches = ((pattern.fullmatch(PREFIX.sub('', name)), ours) for pattern, ours in RENAMES)
    found = [match.expand(ours) for match, ours in matches if match]
    if found:
      names[found[0].replace('weight', 'kernel')] = name
    else:
      unknown.append(name)
  if unknown or not _count(names, 'block'):
    has = f'has unknown {listed(unknown)}' if unknown else 'holds no residual blocks'
    raise UserError(
      f'{folder} {has}: Medusa heads are called 0.0.linear.weight, 0.1.weight, ... or as in vLLM'
    )
  shared = names.pop(
    SHARED, names.get('head_0/projection/kernel') if said.original_lm_head else None
  )
  if names.pop(TOKEN_MAP, None) and (said.truncated_vocab_size or 0) < (said.vocab_size or 0):
    raise UserError(
      f'{folder} has heads for a part of the vocabulary, which is not supported: give whole ones'
    )
  if shared is None:
    return names
  return {f'head_{i}/projection/kernel': shared for i in range(_count(names, 'head'))} | names


def _count(names: Mapping[str, str], of: str) -> int:
  """Counts the heads, or the blocks in each."""
  return max(
    (int(index) + 1 for name in names for index in re.findall(rf'{of}_(\d+)', name)), default=0
  )


def _check_counts(said: Said, depth: int, layers: int, folder: pathlib.Path) -> None:
  """Raises UserError if config.json promises more heads or blocks than the tensors hold."""
  heads, blocks = said.medusa_num_heads, said.medusa_num_layers
  if said.model_type == 'medusa':
    heads, blocks = said.num_heads, said.num_hidden_layers
  for promised, found, of in ((heads, depth, 'heads'), (blocks, layers, 'blocks a head')):
    if promised is not None and promised > found:
      raise UserError(
        f'{folder} has {found} {of}, and its config.json says {promised}: copy it'
        ' again, or mend either'
      )


def _fitted(heads: MedusaHeads, found: Mapping[str, Any], folder: pathlib.Path) -> Params:
  """Returns the parameters, checked, unread, with zeros for biases that are not stored."""
  expected: dict[str, Any] = flatten_dict(jax.eval_shape(heads.init, jax.random.key(0)), sep='/')
  if missing := [name for name in expected if name not in found and not name.endswith('/bias')]:
    raise UserError(f'{folder} lacks {listed(missing)} of its {heads.depth} heads: copy it again')
  dtype = next(iter(found.values())).dtype
  params = {}
  for name, want in expected.items():
    params[name] = found[name] if name in found else np.zeros(want.shape, dtype)
    if params[name].shape != want.shape:
      have = list(params[name].shape)
      raise UserError(
        f'{folder} holds {have} for {name}, and its first tensor means'
        f' {list(want.shape)}: copy it again'
      )
  return unflatten_dict(params, sep='/')
