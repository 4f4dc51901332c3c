"""`experiments.beside`: rows of several workdirs in one table."""

import shutil

from tests.experiments.conftest import ROOT


def test_rows_of_two_workdirs_stand_side_by_side(launch, tmp_path):
  for name in ('multi30k', 'fconv'):
    (tmp_path / name).mkdir()
    shutil.copy(ROOT / 'docs' / 'results' / f'{name}.jsonl', tmp_path / name / 'results.jsonl')
  ended = launch('beside', f'--workdirs={tmp_path}/multi30k,{tmp_path}/fconv')
  assert ended.code == 0
  rows = [line for line in ended.out.splitlines() if line.startswith('|')]
  for name in ('multi30k', 'fconv'):
    assert any(name in row for row in rows)


def test_one_workdir_is_a_mistake(launch, tmp_path):
  ended = launch('beside', f'--workdirs={tmp_path}')
  assert ended.code == 2 and 'two or more folders of different names' in ended.err
