"""Evaluates one finished run: BLEU, mean accepted block size, wall clock, head accuracy, for every rule of the table.

  python -m experiments.evaluate --config=configs/wmt14.py:k=8,regime=finetune --workdir=out/k8

Cells are appended to workdir/results.jsonl, one JSON line each with all conditions; finished ones are skipped.
"""

from absl import flags

from experiments import cli

CONFIG = cli.config_flag()
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the finished run', required=True)


def main(words: list[str]) -> None:
  import pathlib

  import rich

  from experiments import measure, training, translation
  from fastdec import folders
  from fastdec.errors import UserError
  from fastdec.evaluation import cells, report, tables

  experiment = translation.TranslationExperiment.of(CONFIG.value)
  workdir, table = pathlib.Path(WORKDIR.value), experiment.table
  run = training.Run(experiment, experiment.k, experiment.regime, None, workdir)
  if not run.is_finished:
    raise UserError(f'{workdir} holds no finished run: train it first, by experiments.train with the same config')
  run.check()
  results, model = workdir / 'results.jsonl', folders.content(workdir)
  current = lambda: [cell for cell in cells.read(results) if cell.model == model and cell.split == table.split]
  measuring = measure.Measuring(experiment, translation.Text.of(experiment), table.split)
  measuring.check(current(), results)
  done = {cell.rule for cell in current()}
  rules = [rule for rule in (table.rules if run.k > 1 else ('exact',)) if rule not in done]
  for cell in measuring.cells(workdir, run.k, run.regime, rules) if rules else ():
    cells.append(results, cell)
  for one in (tables.table1(current()), tables.rules_table(current()), tables.wallclock_table(current())):
    rich.print(report.terminal(one))


if __name__ == '__main__':
  cli.run(main)
