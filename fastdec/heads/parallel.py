"""The draft network of P-EAGLE (2026, arXiv 2602.01469): EAGLE-3 that guesses in one pass.

Its rows are EAGLE-3's (`heads.eagle`) up to the root. Rows of masks follow, whose embedding is a
mask's, and whose feature is made from a learned vector. Every row sees the rows before it:

  position      0          1          2         3          4
  feature       f0         f1         f2        learned    learned
  embedding     token 1    token 2    root 3    mask       mask
  predicts                            guess 4   guess 5    guess 6

The cache keeps the rows up to the root, and forgets those of masks.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec.cache.memory import WithMemory
from fastdec.heads import tower
from fastdec.heads.block import BlockNetwork
from fastdec.heads.eagle import Autoregressive
from fastdec.heads.lesson import Guess, Lesson, LessonView, drop_with
from fastdec.heads.tower import View
from fastdec.models.api import Params, causal
from fastdec.models.attention import attend, node_mask
from fastdec.struct import Bound


class Parallel(Autoregressive):
  """The parameters: EAGLE-3's, and the states of a mask."""

  draft: Any  # a `ParallelNetwork`

  def setup(self) -> None:
    super().setup()
    width = self.draft.d_target * max(len(self.draft.taps), 1)
    self.mask_hidden = self.param('mask_hidden', nn.initializers.normal(0.02), (width,))

  def mask_feature(self) -> Float[Array, ' d']:
    """Returns the feature of rows of masks."""
    return self.features(jnp.split(self.mask_hidden, max(len(self.draft.taps), 1)))

  def __call__(
    self,
    embedded: Float[Array, 'b n e'],
    states: Sequence[Float[Array, 'b n _']],
    source: Float[Array, 'b s d'] | None,
  ) -> Array:
    """Uses every parameter once, to make fresh ones."""
    view = View.of_everything(1, self.draft.layers, source, ())
    return self.read(embedded, self.features(states) + self.mask_feature()[None, None], view)[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelNetwork(BlockNetwork):
  """Sizes and options; k is only the usual size of a block.

  Attributes:
    keeps_normed: see `EagleNetwork`.
  """

  entry: str = 'masks'
  norms_fused: bool = False
  keeps_normed: bool = False

  # as EAGLE-3's; the state of a row is what words are chosen by
  norms_entry: ClassVar[bool] = True
  norms_last: ClassVar[bool] = True
  recycles_normed: ClassVar[bool] = True
  network = Parallel
  longest: ClassVar[int] = 999

  @property
  def rows(self) -> int:
    """Number of rows of masks."""
    return self.k - 2

  def see(
    self,
    params: Params,
    target: Bound,
    features: Float[Array, 'b n d'],
    following: Int[Array, 'b n'],
    cache: WithMemory,
  ) -> tuple[Float[Array, 'b n d'], WithMemory]:
    """See `BlockNetwork.see`."""
    embedded = self.embedded(params, target, following)
    return self._see(params, embedded, features, cache)

  def read(
    self,
    params: Params,
    target: Bound,
    root: Int[Array, ' b'],
    last: Float[Array, 'b d'],
    cache: WithMemory,
  ) -> Float[Array, 'b g d']:
    """See `BlockNetwork.read`; `last` is the state of the root's row."""
    if not self.rows:
      return last[:, None]
    states, _ = self._see(params, *self._masks(params, target, (len(root), self.rows)), cache)
    return jnp.concatenate([last[:, None], states], axis=1)

  def _masks(
    self, params: Params, target: Bound, shape: tuple[int, int]
  ) -> tuple[Float[Array, 'b n e'], Float[Array, 'b n d']]:
    """Returns embeddings and features of rows of masks."""
    feature, parts = self.call(params, method='mask_feature'), []
    for x in (self.mask_embedding(params, target), feature):
      assert x is not None  # by `BlockNetwork`, which checks the mask
      parts.append(jnp.broadcast_to(x[None, None], (*shape, len(x))))
    return parts[0], parts[1]

  def _see(
    self,
    params: Params,
    embedded: Float[Array, 'b n e'],
    features: Float[Array, 'b n d'],
    cache: WithMemory,
  ) -> tuple[Float[Array, 'b n d'], WithMemory]:
    """Reads n rows after the committed ones, which a window may hide."""
    nodes, length, slots = causal(features.shape[1]), cache.length, cache.own.slots
    positions = length[:, None] + nodes.depths[None]
    mask, at = node_mask(nodes, length, slots), jnp.arange(slots, dtype=jnp.int32)[None, None]
    masks = []
    for window in tower.windows_of(self.layers):
      is_near = (positions[..., None] - at < window) | (at >= length[:, None, None])
      masks.append(mask & is_near if window else mask)
    view = View.of(cache, positions, masks, length)
    states, entries = self.call(params, embedded, features, view, method='read')
    return states, cache.with_layers(entries)

  def training_rows(
    self,
    params: Params,
    lesson: Lesson,
    passes: int,
    dropout_key: Array | None = None,
    guess: Guess | None = None,
  ) -> Float[Array, 'n b a d']:
    """Reads the text, then the rows of masks of all anchors. See `DraftNetwork.training_rows`."""
    anchors, seen, n = lesson.anchors, LessonView(self, params, lesson), self.rows
    attends = [functools.partial(attend, mask=seen.causal)] * len(tower.windows_of(self.layers))
    embedded = self.embedded(params, lesson.target, lesson.tokens)
    view = View(lesson.positions, attends)
    states, entries = self.call(
      params, embedded, seen.features, view, method='read', **drop_with(dropout_key, 0)
    )
    rows = anchors.take(states)[None]
    if n:
      b, a = anchors.place.shape
      masks = self._masks(params, lesson.target, (b, a * n))
      view = seen.of_blocks(anchors, n, entries, is_causal=True)
      others, _ = self.call(params, *masks, view, method='read', **drop_with(dropout_key, 1))
      rows = jnp.concatenate([rows, jnp.moveaxis(others.reshape(b, a, n, -1), 2, 0)])
    if guess is not None:
      for i, state in enumerate(rows):
        guess(i, state)
    return rows
