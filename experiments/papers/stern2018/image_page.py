"""The page of the paper about images: Table 2, the sweep over tau, Figure 4's other half."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from experiments.papers.stern2018 import figures, image_figures
from experiments.papers.stern2018.cells import FITTED, FORECAST, BlockwiseCell
from experiments.papers.stern2018.image_measure import ImageMeasuring
from experiments.papers.stern2018.images import TAU, ImageExperiment
from experiments.papers.stern2018.page import BlockwisePage, ModelCells

SHOWN = 8  # images of the paper's last page


def table2_cells(experiment: ImageExperiment) -> list[ModelCells]:
  """The cells of Table 2 and of forecasts, then, for the largest k, those of the sweep."""
  table = experiment.table
  found = [ModelCells(1, 'regular', ('exact',), table.split)]
  forecasts = [FORECAST, *[FITTED] * bool(experiment.own)] if table.forecast else []
  found += [
    ModelCells(k, regime, FORECASTS, table.split) for regime in forecasts for k in table.forecast
  ]
  found += [
    ModelCells(k, regime, COLUMNS, table.split) for regime in table.regimes for k in table.ks
  ]
  if others := tuple(within(tau) for tau in table.taus if tau not in (0, TAU)):  # within 0 is exact
    swept = forecasts * (max(table.ks) in table.forecast) + list(table.regimes)
    found += [ModelCells(max(table.ks), regime, others, table.split, 'sweep') for regime in swept]
  return found


def within(tau: int) -> str:
  """The rule that accepts a pixel at most this many intensities away."""
  return f'distance-{tau}'


def centred(tau: int) -> str:
  """The same, with guesses at the middle of the likeliest 2 tau + 1 intensities."""
  return f'window-{tau}'


COLUMNS = ('exact', within(TAU), centred(TAU))  # the rules of Table 2
FORECASTS = ('exact', within(TAU))  # a forecast has no likeliest window


class ImagePage(BlockwisePage):
  """See `BlockwisePage`; in the workdir also images/, what every cell made of the split."""

  experiment: ImageExperiment

  def settings(self, k: int, regime: str) -> ImageExperiment:
    data = dataclasses.replace(self.experiment.data, own=self.experiment.own if k > 1 else '')
    return dataclasses.replace(self.experiment, data=data)

  def open(self) -> ImageMeasuring:
    pictures, folder = self.material(self.settings(1, 'regular')), self.workdir / 'images'
    return ImageMeasuring(self.experiment, pictures, self.split, folder, self.conditions)


def draw(table: ImagePage, found: Sequence[BlockwiseCell]) -> list[str]:
  """Draws what can be drawn of the cells; the names of the pictures in the workdir."""
  workdir, settings = table.workdir, table.experiment.table
  image_figures.blocks(found, workdir / 'table2.png')
  image_figures.tau_sweep(found, workdir / 'tau.png')
  figures.speedups(found, workdir / 'figure4.png')
  drawn = ['table2.png', 'tau.png', 'figure4.png']
  k = max(settings.ks)
  images = workdir / 'images'
  greedy = images / f'{settings.split}-k1-regular-exact.npz'
  kinds = {'finetune': 'fine-tuned', FORECAST: 'by forecast', FITTED: 'by a fitted forecast'}
  blockwise = {
    name: images / f'{settings.split}-k{k}-{regime}-{within(TAU)}.npz'
    for regime, name in kinds.items()
  }
  blockwise = {name: path for name, path in blockwise.items() if path.is_file()}
  if greedy.is_file() and blockwise:
    with np.load(greedy) as plain:
      columns = {'input': plain['input'], 'greedy': plain['output']}
      last = plain['original']
    for name, path in blockwise.items():
      with np.load(path) as made:
        columns[f'k = {k}, {name}, within {TAU}'] = made['output']
        image_figures.block_map(made['output'][0], made['block_sizes'][0], workdir / 'calls.png')
    columns['original'] = last
    rows = list(zip(*(column[:SHOWN] for column in columns.values()), strict=True))
    image_figures.sheet(rows, workdir / 'samples.png', tuple(columns))
    drawn += ['samples.png', 'calls.png']
  return drawn
