"""The tensors of a folder: found by name, checked by shape; errors list missing or unknown ones."""

import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import shown
from fastdec.files import read_json
from fastdec.folders.folder import INDEX
from fastdec.folders.stored import Stored, metadata_of, stored_in
from fastdec.models.api import Params

SINGLE = 'model.safetensors'
# Tensors that may go unread: computed tables, copies of tied matrices, prediction heads
# (`hub.medusa`).
HARMLESS = re.compile(
  r'(rotary_emb\.inv_freq|lm_head\.weight|\.masked_bias|embed_positions\.weights?)$|^medusa_head\.'
)
MTP = 'mtp.'  # prefix of the names of a draft network inside its model's folder (`hub.mtp`)
SHOWN, LISTED = 8, 99
PLAIN = re.compile(r'[^/\\\0]+')  # the name of a file, not a path
# Parts of names that PyTorch's wrappers put in: of torch.compile, FSDP and checkpointing.
WRAPPERS = {'_orig_mod', '_fsdp_wrapped_module', '_checkpoint_wrapped_module'}
EMBEDDINGS, OUTPUT = ('embed_tokens.weight', 'shared.weight'), 'lm_head.weight'


class Tensors(Mapping[str, Any]):
  """The tensors of a folder by name, each a `Stored`.

  Another tensor of its shape stands in for a missing one, so that `check` can list all missing.
  As in `transformers`, a name may lack 'model.', where none has it (a base model saved alone), and
  of tied tensors one may be there alone.
  """

  origin = 'config.json'  # the file that gives their sizes
  # for errors of `check`
  advice = 'its tensors and its config.json do not belong together'

  def __init__(
    self, folder: pathlib.Path, files: Mapping[str, str] | None = None, is_tied: bool = False
  ):
    self.where, self.folder = folder, folder
    self.asked: set[str] = set()
    self.missing: list[str] = []
    self._read: dict[str, dict[str, Stored]] = {}
    self._files = files_of(folder) if files is None else files  # the file that holds each tensor
    self._is_base = not any(name.startswith('model.') for name in self._files)
    self._is_tied = is_tied

  def __iter__(self) -> Iterator[str]:
    return iter(self._files)

  def __len__(self) -> int:
    return len(self._files)

  def __contains__(self, name: object) -> bool:
    return isinstance(name, str) and self._stored_name(name) in self._files

  def _stored_name(self, name: str) -> str:
    return name.removeprefix('model.') if self._is_base else name

  def _tied_to(self, name: str) -> str | None:
    """Returns the tensor that stands for a missing one: of the same matrix, as a file says."""
    for file in sorted(set(self._files.values())):
      said = metadata_of(self.folder / file)
      kept = said.get(name, said.get(self._stored_name(name)))
      if kept in self._files:
        return kept
    is_alone = self._is_tied and name.endswith(EMBEDDINGS) and OUTPUT in self._files
    return OUTPUT if is_alone else None

  def __getitem__(self, name: str) -> Any:
    if name not in self:
      name = self._tied_to(name) or name
    asked, name = name, self._stored_name(name)
    self.asked.add(name)
    if name not in self._files:
      self.missing.append(asked)
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
      stored = stored_in(self.folder / file)
      self._read[file] = {ours: stored[name] for name, ours in plain_names(stored).items()}
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
      is_base = self._is_base and self.missing == [OUTPUT]
      advice = 'it is a base model, give the whole one (`AutoModelForCausalLM`)'
      raise UserError(f'{self.where} {" and ".join(parts)}: {advice if is_base else self.advice}')


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
  check_kind(folder)
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
  _check_layout(folder)
  raise UserError(f'{folder} has no {SINGLE}: copy the folder again, with its weights')


def _check_layout(folder: pathlib.Path) -> None:
  """Raises UserError, with what to do, for a folder whose weights are under other names."""
  names = sorted(file.name for file in folder.iterdir())
  found = [name for name in names if name.endswith('.safetensors')]
  if any(re.fullmatch(r'model-\d+-of-\d+\.safetensors', name) for name in found):
    raise UserError(f'{folder} lacks {INDEX}, which says what is where: copy the folder again')
  if len(found) == 1 and re.fullmatch(r'(model\.\w+|pytorch_model)\.safetensors', found[0]):
    raise UserError(
      f'{folder} has its weights under another name, {found[0]}: rename it to {SINGLE}'
    )
  others = ('.pth', '.h5', '.msgpack', '.onnx', '.ot')
  if found or (found := [name for name in names if name.endswith(others)]):
    raise UserError(
      f'{folder} has no {SINGLE}, but {listed(found)}, of another layout: give a folder as'
      ' `save_pretrained` writes it'
    )


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
  return {ours: files[name] for name, ours in plain_names(files).items()}


def plain_names(names: Iterable[str]) -> dict[str, str]:
  """Returns names without the parts that wrappers put in, by the names as they are stored.

  >>> plain_names(['module._orig_mod.norm.weight', 'module._orig_mod.layers.0.bias'])
  {'module._orig_mod.norm.weight': 'norm.weight', 'module._orig_mod.layers.0.bias': 'layers.0.bias'}
  """
  parts = {name: [part for part in name.split('.') if part not in WRAPPERS] for name in names}
  while parts and all(part[0] == 'module' and len(part) > 1 for part in parts.values()):
    parts = {name: part[1:] for name, part in parts.items()}  # of data parallel modules
  plain = {name: '.'.join(part) for name, part in parts.items()}
  return plain if len(set(plain.values())) == len(plain) else {name: name for name in plain}


def check_kind(folder: pathlib.Path) -> None:
  """Raises UserError, with what to do, for a folder that is no model, or of another program."""
  names = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
  if 'adapter_config.json' in names:
    said = read_json(folder / 'adapter_config.json')
    base, is_seq2seq = (
      said.get('base_model_name_or_path'),
      'SEQ_2_SEQ' in str(said.get('task_type')),
    )
    command = (
      'python -c "import peft, transformers as t; m = peft.AutoPeftModelFor'
      f"{'Seq2SeqLM' if is_seq2seq else 'CausalLM'}.from_pretrained('{folder}').merge_and_unload();"
      f" m.save_pretrained('{folder}-merged'); t.AutoTokenizer.from_pretrained('{base}')"
      f".save_pretrained('{folder}-merged')\""
    )
    raise UserError(
      f'{folder} is an adapter (LoRA) of {shown(base)}, not a model: merge them by {command}'
    )
  if found := [name for name in names if name.endswith('.gguf')]:
    given = f"('{folder}', gguf_file='{found[0]}').save_pretrained('{folder}-safe')"
    raise UserError(
      f'{folder} has its weights as GGUF ({found[0]}), which is not read: give the safetensors that'
      ' they were made of, or convert them by python -c "import transformers as t;'
      f' t.AutoModelForCausalLM.from_pretrained{given}; t.AutoTokenizer.from_pretrained{given}"'
    )


def files_in(folder: pathlib.Path, file: str) -> dict[str, str]:
  """Returns `files_of` for one file with all tensors."""
  return dict.fromkeys(plain_names(stored_in(folder / file)).values(), file)


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
