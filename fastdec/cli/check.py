"""Says what folders hold: kind, sizes, tokenizer, heads, and what they lack.

Example:
  fastdec check folder another

A folder is opened as the other commands open it, and its weights are read.
"""

from collections.abc import Sequence
from typing import Any

import jax

from fastdec import folders
from fastdec.cli.flags import Parser
from fastdec.errors import UserError
from fastdec.folders.drafts import is_draft, load_draft


def main(words: Sequence[str]) -> None:
  parser = Parser('check', __doc__)
  parser.usage = '%(prog)s FOLDER ...'
  _, paths = parser.read_beside(words)
  if not paths:
    raise UserError('there is no folder to look at: name one or more')
  for path in paths:
    print('\n  '.join([path, *found(path)]))


def found(path: str) -> list[str]:
  """Says what a folder holds, in lines.

  Raises:
    UserError: it holds nothing that can be decoded with, or is not whole.
  """
  if is_draft(path):
    return [f'draft network: {_sizes(*load_draft(path))}']
  folder, lines = folders.open(path), []
  try:
    model = folder.model
  except UserError as error:
    if not folder.has_heads:
      raise
    lines.append(f'model: none ({error})')
  else:
    lines.append(f'model: {_sizes(model, folder.params())}')
  if folder.has_heads:
    lines.append(f'prediction heads: {_sizes(folder.heads, folder.head_params())}')
  try:
    lines.append(f'tokenizer: {folder.tokenizer.vocab_size:,} ids')
  except UserError as error:
    lines.append(f'tokenizer: none ({error})')
  return lines


def _sizes(module: Any, params: Any) -> str:
  """Says a module's class, its parameters, and those of its sizes that it has."""
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  said = f'{type(module).__name__}, {count:,} parameters'
  for name in ('d_model', 'd_target', 'vocab_size', 'max_positions', 'depth', 'k'):
    value = getattr(module, name, None)
    if value is not None:
      said += f', {name} {value:,}'
  return said
