"""The losses, against sums written out one token at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastdec.errors import UserError
from fastdec.training import losses
from tests.training.fakes import HEADS, VOCAB, Bigram, Matrices, on_device

MODEL, IDENTITY, TRANSFORMED = Bigram(), Matrices(), Matrices(offsets=tuple(range(HEADS + 1)))
PARAMS = MODEL.init(jax.random.key(0))


def log_probabilities(logits):
  return np.asarray(jax.nn.log_softmax(np.asarray(logits, np.float64)), np.float64)


def test_cross_entropy_is_the_distance_to_the_smoothed_target():
  logits = jax.random.normal(jax.random.key(1), (1, 3, 5)) * 2
  targets = jnp.array([[4, 0, 2]])
  loss, metrics = losses.cross_entropy(logits, targets, jnp.ones((1, 3), bool), smoothing=0.1)
  p = np.full((3, 5), 0.1 / 4)
  p[np.arange(3), targets[0]] = 0.9
  divergence = (p * (np.log(p) - log_probabilities(logits)[0])).sum(-1).mean()
  np.testing.assert_allclose(loss, divergence, rtol=1e-5)
  np.testing.assert_allclose(metrics['nll'], -log_probabilities(logits)[0, range(3), targets[0]].mean(), rtol=1e-5)


def test_accuracy_counts_argmax_and_only_tokens_under_the_mask_count():
  logits = jnp.eye(3)[None] * 9  # predicts 0, 1, 2
  targets = jnp.array([[0, 2, 1]])
  for mask, accuracy, tokens in (([1, 1, 1], 1 / 3, 3), ([1, 1, 0], 1 / 2, 2), ([1, 0, 0], 1, 1), ([0, 0, 0], 0, 0)):
    loss, metrics = losses.cross_entropy(logits, targets, jnp.array([mask], bool), smoothing=0.0)
    assert np.isclose(metrics['accuracy'], accuracy) and metrics['tokens'] == tokens
    assert (loss == 0) == (tokens == 0)


def test_padding_does_not_count():
  batch = on_device(0)
  with_other_padding = batch | {'target': jnp.where(batch['target_segment'] == 0, 7, batch['target'])}
  assert (batch['target_segment'] == 0).any()
  loss = [losses.model_loss(MODEL, PARAMS, b, 0.1)[0] for b in (batch, with_other_padding)]
  assert loss[0] == loss[1]


def test_shifted_docstring_example():
  targets, segments = jnp.array([[1, 2, 3, 4, 5, 0]]), jnp.array([[1, 1, 1, 2, 2, 0]])
  moved, mask = losses.shifted(targets, segments, jnp.int32(1), longest=3)
  assert moved.tolist() == [[2, 3, 4, 5, 0, 0]]
  assert mask.astype(int).tolist() == [[1, 1, 0, 1, 0, 0]]
  assert losses.shifted(targets, segments, jnp.int32(3), longest=3)[1].sum() == 0


@pytest.mark.parametrize('heads', [IDENTITY, TRANSFORMED], ids=['identity', 'transformed'])
def test_head_loss_is_about_the_token_offset_places_later_in_the_same_sentence(heads):
  batch, params = on_device(1), heads.init(jax.random.key(2))
  hidden = MODEL.hidden(PARAMS, batch)
  for offset in range(HEADS + 1):
    is_trunk = heads is IDENTITY and offset == 0
    output = hidden if is_trunk else heads.one(params, hidden, heads.offsets.index(offset))
    log_p = log_probabilities(MODEL.unembed(PARAMS, output))
    segments, targets = np.asarray(batch['target_segment']), np.asarray(batch['target'])
    nll = [
      -log_p[row, t, targets[row, t + offset]]
      for row in range(3)
      for t in range(12 - offset)
      if segments[row, t] and segments[row, t] == segments[row, t + offset]
    ]
    metrics = losses.head_loss(MODEL, heads, PARAMS, params, batch, jnp.int32(offset), 0.1)[1]
    assert metrics['tokens'] == len(nll)
    np.testing.assert_allclose(metrics['nll'], np.mean(nll), rtol=1e-5)


def test_p1_of_identity_heads_is_the_model():
  batch = on_device(2)
  head = losses.head_loss(MODEL, IDENTITY, PARAMS, IDENTITY.init(jax.random.key(0)), batch, jnp.int32(0), 0.1)[0]
  np.testing.assert_allclose(head, losses.model_loss(MODEL, PARAMS, batch, 0.1)[0], rtol=1e-6)


def test_dev_loss_weighs_batches_by_their_tokens():
  parts = [on_device(3, rows=1), on_device(4, rows=5)]
  whole = {name: jnp.concatenate([part[name] for part in parts]) for name in parts[0]}
  apart, together = losses.dev_loss(MODEL, PARAMS, parts), losses.dev_loss(MODEL, PARAMS, [whole])
  assert apart == pytest.approx(together, rel=1e-5)


def test_head_accuracy_of_heads_that_count():
  """Sentences count upwards, so permutation matrices over one-hot hidden states know every later token."""

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
  accuracy = lambda w: losses.head_accuracy(Counting(), IDENTITY, {}, {'w': jnp.array(w)}, [on_device(5), on_device(6)])
  assert accuracy(right) == (1, 1, 1, 1)
  assert accuracy(wrong) == (1, 1, 0, 1)


def test_an_empty_dev_set_is_the_users_mistake():
  with pytest.raises(UserError, match='no sentences'):
    losses.dev_loss(MODEL, PARAMS, [])
