"""Texts with their blocks, summaries of blocks, and tables, for a terminal."""

from collections.abc import Sequence

import rich.text

COLOURS = ('cyan', 'yellow')


def marked(blocks: Sequence[str]) -> rich.text.Text:
  """The blocks in alternating colours, a bar between them: 'Once| upon a| time, in'."""
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
    most: places.
  """
  calls = sum(histogram)
  return [sum(histogram[place:]) / calls for place in range(1, most + 1)] if calls else []


def counted(histogram: Sequence[int], most: int) -> str:
  """Writes tokens per call and, where drafts are made, the share of calls that accepted each place.

  The call that ends a text counts like the others, although an end or the limit may have cut off
  accepted tokens. Without calls it returns ''.
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
