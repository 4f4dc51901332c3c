"""Batches of prompts to tune on: all have one width, so each candidate compiles one program."""

import operator
from collections.abc import Iterable, Sized
from typing import Any, NamedTuple

import jax
import numpy as np

from fastdec.decoding.inputs import make_prompt, make_row_keys, pad_ids, read_rows
from fastdec.decoding.sizes import PROMPTS, choose_widths
from fastdec.errors import UserError
from fastdec.models.api import Model, source_pad, source_words

MOST = 32  # batches; with more of them, each would be visited too rarely for a median
WIDEST = 0.9  # share of prompts that must fit into the common width; longer ones are left out


class Batch(NamedTuple):
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
  # Pad texts to their common width; pictures have one shape already.
  lengths = keys = None
  if model.start_id is None or model.fixed_length is None:
    prompts = _read_texts(model, inputs)
    padded, _ = pad_ids('inputs', prompts, source_words(model), source_pad(model))
  else:
    prompts = _leave_out_repeats(np.asarray(inputs))
    padded = np.stack(prompts)
  if model.start_id is None:
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
  if key is not None:
    keys = make_row_keys(key, len(prompts))

  order = np.random.default_rng(0).permutation(len(prompts))
  batches = []
  for chosen in np.resize(order, (max(len(order) // rows, 1), rows))[:MOST]:
    taken = jax.tree.map(operator.itemgetter(chosen), (padded, lengths, keys))
    batches.append(Batch(*taken))
  return batches


def _read_texts(model: Model, inputs: Any) -> list[np.ndarray]:
  """Returns the different texts, except the few long ones that would widen all the padding."""
  rows = []
  if not isinstance(inputs, Sized) or len(inputs):
    rows = read_rows(model, make_prompt(model, inputs, None, None))
  prompts = _leave_out_repeats(rows)
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
