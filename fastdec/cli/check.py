"""Says what folders and GGUF files hold: kind, sizes, memory, what is missing, and a sample text.

Example:
  fastdec check folder model.gguf --prompt='Once upon a time'

Each folder is opened as the other commands open it, and its weights are read.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fastdec as fd
from fastdec.cli.flags import Parser
from fastdec.cli.opening import add_length
from fastdec.errors import UserError
from fastdec.kernels.products import kernels_of
from fastdec.models.fresh import shapes_of
from fastdec.text.load import is_draft, load_draft, load_tokenizer, open_folder

GENERATION = 'generation_config.json'
FEW = 1024  # tokens: caches of this size and of twice this size are compared


def main(words: Sequence[str]) -> None:
  parser = Parser('check', __doc__)
  parser.usage = '%(prog)s FOLDER ... [--prompt=TEXT] [--dtype=TYPE] [--max-len=64]'
  parser.add_argument('--prompt', help="text to continue (the tokenizer's own start)")
  parser.add_argument('--dtype', help="float32, bfloat16, int8, ... (the model's own)")
  add_length(parser)
  args, paths = parser.read_with_words(words)
  if not paths:
    raise UserError('there is nothing to check: name one or more folders or files')
  wrong = []
  for path in paths:
    print(path)
    try:
      for line in describe_folder(path, args.prompt, args.dtype, args.max_len):
        # The memory that a model needs is on the screen before its weights are read.
        print(f'  {line}', flush=True)
    except UserError as error:
      if len(paths) == 1:
        raise
      print(f'  wrong: {error}', flush=True)
      wrong.append(path)
  if wrong:
    raise UserError(f'{len(wrong)} of {len(paths)} cannot be decoded with: {", ".join(wrong)}')


def describe_folder(path: str, prompt: str | None, dtype: str | None, most: int) -> Iterator[str]:
  """Yields lines about a folder: what it holds, what it needs and lacks, and a sample of its text.

  Raises:
    UserError: it holds nothing that can be decoded with, or files are missing.
  """
  if is_draft(path):
    yield f'draft network: {_describe_sizes(*load_draft(path))}'
    return
  folder = open_folder(path, dtype)

  # A folder of published heads has no model.
  model = None
  try:
    model = folder.model
  except UserError as error:
    if not folder.has_heads:
      raise
    yield f'model: none ({error})'
  else:
    if hasattr(model, 'init'):
      shapes = shapes_of(model)
    else:
      shapes = folder.params()
    text = _describe_sizes(model, shapes)
    if folder.config.get('model_type'):
      text = f'{folder.config["model_type"]}, {text}'
    yield f'model: {text}'
    yield f'needs: {_describe_memory(model, shapes)}'
  if folder.has_heads:
    yield f'prediction heads: {_describe_sizes(folder.heads, folder.head_params())}'

  tokenizer = None
  try:
    tokenizer = load_tokenizer(folder)
    yield f'tokenizer: {tokenizer.vocab_size:,} ids'
  except UserError as error:
    yield f'tokenizer: none ({error})'
  is_published = 'model_type' in folder.config and folder.path.is_dir()
  if is_published and not (folder.path / GENERATION).is_file():
    yield f'lacks: {GENERATION}, so that end and pad tokens are those of config.json'
  if model is not None and model.fixed_length is None:
    yield f'writes: {_write_sample(model, folder.params(), tokenizer, prompt, most)}'


def _describe_sizes(module: Any, params: Any) -> str:
  """Describes a module by its class, the number of its parameters, and its sizes."""
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  text = f'{type(module).__name__}, {count:,} parameters'
  for name in ('d_model', 'd_target', 'vocab_size', 'max_positions', 'depth', 'k'):
    value = getattr(module, name, None)
    if value is not None:
      text += f', {name} {value:,}'
  return text


def _describe_memory(model: Any, shapes: Any) -> str:
  """Writes the memory of the weights, by their type, and of a token in the cache."""
  leaves = jax.tree.leaves_with_path(shapes)
  count = sum(leaf.size for _, leaf in leaves)
  needs = [f'{_format_bytes(2 * count)} of weights in bfloat16']
  if getattr(model, 'products', ()):
    is_kernel, small = kernels_of(model), 0
    for path, leaf in leaves:
      if is_kernel(jax.tree_util.keystr(path, simple=True, separator='/')):
        small += leaf.size + 4 * math.prod(leaf.shape[:-1])  # a scale for each output
      else:
        small += 2 * leaf.size
    needs.append(f'{_format_bytes(small)} in int8')
  if model.fixed_length is None:
    growth = _count_cache_bytes(model, shapes, 2 * FEW) - _count_cache_bytes(model, shapes, FEW)
    needs.append(f'{_format_bytes(round(growth / FEW))} of cache a token')
  return ', '.join(needs)


def _count_cache_bytes(model: Any, shapes: Any, slots: int) -> int:
  """Returns the bytes of a row's cache with this number of slots."""

  def cache(params):
    memory = model.encode(params, jnp.ones((1, 1), jnp.int32))
    return model.init_cache(params, memory, 1, slots)

  leaves = jax.tree.leaves(jax.eval_shape(cache, shapes))
  return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def _format_bytes(count: int) -> str:
  """Writes a number of bytes with its unit."""
  for name, size in (('GB', 1e9), ('MB', 1e6), ('kB', 1e3)):
    if count >= size:
      return f'{count / size:.3g} {name}'
  return f'{count} bytes'


def _write_sample(model: Any, params: Any, tokenizer: Any, prompt: str | None, most: int) -> str:
  """Returns what the model writes greedily after a text, or after its tokenizer's own start."""
  is_source = model.start_id is not None
  ids = []
  if prompt:
    if tokenizer is None:
      raise UserError('--prompt needs a tokenizer, and the folder has none: leave it out')
    ids = fd.Generator(model, params, tokenizer).read(prompt)[0]
  elif is_source and tokenizer is not None:
    return "nothing without a source: give --prompt='A sentence.'"
  else:
    if tokenizer is not None:
      ids = list(tokenizer.encode(''))
    if is_source and model.eos_ids and not set(model.eos_ids) & {*ids}:
      ids.append(model.eos_ids[0])
    ids = ids or [getattr(model, 'bos_id', 0)]

  if model.max_positions is not None:
    used = 0 if is_source else len(ids)
    most = min(most, model.max_positions - used)
  out = fd.decode(model, params, np.array([ids], np.int32), fd.Greedy(), max_len=most)
  text = tokens = out.tokens[0, : out.lengths[0]].tolist()
  if tokenizer is not None:
    text = tokenizer.decode(tokens)
  return f'{text!r} ({len(tokens)} tokens, {len({*tokens})} different ones)'
