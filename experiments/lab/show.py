"""Decoded sentences with their blocks: what each call of the target emitted."""

import itertools
from collections.abc import Sequence
from typing import Any

import rich.console
import rich.text

COLOURS = ('cyan', 'yellow')


def plain_console() -> rich.console.Console:
  """A console that prints text as it is: no markup, no guessed colours, no breaks in long lines."""
  return rich.console.Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


def blocks_of(tokenizer: Any, tokens: Sequence[int], block_sizes: Sequence[int]) -> list[str]:
  """The text of each block; the first is the token that came with the prompt. Joined, they are the
  sentence.

  >>> import types
  >>> pieces = ['Once', ' upon', ' a', ' time', ',', ' in']
  >>> tokenizer = types.SimpleNamespace(decode=lambda ids: ''.join(pieces[i] for i in ids))
  >>> blocks_of(tokenizer, range(6), [2, 3, 0])
  ['Once', ' upon a', ' time, in']
  """
  ends = [1]
  for size in block_sizes:
    if size:
      ends.append(ends[-1] + int(size))
  texts = ['', *(tokenizer.decode([int(x) for x in tokens[:end]]) for end in ends)]
  return [new[len(old) :] for old, new in itertools.pairwise(texts)]


def marked(blocks: Sequence[str]) -> rich.text.Text:
  """The blocks in alternating colours, a bar between them: 'Once| upon a| time, in'."""
  text = rich.text.Text()
  for i, block in enumerate(block for block in blocks if block):
    text.append('|' * bool(i), 'dim').append(block, COLOURS[i % 2])
  return text
