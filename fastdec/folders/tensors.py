"""The tensors of a folder: found by name, checked by shape; errors list missing or unknown ones."""

import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fastdec.errors import UserError
from fastdec.files import read_json
from fastdec.folders.stored import Stored, stored_in
from fastdec.models.api import Params

INDEX, SINGLE = 'model.safetensors.index.json', 'model.safetensors'
# Tensors that may go unread: computed tables, copies of tied matrices, prediction heads
# (`folders.medusa`).
HARMLESS = re.compile(
  r'(rotary_emb\.inv_freq|lm_head\.weight|\.masked_bias|embed_positions\.weights?)$|^medusa_head\.'
)
MTP = 'mtp.'  # prefix of the names of a draft network inside its model's folder (`folders.mtp`)
SHOWN, LISTED = 8, 99
PLAIN = re.compile(r'[^/\\\0]+')  # the name of a file, not a path


class Tensors(Mapping[str, Any]):
  """The tensors of a folder by name, each a `Stored`.

  Another tensor of its shape stands in for a missing one, so that `check` can list all missing.
  """

  origin = 'config.json'  # the file that gives their sizes
  # for errors of `check`
  advice = 'its tensors and its config.json do not belong together'

  def __init__(self, folder: pathlib.Path, files: Mapping[str, str] | None = None):
    self.where, self.folder = folder, folder
    self.asked: set[str] = set()
    self.missing: list[str] = []
    self._read: dict[str, dict[str, Stored]] = {}
    self._files = files_of(folder) if files is None else files  # the file that holds each tensor

  def __iter__(self) -> Iterator[str]:
    return iter(self._files)

  def __len__(self) -> int:
    return len(self._files)

  def __contains__(self, name: object) -> bool:
    return name in self._files

  def __getitem__(self, name: str) -> Any:
    self.asked.add(name)
    if name not in self._files:
      self.missing.append(name)
      parts = (r'\d+' if part.isdigit() else re.escape(part) for part in name.split('.'))
      alike = re.compile(r'\.'.join(parts))  # another layer's has the same shape
      name = next((other for other in self._files if alike.fullmatch(other)), '')
      if not name or len(self.missing) > LISTED:  # enough is known
        self.check()
    return self.find(name)

  def find(self, name: str) -> Any:
    """Returns an existing tensor, without a note that it was asked for."""
    file = self._files[name]
    if file not in self._read:
      self._read[file] = stored_in(self.folder / file)
    if name not in self._read[file]:
      where = f'{self.folder / file} has no {name}, which {INDEX} says is there'
      raise UserError(f'{where}: copy the folder again')
    return self._read[file][name]

  def check(self) -> None:
    """Raises UserError if a tensor was missing, or if nobody asked for one that exists."""
    extra = (
      []
      if self.missing
      else [n for n in self._files if n not in self.asked and not HARMLESS.search(n)]
    )
    parts = [
      f'{word} {listed(names)}'
      for word, names in (('lacks', self.missing), ('has unknown', extra))
      if names
    ]
    if parts:
      raise UserError(f'{self.where} {" and ".join(parts)}: {self.advice}')


def files_of(folder: pathlib.Path) -> dict[str, str]:
  """Returns the file that holds each tensor.

  A whole file goes before an index, as in `transformers`: the index may be left over.

  Raises:
    UserError: no weights, weights only as pickle, or an index of files outside this folder.
  """
  if (folder / SINGLE).is_file():
    return files_in(folder, SINGLE)
  if (folder / INDEX).is_file():
    return _indexed(folder)
  if pickled := sorted(file.name for file in folder.glob('*.bin')):
    has_encoder = read_json(folder / 'config.json').get('is_encoder_decoder')
    command = (
      'python -c "import transformers as t; m = t.AutoModel'
      f'{"ForSeq2SeqLM" if has_encoder else "ForCausalLM"}'
      f".from_pretrained('{folder}'); m.save_pretrained('{folder}-safe', safe_serialization=True)\""
    )
    raise UserError(
      f'{folder} has its weights only as pickle ({pickled[0]}), which is refused:'
      f' convert by {command}'
    )
  raise UserError(f'{folder} has no {SINGLE}: copy the folder again, with its weights')


def conversion(pickled: pathlib.Path, file: pathlib.Path) -> str:
  """Returns the command that writes the tensors of a pickle as a safetensors file."""
  return (
    'python -c "import torch, safetensors.torch as s; s.save_file({k: v.clone() for k, v in'
    f" torch.load('{pickled}', map_location='cpu', weights_only=True).items()}}, '{file}')\""
  )


def _indexed(folder: pathlib.Path) -> dict[str, str]:
  """Reads the index. It must hold plain names of files: nothing outside the folder is opened."""
  files = read_json(folder / INDEX).get('weight_map')
  if not isinstance(files, dict):
    raise UserError(f'{folder / INDEX} has no weight_map: restore the file')
  for tensor, file in files.items():
    if not isinstance(file, str) or not PLAIN.fullmatch(file):
      raise UserError(
        f'{folder / INDEX} says that {tensor} is in {file!r}: it must be the name of'
        ' a file beside it'
      )
  # os.path: a name that is too long for a file is absent, no error
  if absent := sorted({file for file in files.values() if not os.path.isfile(folder / file)}):
    raise UserError(f'{folder} lacks {listed(absent)}, which {INDEX} names: copy the folder again')
  return files


def files_in(folder: pathlib.Path, file: str) -> dict[str, str]:
  """Returns `files_of` for one file with all tensors."""
  return dict.fromkeys(stored_in(folder / file), file)


def shaped(tensors: Mapping[str, Any], name: str, *shape: int) -> Any:
  """Returns the tensor of this name.

  Raises:
    UserError: it has another shape.
  """
  tensor = tensors[name]
  if tensor.shape != shape:
    have, want = list(tensor.shape), list(shape)
    origin = getattr(tensors, 'origin', Tensors.origin)
    raise UserError(
      f'{name} is of shape {have}, and {origin} means {want}: the two do not belong together'
    )
  return tensor


def are_equal(a: Any, b: Any) -> bool:
  """True if one tensor is a copy of the other."""
  return a.shape == b.shape and bool((a[:] == b[:]).all())


def fit(params: Params, expected: Params) -> None:
  """Gives matrices [outputs, inputs] the axes of their outputs, in place."""
  for name, value in params.items():
    if isinstance(value, dict):
      fit(value, expected[name])
    elif name in expected and value.shape != expected[name].shape:
      params[name] = value.reshape(*expected[name].shape)


def listed(names: list[str]) -> str:
  return ', '.join(names[:SHOWN]) + (
    f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''
  )
