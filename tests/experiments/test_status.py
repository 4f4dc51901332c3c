"""`experiments status` shows stages, rows, failures and what is next, and makes nothing."""

import pytest

from experiments.lab.workdir import Workdir
from fastdec.errors import UserError
from fastdec.files import lock, write_json, write_text
from fastdec.training.stage import OutOfTime


def stop(folder, steps=0, parts=0, **inputs):
  """Does a part of a stage."""
  if steps:
    write_text(folder / 'metrics.jsonl', '{"step": 400, "train": {"loss": 2.5}}\n')
  for part in range(parts):
    write_text(folder / 'parts' / 'train' / f'{part}.jsonl', '')
  raise OutOfTime


def test_it_shows_stages_rows_failures_and_what_is_next(launch, tmp_path):
  work = Workdir(tmp_path, {'machine': 'here'})
  base = work.stage('base', lambda folder, seed: None, seed=0)
  for name, inputs in {'k2-both': {'run': {'steps': 5000}}, 'own': {'parts': 3}}.items():
    with pytest.raises(OutOfTime):
      work.stage(name, lambda folder, name=name, **_: stop(folder, name[0] == 'k', 3), **inputs)
  (running,) = tmp_path.glob('own-*')

  def figures(key):
    if key['k'] > 2 and work.failed != ['k=4']:
      raise UserError(f'no k={key["k"]}')
    return {'tokens': 1.0}

  work.fill([{'k': 2}, {'k': 4}], figures)
  work.fill([{'k': 4}], figures)  # a failure that a later row makes good
  work.failed.clear()
  work.fill([{'k': 6}], figures)
  write_json(tmp_path / 'plan.json', {'stages': ['base', 'own', 'k2-both', 'k4-both']})
  before = sorted(tmp_path.rglob('*'))
  with lock(running / 'lock'):
    lines = launch('status', f'--workdir={tmp_path}').out.splitlines()
  assert lines == [
    'stage 1 of 4, base: done',
    'stage 2 of 4, own: running, 3 parts are there',
    'stage 3 of 4, k2-both: stopped at step 400 of 5,000',
    'stage 4 of 4, k4-both: waiting',
    '2 rows are measured, 1 failed',
    f'failed: k=6: no k=6 (see {tmp_path}/failures/k=6.log)',
    'next: own (running, 3 parts are there); the same command continues',
  ]
  assert sorted(tmp_path.rglob('*')) == before and base.is_dir()


def test_a_folder_without_stages_and_rows_is_a_sentence(launch, tmp_path):
  ended = launch('status', f'--workdir={tmp_path}')
  assert ended.code == 2 and 'has no stages and no rows: give the --workdir' in ended.err
