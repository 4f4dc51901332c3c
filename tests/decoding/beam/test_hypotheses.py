"""How one more token changes beams and hypotheses, on cases written out by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fastdec.decoding.beam.hypotheses import NEVER, Beams
from fastdec.decoding.beam.penalties import PowerPenalty

PAD, EOS, T = 0, 1, 4
SUM = PowerPenalty(0.0)  # no penalty
FAR = jnp.array([9])


def a_group(words, scores):
  """One row, one group: beams with these words so far."""
  empty = Beams.empty((1, 1, len(words)), T, PAD, jnp.float32)
  tokens = np.zeros((1, len(words), T), np.int32)
  tokens[0, :, : len(words[0])] = words
  one = dataclasses.replace(empty, **{name: getattr(empty, name)[:, 0] for name in NAMES})
  return dataclasses.replace(one, tokens=jnp.array(tokens), scores=jnp.array([scores], jnp.float32))


NAMES = ('tokens', 'scores', 'finished', 'finished_scores', 'finished_lengths')


def extended(group, law, length, limit=FAR, eos_ids=(EOS,), penalty=SUM):
  made = jax.jit(lambda *step: group.extend(*step, eos_ids, penalty))
  return made(np.array([law], np.float32), np.array([length]), limit)


def test_an_end_below_the_best_w_is_no_hypothesis():
  group = a_group([[2], [3]], [-1.0, -2.0])
  new, _ = extended(group, [[NEVER, -0.5, -0.25, -0.375], [NEVER] * 4], 1)
  assert (new.finished_scores == NEVER).all() and new.scores[0].tolist() == [-1.25, -1.375]


def test_ties_go_to_the_lower_beam_then_the_lower_id_then_to_what_was_finished():
  group = a_group([[2], [3]], [-1.0, -1.0])
  new, origin = extended(group, [[NEVER, NEVER, -1.0, -1.0]] * 2, 1)
  assert new.tokens[0, :, 1].tolist() == [2, 3] and origin.tolist() == [[0, 0]]
  group = dataclasses.replace(
    group, finished=group.finished.at[0, :, 0].set(5), finished_scores=jnp.array([[-1.5, -1.5]])
  )
  assert extended(group, [[NEVER, -0.5, -1.0, -1.0]] * 2, 1)[0].finished[0, :, 0].tolist() == [5, 5]


def test_when_a_search_is_over():
  """Best beam -4 after 2 tokens; worst hypothesis -3, penalty n: -4/2 could rank, -4/1 could
  not."""

  def over(early, best, finished, penalty):
    group = dataclasses.replace(a_group([[2, 2]], [best]), finished_scores=jnp.array([[finished]]))
    return bool(group.is_over(jnp.array([2]), jnp.array([4]), penalty, early)[0])

  mean = PowerPenalty(1.0)
  assert over(True, -4.0, -3.0, mean) and not over(True, -4.0, NEVER, mean)
  assert not over(False, -4.0, -3.0, mean) and over(False, -7.0, -3.0, mean)
  assert not over('never', -7.0, -3.0, mean) and over('never', -13.0, -3.0, mean)  # -7/4, -13/4
  assert over(False, -4.0, -3.0, SUM) and over('never', -4.0, -3.0, SUM)
  inverse = PowerPenalty(-1.0)  # longer is worse: -2 * 2 now is the best it may become
  assert over('never', -2.0, -3.0, inverse) and not over('never', -1.25, -3.0, inverse)
  assert over(False, NEVER, NEVER, mean) and over('never', NEVER, NEVER, mean)  # no beam runs


def test_the_best_of_several_groups_are_distinct():
  beams = Beams.empty((1, 2, 2), T, PAD, jnp.float32)
  assert (beams.scores == jnp.array([[[0, NEVER]] * 2])).all()
  finished = np.array([[[[2, 1, 0, 0], [3, 1, 0, 0]], [[2, 1, 0, 0], [4, 4, 1, 0]]]], np.int32)
  scores, lengths = np.array([[[-1.0, -3.0], [-1.5, -2.0]]]), np.array([[[2, 2], [2, 3]]])
  beams = dataclasses.replace(
    beams, finished=jnp.array(finished), finished_scores=jnp.array(scores, jnp.float32),
    finished_lengths=jnp.array(lengths),
  )  # fmt: skip
  tokens, scores, counts = jax.jit(beams.best, static_argnums=0)(4)
  assert tokens[0].tolist() == [[2, 1, 0, 0], [4, 4, 1, 0], [3, 1, 0, 0], [PAD] * 4]
  assert scores[0].tolist() == [-1.0, -2.0, -3.0, NEVER] and counts[0].tolist() == [2, 3, 2, 0]


def test_a_row_with_nothing_to_decode_has_one_hypothesis_the_end():
  beams = Beams.empty((2, 2, 2), T, PAD, jnp.float32).end_at_once(jnp.array([False, True]), EOS)
  tokens, scores, lengths = beams.best(2)
  assert tokens.tolist() == [[[PAD] * 4] * 2, [[EOS, PAD, PAD, PAD], [PAD] * 4]]
  assert scores.tolist() == [[NEVER] * 2, [0.0, NEVER]] and lengths.tolist() == [[0, 0], [1, 0]]
