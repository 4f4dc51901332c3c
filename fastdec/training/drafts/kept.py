"""Features of a frozen target, computed once for all texts and kept in a file.

A draft reads its texts several times, and the target says the same each time: computing that again
would cost more than the draft's own training.

  numbers = numbers_of(tokens)
  kept = keep(target, taps, PackedSource(tokens, rows, length, 0, numbers), numbers, folder)
  batches = PackedSource(tokens, rows, length, seed, kept)
  lesson = read_batch(batch, target, taps)     # with a step's features

A file has a row for each token: the hidden state and the taps, in bfloat16. What is computed is
counted beside it, so it is not computed again after a stop.
"""

import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fastdec.files import parse_json, write_json
from fastdec.heads.anchors import anchors_of
from fastdec.heads.lesson import Lesson
from fastdec.models.taps import Features, Taps
from fastdec.struct import Bound
from fastdec.training.losses import Batch

Kept = Mapping[str, np.ndarray]  # by side, of each of its tokens
SIDES = 'target', 'source'
MOST = 0.5  # of the free disk


def numbers_of(tokens: Any) -> Kept:
  """Returns the number of each token of a side of `TokenPairs`, by which batches name it."""
  return {side: np.arange(len(getattr(tokens, side).tokens)) for side in SIDES}


def keep(
  target: Bound, taps: Taps, batches: Any, numbers: Kept, folder: pathlib.Path
) -> Kept | None:
  """Computes the features of all texts, or goes on with it, and returns them by side.

  Args:
    target: the model and its parameters.
    taps: the layers whose states are kept, beside the hidden state.
    batches: all texts, `PackedSource` with `numbers`.
    numbers: of their tokens (`numbers_of`).
    folder: gets the files.

  Returns:
    Arrays mapped from the files, for `PackedSource`; None: they would take more than half of the
    free disk.
  """

  @jax.jit
  def features(params: Any, batch: Batch) -> dict[str, Array]:
    seen = target.module.features(params, batch, taps)
    states = {'target': jnp.concatenate([seen.hidden, *seen.taps], axis=-1)}
    if seen.source is not None:
      states['source'] = seen.source
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), states)

  # Map the files, as long as they will be.
  folder.mkdir(parents=True, exist_ok=True)
  shapes = jax.eval_shape(features, target.params, batches[0])
  sizes = {side: (len(numbers[side]), shape.shape[-1]) for side, shape in shapes.items()}
  progress, record = folder / 'done.json', {'sizes': json.loads(json.dumps(sizes)), 'batches': 0}
  if progress.is_file():
    record = parse_json(progress.read_text())
  elif sum(2 * n * d for n, d in sizes.values()) > MOST * shutil.disk_usage(folder).free:
    return None
  mode: Any = 'r+' if progress.is_file() else 'w+'
  files = {}
  for side, size in sizes.items():
    files[side] = np.memmap(folder / f'{side}.bfloat16', jnp.bfloat16, mode, shape=size)
  write_json(progress, record)

  # Compute batch after batch; each place of a batch knows its token's number.
  for index in range(record['batches'], batches.batches_per_epoch):
    batch = batches[index]
    states = features(target.params, {k: v for k, v in batch.items() if not k.endswith('_kept')})
    for side, file in files.items():
      is_real = batch[f'{side}_segment'] != 0
      file[batch[f'{side}_kept'][is_real]] = np.asarray(states[side])[is_real]
      file.flush()
    write_json(progress, record | {'batches': index + 1})
  return files


def read_batch(
  batch: Batch, target: Bound, taps: Taps, anchors: int = 0, key: Array | None = None
) -> Lesson:
  """Returns what a draft learns from a batch: its features are kept ones, or are computed now.

  Args:
    batch: packed sentences.
    target: the model and its parameters.
    taps: the layers whose states the draft reads.
    anchors: number of places in each row after which it guesses; 0: all.
    key: draws them (None: always the same ones).
  """
  chosen = anchors_of(batch, anchors, jax.random.key(0) if key is None else key)
  if 'target_kept' not in batch:
    return Lesson(target, batch, target.module.features(target.params, batch, taps), chosen)
  states = jnp.asarray(batch['target_kept']).astype(jnp.float32)
  hidden, *tapped = jnp.split(states, len(taps) + 1, axis=-1)
  source = batch.get('source_kept')
  if source is not None:
    source = jnp.asarray(source).astype(jnp.float32)
  return Lesson(target, batch, Features(hidden, tuple(tapped), source), chosen)
