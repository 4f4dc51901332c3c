"""Common parts of published drafts: layers of Llama or Qwen3, and vocabularies."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from fastdec.errors import UserError
from fastdec.fields import Size
from fastdec.hub.families import read_fields
from fastdec.hub.llama import layer_settings, llama_fields, windows_by_type
from fastdec.hub.tensors import norm, shaped
from fastdec.models.api import Params
from fastdec.models.lm import LMConfig
from fastdec.models.taps import Taps

# Names of the map from draft words to the target's: each entry is the target's id minus the
# draft's.
MAPS = ('d2t', 'draft_id_to_target_id')


@dataclasses.dataclass(frozen=True)
class VocabularyFields:
  """Fields of config.json about the draft's vocabulary."""

  draft_vocab_size: Size | None = None


@dataclasses.dataclass(frozen=True)
class WindowFields:
  """Fields of config.json about windows, which Llama's models do not have, but drafts may."""

  layer_types: tuple[str, ...] | None = None
  sliding_window: Size | None = None


def read_architectures(config: Mapping[str, Any]) -> list[str]:
  """Returns the classes that config.json names; [] unless they are in a list."""
  names = config.get('architectures')
  if not isinstance(names, list):
    return []
  return [name for name in names if isinstance(name, str)]


def check_no_taps(taps: Taps | None) -> None:
  """Raises UserError if taps are set for a draft that only reads the last hidden state."""
  if taps:
    raise UserError(f'taps={taps}: this draft only reads the last hidden state: leave taps out')


def taps_after(ids: tuple[int, ...], layers: int | None) -> Taps:
  """Returns the taps after these layers of a target: tap k + 1 reads the output of layer k.

  Raises:
    UserError: no layer is named, or one that the target lacks, or the last, whose output Hugging
      Face norms.
  """
  if not ids or min(ids) < -1:
    raise UserError(
      f'target_layer_ids={list(ids)} of config.json is not possible: give layers of'
      ' the target, from -1'
    )
  if layers is not None and max(ids) >= layers - 1:
    raise UserError(
      f'target_layer_ids={list(ids)} of config.json must be at most {layers - 2}: the target has'
      f' {layers} layers, and the normed state of the last is not supported'
    )
  return tuple(k + 1 for k in ids)


def draft_layers(
  model_type: str, config: Mapping[str, Any], dtype: str, **changes: Any
) -> LMConfig:
  """Returns the config of a draft's layers, like those of a model of this model_type.

  Raises:
    UserError: an option is not supported, a size is missing, or a value has a wrong type.
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
    embeds: the draft must have embeddings and a projection of its own, because the target's have
      another width.

  Raises:
    UserError: a draft vocabulary lacks its own projection, or its map to the target's ids.
  """
  words = layers.vocab_size
  draft_words = read_fields(VocabularyFields, config).draft_vocab_size or words
  params: Params = {}
  if embeds or 'embed_tokens.weight' in tensors:
    params['embedding'] = shaped(tensors, 'embed_tokens.weight', words, layers.d_model)
  if 'verifier_norm.weight' in tensors:  # of speculators: the target's, which only training reads
    norm(tensors, 'verifier_norm', layers.d_model)
  if 't2d' in tensors:  # true for the words of the draft, which also follow from its ids
    shaped(tensors, 't2d', words)
  ids = _target_ids(tensors, draft_words, words)
  if embeds or ids is not None or 'lm_head.weight' in tensors:
    params['output'] = shaped(tensors, 'lm_head.weight', draft_words, layers.d_model)
  if ids is None:
    return None, params
  return draft_words, params | {'ids': ids}


def _target_ids(tensors: Mapping[str, Any], draft_words: int, words: int) -> np.ndarray | None:
  """Returns the target's ids of the draft's words; None if they are the same."""
  names = [name for name in MAPS if name in tensors]
  if not names:
    if draft_words == words:
      return None
    raise UserError(
      f'the draft vocabulary of {draft_words} of {words} words lacks d2t, the map to the words of'
      ' the target: copy the folder again, or set draft_vocab_size to null if it has all words'
    )
  distances = np.asarray(shaped(tensors, names[0], draft_words)[:]).astype(np.int64)
  ids = np.arange(draft_words) + distances
  if ids.min() < 0 or ids.max() >= words or len(np.unique(ids)) < draft_words:
    raise UserError(
      f'{names[0]} maps the {draft_words} words of the draft to ids from {ids.min()} to'
      f' {ids.max()}, which must be different ids from 0 to {words - 1}: each entry must be the id'
      ' of the target minus the id of the draft'
    )
  if np.array_equal(ids, np.arange(words)):
    return None
  return ids.astype(np.int32)
