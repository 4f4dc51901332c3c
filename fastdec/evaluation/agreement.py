"""Agreement with plain greedy decoding: outputs part at near ties, or by mistake.

A call on several tokens rounds differently from calls on one (about 1e-5 in float32 logits). So of
two tokens with nearly equal logits either may come out, and the outputs differ from there on. Any
other difference is a mistake.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from fastdec.decoding.protocol import Decoded
from fastdec.decoding.score import score
from fastdec.errors import UserError

NEAR_TIE = 1e-4  # between the logits of two tokens
# half precision has no near ties to speak of: there, agreement is only counted
EXACT = ('float32', 'float64')


def partings(
  target: tuple[Any, Any], inputs: Any, ours: Decoded, plain: Decoded
) -> Float[np.ndarray, ' n']:
  """Finds, for each row that differs, the gap between the two tokens' logits where the rows part.

    plain  a man in red <end>
    ours   a man in blue ...      | logit('red') - logit('blue') | after "a man in"

  The gap is infinite where one row has ended and the other has not, and where a token is never
  emitted.

  Args:
    target: (model, params).
    inputs: as in `decode`, prompts of one length.
    ours, plain: what was decoded from them.
  """
  differ = np.asarray(ours.tokens) != np.asarray(plain.tokens)
  rows = np.flatnonzero(differ.any(axis=1))
  if not rows.size:
    return np.zeros(0)
  place = differ[rows].argmax(axis=1)
  # All rows are scored, however few differ: one shape is compiled.
  first, second = (
    np.asarray(score(*target, inputs, one.tokens).tokens)[rows, place] for one in (ours, plain)
  )
  has_ended = place >= np.minimum(ours.lengths, plain.lengths)[rows]
  return np.where(
    has_ended | np.isinf(first) | np.isinf(second), np.inf, np.abs(first - second)
  ).astype(np.float64)


def check_partings(gaps: Float[np.ndarray, ' n'], outputs: int, dtype: str) -> None:
  """Raises UserError where a parting is no near tie; half precision is not checked.

  Args:
    gaps: of `partings`.
    outputs: of how many.
    dtype: that the target computes in.
  """
  wrong = int((~(gaps < NEAR_TIE)).sum())
  if wrong and dtype in EXACT:
    raise UserError(
      f"{wrong} of {outputs} outputs part from plain greedy decoding's where one token leads by up"
      f' to {gaps.max():.2g}'
      f' in logits, and rounding explains less than {NEAR_TIE:g}: report it, or on an accelerator'
      ' set'
      ' JAX_DEFAULT_MATMUL_PRECISION=highest and run the same command again'
    )
