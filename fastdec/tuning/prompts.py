"""Batches of prompts to tune on: all have one width, so each candidate compiles one program."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from fastdec.decoding.inputs import make_row_keys, split_rows
from fastdec.decoding.sizes import PROMPTS, choose_widths
from fastdec.errors import UserError
from fastdec.models.api import Model, source_pad, source_words

MOST = 32  # batches; with more of them, each would be visited too rarely for a median
WIDEST = 0.9  # share of prompts that must fit into the common width; longer ones are left out


@dataclasses.dataclass(frozen=True)
class Batch:
  """Prompts padded to one shape, and a key for each row if tokens are drawn."""

  inputs: np.ndarray
  lengths: np.ndarray | None
  keys: Any


def make_batches(model: Model, inputs: Any, rows: int, key: Any) -> list[Batch]:
  """Makes full batches of different prompts, in an order that is random but always the same.

  Args:
    model, inputs, rows: as in `tune`.
    key: for candidates that draw tokens; None if none does.

  Raises:
    UserError: no prompts, or an empty one.
  """
  is_text = model.start_id is None or model.fixed_length is None
  if is_text:
    prompts = _read_texts(model, inputs)
  else:
    prompts = _leave_out_repeats(np.asarray(inputs))
  width, pad_id = max(map(len, prompts)), source_pad(model)
  order = np.random.default_rng(0).permutation(len(prompts))
  count = max(len(order) // rows, 1)
  all_keys: Any = None
  if key is not None:
    all_keys = make_row_keys(key, len(prompts))
  batches = []
  for chosen in np.resize(order, (count, rows))[:MOST]:
    # Pad texts to the common width; pictures have one shape already.
    padded, sizes = [], []
    for i in chosen:
      pad = [(0, width - len(prompts[i]))] + [(0, 0)] * (prompts[i].ndim - 1)
      padded.append(np.pad(prompts[i], pad, constant_values=pad_id))
      sizes.append(len(prompts[i]))
    lengths = keys = None
    if model.start_id is None:
      lengths = np.array(sizes, np.int32)
    if all_keys is not None:
      keys = all_keys[chosen]
    batches.append(Batch(np.stack(padded), lengths, keys))
  return batches


def _read_texts(model: Model, inputs: Any) -> list[np.ndarray]:
  """Returns the different texts, except the few long ones that would widen all the padding."""
  prompts = _leave_out_repeats(split_rows('inputs', inputs, source_words(model)))
  lengths = np.array([len(prompt) for prompt in prompts])
  if not lengths.all():
    raise UserError('a prompt is empty: give at least one token')
  last_that_fits = int(np.ceil(WIDEST * len(lengths))) - 1
  width = np.sort(choose_widths(PROMPTS, lengths))[last_that_fits]
  return [prompt for prompt in prompts if len(prompt) <= width]


def _leave_out_repeats(rows: Iterable[np.ndarray]) -> list[np.ndarray]:
  """Returns each row once, in the order of the first ones."""
  prompts = list({row.tobytes(): row for row in rows}.values())
  if not prompts:
    raise UserError('tune needs inputs: give prompts like those to decode later')
  return prompts
