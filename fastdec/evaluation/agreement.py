"""Agreement with plain greedy decoding: outputs differ from a near tie on, or by a mistake.

A call on several tokens rounds differently from calls on one (about 1e-5 in float32 logits). If two
tokens have nearly equal logits, either may be written, and the outputs differ from there on. Any
other difference is a mistake.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from fastdec.decoding.protocol import Decoded
from fastdec.decoding.score import score
from fastdec.errors import UserError

NEAR_TIE = 1e-4  # between the logits of two tokens
# Half precision rounds too coarsely to tell near ties from mistakes, so only these are checked.
EXACT = ('float32', 'float64')


def find_gaps(
  target: tuple[Any, Any], inputs: Any, ours: Decoded, plain: Decoded
) -> Float[np.ndarray, ' n']:
  """Finds the gap between the two tokens' logits at the first difference of each row that differs.

    plain  a man in red <end>
    ours   a man in blue ...      | logit('red') - logit('blue') | after "a man in"

  The gap is infinite if only one of the rows has ended, or if one of the tokens is never emitted.

  Args:
    target: (model, params).
    inputs: as in `decode`, prompts of one length.
    ours, plain: the outputs to compare.
  """
  differ = np.asarray(ours.tokens) != np.asarray(plain.tokens)
  rows = np.flatnonzero(differ.any(axis=1))
  if not rows.size:
    return np.zeros(0)
  place = differ[rows].argmax(axis=1)

  def logits(output: Decoded) -> np.ndarray:
    # All rows are scored, even if few differ, so that only one shape is compiled.
    return np.asarray(score(*target, inputs, output.tokens).tokens)[rows, place]

  first, second = logits(ours), logits(plain)
  has_ended = place >= np.minimum(ours.lengths, plain.lengths)[rows]
  return np.where(
    has_ended | np.isinf(first) | np.isinf(second), np.inf, np.abs(first - second)
  ).astype(np.float64)


def check_gaps(gaps: Float[np.ndarray, ' n'], outputs: int, dtype: str) -> None:
  """Raises UserError if a difference does not begin at a near tie; half precision is not checked.

  Args:
    gaps: from `find_gaps`.
    outputs: number of outputs compared.
    dtype: type that the target computes in.
  """
  wrong = int((~(gaps < NEAR_TIE)).sum())
  if wrong and dtype in EXACT:
    raise UserError(
      f"{wrong} of {outputs} outputs differ from plain greedy decoding's at a token that leads by"
      f' up to {gaps.max():.2g} in logits, but rounding explains below {NEAR_TIE:g}: report it, or'
      ' on an accelerator set JAX_DEFAULT_MATMUL_PRECISION=highest and run the same command again'
    )
