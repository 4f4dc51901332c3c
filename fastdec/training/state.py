"""What a training run carries from step to step, and the three things it can train.

A `Task` says what is trained: the base model, prediction heads on a frozen trunk, or heads and trunk together
(Stern et al. 2018, section 6 and table 1: 'regular' and 'fine tuning'). Every task starts with a fresh optimizer.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key

from fastdec import struct
from fastdec.models.api import Params
from fastdec.training.losses import Batch, Metrics, head_loss, model_loss

SMOOTHING = 0.1  # T2T's label smoothing
Loss = Callable[[Params, Params, Batch, Array], tuple[Float[Array, ''], Metrics]]


@struct.pytree
class TrainState:
  """Everything that a step changes; step i draws from fold_in(key, i)."""
  step: Int[Array, '']  # updates done
  params: Params  # what is trained
  opt_state: Any
  key: Key[Array, '']

  @classmethod
  def create(cls, task: 'Task', optimizer: optax.GradientTransformation, key: Key[Array, '']) -> 'TrainState':
    """The state before the first step."""
    init_key, key = jax.random.split(key)
    params = task.init(init_key)
    return cls(step=jnp.int32(0), params=params, opt_state=optimizer.init(params), key=key)


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
  """What is trained.

  Attributes:
    init: key -> the parameters to train.
    loss: (parameters, frozen parameters, batch, key) -> (loss, metrics); see `losses.cross_entropy`.
    frozen: parameters that the loss reads and nothing changes.
  """

  init: Callable[[Array], Params]
  loss: Loss
  frozen: Params = dataclasses.field(default_factory=dict)


def base_task(model: Any, smoothing: float = SMOOTHING) -> Task:
  """Trains the model from scratch. Parameters: the model's."""
  return Task(model.init, lambda params, _, batch, key: model_loss(model, params, batch, smoothing, key))


def frozen_heads_task(model: Any, heads: Any, trunk: Params, smoothing: float = SMOOTHING) -> Task:
  """Trains fresh heads on the parameters `trunk`, which stay as they are. Parameters: the heads'.

  The trunk runs without dropout: it is not trained, and the heads see the hidden states that decoding will show them.
  """

  def loss(params: Params, frozen: Params, batch: Batch, key: Array) -> tuple[Float[Array, ''], Metrics]:
    draw_key, key = jax.random.split(key)
    offset = _draw(draw_key, heads.offsets)
    return _named(offset, head_loss(model, heads, frozen, params, batch, offset, smoothing, (None, key)))

  return Task(heads.init, loss, trunk)


def finetuned_heads_task(
  model: Any,
  heads: Any,
  trunk: Params,
  start: Params | None = None,
  p1_share: float = 0.0,
  smoothing: float = SMOOTHING,
) -> Task:
  """Trains heads together with the model, which starts from `trunk`. Parameters: {'model': ..., 'heads': ...}.

  The heads begin at `start`, or fresh (None). A short run wants heads that were trained on the frozen trunk first:
  fresh ones are noise, and what they send back drives the trunk away from what it knows before they have learnt.
  p1's loss is drawn too, also where p1 is the identity: it keeps the trunk a good model. `p1_share` of the minibatches
  are p1's (0: as many as any other head's, as in the paper).
  """

  def loss(params: Params, _: Params, batch: Batch, key: Array) -> tuple[Float[Array, ''], Metrics]:
    draw_key, *keys = jax.random.split(key, 3)
    offset = _draw(draw_key, range(heads.offsets[-1] + 1), p1_share)
    losses = head_loss(model, heads, params['model'], params['heads'], batch, offset, smoothing, tuple(keys))
    return _named(offset, losses)

  # Copied, because a step reuses the memory of the parameters that it is given.
  copy = lambda tree: jax.tree.map(jnp.copy, tree)
  return Task(lambda key: {'model': copy(trunk), 'heads': heads.init(key) if start is None else copy(start)}, loss)


def _draw(key: Array, offsets: Any, first_share: float = 0.0) -> Int[Array, '']:
  """One loss a minibatch, uniformly: an unbiased estimate of their mean at the price of one (section 6). With a
  `first_share` the first is drawn that often, the others equally often: an estimate of a weighted mean."""
  others = len(offsets) - 1
  shares = [first_share, *[(1 - first_share) / others] * others] if first_share else None
  return jax.random.choice(key, jnp.array(offsets, jnp.int32), p=None if shares is None else jnp.array(shares))


def _named(offset: Int[Array, ''], losses: tuple[Array, Metrics]) -> tuple[Float[Array, ''], Metrics]:
  loss, metrics = losses
  return loss, metrics | {'head': offset + 1}  # counted as in the paper: head 1 is p1
