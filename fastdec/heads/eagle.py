"""The autoregressive draft network of EAGLE (Li et al. 2024, 2025) and of MTP heads (DeepSeek-V3).

Its layers, one or two, read the target's features of the text so far, then their own outputs on
their own guesses. Row i is at position i. It joins the feature of token i with the embedding of
token i + 1, and predicts token i + 2:

  position      0          1          2          3
  feature       f0         f1         f2         a2        f: of the target; a: of the row before
  embedding     token 1    token 2    root 3     guess 4   a guess has no feature of the target yet
  predicts      token 2    root 3     guess 4    guess 5

When the target has read the accepted tokens, their rows are computed again with its features
(`decoding.methods.eagle`).

Two entries:
  'joined'   x = join(cat(embedding, feature)): EAGLE-1, MTP, and ours
  'beside'   the residual is the feature, and the first attention reads
             cat(norm embedding, norm feature): EAGLE-3
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec.cache.kv import LayerKV
from fastdec.cache.memory import WithMemory
from fastdec.errors import UserError
from fastdec.fields import check_choices
from fastdec.heads import tower
from fastdec.heads.draft import DraftNetwork, Network
from fastdec.heads.lesson import Guess, Lesson, LessonView, drop_with, see_own
from fastdec.heads.tower import View
from fastdec.models.api import Params, causal
from fastdec.models.attention import attend, node_mask
from fastdec.models.layers import Dense
from fastdec.struct import Bound

ENTRIES = ('joined', 'beside')


class Autoregressive(Network):
  """The parameters."""

  draft: 'EagleNetwork'

  def setup(self) -> None:
    super().setup()
    draft = self.draft
    if draft.norms_entry:
      self.embedding_norm, self.feature_norm = tower.norm(draft.layers), tower.norm(draft.layers)
    if draft.entry == 'joined':
      self.join = Dense((draft.layers.d_model,), draft.join_bias, draft.layers.dtype)
    if draft.norms_last:
      self.norm = tower.norm(draft.layers)

  def read(
    self,
    embedded: Float[Array, 'b n e'],
    features: Float[Array, 'b n d'],
    view: View,
    train: bool = False,
  ) -> tuple[Float[Array, 'b n d'], tuple[LayerKV, ...]]:
    """Returns the rows' outputs, which the next rows read, and each layer's keys and values."""
    draft = self.draft
    normed_embedded, normed = embedded, features
    if draft.norms_entry:
      normed_embedded, normed = self.embedding_norm(embedded), self.feature_norm(features)
    both = jnp.concatenate([normed_embedded, normed], axis=-1)

    # The first layer's input x, and what its attention reads (None: the norm of x).
    if draft.entry != 'joined':
      x, read = features, both
      if draft.keeps_normed:
        x = normed
    else:
      x = self.join(both)
      read = None if draft.norms_first else x

    x, entries = self.tower(x, view, read, train)
    if draft.norms_last and draft.recycles_normed:
      x = self.norm(x)
    return x, entries

  def finish(self, states: Float[Array, '*b d']) -> Float[Array, '*b d']:
    """Returns the states to project to words, from the rows' outputs."""
    if self.draft.norms_last and not self.draft.recycles_normed:
      states = self.norm(states)
    return states

  def __call__(
    self,
    embedded: Float[Array, 'b n e'],
    states: Sequence[Float[Array, 'b n _']],
    source: Float[Array, 'b s d'] | None,
  ) -> Array:
    """Uses every parameter once, to make fresh ones."""
    memory = () if source is None else self.memory(source)
    view = View.of_everything(embedded.shape[1], self.draft.layers, source, memory)
    outputs, _ = self.read(embedded, self.features(states), view)
    return self.finish(outputs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EagleNetwork(DraftNetwork):
  """Sizes and options; by default ours: the target's hidden state and token, normed and joined.

  Attributes:
    entry: 'joined' or 'beside', see the top of this file.
    norms_entry: embedding and feature are normed at entry.
    join_bias: the projection of the two has a bias (EAGLE-1).
    norms_first: with 'joined', the first layer norms its attention's input (EAGLE-1's does not).
    keeps_normed: with 'beside', the residual is the normed feature (speculators'
      `norm_before_residual`).
    norms_last: there is a norm before the projection to words.
    recycles_normed: the next row reads the state after that norm; False: before it.
  """

  norms_entry: bool = True
  join_bias: bool = False
  norms_first: bool = True
  keeps_normed: bool = False
  norms_last: bool = True
  recycles_normed: bool = True

  network = Autoregressive

  def __post_init__(self) -> None:
    super().__post_init__()
    check_choices(self, entry=ENTRIES)
    reads_past_norm = self.entry == 'beside' or not self.norms_first
    if reads_past_norm and self.reads_source:
      raise UserError("layers that read a source need entry='joined' and norms_first=True")
    if self.entry == 'beside' and not self.norms_entry:
      raise UserError("entry='beside' needs norms_entry=True")

  def read(
    self,
    params: Params,
    embedded: Float[Array, 'b n e'],
    features: Float[Array, 'b n d'],
    positions: Int[Array, 'b n'],
    mask: Bool[Array, 'b n s'],
    cache: WithMemory,
    start: Int[Array, ' b'],
    at: Int[Array, 'b s'] | None = None,
  ) -> tuple[Float[Array, 'b n d'], WithMemory]:
    """Reads n rows; a layer with a window of w sees only the last w positions of the mask.

    Args:
      params: the draft's parameters.
      embedded: embedding of the token after each row's position, from `embedded`.
      features: `features` of the target's states at that position, or the output of the row before.
      positions: of the rows.
      mask: slots of the cache that each row sees, its own included.
      cache: the rows' keys and values are written to it from slot `start` on, and not committed.
      start: the first slot of each row of the batch.
      at: position of the row in each slot; None: the slot's number.

    Returns:
      Each row's output, for `logits` and for the row of its guess; and the cache.
    """
    if at is None:
      at = jnp.arange(mask.shape[2], dtype=jnp.int32)[None]
    distance = positions[:, :, None] - at[:, None]
    masks = []
    for window in tower.windows_of(self.layers):
      masks.append(mask & (distance < window) if window else mask)
    view = View.of(cache, positions, masks, start)
    states, entries = self.call(params, embedded, features, view, method='read')
    return states, cache.with_layers(entries)

  def see(
    self,
    params: Params,
    target: Bound,
    features: Float[Array, 'b n d'],
    following: Int[Array, 'b n'],
    cache: WithMemory,
  ) -> tuple[Float[Array, 'b n d'], WithMemory]:
    """Reads n tokens after the committed ones: features, and the token after each. See `read`."""
    nodes = causal(following.shape[1])
    positions = cache.length[:, None] + nodes.depths[None]
    mask = node_mask(nodes, cache.length, cache.own.slots)
    embedded = self.embedded(params, target, following)
    return self.read(params, embedded, features, positions, mask, cache, cache.length)

  def logits(
    self, params: Params, target: Bound, states: Float[Array, '*b d']
  ) -> Float[Array, '*b w']:
    """Returns logits over the draft's words (`ids`), from a row's output."""
    return super().logits(params, target, self.call(params, states, method='finish'))

  def training_rows(
    self,
    params: Params,
    lesson: Lesson,
    passes: int,
    dropout_key: Array | None = None,
    guess: Guess | None = None,
  ) -> Float[Array, 'n b a d']:
    """Reads the text once for each guess ("training-time test", Li et al. 2025).

    In pass 0 every place reads its true feature, under the causal mask. In pass j an anchor at
    place t has one row, at place t + j. It reads token t + j and its own state of pass j - 1, and
    sees the rows of pass 0 up to t and its own rows of the passes 1 ... j. So each pass adds one
    key for an anchor, not another square of keys. See `DraftNetwork.training_rows`.
    """
    target, anchors, tokens = lesson.target, lesson.anchors, lesson.tokens
    seen = LessonView(self, params, lesson)

    # Pass 0: every place reads its true feature.
    embedded = self.embedded(params, target, tokens)
    causal = [functools.partial(attend, mask=seen.causal)] * len(tower.windows_of(self.layers))
    view = View(lesson.positions, causal, seen.across(None), seen.memory)
    states, first = self.call(
      params, embedded, seen.features, view, method='read', **drop_with(dropout_key, 0)
    )
    state = anchors.take(states)

    # In each later pass an anchor has one row, which reads its own state of the pass before.
    rows, entries = [state], []
    mask, across = anchors.take(seen.causal), seen.across(anchors)
    for i in range(1, passes):
      token = anchors.take(tokens, i)
      if guess is not None:
        token = guess(i - 1, state)
      sees = []
      for layer, shared in enumerate(first):
        before = [entry[layer] for entry in entries]
        sees.append(functools.partial(see_own, shared=shared, mask=mask, before=before))
      view = View(anchors.take(lesson.positions) + i, sees, across, seen.memory)
      state, entry = self.call(
        params, self.embedded(params, target, token), state, view, method='read',
        **drop_with(dropout_key, i),
      )  # fmt: skip
      entries.append(entry)
      rows.append(state)
    if guess is not None:
      guess(passes - 1, state)
    return jnp.stack(rows)
