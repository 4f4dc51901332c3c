"""Taps: the states of a model's layers that drafts read, in decoding and in training.

Tap k is the residual stream after k decoder layers. Tap 0 is the input of the first layer:
embeddings, with positions if the model adds them there. Tap L is the output of the last layer,
before any final norm. So tap k is the input of layer k, counted from 0, as in Hugging Face's
`hidden_states[k]`. Only their state L is normed.

Official drafts of EAGLE-3 do not name the layers that they read. Their code takes 2, L // 2 and
L - 3, and so do SpecForge, speculators and vLLM by default. `RULE` means these; it becomes numbers
once the target is known.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from jaxtyping import Array, Float

from fastdec import struct
from fastdec.errors import UserError

Tap = int | Literal['low', 'middle', 'high']
Taps = tuple[Tap, ...]
RULE: Taps = ('low', 'middle', 'high')


@struct.pytree
class Features:
  """States that a draft learns from, of packed batches, all positions at once."""

  hidden: Float[Array, 'b t d']  # its `unembed` predicts batch['target']
  taps: tuple[Float[Array, 'b t _'], ...]  # in the order of the argument
  # the encoder's states, as `source(memory).hidden`; None without an encoder
  source: Float[Array, 'b s e'] | None


def check_taps(taps: Any, layers: int) -> None:
  """Raises UserError unless `taps` is a tuple of different layers among 0, ..., `layers`."""
  allowed = f'numbers from 0 (what enters the first layer) to {layers} (what leaves the last)'
  if not isinstance(taps, tuple | list):
    raise UserError(f'taps={taps!r} is not possible: give a tuple of {allowed}')
  for k in taps:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 0 <= k <= layers:
      raise UserError(f'taps={taps} ask for layer {k!r}, which is not there: give {allowed}')
  for k in taps:
    if list(taps).count(k) > 1:
      raise UserError(
        f'taps={taps} name layer {k} more than once: give different ones; on a shallow model, where'
        f' a rule such as (2, L // 2, L - 3) coincides, set them explicitly, as {allowed}'
      )


def numbered(taps: Taps, layers: int | None) -> tuple[int, ...]:
  """Returns `taps` as numbers, for a model of `layers` layers (None: unknown).

  Raises:
    UserError: layers of the rule coincide, or cannot be known.
  """
  rule = 'this draft names no layers, and those of its rule (2, L // 2, L - 3)'
  advice = 'set them explicitly, as load_draft(..., taps=(1, 2, 3)) does'
  by_rule = {} if layers is None else {'low': 2, 'middle': layers // 2, 'high': layers - 3}
  numbers = []
  for tap in taps:
    if isinstance(tap, str) and layers is None:
      raise UserError(
        f'{rule} are not known, since the model does not say how many `layers` it has: {advice}'
      )
    numbers.append(by_rule[tap] if isinstance(tap, str) else tap)
  if tuple(numbers) != taps and sorted(set(numbers)) != numbers:
    raise UserError(
      f'{rule} coincide on a target of {layers}: {advice}, by numbers from 0 to {layers}'
    )
  return tuple(numbers)


def apply_with(model: Any, taps: Taps) -> Callable[..., Any]:
  """Returns the model's `apply` with these taps, if there are any.

  Raises:
    UserError: the model's `apply` takes no `taps`, or the layers of a rule coincide.
  """
  if not taps:
    return model.apply
  parameters = inspect.signature(model.apply).parameters.values()
  if not any(each.name == 'taps' or each.kind is each.VAR_KEYWORD for each in parameters):
    raise UserError(
      f'{type(model).__name__} gives no states of its layers, and taps={taps} ask for them: let its'
      ' `apply` take taps=() and return them, or take a draft that reads none'
    )
  return functools.partial(model.apply, taps=numbered(taps, getattr(model, 'layers', None)))
