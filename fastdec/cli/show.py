"""Text with its blocks, what blocks were worth, and tables, for a terminal."""

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


def accepted_shares(histogram: Sequence[int], most: int) -> list[float]:
  """Computes, for each place below the root, the share of calls that accepted a draft there.

  Args:
    histogram: entry i: how many calls emitted i + 1 tokens.
    most: places.
  """
  calls = sum(histogram)
  return [sum(histogram[place:]) / calls for place in range(1, most + 1)] if calls else []


def counted(histogram: Sequence[int], most: int) -> str:
  """Says tokens per call and, where drafts are made, the share of calls that accepted each place.

  The call that ends a text counts like the others, though what an end or the limit cuts off might
  have been accepted. Without calls it says ''.
  """
  if not sum(histogram):
    return ''
  tokens = sum(size * count for size, count in enumerate(histogram, start=1))
  text = f'{tokens / sum(histogram):.2f} tokens per call'
  shares = accepted_shares(histogram, most)
  listed = ', '.join(f'{place}: {share:.0%}' for place, share in enumerate(shares, start=1))
  return f'{text}\naccepted at {listed}' if shares else text


def columns(lines: Sequence[Sequence[str]]) -> str:
  """Lines up the cells of a table, each column to the right."""
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  text = []
  for line in lines:
    padded = (f'{cell:>{width}}' for cell, width in zip(line, widths, strict=True))
    text.append('  '.join(padded))
  return '\n'.join(text)
