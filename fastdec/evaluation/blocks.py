"""Accepted block sizes, counted as in Stern et al. 2018: tokens emitted per call of the target.

The first token of an output comes from the prompt and not from a call, so greedy decoding has mean
block size 1.
"""

import dataclasses

import numpy as np
from jaxtyping import Array, Int


@dataclasses.dataclass(frozen=True)
class Blocks:
  """Tokens that the target's calls emitted over a set of outputs, sentences or images."""

  outputs: int
  histogram: tuple[int, ...]  # entry i: number of calls that emitted i + 1 tokens

  @property
  def calls(self) -> int:
    """Calls of the target, without the prompt's."""
    return sum(self.histogram)

  @property
  def mean_block_size(self) -> float:
    """Tokens per call; nan if no output needed a call."""
    if not self.calls:
      return float('nan')
    tokens = sum(size * count for size, count in enumerate(self.histogram, start=1))
    return tokens / self.calls

  @property
  def calls_per_output(self) -> float:
    """Calls of the target per output; nan without outputs."""
    if not self.outputs:
      return float('nan')
    return self.calls / self.outputs


def count_blocks(
  lengths: Int[Array | np.ndarray, ' b'], block_sizes: Int[Array | np.ndarray, 'b t']
) -> Blocks:
  """Counts the blocks of a `fastdec.decode`.

  "Once | upon a | time , in": length 6, block sizes 2, 3, 0, ...: two calls, mean block size 2.5.

  Args:
    lengths: tokens of each output, end token included.
    block_sizes: tokens emitted by each call, 0 where there was none.

  Raises:
    ValueError: a length is not 1 + the sum of its block sizes.
  """
  lengths_b, sizes_bt = np.asarray(lengths), np.asarray(block_sizes)
  wrong = np.flatnonzero(lengths_b != 1 + sizes_bt.sum(axis=1))
  if wrong.size:
    row = wrong[0]
    emitted = f'1 + {sizes_bt[row].sum()} tokens were emitted'
    raise ValueError(f'row {row} has length {lengths_b[row]}, but {emitted}')
  return Blocks(
    len(lengths_b), tuple(np.bincount(sizes_bt[sizes_bt > 0], minlength=1)[1:].tolist())
  )
