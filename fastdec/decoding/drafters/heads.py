"""Drafting by prediction heads on the target's hidden state: a chain (Stern et al. 2018) or a tree (Cai et al. 2024).

The heads read the hidden state of the last accepted node, which the scoring call has computed anyway: no further call
of the target (Stern's combined scoring and proposal model, section 4).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec import struct
from fastdec.decoding.protocol import Draft, Prefill, Step
from fastdec.decoding.sampling import argmax
from fastdec.decoding.topology import Topology, take_node
from fastdec.errors import UserError
from fastdec.models.api import suppress, vocabulary_projection
from fastdec.struct import Bound


@struct.pytree
class HeadsDrafter:
  """State: the hidden state [b, d] of each row's last accepted node."""

  heads: Bound  # as many as the topology is deep
  topology: Topology = struct.static()

  @property
  def nodes(self) -> int:
    return self.topology.n

  def init(self, target: Bound, prefill: Prefill) -> Float[Array, 'b d']:
    return prefill.last_hidden

  def propose(
    self, target: Bound, state: Float[Array, 'b d'], root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, Float[Array, 'b d']]:
    return Draft(draft_tokens(self.heads, target, state, root, self.topology), self.topology), state

  def observe(self, target: Bound, state: Float[Array, 'b d'], step: Step) -> Float[Array, 'b d']:
    return take_node(step.hidden, step.accepted.node)


def draft_tokens(
  heads: Bound, target: Bound, hidden: Float[Array, 'b d'], root: Int[Array, ' b'], topology: Topology
) -> Int[Array, 'b n']:
  """The root and, at a node of depth i and rank r, the i-th head's r-th choice."""
  wanted, d = heads.module.d_model, hidden.shape[-1]
  if wanted != d:
    raise UserError(f'these heads are for hidden states of {wanted}, and this model has {d}: load the two together')
  project = vocabulary_projection(target.module)
  logits_bhv = heads.module.logits(heads.params, hidden, lambda h: project(target.params, h))
  known, words = logits_bhv.shape[-1], target.module.vocab_size
  if known != words:
    raise UserError(f'these heads choose among {known} words, and this model has {words}: load the two together')
  logits_bhv = suppress(logits_bhv, target.module.suppressed_ids)
  ranks = int(topology.ranks.max()) + 1
  if ranks > words:
    raise UserError(f'the tree asks a head for {ranks} choices, and there are {words} words: give ranks below {words}')
  top = (lambda x: argmax(x)[..., None]) if ranks == 1 else (lambda x: jax.lax.top_k(x, ranks)[1])  # ties: lowest id
  choices_bhr = top(logits_bhv).astype(root.dtype)
  drafts = choices_bhr[:, topology.depths[1:] - 1, topology.ranks[1:]]
  return jnp.concatenate([root[:, None], drafts], axis=1)
