"""Reads Hugging Face folders: config.json, generation_config.json, and one or many safetensors files; no PyTorch."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import DTypeLike

from fastdec.errors import UserError
from fastdec.files import read_json
from fastdec.folders.families import families
from fastdec.folders.tensors import Tensors, fit
from fastdec.models.api import Params

DTYPES = ('float32', 'bfloat16', 'float16', 'float64')


def is_folder(folder: pathlib.Path) -> bool:
  """Whether a folder's config.json is one of Hugging Face's: it has a model_type, and no format of ours."""
  try:
    config = json.loads((folder / 'config.json').read_text())
  except (OSError, ValueError):
    return False
  return isinstance(config, dict) and 'model_type' in config and 'format' not in config


def load(folder: pathlib.Path, dtype: DTypeLike | None = None) -> tuple[Any, Params]:
  """The model of a folder and its parameters.

  Args:
    folder: with config.json and safetensors files.
    dtype: computes and keeps the parameters in this type (None: as config.json says, else float32).

  Raises:
    UserError: an unknown model_type, an option that is not supported, weights only as pickle, missing or unknown
      tensors, shapes that do not fit config.json.
  """
  family, model, tensors = _opened_folder(folder, dtype)
  params = family.params_of(model, tensors)
  tensors.check()
  fit(params, jax.eval_shape(model.init, jax.random.key(0)))
  return model, params


def describe(folder: pathlib.Path, dtype: DTypeLike | None = None) -> Any:
  """The model alone: its parameters are there, and unread; see `load`."""
  return _opened_folder(folder, dtype)[1]


def _opened_folder(folder: pathlib.Path, dtype: DTypeLike | None) -> tuple[Any, Any, 'Tensors']:
  """The family, the model, and its tensors, of which nothing has been read."""
  config, generation = read_json(folder / 'config.json'), {}
  if (folder / 'generation_config.json').is_file():
    generation = read_json(folder / 'generation_config.json')
  known = families()
  family = known.get(str(config.get('model_type')))
  if family is None:
    raise UserError(f'{folder} is of model_type {config.get("model_type")!r}: known are {", ".join(sorted(known))}')
  if config.get('quantization_config'):
    raise UserError(f'{folder} is quantized, which is not supported: give the checkpoint that it was made from')
  stored = config.get('dtype') or config.get('torch_dtype')
  name = jnp.dtype(dtype).name if dtype is not None else stored if stored in DTYPES else 'float32'
  try:
    model = family.model_of(config, generation, name)
  except UserError:
    raise
  except KeyError as error:
    raise UserError(f'{folder}/config.json has no {error.args[0]}: restore the file') from None
  except (AttributeError, TypeError, ValueError) as error:  # a word for a number, a list for an object
    raise UserError(f'{folder}/config.json has a value of another kind than expected ({error}): mend it') from None
  return family, model, Tensors(folder, name)


def end_and_pad(config: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
  """The ids that end a text, and the one that fills up after them: an end where it is null."""
  setting = lambda name: generation[name] if generation.get(name) is not None else config.get(name)
  ends, pad = setting('eos_token_id'), setting('pad_token_id')
  ends = () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)
  if pad is None or not 0 <= pad < config['vocab_size']:  # old Llama folders have -1
    pad = ends[0] if ends else 0
  return ends, pad


def suppressed(config: Mapping[str, Any], generation: Mapping[str, Any]) -> set[int]:
  """The ids that are never emitted, as in `generate`: bad words that end a text may be all the same, and config.json is
  only asked where there is no generation_config.json.

  Raises:
    UserError: a setting of `generate` that changes what is emitted otherwise.
  """
  said = generation or config
  for name in ('forced_bos_token_id', 'begin_suppress_tokens', 'forced_decoder_ids', 'sequence_bias'):
    if said.get(name) not in (None, [], {}):
      raise UserError(f'{name}={said[name]} of generation_config.json is not supported: remove it')
  words = said.get('bad_words_ids') or []
  if any(len(word) != 1 for word in words):
    raise UserError('bad_words_ids of several tokens are not supported: remove them from generation_config.json')
  ends, _ = end_and_pad(config, generation)
  ids = {*(said.get('suppress_tokens') or ()), *(word for (word,) in words if word not in ends)}
  return {token for token in ids if 0 <= token < config['vocab_size']}
