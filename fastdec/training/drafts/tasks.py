"""Tasks of draft training: a draft on a frozen target, or both; see `training.state`.

The draft's vocabulary (`ids`) is chosen before, and stays fixed.
"""

import contextlib

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fastdec.errors import UserError
from fastdec.heads.anchors import anchors_of
from fastdec.heads.lesson import Lesson
from fastdec.heads.shortlist import find_output
from fastdec.models.api import Params
from fastdec.struct import Bound
from fastdec.training.drafts.kept import read_batch
from fastdec.training.drafts.losses import DraftLoss, draft_loss
from fastdec.training.losses import Batch, Metrics, loss_of_hidden, own_key
from fastdec.training.means import own_rows, weigh, whole_of
from fastdec.training.state import Task, copy_params

FIXED = ('ids', 'warmth')  # parameters of a draft that are not trained


def frozen_draft_task(target: Bound, draft: Bound, settings: DraftLoss) -> Task:
  """Trains a draft on a model that stays as it is, and runs without dropout.

  Parameters: the draft's, without `FIXED`. Batches may have the features that it reads (`kept`).

  Args:
    target: the model and its parameters.
    draft: the draft network, and the parameters that it begins with.
    settings: its loss.
  """
  model, module = target.module, draft.module
  learned, fixed = split(draft.params)

  def loss(
    params: Params, frozen: Params, batch: Batch, key: Array
  ) -> tuple[Float[Array, ''], Metrics]:
    draw_key, dropout_key = jax.random.split(key)
    bound, whole = Bound(model, frozen['model']), Bound(module, params | frozen['fixed'])
    lesson = read_batch(batch, bound, module.taps, settings.anchors, draw_key)
    return draft_loss(whole, lesson, settings, dropout_key, frozen.get('projection'))

  frozen = {'model': target.params, 'fixed': fixed}
  if settings.kl and 'ids' in fixed:
    with contextlib.suppress(UserError):  # not every target computes its logits with a matrix
      frozen['projection'] = find_output(model, target.params, model.d_model)[fixed['ids']]
  return Task(lambda key: copy_params(learned), loss, frozen)


def finetuned_draft_task(
  target: Bound, draft: Bound, settings: DraftLoss, p1_share: float, smoothing: float
) -> Task:
  """Trains a draft together with its model.

  Parameters: {'model': ..., 'heads': the draft's, without `FIXED`}.

  Args:
    target: the model, and the parameters that it begins with.
    draft: the draft, and the parameters that it begins with, preferably trained on the frozen
      model.
    settings: the draft's loss.
    p1_share: weight of the model's own loss; the draft's has the rest.
    smoothing: of the labels of the model's own loss.
  """
  model, module = target.module, draft.module
  learned, fixed = split(draft.params)

  def loss(
    params: Params, frozen: Params, batch: Batch, key: Array
  ) -> tuple[Float[Array, ''], Metrics]:
    model_key, draw_key, dropout_key = jax.random.split(key, 3)
    bound, whole = Bound(model, params['model']), Bound(module, params['heads'] | frozen['fixed'])
    seen = model.features(bound.params, batch, module.taps, own_key(model, batch, model_key))
    of_model, model_metrics = loss_of_hidden(model, bound.params, batch, seen.hidden, smoothing)
    drawn = anchors_of(whole_of(batch), settings.anchors, draw_key)
    lesson = Lesson(bound, batch, seen, own_rows(batch, drawn), drawn)
    of_draft, metrics = draft_loss(whole, lesson, settings, dropout_key)
    shares = jnp.array([p1_share, 1 - p1_share])
    tokens = jnp.stack([model_metrics['tokens'], metrics['tokens']])
    total = weigh(jnp.stack([of_model, of_draft]), shares, tokens)
    return total, metrics | {
      'loss': total,
      'loss_draft': of_draft,
      'loss_model': of_model,
      'nll': model_metrics['nll'],
    }

  def init(key: Array) -> Params:
    return {'model': copy_params(target.params), 'heads': copy_params(learned)}

  return Task(init, loss, {'fixed': fixed})


def split(params: Params) -> tuple[Params, Params]:
  """Splits a draft's parameters into those that are trained and those that are `FIXED`."""
  learned, fixed = {}, {}
  for name, value in params.items():
    if name in FIXED:
      fixed[name] = value
    else:
      learned[name] = value
  return learned, fixed
