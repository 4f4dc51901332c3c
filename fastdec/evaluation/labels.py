"""Places labels beside points so that they cover neither each other nor a point."""

from collections.abc import Sequence
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fastdec import extras

with extras.explained():
  from matplotlib.axes import Axes
  from matplotlib.lines import Line2D
  from matplotlib.patheffects import withStroke

SIZE = 7.5  # points
ASPECT = 0.62  # a character's mean width over its height
MARKER = 5.0  # pixels: half the side of the square that a point's marker covers
RADII = (9, 15, 22, 32, 44, 58, 74)  # pixels from the point to the label
LED = 18  # pixels; farther labels are joined to their point by a line


class Label(NamedTuple):
  """A text, its point in the units of the axes, and its colour."""

  text: str
  x: float
  y: float
  colour: str


def place(axes: Axes, labels: Sequence[Label]) -> None:
  """Writes all labels, each at the nearest free place. The figure must have its final layout."""
  if not labels:
    return
  points_n2 = axes.transData.transform([(label.x, label.y) for label in labels])
  (left, bottom), (right, top) = axes.transAxes.transform([(0, 0), (1, 1)])
  scale = axes.figure.dpi / 72
  drawn_n2 = np.concatenate([np.empty((0, 2)), *map(_along, axes.lines)])
  taken_m4 = np.concatenate([points_n2 - MARKER, points_n2 + MARKER], axis=1)
  angles = 2 * np.pi * (np.arange(16) + 2) / 16  # above right comes first
  for label, point in zip(labels, points_n2, strict=True):
    half = np.array([ASPECT * len(label.text) + 0.4, 1.15]) * SIZE * scale / 2
    # Of the boxes around the point, take the nearest of those that cover least.
    boxes = []
    for radius, angle in product(RADII, angles):
      way = np.array([np.cos(angle), np.sin(angle)])
      middle = point + way * (radius + half)
      box = np.concatenate([middle - half, middle + half])
      outside = box[0] < left or box[1] < bottom or box[2] > right or box[3] > top
      on_lines = ((drawn_n2 > box[:2]) & (drawn_n2 < box[2:])).all(axis=1).sum()
      boxes.append((_overlap(box, taken_m4) + on_lines + 1e6 * outside, radius, box))
    _, radius, box = min(boxes, key=lambda entry: entry[:2])
    taken_m4 = np.vstack([taken_m4, box])
    middle = (box[:2] + box[2:]) / 2
    line = {'arrowstyle': '-', 'color': label.colour, 'linewidth': 0.4, 'shrinkA': 0, 'shrinkB': 2}
    text = axes.annotate(
      label.text,
      (label.x, label.y),
      xytext=tuple((middle - point) / scale),
      textcoords='offset points',
      fontsize=SIZE,
      ha='center',
      va='center',
      color=label.colour,
      zorder=4,
      arrowprops=line if radius >= LED else None,
    )
    text.set_path_effects([withStroke(linewidth=2, foreground='white')])


def _along(line: Line2D) -> Float[np.ndarray, 'n 2']:
  """Returns the pixels along a line of the axes."""
  corners_n2 = line.get_transform().transform(line.get_xydata())
  pieces = [np.empty((0, 2))]
  for start, end in pairwise(corners_n2):
    pieces.append(np.linspace(start, end, max(2, int(np.abs(end - start).max()))))
  return np.concatenate(pieces)


def _overlap(box: Float[np.ndarray, ' 4'], others: Float[np.ndarray, 'm 4']) -> float:
  """Returns the area that a box (left, bottom, right, top) has in common with others."""
  sides_m2 = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
  return float(np.maximum(sides_m2, 0).prod(axis=1).sum())
