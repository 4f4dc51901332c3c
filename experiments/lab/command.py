"""The command of a paper: its flags, its settings, its budget, and how it ends.

PAGE = command.Page('lookahead')

def main(_: list[str]) -> None:
  from experiments import fu2024

  PAGE.run(fu2024.Lookahead, fu2024.lookahead)
"""

import pathlib
import sys
from collections.abc import Callable
from typing import Any

from absl import flags

from configs.common import to_dataclass
from experiments.lab import cli


class Page:
  """Flags of a command: --config (one of these pages of configs/), --workdir, --budget."""

  def __init__(self, *pages: str) -> None:
    self.config = cli.config_flag(*pages)
    self.workdir = flags.DEFINE_string('workdir', None, 'folder of the results', required=True)
    self.budget = cli.budget_flag()

  def run(self, settings: type, make: Callable[[Any, pathlib.Path, dict[str, Any]], Any]) -> None:
    """Calls make(settings, workdir, conditions), which returns its `Rows`, and ends the process.

    The exit code is 1 if a row failed, else 0; the last line says so, or that the budget ended
    first.
    """
    from experiments.lab import stage

    root, seconds = pathlib.Path(self.workdir.value), cli.seconds(self.budget.value)
    c = to_dataclass(settings, self.config.value)
    goes_on = f'the same command goes on in {root}'
    with stage.budget(seconds):
      try:
        rows = make(c, root, cli.conditions())
      except stage.OutOfTime:
        print(f'Out of budget: {goes_on}')
        return
    if rows.failed:
      count, folder = len(rows.failed), root / 'failures'
      print(f'{count} of the rows failed: the reasons are in {folder}, and {goes_on}')
      sys.exit(1)
    if not rows.is_complete:
      print(f'Out of budget: {goes_on}')
