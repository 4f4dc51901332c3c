"""Table 1 of Stern et al. 2018: trains what is missing, measures what is missing, writes the table and the picture.

  python -m experiments.table1 --config=configs/wmt14.py:scale=tiny --workdir=out/quickstart [--budget=540s]

In the workdir: base/ and k<k>-<tune>/ (one training run each), results.jsonl (one line a cell), table1.md, .csv, .png.
Finished cells are skipped, an interrupted run goes on where it was.
"""

import pathlib
from collections.abc import Collection

from absl import flags

from experiments import cli

CONFIG = cli.config_flag()
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the table and its runs', required=True)
BUDGET = cli.budget_flag()


def main(words: list[str]) -> None:
  import time

  from rich.console import Console

  from experiments import measure, show, training, translation
  from fastdec.evaluation import cells, figures, report

  budget, start = cli.seconds(BUDGET.value), time.monotonic()
  experiment, workdir = translation.Experiment.of(CONFIG.value), pathlib.Path(WORKDIR.value)
  console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
  left = lambda: None if budget is None else budget - (time.monotonic() - start)
  is_over = lambda: budget is not None and left() <= 0
  results = workdir / 'results.jsonl'
  runs = [(1, 'freeze'), *((k, tune) for k in experiment.table.ks for tune in experiment.table.tunes)]
  done = cells.read(results)  # before long work: the file may be no table, a run another config's
  for k, tune in runs:
    training.check_run(experiment, k, tune, folder_of(workdir, k, tune))
  text = translation.Text.of(experiment)
  measuring = measure.Measuring(experiment, text)
  measuring.check(done, results)
  finished = []
  for k, tune in runs:
    folder = folder_of(workdir, k, tune)
    if not is_over() and not training.is_finished(folder):
      console.rule('training the base model' if k == 1 else f'training heads for k = {k}, {tune}', align='left')
      training.train_run(experiment, k, tune, base_of(workdir, runs, k, tune), folder, left())
    if is_over():
      console.print(f'Out of budget: the same command goes on in {workdir}')
      break
    finished.append((k, tune))
    for cell in measuring.missing(folder, k, tune, done):
      cells.append(results, cell)
      console.print(measure.summary(cell))
  found = cells.read(results)
  if not found:
    return
  report.write(found, workdir)
  figures.scatter(found, workdir / 'table1.png')
  for table in (report.table1(found), report.wallclock_table(found)):
    console.print(report.terminal(table))
  shown = [run for run in finished if run[0] > 1 and not is_over()][-1:]  # the longest blocks to be expected
  for k, tune in shown:
    console.rule(f'k = {k}, {tune}, exact: what each call of the model wrote', align='left')
    for source, blocks in measuring.examples(folder_of(workdir, k, tune)):
      console.print(f'{source}\n  ', show.marked(blocks), sep='')
  console.print(f'\nThe table is {workdir}/table1.md, the picture {workdir}/table1.png, every cell a line of {results}')


def folder_of(workdir: pathlib.Path, k: int, tune: str) -> pathlib.Path:
  """Where a run of the table lies."""
  return workdir / ('base' if k == 1 else f'k{k}-{tune}')


def base_of(workdir: pathlib.Path, runs: Collection[tuple[int, str]], k: int, tune: str) -> pathlib.Path:
  """What a run starts from: fine-tuning from the heads trained on the frozen base, where the table has them."""
  return folder_of(workdir, k, 'freeze') if tune == 'finetune' and (k, 'freeze') in runs else folder_of(workdir, 1, '')


if __name__ == '__main__':
  cli.run(main)
