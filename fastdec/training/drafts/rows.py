"""The rows of draft networks in training: all anchors at once, each with the view of decoding.

After an anchor a draft reads the tokens that the target wrote (teacher forcing). Its states are
those of decoding as long as its guesses are right; after a wrong guess they are ignored.

  EAGLE   One pass of the network for each guess ("training-time test", Li et al. 2025). In pass 0
          every place of the batch reads its true feature, under the causal mask. In pass j the row
          of an anchor at place t stands at t + j. It reads token t + j and its own state of pass
          j - 1, and sees the rows of pass 0 up to t, and its own of the passes 1 ... j. So each
          pass adds one key for an anchor, not another square of keys.
  block   One pass for all guesses: the rows of an anchor at place t stand at t + 1, t + 2, ...
          They see the features of places up to t, and one another.

Sentences of a row do not see one another, and each sees its own source.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fastdec.cache.kv import LayerKV
from fastdec.errors import UserError
from fastdec.heads import tower
from fastdec.heads.block import BlockNetwork
from fastdec.heads.draft import DraftNetwork
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.tower import View
from fastdec.models.attention import attend
from fastdec.models.stacks import Attend
from fastdec.models.taps import Features
from fastdec.struct import Bound
from fastdec.training.anchors import Anchors
from fastdec.training.losses import Batch

# (number of a row, its state) -> the guessed token
Guess = Callable[[int, Float[Array, 'b a d']], Int[Array, 'b a']]


def eagle_rows(
  draft: Bound,
  target: Bound,
  batch: Batch,
  seen: Features,
  anchors: Anchors,
  passes: int,
  key: Array | None = None,
  guess: Guess | None = None,
) -> Float[Array, 'n b a d']:
  """Computes the states of `passes` rows for each anchor.

  Row i predicts the token i + 1 places after the anchor.

  Args:
    draft: an `EagleNetwork` and its parameters.
    target: the model whose embeddings it may read.
    batch: packed sentences.
    seen: the target's states of them.
    anchors: places where drafts begin.
    passes: guesses of a draft.
    key: for the draft's dropout; None switches it off.
    guess: returns the token that a row guesses, which the next row reads (None: rows read the
      tokens that the target wrote).
  """
  module: EagleNetwork = draft.module
  places = _Places(draft, batch, seen, anchors)

  # Pass 0: every place reads its true feature.
  embedded = module.embedded(draft.params, target, places.target)
  causal = [functools.partial(attend, mask=places.causal)] * places.depth
  view = View(places.position, causal, places.across(None), places.memory)
  states, first = module.call(
    draft.params, embedded, places.features, view, method='read', **_dropout(key, 0)
  )
  state = anchors.take(states)

  # In each later pass an anchor has one row, which reads its own state of the pass before.
  rows, entries = [state], []
  mask, across = anchors.take(places.causal), places.across(anchors)
  for i in range(1, passes):
    tokens = anchors.take(places.target, i) if guess is None else guess(i - 1, state)
    sees = []
    for layer, shared in enumerate(first):
      before = [entry[layer] for entry in entries]
      sees.append(functools.partial(_sees_own, shared=shared, mask=mask, before=before))
    embedded = module.embedded(draft.params, target, tokens)
    view = View(anchors.take(places.position) + i, sees, across, places.memory)
    state, entry = module.call(
      draft.params, embedded, state, view, method='read', **_dropout(key, i)
    )
    entries.append(entry)
    rows.append(state)
  return jnp.stack(rows)


def block_rows(
  draft: Bound,
  target: Bound,
  batch: Batch,
  seen: Features,
  anchors: Anchors,
  key: Array | None = None,
) -> Float[Array, 'n b a d']:
  """Computes the states of the k - 1 rows of a `BlockNetwork` for each anchor; as `eagle_rows`."""
  module: BlockNetwork = draft.module
  places = _Places(draft, batch, seen, anchors)

  # The features' keys and values, as decoding caches them; and the rows of each anchor's block.
  context = module.call(draft.params, places.features, places.position, method='own')
  root = module.embedded(draft.params, target, anchors.take(places.target))
  unknown = None
  if module.unknown_id is not None:
    unknown = module.embedded(draft.params, target, jnp.int32(module.unknown_id))
  x = module.call(draft.params, root, unknown, anchors.take(places.features), method='enter')

  # One pass reads all anchors' rows, laid one after another.
  b, a, n, d = x.shape
  position = (
    anchors.take(places.position)[..., None] + 1 + jnp.arange(n, dtype=jnp.int32).reshape(1, 1, n)
  )
  mask = jnp.repeat(anchors.take(places.causal), n, axis=1)
  sees = [functools.partial(_sees_block, shared=shared, mask=mask, anchors=a) for shared in context]
  view = View(position.reshape(b, a * n), sees, places.across(anchors, n), places.memory)
  states = module.call(
    draft.params, x.reshape(b, a * n, d), view, method='read', **_dropout(key, 0)
  )
  states = states.reshape(b, a, n, d)
  return jnp.moveaxis(states[:, :, 1:] if module.drops_first else states, 2, 0)


class _Places:
  """The inputs that both kinds of drafts read from a batch."""

  def __init__(self, draft: Bound, batch: Batch, seen: Features, anchors: Anchors) -> None:
    module: DraftNetwork = draft.module
    if any(tower.windows_of(module.layers)) or getattr(module, 'causal', 'none') != 'none':
      raise UserError(
        'drafts with windows, or with causal blocks, are not trained here: give one whose layers'
        ' see everything'
      )
    self.target, self.position = jnp.asarray(batch['target']), jnp.asarray(batch['target_position'])
    segment = jnp.asarray(batch['target_segment'])
    t = segment.shape[1]
    self.causal = (segment[:, :, None] == segment[:, None, :]) & np.tri(t, dtype=bool)[None]
    self.features = module.features(draft.params, seen.hidden, seen.taps)
    self.depth = tower.depth_of(module.layers)
    self.memory, self._reads = (), None
    if module.reads_source:
      assert seen.source is not None  # by `check_target`
      self.memory = module.call(
        draft.params, seen.source.astype(module.layers.dtype), method='memory'
      )
      self._reads = segment[:, :, None] == jnp.asarray(batch['source_segment'])[:, None, :]

  def across(self, anchors: Anchors | None, rows: int = 1) -> Attend | None:
    """Returns the mask of the source for all places, or for anchors with this many rows each."""
    if self._reads is None:
      return None
    mask = self._reads if anchors is None else jnp.repeat(anchors.take(self._reads), rows, axis=1)
    return functools.partial(attend, mask=mask)


def _dropout(key: Array | None, number: int) -> dict[str, Any]:
  """Returns a pass's arguments for dropout."""
  if key is None:
    return {}
  return {'train': True, 'rngs': {'dropout': jax.random.fold_in(key, number)}}


def _sees_own(
  q: Float[Array, 'b a h p'],
  kv: LayerKV,
  shared: LayerKV,
  mask: Bool[Array, 'b a t'],
  before: Sequence[LayerKV],
  drop: Callable[[Array], Array] = lambda weights: weights,
  scale: float | None = None,
  cap: float | None = None,
) -> Float[Array, 'b a h p']:
  """Attends as a row of EAGLE: to shared keys under the mask, its anchor's earlier rows, itself."""
  b, a = q.shape[:2]

  def own(parts: Sequence[Float[Array, 'b g a p']]) -> Float[Array, 'c g j p']:
    stacked = jnp.stack(parts).transpose(1, 3, 2, 0, 4)
    return stacked.reshape(b * a, *stacked.shape[2:])

  keys = own([*(entry.k for entry in before), kv.k])
  values = own([*(entry.v for entry in before), kv.v])
  return _attend_both(q, LayerKV(keys, values), shared, mask, drop, scale, cap)


def _sees_block(
  q: Float[Array, 'b n h p'],
  kv: LayerKV,
  shared: LayerKV,
  mask: Bool[Array, 'b n t'],
  anchors: int,
  drop: Callable[[Array], Array] = lambda weights: weights,
  scale: float | None = None,
  cap: float | None = None,
) -> Float[Array, 'b n h p']:
  """Attends as rows of a block: to shared keys under the mask, and to one another."""

  def own(x: Float[Array, 'b g n p']) -> Float[Array, 'c g m p']:
    b, g, n, p = x.shape
    by_anchor = x.reshape(b, g, anchors, n // anchors, p).swapaxes(1, 2)
    return by_anchor.reshape(b * anchors, g, n // anchors, p)

  return _attend_both(q, LayerKV(own(kv.k), own(kv.v)), shared, mask, drop, scale, cap)


def _attend_both(
  q: Float[Array, 'b n h p'],
  own: LayerKV,
  shared: LayerKV,
  mask: Bool[Array, 'b n t'],
  drop: Callable[[Array], Array],
  scale: float | None,
  cap: float | None,
) -> Float[Array, 'b n h p']:
  """Attends as `models.attention`, to keys that all rows share and to each anchor's own keys.

  Args:
    q: the queries of all rows, those of an anchor together.
    own: keys and values [b * anchors, g, m, p]; the rows of an anchor see all of its own.
    shared: keys and values [b, g, t, p].
    mask: true on the shared ones that a row sees.
    drop: dropout on the weights.
    scale, cap: as of `attend`.
  """
  b, n, h, p = q.shape
  groups, m = own.k.shape[1:3]
  anchors = own.k.shape[0] // b
  wide, by = np.promote_types(q.dtype, np.float32), p**-0.5 if scale is None else scale
  # Scores of the shared keys and of the own ones have one softmax.
  split = q.reshape(b, n, groups, h // groups, p)
  by_anchor = split.reshape(b * anchors, n // anchors, groups, h // groups, p)
  common = jnp.einsum('bngrp,bgsp->bngrs', split, shared.k, preferred_element_type=wide) * by
  alone = jnp.einsum('cngrp,cgmp->cngrm', by_anchor, own.k, preferred_element_type=wide) * by
  if cap is not None:
    common, alone = cap * jnp.tanh(common / cap), cap * jnp.tanh(alone / cap)
  common = jnp.where(mask[:, :, None, None, :], common, -1e30)
  scores = jnp.concatenate([common, alone.reshape(b, n, groups, h // groups, m)], axis=-1)
  weights = drop(jax.nn.softmax(scores, axis=-1).astype(q.dtype))
  common, alone = weights[..., :-m], weights[..., -m:].reshape(*by_anchor.shape[:-1], m)
  mixed = jnp.einsum('bngrs,bgsp->bngrp', common, shared.v)
  mixed += jnp.einsum('cngrm,cgmp->cngrp', alone, own.v).reshape(mixed.shape)
  return mixed.reshape(b, n, h, p)
