"""Shows how far the experiment of a workdir is: its stages, its rows, what failed, what is next.

  python -m experiments status --workdir=out/wmt14

It only reads, so it may run at any time, also on another machine that sees the folder.
"""

import pathlib

from absl import flags

from experiments.lab import cli, rows
from experiments.lab.workdir import PLAN
from fastdec.errors import UserError
from fastdec.files import is_locked, read_json
from fastdec.training.log import read_metrics
from fastdec.training.stage import inputs_of

WORKDIR = flags.DEFINE_string('workdir', None, 'folder of an experiment', required=True)


def main(_: list[str]) -> None:
  print('\n'.join(describe(pathlib.Path(WORKDIR.value))))


def describe(root: pathlib.Path) -> list[str]:
  """Returns stages, rows, failures and what is next of a workdir, in lines.

  Raises:
    UserError: it has neither stages nor rows.
  """
  # Stages in the order of the plan, then others in the order in which they began.
  states: dict[str, str] = {}
  if (root / PLAN).is_file():
    states = dict.fromkeys(read_json(root / PLAN)['stages'], 'waiting')
  for file in sorted(root.glob('*/inputs.json'), key=lambda file: file.stat().st_mtime):
    if not file.parent.is_symlink():
      states[file.parent.name.rpartition('-')[0]] = describe_stage(file.parent)
  measured = rows.read(root / 'results.jsonl')
  if not states and not measured:
    raise UserError(f'{root} has no stages and no rows: give the --workdir of an experiment')
  lines, following = [], 'rows that are not measured yet, if any'
  for number, (name, state) in enumerate(states.items(), 1):
    lines.append(f'stage {number} of {len(states)}, {name}: {state}')
  for name, state in reversed(states.items()):
    if state != 'done':
      following = f'{name} ({state})'

  # Rows, and failures that no later row has made good.
  finished, failed = 0, {}
  for row in measured:
    if not rows.is_failure(row):
      finished += 1
      continue
    names = list(row)
    key = {name: row[name] for name in names[: names.index('error')]}
    if rows.find(measured, **key) is None:
      failed[rows.name_of(key)] = row['error']
  lines.append(f'{finished} rows are measured, {len(failed)} failed')
  for name, reason in failed.items():
    lines.append(f'failed: {name}: {reason} (see {root}/failures/{name}.log)')
  lines.append(f'next: {following}; the same command continues')
  return lines


def describe_stage(folder: pathlib.Path) -> str:
  """Returns the state of a stage in words: done, or running or stopped and how far."""
  if (folder / 'DONE').is_file():
    return 'done'
  state = 'running' if is_locked(folder / 'lock') else 'stopped'
  steps = inputs_of(folder).get('run', {}).get('steps')
  if steps:
    metrics = read_metrics(folder)
    step = metrics[-1]['step'] if metrics else 0
    return f'{state} at step {step:,} of {steps:,}'
  if parts := list(folder.glob('parts/**/*.[jn]*')):
    return f'{state}, {len(parts):,} parts are there'
  return state


if __name__ == '__main__':
  cli.run(main)
