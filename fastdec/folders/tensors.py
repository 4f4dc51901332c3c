"""Reads tensors of safetensors files by name, checks their shapes, and tells what is missing or unknown."""

import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax.numpy as jnp
from jaxtyping import Array

from fastdec.errors import UserError
from fastdec.files import read_json
from fastdec.models.api import Params

INDEX, SINGLE = 'model.safetensors.index.json', 'model.safetensors'
# No harm where nobody asks for them: computed tables, copies of tied matrices, prediction heads (`folders.medusa`).
HARMLESS = re.compile(r'(rotary_emb\.inv_freq|lm_head\.weight|\.masked_bias|embed_positions\.weights?)$|^medusa_head\.')
SHOWN = 8
T = TypeVar('T')


class Tensors(Mapping[str, Any]):
  """The tensors of a folder by name, read when asked for, one at a time, into the wanted type (None: as stored).

  Once one is missing, nothing more is read: zeros stand for the rest, so that `check` can list all that are missing.
  """

  origin = 'config.json'  # what says their sizes
  advice = 'its tensors and its config.json do not belong together'  # where they are not what is needed

  def __init__(self, folder: pathlib.Path, dtype: str | None, files: dict[str, str] | None = None):
    self.where, self.folder, self.dtype = folder, folder, dtype
    self.asked: set[str] = set()
    self.missing: list[str] = []
    self._open: dict[str, Any] = {}
    self._files = files_of(folder) if files is None else files  # the file that holds each tensor

  def __iter__(self) -> Iterator[str]:
    return iter(self._files)

  def __len__(self) -> int:
    return len(self._files)

  def __contains__(self, name: object) -> bool:
    return name in self._files

  def __getitem__(self, name: str) -> Array:
    self.asked.add(name)
    if name not in self._files:
      self.missing.append(name)
      parts = (r'\d+' if part.isdigit() else re.escape(part) for part in name.split('.'))
      alike = re.compile(r'\.'.join(parts))  # that of another layer has its shape
      name = next((other for other in self._files if alike.fullmatch(other)), '')
      if not name:
        self.check()
    if self.missing:
      return jnp.zeros(self.shape(name), self.dtype)
    return jnp.asarray(self.read(name), self.dtype)

  def read(self, name: str) -> Any:
    """A tensor that is there, as it is stored."""
    return self._asked_of_file(name, lambda file: file.get_tensor(name))

  def shape(self, name: str) -> tuple[int, ...]:
    """Of a tensor that is there; nothing is read."""
    return tuple(self._asked_of_file(name, lambda file: file.get_slice(name).get_shape()))

  def check(self) -> None:
    """Raises UserError where a tensor was missing, or one is there that nobody asked for."""
    extra = [] if self.missing else [n for n in self._files if n not in self.asked and not HARMLESS.search(n)]
    parts = [f'{word} {listed(names)}' for word, names in (('lacks', self.missing), ('has unknown', extra)) if names]
    if parts:
      raise UserError(f'{self.where} {" and ".join(parts)}: {self.advice}')

  def _asked_of_file(self, name: str, ask: Callable[[Any], T]) -> T:
    from safetensors import SafetensorError

    file = self._file(name)
    try:
      return ask(file)
    except SafetensorError:
      where = f'{self.folder / self._files[name]} has no {name}, which {INDEX} says is there'
      raise UserError(f'{where}: copy the folder again') from None

  def _file(self, name: str) -> Any:
    file = self._files[name]
    if file not in self._open:
      self._open[file] = opened(self.folder / file)
    return self._open[file]


def files_of(folder: pathlib.Path) -> dict[str, str]:
  """The file that holds each tensor."""
  if (folder / INDEX).is_file():
    files = read_json(folder / INDEX).get('weight_map')
    if not isinstance(files, dict):
      raise UserError(f'{folder / INDEX} has no weight_map: restore the file')
    if absent := sorted({file for file in files.values() if not (folder / file).is_file()}):
      raise UserError(f'{folder} lacks {listed(absent)}, which {INDEX} names: copy the folder again')
    return files
  if not (folder / SINGLE).is_file():
    if pickled := sorted(file.name for file in folder.glob('*.bin')):
      command = (
        'python -c "import transformers as t; m = t.AutoModel'
        f'{"ForSeq2SeqLM" if read_json(folder / "config.json").get("is_encoder_decoder") else "ForCausalLM"}'
        f".from_pretrained('{folder}'); m.save_pretrained('{folder}-safe', safe_serialization=True)\""
      )
      raise UserError(f'{folder} has its weights only as pickle ({pickled[0]}), which is refused: convert by {command}')
    raise UserError(f'{folder} has no {SINGLE}: copy the folder again, with its weights')
  return files_in(folder, SINGLE)


def files_in(folder: pathlib.Path, file: str) -> dict[str, str]:
  """The same where one file holds all."""
  return dict.fromkeys(opened(folder / file).keys(), file)


def opened(file: pathlib.Path) -> Any:
  from safetensors import SafetensorError, safe_open

  try:
    return safe_open(file, 'flax')
  except (SafetensorError, OSError) as error:
    raise UserError(f'{file} is corrupt or cut short ({error}): copy it again') from None


def shaped(tensors: Mapping[str, Any], name: str, *shape: int) -> Array:
  """The tensor of this name.

  Raises:
    UserError: it has another shape.
  """
  tensor = tensors[name]
  if tensor.shape != shape:
    have, want = list(tensor.shape), list(shape)
    origin = getattr(tensors, 'origin', Tensors.origin)
    raise UserError(f'{name} is of shape {have}, and {origin} means {want}: the two do not belong together')
  return jnp.asarray(tensor)


def are_equal(a: Array, b: Array) -> bool:
  """Whether one array is a copy of the other."""
  return a.shape == b.shape and bool((a == b).all())


def fit(params: Params, expected: Params) -> None:
  """Gives matrices [outputs, inputs] the axes of their outputs, in place: no second copy of the model."""
  for name, value in params.items():
    if isinstance(value, dict):
      fit(value, expected[name])
    elif name in expected and value.shape != expected[name].shape:
      params[name] = value.reshape(expected[name].shape)


def listed(names: list[str]) -> str:
  return ', '.join(names[:SHOWN]) + (f' and {len(names) - SHOWN} more' if len(names) > SHOWN else '')
