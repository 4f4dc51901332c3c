"""Model folders: what a training run leaves for others to decode with.

  config.json          sizes of the model, and of its heads if it has any
  model.safetensors    parameters, named by their path: decoder_0/attention/qkv/kernel
  heads.safetensors    the heads' parameters
  tokenizer.model      the SentencePiece model, where tokens are text; or, of a model that came from fairseq:
  source.dict.txt, target.dict.txt     its dictionaries

Written to a temporary folder first, then moved: a folder that exists is whole.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import DTypeLike

from fastdec.errors import UserError
from fastdec.folders import huggingface, medusa
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.medusa import MedusaHeads
from fastdec.heads.transformed import Transformed
from fastdec.models.api import Params
from fastdec.models.fconv import FConv, FConvConfig
from fastdec.models.image_transformer import ImageTransformer, ImageTransformerConfig
from fastdec.models.lm import LM, LMConfig
from fastdec.models.t5 import T5, T5Config
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.tokenizers import huggingface as huggingface_tokenizer
from fastdec.tokenizers.dictionary import DictionaryPair

MODELS = {
  'transformer': (Transformer, TransformerConfig),
  'image_transformer': (ImageTransformer, ImageTransformerConfig),
  'lm': (LM, LMConfig),
  't5': (T5, T5Config),
  'fconv': (FConv, FConvConfig),
}
HEADS = {'blockwise': BlockwiseHeads, 'medusa': MedusaHeads}
TOKENIZER, DICTIONARIES = 'tokenizer.model', ('source.dict.txt', 'target.dict.txt')
CONTENT = ('.json', '.model', '.safetensors', '.spm')  # of a Hugging Face folder
PathLike = str | os.PathLike[str]


def save(
  folder: PathLike,
  model: Any,
  params: Params,
  tokenizer: PathLike | tuple[PathLike, PathLike] | None,
  heads: tuple[Any, Params] | None = None,
) -> None:
  """Writes a model folder (replacing one that is there), with copies of the tokenizer's file, or of the dictionaries of
  source and target, where there are any.

  Raises:
    UserError: it cannot be written; what was there stays.
  """
  from safetensors import SafetensorError

  folder = pathlib.Path(folder)
  partial = folder.with_name(f'{folder.name}.partial')
  shutil.rmtree(partial, ignore_errors=True)
  try:
    partial.mkdir(parents=True)
    _write(partial, model, params, tokenizer, heads)
    if folder.exists():
      shutil.rmtree(folder)
    partial.rename(folder)
  except (OSError, SafetensorError) as error:  # the latter where a disk is full
    shutil.rmtree(partial, ignore_errors=True)
    reason = getattr(error, 'strerror', None) or error
    raise UserError(f'cannot write {folder} ({reason}): make room, or name another folder') from None


def _write(folder: pathlib.Path, model: Any, params: Params, tokenizer: Any, heads: tuple[Any, Params] | None) -> None:
  """Fills a new folder; arguments as of `save`."""
  from safetensors.numpy import save_file

  (family,) = (name for name, (model_class, _) in MODELS.items() if type(model) is model_class)
  config = {'format': 'fastdec', 'model': {'type': family, **dataclasses.asdict(model.config)}}
  save_file(_flat(params), folder / 'model.safetensors')
  if heads is not None:
    (kind,) = (name for name, heads_class in HEADS.items() if type(heads[0]) is heads_class)
    config['heads'] = {'type': kind, **dataclasses.asdict(heads[0])}
    save_file(_flat(heads[1]), folder / 'heads.safetensors')
  if isinstance(tokenizer, tuple):
    for file, name in zip(tokenizer, DICTIONARIES, strict=True):
      shutil.copy(file, folder / name)
  elif tokenizer is not None:
    shutil.copy(tokenizer, folder / TOKENIZER)
  (folder / 'config.json').write_text(json.dumps(config, indent=2) + '\n')


def model_of(config: Any) -> Any:
  """The model of a config, such as a TransformerConfig."""
  (model_class,) = (model_class for model_class, config_class in MODELS.values() if type(config) is config_class)
  return model_class(config)


def load(path: PathLike, dtype: DTypeLike | None = None) -> tuple[Any, Params]:
  """The model of a folder, or of a training run's workdir, and its parameters.

  Args:
    path: the folder, ours or one of Hugging Face's with safetensors (`convert`).
    dtype: computes and keeps the parameters in this type (None: as trained and stored).

  Raises:
    UserError: where there is no such folder, or it is not whole, or of other shapes than its config says.
  """
  if huggingface.is_folder(pathlib.Path(path)):
    return huggingface.load(pathlib.Path(path), dtype)
  model, (folder, _) = describe(path, dtype), _open(path)
  if isinstance(model, Transformed):  # p1 is part of the model
    params = _read(folder / 'model.safetensors', model.model, dtype)
    return model, {'model': params, 'heads': load_heads(path, dtype)[1]}
  return model, _read(folder / 'model.safetensors', model, dtype)


def describe(path: PathLike, dtype: DTypeLike | None = None) -> Any:
  """The model alone, its parameters unread; see `load`."""
  if huggingface.is_folder(pathlib.Path(path)):
    return huggingface.describe(pathlib.Path(path), dtype)
  folder, config = _open(path)
  model_class, config_class = _family(MODELS, config['model'], folder)
  fields = _fields(config_class, config['model'], folder)
  if dtype is not None:
    fields['dtype'] = jnp.dtype(dtype).name
  model = model_class(config_class(**fields))
  if (config.get('heads') or {}).get('first') == 'transformed':
    return Transformed(model, _heads(folder, config))
  return model


def load_heads(path: PathLike, dtype: DTypeLike | None = None) -> tuple[Any, Params]:
  """The prediction heads of a folder or workdir, ours or published Medusa heads, and their parameters; see `load`."""
  if medusa.is_folder(pathlib.Path(path)):
    return medusa.load(pathlib.Path(path), dtype)
  heads = describe_heads(path)
  return heads, _read(_open(path)[0] / 'heads.safetensors', heads, dtype)


def describe_heads(path: PathLike) -> Any:
  """The prediction heads alone, their parameters unread; see `load_heads`."""
  if medusa.is_folder(pathlib.Path(path)):
    return medusa.describe(pathlib.Path(path))
  if huggingface.is_folder(pathlib.Path(path)):
    raise UserError(f'{path} holds a model without heads: give a folder of heads for it')
  folder, config = _open(path)
  if config.get('heads') is None:
    raise UserError(f'{folder} holds a model without heads: give the workdir of a run with k >= 2')
  return _heads(folder, config)


def has_heads(path: PathLike) -> bool:
  """Whether `load_heads` would find any."""
  if medusa.is_folder(pathlib.Path(path)) or huggingface.is_folder(pathlib.Path(path)):
    return medusa.is_folder(pathlib.Path(path))
  return _open(path)[1].get('heads') is not None


def content(path: PathLike) -> str:
  """A hash of what a folder or workdir decodes with: model, heads, tokenizer. 16 hexadecimal digits."""
  folder = pathlib.Path(path)
  if huggingface.is_folder(folder) or medusa.is_folder(folder):
    files = sorted(file for file in folder.iterdir() if file.suffix in CONTENT)
  else:
    folder, _ = _open(path)
    names = ('config.json', 'model.safetensors', 'heads.safetensors', TOKENIZER, *DICTIONARIES)
    files = [folder / name for name in names]
  stats = [(file, file.stat()) for file in files if file.is_file()]
  sums = [(file.name, _sha256(file, stat.st_mtime_ns, stat.st_size)) for file, stat in stats]
  return hashlib.sha256(repr(sums).encode()).hexdigest()[:16]


@functools.lru_cache
def _sha256(file: pathlib.Path, mtime_ns: int, size: int) -> str:
  """Of a file as it is at this time and size."""
  with open(file, 'rb') as opened:
    return hashlib.file_digest(opened, 'sha256').hexdigest()


def load_tokenizer(path: PathLike) -> Any:
  """The tokenizer of a folder or workdir: .encode(str) -> list[int], .decode(ids) -> str."""
  if huggingface.is_folder(pathlib.Path(path)):
    return huggingface_tokenizer.load(pathlib.Path(path))
  folder, _ = _open(path)
  if any((folder / name).is_file() for name in DICTIONARIES):
    return DictionaryPair.load(*(folder / name for name in DICTIONARIES))
  from fastdec.tokenizers.sentencepiece import Tokenizer  # SentencePiece is not needed for decoding

  return Tokenizer.load(folder / TOKENIZER)


def is_replaceable(folder: PathLike) -> bool:
  """Whether `save` without heads would lose nothing but such a model: its files, or none, are all that is there."""
  folder = pathlib.Path(folder)
  if not folder.exists():
    return True
  written = {'config.json', 'model.safetensors', TOKENIZER, *DICTIONARIES}
  if not folder.is_dir() or not {file.name for file in folder.iterdir()} <= written:
    return False
  try:
    config = json.loads((folder / 'config.json').read_text())
    return config.get('format') == 'fastdec' and config.get('heads') is None
  except (OSError, ValueError, AttributeError):
    return not any(folder.iterdir())


def _open(path: PathLike) -> tuple[pathlib.Path, dict[str, Any]]:
  folder = pathlib.Path(path)
  if not folder.is_dir():
    raise UserError(f'{folder} is not a folder: give a model folder or the workdir of a finished training run')
  if (folder / 'model' / 'config.json').is_file():
    folder = folder / 'model'
  elif (folder / 'checkpoints').is_dir():
    raise UserError(f'{folder} is a training run that is not finished: let the same command go on, then try again')
  elif runs := sorted(found.parent.parent.name for found in folder.glob('*/model/config.json')):
    raise UserError(f'{folder} holds the runs {", ".join(runs)}: name one of them, such as {folder / runs[-1]}')
  try:
    config = json.loads((folder / 'config.json').read_text())
  except FileNotFoundError:
    raise UserError(f'{folder} has no config.json: give the workdir of a run, or a Hugging Face folder') from None
  except ValueError:
    raise UserError(f'{folder}/config.json is not JSON: restore the file, or train again') from None
  if not isinstance(config, dict) or config.get('format') != 'fastdec' or not isinstance(config.get('model'), dict):
    raise UserError(f'{folder}/config.json is not a fastdec model: its "format" must be "fastdec"')
  return folder, config


def _family(families: Mapping[str, Any], config: Mapping[str, Any], folder: pathlib.Path) -> Any:
  if config.get('type') not in families:
    raise UserError(f'{folder} is of type {config.get("type")!r}: known are {", ".join(families)}')
  return families[config['type']]


def _heads(folder: pathlib.Path, config: Mapping[str, Any]) -> Any:
  """The module of the heads that a config names."""
  heads_class = _family(HEADS, config['heads'], folder)
  return heads_class(**_fields(heads_class, config['heads'], folder))


def _fields(cls: type, config: Mapping[str, Any], folder: pathlib.Path) -> dict[str, Any]:
  known = {field.name for field in dataclasses.fields(cls)}
  given = {name: _tuples(value) for name, value in config.items() if name != 'type'}
  if unknown := sorted(set(given) - known):
    names = ', '.join(unknown)
    raise UserError(f'{folder}/config.json has unknown fields {names}: known are {", ".join(sorted(known))}')
  return given


def _tuples(value: Any) -> Any:
  """JSON's lists as the tuples that they were."""
  return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _flat(params: Params) -> dict[str, Any]:
  return {name: np.asarray(jax.device_get(value), order='C') for name, value in flatten_dict(params, sep='/').items()}


def _read(file: pathlib.Path, module: Any, dtype: DTypeLike | None) -> Params:
  """Reads parameters and checks them against those that `module` would make."""
  from safetensors import SafetensorError
  from safetensors.numpy import load_file

  try:
    stored = load_file(file)
  except FileNotFoundError:
    raise UserError(f'{file} is missing: the folder is not whole, train or copy it again') from None
  except SafetensorError as error:
    raise UserError(f'{file} is corrupt or cut short ({error}): train or copy it again') from None
  expected: dict[str, Any] = flatten_dict(jax.eval_shape(module.init, jax.random.key(0)), sep='/')
  for name in sorted(expected.keys() | stored.keys()):
    have, want = (tuple(x[name].shape) if name in x else 'nothing' for x in (stored, expected))
    if name in expected and have == (math.prod(want[:-1]), *want[-1:]):  # as a matrix: the axes of the outputs as one
      stored[name] = stored[name].reshape(want)
    elif have != want:
      raise UserError(f'{file} holds {have} for {name}, its config.json means {want}: the two do not belong together')
  return unflatten_dict({name: jnp.asarray(value, dtype) for name, value in stored.items()}, sep='/')
