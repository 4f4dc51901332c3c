"""Published draft networks: EAGLE, DFlash, DSpark, Domino and MTP, as several projects write them.

config.json and the names of tensors decide the kind (`find_reader`), never the name of
the folder.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh
from jaxtyping import DTypeLike

from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.folders.drafts import THESE_ARE_HEADS, check_taps
from fastdec.folders.folder import DTYPES, INDEX, split_dtype
from fastdec.folders.stored import put
from fastdec.heads.draft import DraftNetwork
from fastdec.hub import dflash, eagle, medusa, mtp
from fastdec.hub.draft_parts import read_architectures
from fastdec.hub.quantized import open_tensors
from fastdec.hub.tensors import MTP, fit
from fastdec.hub.weight_files import SINGLE, find_files, pickle_error
from fastdec.models.api import Params
from fastdec.models.taps import Taps

ReadDraft = Callable[[Mapping[str, Any], Mapping[str, Any], str, Taps | None], tuple[Any, Params]]
PICKLE = 'pytorch_model.bin'
OF_SPECULATORS = {
  'eagle3': eagle.speculators_eagle3,
  'peagle': eagle.speculators_eagle3,
  'dflash': dflash.speculators_block,
  'dspark': dflash.speculators_block,
}
REFUSED = {  # by their architectures
  'Gemma4DSparkModel': 'DSpark with layers of Gemma',
  'Gemma4Eagle3Model': 'EAGLE-3 with layers of Gemma',
}


def load_draft(
  folder: pathlib.Path,
  config: Mapping[str, Any],
  dtype: DTypeLike | None = None,
  mesh: Mesh | None = None,
  taps: Sequence[int] | None = None,
) -> tuple[DraftNetwork, Params]:
  """Reads a published draft; arguments are those of `fd.load_draft`, and config is config.json's.

  Raises:
    UserError: a folder that is not whole, or is of an unknown or unsupported kind.
  """
  tap_layers = check_taps(taps)
  compute_dtype, kernel_dtype = split_dtype(dtype)
  try:
    module, stored = _unread(folder, config, compute_dtype, tap_layers)
  except UserError as error:
    message = str(error)
    raise UserError(message if str(folder) in message else f'{folder}: {message}') from None
  return module, put(stored, module, module.layers.dtype, mesh, kernel_dtype)


def is_draft(folder: pathlib.Path, config: Mapping[str, Any]) -> bool:
  """True if a folder holds a draft network (not heads), even one that `load_draft` refuses.

  Raises:
    UserError: the weights are only a pickle, which is not opened.
  """
  if medusa.holds_heads(folder, config):
    return False
  if 'speculators_model_type' in config or REFUSED.keys() & set(read_architectures(config)):
    return True
  # Drafts are small, and so in one file. A model in several has another remedy.
  if (folder / PICKLE).is_file():
    _refuse_pickles(folder)
  try:
    find_reader(config, list(find_files(folder)))
  except UserError:
    return False
  return True


def find_reader(config: Mapping[str, Any], names: Sequence[str]) -> ReadDraft:
  """Returns the reader of a published draft, by its config.json and the names of its tensors.

  Raises:
    UserError: the kind is unknown or not supported.
  """
  model_type = config.get('speculators_model_type')
  if model_type is not None:
    if not isinstance(model_type, str) or model_type not in OF_SPECULATORS:
      raise UserError(
        f'speculators_model_type={quote(model_type)} is not supported: known are'
        f' {", ".join(OF_SPECULATORS)}'
      )
    return OF_SPECULATORS[model_type]
  architectures = read_architectures(config)
  for name in architectures:
    if name in REFUSED:
      raise UserError(
        f'this is {REFUSED[name]}, which is not supported: give a draft of EAGLE, DFlash or DSpark'
      )
  if any(name.startswith(MTP) for name in names):
    return mtp.mtp
  is_flat = {'LlamaEagle3DraftModel', 'PEagleDraftModel'} & {*architectures}
  if is_flat or 'mask_hidden' in names:
    return eagle.flat_eagle3
  if 'dflash_config' in config:
    return dflash.dflash
  if 'Qwen3Eagle3Model' in architectures:
    return eagle.deepspec_eagle3
  has_their_fields = 'target_layer_ids' in config and 'markov_rank' in config
  if 'Qwen3DSparkModel' in architectures or has_their_fields:
    return dflash.deepspec
  if any(name.startswith('midlayer.') for name in names):
    return eagle.eagle3
  if 'fc.weight' in names and 'hidden_norm.weight' not in names:
    return eagle.eagle1
  raise UserError(
    'this draft is of an unknown kind: give a draft of EAGLE (with a tensor fc.weight), DFlash'
    ' (with dflash_config in config.json), DSpark (with markov_rank), or a model with mtp.* tensors'
  )


def _unread(
  folder: pathlib.Path, config: Mapping[str, Any], dtype: str | None, taps: Taps | None
) -> tuple[DraftNetwork, Params]:
  """Returns a published draft; its parameters are unread."""
  if medusa.holds_heads(folder, config):
    raise UserError(THESE_ARE_HEADS)
  _refuse_pickles(folder)
  files = find_files(folder)
  reader = find_reader(config, list(files))
  if reader is mtp.mtp:  # the other tensors are the model's
    files = {name: file for name, file in files.items() if name.startswith(MTP)}
  if dtype is None:
    own_dtype = config.get('dtype') or config.get('torch_dtype')
    dtype = str(own_dtype) if own_dtype in DTYPES else 'float32'
  tensors = open_tensors(folder, config, files)
  module, stored = reader(config, tensors, dtype, taps)
  tensors.check()
  fit(stored, jax.eval_shape(module.init, jax.random.key(0)))
  return module, stored


def _refuse_pickles(folder: pathlib.Path) -> None:
  """Raises UserError, with the remedy, for weights only as pickle."""
  pickles = sorted(folder.glob('*.bin'))
  if pickles and not (folder / SINGLE).is_file() and not (folder / INDEX).is_file():
    raise pickle_error(pickles[0], 'weights')
