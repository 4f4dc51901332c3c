"""The parameters that each of the three tasks trains, and those that it does not change."""

import jax
import numpy as np
import pytest

from fastdec.errors import UserError
from fastdec.training import losses
from fastdec.training.loop import make_step
from fastdec.training.optimizer import OptimizerConfig
from fastdec.training.state import TrainState, base_task, finetuned_heads_task, frozen_heads_task
from tests.training.fakes import HEADS, Bigram, Matrices, on_device, packed

MODEL, IDENTITY, TRANSFORMED = Bigram(), Matrices(), Matrices(offsets=tuple(range(HEADS + 1)))
head_loss = jax.jit(losses.head_loss, static_argnums=(0, 1, 6))
OPTIMIZER = OptimizerConfig(d_model=6, warmup=5)


@pytest.fixture(scope='module')
def trunk():
  return jax.jit(MODEL.init)(jax.random.key(0))


def run(task, steps=20):
  transform = OPTIMIZER.build()
  state = TrainState.create(task, transform, jax.random.key(1))
  step = make_step(task, transform, OPTIMIZER.learning_rate)
  for i in range(steps):
    state, metrics = step(state, task.frozen, packed(i % 3))
  return state, metrics


def same(a, b):
  return [np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]


def test_the_loss_of_a_small_task_falls(trunk):
  loss = jax.jit(lambda params: losses.model_loss(MODEL, params, on_device(0), 0.1)[0])
  state, metrics = run(base_task(MODEL), steps=60)
  assert float(loss(state.params)) < 0.7 * float(loss(trunk))
  assert state.step == 60 and metrics['gradient_norm'] > 0
  assert metrics['learning_rate'] == OPTIMIZER.learning_rate(59)


@pytest.mark.parametrize('heads', [IDENTITY, TRANSFORMED], ids=['identity', 'transformed'])
@pytest.mark.wide('identity')
def test_frozen_heads_leave_every_bit_of_the_trunk(heads, trunk):
  before = jax.device_get(trunk)
  state, _ = run(frozen_heads_task(MODEL, heads, trunk))
  assert all(same(trunk, before))
  assert state.params.keys() == {'w'}
  assert not any(same(state.params, heads.init(jax.random.split(jax.random.key(1))[0])))


def test_fine_tuning_starts_from_the_trunk_and_leaves_the_callers_copy(trunk):
  before = jax.device_get(trunk)
  task = finetuned_heads_task(MODEL, IDENTITY, trunk)
  assert all(same(task.init(jax.random.key(1))['model'], before))
  state, _ = run(task)
  assert all(same(trunk, before)) and not any(same(state.params['model'], before))


def test_a_warm_start_has_a_fresh_optimizer(trunk):
  state = TrainState.create(
    finetuned_heads_task(MODEL, IDENTITY, trunk), OPTIMIZER.build(), jax.random.key(1)
  )
  assert state.step == 0 and not any(leaf.any() for leaf in jax.tree.leaves(state.opt_state))


def draws(task, params, count):
  """(head, loss) of one batch under `count` keys."""
  keys = jax.random.split(jax.random.key(2), count)
  metrics = jax.jit(jax.vmap(lambda key: task.loss(params, task.frozen, on_device(0), key)[1]))(
    keys
  )
  return np.asarray(metrics.get('head')), np.asarray(metrics['loss'])


@pytest.mark.parametrize('heads', [IDENTITY, TRANSFORMED], ids=['identity', 'transformed'])
@pytest.mark.wide('identity')
def test_a_draw_is_the_loss_of_one_head_and_its_expectation_the_mean_of_all(heads, trunk):
  task = frozen_heads_task(MODEL, heads, trunk)
  params = task.init(jax.random.key(3))
  of_head = {
    offset + 1: float(
      head_loss(MODEL, heads, trunk, params, on_device(0), np.int32(offset), 0.1)[0]
    )
    for offset in heads.offsets
  }
  drawn, loss = draws(task, params, 3000)
  np.testing.assert_allclose(loss, [of_head[head] for head in drawn], rtol=1e-5)
  values = np.array(list(of_head.values()))
  assert abs(loss.mean() - values.mean()) < 5 * values.std() / np.sqrt(3000)


def test_fine_tuning_draws_p1_too(trunk):
  for heads in (IDENTITY, TRANSFORMED):
    task = finetuned_heads_task(MODEL, heads, trunk)
    drawn, _ = draws(task, task.init(jax.random.key(3)), 100)
    assert set(drawn) == {1, 2, 3, 4}


def test_the_frozen_trunk_has_no_dropout_and_the_trained_one_has(trunk):
  heads = Matrices(offsets=(1,))  # with one head the draw does not matter
  frozen, tuned = frozen_heads_task(MODEL, heads, trunk), base_task(MODEL)
  assert len(set(draws(frozen, frozen.init(jax.random.key(3)), 5)[1])) == 1
  assert len(set(draws(tuned, trunk, 5)[1])) == 5


@pytest.mark.parametrize('heads', [IDENTITY, TRANSFORMED], ids=['identity', 'transformed'])
@pytest.mark.wide('transformed')
def test_all_heads_at_once_are_the_weighted_mean_of_each_and_so_is_their_gradient(heads, trunk):
  task = frozen_heads_task(MODEL, heads, trunk, draw='all', decay=0.5)
  params = task.init(jax.random.key(3))
  weights = np.array([0.5 ** max(offset - 1, 0) for offset in heads.offsets])
  weights /= weights.sum()

  def by_hand(params):
    one = lambda offset: head_loss(
      MODEL, heads, trunk, params, on_device(0), np.int32(offset), 0.1
    )[0]
    return sum(weight * one(offset) for weight, offset in zip(weights, heads.offsets, strict=True))

  of_task = lambda params: task.loss(params, trunk, on_device(0), jax.random.key(4))[0]
  (value, slope), (expected, expected_slope) = (
    jax.jit(jax.value_and_grad(of_task))(params),
    jax.jit(jax.value_and_grad(by_hand))(params),
  )
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), slope, expected_slope
  )


@pytest.mark.parametrize('make', [frozen_heads_task, finetuned_heads_task])
@pytest.mark.parametrize('heads', [IDENTITY, TRANSFORMED], ids=['identity', 'transformed'])
@pytest.mark.wide('transformed-finetuned*')
def test_anchors_that_leave_out_no_place_are_all_places(heads, make, trunk):
  """Rows of 12 places have 11 anchors at most, which 11 draws find, in another order."""
  tasks = [
    make(MODEL, heads, trunk, draw='all', decay=0.5, anchors=count) for count in (0, 11, 100)
  ]
  params = tasks[0].init(jax.random.key(3))
  of_task = lambda task: jax.jit(jax.value_and_grad(task.loss, has_aux=True))(
    params, trunk, on_device(0), jax.random.key(4)
  )
  everywhere, *sampled = map(of_task, tasks)
  for gradients in sampled:
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), gradients, everywhere
    )


def test_anchors_leave_p1_at_all_places(trunk):
  batch, key = on_device(0), jax.random.key(4)
  tasks = [
    finetuned_heads_task(MODEL, IDENTITY, trunk, draw='all', anchors=count) for count in (0, 2)
  ]
  params = tasks[0].init(jax.random.key(3))
  everywhere, sampled = (jax.jit(task.loss)(params, {}, batch, key)[1] for task in tasks)
  np.testing.assert_allclose(sampled['loss_head_1'], everywhere['loss_head_1'], rtol=1e-6)
  assert not np.isclose(sampled['loss_head_2'], everywhere['loss_head_2'])
  assert sampled['tokens'] == everywhere['tokens']


def test_one_head_has_no_anchors(trunk):
  with pytest.raises(UserError, match='anchors=2 with draw=one is not possible'):
    frozen_heads_task(MODEL, IDENTITY, trunk, anchors=2)


def test_p1_has_its_share_of_the_loss_of_all_heads(trunk):
  for share in (0.0, 0.7):
    task = finetuned_heads_task(MODEL, IDENTITY, trunk, p1_share=share, draw='all')
    params = task.init(jax.random.key(3))
    metrics = jax.jit(task.loss)(params, {}, on_device(0), jax.random.key(4))[1]
    first, *others = (metrics[f'loss_head_{i}'] for i in range(1, HEADS + 2))
    share = share or 1 / (1 + HEADS)
    assert np.isclose(metrics['loss'], share * first + (1 - share) * np.mean(others))


def test_a_base_may_start_from_another_and_does_not_change_it(trunk):
  before = jax.device_get(trunk)
  task = base_task(MODEL, start=trunk)
  assert all(same(task.init(jax.random.key(1)), before))
  run(task, steps=2)
  assert all(same(trunk, before))
