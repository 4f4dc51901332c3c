"""Training losses, and the accuracy of every head.

Batches are packed (`models.transformer.Transformer.hidden`): several sentences a row, told apart by segment ids, 0 for
padding. A loss is a mean over real target tokens, in nats.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Integer

from fastdec.errors import UserError
from fastdec.models.api import Params, embedding_of

Batch = Mapping[str, Integer[Array | np.ndarray, '_ ...']]  # rows, positions
Ids = Integer[Array | np.ndarray, 'b t']
Metrics = dict[str, Array]


def cross_entropy(
  logits: Float[Array, 'b t v'], targets: Ids, mask: Bool[Array, 'b t'], smoothing: float
) -> tuple[Float[Array, ''], Metrics]:
  """Label-smoothed cross entropy as in T2T: 1 - smoothing on the target, the rest shared by the other v - 1 classes.

  As in T2T, the entropy of the smoothed target is subtracted: a perfect prediction has loss 0.

  Returns:
    The loss in nats per token, and 'loss', 'nll' (of the target, unsmoothed), 'accuracy' (of the argmax, 0..1), all
    means over `mask`, and 'tokens', the number of tokens in it. Without any token the means are 0.
  """
  v = logits.shape[-1]
  low, high = smoothing / (v - 1), 1 - smoothing
  normalizer_bt = jax.nn.logsumexp(logits, axis=-1)
  nll_bt = normalizer_bt - jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
  uniform_bt = v * normalizer_bt - logits.sum(axis=-1)  # sum over classes of -log p
  entropy = -float(sum(p * np.log(p) * count for p, count in ((high, 1), (low, v - 1)) if p))
  loss_bt = (high - low) * nll_bt + low * uniform_bt - entropy
  tokens = mask.sum()

  def mean(x_bt):
    return jnp.where(mask, x_bt, 0).sum() / jnp.maximum(tokens, 1).astype(x_bt.dtype)

  loss, is_right = mean(loss_bt), logits.argmax(-1).astype(targets.dtype) == targets
  return loss, {'loss': loss, 'nll': mean(nll_bt), 'accuracy': mean(is_right.astype(float)), 'tokens': tokens}


def model_loss(
  model: Any, params: Params, batch: Batch, smoothing: float, dropout_key: Array | None = None
) -> tuple[Float[Array, ''], Metrics]:
  """The loss of the model itself; `dropout_key=None` switches dropout off. See `cross_entropy`."""
  hidden_btd = model.hidden(params, batch, dropout_key)
  mask_bt = batch['target_segment'] != 0
  return cross_entropy(model.unembed(params, hidden_btd), batch['target'], mask_bt, smoothing)


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
  """The loss of the one head that predicts `offset` positions after p1's (Stern et al. 2018, section 6).

  Args:
    model: the trunk, with parameters `params`.
    heads: a module with `logits_at` and `offsets` (see `heads.blockwise`, `heads.medusa`), with parameters
      `head_params`.
    batch: packed sentences.
    offset: 0 is p1 (the trunk itself where the heads leave it the identity), up to the last of `heads.offsets`.
    smoothing: see `cross_entropy`.
    keys: for the dropout of the trunk and of the head; None switches it off.
  """
  hidden_btd = model.hidden(params, batch, keys[0])
  return _on_hidden(model, heads, params, head_params, batch, hidden_btd, offset, smoothing, keys[1])


def all_heads_loss(
  model: Any,
  heads: Any,
  params: Params,
  head_params: Params,
  batch: Batch,
  shares: Mapping[int, float],
  smoothing: float,
  keys: tuple[Array | None, Array],
) -> tuple[Float[Array, ''], Metrics]:
  """The mean of the losses of several heads, weighted by `shares` (offset -> weight; they sum to 1); see `head_loss`.

  The trunk runs once. Every head's logits are computed again for the gradient rather than kept: the memory is that of
  one head. Metrics are the weighted means, 'tokens' those of the first head, and each head's own loss.
  """
  hidden_btd = model.hidden(params, batch, keys[0])
  offsets, weights = jnp.array(list(shares), jnp.int32), jnp.array(list(shares.values()))

  @jax.checkpoint
  def one(offset_key: tuple[Array, Array]) -> Metrics:
    offset, key = offset_key
    return _on_hidden(model, heads, params, head_params, batch, hidden_btd, offset, smoothing, key)[1]

  found = jax.lax.map(one, (offsets, jax.random.split(keys[1], len(shares))))
  metrics = {name: (found[name] * weights.astype(found[name].dtype)).sum() for name in ('loss', 'nll', 'accuracy')}
  each = {f'loss_head_{offset + 1}': found['loss'][i] for i, offset in enumerate(shares)}
  return metrics['loss'], metrics | each | {'tokens': found['tokens'][0]}


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
) -> tuple[Float[Array, ''], Metrics]:
  """The loss of one head on the trunk's hidden states."""
  root, before = None, None
  if heads.rooted:  # at position t p1 predicts target t, which is then the root
    root = embedding_of(model)(params, jnp.asarray(batch['target']))
  if heads.markov:
    before = shifted(batch['target'], batch['target_segment'], jnp.maximum(offset - 1, 0), heads.offsets[-1])[0]
  project = functools.partial(model.unembed, params)
  logits_btv = heads.logits_at(head_params, hidden, offset, project, key, root, before)
  targets_bt, mask_bt = shifted(batch['target'], batch['target_segment'], offset, heads.offsets[-1])
  return cross_entropy(logits_btv, targets_bt, mask_bt, smoothing)


def shifted(
  targets: Ids, segments: Ids, offset: Int[Array, ''], longest: int
) -> tuple[Int[Array, 'b t'], Bool[Array, 'b t']]:
  """Targets moved left by `offset` (at most `longest`), and where they still belong to the same sentence.

  targets   a b c d e 0       segments  1 1 1 2 2 0       offset 1
  shifted   b c d e 0 0       mask      1 1 0 1 0 0
  """

  def move(x_bt):
    return jax.lax.dynamic_slice_in_dim(jnp.pad(x_bt, ((0, 0), (0, longest))), offset, x_bt.shape[1], axis=1)

  return move(targets), (move(segments) == segments) & (segments != 0)


def dev_loss(model: Any, params: Params, batches: Iterable[Batch]) -> dict[str, float]:
  """'nll' in nats per token and 'accuracy' (0..1) of the model over `batches`, without dropout or smoothing."""
  return _over_tokens(_dev_batch(model, params, batch) for batch in batches)


@functools.partial(jax.jit, static_argnums=0)
def _dev_batch(model: Any, params: Params, batch: Batch) -> Metrics:
  return model_loss(model, params, batch, smoothing=0.0)[1]


def head_accuracy(
  model: Any, heads: Any, params: Params, head_params: Params, batches: Iterable[Batch]
) -> tuple[float, ...]:
  """Top-1 accuracy of p1 .. pk over `batches` (0..1): entry i is about the token i positions after p1's."""
  found = jax.device_get([_heads_batch(model, heads, params, head_params, batch) for batch in batches])
  count = heads.offsets[-1] + 1
  per_head = [[{name: x[offset] for name, x in metrics.items()} for metrics in found] for offset in range(count)]
  return tuple(_over_tokens(metrics)['accuracy'] for metrics in per_head)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _heads_batch(model: Any, heads: Any, params: Params, head_params: Params, batch: Batch) -> Metrics:
  """The metrics of p1 .. pk on a batch, one behind the other; the trunk runs once."""
  hidden_btd = model.hidden(params, batch)

  def one(offset: Int[Array, '']) -> Metrics:
    return _on_hidden(model, heads, params, head_params, batch, hidden_btd, offset, 0.0, None)[1]

  return jax.lax.map(one, jnp.arange(heads.offsets[-1] + 1, dtype=jnp.int32))


def _over_tokens(batches: Iterable[Mapping[str, Any]]) -> dict[str, float]:
  """Means over all tokens from the means of every batch."""
  rows = [{name: float(value) for name, value in metrics.items()} for metrics in jax.device_get(list(batches))]
  tokens = sum(row['tokens'] for row in rows)
  if not tokens:
    raise UserError('there are no sentences to evaluate on: give a dev set that is not empty')
  return {name: sum(row[name] * row['tokens'] for row in rows) / tokens for name in ('nll', 'accuracy')}
