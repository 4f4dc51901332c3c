"""Further inputs of heads: the root (`rooted`), and the token guessed before (`markov`).

The hidden state that heads read was computed before the root was chosen: heads that read only this
state must guess the root too. Rooted heads also read its embedding (Hydra's grounding, Ankner et
al. 2024, section 3).

A Markov bias of rank r corrects a head's guess by the one before: logit(x) += after[x] . before[y],
where y is the parent's token. It costs one more product per guess, of r numbers by the heads'
words.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec.errors import UserError
from fastdec.heads.words import OWN
from fastdec.models.api import Params
from fastdec.models.layers import look_up, project

BIAS = ('before', 'after')  # the parameters of a bias


class Context:
  """Base of heads that may be rooted, and may have a Markov bias.

  A kind of heads has two methods:

    logits(params, hidden, project, root)                                        -> [b, h, v]
      of all heads, before any Markov bias; `hidden` [b, d] is of the last accepted node
    logits_at(params, hidden, offset, project, dropout_key, root, before)         -> [*b, v]
      of the head `offset` positions after p1, at any positions [*b]; 0: p1. For training

  `project` is the model's vocabulary projection, `root` the root's embedding for rooted heads, and
  `before` the token before the predicted one, for a Markov bias. `dropout_key=None`: no dropout.

  Attributes:
    rooted: the heads read the root's embedding too.
    d_embed: its width (None: d_model).
    markov: rank r of the bias by the token guessed before; 0: no bias. Its parameters are `before`
      [words, r] and `after` [the heads' words, r].
    words: size of the vocabulary, for that bias.
    short: number of words that the heads guess among (`heads.words`); 0: all.
  """

  d_model: int
  rooted: bool
  d_embed: int | None
  markov: int
  words: int | None
  short: int

  def check_context(self) -> None:
    """Raises UserError for impossible settings."""
    if self.short < 0:
      raise UserError(
        f'short={self.short} is not possible: give the words that heads guess among, or 0 for all'
      )
    if self.markov < 0 or (self.markov and not self.words):
      raise UserError(
        f'markov={self.markov} with words={self.words} is not possible: give 0 for no bias, or a'
        ' rank and the words of the vocabulary'
      )

  def check_whole(self) -> None:
    """Raises UserError for heads with a short list of words, which cannot be trained."""
    if self.short:
      raise UserError(
        'heads with a short list cannot be trained: train them with all words first, and shorten'
        ' the result (fd.shortlist)'
      )

  @property
  def root_width(self) -> int:
    """Width of the root's embedding in the heads' input; 0 if they do not read it."""
    if not self.rooted:
      return 0
    return self.d_embed or self.d_model

  def join_root(
    self, hidden: Float[Array, '*b d'], root: Float[Array, '*b e'] | None
  ) -> Float[Array, '*b f']:
    """Returns the heads' input: the hidden state and, for rooted heads, the root's embedding.

    The embedding is scaled to a mean square of 1, independent of the model's scale.
    """
    if not self.rooted:
      return hidden
    assert root is not None, 'rooted heads read the embedding of the root'
    wide = root.astype(jnp.promote_types(root.dtype, jnp.float32))
    scale = jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    return jnp.concatenate([hidden, (wide * scale).astype(hidden.dtype)], axis=-1)

  def take_shared(self, params: Params) -> Params:
    """Returns the parameters that all heads share."""
    return {name: params[name] for name in (*BIAS, *OWN) if name in params}

  def over_short(self, params: Params, outputs: Float[Array, '*b d']) -> Float[Array, '*b w']:
    """Returns logits over the short list's words."""
    return project(outputs, params['output'])

  def init_words(self) -> Params:
    """Returns the parameters of a short list, the lowest ids and zeros; {} without a list."""
    if not self.short:
      return {}
    return {
      'output': jnp.zeros((self.short, self.d_model)),
      'ids': jnp.arange(self.short, dtype=jnp.int32),
    }

  def init_bias(self, key: Array) -> Params:
    """Returns the parameters of a bias that does nothing yet; {} without a bias."""
    if not self.markov:
      return {}
    assert self.words is not None  # by `check_context`
    before = jax.random.normal(key, (self.words, self.markov)) * self.markov**-0.5
    return {'before': before, 'after': jnp.zeros((self.short or self.words, self.markov))}

  def bias(self, params: Params, before: Int[Array, '*b']) -> Float[Array, '*b w']:
    """Returns what is added to the logits of the heads' words; `before` are ids of the target."""
    return project(look_up(params['before'], before), params['after'])

  def add_markov_bias(
    self,
    params: Params,
    logits: Float[Array, '*b v'],
    offset: Int[Array, ''],
    before: Int[Array, '*b'] | None,
  ) -> Float[Array, '*b v']:
    """Adds the bias to logits of the head `offset` positions after p1; p1 itself (0) has none."""
    if not self.markov:
      return logits
    assert before is not None, 'a Markov bias reads the token before'
    bias = jnp.where(offset == 0, 0, self.bias(params, before))
    return logits + bias.astype(logits.dtype)
