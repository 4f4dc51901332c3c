"""Losses, compared with sums over single tokens."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastdec.errors import UserError
from fastdec.heads.anchors import Anchors, anchors_of
from fastdec.training import losses
from tests.training.fakes import HEADS, VOCAB, Bigram, Matrices, on_device

MODEL, IDENTITY, TRANSFORMED = Bigram(), Matrices(), Matrices(offsets=tuple(range(HEADS + 1)))
PARAMS = jax.jit(MODEL.init)(jax.random.key(0))

cross_entropy = jax.jit(losses.cross_entropy, static_argnames='smoothing')
model_loss = jax.jit(losses.model_loss, static_argnums=(0, 3))
head_loss = jax.jit(losses.head_loss, static_argnums=(0, 1, 6))


@functools.cache
def params_of(heads):
  return jax.jit(heads.init)(jax.random.key(2))


def log_probabilities(logits):
  logits = np.asarray(logits, np.float64)
  return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def test_cross_entropy_is_the_distance_to_the_smoothed_target():
  logits = 2 * np.random.default_rng(1).normal(size=(1, 3, 5)).astype(np.float32)
  targets = np.array([[4, 0, 2]])
  loss, metrics = cross_entropy(logits, targets, np.ones((1, 3), bool), smoothing=0.1)
  p = np.full((3, 5), 0.1 / 4)
  p[np.arange(3), targets[0]] = 0.9
  divergence = (p * (np.log(p) - log_probabilities(logits)[0])).sum(-1).mean()
  np.testing.assert_allclose(loss, divergence, rtol=1e-5)
  np.testing.assert_allclose(
    metrics['nll'], -log_probabilities(logits)[0, range(3), targets[0]].mean(), rtol=1e-5
  )


def test_accuracy_counts_argmax_and_only_tokens_under_the_mask_count():
  logits = 9 * np.eye(3, dtype=np.float32)[None]  # predicts 0, 1, 2
  targets = np.array([[0, 2, 1]])
  for mask, accuracy, tokens in (
    ([1, 1, 1], 1 / 3, 3),
    ([1, 1, 0], 1 / 2, 2),
    ([1, 0, 0], 1, 1),
    ([0, 0, 0], 0, 0),
  ):
    loss, metrics = cross_entropy(logits, targets, np.array([mask], bool), smoothing=0.0)
    assert np.isclose(metrics['accuracy'], accuracy) and metrics['tokens'] == tokens
    assert (loss == 0) == (tokens == 0)


def test_a_loop_over_heads_makes_nothing_of_the_size_of_logits_before_it():
  states, tokens = jnp.ones((2, 5, 77)), jnp.arange(10).reshape(2, 5)

  def one_head(head):
    number, weight = head
    _, _, nll, is_right = losses.judge(weight * states, tokens + number)
    return nll.sum() + is_right.sum().astype(float)

  def loss(weights):
    return jax.lax.map(jax.checkpoint(one_head), (jnp.arange(3), weights)).sum()

  program = jax.make_jaxpr(jax.grad(loss))(jnp.ones(3))
  assert all(made.aval.shape != (2, 5, 77) for step in program.eqns for made in step.outvars)


def test_padding_does_not_count():
  batch = on_device(0)
  with_other_padding = batch | {
    'target': np.where(batch['target_segment'] == 0, 7, batch['target'])
  }
  assert (batch['target_segment'] == 0).any()
  loss = [model_loss(MODEL, PARAMS, b, 0.1)[0] for b in (batch, with_other_padding)]
  assert loss[0] == loss[1]


def test_shifted_docstring_example():
  targets, segments = np.array([[1, 2, 3, 4, 5, 0]]), np.array([[1, 1, 1, 2, 2, 0]])
  shift_left = jax.jit(losses.shift_left, static_argnames='longest')
  moved, mask = shift_left(targets, segments, np.int32(1), longest=3)
  assert moved.tolist() == [[2, 3, 4, 5, 0, 0]]
  assert mask.tolist() == [[True, True, False, True, False, False]]
  assert not np.any(shift_left(targets, segments, np.int32(3), longest=3)[1])


@pytest.mark.parametrize('heads', [IDENTITY, TRANSFORMED], ids=['identity', 'transformed'])
def test_head_loss_is_about_the_token_offset_places_later_in_the_same_sentence(heads):
  batch, params = on_device(1), params_of(heads)
  hidden = np.asarray(jax.jit(MODEL.hidden)(PARAMS, batch))
  for offset in range(HEADS + 1):
    is_trunk = heads is IDENTITY and offset == 0
    output = hidden if is_trunk else hidden @ params['w'][heads.offsets.index(offset)]
    log_p = log_probabilities(output @ np.asarray(PARAMS['outputs']).T)
    segments, targets = np.asarray(batch['target_segment']), np.asarray(batch['target'])
    nll = [
      -log_p[row, t, targets[row, t + offset]]
      for row in range(3)
      for t in range(12 - offset)
      if segments[row, t] and segments[row, t] == segments[row, t + offset]
    ]
    metrics = head_loss(MODEL, heads, PARAMS, params, batch, np.int32(offset), 0.1)[1]
    assert metrics['tokens'] == len(nll)
    np.testing.assert_allclose(metrics['nll'], np.mean(nll), rtol=1e-5)


def test_the_loss_at_anchors_is_on_average_that_at_all_places_and_so_is_its_gradient():
  """Over all pairs of anchors of each row: rows with 6 and 3 anchors, the mean over whose tokens is
  none of rows."""
  segments = jnp.array([[1, 1, 1, 1, 1, 2, 2, 2], [1, 1, 2, 2, 2, 0, 0, 0]])
  batch = on_device(3, rows=2) | {
    'target': jnp.arange(16).reshape(2, 8) % VOCAB,
    'target_segment': segments,
  }
  batch['target_position'] = jnp.array([[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 0, 1, 2, 0, 0, 0]])
  params, shares = params_of(IDENTITY), {1: 0.5, 2: 0.3, 3: 0.2}

  @jax.jit
  def gradient(params, anchors=None):
    keys = None, jax.random.key(0)
    loss = lambda params: losses.all_heads_loss(
      MODEL, IDENTITY, PARAMS, params, batch, shares, 0.1, keys, anchors
    )[0]
    return jax.value_and_grad(loss)(params)

  pairs = [list(itertools.combinations(places, 2)) for places in ([0, 1, 2, 3, 5, 6], [0, 2, 3])]
  samples = jnp.array(list(itertools.product(*pairs)))
  assert samples.shape == (15 * 3, 2, 2)
  weight, is_real = jnp.array([6 / 2, 3 / 2]), jnp.ones((2, 2), bool)
  each = jax.vmap(lambda places: gradient(params, Anchors(places, is_real, weight)))(samples)
  mean = jax.tree.map(lambda x: x.mean(0), each)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), mean, gradient(params)
  )
  assert each[0].std() > 0.01  # a sample has a different loss


def test_anchors_are_drawn_equally_often_and_know_how_many_they_represent():
  batch = {
    'target_segment': jnp.array(
      [[1, 1, 1, 1, 1, 2, 2, 2], [1, 1, 2, 2, 2, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]]
    )
  }
  keys = jax.random.split(jax.random.key(0), 3000)
  drawn = jax.device_get(jax.jit(jax.vmap(lambda key: anchors_of(batch, 2, key)))(keys))
  assert (drawn.weight == [6 / 2, 3 / 2, 1]).all()
  assert (drawn.is_real.sum(2) == [2, 2, 1]).all()
  for row, expected in enumerate(
    [[1 / 3] * 4 + [0, 1 / 3, 1 / 3, 0], [2 / 3, 0, 2 / 3, 2 / 3], [1]]
  ):
    places = drawn.place[:, row][drawn.is_real[:, row]]
    share = np.bincount(places, minlength=8) / len(keys)
    np.testing.assert_allclose(share, expected + [0] * (8 - len(expected)), atol=0.05)


def test_p1_of_identity_heads_is_the_model():
  batch = on_device(2)
  head, _ = head_loss(MODEL, IDENTITY, PARAMS, params_of(IDENTITY), batch, np.int32(0), 0.1)
  np.testing.assert_allclose(head, model_loss(MODEL, PARAMS, batch, 0.1)[0], rtol=1e-6)


def test_dev_loss_weighs_batches_by_their_tokens():
  parts = [on_device(3, rows=1), on_device(4, rows=5)]
  whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
  apart, together = losses.dev_loss(MODEL, PARAMS, parts), losses.dev_loss(MODEL, PARAMS, [whole])
  assert apart == pytest.approx(together, rel=1e-5)


def test_head_accuracy_of_heads_that_count():
  """Sentences count upwards, so permutation matrices over one-hot hidden states know every later
  token."""

  class Counting(Bigram):
    def hidden(self, params, batch, dropout_key=None):
      return jax.nn.one_hot(batch['target'], VOCAB)  # the answer of p1 itself

    def unembed(self, params, hidden):
      return hidden

  words = np.arange(1, VOCAB)
  step = np.zeros((VOCAB, VOCAB), np.float32)
  step[words, words % (VOCAB - 1) + 1] = 1  # one-hot @ step = one-hot of the next word
  right = [np.linalg.matrix_power(step, n) for n in range(1, HEADS + 1)]
  wrong = [right[0], right[0], right[2]]
  accuracy = lambda w: losses.head_accuracy(
    Counting(), IDENTITY, {}, {'w': jnp.array(w)}, [on_device(5), on_device(6)]
  )
  assert accuracy(right) == (1, 1, 1, 1)
  assert accuracy(wrong) == (1, 1, 0, 1)


def test_an_empty_dev_set_is_the_users_mistake():
  with pytest.raises(UserError, match='the dev set is empty'):
    losses.dev_loss(MODEL, PARAMS, [])
