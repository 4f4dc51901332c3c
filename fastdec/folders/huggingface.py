"""Reads Hugging Face folders: config.json, generation_config.json, and one or many safetensors files; no PyTorch."""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import jax
from jax.sharding import Mesh

from fastdec.errors import UserError
from fastdec.files import read_json
from fastdec.folders.families import families
from fastdec.folders.folder import Folder
from fastdec.folders.stored import put
from fastdec.folders.tensors import Tensors, fit
from fastdec.models.api import Params
from fastdec.tokenizers import huggingface as tokenizer

DTYPES = ('float32', 'bfloat16', 'float16', 'float64')
CONTENT = ('.json', '.model', '.safetensors', '.spm')  # of all that is in a folder, what it decodes with


def is_theirs(config: Mapping[str, Any]) -> bool:
  """Whether a config.json is one of Hugging Face's: it has a model_type, and no format of ours."""
  return 'model_type' in config and 'format' not in config


@dataclasses.dataclass(frozen=True, eq=False)
class HuggingFaceFolder(Folder):
  """A folder with config.json and safetensors files. Without a dtype, the model's is what config.json says."""

  @functools.cached_property
  def model(self) -> Any:
    """The model.

    Raises:
      UserError: an unknown model_type, an option that is not supported, a config.json that lacks something.
    """
    family, generation = self._family, {}
    if (self.path / 'generation_config.json').is_file():
      generation = read_json(self.path / 'generation_config.json')
    if self.config.get('quantization_config'):
      raise UserError(f'{self.path} is quantized, which is not supported: give the checkpoint that it was made from')
    said = self.config.get('dtype') or self.config.get('torch_dtype')
    try:
      return family.model_of(self.config, generation, self.dtype or (said if said in DTYPES else 'float32'))
    except UserError:
      raise
    except KeyError as error:
      raise UserError(f'{self.path}/config.json has no {error.args[0]}: restore the file') from None
    except (AttributeError, TypeError, ValueError) as error:  # a word for a number, a list for an object
      reason = f'has a value of another kind than expected ({error})'
      raise UserError(f'{self.path}/config.json {reason}: mend it') from None

  @functools.cached_property
  def _family(self) -> ModuleType:
    known, kind = families(), self.config.get('model_type')
    if str(kind) not in known:
      raise UserError(f'{self.path} is of model_type {kind!r}: known are {", ".join(sorted(known))}')
    return known[str(kind)]

  def params(self, mesh: Mesh | None = None) -> Params:
    """The model's parameters.

    Raises:
      UserError: weights only as pickle, missing or unknown tensors, shapes that do not fit config.json, a mesh that
        does not divide them.
    """
    model, tensors = self.model, Tensors(self.path)
    stored = self._family.params_of(model, tensors)
    tensors.check()
    fit(stored, jax.eval_shape(model.init, jax.random.key(0)))
    return put(stored, model, model.config.dtype, mesh)

  @property
  def has_heads(self) -> bool:
    return False

  @functools.cached_property
  def heads(self) -> Any:
    raise self._without_heads()

  def head_params(self, mesh: Mesh | None = None) -> Params:
    raise self._without_heads()

  def _without_heads(self) -> UserError:
    return UserError(f'{self.path} holds a model without heads: give a folder of heads for it')

  @functools.cached_property
  def tokenizer(self) -> Any:
    return tokenizer.load(self.path)

  def files(self) -> list[pathlib.Path]:
    return sorted(file for file in self.path.iterdir() if file.suffix in CONTENT)


def end_and_pad(config: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
  """The ids that end a text, and the one that fills up after them: an end where it is null."""

  def setting(name):
    return generation[name] if generation.get(name) is not None else config.get(name)

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
