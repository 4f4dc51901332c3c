"""Batches of prompts to tune on: padded to one width, so each candidate compiles one program."""

import dataclasses
from typing import Any

import numpy as np

from fastdec.decoding.inputs import row_keys, unpadded_rows, width_of
from fastdec.errors import UserError
from fastdec.models.api import Model, source_pad, source_words

MOST = 32  # batches; more would have too few visits each for a median
WIDEST = 0.9  # share of prompts that must fit into the common width; longer ones are left out


@dataclasses.dataclass(frozen=True)
class Batch:
  """Prompts padded to one shape, and a key for each row if tokens are drawn."""

  inputs: np.ndarray
  lengths: np.ndarray | None
  keys: Any


def batches_of(model: Model, inputs: Any, rows: int, key: Any) -> list[Batch]:
  """Makes full batches of different prompts, in an order that is random but always the same.

  Args:
    model, inputs, rows: as of `tune`.
    key: for candidates that draw tokens; None if none does.
  """
  prompts = _different(model, inputs)
  width = max(map(len, prompts))
  keys = None if key is None else row_keys(key, len(prompts))
  order = np.random.default_rng(0).permutation(len(prompts))
  count = max(len(order) // rows, 1)
  batches = []
  for chosen in np.resize(order, (count, rows))[:MOST]:
    batch = [prompts[i] for i in chosen]
    lengths = None
    if model.start_id is None:
      lengths = np.array([len(prompt) for prompt in batch], np.int32)
    padded = _padded(batch, width, source_pad(model))
    batches.append(Batch(padded, lengths, None if keys is None else keys[chosen]))
  return batches


def _different(model: Model, inputs: Any) -> list[np.ndarray]:
  """Returns each prompt once, without the few long ones for which all would be padded wider."""
  is_text = model.start_id is None or model.fixed_length is None
  rows = unpadded_rows('inputs', inputs, source_words(model)) if is_text else np.asarray(inputs)
  prompts = list({row.tobytes(): row for row in rows}.values())
  if not prompts:
    raise UserError('there are no inputs to decode: give prompts such as will be decoded')
  if not is_text:
    return prompts
  lengths = np.array([len(prompt) for prompt in prompts])
  if not lengths.all():
    raise UserError('a prompt is empty: give at least one token')
  last_that_fits = int(np.ceil(WIDEST * len(lengths))) - 1
  width = np.sort(width_of(lengths))[last_that_fits]
  return [prompt for prompt in prompts if len(prompt) <= width]


def _padded(prompts: list[np.ndarray], width: int, pad_id: int) -> np.ndarray:
  """Pads prompts to one array; pictures have one shape as they are."""
  if prompts[0].ndim > 1:
    return np.stack(prompts)
  rows = [np.pad(row, (0, width - len(row)), constant_values=pad_id) for row in prompts]
  return np.stack(rows)
