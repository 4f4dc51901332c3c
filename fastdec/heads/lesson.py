"""What draft networks read when they learn: packed text, as their target has read it.

Decoding shows a draft one place at a time. In training all places are there at once, so each row of
a draft gets a view that hides what decoding would hide (`DraftNetwork.training_rows`). Sentences
that are packed into one row of a batch do not see one another, and each sees only its own source.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.cache.kv import LayerKV
from fastdec.errors import UserError
from fastdec.heads import tower
from fastdec.heads.anchors import Anchors
from fastdec.heads.tower import View
from fastdec.models.api import Params
from fastdec.models.attention import attend
from fastdec.models.layers import narrow_in_training
from fastdec.models.stacks import Attend
from fastdec.models.taps import Features
from fastdec.struct import Bound

# (number of a row, its state) -> the token that the draft guesses there
Guess = Callable[[int, Float[Array, 'b a d']], Int[Array, 'b a']]


@struct.pytree
class Lesson:
  """A batch of text that a draft learns from.

  Attributes:
    target: the model and its parameters.
    batch: packed sentences, preferably the target's own output.
    features: the target's states of them (`target.module.features`).
    anchors: the places after which the draft guesses.
    all_anchors: those of the whole batch, if this is a part of one.
  """

  target: Bound
  batch: Mapping[str, Any]
  features: Features
  anchors: Anchors
  all_anchors: Anchors | None = None

  @property
  def tokens(self) -> Int[Array, 'b t']:
    """The text, with the tokens that the draft has to guess."""
    return jnp.asarray(self.batch['target'])

  @property
  def segments(self) -> Int[Array, 'b t']:
    """The number of each token's sentence within its row; 0 is padding."""
    return jnp.asarray(self.batch['target_segment'])

  @property
  def positions(self) -> Int[Array, 'b t']:
    """The place of each token in its sentence."""
    return jnp.asarray(self.batch['target_position'])


class LessonView:
  """What the rows of one draft see of a lesson.

  Attributes:
    causal: bool[b, t, t], true where a place sees another: an earlier one of its sentence.
    features: the draft's features of the target's states, [b, t, d].
    memory: each layer's keys and values of the source; () without one.

  Raises:
    UserError: a layer of the draft has a window.
  """

  def __init__(self, network: Any, params: Params, lesson: Lesson) -> None:
    if any(tower.windows_of(network.layers)):
      raise UserError(
        'a draft with windows cannot be trained here: give one whose layers see everything'
      )
    segments, self._positions = lesson.segments, lesson.positions
    is_earlier = np.tri(segments.shape[1], dtype=bool)[None]
    self.causal = (segments[:, :, None] == segments[:, None, :]) & is_earlier
    self.features = network.features(params, lesson.features.hidden, lesson.features.taps)
    self.memory, self._source_mask = (), None
    if network.reads_source:
      source = lesson.features.source
      assert source is not None  # by `check_target`
      self.memory = network.call(params, source.astype(network.layers.dtype), method='memory')
      source_segments = jnp.asarray(lesson.batch['source_segment'])
      self._source_mask = segments[:, :, None] == source_segments[:, None, :]

  def across(self, anchors: Anchors | None, rows: int = 1) -> Attend | None:
    """Returns how rows read the source: those of all places, or `rows` of each anchor."""
    if self._source_mask is None:
      return None
    mask = self._source_mask
    if anchors is not None:
      mask = jnp.repeat(anchors.take(mask), rows, axis=1)
    return functools.partial(attend, mask=mask)

  def of_blocks(
    self, anchors: Anchors, rows: int, entries: Sequence[LayerKV], is_causal: bool
  ) -> View:
    """Returns the view of `rows` rows of each anchor, at the places after it.

    They see one another, if `is_causal` only earlier ones, and each layer's `entries` of all places
    up to the anchor.
    """
    b, a = anchors.place.shape
    ahead = 1 + jnp.arange(rows, dtype=jnp.int32)[None, None]
    positions = (anchors.take(self._positions)[..., None] + ahead).reshape(b, a * rows)
    mask, sees = jnp.repeat(anchors.take(self.causal), rows, axis=1), []
    for shared in entries:
      sees.append(
        functools.partial(see_block, shared=shared, mask=mask, anchors=a, is_causal=is_causal)
      )
    return View(positions, sees, self.across(anchors, rows), self.memory)


def drop_with(key: Array | None, number: int) -> dict[str, Any]:
  """Returns the arguments by which a call of the network drops; None switches dropout off."""
  if key is None:
    return {}
  return {'train': True, 'rngs': {'dropout': jax.random.fold_in(key, number)}}


def see_own(
  q: Float[Array, 'b a h p'],
  kv: LayerKV,
  shared: LayerKV,
  mask: Bool[Array, 'b a t'],
  before: Sequence[LayerKV],
  **options: Any,
) -> Float[Array, 'b a h p']:
  """Attends as a row of EAGLE, whose anchor has one row in each pass.

  It sees the shared keys under the mask, its anchor's rows of earlier passes, and itself. Options
  are those of `_attend_both`.
  """
  b, a = q.shape[:2]

  def own(parts: Sequence[Float[Array, 'b g a p']]) -> Float[Array, 'c g j p']:
    stacked = jnp.stack(parts).transpose(1, 3, 2, 0, 4)
    return stacked.reshape(b * a, *stacked.shape[2:])

  entries = [*before, kv]
  keys = own([entry.k.swapaxes(2, 3) for entry in entries])
  values = own([entry.v for entry in entries])
  return _attend_both(q, LayerKV.of(keys, values), shared, mask, **options)


def see_block(
  q: Float[Array, 'b n h p'],
  kv: LayerKV,
  shared: LayerKV,
  mask: Bool[Array, 'b n t'],
  anchors: int,
  is_causal: bool = False,
  **options: Any,
) -> Float[Array, 'b n h p']:
  """Attends as the rows of blocks: to the shared keys under the mask, and to one another.

  If `is_causal`, a row sees no later row of its block. Options are those of `_attend_both`."""

  def own(x: Float[Array, 'b g n p']) -> Float[Array, 'c g m p']:
    b, g, n, p = x.shape
    by_anchor = x.reshape(b, g, anchors, n // anchors, p).swapaxes(1, 2)
    return by_anchor.reshape(b * anchors, g, n // anchors, p)

  keys, values = own(kv.k.swapaxes(2, 3)), own(kv.v)
  rows = q.shape[1] // anchors
  own_mask = np.tri(rows, dtype=bool) if is_causal else None
  return _attend_both(q, LayerKV.of(keys, values), shared, mask, own_mask, **options)


def _attend_both(
  q: Float[Array, 'b n h p'],
  own: LayerKV,
  shared: LayerKV,
  mask: Bool[Array, 'b n t'],
  own_mask: Bool[np.ndarray, 'k m'] | None = None,
  drop: Callable[[Array], Array] = lambda weights: weights,
  scale: float | None = None,
  cap: float | None = None,
) -> Float[Array, 'b n h p']:
  """Attends as `models.attention`, to keys that all rows share and to each anchor's own keys.

  Args:
    q: the queries of all rows, those of an anchor together.
    own: keys and values, entries of b * anchors rows and m slots; the k rows of an anchor see all
      of its own, or those under `own_mask`.
    shared: keys and values, entries of b rows and t slots.
    mask: true on the shared ones that a row sees.
    own_mask: see `own`.
    drop: dropout on the weights.
    scale, cap: as of `attend`.
  """
  b, n, h, p = q.shape
  groups, m = own.k.shape[1], own.slots
  anchors = own.k.shape[0] // b
  wide, by = np.promote_types(q.dtype, np.float32), p**-0.5 if scale is None else scale
  score = functools.partial(jnp.einsum, preferred_element_type=wide)
  # Scores of the shared keys and of the own ones have one softmax.
  split = q.reshape(b, n, groups, h // groups, p)
  by_anchor = split.reshape(b * anchors, n // anchors, groups, h // groups, p)
  common = narrow_in_training(score('bngrp,bgps->bngrs', split, shared.k), q.dtype) * by
  alone = narrow_in_training(score('cngrp,cgpm->cngrm', by_anchor, own.k), q.dtype) * by
  if cap is not None:
    common, alone = cap * jnp.tanh(common / cap), cap * jnp.tanh(alone / cap)
  common = jnp.where(mask[:, :, None, None, :], common, -1e30)
  if own_mask is not None:
    alone = jnp.where(own_mask[None, :, None, None, :], alone, -1e30)
  scores = jnp.concatenate([common, alone.reshape(b, n, groups, h // groups, m)], axis=-1)
  weights = drop(jax.nn.softmax(scores, axis=-1).astype(q.dtype))
  common, alone = weights[..., :-m], weights[..., -m:].reshape(*by_anchor.shape[:-1], m)
  mixed = jnp.einsum('bngrs,bgsp->bngrp', common, shared.v)
  mixed += jnp.einsum('cngrm,cgmp->cngrp', alone, own.v).reshape(mixed.shape)
  return mixed.reshape(b, n, h, p)
