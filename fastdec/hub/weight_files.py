"""Files of weights in a published folder: which file holds which tensor, and what to do otherwise.

Nothing outside the folder is opened, and no pickle is. Errors name the layout of the folder, and
the command that converts it.
"""

import os
import pathlib
import re
from collections.abc import Iterable

from fastdec.errors import UserError
from fastdec.fields import shown
from fastdec.files import read_json
from fastdec.folders.folder import INDEX
from fastdec.folders.stored import stored_in

SINGLE = 'model.safetensors'
SHOWN = 8  # names in a message
FILE_NAME = re.compile(r'[^/\\\0]+')  # a name, not a path
# Parts of names that PyTorch's wrappers add: of torch.compile, FSDP and checkpointing.
WRAPPERS = {'_orig_mod', '_fsdp_wrapped_module', '_checkpoint_wrapped_module'}
OTHER_LAYOUTS = ('.pth', '.h5', '.msgpack', '.onnx', '.ot')


def files_of(folder: pathlib.Path) -> dict[str, str]:
  """Returns the file that holds each tensor.

  A whole file goes before an index, as in `transformers`: the index may be left over.

  Raises:
    UserError: no weights, weights only as pickle, or an index of files outside this folder.
  """
  if (folder / SINGLE).is_file():
    return files_in(folder, SINGLE)
  if (folder / INDEX).is_file():
    return _read_index(folder)
  check_kind(folder)
  pickles = sorted(file.name for file in folder.glob('*.bin'))
  if pickles:
    has_encoder = read_json(folder / 'config.json').get('is_encoder_decoder')
    auto_class = 'AutoModelForSeq2SeqLM' if has_encoder else 'AutoModelForCausalLM'
    command = (
      f'python -c "import transformers as t; m = t.{auto_class}'
      f".from_pretrained('{folder}'); m.save_pretrained('{folder}-safe', safe_serialization=True)\""
    )
    raise UserError(
      f'{folder} has its weights only as pickle ({pickles[0]}), which is refused:'
      f' convert by {command}'
    )
  _check_layout(folder)
  raise UserError(f'{folder} has no {SINGLE}: copy the folder again, with its weights')


def files_in(folder: pathlib.Path, file: str) -> dict[str, str]:
  """Returns `files_of` for one file with all tensors."""
  return dict.fromkeys(plain_names(stored_in(folder / file)).values(), file)


def _read_index(folder: pathlib.Path) -> dict[str, str]:
  """Reads the index. It must hold plain names of files: nothing outside the folder is opened."""
  files = read_json(folder / INDEX).get('weight_map')
  if not isinstance(files, dict):
    raise UserError(f'{folder / INDEX} has no weight_map: restore the file')
  for tensor, file in files.items():
    if not isinstance(file, str) or not FILE_NAME.fullmatch(file):
      raise UserError(
        f'{folder / INDEX} says that {tensor} is in {file!r}: it must be the name of'
        ' a file beside it'
      )
  # os.path: a name that is too long for a file is absent, no error
  absent = sorted({file for file in files.values() if not os.path.isfile(folder / file)})
  if absent:
    raise UserError(f'{folder} lacks {listed(absent)}, which {INDEX} names: copy the folder again')
  return {plain: files[name] for name, plain in plain_names(files).items()}


def plain_names(names: Iterable[str]) -> dict[str, str]:
  """Maps stored names to names without the parts that wrappers add.

  >>> plain_names(['module._orig_mod.norm.weight', 'module._orig_mod.layers.0.bias'])
  {'module._orig_mod.norm.weight': 'norm.weight', 'module._orig_mod.layers.0.bias': 'layers.0.bias'}
  """
  parts = {}
  for name in names:
    parts[name] = [part for part in name.split('.') if part not in WRAPPERS]
  # data parallel modules begin all names with 'module', perhaps several times
  while parts and all(path[0] == 'module' and len(path) > 1 for path in parts.values()):
    parts = {name: path[1:] for name, path in parts.items()}
  plain = {name: '.'.join(path) for name, path in parts.items()}
  has_clash = len(set(plain.values())) < len(plain)
  return {name: name for name in plain} if has_clash else plain


def check_kind(folder: pathlib.Path) -> None:
  """Raises UserError, with the remedy, for an adapter, or a folder with GGUF files."""
  names = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
  if 'adapter_config.json' in names:
    adapter = read_json(folder / 'adapter_config.json')
    base = adapter.get('base_model_name_or_path')
    is_seq2seq = 'SEQ_2_SEQ' in str(adapter.get('task_type'))
    command = (
      'python -c "import peft, transformers as t; m = peft.AutoPeftModelFor'
      f"{'Seq2SeqLM' if is_seq2seq else 'CausalLM'}.from_pretrained('{folder}').merge_and_unload();"
      f" m.save_pretrained('{folder}-merged'); t.AutoTokenizer.from_pretrained('{base}')"
      f".save_pretrained('{folder}-merged')\""
    )
    raise UserError(
      f'{folder} is an adapter (LoRA) of {shown(base)}, not a model: merge them by {command}'
    )
  ggufs = [name for name in names if name.endswith('.gguf')]
  if ggufs:
    raise UserError(
      f'{folder} has its weights as GGUF, {listed(ggufs)}: give the file, {folder / ggufs[0]}'
    )


def check_place(folder: pathlib.Path) -> None:
  """Raises UserError, with the remedy, for a folder without config.json that is near a model's."""
  names = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
  if (folder / 'draft' / 'config.json').is_file():  # a run that trained a draft: others say so
    return
  others = [name for name in names if name == 'params.json' or name.startswith('consolidated.')]
  if others:
    raise UserError(
      f"{folder} is in its authors' own layout ({listed(others)}), which is not read: give the same"
      " model in Hugging Face's (config.json and *.safetensors)"
    )

  # The cache of Hugging Face's hub: models--OWNER--NAME/snapshots/COMMIT, perhaps in hub/.
  cached = sorted(folder.glob('models--*')) or sorted(folder.glob('hub/models--*'))
  snapshots = sorted(folder.glob('snapshots/*/config.json')) or sorted(folder.glob('*/config.json'))
  if cached:
    models = ['/'.join(path.name.split('--')[1:]) for path in cached]
    raise UserError(
      f"{folder} is the cache of Hugging Face's hub, with {listed(models)}: give such a name, or"
      f' the folder of a model, as {cached[0] / "snapshots"} has it'
    )
  if snapshots:
    folders = [f'{file.parent}' for file in snapshots]
    remedy = 'has: give that folder' if len(folders) == 1 else 'have: give one of these folders'
    raise UserError(f'{folder} has no config.json, but {listed(folders)} {remedy}')
  weights = [name for name in names if name.endswith('.safetensors')]
  if weights:
    raise UserError(
      f'{folder} has no config.json beside {listed(weights)}: copy it there from where the model'
      ' came'
    )


def _check_layout(folder: pathlib.Path) -> None:
  """Raises UserError, with the remedy, for a folder whose weights have other file names."""
  names = sorted(file.name for file in folder.iterdir())
  weights = [name for name in names if name.endswith('.safetensors')]
  if any(re.fullmatch(r'model-\d+-of-\d+\.safetensors', name) for name in weights):
    raise UserError(f'{folder} lacks {INDEX}, which says what is where: copy the folder again')
  if len(weights) == 1 and re.fullmatch(r'(model\.\w+|pytorch_model)\.safetensors', weights[0]):
    raise UserError(
      f'{folder} has its weights under another name, {weights[0]}: rename it to {SINGLE}'
    )
  if not weights:
    weights = [name for name in names if name.endswith(OTHER_LAYOUTS)]
  if weights:
    raise UserError(
      f'{folder} has no {SINGLE}, but {listed(weights)}, of another layout: give a folder as'
      ' `save_pretrained` writes it'
    )


def conversion_command(pickle: pathlib.Path, file: pathlib.Path) -> str:
  """Returns the command that writes the tensors of a pickle as a safetensors file."""
  return (
    'python -c "import torch, safetensors.torch as s; s.save_file({k: v.clone() for k, v in'
    f" torch.load('{pickle}', map_location='cpu', weights_only=True).items()}}, '{file}')\""
  )


def listed(names: list[str]) -> str:
  """Returns names for a message, of which a long list is cut."""
  text = ', '.join(names[:SHOWN])
  return f'{text} and {len(names) - SHOWN} more' if len(names) > SHOWN else text
