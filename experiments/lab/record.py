"""What a run's workdir says it was asked to be: `config.json`, and what may differ from it when the
run goes on.

What decides the result must stay as it is. The text and the images are named by their content, so
that they may move; how a batch is divided to save memory decides nothing; and until a run has
finished it may be given more steps, or other checkpoints to average.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from fastdec.errors import UserError
from fastdec.files import write_json
from fastdec.training.checkpoint import check_workdir
from fastdec.training.optimizer import ENDING
from fastdec.training.processes import everywhere, is_first

PLACES = ('folder', 'path', 'cache')  # of the data
MEMORY = ('accumulate',)  # of the training
UNTIL_FINISHED = ('every', 'average', 'span')


def read(workdir: pathlib.Path) -> dict[str, Any]:
  """The record of a workdir, {} where there is none to read."""
  try:
    record = json.loads((workdir / 'config.json').read_text())
  except (OSError, ValueError):
    return {}
  return record if isinstance(record, dict) else {}


def part(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
  """A part of a record, {} where it has none."""
  found = record.get(name)
  return found if isinstance(found, dict) else {}


def check(workdir: pathlib.Path, wanted: Mapping[str, Any], is_finished: bool) -> None:
  """Raises UserError where the workdir is no folder, or the run there was asked to be something
  else."""
  there = read(workdir)
  check_workdir(
    workdir,
    decisive(wanted, there, is_finished),
    lambda record: decisive(record, wanted, is_finished),
  )


def claim(workdir: pathlib.Path, wanted: Mapping[str, Any]) -> None:
  """Writes the record of a run that begins, or goes on.

  Raises:
    UserError: in all processes that train together: as `check`, or the folder cannot be written to.
  """
  failure = None
  try:
    check(workdir, wanted, is_finished=False)
    if is_first() and read(workdir) != json.loads(json.dumps(wanted)):
      write_json(workdir / 'config.json', wanted)
  except UserError as error:
    failure = error
  if not everywhere(failure is None):
    raise failure or UserError(f'another process cannot train in {workdir}: see what it says')


def decisive(
  record: Mapping[str, Any], other: Mapping[str, Any], is_finished: bool
) -> dict[str, Any]:
  """What of a record has to be the same in another one; content that only one of the two knows need
  not be."""
  training, data = dict(part(record, 'training')), dict(part(record, 'data'))
  free = MEMORY if is_finished else (*MEMORY, *UNTIL_FINISHED)
  # where the rate does not know the end
  if not is_finished and training.get('schedule') not in ENDING:
    free = (*free, 'steps')
  for name in free:
    training.pop(name, None)
  for name in PLACES:
    data.pop(name, None)
  if 'content' not in part(other, 'data'):
    data.pop('content', None)
  return {**record, 'training': training, 'data': data}
