"""Training losses, and the accuracy of every head.

Batches are packed (`models.linen.LinenModel.hidden`): several sentences a row, which segment ids
distinguish; 0 is padding. A loss is a mean over real target tokens, in nats. In a part of a batch,
losses and metrics are its shares of those of the whole batch (`training.means`).
"""

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Integer

from fastdec.errors import UserError
from fastdec.heads.anchors import Anchors
from fastdec.models.api import Params, embedding_of
from fastdec.models.layers import narrow_in_training
from fastdec.models.linen import LinenModel
from fastdec.training.means import mean_over, or_nan, weigh, whole_of

Batch = Mapping[str, Any]  # integers [rows, positions, ...]; a part of a batch also has the whole
Ids = Integer[Array | np.ndarray, 'b t']
Metrics = dict[str, Array]
KEPT = 2**25  # the most logits that a training step keeps for its gradient


def cross_entropy(
  logits: Float[Array, 'b t v'],
  targets: Ids,
  mask: Bool[Array, 'b t'],
  smoothing: float,
  tokens: Int[Array, ''] | None = None,
) -> tuple[Float[Array, ''], Metrics]:
  """Computes label-smoothed cross entropy as T2T: 1 - smoothing on the target, the rest shared.

  As in T2T, the entropy of the smoothed target is subtracted: a perfect prediction has loss 0.

  `tokens` is the number of tokens that sums over the mask are divided by; None: those in the mask.

  Returns:
    The loss in nats per token; and metrics, means over `mask`: 'loss', 'nll' (of the target,
    unsmoothed), 'accuracy' (of the argmax, 0..1), and the number of 'tokens'. Without any token the
    means are 0.
  """
  if tokens is None:
    tokens = mask.sum()
  return _means(_each(logits, targets, smoothing), mask, tokens)


def _each(
  logits: Float[Array, 'b t v'], targets: Ids, smoothing: float
) -> dict[str, Float[Array, 'b t']]:
  """Computes, at each place, the terms that `cross_entropy` averages."""
  v = logits.shape[-1]
  low, high = smoothing / (v - 1), 1 - smoothing
  below_btv, normalizer_bt, nll_bt, is_right = judge(logits, targets)
  uniform_bt = v * normalizer_bt - below_btv.sum(axis=-1)  # sum over classes of -log p
  entropy = -float(sum(p * np.log(p) * count for p, count in ((high, 1), (low, v - 1)) if p))
  loss_bt = (high - low) * nll_bt + low * uniform_bt - entropy
  return {'loss': loss_bt, 'nll': nll_bt, 'accuracy': is_right.astype(float)}


def judge(
  logits: Float[Array, 'b t v'], targets: Ids
) -> tuple[Float[Array, 'b t v'], Float[Array, 'b t'], Float[Array, 'b t'], Bool[Array, 'b t']]:
  """Compares logits with the right words, in float32 or wider.

  Logits are read with the largest, then for all sums, then for the gradient, and nothing else of
  their size is written. So the target's logit and the argmax are sums and minima over all words.

  Returns:
    How far logits are above the largest one, at most 0; the log of the sum of their exponentials;
    the target's -log p; and whether it is the argmax.
  """
  # What does not depend on a head, JAX makes before a loop over heads, in the size of all logits.
  # The barrier prevents that: it lets ids and 0 depend on a head's targets.
  v, wide = logits.shape[-1], jnp.promote_types(logits.dtype, jnp.float32)
  ids = jax.lax.broadcasted_iota(targets.dtype, (1,) * targets.ndim + (v,), targets.ndim)
  ids, zero, targets = jax.lax.optimization_barrier((ids, wide.type(0), jnp.asarray(targets)))
  largest = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
  below = logits.astype(wide) - largest.astype(wide)
  normalizer = jnp.log(jnp.exp(below).sum(axis=-1))
  nll = normalizer - jnp.where(ids == targets[..., None], below, zero).sum(axis=-1)
  is_right = jnp.where(below == 0, ids, targets[..., None] + 1).min(axis=-1) == targets
  return below, normalizer, nll, is_right


def _means(
  each: Mapping[str, Float[Array, 'b t']],
  mask: Bool[Array, 'b t'],
  tokens: Int[Array, ''],
  weight: Float[Array, 'b 1'] | None = None,
) -> tuple[Float[Array, ''], Metrics]:
  """Sums each term over a mask, where rows may have a weight, and divides by a number of tokens.

  Returns the mean loss, and all means with that number.
  """
  metrics = {}
  for name, x_bt in each.items():
    if weight is not None:
      x_bt = x_bt * weight.astype(x_bt.dtype)
    metrics[name] = mean_over(x_bt, mask, tokens)
  return metrics['loss'], metrics | {'tokens': tokens}


def model_loss(
  model: Any, params: Params, batch: Batch, smoothing: float, dropout_key: Array | None = None
) -> tuple[Float[Array, ''], Metrics]:
  """Computes the loss of the model itself; `dropout_key=None` switches dropout off.

  See `cross_entropy`.
  """
  hidden_btd = model.hidden(params, batch, own_key(model, batch, dropout_key))
  return loss_of_hidden(model, params, batch, hidden_btd, smoothing)


def loss_of_hidden(
  model: Any, params: Params, batch: Batch, hidden: Float[Array, 'b t d'], smoothing: float
) -> tuple[Float[Array, ''], Metrics]:
  """Computes `model_loss` from hidden states."""
  tokens = (whole_of(batch)['target_segment'] != 0).sum()
  mask_bt = batch['target_segment'] != 0
  logits_btv = narrow_in_training(model.unembed(params, hidden), hidden.dtype)
  return cross_entropy(logits_btv, batch['target'], mask_bt, smoothing, tokens)


def own_key(model: Any, batch: Batch, key: Array | None) -> Array | None:
  """Returns the key for a model's dropout on a batch.

  Our models number a part's rows as in the whole batch. Any other needs another key in each part.
  """
  if key is None or 'row' not in batch or isinstance(model, LinenModel):
    return key
  return jax.random.fold_in(key, batch['row'][0])


def head_loss(
  model: Any,
  heads: Any,
  params: Params,
  head_params: Params,
  batch: Batch,
  offset: Int[Array, ''],
  smoothing: float,
  keys: tuple[Array | None, Array | None] = (None, None),
) -> tuple[Float[Array, ''], Metrics]:
  """Computes the loss of the head `offset` positions after p1 (Stern et al. 2018, section 6).

  Args:
    model: the trunk, with parameters `params`.
    heads: a module with `logits_at` and `offsets` (see `heads.blockwise`, `heads.medusa`), with
      parameters `head_params`.
    batch: packed sentences.
    offset: 0 is p1 (the trunk itself if the heads leave it the identity), up to the last of
      `heads.offsets`.
    smoothing: see `cross_entropy`.
    keys: for the dropout of the trunk and of the head; None switches it off.
  """
  hidden_btd = model.hidden(params, batch, own_key(model, batch, keys[0]))
  return _on_hidden(
    model, heads, params, head_params, batch, hidden_btd, offset, smoothing, keys[1]
  )


def all_heads_loss(
  model: Any,
  heads: Any,
  params: Params,
  head_params: Params,
  batch: Batch,
  shares: Mapping[int, float | Float[Array, '']],
  smoothing: float,
  keys: tuple[Array | None, Array],
  anchors: Anchors | None = None,
) -> tuple[Float[Array, ''], Metrics]:
  """Averages the losses of several heads by `shares` (offset -> weight); see `head_loss`.

  A head counts if the batch has a sentence that is long enough for it. The trunk runs once. If the
  heads have more than `KEPT` logits together, they are computed again for the gradient, so the
  memory is that of one head. Metrics are the weighted means, the first head's 'tokens', and each
  head's own loss, NaN for a head that does not count.

  Args:
    anchors: a sample of places at which heads learn; the losses and gradients have the same
      expectations as at all places. p1 learns at all places even so, as the trunk does without
      heads. None: all heads do.
  """
  hidden_btd = model.hidden(params, batch, own_key(model, batch, keys[0]))
  each_key = jax.random.split(keys[1], len(shares))

  def one_head(offset_key: tuple[Array, Array], places: Anchors | None = anchors) -> Metrics:
    offset, key = offset_key
    return _on_hidden(
      model, heads, params, head_params, batch, hidden_btd, offset, smoothing, key, places
    )[1]

  offsets, weights = jnp.array(list(shares), jnp.int32), jnp.array(list(shares.values()))
  places, first = batch['target'], 0
  if anchors is not None:
    places = anchors.place
    # p1 learns at all places, not only at the anchors, so it is computed separately.
    first = int(0 in shares)
  compute: Any = one_head
  if places.size * len(shares) * model.vocab_size > KEPT:
    compute = jax.checkpoint(one_head)
  by_head = jax.lax.map(compute, (offsets[first:], each_key[first:]))
  if first:
    p1 = one_head((offsets[0], each_key[0]), None)
    by_head = jax.tree.map(lambda x, rest: jnp.concatenate([x[None], rest]), p1, by_head)
  metrics, tokens = {}, by_head['tokens']
  for name in ('loss', 'nll', 'accuracy'):
    metrics[name] = weigh(by_head[name], weights, tokens)
  each_loss = or_nan(by_head['loss'], tokens)
  for i, offset in enumerate(shares):
    metrics[f'loss_head_{offset + 1}'] = each_loss[i]
  return metrics['loss'], metrics | {'tokens': tokens[0]}


def _on_hidden(
  model: Any,
  heads: Any,
  params: Params,
  head_params: Params,
  batch: Batch,
  hidden: Float[Array, 'b t d'],
  offset: Int[Array, ''],
  smoothing: float,
  key: Array | None,
  anchors: Anchors | None = None,
) -> tuple[Float[Array, ''], Metrics]:
  """Computes the loss of one head on the trunk's hidden states, at all places or at a sample."""
  longest = heads.offsets[-1]
  # At position t p1 predicts target t, which then is the root of the other heads.
  root_bt = jnp.asarray(batch['target'])
  before_bt = shift_left(
    batch['target'], batch['target_segment'], jnp.maximum(offset - 1, 0), longest
  )[0]
  targets_bt, mask_bt = shift_left(batch['target'], batch['target_segment'], offset, longest)
  tokens, weight = count_targets(batch, offset, longest), None
  if anchors is not None:
    seen = hidden, root_bt, before_bt, targets_bt, mask_bt
    hidden, root_bt, before_bt, targets_bt, mask_bt = jax.tree.map(anchors.take, seen)
    mask_bt, weight = mask_bt & anchors.is_real, anchors.weight[:, None]
  root = before = None
  if heads.rooted:
    root = embedding_of(model)(params, root_bt)
  if heads.markov:
    before = before_bt
  project = functools.partial(model.unembed, params)
  logits_btv = heads.logits_at(head_params, hidden, offset, project, key, root, before)
  logits_btv = narrow_in_training(logits_btv, hidden.dtype)
  return _means(_each(logits_btv, targets_bt, smoothing), mask_bt, tokens, weight)


def count_targets(batch: Batch, offset: Int[Array, ''] | int, longest: int) -> Int[Array, '']:
  """Counts the targets of the head at an offset (at most `longest`) in the whole batch."""
  whole = whole_of(batch)
  return shift_left(whole['target'], whole['target_segment'], offset, longest)[1].sum()


def shift_left(
  targets: Ids, segments: Ids, offset: Int[Array, ''] | int, longest: int
) -> tuple[Int[Array, 'b t'], Bool[Array, 'b t']]:
  """Moves targets left by `offset` (at most `longest`), and masks those of the same sentence.

  targets   a b c d e 0       segments  1 1 1 2 2 0       offset 1
  shifted   b c d e 0 0       mask      1 1 0 1 0 0
  """

  def move(x_bt):
    return jax.lax.dynamic_slice_in_dim(
      jnp.pad(x_bt, ((0, 0), (0, longest))), offset, x_bt.shape[1], axis=1
    )

  return move(targets), (move(segments) == segments) & (segments != 0)


def dev_loss(model: Any, params: Params, batches: Iterable[Batch]) -> dict[str, float]:
  """Computes 'nll' in nats per token and 'accuracy' (0..1) of the model over `batches`.

  It runs without dropout or smoothing.
  """
  return _over_tokens(_dev_batch(model, params, batch) for batch in batches)


@functools.partial(jax.jit, static_argnums=0)
def _dev_batch(model: Any, params: Params, batch: Batch) -> Metrics:
  return model_loss(model, params, batch, smoothing=0.0)[1]


def head_accuracy(
  model: Any, heads: Any, params: Params, head_params: Params, batches: Iterable[Batch]
) -> tuple[float, ...]:
  """Computes the top-1 accuracy of p1 .. pk over `batches` (0..1).

  Entry i is about the token i positions after p1's; nan where no sentence is that long.

  Raises:
    UserError: the batches contain no tokens.
  """
  by_batch = []
  for batch in batches:
    by_batch.append(_heads_batch(model, heads, params, head_params, batch))
  by_batch = jax.device_get(by_batch)

  # A sentence has no place for heads beyond its end.
  accuracies = []
  for offset in range(heads.offsets[-1] + 1):
    rows = []
    for metrics in by_batch:
      rows.append({name: by_head[offset] for name, by_head in metrics.items()})
    if offset and not any(row['tokens'] for row in rows):
      accuracies.append(math.nan)
    else:
      accuracies.append(_over_tokens(rows)['accuracy'])
  return tuple(accuracies)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _heads_batch(
  model: Any, heads: Any, params: Params, head_params: Params, batch: Batch
) -> Metrics:
  """Computes the metrics of p1 .. pk on a batch, one after the other; the trunk runs once."""
  hidden_btd = model.hidden(params, batch)

  def one_head(offset: Int[Array, '']) -> Metrics:
    return _on_hidden(model, heads, params, head_params, batch, hidden_btd, offset, 0.0, None)[1]

  return jax.lax.map(one_head, jnp.arange(heads.offsets[-1] + 1, dtype=jnp.int32))


def _over_tokens(batches: Iterable[Mapping[str, Any]]) -> dict[str, float]:
  """Averages over all tokens, from the means of every batch."""
  tokens = nll = accuracy = 0.0
  for metrics in jax.device_get(list(batches)):
    count = float(metrics['tokens'])
    tokens += count
    nll += float(metrics['nll']) * count
    accuracy += float(metrics['accuracy']) * count
  if not tokens:
    raise UserError('the dev set is empty: give one with at least one sentence')
  return {'nll': nll / tokens, 'accuracy': accuracy / tokens}
