"""Checkpoints: which are kept, what happens if one is unreadable, and averages."""

import dataclasses
import re
import resource

import grain
import jax
import numpy as np
import pytest

from fastdec.errors import UserError
from fastdec.training.checkpoint import Checkpoints, average_checkpoints
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
  checkpoints = Checkpoints(tmp_path, (2, 4, 6))
  for step in (2, 4, 6):
    next(data), next(data)
    checkpoints.save(state_at(step), data)
  return tmp_path


def restore(workdir, data=None, shape=(2, 3)):
  return Checkpoints(workdir, (2, 4, 6)).restore(state_at(0, shape), data or position())


def files_of(workdir, step):
  inside = sorted((workdir / 'checkpoints' / str(step)).rglob('*'))
  return [path for path in inside if path.is_file()]


def damage(workdir, step):
  """Cuts the largest file in half, as a full disk or a broken copy does."""
  path = max(files_of(workdir, step), key=lambda path: path.stat().st_size)
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
  checkpoints = Checkpoints(tmp_path, (20, 34))
  kept = lambda: sorted(int(path.name) for path in (tmp_path / 'checkpoints').iterdir())
  steps = (
    (10, [10]), (13, [10, 13]), (20, [13, 20]), (30, [20, 30]), (34, [20, 30, 34]),
    (36, [20, 34, 36]),
  )  # fmt: skip
  for step, expected in steps:
    checkpoints.save(state_at(step), position())
    assert kept() == expected


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(saved, capfd):
  damage(saved, 6)
  data = position()
  assert restore(saved, data).step == 4
  out, err = capfd.readouterr()
  assert 'checkpoint 6 is damaged (' in out and 'continuing from step 4' in out and not err
  checkpoints = Checkpoints(saved, (2, 4, 6))
  checkpoints.save(state_at(5), data)
  assert sorted(path.name for path in checkpoints.folder.iterdir()) == ['2', '4', '5']
  checkpoints.save(state_at(6), data)
  assert restore(saved).step == 6


@pytest.mark.parametrize('part', ['params', 'rest', 'data.json', 'sums.json'])
def test_one_flipped_bit_of_any_file_is_refused(saved, part, capfd):
  files = [path for path in files_of(saved, 6) if part in path.parts]
  assert files
  for path in files:
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    path.write_bytes(flipped)
    state, (out, err) = restore(saved), capfd.readouterr()
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), state, state_at(4))), path
    assert re.fullmatch(r'checkpoint 6 is damaged \(.*(damaged|missing)\): .* step 4\n', out)
    assert (path.name in out or part == 'sums.json') and not err
    path.write_bytes(content)
  assert restore(saved).step == 6


def test_a_full_disk_is_a_sentence_and_leaves_what_was_there(saved, capfd):
  noise = jax.random.normal(jax.random.key(0), (64, 64))
  state = dataclasses.replace(state_at(8), params={'w': noise})
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
  try:
    with pytest.raises(UserError, match=r'cannot write .*8 \(File too large .*\): make room'):
      Checkpoints(saved, (2, 4, 6)).save(state, position())
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert capfd.readouterr() == ('', '')
  assert sorted(path.name for path in (saved / 'checkpoints').iterdir()) == ['2', '4', '6']


def test_where_all_are_damaged_nothing_is_touched(saved):
  for step in (2, 4, 6):
    damage(saved, step)
  with pytest.raises(UserError, match=r'no checkpoint .* can be read'):
    restore(saved)
  assert sorted(path.name for path in (saved / 'checkpoints').iterdir()) == ['2', '4', '6']


def test_a_checkpoint_with_different_shapes_is_named(saved):
  with pytest.raises(UserError, match=r'layer/w has shape \(2, 3\) there and shape \(2, 4\) here'):
    restore(saved, shape=(2, 4))
  assert restore(saved).step == 6


def test_what_a_kill_while_saving_leaves_is_ignored_and_removed(saved):
  half_written = saved / 'checkpoints' / '7.partial'
  half_written.mkdir()
  (half_written / 'params').write_text('half')
  assert restore(saved).step == 6
  Checkpoints(saved, (2, 4, 6)).save(state_at(8), position())
  assert not half_written.exists()


@pytest.mark.parametrize('content', [None, b'', b'\0' * 99, b'[]', b'{"a": ', b'{"params": 1}'])
def test_a_folder_that_is_not_a_checkpoint_is_a_sentence(tmp_path, content, capfd):
  """Tries an empty folder, and files with other content."""
  folder = tmp_path / 'checkpoints' / '3'
  folder.mkdir(parents=True)
  if content is not None:
    for name in ('params', 'data.json', 'sums.json', '_CHECKPOINT_METADATA'):
      (folder / name).write_bytes(content)
  with pytest.raises(UserError, match=r'no checkpoint in .* can be read \(steps 3; of 3: '):
    restore(tmp_path)
  assert capfd.readouterr() == ('', '')


def test_checkpoints_that_are_a_file_are_a_sentence(tmp_path):
  (tmp_path / 'checkpoints').touch()
  for read in (restore, lambda workdir: average_checkpoints(workdir, [6])):
    with pytest.raises(UserError, match='checkpoints cannot be read as a folder'):
      read(tmp_path)


BYTES = jax.numpy.zeros((2, 3), jax.numpy.bfloat16)


@pytest.mark.parametrize(('change', 'words'), [
  ({'opt_state': {'other': BYTES}}, 'optimizer .* opt_state/other has no counterpart there'),
  ({'opt_state': {'mean': BYTES}}, 'opt_state/mean has type float32 there and type bfloat16'),
  ({'params': {'layer': {'w': BYTES}}}, 'model: parameter layer/w has type float32 there'),
  ({'key': jax.random.key(0, impl='rbg')}, 'set JAX_DEFAULT_PRNG_IMPL=threefry2x32'),
  ({'text': {'position': 3}}, 'different version of Grain, or for different text'),
])  # fmt: skip
def test_what_differs_is_named(saved, change, words):
  data = position()
  if 'text' in change:
    state = Checkpoints(saved, ()).restore(state_at(0), data)
    data.get_state = lambda: change.pop('text')
    Checkpoints(saved, ()).save(dataclasses.replace(state, step=state.step + 1), data)
    data = position()
  with pytest.raises(UserError, match=words):
    Checkpoints(saved, ()).restore(dataclasses.replace(state_at(0), **change), data)


@pytest.mark.parametrize(('name', 'other'), [
  ('jax_threefry_partitionable', False), ('jax_enable_x64', True),
])  # fmt: skip
def test_settings_that_change_what_a_key_draws_are_named(saved, name, other):
  before = getattr(jax.config, name)
  jax.config.update(name, other)
  try:
    with pytest.raises(UserError, match=f'set {name.upper()}={before} in the environment'):
      restore(saved)
  finally:
    jax.config.update(name, before)


@pytest.mark.parametrize(
  ('steps', 'mean'), [((6,), 6), ((4, 6), 5), ((2, 4, 6), 4), ((2, 3, 6), 4)]
)
def test_an_average_is_the_mean_of_the_checkpoints_of_these_steps_that_are_there(
  saved, steps, mean
):
  w = average_checkpoints(saved, steps)['layer']['w']
  assert w.dtype == np.float32 and np.array_equal(w, np.full((2, 3), mean))


def test_an_average_needs_good_checkpoints(saved, tmp_path):
  damage(saved, 4)
  assert average_checkpoints(saved, [6])['layer']['w'][0, 0] == 6
  mistakes = (
    (saved, [4, 6], '4 is damaged'),
    (tmp_path / 'no', [6], 'train first'),
    (saved, [8], 'steps 8: train'),
  )
  for workdir, steps, words in mistakes:
    with pytest.raises(UserError, match=words):
      average_checkpoints(workdir, steps)
