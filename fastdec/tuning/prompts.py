"""Batches of prompts to tune on: all of one padded width, so that each candidate is one program."""

import dataclasses
from typing import Any

import numpy as np

from fastdec.decoding.inputs import row_keys, rows_of, width_of
from fastdec.errors import UserError
from fastdec.models.api import Model, source_pad, source_words

MOST = 32  # batches; more would be visited too seldom for a median
WIDEST = 0.9  # the share of prompts that must fit into the width to which all are padded


@dataclasses.dataclass(frozen=True)
class Batch:
  """Prompts of one padded shape, and a key a row if tokens are drawn."""

  inputs: np.ndarray
  lengths: np.ndarray | None
  keys: Any


def batches_of(model: Model, inputs: Any, rows: int, key: Any) -> list[Batch]:
  """Makes whole batches of different prompts, in a random order that is always the same.

  Args:
    model, inputs, rows: as of `tune`.
    key: for candidates that draw tokens; None: there are none.
  """
  is_text = model.start_id is None or model.fixed_length is None
  given = rows_of('inputs', inputs, source_words(model)) if is_text else np.asarray(inputs)
  prompts = list({one.tobytes(): one for one in given}.values())
  if not prompts:
    raise UserError('there are no inputs to decode: give prompts such as will be decoded')
  if is_text:
    prompts = _of_one_width(prompts)
  longest = max(map(len, prompts))
  keys = None if key is None else row_keys(key, len(prompts))
  order = np.random.default_rng(0).permutation(len(prompts))
  whole = max(len(order) // rows, 1)
  found = []
  for chosen in np.resize(order, (whole, rows))[:MOST]:
    among = [prompts[i] for i in chosen]
    lengths = np.array([len(one) for one in among], np.int32) if model.start_id is None else None
    padded = _padded(among, longest, source_pad(model))
    found.append(Batch(padded, lengths, None if keys is None else keys[chosen]))
  return found


def _of_one_width(prompts: list[np.ndarray]) -> list[np.ndarray]:
  """Leaves out the prompts, a tenth at most, for which all would be padded wider."""
  lengths = np.array([len(one) for one in prompts])
  if not lengths.all():
    raise UserError('a prompt is empty: give at least one token')
  fits = int(np.ceil(WIDEST * len(lengths))) - 1
  width = np.sort(width_of(lengths))[fits]
  return [one for one in prompts if len(one) <= width]


def _padded(prompts: list[np.ndarray], length: int, pad_id: int) -> np.ndarray:
  """Pads prompts to one array; pictures have one shape as they are."""
  if prompts[0].ndim > 1:
    return np.stack(prompts)
  return np.stack([np.pad(one, (0, length - len(one)), constant_values=pad_id) for one in prompts])
