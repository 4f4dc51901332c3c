"""The one-pass draft network of DFlash and DSpark (2026): it guesses all tokens of a block at once.

The rows of a block see the target's features at all committed positions; the keys and values of the
features are the network's cache. The rows also see one another, in both directions, and an
encoder's states if there are any. A block of k = 5, its root at position 9:

  position    0 ... 8     9        10       11       12
  cache       features
  rows                    root     ?        ?        ?
  predicts                10       11       12       13    (DFlash: its own position, `drops_first`)

Two entries:
  'joined'   every row is join(cat(root's embedding, last feature)) + a learned vector of its slot
  'masks'    the first row is the root's embedding, the others are a mask's: DFlash, DSpark

A row does not know what the other rows guess. An edge from the token guessed before, y, makes up
for a part of that: score(x) += after[x] . latent(y). `EDGES` lists the ways to make the two.
"""

import dataclasses
import functools
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec.cache.kv import LayerKV, Own
from fastdec.cache.memory import WithMemory
from fastdec.errors import UserError
from fastdec.fields import check_choices
from fastdec.heads import tower
from fastdec.heads.convolution import Convolution
from fastdec.heads.correlator import Correlator, CorrelatorConfig
from fastdec.heads.draft import DraftNetwork, Network
from fastdec.heads.lesson import Guess, Lesson, LessonView, drop_with
from fastdec.heads.tower import View
from fastdec.models.api import Params
from fastdec.models.layers import Dense, look_up, narrow_in_training, project
from fastdec.struct import Bound

ENTRIES = ('joined', 'masks')
CAUSAL = ('none', 'windows', 'all')
EDGES = (
  'markov',  # latent(y) is made from before[y], as `MARKOV` says (DSpark)
  # from the row's state, and that of a GRU over the target's embeddings of root ... y (Domino)
  'rnn',
  'selector',  # before[y], times a projection of the row's state (DFlash 2)
  # both of a transformer over all candidates; their products replace the scores (LiLiCorr)
  'correlator',
)
MARKOV = (
  'vanilla',  # before[y]
  'gated',  # before[y], times a gate that depends on before[y] and the row's state
  # the state of a small recurrent network over earlier guesses, the rows' states and before[y]
  'rnn',
)


class Block(Network):
  """The parameters, except those of the vocabulary."""

  draft: 'BlockNetwork'

  def setup(self) -> None:
    super().setup()
    draft = self.draft
    d, dtype = draft.layers.d_model, draft.layers.dtype
    self.norm = tower.norm(draft.layers)
    if draft.entry == 'joined':
      self.embedding_norm = tower.norm(draft.layers)
      self.join = Dense((d,), False, dtype)
      self.slots = self.param('slots', nn.initializers.normal(0.02), (draft.rows, d))
    kind, rank = draft.edge_kind, draft.markov
    if kind == 'gated':
      self.gate = Dense((rank,), True, dtype)
    if kind == 'joint':
      self.joint = Dense((3 * rank,), True, dtype)
    if kind == 'rnn':
      self.gru_input = Dense((3, draft.gru), False, dtype)
      self.gru_state = Dense((3, draft.gru), False, dtype)
      self.squeeze = Dense((rank,), False, dtype)
    if kind == 'selector':
      self.select = Dense((rank,), False, dtype)
    if kind == 'correlator':
      self.correlator = Correlator(draft)
    if draft.has_confidence:
      self.confidence = Dense((1,), True, dtype)

  def own(self, features: Float[Array, 'b n d'], positions: Int[Array, 'b n']) -> tuple[Own, ...]:
    """Returns each layer's keys and values of features."""
    return self.tower.own(features, positions)

  def enter(
    self, root: Float[Array, '*b e'], unknown: Float[Array, ' e'] | None, last: Float[Array, '*b d']
  ) -> Float[Array, '*b g d']:
    """Returns the rows of blocks, from the embeddings of root and mask, and the last feature."""
    if self.draft.entry == 'joined':
      x = self.join(jnp.concatenate([self.embedding_norm(root), last], axis=-1))
      slots = self.slots.astype(x.dtype)
      return x[..., None, :] + slots.reshape((1,) * (x.ndim - 1) + slots.shape)

    assert unknown is not None
    shape = (*root.shape[:-1], self.draft.rows - 1, root.shape[-1])
    others = jnp.broadcast_to(unknown.astype(root.dtype), shape)
    x = jnp.concatenate([root[..., None, :], others], axis=-2)
    if self.draft.embedding_scale != 1:
      x *= jnp.asarray(self.draft.embedding_scale, x.dtype)
    return x

  def read(
    self, x: Float[Array, 'b n d'], view: View, train: bool = False
  ) -> Float[Array, 'b n d']:
    """Returns the rows' states, after the last norm."""
    return self.norm(self.tower(x, view, None, train)[0])

  def link(
    self,
    embedded: Float[Array, 'c g m e'],
    states: Float[Array, 'c g d'],
    log_probs: Float[Array, 'c g m'],
    last: Float[Array, 'c d'],
  ) -> tuple[Float[Array, 'c g m r'], Float[Array, 'c g m r']]:
    """See `Correlator`."""
    return self.correlator(embedded, states, log_probs, last)

  def latent(
    self, before: Float[Array, '*b _'], state: Float[Array, '*b d'], carry: Float[Array, '*b c']
  ) -> tuple[Float[Array, '*b r'], Float[Array, '*b c']]:
    """Returns the latent vector of an edge, and the carry for the next guess.

    Args:
      before: the vector of the token before: before[y], or for 'rnn' the target's embedding.
      state: of the row that guesses.
      carry: see `DraftNetwork.start_carry`.
    """
    kind = self.draft.edge_kind
    if kind == 'gated':
      gate = self.gate(jnp.concatenate([state, before], axis=-1))
      return jax.nn.sigmoid(gate) * before, carry
    if kind == 'selector':
      return self.select(state) * before, carry
    if kind == 'rnn':  # gates as torch orders them: reset, keep, new
      seen, own = self.gru_input(before), self.gru_state(carry)
      gates = jax.nn.sigmoid(seen[..., :2, :] + own[..., :2, :])
      reset, keep = gates[..., 0, :], gates[..., 1, :]
      new = jnp.tanh(seen[..., 2, :] + reset * own[..., 2, :])
      carry = (1 - keep) * new + keep * carry
      return jax.nn.silu(self.squeeze(jnp.concatenate([state, carry], axis=-1))), carry
    if kind == 'joint':
      joint = self.joint(jnp.concatenate([carry, before, state], axis=-1))
      keep, new, out = jnp.split(joint, 3, axis=-1)
      kept = jax.nn.sigmoid(keep)
      return jnp.tanh(out), kept * carry + (1 - kept) * jnp.tanh(new)
    return before, carry

  def confident(
    self, state: Float[Array, '*b d'], before: Float[Array, '*b r'] | None
  ) -> Float[Array, '*b']:
    """Returns the network's confidence in a row's guess, before the sigmoid."""
    if before is not None:
      state = jnp.concatenate([state, before], axis=-1)
    return self.confidence(state)[..., 0]

  def __call__(
    self,
    embedded: Float[Array, 'b n e'],
    states: Sequence[Float[Array, 'b n _']],
    source: Float[Array, 'b s d'] | None,
  ) -> Array:
    """Uses every parameter once, to make fresh ones."""
    draft = self.draft
    memory = () if source is None else self.memory(source)
    features = self.features(states)
    x = self.enter(embedded[:, 0], embedded[0, 0], features[:, 0])
    view = View.of_everything(x.shape[1], draft.layers, source, memory)
    state = self.read(x, view)
    before = jnp.zeros((*state.shape[:-1], draft.markov), state.dtype)
    if draft.edge_kind == 'correlator':
      rows = state[:, : draft.depth]
      log_probs = jnp.zeros((*rows.shape[:2], draft.choices), state.dtype)
      of_words = jnp.broadcast_to(embedded[:, :, None], (*log_probs.shape, embedded.shape[-1]))
      self.link(of_words, rows, log_probs, features[:, 0])
    elif draft.markov:
      first = state[:, :1]
      seen = embedded if draft.edge == 'rnn' else before[:, :1]
      self.latent(seen, first, draft.start_carry(first))
    if draft.has_confidence:
      self.confident(state, before if draft.confidence_sees_guess else None)
    return state


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockNetwork(DraftNetwork):
  """Sizes and options.

  The edges 'markov' and 'selector' add the parameters before [vocab_size, markov] and after
  [words, markov], and 'rnn' only after.

  Attributes:
    k: block size: the root, and k - 1 guesses.
    entry: 'joined' or 'masks', see the top of this file.
    unknown_id: with 'masks', the mask: a token whose embedding replaces unknown ones.
    drops_first: with 'masks', rows predict their own positions; the root's row predicts nothing.
    drops_last: with 'masks', the block has a last row that the others see; it predicts nothing.
    edge: one of `EDGES`: how the token guessed before changes a guess.
    markov: rank of the edge's vectors; 0: without edges.
    markov_kind: of the edge 'markov', one of `MARKOV`.
    gru: width of the state of the edge 'rnn'.
    correlator: sizes of the edge 'correlator'.
    bare: number of first guesses that the edge does not change.
    conv: kernel of the convolutions over the rows, around each sublayer; 0: there are none.
    conv_group: channels that share the factors that depend on the row.
    candidates: the number of each row's best words that the edge may reorder. None: all words, as
      in training. With few, chains are shorter, and a call with a large tree costs less.
    embedding_scale, logit_scale: factors of the rows' embeddings, and of the candidates' logits.
    logit_cap: then their logits are logit_cap tanh(logit / logit_cap); None: they are not capped.
    has_confidence: a head estimates the confidence of each row.
    confidence_sees_guess: that head reads before[y] too.
    causal: layers whose rows see no later row: 'none', 'windows' (layers with a window), 'all'.
    windows_follow: a window ends at each row. False: it ends at the root, which is not counted.
  """

  k: int
  norms_fused: bool = True
  unknown_id: int | None = None
  drops_first: bool = False
  drops_last: bool = False
  edge: str = 'markov'
  markov: int = 0
  markov_kind: str = 'vanilla'
  gru: int = 0
  correlator: CorrelatorConfig | None = None
  bare: int = 0
  conv: int = 0
  conv_group: int = 16
  candidates: int | None = None
  embedding_scale: float = 1.0
  logit_scale: float = 1.0
  logit_cap: float | None = None
  has_confidence: bool = False
  confidence_sees_guess: bool = True
  causal: str = 'none'
  windows_follow: bool = True

  network = Block

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.k < 2:
      raise UserError(f'a block needs k >= 2, not k={self.k}, which drafts nothing')
    check_choices(self, entry=ENTRIES, edge=EDGES, markov_kind=MARKOV, causal=CAUSAL)
    if self.entry == 'masks' and not (
      self.unknown_id is not None and 0 <= self.unknown_id < self.vocab_size
    ):
      raise UserError(
        f"entry='masks' with unknown_id={self.unknown_id}: give an id from 0 to"
        f' {self.vocab_size - 1}'
      )
    if self.entry == 'joined' and (self.drops_first or self.drops_last):
      raise UserError(
        "drops_first=True and drops_last=True are for entry='masks': joined rows all predict what"
        ' comes after the root'
      )
    if self.conv and (self.conv_group < 1 or self.layers.d_model % self.conv_group):
      raise UserError(
        f'conv_group={self.conv_group} must divide the width of the layers, {self.layers.d_model}'
      )
    if self.edge == 'rnn' and self.markov and self.gru < 1:
      raise UserError(f"edge='rnn' needs gru >= 1, the width of its state, not gru={self.gru}")
    if self.markov < 0 or (self.candidates is not None and self.candidates < 1):
      raise UserError(
        f'markov={self.markov} with candidates={self.candidates} is not possible: give a rank of 0'
        ' or more, and 1 candidate or more'
      )

    if self.edge_kind == 'correlator':
      c, words = self.correlator, self.words or self.vocab_size
      if c is None or self.candidates is None or self.candidates > words or c.width % c.heads:
        raise UserError(
          f"edge='correlator' with candidates={self.candidates} and {c} is not possible: give at"
          f' most {words} candidates, and a width that the heads divide'
        )

  @property
  def longest(self) -> int:
    """The largest block that it can draft."""
    return self.k

  @property
  def rows(self) -> int:
    """Number of rows that go through the layers for a block."""
    return self.k - 1 + self.drops_first + self.drops_last

  @property
  def around(self) -> tower.Around:
    """See `DraftNetwork.around`."""
    if not self.conv:
      return None
    return functools.partial(Convolution, self.rows, self.conv, self.conv_group, self.layers.dtype)

  @property
  def edge_kind(self) -> str | None:
    """The kind of edge, 'joint' for the recurrent one of `MARKOV`; None: without edges."""
    if not self.markov:
      return None
    if self.edge != 'markov':
      return self.edge
    return 'joint' if self.markov_kind == 'rnn' else self.markov_kind

  @property
  def depth(self) -> int:
    """Number of tokens that it drafts below the root."""
    return self.k - 1

  @property
  def choices(self) -> int:
    """Number of candidates for each token."""
    words = self.words or self.vocab_size
    return words if self.candidates is None else min(self.candidates, words)

  def init(self, key: Array) -> Params:
    """Returns fresh float32 parameters; the edges change nothing yet."""
    params = super().init(key)
    if self.markov and self.edge != 'correlator':
      shape = (self.vocab_size, self.markov)
      if self.edge != 'rnn':
        before = jax.random.normal(jax.random.fold_in(key, 0), shape) * self.markov**-0.5
        params['before'] = before
      params['after'] = jnp.zeros((self.words or self.vocab_size, self.markov))
    return params

  def remember(
    self,
    params: Params,
    features: Float[Array, 'b n d'],
    positions: Int[Array, 'b n'],
    cache: WithMemory,
  ) -> WithMemory:
    """Returns the cache with the keys and values of n features after the committed ones."""
    entries = self.call(params, features, positions, method='own')
    layers = []
    for layer, new in zip(cache.own.layers, entries, strict=True):
      layers.append(layer.write(*new, cache.length))
    return cache.with_layers(tuple(layers))

  def see(
    self,
    params: Params,
    target: Bound,
    features: Float[Array, 'b n d'],
    following: Int[Array, 'b n'],
    cache: WithMemory,
  ) -> tuple[Float[Array, 'b n d'], WithMemory]:
    """Reads n features after the committed ones, each with the token after it.

    Returns:
      What `read` takes as `last` at each of these positions; and the cache, nothing committed.
    """
    positions = cache.length[:, None] + jnp.arange(features.shape[1], dtype=jnp.int32)[None]
    return features, self.remember(params, features, positions, cache)

  def read(
    self,
    params: Params,
    target: Bound,
    root: Int[Array, ' b'],
    last: Float[Array, 'b d'],
    cache: WithMemory,
  ) -> Float[Array, 'b g d']:
    """Returns the states of the k - 1 rows that predict the tokens after the root.

    Args:
      params: the draft's parameters.
      target: its embeddings may be read.
      root: the newest token, at position cache.length.
      last: the feature at the position before.
      cache: the features of all positions before the root, with free slots for the rows.
    """
    embedded = self.embedded(params, target, root)
    unknown = self.mask_embedding(params, target)
    x = self.call(params, embedded, unknown, last, method='enter')

    # Each layer has its own mask, by its window.
    length, n, slots = cache.length, x.shape[1], cache.own.slots
    positions = length[:, None] + jnp.arange(n, dtype=jnp.int32)[None]
    masks = []
    for window in tower.windows_of(self.layers):
      causal = self.causal == 'all' or (self.causal == 'windows' and window > 0)
      is_cut = self.windows_follow and self.causal != 'windows'
      masks.append(block_mask(length, n, slots, causal, window, self.windows_follow, is_cut))
    view = View.of(cache, positions, masks, length)
    states = self.call(params, x, view, method='read')
    return states[:, self.drops_first : self.drops_first + self.depth]

  def start_carry(self, state: Float[Array, '*b d']) -> Float[Array, '*b c']:
    """See `DraftNetwork.start_carry`."""
    width = self.gru if self.edge == 'rnn' else self.markov
    return jnp.zeros((*state.shape[:-1], width), state.dtype)

  def scaled(self, logits: Float[Array, '*b m']) -> Float[Array, '*b m']:
    """Returns the scores of candidates before edges change them."""
    if self.logit_scale != 1:
      logits *= jnp.asarray(self.logit_scale, logits.dtype)
    if self.logit_cap is not None:
      logits = self.logit_cap * jnp.tanh(logits / self.logit_cap)
    return logits

  def mask_embedding(self, params: Params, target: Bound) -> Float[Array, ' e'] | None:
    """Returns the embedding of the mask; None: there is none."""
    if self.unknown_id is None:
      return None
    return self.embedded(params, target, jnp.int32(self.unknown_id))

  def after(self, params: Params, drafted: Int[Array, '*b']) -> Float[Array, '*b r']:
    """Returns the edge's vectors of some of the draft's words."""
    return look_up(params['after'], drafted)

  def link(
    self,
    params: Params,
    target: Bound,
    states: Float[Array, 'c g d'],
    last: Float[Array, 'c d'],
    log_probs: Float[Array, 'c g m'],
    ids: Int[Array, 'c g m'],
  ) -> tuple[Float[Array, 'c g m r'], Float[Array, 'c g m r']]:
    """Returns the vectors of the edge 'correlator', see `Correlator`; ids are the target's."""
    embedded = self.embedded(params, target, ids)
    return self.call(params, embedded, states, log_probs, last, method='link')

  def bias(
    self,
    params: Params,
    before: Int[Array, '*b'],
    after: Float[Array, '*#b m r'] | None,
    state: Float[Array, '*b d'],
    carry: Float[Array, '*b c'],
    target: Bound | None = None,
    number: int | Int[Array, ''] = 0,
  ) -> tuple[Float[Array, '*b m'], Float[Array, '*b c']]:
    """Returns what the token guessed before adds to the scores, and the next carry.

    Args:
      params: the draft's parameters.
      before: the target's id of that token: the root for the first row.
      after: vectors of the wanted words, for each token before or for all (None: all words).
      state: of the row that guesses now.
      carry: `start_carry` for the first row, then the carry that the row before returned.
      target: its embeddings are read by the edge 'rnn'.
      number: of the guess, from 0.
    """
    if self.edge == 'rnn':
      assert target is not None, "the edge 'rnn' reads the target's embeddings"
      embedded = self.embedded(params, target, before)
    else:
      embedded = look_up(params['before'], before).astype(state.dtype)
    latent, carry = self.call(params, embedded, state, carry, method='latent')
    if self.bare:
      latent = jnp.where(number < self.bare, 0, latent)
    if after is None:
      return project(latent, params['after']), carry
    return jnp.einsum('...r,...mr->...m', latent, after), carry

  def guess_logits(
    self,
    params: Params,
    target: Bound,
    state: Float[Array, '*b d'],
    before: Int[Array, '*b'],
    carry: Float[Array, '*b c'],
    as_decoded: bool = False,
    number: int | Int[Array, ''] = 0,
  ) -> tuple[Float[Array, '*b w'], Float[Array, '*b c']]:
    """Adds the bias by the token before; `as_decoded` keeps the best `choices` of each row only.

    See `DraftNetwork.guess_logits`.
    """
    logits, carry = super().guess_logits(params, target, state, before, carry, as_decoded)
    if as_decoded and self.choices < logits.shape[-1]:
      least = jax.lax.top_k(logits, self.choices)[0][..., -1:]
      logits = jnp.where(logits >= least, logits, -jnp.inf)
    logits = self.scaled(logits)
    if not self.markov or self.edge == 'correlator':
      return logits, carry
    bias, carry = self.bias(params, before, None, state, carry, target, number)
    narrow = functools.partial(narrow_in_training, dtype=state.dtype)
    return narrow(logits) + narrow(bias), carry

  def training_rows(
    self,
    params: Params,
    lesson: Lesson,
    passes: int,
    dropout_key: Array | None = None,
    guess: Guess | None = None,
  ) -> Float[Array, 'n b a d']:
    """Reads all blocks in one pass, whatever `passes` is.

    The rows of an anchor at place t are at t + 1, t + 2, ... They see the features of the places up
    to t, and one another. See `DraftNetwork.training_rows`.
    """
    target, anchors = lesson.target, lesson.anchors
    seen = LessonView(self, params, lesson)

    # Features become keys and values, as decoding caches them. The rows of each block enter.
    context = self.call(params, seen.features, lesson.positions, method='own')
    root = self.embedded(params, target, anchors.take(lesson.tokens))
    unknown = self.mask_embedding(params, target)
    x = self.call(params, root, unknown, anchors.take(seen.features), method='enter')

    # One pass reads the rows of all anchors, one anchor after another.
    b, a, n, d = x.shape
    entries = [LayerKV.of(*own) for own in context]
    view = seen.of_blocks(anchors, n, entries, is_causal=self.causal == 'all')
    states = self.call(
      params, x.reshape(b, a * n, d), view, method='read', **drop_with(dropout_key, 0)
    ).reshape(b, a, n, d)
    rows = jnp.moveaxis(states[:, :, self.drops_first : self.drops_first + self.depth], 2, 0)
    if guess is not None:
      for i, state in enumerate(rows):
        guess(i, state)
    return rows

  def confidence(
    self, params: Params, states: Float[Array, '*b d'], before: Int[Array, '*b']
  ) -> Float[Array, '*b']:
    """Returns the confidence in each row's guess after a token, before the sigmoid."""
    seen = look_up(params['before'], before) if self.confidence_sees_guess else None
    return self.call(params, states, seen, method='confident')


def block_mask(
  length: Int[Array, ' b'],
  n: int,
  slots: int,
  causal: bool = False,
  window: int = 0,
  follows: bool = True,
  is_cut: bool = False,
) -> Bool[Array, 'b n s']:
  """Mask of the slots that the n rows of a block see: features before the root, and one another.

  Args:
    length: number of features before the root.
    n: number of rows; row r is at position length + r.
    slots: of the cache.
    causal: a row sees the rows of the block only up to itself.
    window: a row sees the last `window` features before the root, or if the window `follows`, those
      within the last `window` positions up to the row. 0: all.
    follows: see `window`.
    is_cut: the window hides rows of the block too, before and after a row.
  """
  row = jnp.arange(n, dtype=jnp.int32)[None, :, None]
  beyond = jnp.arange(slots, dtype=jnp.int32)[None, None] - length[:, None, None]  # < 0: features
  sees = beyond <= row if causal else beyond < n
  if window:
    is_near = beyond > row - window if follows else beyond >= -window
    if is_cut:
      sees &= is_near & (beyond < row + window)
    sees &= (beyond >= 0) | is_near
  return jnp.broadcast_to(sees, (len(length), n, slots))
