"""Folders of draft networks (`heads.eagle`, `heads.block`), our own and published ones.

  config.json          the network, and its layers
  model.safetensors    parameters, named by their path: network/tower/layer_0/q/kernel
                       (perhaps `warmth`)

A training run has such a folder, `draft`, beside its `model`. The contents of config.json and the
names of tensors tell the kind of a published draft (`reader_of`), never the name of its folder.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from jax.sharding import Mesh
from jaxtyping import DTypeLike

from fastdec import struct
from fastdec.errors import UserError
from fastdec.fields import shown
from fastdec.files import place, read_json, whole_folder
from fastdec.folders.folder import content_of
from fastdec.folders.load import found, kept_in
from fastdec.folders.native import check_ids, check_sizes, described, family_of, fitted
from fastdec.folders.stored import put, stored_in, write
from fastdec.heads.block import BlockNetwork
from fastdec.heads.draft import DraftNetwork
from fastdec.heads.eagle import EagleNetwork
from fastdec.hub import dflash, eagle, medusa, mtp
from fastdec.hub.draft_parts import architectures_of
from fastdec.hub.huggingface import DTYPES
from fastdec.hub.quantized import tensors_of
from fastdec.hub.tensors import INDEX, MTP, SINGLE, check_kind, conversion, files_of, fit
from fastdec.models.api import Params
from fastdec.models.image_transformer import ImageTransformerConfig
from fastdec.models.lm import LMConfig
from fastdec.models.stacks import StackConfig
from fastdec.models.t5 import T5Config
from fastdec.models.taps import Taps
from fastdec.models.transformer import TransformerConfig

THESE_ARE_HEADS = (
  'these are prediction heads: load them with fd.load_heads, or give the folder as --heads'
)
PathLike = str | os.PathLike[str]
Reader = Callable[[Mapping[str, Any], Mapping[str, Any], str, Taps | None], tuple[Any, Params]]
DRAFTS = {'eagle': EagleNetwork, 'block': BlockNetwork}
LAYERS = {
  'lm': LMConfig, 'stack': StackConfig, 'transformer': TransformerConfig,
  'image_transformer': ImageTransformerConfig, 't5': T5Config,
}  # fmt: skip
WIDE = (  # sizes of at most the file's number of weights; not those of the target's vocabulary
  'd_model', 'd_ff', 'd_kv', 'd_target', 'd_embed', 'd_source', 'heads', 'key_heads', 'head_width',
  'words', 'markov', 'k', 'rows',
)  # fmt: skip
MOST_WORDS = 2**31 - 1
OF_SPECULATORS = {
  'eagle3': eagle.speculators_eagle3,
  'dflash': dflash.speculators_block,
  'dspark': dflash.speculators_block,
}
REFUSED = {  # by their architectures
  'PEagleDraftModel': 'P-EAGLE',
  'DominoDraftModel': 'Domino',
  'Gemma4DSparkModel': 'DSpark with layers of Gemma',
  'Gemma4Eagle3Model': 'EAGLE-3 with layers of Gemma',
}


def load_draft(
  path: PathLike,
  dtype: DTypeLike | None = None,
  mesh: Mesh | None = None,
  taps: Sequence[int] | None = None,
) -> tuple[DraftNetwork, Params]:
  """Reads a draft: an `EagleNetwork` for `fd.Eagle` or a `BlockNetwork` for `fd.BlockDraft`.

  Args:
    path: our folder, or the workdir of a run that trained one; or as published: EAGLE-1, -2 and -3
      (SafeAILab, SpecForge, speculators, DeepSpec), DFlash, DSpark; or the folder of a Qwen model
      with `mtp.*` tensors.
    dtype: computes and keeps the parameters in this type (None: the type that config.json says).
      'int8', 'int8w': as None, with the kernels of products in int8.
    mesh: devices over which it lies, as in `load` (None: one device).
    taps: the target's layers whose states it reads, k being the residual stream after k layers.
      None: as its folder says. Official drafts of EAGLE-3 say nothing, and follow a rule once the
      target is known.

  Returns:
    The network, and its parameters.

  Raises:
    UserError: a folder that does not exist, is not whole, or is of an unknown or unsupported kind;
      taps of another number than it reads.
  """
  folder = _found(found(path))
  if taps is not None and not (
    isinstance(taps, Sequence | np.ndarray)
    and all(isinstance(tap, int | np.integer) and tap >= 0 for tap in taps)
  ):
    raise UserError(
      f'taps={taps!r} is not possible: give the numbers of layers, such as (2, 8, 14)'
    )
  name, kernels = kept_in(dtype)
  if not (folder / 'config.json').is_file():
    check_kind(folder)
  config = read_json(folder / 'config.json')
  read = _own if 'format' in config else _published
  try:
    module, stored = read(folder, config, name, None if taps is None else tuple(taps))
  except UserError as error:
    told = str(error)
    raise UserError(told if str(folder) in told else f'{folder}: {told}') from None
  return module, put(stored, module, module.layers.dtype, mesh, kernels)


def is_draft(path: PathLike) -> bool:
  """True if `load_draft` reads a folder: of a draft network, and not of a model or heads."""
  folder = found(path)
  if (folder / 'draft' / 'config.json').is_file():
    return True
  if not (folder / 'config.json').is_file():
    return False
  config = read_json(folder / 'config.json')
  if 'format' in config or medusa.holds_heads(folder, config):
    return 'draft' in config
  if 'speculators_model_type' in config or REFUSED.keys() & set(architectures_of(config)):
    return True
  try:
    reader_of(config, list(_files(folder)))
  except UserError:
    return False
  return True


def save_draft(folder: PathLike, draft: tuple[DraftNetwork, Params]) -> None:
  """Writes a draft network; it may replace another.

  Raises:
    UserError: something else than a draft network is given or is there, or it cannot be written;
      existing files stay.
  """
  folder = place(folder)
  module, params = struct.bound(draft, 'draft')
  kind = next((name for name, cls in DRAFTS.items() if type(module) is cls), None)
  if kind is None:
    raise UserError(
      f'{type(module).__name__} is no draft network: give an EagleNetwork or a BlockNetwork'
    )
  of_layers = next((name for name, cls in LAYERS.items() if type(module.layers) is cls), None)
  if of_layers is None:
    known = ', '.join(cls.__name__ for cls in LAYERS.values())
    raise UserError(
      f"a draft with layers of {type(module.layers).__name__} has no file's form: known are {known}"
    )
  if not is_replaceable(folder):
    raise UserError(
      f'{folder} is there already, and holds no draft of ours alone: give a new folder'
    )
  described = {'type': kind, **dataclasses.asdict(module)}
  described['layers'] = {'type': of_layers, **described['layers']}
  with whole_folder(folder) as partial:
    write(partial / SINGLE, params)
    (partial / 'config.json').write_text(
      json.dumps({'format': 'fastdec', 'draft': described}, indent=2) + '\n'
    )


def is_replaceable(folder: pathlib.Path) -> bool:
  """True if `save_draft` would replace nothing but a draft."""
  if not folder.exists():
    return True
  if not folder.is_dir() or not {file.name for file in folder.iterdir()} <= {'config.json', SINGLE}:
    return False
  if not (folder / 'config.json').is_file():
    return not any(folder.iterdir())
  config = read_json(folder / 'config.json')
  return config.get('format') == 'fastdec' and 'draft' in config


def draft_content(path: PathLike) -> str:
  """Returns a hash of the files that a draft's folder or workdir decodes with."""
  folder = _found(found(path))
  return content_of(sorted([folder / 'config.json', folder / INDEX, *folder.glob('*.safetensors')]))


def reader_of(config: Mapping[str, Any], names: Sequence[str]) -> Reader:
  """Returns the reader of a published draft, by its config.json and the names of its tensors.

  Raises:
    UserError: a kind that is unknown or not supported.
  """
  theirs = config.get('speculators_model_type')
  if theirs is not None:
    if not isinstance(theirs, str) or theirs not in OF_SPECULATORS:
      raise UserError(
        f'speculators_model_type={shown(theirs)} is not supported: known are'
        f' {", ".join(OF_SPECULATORS)}'
      )
    return OF_SPECULATORS[theirs]
  architectures = architectures_of(config)
  for name in architectures:
    if name in REFUSED:
      raise UserError(
        f'this is {REFUSED[name]}, which is not supported: give a draft of EAGLE, DFlash or DSpark'
      )
  if any(name.startswith(MTP) for name in names):
    return mtp.mtp
  if 'dflash_config' in config:
    return dflash.dflash
  if 'Qwen3Eagle3Model' in architectures:
    return eagle.deepspec_eagle3
  if 'Qwen3DSparkModel' in architectures or (
    'target_layer_ids' in config and 'markov_rank' in config
  ):
    return dflash.deepspec
  if any(name.startswith('midlayer.') for name in names):
    return eagle.eagle3
  if 'fc.weight' in names and 'hidden_norm.weight' not in names:
    return eagle.eagle1
  raise UserError(
    'this is no draft that is known: those of EAGLE have fc.weight among their tensors, those of'
    ' DFlash dflash_config in their config.json, those of DSpark markov_rank, and models with a'
    ' head of their own mtp.* tensors'
  )


def _found(path: pathlib.Path) -> pathlib.Path:
  """Returns the draft's folder: the path itself, or `draft` in a run's workdir.

  Of a run without a draft it is `model`, which is refused by what it holds."""
  if not path.is_dir():
    raise UserError(
      f'{path} is not a folder: give the folder of a draft, or the workdir of a run'
      ' that trained one'
    )
  within = (path / name for name in ('draft', 'model'))
  return next((folder for folder in within if (folder / 'config.json').is_file()), path)


def _own(
  folder: pathlib.Path, config: Mapping[str, Any], dtype: str | None, taps: Taps | None
) -> tuple[DraftNetwork, Params]:
  """Returns a draft that `save_draft` wrote; its parameters are unread."""
  said = config.get('draft')
  if isinstance(config.get('heads'), dict):
    raise UserError(THESE_ARE_HEADS)
  if isinstance(config.get('model'), dict):
    raise UserError('this is a model: load it with fd.load, or give the folder as --draft')
  if config.get('format') != 'fastdec' or not isinstance(said, dict):
    raise UserError(
      'its config.json is not of a fastdec draft: give the folder of one, or train it'
    )
  inner: Any = said.get('layers')
  layers_class = family_of(LAYERS, inner, folder)
  layers = described(layers_class, inner if dtype is None else {**inner, 'dtype': dtype}, folder)
  module = described(family_of(DRAFTS, said, folder), {**said, 'layers': layers}, folder)
  if taps is not None:
    if len(taps) != len(module.taps):
      raise UserError(
        f'taps={taps} are given, and this draft reads {len(module.taps)} layers: give as many'
      )
    module = dataclasses.replace(module, taps=taps)
  file = folder / SINGLE
  if not file.is_file():
    raise UserError(f'{file} is missing: the folder is not whole, train or copy it again')
  stored = stored_in(file)
  for sized in (layers, module):
    check_sizes(sized, stored, file, WIDE)
  if module.vocab_size > MOST_WORDS:
    raise UserError(f'vocab_size={module.vocab_size} is not possible: give at most {MOST_WORDS}')
  check_ids(stored, module.vocab_size, file)
  return module, fitted(stored, _expected(module, stored), file)


def _expected(module: DraftNetwork, stored: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a draft's parameters by their paths, with the optional ones that the file holds."""
  expected: dict[str, Any] = flatten_dict(jax.eval_shape(module.init, jax.random.key(0)), sep='/')
  may_have = {
    'embedding': (module.vocab_size, module.d_embed or module.d_target),
    'output': (module.words or module.vocab_size, module.layers.d_model),
    'warmth': stored['warmth'].shape[:1] if 'warmth' in stored else (),
  }
  for name, shape in may_have.items():
    if name in stored:
      expected[name] = jax.ShapeDtypeStruct(shape, 'float32')
  return expected


def _published(
  folder: pathlib.Path, config: Mapping[str, Any], dtype: str | None, taps: Taps | None
) -> tuple[DraftNetwork, Params]:
  """Returns a published draft; its parameters are unread."""
  if medusa.holds_heads(folder, config):
    raise UserError(THESE_ARE_HEADS)
  files = _files(folder)
  reader = reader_of(config, list(files))
  if reader is mtp.mtp:
    files = {name: file for name, file in files.items() if name.startswith(MTP)}
  said = config.get('dtype') or config.get('torch_dtype')
  tensors = tensors_of(folder, config, files)
  module, stored = reader(config, tensors, dtype or (said if said in DTYPES else 'float32'), taps)
  tensors.check()
  fit(stored, jax.eval_shape(module.init, jax.random.key(0)))
  return module, stored


def _files(folder: pathlib.Path) -> dict[str, str]:
  """Returns the file that holds each tensor."""
  pickled = sorted(folder.glob('*.bin'))
  if pickled and not any((folder / name).is_file() for name in (SINGLE, INDEX)):
    command = conversion(pickled[0], folder / SINGLE)
    raise UserError(
      f'{folder} has its weights only as pickle ({pickled[0].name}), which is refused: convert by'
      f' {command}'
    )
  return files_of(folder)
