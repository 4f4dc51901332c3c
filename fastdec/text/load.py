"""Reads models, heads, drafts and tokenizers from folders and files, our own and published ones."""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
from jax.sharding import Mesh
from jaxtyping import DTypeLike

from fastdec import files, folders
from fastdec.decoding.description import parse
from fastdec.errors import UserError, UserNote
from fastdec.evaluation import machine
from fastdec.fields import quote, read
from fastdec.folders import native
from fastdec.folders.drafts import check_taps, draft_folder
from fastdec.folders.folder import (
  TOKENIZER_FILES,
  Folder,
  PathLike,
  find_folder,
  model_folder,
  split_dtype,
)
from fastdec.heads.draft import DraftNetwork
from fastdec.hub import drafts, gguf, huggingface, medusa, tokenizers
from fastdec.hub.generation import warn_of_processors
from fastdec.hub.weight_files import check_kind, check_place
from fastdec.kernels.packed import pack as packed_copy
from fastdec.kernels.packing import pack_if_faster
from fastdec.models.api import Params
from fastdec.models.fresh import shapes_of
from fastdec.tuning.tuned import COMMAND, Saved, Tuned, file_to_read, hash_part

HALVES = ('bfloat16', 'float16')


def open_folder(path: PathLike, dtype: DTypeLike | None = None) -> Folder:
  """Opens a folder by its format, and reads its config.json.

  Args:
    path: a model folder, the workdir of a finished training run, a GGUF file, or a folder of
      published heads; or a name on the Hugging Face hub, such as Qwen/Qwen3-0.6B.
    dtype: computes and keeps the parameters in this type (None: the type that the model was trained
      to compute in); 'int8', 'int8w': as None, with the kernels of products in int8.

  Raises:
    UserError: a folder that does not exist or has an unknown format; a type that no model computes
      in.
  """
  folder = model_folder(path)
  compute_dtype, kernel_dtype = split_dtype(dtype)
  if folder.is_file():
    return gguf.open_file(folder, compute_dtype, kernel_dtype)
  # Published heads may have no config.json.
  file = folder / 'config.json'
  config = files.read_json(file) if file.is_file() else {}
  if medusa.holds_heads(folder, config):
    return medusa.MedusaFolder(folder, config, compute_dtype, kernel_dtype)
  if 'model_type' in config and 'format' not in config:  # 'format' marks ours
    return huggingface.HuggingFaceFolder(folder, config, compute_dtype, kernel_dtype)
  if not file.is_file():
    check_kind(folder)
    check_place(folder)
  return native.open(folder, dtype)


def open_fast(path: PathLike, dtype: DTypeLike | None = None) -> Folder:
  """Opens a folder as `open_folder`, for writing text, in float32 if the CPU is slow in its type.

  The CPU is slow in half precision if it has no units for it; if the kernels are int8, any CPU is.
  Float32 holds the same numbers exactly and rounds less, so texts do not get worse. A warning says
  what was chosen. The type stays if float32 would take more than half of the free memory.

  Args:
    path, dtype: as in `open_folder`; a type of computation that is given is kept.
  """
  folder = _open_exact(path, dtype)
  own = _type_of(folder)
  if split_dtype(dtype)[0] is not None or own not in HALVES or jax.default_backend() != 'cpu':
    return folder
  if own == 'bfloat16' and machine.computes_bfloat16():
    return folder
  reason = f'{path} is in {own}, which this CPU has no units for'
  count = sum(leaf.size for leaf in jax.tree.leaves(shapes_of(folder.model)))
  if 4 * count > machine.free_memory() / 2:
    note = f"{reason}, and it is too large for float32 here: dtype='int8' is faster"
    warnings.warn(note, UserNote, stacklevel=2)
    return folder
  note = f"{reason}: it computes in float32, and dtype='int8' would be even faster"
  warnings.warn(note, UserNote, stacklevel=2)
  return dataclasses.replace(folder, dtype='float32')


def _open_exact(path: PathLike, dtype: DTypeLike | None) -> Folder:
  """Opens a folder as `open_folder`; on a CPU, what int8 leaves in half precision is in float32.

  Only then a call on several tokens gives the same bits as calls on one.
  """
  folder = open_folder(path, dtype)
  is_int8 = split_dtype(dtype)[1] == 'int8' and jax.default_backend() == 'cpu'
  if is_int8 and _type_of(folder) in HALVES:
    return dataclasses.replace(folder, dtype='float32')
  return folder


def _type_of(folder: Folder) -> str:
  return str(getattr(getattr(folder.model, 'config', None), 'dtype', ''))


def choose_draft_type(model: Folder, dtype: DTypeLike | None) -> DTypeLike | None:
  """Returns the type to read a draft in, for a model that `open_fast` opened with this dtype.

  A draft only guesses, so rounding it changes no lossless text. If no type is given and the CPU has
  units for int8, the draft is read in int8: a call of SmolLM2-135M in bfloat16 then takes 4 to 11 %
  less time.
  """
  if dtype is None and machine.computes_bytes():
    return 'int8'
  return dtype or model.dtype


def load(
  path: PathLike,
  dtype: DTypeLike | None = None,
  mesh: Mesh | None = None,
  pack: bool | Literal['auto'] = False,
) -> tuple[Any, Params]:
  """Reads the model of a folder, or of a training run's workdir, and its parameters.

  Each parameter is read by itself, straight onto its devices. So a mesh can hold a model that is
  larger than one device, and the host holds one parameter at a time.

  Args:
    path: the folder, ours or one of Hugging Face's with safetensors; or a GGUF file.
    dtype: computes and keeps the parameters in this type (None: the type that the model was trained
      to compute in). 'int8', 'int8w': as None, with the kernels of products in int8, as
      `fd.quantize` makes them: a quarter of the bytes. In 'int8w' their inputs keep their type. On
      a CPU, 'int8' has float32 where None has half precision (`docs/own/exact.md`).
    mesh: devices (`sharding.make_mesh`) over which the model is spread as its `partition` says
      (None: one device).
    pack: True: packs the parameters, as `fd.pack`; 'auto': if that makes decoding here faster.

  Raises:
    UserError: a folder that does not exist, is not whole, or does not fit its config; a mesh that
      does not divide the model.
  """
  folder = _open_exact(path, dtype)
  model, params = folder.model, folder.params(mesh)
  warn_of_processors(folder.path, folder.generation)
  if pack == 'auto':
    return pack_if_faster(model, params)
  if pack:
    params = packed_copy(model, params)
  return model, params


def load_heads(
  path: PathLike, dtype: DTypeLike | None = None, mesh: Mesh | None = None
) -> tuple[Any, Params]:
  """Reads a folder's or workdir's prediction heads, ours or Medusa's, and parameters as `load`."""
  folder = open_folder(path, dtype)
  return folder.heads, folder.head_params(mesh)


def load_tokenizer(path: PathLike | Folder) -> Any:
  """Reads the tokenizer of a model's folder or workdir, or of a folder of tokenizer files.

  .encode(str, special=True) -> list[int], .decode(ids) -> str; for chats .render(messages) -> str
  and .encode_chat(messages) -> list[int].

  Args:
    path: the folder, or what `open_folder` returned for it.
  """
  if not isinstance(path, Folder):
    place = find_folder(path)
    names = (*TOKENIZER_FILES, *tokenizers.UNREAD)
    has_tokenizer = any((place / name).is_file() for name in names)
    # A run's workdir has its model in the folder 'model'.
    has_model = any((place / name / 'config.json').is_file() for name in ('', 'model'))
    if has_tokenizer and not has_model:
      return tokenizers.load(place)
    path = open_folder(place)
  if isinstance(path, native.NativeFolder):
    tokenizer = tokenizers.load_ours(path.path)
  elif isinstance(path, gguf.GgufFile):
    tokenizer = tokenizers.load_gguf(path.header)
  else:
    tokenizer = tokenizers.load(path.path, path.config.get('model_type'))
  if hasattr(tokenizer, 'hide'):
    with contextlib.suppress(UserError):  # a damaged config.json; its model will say so
      tokenizer.hide(path.ends)
  return tokenizer


def load_draft(
  path: PathLike,
  dtype: DTypeLike | None = None,
  mesh: Mesh | None = None,
  taps: Sequence[int] | None = None,
) -> tuple[DraftNetwork, Params]:
  """Reads a draft: an `EagleNetwork` for `fd.Eagle` or a `BlockNetwork` for `fd.BlockDraft`.

  Args:
    path: our folder, or the workdir of a run that trained one; or as published: EAGLE-1, -2 and -3
      (SafeAILab, SpecForge, speculators, DeepSpec), DFlash, DSpark; or the folder of a Qwen model
      with `mtp.*` tensors.
    dtype: computes and keeps the parameters in this type (None: the type that config.json says).
      'int8', 'int8w': as None, with the kernels of products in int8.
    mesh: devices over which it is spread, as in `load` (None: one device).
    taps: the target's layers whose states it reads; k is the residual stream after k layers. None:
      as its folder says. Official drafts of EAGLE-3 do not say it; a rule chooses the layers when
      the target is known.

  Returns:
    The network, and its parameters.

  Raises:
    UserError: the folder does not exist, files are missing, or its kind is unknown or unsupported;
      there are more or fewer taps than it reads.
  """
  check_taps(taps)
  folder = draft_folder(path)
  if not (folder / 'config.json').is_file():
    check_kind(folder)
    check_place(folder)
  config = files.read_json(folder / 'config.json')
  if 'format' in config:
    return folders.load_draft(folder, dtype, mesh, taps)
  return drafts.load_draft(folder, config, dtype, mesh, taps)


def is_draft(path: PathLike) -> bool:
  """True if a folder holds a draft network, even one that `load_draft` refuses.

  Models and heads are not draft networks.

  Raises:
    UserError: as `fd.load_draft` if the folder does not exist or has its weights only as pickle.
  """
  folder = find_folder(path)
  if (folder / 'draft' / 'config.json').is_file():
    return True
  if not (folder / 'config.json').is_file():
    return False
  config = files.read_json(folder / 'config.json')
  if 'format' in config:
    return 'draft' in config
  return drafts.is_draft(folder, config)


def is_tuned(strategy: Any) -> bool:
  """True if a strategy is 'tuned' or the name of a file of `fd.tune`, not a strategy in words."""
  return isinstance(strategy, str) and (strategy == 'tuned' or strategy.endswith('.json'))


def load_tuned(
  model: PathLike,
  part: PathLike | None = None,
  file: PathLike | None = None,
  mesh: Mesh | None = None,
  prepare: Callable[[Any, Any], tuple[Any, Any]] | None = None,
) -> Tuned:
  """Reads the file of `Tuned.save`, and loads the strategy's heads or draft.

  Args:
    model: the folder of the model, or the workdir.
    part: the folder of the heads or the draft, unless they are the model's own. The folder that the
      file names is not opened, since someone else may have written the file.
    file: where it was written (None: `tuned.json` in the model's folder, `NAME.tuned.json` next to
      NAME.gguf, or either in the user's own folder).
    mesh: devices over which heads or draft are spread, as in `load`.
    prepare: makes (module, params) of heads or draft into what decodes, such as with `fd.pack`;
      None: as they are.

  Raises:
    UserError: the file does not exist or is damaged, or the model, the heads or the draft are not
      those that it was made with.
  """
  path = file_to_read(model) if file is None else files.place(file)
  remedy = f'{COMMAND} --model={model} --prompts=lines.txt'
  if not path.is_file():
    raise UserError(f'{path} does not exist: make it by {remedy}')
  content = files.read_json(path)
  if content.get('model') != folders.content(model):
    raise UserError(
      f'{path} was made with a different model than {model} has now: make it again by {remedy}'
    )
  try:
    saved = read(Saved, content, path.name, mark=': ')
  except UserError as error:
    raise UserError(f'{path} is damaged ({error}): make it again by {remedy}') from None
  tuned = saved.figures

  # Read the heads or the draft, if they are the ones that the file was made with.
  drafting = None
  if saved.part is not None:
    kind = saved.part.kind
    if part is None and saved.part.folder is not None:
      place = quote(saved.part.folder)
      raise UserError(f'{path} drafts with the {kind} of {place}: give that folder too, as part')
    folder = part or model
    if saved.part.content != hash_part(kind, folder):
      raise UserError(
        f'{path} was made with a different {kind} than {folder} has now: make it again by {remedy}'
      )
    loaders = {'heads': load_heads, 'draft network': load_draft, 'draft model': load}
    opened = open_fast(model, tuned.dtype)
    if kind == 'heads':
      dtype = tuned.dtype or opened.dtype
    else:
      dtype = choose_draft_type(opened, tuned.dtype)
    drafting = loaders[kind](folder, dtype=dtype, mesh=mesh)
    if prepare is not None:
      drafting = prepare(*drafting)

  try:
    strategy = parse(saved.strategy, drafting)
  except UserError as error:
    raise UserError(f'{path} is damaged ({error}): make it again by {remedy}') from None
  if tuned.machine != machine.here():
    warnings.warn(
      f'{path} has figures of another machine ({tuned.machine}), and a different strategy may be'
      f' faster here: make it again by {remedy}',
      UserNote,
      stacklevel=2,
    )
  return dataclasses.replace(tuned, strategy=strategy)
