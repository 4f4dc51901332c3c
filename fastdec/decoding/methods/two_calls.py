"""Section 3 of Stern et al. 2018 as written: predict (with a call of the model), verify, accept.

The drafter has its own cache. Once the verified tokens are known, it runs the target over them
again to get the hidden state for its heads. `HeadsDrafter` takes that state from the verifying call
instead (section 4): it makes the same drafts with half the calls.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Int

from fastdec import struct
from fastdec.decoding.methods.greedy import NoDraft
from fastdec.decoding.methods.heads import Blockwise, draft_tokens
from fastdec.decoding.prefill import read_text
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Step
from fastdec.decoding.topology import Topology, take_node
from fastdec.models.api import Cache, causal
from fastdec.struct import Bound


@struct.pytree
class Pending:
  """A cache of all committed tokens except the last block's, and the last block."""

  cache: Cache
  tokens: Int[Array, 'b n']  # the last block's committed tokens
  count: Int[Array, ' b']  # their number


@struct.pytree
class TwoCallDrafter:
  """Drafter of the same tokens as `HeadsDrafter`, with a call of the target for each draft."""

  heads: Bound
  nodes: int = struct.static()  # a chain
  window: int = struct.static(default=0)

  def init(self, target: Bound, prefill: Prefill) -> Pending:
    model, params = target
    prompt = prefill.prompt
    b = len(prompt.tokens)
    cache = model.init_cache(params, prefill.memory, b, prefill.capacity)
    before = dataclasses.replace(prompt, length=prompt.length - 1)
    _, _, cache = read_text(target, before, cache, known=prompt.length)
    last = take_node(prompt.tokens, prompt.length - 1)
    return Pending(cache, jnp.broadcast_to(last[:, None], (b, self.nodes)), jnp.ones_like(last))

  def propose(
    self, target: Bound, state: Pending, root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, Pending]:
    hidden, _, cache = target.module.apply(
      target.params, state.tokens, causal(self.nodes), state.cache
    )
    cache = cache.commit(None, state.count)
    last_hidden = take_node(hidden, (state.count - 1).clip(0))
    chain = Topology.chain(self.nodes)
    tokens = draft_tokens(self.heads, target, last_hidden, root, chain, self.window)
    return Draft(tokens, chain, calls=1), Pending(cache, state.tokens, state.count)

  def observe(self, target: Bound, state: Pending, step: Step) -> Pending:
    return Pending(state.cache, step.draft.tokens, step.count)


@struct.pytree
class BlockwiseTwoCalls(Blockwise):
  """Blockwise parallel decoding as section 3 describes it, with a second call in each iteration.

  `draft_calls` counts the second calls. Output and block sizes are those of `Blockwise`. This
  strategy is there for comparison, and as an oracle of tests.
  """

  drafts_for = None

  @property
  def drafter(self) -> Drafter:
    if self.k == 1:
      return NoDraft()
    return TwoCallDrafter(self.heads, self.k, self.window)
