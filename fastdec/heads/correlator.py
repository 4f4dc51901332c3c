"""The edges of LiLiCorr (2026, arXiv 2608.20530): a transformer over all candidates of a block.

The m candidates of each of g guesses read one another, the state of their row, their embedding and
their probability. Then each has a vector for what comes after it and one for what comes before. The
score of x after y is the product of these vectors, scaled to length 1, times a factor. After the
root, y's vector is made from the feature of the position before the root.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fastdec.fields import Layers, Positive, Size
from fastdec.heads import tower
from fastdec.models.layers import Dense, LayerNorm

FACTS = 5  # about a candidate's probability


@dataclasses.dataclass(frozen=True)
class CorrelatorConfig:
  """Sizes of the transformer; its norms are those of the draft's layers.

  Attributes:
    width, layers, heads: of the transformer.
    d_ff: width inside its MLPs.
    scale: factor of the scores.
    epsilon: the least length by which vectors are divided.
  """

  width: Size
  layers: Layers
  heads: Size
  d_ff: Size
  scale: float
  epsilon: Positive = 1e-6


class Correlator(nn.Module):
  """The transformer; see the top of this file."""

  draft: Any  # a `BlockNetwork`

  def setup(self) -> None:
    draft, c = self.draft, self.draft.correlator
    layers, zeros = draft.layers, nn.initializers.zeros

    def dense(*features: int) -> Dense:
      return Dense(features, True, layers.dtype)

    if c.width != layers.d_model:
      self.token = dense(c.width)
    self.state, self.context = dense(c.width), dense(c.width)
    self.facts_norm = LayerNorm(1e-5, layers.dtype)
    self.facts_in, self.facts_out = dense(c.width), dense(c.width)
    self.slots = self.param('slots', zeros, (draft.depth, c.width))
    self.ranks = self.param('ranks', zeros, (draft.choices, c.width))
    self.distance = self.param('distance', zeros, (c.heads, 2 * draft.depth + 1))
    self.same = self.param('same', zeros, (c.heads,))
    each = range(c.layers)
    self.attention_norm = [tower.norm(layers) for _ in each]
    self.qkv = [dense(3, c.heads, c.width // c.heads) for _ in each]
    self.out = [dense(c.width) for _ in each]
    self.mlp_norm = [tower.norm(layers) for _ in each]
    self.up, self.down = [dense(c.d_ff) for _ in each], [dense(c.width) for _ in each]
    self.norm, self.context_norm = tower.norm(layers), tower.norm(layers)
    self.factor = dense(c.width)
    self.after_head, self.before_head = dense(draft.markov), dense(draft.markov)
    self.root_head = dense(draft.markov)

  def __call__(
    self,
    embedded: Float[Array, 'c g m e'],
    states: Float[Array, 'c g d'],
    log_probs: Float[Array, 'c g m'],
    last: Float[Array, 'c d'],
  ) -> tuple[Float[Array, 'c g m r'], Float[Array, 'c g m r']]:
    """Returns vectors whose products are scores: of candidate j of the guess before (guess 0 has
    the root's everywhere), and of each candidate.

    Args:
      embedded: the target's embeddings of the candidates, the best first.
      states: of the rows that guess.
      log_probs: of the candidates among all words.
      last: the feature at the position before the root.
    """
    c, (n, g, m) = self.draft.correlator, log_probs.shape
    x = embedded if c.width == self.draft.layers.d_model else self.token(embedded)
    x += self.state(states)[:, :, None] + self.read_facts(log_probs).astype(x.dtype)
    x += (self.slots[None, :g, None] + self.ranks[None, None, :m]).astype(x.dtype)

    # Scores of attention are biased by the distance of two guesses.
    slot = jnp.repeat(jnp.arange(g, dtype=jnp.int32), m)
    apart = slot[:, None] - slot[None]
    same = jnp.where(apart[None] == 0, self.same[:, None, None], 0)
    bias = (self.distance[:, apart + self.draft.depth] + same).astype(x.dtype)
    x = x.reshape(n, g * m, -1)
    for i in range(c.layers):
      q, k, v = jnp.moveaxis(self.qkv[i](self.attention_norm[i](x)), 2, 0)
      scores = jnp.einsum('cqhp,ckhp->chqk', q, k) * q.shape[-1] ** -0.5 + bias[None]
      weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
      x += self.out[i](jnp.einsum('chqk,ckhp->cqhp', weights, v).reshape(x.shape))
      x += self.down[i](jax.nn.silu(self.up[i](self.mlp_norm[i](x))))
    x = self.norm(x).reshape(n, g, m, -1)

    root = self.context_norm(self.context(last))
    beside = jnp.broadcast_to(root[:, None, None], x.shape)
    x = jax.nn.silu(self.factor(jnp.concatenate([x, beside, x * beside], axis=-1)))
    after, before = self.to_length_1(self.after_head(x)), self.to_length_1(self.before_head(x))
    first = self.to_length_1(self.root_head(root))[:, None, None]
    first = jnp.broadcast_to(first, before[:, :1].shape)
    return c.scale * jnp.concatenate([first, after[:, :-1]], axis=1), before

  def read_facts(self, log_probs: Float[Array, 'c g m']) -> Float[Array, 'c g m w']:
    """Returns what a candidate's probability and rank add to its vector."""
    rank = jnp.arange(log_probs.shape[-1], dtype=log_probs.dtype)
    place, is_first = rank / max(len(rank) - 1, 1), (rank == 0).astype(log_probs.dtype)
    facts = [log_probs, jnp.exp(log_probs), log_probs - log_probs.max(-1, keepdims=True)]
    facts += [jnp.broadcast_to(x[None, None], log_probs.shape) for x in (place, is_first)]
    x = self.facts_in(self.facts_norm(jnp.stack(facts, axis=-1)))
    return self.facts_out(jax.nn.silu(x))

  def to_length_1(self, x: Float[Array, '*b r']) -> Float[Array, '*b r']:
    length = jnp.sqrt(jnp.maximum((x * x).sum(-1, keepdims=True), self.draft.correlator.epsilon**2))
    return x / length
