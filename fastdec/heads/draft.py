"""What draft networks have in common, autoregressive (`heads.eagle`) or one-pass (`heads.block`).

A draft network reads its target: embeddings of tokens, and features made from hidden states. These
are the states that `unembed` reads, or the residual stream of some layers (`taps`). The network
predicts by the target's vocabulary projection, or by its own over all words or a part of them. Its
parameters are a dict:

  network      the layers, with their inputs and outputs
  embedding    [v, e], if it does not read the target's
  output       [words, d], if it does not predict by the target's projection
  ids          int32[words], the target's ids of a draft vocabulary; without it: the target's words
  warmth       [depth], a temperature for each position, which calibrates its confidences
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec.cache.kv import KVCache, LayerKV
from fastdec.cache.memory import Memory, WithMemory
from fastdec.errors import UserError
from fastdec.fields import check_sizes
from fastdec.heads import tower
from fastdec.heads.lesson import Guess, Lesson
from fastdec.heads.tower import LayersConfig
from fastdec.heads.words import suppress_words
from fastdec.kernels.products import KERNELS
from fastdec.kernels.sharding import WORDS, Table
from fastdec.models.api import Capacity, Params, embedding_of, vocabulary_projection
from fastdec.models.encoder_decoder import Source
from fastdec.models.fresh import init_by_trace
from fastdec.models.layers import Dense, look_up, project
from fastdec.models.lm import LMConfig, layer_partition
from fastdec.models.stacks import PARTITION, StackConfig
from fastdec.models.taps import Taps, apply_with, check_taps, number_taps
from fastdec.struct import Bound


class Fusion(nn.Module):
  """Features of the target's states: normed one by one or together, and projected to one width."""

  draft: 'DraftNetwork'

  @nn.compact
  def __call__(self, states: Sequence[Float[Array, '*b _']]) -> Float[Array, '*b d']:
    draft = self.draft
    if draft.norms_taps:
      states = [tower.norm(draft.layers, f'tap_norm_{i}')(x) for i, x in enumerate(states)]
    if draft.adapts:
      adapt = Dense((draft.layers.d_model,), False, draft.layers.dtype, name='adapt')
      states = [adapt(x.astype(draft.layers.dtype)) for x in states]
    x = states[0] if len(states) == 1 else jnp.concatenate(list(states), axis=-1)
    x = x.astype(draft.layers.dtype)
    if draft.norms_joined:
      x = tower.norm(draft.layers, 'joined_norm')(x)
    if draft.fuses:
      x = Dense((draft.layers.d_model,), False, draft.layers.dtype, name='fuse')(x)
    if draft.norms_fused:
      x = tower.norm(draft.layers, 'fused_norm')(x)
    return x


class Network(nn.Module):
  """The parameters of features and layers; each kind of draft network adds its own."""

  draft: Any  # a `DraftNetwork`

  def setup(self) -> None:
    layers = self.draft.layers
    self.make_features = Fusion(self.draft)
    if isinstance(layers, StackConfig):
      self.tower = tower.DecoderTower(layers, self.draft.around)
    else:
      self.tower = tower.LMTower(layers, self.draft.around)

  def features(self, states: Sequence[Float[Array, '*b _']]) -> Float[Array, '*b d']:
    return self.make_features(states)

  def memory(self, source: Float[Array, 'b s d']) -> tuple[LayerKV, ...]:
    """Returns each layer's keys and values of the source."""
    return tuple(layer.cross.keys_values(source) for layer in self.tower.layer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftNetwork:
  """A draft network's sizes: a hashable value.

  Attributes:
    layers: the layers' config: an `LMConfig` (rotary positions, no source), or a `StackConfig`,
      whose decoder layers read the encoder's states. They are as wide as the target's hidden
      states, unless the draft has an `output`.
    vocab_size: number of the target's words.
    d_target: width of the target's hidden states.
    taps: the target's layers whose states it reads (`Model.apply`); (): the hidden state that
      `unembed` reads. Published drafts that name no layers follow a rule, see `models.taps`.
    fuses: the states are projected to the draft's width (needed if they are wider together).
    adapts: one projection brings each tap to the draft's width first (JetSpec, for wider targets).
    norms_taps, norms_joined, norms_fused: norms on each tap, on all of them joined, on the result.
    d_embed: width of the embeddings (None: d_target).
    d_source: width of the encoder's states (None: d_target).
    words: size of a draft vocabulary, for which the draft has its own `output` (None: it has all
      words, with an `output` of its own if that is among the parameters).
    entry: how embeddings and features enter the first layer, see the kinds of networks.
  """

  layers: LayersConfig
  vocab_size: int
  d_target: int
  taps: Taps = ()
  fuses: bool = False
  adapts: bool = False
  norms_taps: bool = False
  norms_joined: bool = False
  norms_fused: bool = False
  d_embed: int | None = None
  d_source: int | None = None
  words: int | None = None
  entry: str = 'joined'

  around: ClassVar[Any] = None  # what is around the layers' sublayers, see `tower.Around`
  network: ClassVar[type[Network]]
  products = (KERNELS, r'(^|/)(embedding|output|after)$')  # see `kernels.products`

  def __post_init__(self) -> None:
    check_sizes(self, 'vocab_size', 'd_target')
    if self.words is not None and not 1 <= self.words <= self.vocab_size:
      raise UserError(
        f'words={self.words} is not possible: a draft vocabulary has 1 to {self.vocab_size} words'
      )
    width = self.d_target * max(len(self.taps), 1)
    if width != self.layers.d_model and not self.fuses:
      raise UserError(
        f'states of width {width} do not fit layers of width {self.layers.d_model}: give'
        ' fuses=True, which projects them'
      )

  @property
  def reads_source(self) -> bool:
    """True if it reads an encoder's states."""
    return isinstance(self.layers, StackConfig)

  def call(self, params: Params, *args: Any, method: str, **kwargs: Any) -> Any:
    """Calls a method of the linen network."""
    return self.network(self).apply({'params': params['network']}, *args, method=method, **kwargs)

  def features(
    self, params: Params, hidden: Float[Array, '*b e'], taps: Sequence[Float[Array, '*b _']]
  ) -> Float[Array, '*b d']:
    """Returns the draft's features of the target: of `taps` if it has any, else of `hidden`.

    Raises:
      UserError: the draft was made for states of a different width.
    """
    states = list(taps) if self.taps else [hidden]
    for x in states:
      if x.shape[-1] != self.d_target:
        raise UserError(
          f'this draft reads states of width {self.d_target}, and this model has one of width'
          f' {x.shape[-1]}: give a draft of this model, or taps of layers of that width'
        )
    return self.call(params, states, method='features')

  def embedded(
    self, params: Params, target: Bound, tokens: Int[Array, '*b']
  ) -> Float[Array, '*b e']:
    """Returns embeddings of tokens, the draft's own or the target's, in the draft's compute type.

    Raises:
      UserError: there are none, or the draft was made for embeddings of a different width.
    """
    if 'embedding' in params:
      rows = look_up(params['embedding'], tokens)
    else:
      rows = embedding_of(target.module)(target.params, tokens)
    width, wanted = rows.shape[-1], self.d_embed or self.d_target
    if width != wanted:
      raise UserError(
        f"this draft reads embeddings of width {wanted}, and the target's have width {width}: load"
        f' the two together, or train a draft with d_embed={width}'
      )
    return rows.astype(self.layers.dtype)

  def logits(
    self, params: Params, target: Bound, states: Float[Array, '*b d']
  ) -> Float[Array, '*b w']:
    """Returns logits over the draft's words (`ids`), before any bias, from a row's states."""
    if 'output' in params:
      return project(states, params['output'])
    return vocabulary_projection(target.module)(target.params, states)

  def training_rows(
    self,
    params: Params,
    lesson: Lesson,
    passes: int,
    dropout_key: Array | None = None,
    guess: Guess | None = None,
  ) -> Float[Array, 'n b a d']:
    """Returns the states of the rows from which the draft guesses, for all anchors at once.

    Row i guesses the token i + 1 places after its anchor. It sees what decoding would show it after
    the tokens that the target wrote (teacher forcing).

    Args:
      params: the draft's parameters.
      lesson: the text, and the anchors.
      passes: guesses of an autoregressive draft; a block has k - 1.
      dropout_key: for the draft's dropout; None switches it off.
      guess: called once for each row, in order. What it returns is the token that an
        autoregressive draft reads next (None: the token that the target wrote).
    """
    raise NotImplementedError

  def start_carry(self, state: Float[Array, '*b d']) -> Float[Array, '*b c']:
    """Returns what `guess_logits` takes for the first guess, in the shape of its row's states."""
    return jnp.zeros((*state.shape[:-1], 0), state.dtype)

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
    """Returns the logits of a guess over the draft's words, and the carry for the next guess.

    Args:
      params: the draft's parameters.
      target: its projection may be read.
      state: of the row that guesses.
      before: the token before the guess, by which a bias may change the logits.
      carry: `start_carry` for the first guess, then what the guess before returned.
      as_decoded: words that decoding never guesses have minus infinity.
      number: of the guess, from 0.
    """
    logits = self.logits(params, target, state)
    if as_decoded:
      logits = suppress_words(params, logits, target.module.suppressed_ids)
    return logits, carry

  def init_cache(
    self, params: Params, source: Source | None, rows: int, slots: int | Capacity
  ) -> WithMemory:
    """Returns an empty cache, with the draft's own keys and values of the source if it reads one.

    Raises:
      UserError: the draft was made for source states of a different width.
    """
    c, memory = self.layers, None
    if isinstance(c, StackConfig):
      assert source is not None  # by `check_target`
      own, wanted = source.hidden.shape[-1], self.d_source or self.d_target
      if own != wanted:
        raise UserError(
          f'this draft needs an encoder of width {wanted}, and this model has one of width {own}:'
          ' load the two together'
        )
      states = source.hidden.astype(c.dtype)
      memory = Memory(self.call(params, states, method='memory'), source.mask)
      heads, width = c.heads, c.head_width
    else:
      heads, width = c.kv_heads, c.width
    layers = len(tower.windows_of(c))
    return WithMemory(KVCache.empty(layers, rows, heads, slots, width, c.dtype), memory)

  @init_by_trace
  def init(self, key: Array) -> Params:
    """Returns fresh float32 parameters; a draft vocabulary has the lowest ids."""
    # The layers, by a call on one token.
    net_key, out_key = jax.random.split(key)
    embedded = jnp.zeros((1, 1, self.d_embed or self.d_target), self.layers.dtype)
    states = [jnp.zeros((1, 1, self.d_target))] * max(len(self.taps), 1)
    source = None
    if self.reads_source:
      source = jnp.zeros((1, 1, self.d_source or self.d_target))
    params = {'network': self.network(self).init(net_key, embedded, states, source)['params']}

    if self.words is not None:
      d = self.layers.d_model
      params['output'] = jax.random.normal(out_key, (self.words, d)) * d**-0.5
      params['ids'] = jnp.arange(self.words, dtype=jnp.int32)
    return params

  def partition(self, devices: int) -> Table:
    """Splits the layers like a model's, and what it has for words by words.

    See `kernels.sharding`."""
    table = PARTITION
    if isinstance(self.layers, LMConfig):
      table = layer_partition(self.layers, devices)
    return (*WORDS, *table)


def check_target(draft: Bound, target: Any) -> None:
  """Raises UserError unless the draft fits this target, a `Model`, in its sizes and members."""
  # Sizes.
  module, params = draft
  words, d = target.vocab_size, getattr(target, 'd_model', module.d_target)
  if module.d_target != d:
    raise UserError(
      f'this draft is for hidden states of {module.d_target}, and this model has {d}: load the two'
      ' together'
    )
  if module.vocab_size != words:
    raise UserError(
      f'this draft is for {module.vocab_size} words, and this model has {words}: load'
      ' the two together'
    )

  # What it reads of the target; `embedding_of` and `apply_with` raise what is missing.
  if module.reads_source and target.start_id is None:
    raise UserError(
      'this draft reads an encoder, and this model has none: give a draft trained on this model'
    )
  if module.reads_source and not hasattr(target, 'source'):
    name = type(target).__name__
    raise UserError(
      f'this draft reads the states of an encoder, for which {name} needs a method source(memory)'
    )
  if 'embedding' not in params:
    embedding_of(target)
  if 'output' not in params and module.layers.d_model != d:
    raise UserError(
      f'layers of width {module.layers.d_model} do not fit the vocabulary projection of a model of'
      f' width {d}: give the draft an output of its own'
    )
  apply_with(target, module.taps)
  layers = getattr(target, 'layers', None)
  if layers is not None:
    check_taps(number_taps(module.taps, layers), layers)
