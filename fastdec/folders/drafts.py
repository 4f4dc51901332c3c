"""Folders of draft networks (`heads.eagle`, `heads.block`) in our own format.

  config.json          the network, and its layers
  model.safetensors    parameters, named by their path: network/tower/layer_0/q/kernel
                       (perhaps `warmth`)

A training run has such a folder, `draft`, next to its `model`. Published drafts are read by
`hub.drafts`.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from jax.sharding import Mesh
from jaxtyping import DTypeLike

from fastdec import struct
from fastdec.errors import UserError
from fastdec.files import place, read_json, whole_folder, write_json
from fastdec.folders.folder import PathLike, find_folder, hash_content, split_dtype
from fastdec.folders.native import (
  check_ids,
  check_sizes,
  describe_part,
  family_of,
  read_settings,
  with_shapes,
)
from fastdec.folders.stored import put, stored_in, write
from fastdec.heads.block import BlockNetwork
from fastdec.heads.draft import DraftNetwork
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.parallel import ParallelNetwork
from fastdec.models.api import Params
from fastdec.models.image_transformer import ImageTransformerConfig
from fastdec.models.lm import LMConfig
from fastdec.models.stacks import StackConfig
from fastdec.models.t5 import T5Config
from fastdec.models.taps import Taps
from fastdec.models.transformer import TransformerConfig

FILE = 'model.safetensors'
THESE_ARE_HEADS = (
  'these are prediction heads: load them with fd.load_heads, or give the folder as --heads'
)
DRAFTS = {'eagle': EagleNetwork, 'block': BlockNetwork, 'parallel': ParallelNetwork}
LAYERS = {
  'lm': LMConfig, 'stack': StackConfig, 'transformer': TransformerConfig,
  'image_transformer': ImageTransformerConfig, 't5': T5Config,
}  # fmt: skip
WIDE = (  # sizes that the number of weights bounds; not the target's vocabulary, which is elsewhere
  'd_model', 'd_ff', 'd_kv', 'd_target', 'd_embed', 'd_source', 'heads', 'key_heads', 'head_width',
  'words', 'markov', 'k', 'rows', 'gru', 'conv', 'candidates', 'width',
)  # fmt: skip
MOST_WORDS = 2**31 - 1


def load_draft(
  path: PathLike,
  dtype: DTypeLike | None = None,
  mesh: Mesh | None = None,
  taps: Sequence[int] | None = None,
) -> tuple[DraftNetwork, Params]:
  """Reads a draft that `save_draft` wrote; see `fd.load_draft`.

  Raises:
    UserError: a folder that does not exist, is not whole, or holds something else; taps of another
      number than the draft reads.
  """
  folder = draft_folder(path)
  tap_layers = check_taps(taps)
  compute_dtype, kernel_dtype = split_dtype(dtype)
  config = read_json(folder / 'config.json')
  try:
    module, stored = _unread(folder, config, compute_dtype, tap_layers)
  except UserError as error:
    message = str(error)
    raise UserError(message if str(folder) in message else f'{folder}: {message}') from None
  return module, put(stored, module, module.layers.dtype, mesh, kernel_dtype)


def check_taps(taps: Sequence[int] | None) -> Taps | None:
  """Returns the layers whose states a draft reads, as a tuple; None stays None.

  Raises:
    UserError: taps that are not numbers of layers.
  """
  if taps is None:
    return None
  are_layers = isinstance(taps, Sequence | np.ndarray) and all(
    isinstance(tap, int | np.integer) and tap >= 0 for tap in taps
  )
  if not are_layers:
    raise UserError(
      f'taps={taps!r} is not possible: give the numbers of layers, such as (2, 8, 14)'
    )
  return tuple(taps)


def save_draft(folder: PathLike, draft: tuple[DraftNetwork, Params]) -> None:
  """Writes a draft network; it may replace another.

  Raises:
    UserError: it is no draft network, the folder holds something else, or it cannot be written.
      Existing files stay.
  """
  folder = place(folder)
  module, params = struct.bound(draft, 'draft')
  settings = describe_part(DRAFTS, module)
  settings['layers'] = describe_part(LAYERS, module.layers)
  if not is_replaceable(folder):
    raise UserError(
      f'{folder} is there already, and holds more than a draft of ours: give a new folder'
    )
  config = {'format': 'fastdec', 'draft': settings}
  with whole_folder(folder) as partial:
    write(partial / FILE, params)
    write_json(partial / 'config.json', config)


def is_replaceable(folder: pathlib.Path) -> bool:
  """True if `save_draft` would replace nothing but a draft."""
  if not folder.exists():
    return True
  if not folder.is_dir() or not {file.name for file in folder.iterdir()} <= {'config.json', FILE}:
    return False
  if not (folder / 'config.json').is_file():
    return not any(folder.iterdir())
  config = read_json(folder / 'config.json')
  return config.get('format') == 'fastdec' and 'draft' in config


def draft_content(path: PathLike) -> str:
  """Returns a hash of the files that a draft's folder or workdir decodes with."""
  return hash_content(draft_folder(path))


def draft_folder(path: PathLike) -> pathlib.Path:
  """Returns the draft's folder: the path itself, or `draft` in a run's workdir.

  For a run without a draft it is `model`, whose content is then refused.

  Raises:
    UserError: the folder does not exist.
  """
  folder = find_folder(path)
  if folder.is_file():
    raise UserError(f'{folder} is a file: give the folder that it is in, {folder.parent}')
  if not folder.is_dir():
    raise UserError(
      f'{folder} is not a folder: give the folder of a draft, or the workdir of a run'
      ' that trained one'
    )
  for name in ('draft', 'model'):
    if (folder / name / 'config.json').is_file():
      return folder / name
  return folder


def _unread(
  folder: pathlib.Path, config: Mapping[str, Any], dtype: str | None, taps: Taps | None
) -> tuple[DraftNetwork, Params]:
  """Returns a draft that `save_draft` wrote; its parameters are unread."""
  if isinstance(config.get('heads'), dict):
    raise UserError(THESE_ARE_HEADS)
  if isinstance(config.get('model'), dict):
    raise UserError('this is a model: load it with fd.load, or give the folder as --draft')
  settings = config.get('draft')
  if config.get('format') != 'fastdec' or not isinstance(settings, dict):
    raise UserError(
      'its config.json is not of a fastdec draft: give the folder of one, or train it'
    )
  layer_settings: Any = settings.get('layers')
  layers_class = family_of(LAYERS, layer_settings, folder)
  if dtype is not None:
    layer_settings = {**layer_settings, 'dtype': dtype}
  layers = read_settings(layers_class, layer_settings, folder)
  module = read_settings(
    family_of(DRAFTS, settings, folder), {**settings, 'layers': layers}, folder
  )
  if taps is not None:
    if len(taps) != len(module.taps):
      raise UserError(
        f'taps={taps} are given, and this draft reads {len(module.taps)} layers: give as many'
      )
    module = dataclasses.replace(module, taps=taps)
  file = folder / FILE
  if not file.is_file():
    raise UserError(f'{file} is missing: the folder is not whole, train or copy it again')
  stored = stored_in(file)
  correlator = getattr(module, 'correlator', None)
  for part in (layers, module) if correlator is None else (layers, module, correlator):
    check_sizes(part, stored, file, WIDE)
  if module.vocab_size > MOST_WORDS:
    raise UserError(f'vocab_size={module.vocab_size} is not possible: give at most {MOST_WORDS}')
  check_ids(stored, module.vocab_size, file)
  return module, with_shapes(stored, _expected(module, stored), file)


def _expected(module: DraftNetwork, stored: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a draft's parameters by their paths, with the optional ones that the file holds."""
  expected: dict[str, Any] = flatten_dict(jax.eval_shape(module.init, jax.random.key(0)), sep='/')
  optional = {
    'embedding': (module.vocab_size, module.d_embed or module.d_target),
    'output': (module.words or module.vocab_size, module.layers.d_model),
    'warmth': stored['warmth'].shape[:1] if 'warmth' in stored else (),
  }
  for name, shape in optional.items():
    if name in stored:
      expected[name] = jax.ShapeDtypeStruct(shape, 'float32')
  return expected
