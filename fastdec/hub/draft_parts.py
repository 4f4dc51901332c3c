"""Common parts of published drafts: layers of Llama or Qwen3, and vocabularies."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from fastdec.errors import UserError
from fastdec.fields import Size
from fastdec.hub.families import read_fields
from fastdec.hub.llama import layer_settings, llama_fields, windows_by_type
from fastdec.hub.tensors import shaped
from fastdec.models.api import Params
from fastdec.models.lm import LMConfig
from fastdec.models.taps import Taps

# Names of the map from draft words to the target's: each entry is how far the target's id is from
# the draft's.
MAPS = ('d2t', 'draft_id_to_target_id')


@dataclasses.dataclass(frozen=True)
class VocabularyFields:
  """Fields of config.json about the draft's vocabulary."""

  draft_vocab_size: Size | None = None


@dataclasses.dataclass(frozen=True)
class WindowFields:
  """Fields of config.json about windows, which no model of Llama has, but a draft may."""

  layer_types: tuple[str, ...] | None = None
  sliding_window: Size | None = None


def architectures_of(config: Mapping[str, Any]) -> list[str]:
  """Returns the classes that config.json names; none unless they are in a list."""
  names = config.get('architectures')
  if not isinstance(names, list):
    return []
  return [name for name in names if isinstance(name, str)]


def check_no_taps(taps: Taps | None) -> None:
  """Raises UserError if taps are set for a draft that reads the last hidden state alone."""
  if taps:
    raise UserError(
      f'taps={taps} are given, and this draft reads the last hidden state alone: leave them out'
    )


def draft_layers(
  model_type: str, config: Mapping[str, Any], dtype: str, **changes: Any
) -> LMConfig:
  """Returns the config of a draft's layers, like those of a model of this model_type.

  Raises:
    UserError: an option that is not supported; a size that is missing, or a value of another kind.
  """
  settings = layer_settings(model_type, llama_fields(model_type, config))
  settings |= {'dtype': dtype, **changes, 'sinks': False, 'experts': None}
  if model_type == 'llama':
    fields = read_fields(WindowFields, config)
    settings['windows'] = ()
    if fields.layer_types and fields.sliding_window:
      settings['windows'] = windows_by_type(
        fields.layer_types, settings['layers'], fields.sliding_window
      )
  return LMConfig(**settings)


def vocabulary(
  tensors: Mapping[str, Any], config: Mapping[str, Any], layers: LMConfig, embeds: bool
) -> tuple[int | None, Params]:
  """Returns the size of the draft vocabulary (None: the target's words), and its parameters.

  Args:
    tensors: by their names.
    config: the content of config.json.
    layers: sizes of the draft.
    embeds: the draft must have embeddings, because the target's have another width.

  Raises:
    UserError: a draft vocabulary without its own projection, or without a map to the target's ids.
  """
  words = layers.vocab_size
  draft_words = read_fields(VocabularyFields, config).draft_vocab_size or words
  params: Params = {}
  if embeds or 'embed_tokens.weight' in tensors:
    params['embedding'] = shaped(tensors, 'embed_tokens.weight', words, layers.d_model)
  if draft_words != words or 'lm_head.weight' in tensors:
    params['output'] = shaped(tensors, 'lm_head.weight', draft_words, layers.d_model)
  if 't2d' in tensors:  # true for the words that the draft has, which its ids tell as well
    shaped(tensors, 't2d', words)
  ids = _target_ids(tensors, draft_words, words)
  if ids is None:
    return None, params
  return draft_words, params | {'ids': ids}


def _target_ids(tensors: Mapping[str, Any], draft_words: int, words: int) -> np.ndarray | None:
  """Returns the target's ids of the draft's words; None if they are the same."""
  name = next((name for name in MAPS if name in tensors), None)
  if name is None and draft_words == words:
    return None
  if name is None:
    raise UserError(
      f'the draft vocabulary of {draft_words} of {words} words lacks d2t, the map to the words of'
      ' the target: copy the folder again, or set draft_vocab_size to null if it is none'
    )
  distances = np.asarray(shaped(tensors, name, draft_words)[:]).astype(np.int64)
  ids = np.arange(draft_words) + distances
  if ids.min() < 0 or ids.max() >= words or len(np.unique(ids)) < draft_words:
    raise UserError(
      f'{name} maps the {draft_words} words of the draft to ids from {ids.min()} to {ids.max()},'
      f' and they must be different ones from 0 to {words - 1}: each entry is how far the id of the'
      ' target is from the one of the draft'
    )
  return None if np.array_equal(ids, np.arange(words)) else ids.astype(np.int32)
