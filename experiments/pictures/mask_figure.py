"""The picture of masks: a square for each token and each slot of the cache, filled where the token
sees it."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.pictures.masks import Mask
from fastdec.evaluation.drawing import SKY, VERMILION

HIDDEN, COMMITTED, NODE = '#eeeeee', SKY, VERMILION  # told apart in grey, too
COLUMNS = 4


def figure(masks: Sequence[Mask]) -> Figure:
  """A panel for each, and what its colours mean in the last."""
  rows = len(masks) // COLUMNS + 1
  layout = ConstrainedLayoutEngine(wspace=0.04, hspace=0.08)
  made = Figure(figsize=(13, 2.7 * rows), dpi=100, layout=layout)
  panels = made.subplots(rows, COLUMNS).ravel()
  for axes, mask in zip(panels, masks, strict=False):
    _draw(axes, mask)
  for axes in panels[len(masks) :]:
    axes.axis('off')
  meanings = {
    'sees it, committed before': Patch(color=COMMITTED),
    'sees it, written by this call': Patch(color=NODE),
    'does not see it': Patch(color=HIDDEN),
    'a block begins': Line2D([], [], color='black'),
  }
  title = 'a row is a token, a column a slot'
  panels[-1].legend(meanings.values(), meanings, loc='center', frameon=False, title=title)
  return made


def _draw(axes: Axes, mask: Mask) -> None:
  n, s = mask.sees.shape
  kind = np.where(mask.sees, np.where(mask.committed, 1, 2), 0)
  axes.imshow(kind, cmap=ListedColormap([HIDDEN, COMMITTED, NODE]), vmin=0, vmax=2)
  axes.set_xticks(range(s), mask.columns, fontsize=9)
  axes.set_yticks(range(n), mask.rows, fontsize=9)
  axes.set_xticks(np.arange(s + 1) - 0.5, minor=True)
  axes.set_yticks(np.arange(n + 1) - 0.5, minor=True)
  axes.grid(which='minor', color='white', linewidth=1.5)
  axes.tick_params(which='both', length=0)
  axes.spines[:].set_visible(False)
  for edge in mask.edges:
    axes.axvline(edge - 0.5, color='black', linewidth=1.5)
  axes.set_title(mask.title, fontsize=10)
