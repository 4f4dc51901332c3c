"""The worked example of Stern et al. 2018 (section 7.4): which tokens each call of the model
accepted."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from fastdec.evaluation.drawing import COLOURS, save

NAME_WIDTH, ROW_HEIGHT, MARGIN, GAP, PADDING = 130, 40, 20, 8, 7  # pixels
DPI, SIZE, LINE = 150, 9, 100  # LINE: characters of the source in a line


def as_text(source: str, blocks: Sequence[Sequence[str]]) -> str:
  """A line for each call, tokens between bars; the first block is the token that came with the
  prompt."""
  lines = [f'{_name(i, block):14}{"|".join(block).lstrip()}' for i, block in enumerate(blocks)]
  return '\n'.join([f'{"source":14}{source}', *lines]) + '\n'


def picture(source: str, blocks: Sequence[Sequence[str]], path: Path) -> None:
  """The same as a PNG: a row for each call, a box for each token, a colour for each call."""
  figure = Figure(dpi=DPI)
  renderer = FigureCanvasAgg(figure).get_renderer()

  def width_of(words):
    return figure.text(0, 0, words, fontsize=SIZE).get_window_extent(renderer).width

  lines = textwrap.wrap(source, LINE) or ['']
  boxes = [[width_of(_shown(token)) + 2 * PADDING for token in block] for block in blocks]
  widest = max([*map(width_of, lines), *(sum(row) + GAP * len(row) for row in boxes)])
  width, height = (
    NAME_WIDTH + widest + 2 * MARGIN,
    ROW_HEIGHT * (len(blocks) + len(lines)) + 2 * MARGIN,
  )
  figure.texts.clear()
  figure.set_size_inches(width / DPI, height / DPI)
  axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
  axes.axis('off')

  def write(x, y, words, **how):
    return axes.text(x, y, words, fontsize=SIZE, va='center', **how)

  for i, line in enumerate(lines):
    write(MARGIN + NAME_WIDTH, MARGIN + ROW_HEIGHT * (i + 0.5), line, color='#444444')
  for i, (block, row) in enumerate(zip(blocks, boxes, strict=True)):
    colour, y = COLOURS[i % len(COLOURS)], MARGIN + ROW_HEIGHT * (len(lines) + i + 0.5)
    write(MARGIN, y, _name(i, block), color=colour)
    x = MARGIN + NAME_WIDTH
    for token, box in zip(block, row, strict=True):
      shape = FancyBboxPatch(
        (x, y - 0.4 * ROW_HEIGHT),
        box,
        0.8 * ROW_HEIGHT,
        boxstyle='round,pad=0,rounding_size=5',
        facecolor=colour,
        alpha=0.25,
        edgecolor=colour,
      )
      axes.add_patch(shape)
      write(x + box / 2, y, _shown(token), ha='center')
      x += box + GAP
  save(figure, path)


def _name(i: int, block: Sequence[str]) -> str:
  return f'call {i} ({len(block)})' if i else 'prompt'


def _shown(token: str) -> str:
  """Without the space before it, and with no formula in it."""
  return (token.strip() or ' ').replace('$', r'\$')
