"""The null drafter: nothing below the root. With the exact rule the loop is greedy decoding."""

from typing import Any

from jaxtyping import Array, Int

from fastdec import struct
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Step
from fastdec.decoding.sampling import Sampling, check_sampling
from fastdec.decoding.strategy import LoopStrategy
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.struct import Bound


@struct.pytree
class NoDraft:
  """Drafter that drafts nothing: the root is the only node."""

  nodes = 1

  def init(self, target: Bound, prefill: Prefill) -> tuple[()]:
    return ()

  def propose(
    self, target: Bound, state: tuple[()], root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, tuple[()]]:
    return Draft(root[:, None], Topology.chain(1)), state

  def observe(self, target: Bound, state: tuple[()], step: Step) -> tuple[()]:
    return state


class OneTokenACall(LoopStrategy):
  """Common part of `Greedy` and `Sample`, each of which becomes the other by `with_sampling`."""

  @property
  def drafter(self) -> Drafter:
    return NoDraft()

  def with_sampling(self, sampling: Sampling | None) -> Any:
    return Greedy() if sampling is None else Sample(sampling=sampling)


@struct.pytree
class Greedy(OneTokenACall):
  """Decoding of the most likely token, one a call."""


@struct.pytree
class Sample(OneTokenACall):
  """Decoding of tokens drawn from the model's distribution, one a call; `decode` needs a key.

  Args:
    sampling: how tokens are drawn; or its settings, as `Sample(temperature=0.8, top_k=40)`.

  Raises:
    UserError: a setting is out of range, or the temperature is 0.
  """

  sampling: Sampling | None

  def __init__(self, *values: Any, sampling: Sampling | None = None, **settings: Any) -> None:
    if sampling is None:
      sampling = Sampling(*values, **settings)
    elif values or settings:
      raise UserError('Sample needs sampling= or the settings, but both are given: give one')
    drawn = check_sampling(sampling)
    if drawn is None:
      raise UserError('temperature=0 is not possible: give 1e-6 to 1e6, or decode by Greedy()')
    struct.assign(self, sampling=drawn)
