"""BLEU against mean accepted block size: our cells in one panel, the paper's in the other."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import matplotlib.lines
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fastdec.evaluation import paper
from fastdec.evaluation.cells import TUNES, Cell, Key, latest

Points = Mapping[Key, tuple[float, float]]   # (k, tune, rule) -> (BLEU, mean block size)

# Okabe and Ito's colours, told apart by colour-blind readers too; each rule has a shape and a line of its own.
COLOURS = {'regular': '#0072B2', 'distil': '#56B4E9', 'finetune': '#D55E00', 'both': '#009E73'}
MARKERS = {
  'exact': ('o', '-'), 'top-2': ('^', '--'), 'top-3': ('s', ':'), 'min-2': ('v', '-.'), 'min-3': ('D', '-.')}
OTHER_RULE = ('P', '-.')


def scatter(cells: Iterable[Cell], path: Path) -> None:
  """Writes a PNG of 1800 x 900 pixels. A point is a cell, its label k; lines join what differs in k only."""
  ours = {
    key: (cell.bleu, cell.mean_block_size) for key, cell in latest(cells).items()
    if cell.error is None and None not in (cell.bleu, cell.mean_block_size)}
  figure = Figure(figsize=(12, 6), dpi=150, layout='constrained')
  panels = figure.subplots(1, 2, sharex=True)
  _panel(panels[0], ours, 'Ours')
  _panel(panels[1], paper.TABLE1, 'Stern et al. 2018, Table 1 (WMT14 en-de, newstest2013)')
  series = sorted(_series(ours) | _series(paper.TABLE1), key=lambda s: (s[1], list(TUNES).index(s[0])))
  handles = [_legend_line(tune, rule) for tune, rule in series]
  figure.legend(handles=handles, loc='outside lower center', ncols=5, frameon=False)
  temporary = path.with_name(f'.{path.name}.new')
  figure.savefig(temporary, format='png')
  os.replace(temporary, path)


def _panel(axes: Axes, points: Points, title: str) -> None:
  axes.set_title(title, fontsize=11)
  axes.set_xlabel('mean accepted block size (tokens per call)')
  axes.set_ylabel('BLEU')
  axes.grid(alpha=0.3)
  axes.spines[['top', 'right']].set_visible(False)
  for tune, rule in sorted(_series(points)):
    marker, line = MARKERS.get(rule, OTHER_RULE)
    curve = sorted((k, block, bleu) for (k, *series), (bleu, block) in points.items() if series == [tune, rule])
    ks, blocks, bleus = zip(*curve, strict=True)
    axes.plot(blocks, bleus, line, marker=marker, color=COLOURS[tune], linewidth=1, markersize=6, alpha=0.9)
    for k, block, bleu in zip(ks, blocks, bleus, strict=True):
      axes.annotate(
        str(k), (block, bleu), xytext=(5, 4), textcoords='offset points', fontsize=8, color=COLOURS[tune])
  if not points:
    axes.text(0.5, 0.5, 'no finished cell yet', ha='center', va='center', transform=axes.transAxes)


def _legend_line(tune: str, rule: str) -> matplotlib.lines.Line2D:
  marker, line = MARKERS.get(rule, OTHER_RULE)
  label = TUNES[tune] if rule == 'exact' else f'{TUNES[tune]}, {rule}'
  return matplotlib.lines.Line2D([], [], linestyle=line, marker=marker, color=COLOURS[tune], label=label)


def _series(points: Points) -> set[tuple[str, str]]:
  return {(tune, rule) for _, tune, rule in points}
