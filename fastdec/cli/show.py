"""Texts with their blocks, descriptions of blocks, and tables, for a terminal."""

from collections.abc import Sequence

import rich.text

COLOURS = ('cyan', 'yellow')


def mark_blocks(blocks: Sequence[str]) -> rich.text.Text:
  """Writes blocks in alternating colours, with a bar between them: 'Once| upon a| time, in'."""
  text = rich.text.Text()
  for i, block in enumerate(filter(None, blocks)):
    if i:
      text.append('|', 'dim')
    text.append(block, COLOURS[i % 2])
  return text


def accepted_shares(histogram: Sequence[int], most: int) -> list[float]:
  """Computes, for each place below the root, the share of calls that accepted a draft there.

  Args:
    histogram: entry i: how many calls emitted i + 1 tokens.
    most: number of places.
  """
  calls = sum(histogram)
  if not calls:
    return []
  return [sum(histogram[place:]) / calls for place in range(1, most + 1)]


def describe_blocks(histogram: Sequence[int], most: int) -> str:
  """Writes tokens per call and, if drafts are made, the share of calls that accepted each place.

  The call that ends a text counts like the others, although an end or the limit may have cut off
  accepted tokens. Without calls it returns ''.
  """
  if not sum(histogram):
    return ''
  tokens = sum(size * count for size, count in enumerate(histogram, start=1))
  text = f'{tokens / sum(histogram):.2f} tokens per call'
  shares = accepted_shares(histogram, most)
  if shares:
    listed = ', '.join(f'{place}: {share:.0%}' for place, share in enumerate(shares, start=1))
    text += f'\naccepted at {listed}'
  return text


def columns(lines: Sequence[Sequence[str]]) -> str:
  """Writes a table; the cells of each column are aligned on the right."""
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  return '\n'.join('  '.join(map(str.rjust, line, widths)) for line in lines)
