"""Taps: the states of a model's layers that drafts read, in decoding and in training.

Tap k is the residual stream after k decoder layers: 0 is what enters the first layer (embeddings, with positions where
the model adds them there), L what leaves the last, before any final norm. So tap k is what enters layer k, counted from
0, as in Hugging Face's `hidden_states[k]`; but for k = L, where theirs is normed.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from fastdec import struct
from fastdec.errors import UserError


@struct.pytree
class Features:
  """What a draft learns from: states of packed batches, all positions at once, as decoding brings them one by one."""

  hidden: Float[Array, 'b t d']  # whose `unembed` predicts batch['target']
  taps: tuple[Float[Array, 'b t _'], ...]  # in the order asked for
  source: Float[Array, 'b s e'] | None  # the encoder's, as in `source(memory).hidden`; None without an encoder


def check_taps(taps: Any, layers: int) -> None:
  """Raises UserError for what is no tuple of different layers among 0, ..., `layers`."""
  allowed = f'numbers from 0 (what enters the first layer) to {layers} (what leaves the last)'
  if not isinstance(taps, tuple | list):
    raise UserError(f'taps={taps!r} is not possible: give a tuple of {allowed}')
  for k in taps:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 0 <= k <= layers:
      raise UserError(f'taps={taps} ask for layer {k!r}, which is not there: give {allowed}')
  for k in taps:
    if list(taps).count(k) > 1:
      raise UserError(
        f'taps={taps} name layer {k} more than once: give different ones; on a shallow model, where a rule such as (2,'
        f' L // 2, L - 3) coincides, set them explicitly, as {allowed}'
      )


def apply_with(model: Any, taps: tuple[int, ...]) -> Callable[..., Any]:
  """The model's `apply`, asked for these taps; as it is where there are none.

  Raises:
    UserError: there are some, and the model's `apply` takes no `taps`.
  """
  if not taps:
    return model.apply
  takes = inspect.signature(model.apply).parameters.values()
  if not any(one.name == 'taps' or one.kind is one.VAR_KEYWORD for one in takes):
    raise UserError(
      f'{type(model).__name__} gives no states of its layers, and taps={taps} ask for them: let its `apply` take'
      ' taps=() and return them, or take a draft that reads none'
    )
  return functools.partial(model.apply, taps=taps)
