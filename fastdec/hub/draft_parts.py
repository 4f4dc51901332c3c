"""Common parts of published drafts: layers of Llama or Qwen3, and vocabularies."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from fastdec.errors import UserError
from fastdec.fields import Size, read
from fastdec.hub.llama import layer_settings, said_by
from fastdec.hub.tensors import shaped
from fastdec.models.api import Params
from fastdec.models.lm import LMConfig

# distance of each draft word's id in the target from its own
MAPS = ('d2t', 'draft_id_to_target_id')


@dataclasses.dataclass(frozen=True)
class SaidOfWords:
  """Fields of config.json about the draft's vocabulary."""

  draft_vocab_size: Size | None = None


@dataclasses.dataclass(frozen=True)
class SaidOfLayers:
  """Fields of config.json about windows."""

  layer_types: tuple[str, ...] | None = None
  sliding_window: Size | None = None


def architectures_of(config: Mapping[str, Any]) -> list[str]:
  """Returns the classes that config.json names; none unless they are in a list."""
  given = config.get('architectures')
  return [name for name in given if isinstance(name, str)] if isinstance(given, list) else []


def draft_layers(kind: str, config: Mapping[str, Any], dtype: str, **changes: Any) -> LMConfig:
  """Returns the config of a draft's layers, like those of a model of this model_type.

  Raises:
    UserError: an option that is not supported; a size that is missing, or a value of another kind.
  """
  settings: dict[str, Any] = {
    **layer_settings(kind, said_by(kind, config)),
    'dtype': dtype,
    **changes,
  }
  if kind == 'llama':  # whose own models have no windows
    settings['windows'] = _windows(read_said(SaidOfLayers, config), settings['layers'])
  return LMConfig(**{**settings, 'sinks': False, 'experts': None})


def _windows(said: SaidOfLayers, layers: int) -> tuple[int, ...]:
  """Returns the windows of a draft's layers of Llama."""
  kinds, sizes = said.layer_types, {'full_attention': 0, 'sliding_attention': said.sliding_window}
  if not kinds or not said.sliding_window:
    return ()
  if len(kinds) != layers or not set(kinds) <= set(sizes):
    raise UserError(
      f'layer_types={list(kinds)} of config.json are not supported: they must be one of'
      f' {", ".join(sizes)} for each of {layers} layers'
    )
  return tuple(sizes[kind] or 0 for kind in kinds)


def read_said(cls: type, config: Mapping[str, Any]) -> Any:
  """Reads the fields of a dataclass from config.json."""
  return read(cls, config, 'config.json', ': ', ignores=True)


def norm(tensors: Mapping[str, Any], name: str, size: int) -> Params:
  """Returns the scale of a norm."""
  return {'scale': shaped(tensors, f'{name}.weight', size)}


def dense(
  tensors: Mapping[str, Any], name: str, outputs: int, inputs: int, has_bias: bool = False
) -> Params:
  """Returns a projection."""
  kernel = {'kernel': shaped(tensors, f'{name}.weight', outputs, inputs)}
  return kernel | {'bias': shaped(tensors, f'{name}.bias', outputs)} if has_bias else kernel


def vocabulary(
  tensors: Mapping[str, Any], config: Mapping[str, Any], layers: LMConfig, embeds: bool
) -> tuple[int | None, Params]:
  """Returns the size of the draft vocabulary (None: the target's words), and its parameters.

  Args:
    tensors: by their names.
    config: config.json.
    layers: of the draft.
    embeds: embeddings are required, because the target's have another width.

  Raises:
    UserError: a draft vocabulary without its own projection, or without a map to the target's ids.
  """
  params, words = {}, layers.vocab_size
  drafted = read_said(SaidOfWords, config).draft_vocab_size or words
  if embeds or 'embed_tokens.weight' in tensors:
    params['embedding'] = shaped(tensors, 'embed_tokens.weight', words, layers.d_model)
  if drafted != words or 'lm_head.weight' in tensors:
    params['output'] = shaped(tensors, 'lm_head.weight', drafted, layers.d_model)
  if 't2d' in tensors:
    shaped(tensors, 't2d', words)
  ids = _ids(tensors, drafted, words)
  if ids is None:
    return None, params
  return drafted, params | {'ids': ids}


def _ids(tensors: Mapping[str, Any], drafted: int, words: int) -> np.ndarray | None:
  """Returns the target's ids of the draft's words; None if they are the same."""
  name = next((name for name in MAPS if name in tensors), None)
  if name is None and drafted == words:
    return None
  if name is None:
    raise UserError(
      f'the draft vocabulary of {drafted} of {words} words lacks d2t, the map to the words of the'
      ' target: copy the folder again, or set draft_vocab_size to null if it is none'
    )
  ids = np.arange(drafted) + np.asarray(shaped(tensors, name, drafted)[:]).astype(np.int64)
  if ids.min() < 0 or ids.max() >= words or len(np.unique(ids)) < drafted:
    raise UserError(
      f'{name} maps the {drafted} words of the draft to ids from {ids.min()} to {ids.max()}, and'
      f' they must be different ones from 0 to {words - 1}: each entry is how far the id of the'
      ' target is from the one of the draft'
    )
  return None if np.array_equal(ids, np.arange(words)) else ids.astype(np.int32)
