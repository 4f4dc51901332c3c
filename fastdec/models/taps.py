"""Taps: the states of a model's layers that drafts read, in decoding and in training.

Tap k is the residual stream after k decoder layers. Tap 0 is the input of the first layer:
embeddings, with positions if the model adds them there. Tap L is the output of the last layer,
before any final norm. So tap k is the input of layer k, counted from 0, like Hugging Face's
`hidden_states[k]`, except that their state L has passed the final norm.

Official drafts of EAGLE-3 do not name the layers that they read. Their code takes 2, L // 2 and
L - 3, and so do SpecForge, speculators and vLLM by default. `RULE` stands for these layers; it is
turned into numbers when the target is known.
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
  """States that a draft learns from: all positions of packed batches at once."""

  hidden: Float[Array, 'b t d']  # its `unembed` predicts batch['target']
  taps: tuple[Float[Array, 'b t _'], ...]  # in the order of the argument
  # the encoder's states, as in `source(memory).hidden`; None without an encoder
  source: Float[Array, 'b s e'] | None


def check_taps(taps: Any, layers: int) -> None:
  """Raises UserError unless `taps` is a tuple of different layers among 0, ..., `layers`."""
  allowed = f'numbers from 0 (the input of the first layer) to {layers} (the output of the last)'
  if not isinstance(taps, tuple | list):
    raise UserError(f'taps={taps!r} is not possible: give a tuple of {allowed}')
  for k in taps:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 0 <= k <= layers:
      raise UserError(f'taps={taps} has layer {k!r}, which does not exist: give {allowed}')
  for k in taps:
    if list(taps).count(k) > 1:
      raise UserError(
        f'taps={taps} has layer {k} more than once: give different layers. If the model is too'
        f' shallow for a rule such as (2, L // 2, L - 3), set the taps explicitly, as {allowed}'
      )


def number_taps(taps: Taps, layers: int | None) -> tuple[int, ...]:
  """Returns `taps` as numbers, for a model of `layers` layers (None: unknown).

  Raises:
    UserError: the rule needs a number of layers that is unknown, or gives the same layer twice.
  """
  rule = 'this draft names no layers, and those of its rule (2, L // 2, L - 3)'
  advice = 'set them explicitly, as load_draft(..., taps=(1, 2, 3)) does'
  by_rule = {} if layers is None else {'low': 2, 'middle': layers // 2, 'high': layers - 3}
  numbers = []
  for tap in taps:
    if isinstance(tap, str) and layers is None:
      raise UserError(f'{rule} are unknown, because the model has no value `layers`: {advice}')
    numbers.append(by_rule[tap] if isinstance(tap, str) else tap)
  if tuple(numbers) != taps and sorted(set(numbers)) != numbers:
    raise UserError(
      f'{rule} coincide on a target of {layers}: {advice}, with numbers from 0 to {layers}'
    )
  return tuple(numbers)


def apply_with(model: Any, taps: Taps) -> Callable[..., Any]:
  """Returns the model's `apply` with these taps; without taps the plain `apply`.

  Raises:
    UserError: the model's `apply` has no argument `taps`; see also `number_taps`.
  """
  if not taps:
    return model.apply
  parameters = inspect.signature(model.apply).parameters.values()
  if not any(each.name == 'taps' or each.kind is each.VAR_KEYWORD for each in parameters):
    raise UserError(
      f"{type(model).__name__} does not return its layers' states, which taps={taps} would read:"
      ' let its `apply` take taps=() and return them, or use a draft that reads none'
    )
  return functools.partial(model.apply, taps=number_taps(taps, getattr(model, 'layers', None)))
