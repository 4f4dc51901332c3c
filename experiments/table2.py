"""Table 2 of Stern et al. 2018: mean accepted block sizes of super-resolution, and what the paper
does not give.

  python -m experiments.table2 --config=configs/celeba.py:scale=tiny --workdir=out/images
  [--budget=540s]

In the workdir: the runs (see papers/stern2018/page.py), images/ (what each cell made),
results.jsonl (a line a cell), table2.md and .csv with likeness to the originals, wall clock and a
sweep over tau, and pictures: table2.png (block sizes), tau.png (the sweep), figure4.png (speed-up),
samples.png (the paper's last page), calls.png (which call wrote what). Finished cells are skipped,
an interrupted run goes on where it was, several processes on one workdir share the work, and what
failed is shown as failed (exit code 1) while the rest goes on.
"""

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('celeba')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the table and its runs', required=True)
BUDGET = cli.budget_flag()


def main(words: list[str]) -> None:
  import pathlib

  import skimage  # noqa: F401  what measures likeness: that it is missing should show now, not after the training

  from experiments.lab import report
  from experiments.papers.stern2018 import entries, image_page, image_tables, images

  budget = cli.seconds(BUDGET.value)
  experiment, workdir = images.ImageExperiment.of(CONFIG.value), pathlib.Path(WORKDIR.value)
  asked = image_page.table2_cells(experiment)
  page = image_page.ImagePage(experiment, workdir, budget, cli.conditions(), asked)
  outcome, found = page.fill(), page.cells()
  if found:
    drawn = (
      image_tables.table2(found),
      image_tables.quality_table(found),
      image_tables.tau_table(found),
    )
    drawn += (image_tables.heads_table(found),)
    entries.write(
      drawn, found, workdir / 'table2', picture='table2.png', published=image_tables.PUBLISHED
    )
    for one in drawn:
      page.console.print(report.terminal(one))
    beside = ', '.join(image_page.draw(page, found))
    page.console.print(
      f'\nThe table is {workdir}/table2.md, every cell a line of {page.results}; beside it {beside}'
    )
  page.end(outcome)


if __name__ == '__main__':
  cli.run(main)
