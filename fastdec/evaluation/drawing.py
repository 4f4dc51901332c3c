"""What all pictures share: colours, axes, and a file that is whole or not there."""

from pathlib import Path

from fastdec import extras
from fastdec.files import whole_file

with extras.explained():
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure


BLOCKS, SPEED = 'mean accepted block size (tokens per call)', 'wall-clock speed-up over greedy decoding'
COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9')  # Okabe and Ito's


def save(figure: Figure, path: Path) -> None:
  """Writes a whole PNG, or none."""
  with whole_file(path) as file:
    figure.savefig(file, format='png')


def dress(axes: Axes, title: str, y: str, x: str = BLOCKS) -> None:
  """Title, names of the axes, and how all charts look."""
  axes.set_title(title, fontsize=11)
  axes.set_xlabel(x)
  axes.set_ylabel(y)
  axes.grid(alpha=0.3)
  axes.spines[['top', 'right']].set_visible(False)
  axes.margins(0.08)


def nothing_yet(axes: Axes) -> None:
  """What stands in a panel without points."""
  axes.text(0.5, 0.5, 'no finished cell yet', ha='center', va='center', transform=axes.transAxes)
