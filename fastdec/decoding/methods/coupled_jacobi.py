"""Speculative coupled Jacobi decoding (arXiv 2510.24211): Jacobi's guesses, drawn instead of best.

Like `Jacobi`, each call reads the root and a window of guesses, and gives a distribution of the
token at every place of the window. A guess x was drawn from the distribution q of the call before,
so `Rejection` judges it as any drawn draft. After the first rejected guess every place gets a new
guess y from its newest distribution p. It is coupled with x (maximally): x stays with probability
min(1, p(x) / q(x)), else y is drawn from norm(max(0, p - q)). So y has the distribution p, and is x
as often as possible. A guess that stays does not disturb the places after it.

What decides on a place never depends on the guesses after it, and the coins of a coupling are used
once. So a guess has the distribution q given all that was decided before, which is all that
`Rejection` needs.

At temperature 0 both x and y are the most likely tokens: Jacobi decoding.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec import struct
from fastdec.decoding.methods.drafts_with_probs import DraftsWithProbs
from fastdec.decoding.methods.jacobi import JacobiDrafter
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Rule, Step
from fastdec.decoding.rules.rejection import draw_rest, draw_uniform
from fastdec.decoding.sampling import Sampling
from fastdec.decoding.settings import Whole, size
from fastdec.decoding.topology import Topology
from fastdec.models.api import suppress
from fastdec.struct import Bound


@struct.pytree
class CoupledJacobi(DraftsWithProbs):
  """Decoding with guesses drawn from the model's own distributions of the last call.

  It needs no training and is lossless: the output has the distribution of `Sample` or, without
  sampling, is that of greedy decoding. See `methods.coupled_jacobi`.

  Args:
    k: block size, at least 2: k - 1 tokens are guessed.
    sampling: how tokens are drawn, for which `decode` needs a key; None: the most likely token.
    rule: None: `Exact()` without sampling, else `Rejection()`. With sampling, one that compares
      distributions.
  """

  k: Whole = struct.static()
  sampling: Sampling | None = None
  rule: Rule | None = None

  def __post_init__(self) -> None:
    struct.assign(self, k=size('k', self.k, 2, 'a block size from 2, or decode by Greedy()'))
    self.settle()

  @property
  def drafter(self) -> Drafter:
    if self.sampling is None:
      return JacobiDrafter(self.k)
    return CoupledDrafter(self.k, self.sampling)


@struct.pytree
class Window:
  """The k - 1 places after the root."""

  tokens: Int[Array, 'b g']  # guesses of the last call
  q: Float[Array, 'b g v']  # what they were drawn from; 0 for places without a guess
  p: Float[Array, 'b g v']  # the newest distributions


@struct.pytree
class CoupledDrafter:
  """Drafter of a window of drawn guesses."""

  nodes: int = struct.static()  # a chain, the root included
  sampling: Sampling

  def init(self, target: Bound, prefill: Prefill) -> Window:
    # The first guesses are drawn from the distribution of the first token.
    model, params = target
    logits = suppress(model.unembed(params, prefill.last_hidden), model.suppressed_ids)
    p_bv = jnp.exp(self.sampling.log_probs(logits))
    (b, v), g = p_bv.shape, self.nodes - 1
    p_bgv = jnp.broadcast_to(p_bv[:, None], (b, g, v))
    return Window(jnp.zeros((b, g), jnp.int32), jnp.zeros_like(p_bgv), p_bgv)

  def propose(
    self, target: Bound, state: Window, root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, Window]:
    # Couple the new guesses with the old ones.
    p_of_old = jnp.take_along_axis(state.p, state.tokens[..., None], axis=-1)[..., 0]
    q_of_old = jnp.take_along_axis(state.q, state.tokens[..., None], axis=-1)[..., 0]
    stays = (draw_uniform(keys, p_of_old) * q_of_old < p_of_old) & (q_of_old > 0)
    drawn = draw_rest(keys, jnp.maximum(state.p - state.q, 0), state.p)
    guesses = jnp.where(stays, state.tokens, drawn)

    tokens = jnp.concatenate([root[:, None], guesses], axis=1)
    q_bnv = jnp.pad(state.p, ((0, 0), (1, 0), (0, 0)))
    return Draft(tokens, Topology.chain(self.nodes), q_bnv), Window(guesses, state.p, state.p)

  def observe(self, target: Bound, state: Window, step: Step) -> Window:
    # Node i reads place i, so its distribution is that of place i + 1. The window moves on by the
    # emitted tokens. Places that no node has read get the last distribution, and had no guess.
    p_bnv = jnp.exp(self.sampling.log_probs(step.logits))
    place = step.count[:, None] + jnp.arange(self.nodes - 1, dtype=jnp.int32)[None]
    had_guess = place < self.nodes - 1
    old = jnp.minimum(place, self.nodes - 2)
    p = jnp.take_along_axis(p_bnv, jnp.minimum(place, self.nodes - 1)[..., None], axis=1)
    q = jnp.take_along_axis(state.q, old[..., None], axis=1)
    tokens = jnp.take_along_axis(state.tokens, old, axis=1)
    return Window(tokens, jnp.where(had_guess[..., None], q, 0), p)
