"""Typical acceptance (Cai et al. 2024, section 2.3.1): it keeps tokens that the target may write.

The rule is for guessed drafts, in chains and trees, from any heads. It is not lossless and does not
sample: above temperature 0 the output is neither the greedy one nor a draw from the target's
distribution.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.decoding.protocol import Accepted, Draft, Promise
from fastdec.decoding.rules.matching import Matching, at_parent, find_longest
from fastdec.decoding.sampling import argmax, scale
from fastdec.decoding.settings import COLDEST, HOTTEST, is_zero, real
from fastdec.decoding.topology import take_node


@struct.pytree
class Typical(Matching):
  """Accepts a draft x if p(x) > min(epsilon, delta exp(-H(p))). Not lossless.

  p is the target's distribution at `temperature`, and H its entropy in nats: an unsure target
  accepts less likely tokens. The longest path is kept; if several are equally long, the most likely
  one by p. The first token and every bonus are the target's argmax, as in the original's default,
  so the rule needs no key. With delta < 1 the argmax is always accepted, since max p >= exp(-H).

  Args:
    epsilon: 0 to 1; a token at least this likely is accepted at any entropy. 0 accepts all possible
      tokens.
    delta: 0 to 1; the authors advise sqrt(epsilon).
    temperature: divides the logits before p; higher ones accept more. 0 is `Exact`; else 1e-6 to
      1e6.
  """

  epsilon: Any = 0.09  # float32 scalars
  delta: Any = 0.3
  temperature: Any = 1.0

  def __post_init__(self) -> None:
    allowed, least = '1e-6 to 1e6, or 0 for exact acceptance', COLDEST
    if is_zero(self.temperature):
      least = 0.0
    struct.assign(
      self,
      epsilon=real('epsilon', self.epsilon, 0.0, 1.0, '0 to 1'),
      delta=real('delta', self.delta, 0.0, 1.0, '0 to 1'),
      temperature=real('temperature', self.temperature, least, HOTTEST, allowed),
    )

  @property
  def promise(self) -> Promise:
    return 'relaxed' if self.temperature > 0 else 'exact'

  def scale(self, logits: Float[Array, 'b n v']) -> Float[Array, 'b n v']:
    return scale(logits, jnp.where(self.temperature > 0, self.temperature, 1))

  def matches(
    self, draft: Draft, logits: Float[Array, 'b n v'], choice: Int[Array, 'b n']
  ) -> Bool[Array, 'b n']:
    # The threshold after each node. Suppressed tokens do not count in the entropy.
    log_p = jax.nn.log_softmax(self.scale(logits), axis=-1)
    surprise = jnp.where(jnp.isfinite(log_p), -log_p, 0)
    entropy = (jnp.exp(log_p) * surprise).sum(-1)
    epsilon, delta = self.epsilon.astype(entropy.dtype), self.delta.astype(entropy.dtype)
    threshold = jnp.minimum(epsilon, delta * jnp.exp(-entropy))

    # The probability of each draft, by the node before it.
    log_p = at_parent(log_p, draft.topology)
    own = jnp.take_along_axis(log_p, draft.tokens[..., None], axis=-1)[..., 0]
    typical = jnp.exp(own) > at_parent(threshold, draft.topology)
    exact = draft.tokens == at_parent(choice, draft.topology)
    return jnp.where(self.temperature > 0, typical, exact)

  def __call__(
    self,
    keys: Array | None,
    draft: Draft,
    logits: Float[Array, 'b n v'],
    acceptable: Bool[Array, 'b n'],
  ) -> Accepted:
    choice = argmax(logits)
    matching = self.matches(draft, logits, choice) & acceptable
    node = find_longest(matching, draft, self.scale(logits))
    return Accepted(node=node, bonus=take_node(choice, node))
