"""Progress shows only what is known. Metrics are read again after stops and kills."""

import jax.numpy as jnp
import numpy as np
import pytest

from fastdec.training.log import TrainingLog, read_metrics
from fastdec.training.progress import Progress

STEP = {'loss': 2.0, 'gradient_norm': 1.0, 'learning_rate': 0.1, 'tokens': 10}


def trained(workdir, first, last, evaluated):
  """Steps after `first`, logged each, with an evaluation at the end."""
  with TrainingLog(workdir, first, last) as log:
    for _ in range(first, last):
      log.add({name: jnp.float32(value) for name, value in STEP.items()}, 2)
      log.log()
    log.log_evaluation({'dev tokens a call': evaluated})


def evaluations(workdir):
  return {row['step']: row['eval'] for row in read_metrics(workdir) if 'eval' in row}


def test_no_time_left_is_shown_before_two_pieces_of_work_are_timed(capsys):
  with Progress(10, 'step', 4) as progress:
    for piece in range(4):
      progress.add()
      progress.show(f'piece {piece}')
  lines = capsys.readouterr().out.splitlines()
  assert lines[:2] == ['step 5/10  piece 0', 'step 6/10  piece 1']  # one compiles, one is timed
  assert all(' steps/s  0:00:0' in line and line.endswith(' left') for line in lines[2:])


def test_a_later_call_continues_from_its_checkpoint(tmp_path):
  assert read_metrics(tmp_path) == []
  trained(tmp_path, 0, 4, 1.5)
  assert evaluations(tmp_path) == {4: {'dev tokens a call': 1.5}}
  first, second, *_ = read_metrics(tmp_path)
  assert first['step'] == 1 and first['train']['loss'] == 2.0
  # the first compiles
  assert 'seconds_per_step' not in first['train'] and second['train']['seconds_per_step'] > 0
  trained(tmp_path, 2, 5, 2.5)  # it was killed after step 2 had been saved
  assert [row['step'] for row in read_metrics(tmp_path)] == [1, 2, 3, 4, 5, 5]
  assert evaluations(tmp_path) == {5: {'dev tokens a call': 2.5}}


def test_a_number_without_a_value_is_left_out(tmp_path):
  steps = [
    {'accuracy_2': 0.5, 'accuracy_3': np.nan, 'head': 2}, {'accuracy_2': np.nan, 'head': 2},
    {'loss': 0.0, 'accuracy_2': 0.0, 'tokens': 0, 'head': 2},
  ]  # fmt: skip
  with TrainingLog(tmp_path, 0, 3) as log:
    for step in steps:
      log.add({name: jnp.asarray(value) for name, value in (STEP | step).items()}, 2)
    log.log()
    log.log_evaluation({'accuracy of head 2': 0.5, 'accuracy of head 3': np.nan})
  train, evaluation = read_metrics(tmp_path)
  assert train['train'] == pytest.approx(
    {'loss': 2, 'gradient_norm': 1, 'learning_rate': 0.1, 'accuracy_2': 0.5, 'loss_head_2': 2}
  )
  assert evaluation['eval'] == {'accuracy of head 2': 0.5}


def test_a_line_that_was_cut_short_is_left_out(tmp_path):
  trained(tmp_path, 0, 2, 1.5)
  file = tmp_path / 'metrics.jsonl'
  file.write_bytes(file.read_bytes()[:-3] + b'\n[]\n{"a": 1}\n\xff\n')
  assert [row['step'] for row in read_metrics(tmp_path)] == [1, 2]
