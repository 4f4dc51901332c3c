"""The state of a training run, and the three tasks that it can have.

A `Task` trains the base model, prediction heads on a frozen trunk, or heads and trunk together
(Stern et al. 2018, section 6 and table 1: 'regular' and 'fine tuning'). Every task starts with a
fresh optimizer.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fastdec import extras, struct
from fastdec.errors import UserError
from fastdec.heads.anchors import anchors_of
from fastdec.models.api import Params
from fastdec.training.losses import (
  Batch,
  Metrics,
  all_heads_loss,
  count_targets,
  head_loss,
  model_loss,
)
from fastdec.training.means import own_rows, whole_of

with extras.explained():
  import optax

SMOOTHING = 0.1  # T2T's label smoothing
Loss = Callable[[Params, Params, Batch, Array], tuple[Float[Array, ''], Metrics]]


@struct.pytree
class TrainState:
  """Everything that a step changes; step i draws from fold_in(key, i)."""

  step: Int[Array, '']  # updates done
  params: Params  # the ones that are trained
  opt_state: Any
  key: Key[Array, '']

  @classmethod
  def create(
    cls, task: 'Task', optimizer: optax.GradientTransformation, key: Key[Array, '']
  ) -> 'TrainState':
    """Makes the state before the first step."""
    init_key, key = jax.random.split(key)
    params = task.init(init_key)
    return cls(step=jnp.int32(0), params=params, opt_state=optimizer.init(params), key=key)


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
  """The parameters to train, and their loss.

  Attributes:
    init: key -> the parameters to train.
    loss: (parameters, frozen parameters, batch, key) -> (loss, metrics); see
      `losses.cross_entropy`. For a part of a batch it returns the part's shares (`training.means`).
    frozen: parameters that the loss reads and nothing changes.
  """

  init: Callable[[Array], Params]
  loss: Loss
  frozen: Params = dataclasses.field(default_factory=dict)


def base_task(model: Any, smoothing: float = SMOOTHING, start: Params | None = None) -> Task:
  """Trains the model, from `start` or from scratch (None).

  Parameters: the model's.
  """
  init = model.init if start is None else lambda key: copy_params(start)
  return Task(init, lambda params, _, batch, key: model_loss(model, params, batch, smoothing, key))


def frozen_heads_task(
  model: Any,
  heads: Any,
  trunk: Params,
  smoothing: float = SMOOTHING,
  draw: str = 'one',
  decay: float = 1.0,
  start: Params | None = None,
  anchors: int = 0,
) -> Task:
  """Trains heads on the parameters `trunk`, which stay as they are.

  Parameters: the heads'. The trunk runs without dropout: it is not trained, and the heads see the
  hidden states that decoding will show them.

  Args:
    model: the trunk.
    heads: a module with `init`, `logits_at` and `offsets` (see `heads.blockwise`, `heads.medusa`).
    trunk: its parameters.
    smoothing: of the labels.
    draw: 'one' head a minibatch, drawn at random (section 6: an unbiased estimate of the mean of
      the heads' losses, for the cost of one), or 'all' (the mean itself; the trunk runs once).
    decay: weight of each head relative to the one before (1: all equal, as in the paper).
    start: parameters that the heads begin with (None: fresh ones).
    anchors: number of places in each row at which all heads learn together, drawn again in each
      step: an unbiased estimate for a part of the cost (0: all places). p1 learns at all places
      even so.
  """
  heads_loss = _HeadsLoss(model, heads, heads.offsets, 0.0, decay, smoothing, draw, anchors)

  def loss(
    params: Params, frozen: Params, batch: Batch, key: Array
  ) -> tuple[Float[Array, ''], Metrics]:
    draw_key, key = jax.random.split(key)
    return heads_loss(frozen, params, batch, draw_key, (None, key))

  return Task(heads.init if start is None else lambda key: copy_params(start), loss, trunk)


def finetuned_heads_task(
  model: Any,
  heads: Any,
  trunk: Params,
  start: Params | None = None,
  p1_share: float = 0.0,
  smoothing: float = SMOOTHING,
  draw: str = 'one',
  decay: float = 1.0,
  anchors: int = 0,
) -> Task:
  """Trains heads together with the model, which starts from `trunk`.

  Parameters: {'model': ..., 'heads': ...}. The heads begin with `start`, or fresh (None). For a
  short run, train them on the frozen trunk first: fresh heads are noise, and their gradients make
  the trunk worse. p1's loss counts too, even if p1 is the identity: it keeps the trunk a good
  model. Its weight is `p1_share` (0: that of head 2, as in the paper); `draw`, `decay` and
  `anchors` are as in `frozen_heads_task`.
  """
  offsets = tuple(range(heads.offsets[-1] + 1))
  heads_loss = _HeadsLoss(model, heads, offsets, p1_share, decay, smoothing, draw, anchors)

  def loss(params: Params, _: Params, batch: Batch, key: Array) -> tuple[Float[Array, ''], Metrics]:
    draw_key, *keys = jax.random.split(key, 3)
    return heads_loss(params['model'], params['heads'], batch, draw_key, tuple(keys))

  def init(key: Array) -> Params:
    head_params = heads.init(key) if start is None else copy_params(start)
    return {'model': copy_params(trunk), 'heads': head_params}

  return Task(init, loss)


@dataclasses.dataclass(frozen=True)
class _HeadsLoss:
  """The loss of one drawn head, or of all heads; fields as in `finetuned_heads_task`."""

  model: Any
  heads: Any
  offsets: tuple[int, ...]  # of the heads that are trained
  p1_share: float
  decay: float
  smoothing: float
  draw: str
  anchors: int

  def __post_init__(self) -> None:
    if self.anchors and self.draw != 'all':
      raise UserError(
        f'anchors={self.anchors} with draw={self.draw} is not possible: one head learns at all'
        ' places, give draw=all'
      )

  def __call__(
    self,
    params: Params,
    head_params: Params,
    batch: Batch,
    draw_key: Array,
    keys: tuple[Array | None, Array],
  ) -> tuple[Float[Array, ''], Metrics]:
    """Computes the loss; `keys` are for the dropout of the trunk and of the heads."""
    bound = self.model, self.heads, params, head_params, batch
    shares = self._shares(batch)
    if self.draw == 'all':
      anchors = None
      if self.anchors:
        anchors = own_rows(batch, anchors_of(whole_of(batch), self.anchors, draw_key))
      return all_heads_loss(*bound, shares, self.smoothing, keys, anchors)
    # A head is drawn with the probability of its share, the same one for all parts of a batch.
    offsets, p = jnp.array(self.offsets, jnp.int32), jnp.stack(list(shares.values()))
    offset = jax.random.choice(draw_key, offsets, p=p)
    loss, metrics = head_loss(*bound, offset, self.smoothing, keys)
    return loss, metrics | {'head': offset + 1}  # numbered as in the paper: head 1 is p1

  def _shares(self, batch: Batch) -> dict[int, Float[Array, '']]:
    """Returns the weight of each head's loss, by offset (0: p1); the sum is 1.

    A head for which the whole batch has no long enough sentence has 0. With a `p1_share` the other
    heads have the rest; with 0, p1 counts as head 2.
    """
    weights = {}
    for offset in self.offsets:
      has_target = count_targets(batch, offset, self.heads.offsets[-1]) > 0
      weights[offset] = jnp.where(has_target, self.decay ** max(offset - 1, 0), 0.0)

    # p1 has a share of its own, and all of the loss where no other head has a target.
    shares, left = {}, jnp.ones(())
    if self.p1_share and 0 in weights:
      del weights[0]
      left = jnp.where(sum(weights.values()) > 0, 1 - self.p1_share, 0.0)
      shares[0] = 1 - left
    total = sum(weights.values())
    for offset, weight in weights.items():
      shares[offset] = left * weight / jnp.where(total > 0, total, 1)
    return shares


def copy_params(tree: Params) -> Params:
  """Copies parameters to start from, because a step reuses the memory of its arguments."""
  return jax.tree.map(jnp.array, tree)
