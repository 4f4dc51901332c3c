"""Drafting by a smaller model with a cache of its own (Leviathan et al. 2022; Chen et al. 2023).

To draft d1..dg the model reads the root and d1..d(g-1); whatever of these is not accepted, its cache forgets by length.
The last draft is never read. So a draft begins by reading the new root, and, only where the whole draft before was
accepted, its last token as well:

    read            accepted     the next draft begins by reading
    root d1 d2      d1           bonus
    root d1 d2      d1 d2 d3     d3 bonus

Rows differ, so this first call has two nodes in every row, of which a row keeps one or two; the other calls have one.
A draft of g tokens costs g calls, always.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec import struct
from fastdec.decoding.protocol import Draft, Prefill, Step
from fastdec.decoding.rules import Sampling
from fastdec.decoding.sampling import argmax, draw
from fastdec.decoding.topology import Topology, take_node
from fastdec.models.api import Cache, causal, source_words, suppress
from fastdec.struct import Bound


@struct.pytree
class Reading:
  """How far the draft model has read each row."""

  cache: Cache
  before_root: Int[Array, ' b']
  unread: Int[Array, ' b']  # 1: the root; 2: the token before it, and the root; 0: the row has finished
  gamma: Int[Array, ' b']  # how many tokens the row wants drafted


@struct.pytree
class ModelDrafter:
  """Drafts a chain of at most gamma tokens.

  adaptive: each row has a gamma of its own, from 1 to `gamma`, which grows by 2 where the whole draft was accepted and
  shrinks by 1 where not (the heuristic of Hugging Face's assisted generation). A batch drafts as many tokens as the
  row that wants most, and what a row did not want is not acceptable in it: what becomes of a row does not depend on the
  others. The target's call keeps its width, gamma + 1 nodes, which is a shape; what is saved is calls of the draft
  model. `draft_calls` counts those that the row wanted.
  """

  draft: Bound
  sampling: Sampling | None  # the law that tokens are drawn from; None: the most likely are taken
  gamma: int = struct.static()
  adaptive: bool = struct.static(default=False)

  @property
  def nodes(self) -> int:
    return self.gamma + 1

  def init(self, target: Bound, prefill: Prefill) -> Reading:
    model, params = self.draft
    prompt = prefill.prompt
    b, t = prompt.tokens.shape
    is_text = prompt.inputs is not None and prompt.inputs.ndim == 2
    memory = model.encode(params, jnp.minimum(prompt.inputs, source_words(model) - 1) if is_text else prompt.inputs)
    tokens = self._known(prompt.tokens)
    tokens = tokens if model.start_id is None else tokens.at[:, 0].set(model.start_id)
    cache = model.init_cache(params, memory, b, prefill.slots)
    cache = model.apply(params, tokens, causal(t), cache)[2].commit(None, prompt.length)
    ones = jnp.ones_like(prefill.root)
    return Reading(cache, before_root=prefill.root, unread=ones, gamma=ones * self.gamma)

  def propose(
    self, target: Bound, state: Reading, root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, Reading]:
    first = jnp.stack([jnp.where(state.unread == 2, state.before_root, root), root], axis=1)
    hidden_bnd, cache = self._read(first, state.cache)
    cache = cache.commit(None, state.unread)
    drafted, q_bv = self._guess(target, take_node(hidden_bnd, (state.unread - 1).clip(0)), keys, 0)

    running = state.unread > 0
    calls = jnp.where(running, state.gamma, 1).max() if self.adaptive else self.gamma
    b, n = root.shape[0], self.nodes
    tokens_bn = jnp.broadcast_to(root[:, None], (b, n)).at[:, 1].set(drafted)
    q_bnv = None if q_bv is None else jnp.zeros((b, n, q_bv.shape[-1]), q_bv.dtype).at[:, 1].set(q_bv)

    def guess_next(i: Int[Array, ''], carry: tuple) -> tuple:
      tokens_bn, q_bnv, cache = carry
      hidden_bnd, cache = self._read(jax.lax.dynamic_slice_in_dim(tokens_bn, i, 1, axis=1), cache)
      drafted, q_bv = self._guess(target, hidden_bnd[:, 0], keys, i)
      q_bnv = None if q_bv is None else q_bnv.at[:, i + 1].set(q_bv)
      return tokens_bn.at[:, i + 1].set(drafted), q_bnv, cache.commit(None, jnp.ones_like(root))

    tokens_bn, q_bnv, cache = jax.lax.fori_loop(1, calls, guess_next, (tokens_bn, q_bnv, cache))
    cache = cache.commit(None, jnp.full_like(root, 1) - calls)  # back to the root
    wanted_bn = jnp.arange(n) <= state.gamma[:, None]
    chain = dataclasses.replace(Topology.chain(n), acceptable=wanted_bn)
    q_bnv = None if q_bnv is None else jnp.where(wanted_bn[..., None], q_bnv, 0)
    return Draft(tokens_bn, chain, q_bnv, calls=state.gamma), dataclasses.replace(state, cache=cache)

  def observe(self, target: Bound, state: Reading, step: Step) -> Reading:
    accepted, runs = step.accepted.node, step.count > 0
    whole = accepted == state.gamma
    gamma = (state.gamma + jnp.where(whole, 2, -1)).clip(1, self.gamma) if self.adaptive else state.gamma
    return Reading(
      cache=state.cache.commit(None, jnp.where(runs, jnp.minimum(accepted, state.gamma - 1), 0)),
      before_root=take_node(step.draft.tokens, accepted),
      unread=jnp.where(runs, 1 + whole.astype(jnp.int32), 0),
      gamma=gamma,
    )

  def _read(self, tokens: Int[Array, 'b n'], cache: Cache) -> tuple[Float[Array, 'b n d'], Cache]:
    hidden, _, cache = self.draft.module.apply(
      self.draft.params, self._known(tokens), causal(tokens.shape[1]), cache
    )
    return hidden, cache

  def _known(self, tokens: Int[Array, 'b n']) -> Int[Array, 'b n']:
    """Tokens beyond the draft model's vocabulary, if the target's is larger, as its last."""
    return jnp.minimum(tokens, self.draft.module.vocab_size - 1)

  def _guess(
    self, target: Bound, hidden: Float[Array, 'b d'], keys: Array | None, i: int | Int[Array, '']
  ) -> tuple[Int[Array, ' b'], Float[Array, 'b v'] | None]:
    """The i-th token of the draft and, if it is sampled, its law, over the target's vocabulary."""
    words = target.module.vocab_size
    logits = self.draft.module.unembed(self.draft.params, hidden)[:, :words]
    logits = jnp.pad(logits, ((0, 0), (0, words - logits.shape[1])), constant_values=-jnp.inf)
    logits = suppress(logits, target.module.suppressed_ids)
    if self.sampling is None:
      return argmax(logits), None
    log_q = self.sampling.law(logits)
    return draw(jax.vmap(jax.random.fold_in, (0, None))(keys, i), log_q), jnp.exp(log_q)
