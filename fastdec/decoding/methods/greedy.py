"""The null drafter: nothing below the root. With the exact rule the loop is greedy decoding."""

from typing import Any

from jaxtyping import Array, Int

from fastdec import struct
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Rule, Step
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.rules.sampling import Sampling
from fastdec.decoding.strategy import LoopStrategy
from fastdec.decoding.topology import Topology
from fastdec.struct import Bound


@struct.pytree
class NoDraft:
  """Drafter of the root alone."""

  nodes = 1

  def init(self, target: Bound, prefill: Prefill) -> tuple[()]:
    return ()

  def propose(
    self, target: Bound, state: tuple[()], root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, tuple[()]]:
    return Draft(root[:, None], Topology.chain(1)), state

  def observe(self, target: Bound, state: tuple[()], step: Step) -> tuple[()]:
    return state


@struct.pytree
class Greedy(LoopStrategy):
  """The most likely token, one a call."""

  rule = Exact()

  @property
  def drafter(self) -> Drafter:
    return NoDraft()


@struct.pytree
class Sample(LoopStrategy):
  """A token drawn from the model's law, one a call; `decode` needs a key.

  Args:
    temperature: divides the logits; 1e-6 to 1e6. It and the others may be arrays, one number for
      each row; there a temperature may be 0, for the most likely token.
    top_k: only the k most likely tokens (0: all).
    top_p: only the fewest most likely tokens with this probability together, after top_k (1: all).
    min_p: only tokens at least so likely as this part of the most likely one, after top_p (0: all).
  """

  temperature: Any = 1.0
  top_k: Any = 0
  top_p: Any = 1.0
  min_p: Any = 0.0

  def __post_init__(self) -> None:
    rule = Sampling(self.temperature, self.top_k, self.top_p, self.min_p)
    struct.assign(self, **vars(rule))

  @property
  def drafter(self) -> Drafter:
    return NoDraft()

  @property
  def rule(self) -> Rule:
    return Sampling(self.temperature, self.top_k, self.top_p, self.min_p)
