"""Our own model folders, the results of training runs.

  config.json          sizes of the model, and of its heads if it has any
  model.safetensors    parameters, named by their path: decoder_0/attention/qkv/kernel
  heads.safetensors    the heads' parameters
  generation_config.json   settings of `generate` that came with the model
  tokenizer.model      the SentencePiece model, if tokens are text
  source.dict.txt, target.dict.txt     or the dictionaries of a model from fairseq
  tokenizer_config.json, ...           or the files of a tokenizer from Hugging Face

They are written to a temporary folder, then moved, so an existing folder is complete
(`files.whole_folder`).
"""

import dataclasses
import functools
import math
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh
from jaxtyping import DTypeLike

from fastdec import struct
from fastdec.errors import UserError
from fastdec.fields import quote, read
from fastdec.files import place, read_json, whole_folder, write_json
from fastdec.folders.folder import (
  DICTIONARIES,
  GENERATION,
  TEMPLATES,
  TOKENIZER_FILES,
  Folder,
  PathLike,
  model_folder,
  split_dtype,
)
from fastdec.folders.stored import Stored, put, stored_in, write
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.medusa import MedusaHeads
from fastdec.heads.transformed import Transformed
from fastdec.kernels.packed import drop_panels
from fastdec.models.api import Params
from fastdec.models.fconv import FConv, FConvConfig
from fastdec.models.fresh import shapes_of
from fastdec.models.image_transformer import ImageTransformer, ImageTransformerConfig
from fastdec.models.lm import LM, LMConfig
from fastdec.models.t5 import T5, T5Config
from fastdec.models.transformer import Transformer, TransformerConfig

MODELS = {
  'transformer': (Transformer, TransformerConfig),
  'image_transformer': (ImageTransformer, ImageTransformerConfig),
  'lm': (LM, LMConfig),
  't5': (T5, T5Config),
  'fconv': (FConv, FConvConfig),
}
HEADS = {'blockwise': BlockwiseHeads, 'medusa': MedusaHeads}
# Sizes that cannot be larger than the file's number of tensors.
DEEP = ('layers', 'encoder_layers', 'decoder_layers', 'depth')
WIDE = (  # sizes that cannot be larger than its number of weights
  'd_model', 'd_ff', 'd_kv', 'd_embed', 'd_out', 'vocab_size', 'source_vocab_size', 'heads',
  'key_heads', 'head_width', 'decoder_heads', 'decoder_d_ff', 'buckets', 'k',
)  # fmt: skip
WRITTEN = {
  'config.json', 'model.safetensors', 'heads.safetensors', GENERATION, *TOKENIZER_FILES,
  *DICTIONARIES, TEMPLATES,
}  # fmt: skip


def open(path: PathLike, dtype: DTypeLike | None = None) -> 'NativeFolder':
  """Opens a folder that `save` wrote, or the workdir of a training run, and reads its config.json.

  Args:
    path: the folder, or the workdir of a finished run.
    dtype: computes and keeps the parameters in this type (None: the type that the model was trained
      to compute in); 'int8', 'int8w': as None, with the kernels of products in int8.

  Raises:
    UserError: the folder does not exist, or is not such a folder; or no model computes in `dtype`.
  """
  folder = model_folder(path)
  compute_dtype, kernel_dtype = split_dtype(dtype)
  file = folder / 'config.json'
  config = read_json(file) if file.is_file() else {}
  check_is_ours(folder, config)
  return NativeFolder(folder, config, compute_dtype, kernel_dtype)


def load(
  path: PathLike, dtype: DTypeLike | None = None, mesh: Mesh | None = None
) -> tuple[Any, Params]:
  """Reads the model of a folder or workdir, and its parameters; see `open`."""
  folder = open(path, dtype)
  return folder.model, folder.params(mesh)


def load_heads(
  path: PathLike, dtype: DTypeLike | None = None, mesh: Mesh | None = None
) -> tuple[Any, Params]:
  """Reads the prediction heads of a folder or workdir, and their parameters; see `open`."""
  folder = open(path, dtype)
  return folder.heads, folder.head_params(mesh)


def save(
  model: Any, params: Params, path: PathLike, heads: Any = None, tokenizer: Any = None
) -> None:
  """Writes a model folder, from which `load`, `load_heads` and `load_tokenizer` read the same.

  Args:
    model, params: as `load` returns them.
    path: a new folder, or one that this function wrote, which is replaced.
    heads: (module, params) of prediction heads for the model, as `load_heads` returns them.
    tokenizer: as `load_tokenizer` returns it; or the file of a SentencePiece model, or the files of
      the dictionaries of source and target.

  Raises:
    UserError: the model, heads or tokenizer cannot be stored, parameters are in int8, or the folder
      holds something else or cannot be written. Existing files stay.
  """
  folder = place(path)
  if isinstance(model, Transformed):
    heads, model, params = (model.heads, params['heads']), model.model, params['model']
  config = {'format': 'fastdec', 'model': describe_part(MODELS, model)}
  if heads is not None:
    heads = struct.bound(heads, 'heads')
    config['heads'] = describe_part(HEADS, heads.module)
  if not _is_ours(folder):
    raise UserError(f'{folder} exists and holds more than a fastdec model: give a new folder')
  with whole_folder(folder) as partial:
    write(partial / 'model.safetensors', drop_panels(params))
    if heads is not None:
      write(partial / 'heads.safetensors', drop_panels(heads.params))
    if hasattr(tokenizer, 'save'):
      tokenizer.save(partial)
    elif isinstance(tokenizer, tuple):
      for file, name in zip(tokenizer, DICTIONARIES, strict=True):
        shutil.copy(file, partial / name)
    elif tokenizer is not None:
      shutil.copy(tokenizer, partial / 'tokenizer.model')
    generation = getattr(model, 'generation', None)
    if generation:
      write_json(partial / GENERATION, generation)
    write_json(partial / 'config.json', config)


def describe_part(families: Mapping[str, Any], module: Any) -> dict[str, Any]:
  """Returns the part of config.json that describes a model, heads or a draft."""
  for name, entry in families.items():
    if type(module) is entry:
      return {'type': name, **dataclasses.asdict(module)}
    if isinstance(entry, tuple) and type(module) is entry[0]:
      return {'type': name, **dataclasses.asdict(module.config)}
  kind = type(module).__name__
  raise UserError(f'{kind} cannot be stored: give one of the types {", ".join(families)}')


def _is_ours(folder: pathlib.Path) -> bool:
  """True if the folder is absent, empty, or holds only files that `save` writes."""
  if not folder.exists():
    return True
  if not folder.is_dir() or not {file.name for file in folder.iterdir()} <= WRITTEN:
    return False
  try:
    return read_json(folder / 'config.json').get('format') == 'fastdec'
  except UserError:
    return not any(folder.iterdir())


def model_of(config: Any) -> Any:
  """Returns the model of a config, such as a TransformerConfig."""
  classes = {config_class: model_class for model_class, config_class in MODELS.values()}
  return classes[type(config)](config)


@dataclasses.dataclass(frozen=True, eq=False)
class NativeFolder(Folder):
  """A folder that `save` wrote."""

  @functools.cached_property
  def model(self) -> Any:
    settings = self.config['model']
    model_class, config_class = family_of(MODELS, settings, self.path)
    if self.dtype is not None:
      settings = {**settings, 'dtype': self.dtype}
    model = model_class(read_settings(config_class, settings, self.path))
    if self.generation:
      model = dataclasses.replace(model, generation=self.generation)
    # The head of the first position, p1, is part of such a model.
    if self.has_heads and getattr(self.heads, 'first', None) == 'transformed':
      return Transformed(model, self.heads)
    return model

  @functools.cached_property
  def generation(self) -> Mapping[str, Any]:
    file = self.path / GENERATION
    return read_json(file) if file.is_file() else {}

  def params(self, mesh: Mesh | None = None, as_stored: bool = False) -> Params:
    if isinstance(self.model, Transformed):
      stored = {
        'model': self._read('model', self.model.model),
        'heads': self._read('heads', self.heads),
      }
    else:
      stored = self._read('model', self.model)
    return put(stored, self.model, self._dtype(as_stored), mesh, self.kernels)

  @property
  def has_heads(self) -> bool:
    return self.config.get('heads') is not None

  @functools.cached_property
  def heads(self) -> Any:
    if not self.has_heads:
      raise UserError(
        f'{self.path} holds a model without heads: give the workdir of a run with k >= 2'
      )
    heads_class = family_of(HEADS, self.config['heads'], self.path)
    return read_settings(heads_class, self.config['heads'], self.path)

  def head_params(self, mesh: Mesh | None = None, as_stored: bool = False) -> Params:
    stored = self._read('heads', self.heads)
    return put(stored, self.heads, self._dtype(as_stored), mesh, self.kernels)

  def _dtype(self, as_stored: bool) -> str | None:
    """Returns the dtype of parameters: the model's, which its heads share. None: as stored."""
    if as_stored:
      return None
    model = self.model
    if isinstance(model, Transformed):
      model = model.model
    return model.config.dtype

  def _read(self, part: str, module: Any) -> Params:
    """Returns the stored parameters of 'model' or 'heads', unread, in the shapes of `module`'s."""
    file = self.path / f'{part}.safetensors'
    if not file.is_file():
      raise UserError(f'{file} is missing: train the model, or copy its folder, again')
    stored = stored_in(file)
    check_sizes(getattr(module, 'config', module), stored, file)
    check_ids(stored, self.model.vocab_size, file)
    expected = flatten_dict(shapes_of(module), sep='/')
    return with_shapes(stored, expected, file)


def check_ids(stored: Mapping[str, Any], words: int, file: pathlib.Path) -> None:
  """Raises UserError if a short list repeats a word, or names one that the model lacks.

  With a repeated word, two guesses would be the same token."""
  if 'ids' not in stored:
    return
  ids = np.asarray(stored['ids'][:])
  if ids.size == 0:
    return
  if ids.min() < 0 or ids.max() >= words or len(np.unique(ids)) < ids.size:
    span = f'{ids.size} words, ids from {ids.min()} to {ids.max()}'
    raise UserError(
      f'{file} has a list of {span}, which must be different ids from 0 to {words - 1}: make it'
      ' again'
    )


def check_is_ours(path: pathlib.Path, config: Mapping[str, Any]) -> None:
  """Raises UserError, with the folder's kind, for a folder that `save` did not write."""
  if (path / 'checkpoints').is_dir():
    raise UserError(
      f'{path} is a training run that is not finished: run the same command again to finish it'
    )
  if 'draft' in config or (path / 'draft' / 'config.json').is_file():
    raise UserError(
      f'{path} holds a draft network: load it with fd.load_draft, or give it as --draft'
    )
  runs = [config_file.parent.parent for config_file in path.glob('*/model/config.json')]
  links = [run for run in runs if run.is_symlink()]
  if runs:
    # A run may have a plain name that links to it: the message prefers that one.
    names = sorted(run.name for run in links or runs)
    raise UserError(
      f'{path} holds the runs {", ".join(names)}: name one of them, such as {path / names[-1]}'
    )
  if not (path / 'config.json').is_file():
    raise UserError(
      f'{path} has no config.json: give the workdir of a run, or a Hugging Face folder'
    )
  if config.get('format') != 'fastdec' or not isinstance(config.get('model'), dict):
    raise UserError(f'{path}/config.json is not a fastdec model: its "format" must be "fastdec"')


def is_replaceable(folder: PathLike) -> bool:
  """True if the folder is absent, empty, or holds only files that `save` without heads writes."""
  folder = place(folder)
  return _is_ours(folder) and not (folder / 'heads.safetensors').exists()


def family_of(families: Mapping[str, Any], config: Any, folder: pathlib.Path) -> Any:
  """Returns the entry of `families` for the type of a part of config.json."""
  kind = config
  if isinstance(config, dict):
    kind = config.get('type')
  if not isinstance(kind, str) or kind not in families:
    raise UserError(f'{folder} is of type {quote(kind)}: known are {", ".join(families)}')
  return families[kind]


def read_settings(cls: type, config: Mapping[str, Any], folder: pathlib.Path) -> Any:
  """Returns the dataclass that a part of config.json describes."""
  known = {field.name for field in dataclasses.fields(cls)}
  settings = {name: value for name, value in config.items() if name != 'type'}
  unknown = sorted(set(settings) - known)
  if unknown:
    raise UserError(
      f'{folder}/config.json has unknown fields {", ".join(unknown)}: known are'
      f' {", ".join(sorted(known))}'
    )
  return read(cls, settings, f'{folder}/config.json', ': ')


def with_shapes(
  stored: dict[str, Stored], expected: Mapping[str, Any], file: pathlib.Path
) -> Params:
  """Returns a file's tensors in the shapes that its config.json means; names are paths.

  Raises:
    UserError: the file holds other names, or other shapes.
  """
  for name in sorted(expected.keys() | stored.keys()):
    have = stored[name].shape if name in stored else None
    want = expected[name].shape if name in expected else None
    if have == want:
      continue
    if have is None or want is None or have != (math.prod(want[:-1]), want[-1]):
      raise UserError(
        f'{file} holds {have or "nothing"} for {name}, its config.json means {want or "nothing"}:'
        ' the two do not belong together'
      )
    stored[name] = stored[name].reshape(*want)  # a matrix, with the axes of outputs joined
  return unflatten_dict(stored, sep='/')


def check_sizes(
  config: Any, stored: Mapping[str, Stored], file: pathlib.Path, wide: tuple[str, ...] = WIDE
) -> None:
  """Raises UserError if a config means more than a file can hold, before shapes are computed."""
  weights = sum(math.prod(tensor.shape) for tensor in stored.values())
  for names, limit in ((DEEP, len(stored)), (wide, weights)):
    for name in names:
      size = vars(config).get(name)  # only settings, not properties computed from them
      if isinstance(size, int) and size > limit:
        raise UserError(
          f'{file} holds too little for {name}={size} of its config.json: the two do'
          ' not belong together'
        )
