"""Files of weights in a published folder: which file has which tensor.

Nothing outside the folder is opened, and no pickle. Errors name the layout of the folder, and the
command that converts it.
"""

import os
import pathlib
import re
from collections.abc import Iterable

from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.files import read_json
from fastdec.folders.folder import INDEX
from fastdec.folders.stored import stored_in

SINGLE = 'model.safetensors'
SHOWN = 8  # names in a message
FILE_NAME = re.compile(r'[^/\\\0]+')  # a name, not a path
# Parts of names that PyTorch's wrappers add: of torch.compile, FSDP and checkpointing.
WRAPPERS = {'_orig_mod', '_fsdp_wrapped_module', '_checkpoint_wrapped_module'}
OTHER_LAYOUTS = ('.pth', '.h5', '.msgpack', '.onnx', '.ot')


def find_files(folder: pathlib.Path) -> dict[str, str]:
  """Returns the file that holds each tensor.

  A single file wins over an index, as in `transformers`: the index may be left over.

  Raises:
    UserError: the folder has no weights, or only as pickle, or its index names files elsewhere.
  """
  if (folder / SINGLE).is_file():
    return files_in(folder, SINGLE)
  if (folder / INDEX).is_file():
    return _read_index(folder)
  check_kind(folder)
  pickles = sorted(folder.glob('*.bin'))
  if pickles:
    auto_class = 'AutoModelForCausalLM'
    if read_json(folder / 'config.json').get('is_encoder_decoder'):
      auto_class = 'AutoModelForSeq2SeqLM'
    command = (
      f'python -c "import transformers as t; m = t.{auto_class}'
      f".from_pretrained('{folder}'); m.save_pretrained('{folder}-safe', safe_serialization=True)\""
    )
    raise pickle_error(pickles[0], 'weights', command)

  # The weights may have other file names.
  names = sorted(file.name for file in folder.iterdir())
  weights = [name for name in names if name.endswith('.safetensors')]
  if any(re.fullmatch(r'model-\d+-of-\d+\.safetensors', name) for name in weights):
    raise UserError(f'{folder} lacks {INDEX}, which says what is where: copy the folder again')
  if len(weights) == 1 and re.fullmatch(r'(model\.\w+|pytorch_model)\.safetensors', weights[0]):
    raise UserError(
      f'{folder} has its weights under another name, {weights[0]}: rename it to {SINGLE}'
    )
  weights = weights or [name for name in names if name.endswith(OTHER_LAYOUTS)]
  if weights:
    raise UserError(
      f'{folder} has no {SINGLE}, but {list_names(weights)} in another layout: give a folder as'
      ' `save_pretrained` writes it'
    )
  raise UserError(f'{folder} has no {SINGLE}: copy the folder again, with its weights')


def files_in(folder: pathlib.Path, file: str) -> dict[str, str]:
  """Returns `find_files` for one file with all tensors."""
  return dict.fromkeys(plain_names(stored_in(folder / file)).values(), file)


def _read_index(folder: pathlib.Path) -> dict[str, str]:
  """Reads the index, which must name files in this folder."""
  files = read_json(folder / INDEX).get('weight_map')
  if not isinstance(files, dict):
    raise UserError(f'{folder / INDEX} has no weight_map: restore the file')
  for tensor, file in files.items():
    if not isinstance(file, str) or not FILE_NAME.fullmatch(file):
      raise UserError(
        f'{folder / INDEX} says that {tensor} is in {file!r}: it must be the name of'
        ' a file in the same folder'
      )
  # os.path: a name that is too long for a file is absent, not an error
  absent = [file for file in sorted(set(files.values())) if not os.path.isfile(folder / file)]
  if absent:
    raise UserError(
      f'{folder} lacks {list_names(absent)}, which {INDEX} names: copy the folder again'
    )
  return {plain: files[name] for name, plain in plain_names(files).items()}


def plain_names(names: Iterable[str]) -> dict[str, str]:
  """Maps stored names to names without the parts that wrappers add.

  >>> plain_names(['module._orig_mod.norm.weight', 'module._orig_mod.layers.0.bias'])
  {'module._orig_mod.norm.weight': 'norm.weight', 'module._orig_mod.layers.0.bias': 'layers.0.bias'}
  """
  plain = {}
  for name in names:
    plain[name] = '.'.join(part for part in name.split('.') if part not in WRAPPERS)
  # Data parallel modules begin all names with 'module', perhaps several times.
  while plain and all(name.startswith('module.') for name in plain.values()):
    for name in plain:
      plain[name] = plain[name].removeprefix('module.')
  if len(set(plain.values())) < len(plain):  # two tensors would have the same name
    return dict(zip(plain, plain, strict=True))
  return plain


def check_kind(folder: pathlib.Path) -> None:
  """Raises UserError, with the remedy, for an adapter, or a folder with GGUF files."""
  if (folder / 'adapter_config.json').is_file():
    adapter = read_json(folder / 'adapter_config.json')
    base = adapter.get('base_model_name_or_path')
    auto_class = 'AutoPeftModelForCausalLM'
    if 'SEQ_2_SEQ' in str(adapter.get('task_type')):
      auto_class = 'AutoPeftModelForSeq2SeqLM'
    command = (
      'python -c "import peft, transformers as t;'
      f" m = peft.{auto_class}.from_pretrained('{folder}').merge_and_unload();"
      f" m.save_pretrained('{folder}-merged'); t.AutoTokenizer.from_pretrained('{base}')"
      f".save_pretrained('{folder}-merged')\""
    )
    raise UserError(
      f'{folder} is an adapter (LoRA) of {quote(base)}, not a model: merge them by {command}'
    )
  ggufs = sorted(file.name for file in folder.glob('*.gguf'))
  if ggufs:
    raise UserError(
      f'{folder} has its weights as GGUF, {list_names(ggufs)}: give the file, {folder / ggufs[0]}'
    )


def check_place(folder: pathlib.Path) -> None:
  """Raises UserError, with the remedy, for a folder without config.json that is near a model's."""
  if (folder / 'draft' / 'config.json').is_file():  # a run that trained a draft has its own error
    return
  others = [*folder.glob('params.json'), *folder.glob('consolidated.*')]
  others = sorted(file.name for file in others)
  if others:
    raise UserError(
      f"{folder} is in its authors' own layout ({list_names(others)}), which is not supported: give"
      " the same model in Hugging Face's (config.json and *.safetensors)"
    )

  # The cache of Hugging Face's hub: models--OWNER--NAME/snapshots/COMMIT, perhaps in hub/.
  cached = sorted(folder.glob('models--*')) or sorted(folder.glob('hub/models--*'))
  snapshots = sorted(folder.glob('snapshots/*/config.json')) or sorted(folder.glob('*/config.json'))
  if cached:
    models = [path.name.removeprefix('models--').replace('--', '/') for path in cached]
    raise UserError(
      f"{folder} is the cache of Hugging Face's hub, with {list_names(models)}: give such a name,"
      f' or the folder of a model in {cached[0] / "snapshots"}'
    )
  if snapshots:
    folders = list_names([f'{file.parent}' for file in snapshots])
    if len(snapshots) == 1:
      raise UserError(f'{folder} has no config.json, but {folders} has: give that folder')
    raise UserError(f'{folder} has no config.json, but {folders} have: give one of these folders')
  weights = sorted(file.name for file in folder.glob('*.safetensors'))
  if weights:
    raise UserError(
      f'{folder} has no config.json for {list_names(weights)}: copy it there from where the model'
      ' came'
    )


def pickle_error(
  pickle: pathlib.Path, what: str, command: str = '', file: str = SINGLE
) -> UserError:
  """Returns the error for weights only as pickle; by default `command` writes `file`."""
  folder = pickle.parent
  if not command:
    command = (
      'python -c "import torch, safetensors.torch as s; s.save_file({k: v.clone() for k, v in'
      f" torch.load('{pickle}', map_location='cpu', weights_only=True).items()}},"
      f" '{folder / file}')\""
    )
  return UserError(
    f'{folder} has its {what} only as pickle ({pickle.name}), which is refused:'
    f' convert by {command}'
  )


def list_names(names: list[str]) -> str:
  """Joins names for a message, and cuts a long list."""
  text = ', '.join(names[:SHOWN])
  return f'{text} and {len(names) - SHOWN} more' if len(names) > SHOWN else text
