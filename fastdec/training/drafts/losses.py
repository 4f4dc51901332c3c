"""Losses of draft networks, and their accuracy.

A draft with the law q learns the token that the target wrote, or the target's whole law p:

  ce   -log q(token)
  kl   KL(p || q)

A draft whose edges choose among candidates (`heads.block`) learns by its logits before the edges,
and by the candidates' scores s where they have the token (LiLiCorr: where they had all before it):

  ce       the token's cross entropy among the candidates
  margin   by how much s(token) is less than `MARGIN` above the best other one
  penalty  the expected gap of the target's logits z, E_{c ~ softmax(s)} max(z(token) - z(c), 0)

A recurrent edge (Domino) begins as if it were not there: the loss moves from the logits before it
to those after it, in the first half of the training.

A loss is the mean over real guesses at each position after the anchors, and then the weighted mean
over positions that have any. The weights fall by a constant factor.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy
from jaxtyping import Array, Bool, Float, Int, Num

from fastdec.errors import UserError
from fastdec.heads.anchors import Anchors
from fastdec.heads.lesson import Lesson
from fastdec.heads.words import ids_of
from fastdec.models.api import suppress
from fastdec.models.layers import narrow_in_training, project
from fastdec.struct import Bound
from fastdec.training.drafts.kept import read_batch
from fastdec.training.losses import KEPT, Batch, Metrics, judge
from fastdec.training.means import mean_over, or_nan, weigh, whole_of
from fastdec.training.stage import NEWER

CHOICE = {'selector': (1.0, 0.0, 0.0), 'correlator': (0.25, 0.0, 0.25)}  # DFlash 2, LiLiCorr
MARGIN = 2.0


@dataclasses.dataclass(frozen=True)
class DraftLoss:
  """Settings of a draft's loss.

  Attributes:
    passes: number of guesses that training unrolls for an autoregressive draft; a block has k - 1.
    anchors: number of places in each row at which the draft learns, drawn again in each step; 0:
      all.
    ce, kl: weights of the two losses.
    decay: weight of each guess relative to the one before.
    choice: weights of ce, margin and penalty of a choice; (): those of `CHOICE`. LiLiCorr's
      second variant has 0.125, 0.125 and 0.25.
  """

  passes: int = 4
  anchors: int = 0
  ce: float = 1.0
  kl: float = 0.0
  decay: float = 0.9
  choice: tuple[float, ...] = dataclasses.field(default=(), metadata=NEWER)

  def __post_init__(self) -> None:
    if self.passes < 1:
      raise UserError(f'passes={self.passes} is not possible: give 1 or more')
    if self.anchors < 0:
      raise UserError(
        f'anchors={self.anchors} is not possible: give 0 for all places, or 1 or more of each row'
      )
    if min(self.ce, self.kl) < 0 or not self.ce + self.kl:
      raise UserError(f'ce={self.ce}, kl={self.kl}: give weights of 0 or more, one of them above 0')
    if not 0 < self.decay <= 1:
      raise UserError(
        f'decay={self.decay} is not possible: give 1 for equal weights, or less, above 0'
      )
    if self.choice and (len(self.choice) != 3 or not min(self.choice) >= 0 < max(self.choice)):
      raise UserError(
        f'choice={self.choice} is not possible: give three weights of 0 or more, one of them above'
        ' 0'
      )


class Guesses(NamedTuple):
  """The guesses that a draft makes after its anchors, one after another."""

  states: Float[Array, 'n b a d']
  before: Int[Array, 'n b a']  # the token before each guess
  token: Int[Array, 'n b a']  # the one that the target wrote
  is_real: Bool[Array, 'n b a']  # true if the sentence is long enough


class Outcome(NamedTuple):
  """The outcome of one guess at each anchor."""

  loss: Float[Array, 'b a']
  is_right: Bool[Array, 'b a']
  has_word: Bool[Array, 'b a']  # true if that token is one of the draft's words


def draft_loss(
  draft: Bound,
  lesson: Lesson,
  settings: DraftLoss,
  dropout_key: Array | None = None,
  projection: Float[Array, 'w d'] | None = None,
) -> tuple[Float[Array, ''], Metrics]:
  """Computes the loss of a draft on packed batches.

  Args:
    draft: the draft network and its parameters.
    lesson: the text, and the anchors.
    settings: the weights of the losses.
    dropout_key: for the draft's dropout; None switches it off.
    projection: what the target multiplies its state with for the logits of the draft's words; None:
      the logits of all words are computed.

  Returns:
    The loss in nats a guess; and metrics: 'loss', the share of right guesses at each position,
    'accuracy_1', 'accuracy_2', ..., when those before it are right (NaN without any guess), and the
    number of anchors, 'tokens'. For a part of a batch, all are its shares
    (`training.means`).
  """
  guesses = make_guesses(draft, lesson, settings.passes, dropout_key)
  outcome = _judge(draft, lesson, guesses, settings, projection)

  # Count the guesses in the whole batch: real ones, and those that teach a word of the draft.
  n, whole, anchors = len(guesses.token), whole_of(lesson.batch), lesson.all_anchors
  if anchors is None:
    anchors = lesson.anchors
  path, is_real = _look_ahead(whole, anchors, n)
  real = is_real.sum((1, 2))
  teaching = (is_real & _find_word(draft, path[1:])[1]).sum((1, 2))

  each = mean_over(outcome.loss, guesses.is_real & outcome.has_word, teaching)
  loss = weigh(each, settings.decay ** jnp.arange(n, dtype=each.dtype), teaching)
  accuracy = or_nan(mean_over(outcome.is_right, guesses.is_real, real), real)
  metrics = {f'accuracy_{i + 1}': accuracy[i] for i in range(n)}
  return loss, {'loss': loss, **metrics, 'tokens': anchors.is_real.sum()}


def make_guesses(
  draft: Bound, lesson: Lesson, passes: int, dropout_key: Array | None = None
) -> Guesses:
  """Returns a draft's guesses after the tokens that the target wrote."""
  states = draft.module.training_rows(draft.params, lesson, passes, dropout_key)
  path, is_real = _look_ahead(lesson.batch, lesson.anchors, len(states))
  return Guesses(states, path[:-1], path[1:], is_real)


def _look_ahead(
  batch: Batch, anchors: Anchors, n: int
) -> tuple[Int[Array, 'm b a'], Bool[Array, 'n b a']]:
  """Returns the tokens from each anchor to n places after it, and a mask of the real n."""
  tokens, segments = jnp.asarray(batch['target']), jnp.asarray(batch['target_segment'])
  path = jnp.stack([anchors.take(tokens, i) for i in range(n + 1)])
  is_real = jnp.stack([anchors.follows(segments, i + 1) for i in range(n)])
  return path, is_real


def _judge(
  draft: Bound,
  lesson: Lesson,
  guesses: Guesses,
  settings: DraftLoss,
  projection: Float[Array, 'w d'] | None = None,
) -> Outcome:
  """Computes the outcome of each guess, [n, b, a].

  More than `KEPT` logits are computed again for the gradient, so the memory is that of one guess.
  """
  module, target = draft.module, lesson.target
  anchors, hidden = lesson.anchors, lesson.features.hidden

  # Where all places are anchors, each guess reads the same laws, moved by one place.
  laws = None
  if settings.kl and not settings.anchors:
    laws = _law(draft, target, hidden, projection)

  edge, links, base_share = getattr(module, 'edge_kind', None), None, None
  if edge == 'correlator':
    links = _link(draft, lesson, guesses)
  if edge == 'rnn' and 'share' in lesson.batch:
    base_share = jnp.maximum(1 - 2 * lesson.batch['share'], 0)[:, None]
  choice = None
  if edge in CHOICE:
    choice = settings.choice or CHOICE[edge]

  def one_guess(carry: Array, numbered: tuple[Array, Guesses, Any]) -> tuple[Array, Outcome]:
    number, guess, linked = numbered
    if choice:
      logits = module.logits(draft.params, target, guess.states)
    else:
      logits, carry = module.guess_logits(
        draft.params, target, guess.states, guess.before, carry, number=number
      )
    law = None
    if laws is not None:
      law = anchors.take(laws, number + 1)
    elif settings.kl:
      law = _law(draft, target, anchors.take(hidden, number + 1), projection)
    outcome = _judge_one(draft, logits, law, guess, settings)
    if base_share is not None:
      base_logits = module.logits(draft.params, target, guess.states)
      base = _judge_one(draft, base_logits, law, guess, settings)
      loss = (1 - base_share) * outcome.loss + base_share * base.loss
      outcome = outcome._replace(loss=loss)
    if choice:
      seen = anchors.take(hidden, number + 1) if choice[2] else None
      outcome = _judge_choice(draft, target, logits, guess, linked, seen, choice, outcome)
    return carry, outcome

  if guesses.token.size * (module.words or module.vocab_size) > KEPT:
    one_guess = jax.checkpoint(one_guess)
  numbers = jnp.arange(len(guesses.token), dtype=jnp.int32)
  carry = module.start_carry(guesses.states[0])
  return jax.lax.scan(one_guess, carry, (numbers, guesses, links))[1]


class Links(NamedTuple):
  """What the edges of a block know of one guess (`BlockNetwork.link`)."""

  before_ids: Int[Array, '*n b a m']  # candidates of the guess before
  before: Float[Array, '*n b a m r']
  after: Float[Array, '*n b a m r']
  is_taught: Bool[Array, '*n b a']  # all tokens up to this are candidates, and the block is whole


def _link(draft: Bound, lesson: Lesson, guesses: Guesses) -> Links:
  """Returns the links of all guesses. Candidates have no gradient, but their probabilities do."""
  module, params = draft

  def pick(state: Float[Array, 'b a d']) -> tuple[Array, Array]:
    return best_of(module, module.logits(params, lesson.target, state))

  words, log_probs = jax.lax.map(jax.checkpoint(pick), guesses.states)
  ids, (n, b, a, m) = ids_of(params, words), words.shape
  features = module.features(params, lesson.features.hidden, lesson.features.taps)

  def by_anchor(x: Num[Array, 'n b a k']) -> Num[Array, 'c n k']:
    return jnp.moveaxis(x, 0, 2).reshape(b * a, n, -1)

  last = lesson.anchors.take(features).reshape(b * a, -1)
  parts = (by_anchor(guesses.states), last, by_anchor(log_probs), by_anchor(ids))
  links = []
  for x in module.link(params, lesson.target, *parts):
    links.append(jnp.moveaxis(x.reshape(b, a, n, m, -1), 2, 0))
  known = jnp.cumprod((ids == guesses.token[..., None]).any(-1), axis=0, dtype=jnp.int32) > 0
  is_taught = known & guesses.is_real.all(0)
  return Links(jnp.concatenate([ids[:1], ids[:-1]]), links[0], links[1], is_taught)


def best_of(module: Any, logits: Float[Array, '*b w']) -> tuple[Array, Array]:
  """Returns the candidates of a guess, and their log-probabilities among all words."""
  words = jax.lax.top_k(jax.lax.stop_gradient(logits), module.choices)[1]
  return words, jnp.take_along_axis(jax.nn.log_softmax(logits, axis=-1), words, axis=-1)


def _judge_choice(
  draft: Bound,
  target: Bound,
  logits: Float[Array, 'b a w'],
  guess: Guesses,
  linked: Links | None,
  seen: Float[Array, 'b a d'] | None,
  weights: tuple[float, ...],
  outcome: Outcome,
) -> Outcome:
  """Adds the losses of a choice among candidates, which decides whether the guess is right.

  Args:
    draft, target: with their parameters.
    logits: of all words, before edges.
    guess: the token, and that before it.
    linked: of the edge 'correlator'.
    seen: the target's state that predicts the token, for a penalty.
    weights: of ce, margin and penalty.
    outcome: by the logits.
  """
  module, params = draft
  words, _ = best_of(module, logits)
  is_word = words == _find_word(draft, guess.token)[0][..., None]
  is_taught = is_word.any(-1) & outcome.has_word
  if linked is None:
    scores = module.scaled(jnp.take_along_axis(logits, words, axis=-1))
    after, carry = module.after(params, words), module.start_carry(guess.states)
    added, _ = module.bias(params, guess.before, after, guess.states, carry)
    scores += added.astype(scores.dtype)
  else:
    place = (linked.before_ids == guess.before[..., None]).argmax(-1)[..., None, None]
    latent = jnp.take_along_axis(linked.before, place, axis=2)[:, :, 0]
    scores = jnp.einsum('bar,bamr->bam', latent, linked.after)
    is_taught &= linked.is_taught

  def of_token(x: Float[Array, 'b a m']) -> Float[Array, 'b a']:
    return jnp.where(is_word, x, 0).sum(-1)

  ce, margin, penalty = weights
  log_probs = jax.nn.log_softmax(scores, axis=-1)
  loss = -ce * of_token(log_probs)
  if margin:
    best = jnp.where(is_word, -jnp.inf, scores).max(-1)
    loss += margin * jnp.maximum(MARGIN + best - of_token(scores), 0)
  if penalty:
    z = jax.lax.stop_gradient(target.module.unembed(target.params, seen))
    z = jnp.take_along_axis(z, ids_of(params, words), axis=-1)
    gap = jnp.maximum(of_token(z)[..., None] - z, 0)
    loss += penalty * (jnp.exp(log_probs) * gap).sum(-1)
  loss = outcome.loss + jnp.where(is_taught, loss, 0)
  is_right = jnp.take_along_axis(is_word, scores.argmax(-1)[..., None], axis=-1)[..., 0]
  return outcome._replace(loss=loss, is_right=is_right & outcome.has_word)


def _law(
  draft: Bound, target: Bound, hidden: Float[Array, '*b d'], projection: Float[Array, 'w d'] | None
) -> Float[Array, '*b w']:
  """Returns the target's law over the draft's words, without a gradient."""
  model, params = target
  if projection is not None:
    logits = project(hidden, projection)
  else:
    logits = suppress(model.unembed(params, hidden), model.suppressed_ids)
    if 'ids' in draft.params:
      logits = logits[..., draft.params['ids']]
  return jax.lax.stop_gradient(jax.nn.softmax(logits, axis=-1))


def _judge_one(
  draft: Bound,
  logits: Float[Array, 'b a w'],
  law: Float[Array, 'b a w'] | None,
  guess: Guesses,
  settings: DraftLoss,
) -> Outcome:
  """Computes the loss of one guess; a token that the draft does not have counts as its word 0."""
  word, has_word = _find_word(draft, guess.token)
  logits = narrow_in_training(logits, guess.states.dtype)
  below, normalizer, nll, is_right = judge(logits, word)
  loss = settings.ce * nll
  if law is not None:
    loss += settings.kl * ((xlogy(law, law) - law * below).sum(-1) + normalizer)
  return Outcome(loss, has_word & is_right, has_word)


def _find_word(draft: Bound, token: Int[Array, '*b']) -> tuple[Int[Array, '*b'], Bool[Array, '*b']]:
  """Returns the number of a token among the draft's words, and a mask of those that it has."""
  if 'ids' not in draft.params:
    return token, jnp.ones(token.shape, bool)
  ids = draft.params['ids']
  none = jnp.full(draft.module.vocab_size, -1, jnp.int32)
  word = none.at[ids].set(jnp.arange(len(ids), dtype=jnp.int32))[token]
  return jnp.maximum(word, 0), word >= 0


def draft_accuracy(
  draft: Bound, target: Bound, batches: Iterable[Batch], passes: int, anchors: int = 0
) -> dict[str, float]:
  """Measures how often a draft's guesses are right on some text.

  Args:
    draft: the draft network and its parameters.
    target: the model and its parameters.
    batches: packed sentences.
    passes: guesses of an autoregressive draft.
    anchors: number of places in each row to use, always the same ones; 0: all.

  Returns:
    'tokens a call': mean number of tokens that a call on a chain would write at an anchor; and
    'accuracy 1', 'accuracy 2', ...: the share of right guesses after the text's tokens, 0..1, NaN
    without any guess.
  """
  counts = []
  for batch in batches:
    counts.append(jax.device_get(_count(draft, target, batch, passes, anchors)))
  if not sum(int(calls) for _, _, calls, _ in counts):
    raise UserError('the evaluation text is too short to draft anything: give longer sentences')
  right, real, calls, written = (np.sum(parts, axis=0) for parts in zip(*counts, strict=True))
  accuracy = {}
  for i, (number, count) in enumerate(zip(right, real, strict=True), start=1):
    accuracy[f'accuracy {i}'] = float(number / count) if count else math.nan
  return {'tokens a call': float(1 + written / calls), **accuracy}


@functools.partial(jax.jit, static_argnames=('passes', 'anchors'))
def _count(
  draft: Bound, target: Bound, batch: Batch, passes: int, anchors: int
) -> tuple[Int[Array, ' n'], Int[Array, ' n'], Int[Array, ''], Int[Array, '']]:
  """Counts right guesses, real guesses, anchors, and right guesses before the first wrong one."""
  lesson = read_batch(batch, target, draft.module.taps, anchors)
  guesses = make_guesses(draft, lesson, passes)
  right = _judge(draft, lesson, guesses, DraftLoss()).is_right & guesses.is_real
  accepted = jnp.cumprod(right.astype(jnp.int32), axis=0)
  return (
    right.sum((1, 2)), guesses.is_real.sum((1, 2)), lesson.anchors.is_real.sum(), accepted.sum(),
  )  # fmt: skip
