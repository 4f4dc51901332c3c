"""What a call of the target costs by how many nodes it scores: timed in turn, without drafts."""

from collections.abc import Callable, Iterable

import jax

from fastdec.decoding.protocol import Rule
from fastdec.decoding.topology import Topology
from fastdec.evaluation.calls import Drafted, FreeDraft, texts, wide_calls
from fastdec.evaluation.wallclock import alone
from fastdec.struct import Bound
from fastdec.tuning.prompts import Batch

WIDTHS = (1, 4, 8, 16, 32, 64)
FEW, MANY = 4, 16  # calls: what both take alike, as starting the program, is not counted
REPEATS = 7


def call_seconds(
  target: Bound,
  rule: Rule,
  batch: Batch,
  max_len: int,
  nodes: Iterable[int],
  clock: Callable[[], float],
) -> dict[int, float]:
  """Seconds of a call on 1, 4, 8, ... nodes up to the most that is asked for: the least of some
  rounds."""
  most = max(nodes)
  widths = [*(width for width in WIDTHS if width < most), most]
  widest = Drafted(FreeDraft(Topology.chain(most)), rule)
  state = texts(target, widest, batch.inputs, max_len, batch.keys, 0)
  calls = {
    width: wide_calls(target, Drafted(FreeDraft(Topology.chain(width)), rule), state, width)
    for width in widths
  }
  for run in calls.values():
    jax.block_until_ready(run(1))
  least = {(width, count): float('inf') for width in widths for count in (FEW, MANY)}
  with alone():
    for _ in range(REPEATS):
      for width, count in least:
        begun = clock()
        jax.block_until_ready(calls[width](count))
        least[width, count] = min(least[width, count], clock() - begun)
  return {
    width: max(least[width, MANY] - least[width, FEW], 0.0) / (MANY - FEW) for width in widths
  }
