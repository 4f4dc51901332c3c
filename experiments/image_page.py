"""The page of the paper about images: Table 2, the sweep over tau, Figure 4's other half."""

from experiments import page
from experiments.image_measure import ImageMeasuring
from experiments.images import TAU, ImageExperiment
from experiments.page import Group


def table2_groups(experiment: ImageExperiment) -> list[Group]:
  """The cells of Table 2, and for the largest k those of the sweep."""
  table = experiment.table
  found = [Group(1, 'regular', ('exact',), table.split)]
  for regime in table.regimes:
    for k in table.ks:
      taus = sorted({TAU, *table.taus}) if k == max(table.ks) else [TAU]
      rules = ('exact', *(f'distance-{tau}' for tau in taus if tau))  # within 0 is exact
      found.append(Group(k, regime, rules, table.split))
  return found


class ImagePage(page.Page):
  """See `Page`; in the workdir also images/, what every cell made of the split."""

  experiment: ImageExperiment

  def _open(self, split: str) -> ImageMeasuring:
    return ImageMeasuring(self.experiment, self.experiment.open(), split, self.workdir / 'images')
