"""Drafts of the tokens that a constraint forces.

Where only one text can follow, such as the names in a JSON object, no model is needed to guess its
tokens. The draft is a chain of the longest tokens of that text, up to the place where several texts
can follow. If the target spells the text with other tokens, it writes those: as always, the target
decides.
"""

import jax.numpy as jnp
from jaxtyping import Array, Int

from fastdec import struct
from fastdec.decoding.law import ForcingLaw
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Step
from fastdec.decoding.sampling import Sampling, check_sampling
from fastdec.decoding.settings import Whole, size
from fastdec.decoding.strategy import LoopStrategy
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.struct import Bound


@struct.pytree
class Forced(LoopStrategy):
  """Decoding under a constraint, with the tokens that it forces as guesses (`methods.forced`).

  It needs no training and is lossless: the output is that of greedy decoding under the constraint
  or, with `sampling`, has the distribution of `Sample` under it.

  Args:
    k: block size, at least 2: at most k - 1 tokens are guessed.
    sampling: how tokens are drawn, for which `decode` needs a key; None: greedy decoding.
  """

  k: Whole = struct.static(default=8)
  sampling: Sampling | None = None
  joins = True

  def __post_init__(self) -> None:
    k = size('k', self.k, 2, 'a block size from 2, or decode by Greedy()')
    struct.assign(self, k=k, sampling=check_sampling(self.sampling))

  @property
  def drafter(self) -> Drafter:
    return ForcedDrafter(self.k)


@struct.pytree
class ForcedDrafter:
  """Drafter of forced tokens. Its state is the constraint's state of each row."""

  nodes: int = struct.static()  # a chain, the root included

  def init(self, target: Bound, prefill: Prefill) -> Int[Array, ' b']:
    constraint = _constraint_of(target)
    state = constraint.init(target.module, prefill.prompt, 0)
    return constraint.next_state(state, prefill.root)

  def propose(
    self, target: Bound, state: Int[Array, ' b'], root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, Int[Array, ' b']]:
    constraint, at = _constraint_of(target), state
    # After a node that nothing forces, the token is arbitrary, and no node is acceptable.
    tokens, is_forced = [root], [jnp.ones_like(root, bool)]
    for _ in range(self.nodes - 1):
      forced = jnp.where(at < 0, -1, constraint.forced[at])
      tokens.append(forced.clip(0))
      is_forced.append(forced >= 0)
      at = jnp.where(forced < 0, -1, constraint.next_state(at, forced))
    chain = Topology.chain(self.nodes)
    chain = Topology.from_parents(chain.parents, acceptable=jnp.stack(is_forced, axis=1))
    return Draft(jnp.stack(tokens, axis=1), chain), state

  def observe(self, target: Bound, state: Int[Array, ' b'], step: Step) -> Int[Array, ' b']:
    return _constraint_of(target).follow(state, step.block(step.path.shape[1]), step.count)


def _constraint_of(target: Bound) -> ForcingLaw:
  """Returns the target's constraint.

  Raises:
    UserError: there is none.
  """
  for law in target.laws:
    if isinstance(law, ForcingLaw):
      return law
  raise UserError(
    'Forced drafts what a constraint forces, and there is none: give constraint=..., or'
    ' choose a different strategy'
  )
