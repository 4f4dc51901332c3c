"""The null drafter: nothing below the root. With the exact rule the loop is greedy decoding."""

from jaxtyping import Array, Int

from fastdec import struct
from fastdec.decoding.protocol import Bound, Draft, Prefill, Step
from fastdec.decoding.topology import Topology


@struct.pytree
class NoDraft:
  """Drafts the root alone."""

  nodes = 1

  def init(self, target: Bound, prefill: Prefill) -> tuple[()]:
    return ()

  def propose(
    self, target: Bound, state: tuple[()], root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, tuple[()]]:
    return Draft(root[:, None], Topology.chain(1)), state

  def observe(self, target: Bound, state: tuple[()], step: Step) -> tuple[()]:
    return state
