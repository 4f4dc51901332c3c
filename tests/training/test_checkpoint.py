"""Checkpoints: what is kept, what an unreadable one does, what an average is."""

import json

import grain
import jax
import numpy as np
import pytest

from fastdec.errors import UserError
from fastdec.training.checkpoint import Checkpoints, Keep, average_checkpoints, claim_workdir
from fastdec.training.state import TrainState
from tests.training.fakes import batches


def state_at(step, shape=(2, 3)):
  params = {'layer': {'w': jax.numpy.full(shape, step, jax.numpy.float32)}}
  opt_state = {'mean': jax.numpy.full(shape, -step, jax.numpy.float32)}
  return TrainState(
    step=jax.numpy.int32(step), params=params, opt_state=opt_state, key=jax.random.key(step)
  )


def position():
  return iter(batches().to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))


@pytest.fixture
def saved(tmp_path):
  """A workdir with checkpoints 2, 4 and 6, each at the data position of its step."""
  data = position()
  checkpoints = Checkpoints(tmp_path, Keep((2, 4, 6)))
  for step in (2, 4, 6):
    next(data), next(data)
    checkpoints.save(state_at(step), data)
  checkpoints.close()
  return tmp_path


def restore(workdir, data=None, shape=(2, 3)):
  return Checkpoints(workdir, Keep((2, 4, 6))).restore(state_at(0, shape), data or position())


def damage(workdir, step):
  """Cuts the largest file in half: what a full disk or a broken copy leaves."""
  inside = (workdir / 'checkpoints' / str(step)).rglob('*')
  files = [path for path in inside if path.is_file() and path.name != 'sums.json']
  path = max(files, key=lambda path: path.stat().st_size)
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_everything_comes_back(saved):
  data, expected = position(), position()
  state = restore(saved, data)
  assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), state, state_at(6)))
  for _ in range(6):
    next(expected)
  assert np.array_equal(next(data)['target'], next(expected)['target'])


def test_without_checkpoints_the_fresh_state_comes_back(tmp_path):
  assert restore(tmp_path).step == 0


def test_the_newest_two_and_those_to_be_averaged_are_kept(tmp_path):
  checkpoints = Checkpoints(tmp_path, Keep((20, 34)))
  kept = lambda: sorted(int(path.name) for path in (tmp_path / 'checkpoints').iterdir())
  steps = (
    (10, [10]),
    (13, [10, 13]),
    (20, [13, 20]),
    (30, [20, 30]),
    (34, [20, 30, 34]),
    (36, [20, 34, 36]),
  )
  for step, expected in steps:
    checkpoints.save(state_at(step), position())
    assert kept() == expected


def test_a_damaged_checkpoint_is_moved_and_the_one_before_used(saved, capfd):
  damage(saved, 6)
  data = position()
  assert restore(saved, data).step == 4
  out, err = capfd.readouterr()
  assert 'checkpoint 6 cannot be read' in out and 'continuing from step 4' in out and not err
  assert (saved / 'checkpoints.bad' / '6').is_dir()
  Checkpoints(saved, Keep((2, 4, 6))).save(state_at(6), data)
  assert restore(saved).step == 6


def test_where_all_are_damaged_nothing_is_touched(saved):
  for step in (2, 4, 6):
    damage(saved, step)
  with pytest.raises(UserError, match=r'no checkpoint .* can be read'):
    restore(saved)
  assert sorted(path.name for path in (saved / 'checkpoints').iterdir()) == ['2', '4', '6']


def test_a_checkpoint_of_another_shape_is_named(saved):
  with pytest.raises(UserError, match=r'layer/w has shape \(2, 3\) there and shape \(2, 4\) here'):
    restore(saved, shape=(2, 4))
  assert restore(saved).step == 6


def test_what_a_kill_while_saving_leaves_is_ignored(saved):
  half_written = saved / 'checkpoints' / '8.orbax-checkpoint-tmp'
  half_written.mkdir()
  (half_written / 'params').write_text('half')
  assert restore(saved).step == 6


def test_a_kill_before_the_sums_loses_nothing(saved):
  (saved / 'checkpoints' / '6' / 'sums.json').unlink()
  assert restore(saved).step == 6


@pytest.mark.parametrize('left', ['', '[]', '{"params": '])
def test_a_power_cut_that_empties_the_sums_loses_nothing(saved, left):
  (saved / 'checkpoints' / '6' / 'sums.json').write_text(left)
  assert restore(saved).step == 6


@pytest.mark.parametrize(
  ('steps', 'mean'), [((6,), 6), ((4, 6), 5), ((2, 4, 6), 4), ((2, 3, 6), 4)]
)
def test_an_average_is_the_mean_of_those_asked_for_that_are_there(saved, steps, mean):
  w = average_checkpoints(saved, steps)['layer']['w']
  assert w.dtype == np.float32 and np.array_equal(w, np.full((2, 3), mean))


def test_an_average_needs_good_checkpoints(saved, tmp_path):
  damage(saved, 4)
  assert average_checkpoints(saved, [6])['layer']['w'][0, 0] == 6
  mistakes = (
    (saved, [4, 6], '4 cannot be read'),
    (tmp_path / 'no', [6], 'train first'),
    (saved, [8], 'steps 8: train'),
  )
  for workdir, steps, words in mistakes:
    with pytest.raises(UserError, match=words):
      average_checkpoints(workdir, steps)


def test_a_workdir_belongs_to_one_config(tmp_path):
  config = {'model': {'layers': 2, 'width': 8}, 'seed': 1, 'sizes': (1, 2)}
  for _ in range(2):
    claim_workdir(tmp_path / 'run', config)
  other = {'model': {'layers': 3, 'width': 8}, 'seed': 1, 'sizes': (1, 2), 'k': 4}
  with pytest.raises(
    UserError,
    match=r'model\.layers is 2 there and 3 here, k is nothing there and'
    r' 4 here;',
  ):
    claim_workdir(tmp_path / 'run', other)
  assert json.loads((tmp_path / 'run' / 'config.json').read_text())['model']['layers'] == 2
  assert [path.name for path in (tmp_path / 'run').iterdir()] == ['config.json']
