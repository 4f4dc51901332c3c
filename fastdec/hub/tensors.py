"""The tensors of a folder by name, checked by shape. Errors list missing or unknown ones."""

import dataclasses
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastdec.errors import UserError
from fastdec.folders.folder import INDEX
from fastdec.folders.stored import Stacked, Stored, read_metadata, stored_in
from fastdec.hub.weight_files import find_files, list_names, plain_names
from fastdec.models.api import Params

# Tensors that may go unread: computed tables, copies of tied matrices, prediction heads
# (`hub.medusa`).
HARMLESS = re.compile(
  r'(rotary_emb\.inv_freq|lm_head\.weight|\.masked_bias|embed_positions\.weights?)$|^medusa_heads?\.'
)
MTP = 'mtp.'  # prefix of the names of a draft network inside its model's folder (`hub.mtp`)
ENOUGH = 99  # missing tensors, after which nothing more is read
EMBEDDINGS, OUTPUT = ('embed_tokens.weight', 'shared.weight'), 'lm_head.weight'


class Tensors(Mapping[str, Any]):
  """The tensors of a folder by name, each a `Stored`.

  A missing tensor is replaced by another one of its shape, so that `check` can list all that are
  missing. As in `transformers`, all names may lack 'model.' (in a base model saved by itself), or
  have it (in a draft's wrapper), and one of two tied tensors is enough.
  """

  origin = 'config.json'  # the file that gives their sizes
  # for errors of `check`
  advice = 'its tensors and its config.json do not belong together'

  def __init__(
    self, folder: pathlib.Path, files: Mapping[str, str] | None = None, is_tied: bool = False
  ):
    self.where, self.folder = folder, folder
    self.used: set[str] = set()
    self.missing: list[str] = []
    self._read: dict[str, dict[str, Stored]] = {}
    self._files = find_files(folder) if files is None else files  # the file of each tensor
    self._is_base = not any(name.startswith('model.') for name in self._files)
    self._is_tied = is_tied

  def __iter__(self) -> Iterator[str]:
    return iter(self._files)

  def __len__(self) -> int:
    return len(self._files)

  def __contains__(self, name: object) -> bool:
    return isinstance(name, str) and self._stored_name(name) in self._files

  def __getitem__(self, name: str) -> Any:
    if name not in self:
      name = self._tied_to(name) or name
    stored_name = self._stored_name(name)
    self.used.add(stored_name)
    if stored_name in self._files:
      return self.find(stored_name)
    self.missing.append(name)
    return self._stand_in(stored_name)

  def _stored_name(self, name: str) -> str:
    if self._is_base:
      return name.removeprefix('model.')
    if name not in self._files and f'model.{name}' in self._files:
      return f'model.{name}'
    return name

  def _tied_to(self, name: str) -> str | None:
    """Returns the name of the tensor that a missing one is tied to; None if there is none."""
    for file in sorted(set(self._files.values())):
      names_of_tied = read_metadata(self.folder / file)
      kept = names_of_tied.get(name, names_of_tied.get(self._stored_name(name)))
      if kept in self._files:
        return kept
    if self._is_tied and name.endswith(EMBEDDINGS) and OUTPUT in self._files:
      return OUTPUT
    return None

  def _stand_in(self, missing_name: str) -> Any:
    """Returns the tensor of a different layer, which has the same shape."""
    parts = [r'\d+' if part.isdigit() else re.escape(part) for part in missing_name.split('.')]
    of_any_layer = re.compile(r'\.'.join(parts))
    others = [name for name in self._files if of_any_layer.fullmatch(name)]
    if not others or len(self.missing) > ENOUGH:
      self.check()
    return self.find(others[0])

  def find(self, name: str) -> Any:
    """Returns an existing tensor without marking it as used."""
    file = self._files[name]
    if file not in self._read:
      stored = stored_in(self.folder / file)
      self._read[file] = {ours: stored[theirs] for theirs, ours in plain_names(stored).items()}
    if name not in self._read[file]:
      raise UserError(
        f'{self.folder / file} has no {name}, which {INDEX} says is there: copy the folder again'
      )
    return self._read[file][name]

  def check(self) -> None:
    """Raises UserError if a tensor was missing, or if one exists that was not used."""
    if self.missing:
      problem = f'lacks {list_names(self.missing)}'
    else:
      unused = self._files.keys() - self.used
      unknown = [name for name in self._files if name in unused and not HARMLESS.search(name)]
      if not unknown:
        return
      problem = f'has unknown {list_names(unknown)}'
    advice = self.advice
    if self._is_base and self.missing == [OUTPUT]:
      advice = 'it is a base model, give the whole one (`AutoModelForCausalLM`)'
    raise UserError(f'{self.where} {problem}: {advice}')


@dataclasses.dataclass(frozen=True)
class Place:
  """A tensor to write, which a reader of the format asks for."""

  name: str
  shape: tuple[int, ...] = ()


class Places(dict[str, Any]):
  """Tensors of a folder before it is written: a reader gets those that are known, and a place for
  any other."""

  def __missing__(self, name: str) -> Place:
    return Place(name)


def shaped(tensors: Mapping[str, Any], name: str, *shape: int) -> Any:
  """Returns the tensor of this name.

  Raises:
    UserError: it has another shape.
  """
  tensor = tensors[name]
  if isinstance(tensor, Place):
    return Place(name, shape)
  if tensor.shape != shape:
    have, want = list(tensor.shape), list(shape)
    origin = getattr(tensors, 'origin', Tensors.origin)
    raise UserError(
      f'{name} is of shape {have}, and {origin} means {want}: the two do not belong together'
    )
  return tensor


def norm(tensors: Mapping[str, Any], name: str, size: int, has_bias: bool = False) -> Params:
  """Returns the scale of a norm, and its bias if it has one."""
  params = {'scale': shaped(tensors, f'{name}.weight', size)}
  if has_bias:
    params['bias'] = shaped(tensors, f'{name}.bias', size)
  return params


def dense(
  tensors: Mapping[str, Any], name: str, outputs: int, inputs: int, has_bias: bool = False
) -> Params:
  """Returns the kernel [outputs, inputs] of a projection, and its bias if it has one."""
  params = {'kernel': shaped(tensors, f'{name}.weight', outputs, inputs)}
  if has_bias:
    params['bias'] = shaped(tensors, f'{name}.bias', outputs)
  return params


def stacked_dense(
  tensors: Mapping[str, Any],
  names: Sequence[str],
  outputs: int,
  inputs: int,
  has_bias: bool = False,
) -> Params:
  """Returns several projections of one size as one, such as those of keys and values."""
  parts = [dense(tensors, name, outputs, inputs, has_bias) for name in names]
  return stack_params(parts)


def stack_params(parts: Sequence[Params]) -> Params:
  """Returns parameters of the same shapes as one, with a new first axis."""
  return {name: Stacked(tuple(part[name] for part in parts)) for name in parts[0]}


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
