"""BLEU against mean accepted block size: our cells in one panel, the paper's in the other."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from fastdec.evaluation import paper
from fastdec.evaluation.cells import REGIMES, Cell, Key, latest

Points = Mapping[Key, tuple[float, float]]   # (k, regime, rule) -> (BLEU, mean block size)

# Okabe and Ito's colours, told apart by colour-blind readers too; each rule also has a shape and a line of its own.
COLOURS = {'regular': '#0072B2', 'distil': '#56B4E9', 'finetune': '#D55E00', 'both': '#009E73'}
STYLES = {'exact': ('o', '-'), 'top-2': ('^', '--'), 'top-3': ('s', ':'), 'min-2': ('v', '-.'), 'min-3': ('D', '-.')}
OTHER_RULE = ('P', '-.')
LABEL_SIDES = {'regular': (0, 6), 'distil': (8, -10), 'top-2': (-3, -12), 'top-3': (6, -9)}   # else above right
ALIGNMENT = {-1: 'right', 0: 'center', 1: 'left'}
SHARED_LABEL = (25, 40)   # points of one series nearer than this many pixels, across and up, share a label


def scatter(cells: Iterable[Cell], path: Path) -> None:
  """Writes a PNG of 1800 x 900 pixels. A point is a cell, its label k; lines join what differs in k only."""
  ours = {
    key: (cell.bleu, cell.mean_block_size) for key, cell in latest(cells).items()
    if cell.error is None and None not in (cell.bleu, cell.mean_block_size)}
  figure = Figure(figsize=(12, 6), dpi=150, layout='constrained')
  panels = figure.subplots(1, 2, sharex=True)
  _panel(panels[0], ours, 'Ours')
  _panel(panels[1], paper.TABLE1, 'Stern et al. 2018, Table 1 (WMT14 en-de, newstest2013)')
  everything = sorted(_series(ours) | _series(paper.TABLE1), key=lambda s: (s[1], list(REGIMES).index(s[0])))
  figure.legend(handles=[_handle(*one) for one in everything], loc='outside lower center', ncols=5, frameon=False)
  figure.draw_without_rendering()   # settles the layout, which decides what is near
  for axes, points in zip(panels, (ours, paper.TABLE1), strict=True):
    _label(axes, points)
  temporary = path.with_name(f'.{path.name}.new')
  figure.savefig(temporary, format='png')
  os.replace(temporary, path)


def _panel(axes: Axes, points: Points, title: str) -> None:
  axes.set_title(title, fontsize=11)
  axes.set_xlabel('mean accepted block size (tokens per call)')
  axes.set_ylabel('BLEU')
  axes.grid(alpha=0.3)
  axes.spines[['top', 'right']].set_visible(False)
  for regime, rule in sorted(_series(points)):
    marker, line = STYLES.get(rule, OTHER_RULE)
    _, blocks, bleus = zip(*_curve(points, regime, rule), strict=True)
    axes.plot(blocks, bleus, line, marker=marker, color=COLOURS[regime], linewidth=1, markersize=6, alpha=0.9)
  if not points:
    axes.text(0.5, 0.5, 'no finished cell yet', ha='center', va='center', transform=axes.transAxes)


def _label(axes: Axes, points: Points) -> None:
  """Writes each point's k beside it; neighbours whose labels would overlap share one, '4, 6, 8'."""
  for regime, rule in _series(points):
    labels = []
    for k, *point in _curve(points, regime, rule):
      pixels = axes.transData.transform(point)
      near = next((label for label in labels if (abs(pixels - label.pixels) < SHARED_LABEL).all()), None)
      if near:
        near.ks.append(str(k))
        near.points.append(point)
      else:
        labels.append(SimpleNamespace(ks=[str(k)], points=[point], pixels=pixels))
    side = LABEL_SIDES.get(rule, LABEL_SIDES.get(regime, (5, 5)))
    for label in labels:
      blocks, bleus = zip(*label.points, strict=True)
      middle = (np.mean(blocks), max(bleus) if side[1] > 0 else min(bleus))
      text = axes.annotate(   # behind the points, but with a rim that keeps lines off
        ', '.join(label.ks), middle, xytext=side, textcoords='offset points', fontsize=7,
        ha=ALIGNMENT[np.sign(side[0])], color=COLOURS[regime], zorder=1)
      text.set_path_effects([withStroke(linewidth=2, foreground='white')])


def _handle(regime: str, rule: str) -> Line2D:
  marker, line = STYLES.get(rule, OTHER_RULE)
  label = REGIMES[regime] if rule == 'exact' else f'{REGIMES[regime]}, {rule}'
  return Line2D([], [], linestyle=line, marker=marker, color=COLOURS[regime], label=label)


def _series(points: Points) -> set[tuple[str, str]]:
  return {(regime, rule) for _, regime, rule in points}


def _curve(points: Points, regime: str, rule: str) -> list[tuple[int, float, float]]:
  """(k, block size, BLEU) of one series, by k."""
  return sorted((k, block, bleu) for (k, *series), (bleu, block) in points.items() if series == [regime, rule])
