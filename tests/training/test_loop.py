"""The whole loop continues exactly, also after SIGKILL, ends cleanly, and never saves bad
parameters."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from fastdec.errors import UserError
from fastdec.training.checkpoint import average_checkpoints
from fastdec.training.log import read_metrics
from fastdec.training.loop import LoopConfig, train
from fastdec.training.losses import dev_loss
from fastdec.training.optimizer import OptimizerConfig
from fastdec.training.state import base_task
from fastdec.training.weight_norm import normalise_weights
from tests.training.fakes import Bigram, batches, packed

ROOT = Path(__file__).parent.parent.parent
OPTIMIZER = OptimizerConfig(d_model=6, warmup=20)


def run(workdir, steps, optimizer=OPTIMIZER, data=None, evaluate=None, budget=None, **config):
  config = LoopConfig(
    **({'steps': steps, 'log_every': 10, 'checkpoint_every': 7, 'eval_every': 20} | config)
  )
  return train(
    base_task(Bigram()),
    data or batches(),
    optimizer,
    config,
    workdir,
    jax.random.key(3),
    evaluate,
    budget,
  )


def slowly(batch):
  time.sleep(0.02)
  return batch


def same(a, b):
  return all(
    np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  )


@pytest.fixture(scope='module')
def uninterrupted(tmp_path_factory):
  return run(tmp_path_factory.mktemp('whole'), 60)


def test_training_learns(uninterrupted):
  dev = [packed(1000), packed(1001)]
  nll = lambda params: dev_loss(Bigram(), params, dev)['nll']
  assert uninterrupted.is_finished and uninterrupted.step == 60
  assert nll(uninterrupted.params) < 0.8 * nll(Bigram().init(jax.random.key(0)))


def test_a_run_killed_twice_at_any_moment_ends_the_same(uninterrupted, tmp_path):
  """The process is killed wherever it happens to be: in a step, in a batch, while saving."""
  moments = []
  for _ in range(2):
    process = subprocess.Popen(
      [sys.executable, '-m', 'tests.training.test_loop', str(tmp_path)],
      cwd=ROOT,
      stdout=subprocess.PIPE,
      text=True,
    )
    for _ in range(random.randint(1, 3)):  # read a few lines of the log
      moments.append(process.stdout.readline())
    time.sleep(random.random() * 0.3)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
  finished = run(tmp_path, 60)
  assert same(finished.params, uninterrupted.params), f'killed after {moments}'


@pytest.mark.slow
def test_a_run_with_weight_normalisation_continues_as_if_it_had_not_stopped(tmp_path):
  class Normalised(OptimizerConfig):
    def build(self):
      return normalise_weights(super().build(), lambda name: True)

  optimizer = Normalised(**vars(OPTIMIZER))
  whole = run(tmp_path / 'whole', 20, optimizer)
  run(tmp_path / 'parts', 9, optimizer)
  assert same(run(tmp_path / 'parts', 20, optimizer).params, whole.params)
  assert not same(run(tmp_path / 'plain', 20).params, whole.params)


def test_a_budget_stops_with_a_checkpoint_and_the_next_call_continues(uninterrupted, tmp_path):
  for step in (1, 2):
    stopped = run(tmp_path, 60, budget=0.0, checkpoint_every=100)
    assert stopped.step == step and not stopped.is_finished
    assert (tmp_path / 'checkpoints' / str(step)).is_dir()
  finished = run(tmp_path, 60, checkpoint_every=100)
  assert finished.is_finished and same(finished.params, uninterrupted.params)
  assert same(average_checkpoints(tmp_path, [60]), uninterrupted.params)


def test_a_finished_run_is_not_run_again(tmp_path):
  first = run(tmp_path, 12)
  assert same(run(tmp_path, 12).params, first.params)
  with pytest.raises(UserError, match='at step 12 already, after steps=8'):
    run(tmp_path, 8)


def test_a_checkpoint_after_some_seconds(tmp_path):
  run(tmp_path, 3, checkpoint_every=100, checkpoint_seconds=1e-9)
  # the newest two
  assert {path.name for path in (tmp_path / 'checkpoints').iterdir()} == {'2', '3'}


@pytest.mark.parametrize(
  ('constant', 'every', 'what'), [(1e25, 100, 'loss|gradient_norm'), (1e39, 1, 'a parameter')]
)
def test_divergence_stops_the_run_and_the_last_good_checkpoint_stays(
  constant, every, what, tmp_path
):
  run(tmp_path, 10)
  wild = OptimizerConfig(d_model=6, constant=constant, warmup=1)
  with pytest.raises(UserError, match=f'({what}) .* the last good checkpoint is kept'):
    run(tmp_path, 40, optimizer=wild, checkpoint_every=every)
  assert run(tmp_path, 10).is_finished
  assert all(
    np.isfinite(leaf).all() for leaf in jax.tree.leaves(average_checkpoints(tmp_path, [10]))
  )


def test_evaluations_and_lines_of_the_log(tmp_path, capsys):
  seen = []
  evaluate = lambda params: seen.append(jax.device_get(params)) or {'nll': 0.5}
  finished = run(tmp_path, 45, evaluate=evaluate)
  assert len(seen) == 3 and same(seen[-1], finished.params)  # after 20, 40, and the end
  lines = capsys.readouterr().out.splitlines()
  assert 'step 40/45  evaluation: nll 0.5' in lines
  assert any(
    line.startswith('step 30/45  loss ') and 'tokens/s' in line and line.endswith('left')
    for line in lines
  )
  assert list((tmp_path / 'tb').iterdir())
  steps = {row['step'] for row in read_metrics(tmp_path) if 'train' in row}
  assert steps == {1, 7, 10, 14, 20, 21, 28, 30, 35, 40, 42, 45}


@pytest.mark.parametrize(('config', 'kept'), [
  ({'checkpoint_every': 20, 'keep': 3}, (60, 80, 100)),
  ({'checkpoint_every': 30, 'keep': 3}, (60, 90, 100)),
  ({'checkpoint_every': 30, 'keep': 9}, (30, 60, 90, 100)),
  ({'checkpoint_every': 30, 'keep': 5, 'span': 0.2}, (84, 88, 92, 96, 100)),
  ({'checkpoint_every': 30, 'keep': 4, 'span': 0.01}, (97, 98, 99, 100)),
])  # fmt: skip
def test_which_checkpoints_are_averaged(config, kept):
  assert LoopConfig(100, **config).kept == kept


@pytest.mark.slow
def test_what_is_averaged_does_not_depend_on_interruptions(tmp_path):
  config = {'checkpoint_every': 7, 'keep': 3, 'span': 0.5}  # the steps 10, 15 and 20
  run(tmp_path / 'whole', 20, **config)
  while not run(tmp_path / 'parts', 20, budget=0.0, **config).is_finished:
    pass
  steps = LoopConfig(20, **config).kept
  assert {int(path.name) for path in (tmp_path / 'parts' / 'checkpoints').iterdir()} == {*steps, 19}
  assert same(
    average_checkpoints(tmp_path / 'parts', steps), average_checkpoints(tmp_path / 'whole', steps)
  )


@pytest.mark.parametrize('field', ['steps', 'log_every', 'checkpoint_every', 'keep'])
def test_counts_are_positive(field):
  with pytest.raises(UserError, match=f'{field}=0 is not possible'):
    LoopConfig(**({'steps': 5} | {field: 0}))
  with pytest.raises(UserError, match='give a share of the run'):
    LoopConfig(5, span=1.5)


if __name__ == '__main__':
  run(sys.argv[1], 60, data=batches().map(slowly))
  print('finished\n' * 3, flush=True)  # this process was faster than the one that kills it
  time.sleep(600)
