"""The command of a paper: its flags, its settings, its budget, its engine, and how it ends.

PAGE = command.Page('lookahead')

def main(_: list[str]) -> None:
  from experiments import fu2024

  PAGE.run(fu2024.Lookahead, fu2024.lookahead)
"""

import contextlib
import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from configs.common import to_dataclass
from experiments.lab import cli
from fastdec.errors import UserError

flags.disclaim_key_flags()  # they are the command's, see `experiments.lab.cli`
ROW_SAYS_WHY = 3  # the exit code of a job whose failure is a row
ENGINES = ('local', 'processes', 'slurm')
Make = Callable[[Any, pathlib.Path, dict[str, Any]], Any]  # settings, workdir, conditions -> Rows


@dataclasses.dataclass(frozen=True)
class Paper:
  """Description of a paper for `experiments.sweep`; a page of configs/ names it as PAPER.

  Attributes:
    settings: the dataclass of its config.
    make: the page function: settings, workdir, conditions -> `Rows`.
    axes: by the name of a row's field, the setting that lists its values: {'k': 'table.ks'}.
    figures: columns of a sweep's table: (heading, field, format), the first drawn in its picture.
  """

  settings: type
  make: Make
  axes: Mapping[str, str]
  figures: Sequence[tuple[str, str, str]]


class Page:
  """Flags of a command: --config (of these pages), --workdir, --budget, --engine."""

  def __init__(self, *pages: str) -> None:
    self.config = cli.config_flag(*pages)
    self.workdir = flags.DEFINE_string('workdir', None, 'folder of the results', required=True)
    self.budget = cli.budget_flag()
    self.engine = flags.DEFINE_enum(
      'engine', 'local', ENGINES, 'runs rows here in order, by --jobs processes, or on a cluster'
    )
    self.jobs = flags.DEFINE_integer('jobs', 2, 'processes at a time', lower_bound=1)
    self.partition = flags.DEFINE_string('slurm.partition', '', 'of the cluster')
    self.gpus = flags.DEFINE_integer('slurm.gpus', 1, 'of each job', lower_bound=0)
    self.minutes = flags.DEFINE_integer('slurm.time', 240, 'minutes of a job', lower_bound=1)
    self.only = flags.DEFINE_string('only', None, 'rows of a job, as JSON (engines give it)')

  def run(self, settings: type, make: Make) -> None:
    """Makes the page and ends the process: by 1 if a row failed, else by 0."""
    with self.budgeted():
      rows = self.rows(to_dataclass(settings, self.config.value), make)
    self.end([rows])

  def budgeted(self) -> contextlib.AbstractContextManager[Any]:
    """Limits the time of what is done within to the budget."""
    from experiments.lab import stage

    return stage.budget(cli.seconds(self.budget.value))

  def rows(self, c: Any, make: Make, overrides: Sequence[str] = ()) -> Any:
    """The rows of settings; None where the budget ended before there were any.

    Args:
      c: the settings.
      make: the page function.
      overrides: flags that make these settings of the command's, for the jobs.
    """
    from experiments.lab import rows, stage

    root, conditions = pathlib.Path(self.workdir.value), cli.conditions()
    conditions['config'] = ' '.join([conditions['config'], *overrides])
    only = None if self.only.value is None else json.loads(self.only.value)
    try:
      with rows.only(only):
        if self.engine.value == 'local':
          return make(c, root, conditions)
        submit = self._submit(root, overrides)
        submit([[]])  # what all rows need
        with rows.as_jobs(lambda keys: submit([[key] for key in keys])):
          return make(c, root, conditions)
    except rows.JobDone as done:
      return done.args[0]
    except stage.OutOfTime:
      return None

  def end(self, found: Sequence[Any]) -> None:
    """Ends the process, see `run`. The last line says what failed, or that the budget ended
    first."""
    goes_on = f'the same command goes on in {self.workdir.value}'
    there = [rows for rows in found if rows is not None]
    failed = sum(len(rows.failed) for rows in there)
    if failed:
      folder = pathlib.Path(self.workdir.value) / 'failures'
      print(f'{failed} of the rows failed: the reasons are in {folder}, and {goes_on}')
      sys.exit(1 if self.only.value is None else ROW_SAYS_WHY)
    if len(there) < len(found) or not all(rows.is_complete for rows in there):
      print(f'Out of budget: {goes_on}')

  def _submit(self, root: pathlib.Path, overrides: Sequence[str]) -> Callable[..., Any]:
    """A function that runs a job for each of some lists of keys: this very command, with --only. It
    returns the keys of those that failed, and why, and whether the budget sufficed for all."""
    from experiments.lab import engine, rows, stage

    folder, name = root / 'jobs', pathlib.Path(sys.argv[0]).stem
    command = [sys.executable, '-m', f'experiments.{name}', *cli.config_words(), *overrides]
    command.append(f'--workdir={root}')
    start, at_once = engine.by_processes(folder), self.jobs.value
    if self.engine.value == 'slurm':
      sizes = self.partition.value, self.gpus.value, self.minutes.value
      start, at_once = engine.by_slurm(folder, *sizes), None

    def budget() -> list[str] | None:
      try:
        left = stage.seconds_left()
      except stage.OutOfTime:
        return None
      return [] if left is None else [f'--budget={left:.0f}']

    def submit(jobs: Sequence[list[Any]]) -> tuple[list[tuple[Any, str]], bool]:
      keys_of = {f'job-{stage.digest({"keys": keys})}': keys for keys in jobs}
      commands = {}
      for name, keys in keys_of.items():
        commands[name] = [*command, f'--only={json.dumps(rows.json_of(keys))}']
      codes = engine.run(commands, start, at_once, budget)
      failed = []
      for name, code in codes.items():
        if code and not keys_of[name]:
          raise UserError(f'the job that makes what all rows need failed: see {folder}')
        if code:
          reason = '' if code == ROW_SAYS_WHY else f'its job ended by {code}: see {folder}'
          failed += [(key, reason) for key in keys_of[name]]
      return failed, len(codes) == len(commands)

    return submit
