"""Evaluates one finished run: BLEU, mean accepted block size, wall clock, head accuracy, for every rule of the table.

  python -m experiments.evaluate --config=configs/wmt14.py:k=8,tune=finetune --workdir=out/k8

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
  from fastdec.errors import UserError
  from fastdec.evaluation import cells, report

  experiment = translation.Experiment.of(CONFIG.value)
  workdir = pathlib.Path(WORKDIR.value)
  if not training.is_finished(workdir):
    raise UserError(f'{workdir} holds no finished run: train it first, by experiments.train with the same config')
  training.check_run(experiment, experiment.k, experiment.tune, workdir)
  results = workdir / 'results.jsonl'
  done = cells.read(results)
  measuring = measure.Measuring(experiment, translation.Text.of(experiment))
  measuring.check(done, results)
  for cell in measuring.missing(workdir, experiment.k, experiment.tune, done):
    cells.append(results, cell)
  found = cells.read(results)
  for table in (report.table1(found), report.wallclock_table(found)):
    rich.print(report.terminal(table))


if __name__ == '__main__':
  cli.run(main)
