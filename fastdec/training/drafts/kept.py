"""States of a frozen target, computed once for all texts and kept in a stage's folder.

A draft reads its texts several times, and the target says the same each time: computing that again
would cost more than the draft's own training.

  numbers = number_tokens(tokens)
  keep_states(folder, target=target, taps=taps, numbers=numbers,
              batches=PackedSource(tokens, rows, length, 0, numbers))
  kept = open_states(folder)
  batches = PackedSource(tokens, rows, length, seed, kept)
  lesson = read_batch(batch, target, taps)     # with a step's states

The folder is a stage, whose inputs are the content of the texts and of the target, the taps and the
sizes of the batches. A file has a row for each token: the hidden state and the taps, in bfloat16.
"""

import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fastdec.files import read_json, write_json
from fastdec.heads.anchors import anchors_of
from fastdec.heads.lesson import Lesson
from fastdec.models.taps import Features, Taps
from fastdec.struct import Bound
from fastdec.training.losses import Batch
from fastdec.training.means import own_rows, whole_of
from fastdec.training.progress import Progress

Kept = Mapping[str, np.ndarray]  # by side, of each of its tokens
SIDES = 'target', 'source'
MOST = 0.5  # of the free disk
SHOWN = 10  # batches from line to line
RECORD = 'progress.json'  # sizes of the files, and the number of batches that they have


def number_tokens(tokens: Any) -> Kept:
  """Returns the number of each token of a side of `TokenPairs`, by which batches name it."""
  return {side: np.arange(len(getattr(tokens, side).tokens)) for side in SIDES}


def keep_states(
  folder: pathlib.Path, *, target: Bound, taps: Taps, batches: Any, numbers: Kept
) -> None:
  """Makes the stage of a target's states, or continues it.

  If they would take more than half of the free disk, the folder gets none.

  Args:
    folder: of the stage.
    target: the model and its parameters.
    taps: the layers whose states are kept, besides the hidden state.
    batches: all texts, `PackedSource` with `numbers`.
    numbers: of their tokens (`number_tokens`).
  """

  @jax.jit
  def read(params: Any, batch: Batch) -> dict[str, Array]:
    seen = target.module.features(params, batch, taps)
    states = {'target': jnp.concatenate([seen.hidden, *seen.taps], axis=-1)}
    if seen.source is not None:
      states['source'] = seen.source
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), states)

  # Make the files, as long as they will be.
  record = folder / RECORD
  if not record.is_file():
    shapes = jax.eval_shape(read, target.params, batches[0])
    sizes, size = {}, 0
    for side, shape in shapes.items():
      tokens, width = len(numbers[side]), shape.shape[-1]
      sizes[side] = tokens, width
      size += 2 * tokens * width  # of bfloat16
    if size > MOST * shutil.disk_usage(folder).free:
      sizes = {}
    for side, shape in sizes.items():
      np.memmap(folder / f'{side}.bfloat16', jnp.bfloat16, 'w+', shape=shape).flush()
    write_json(record, {'sizes': sizes, 'batches': 0})

  # Compute batch after batch; each place of a batch knows its token's number.
  files, progress = _map_files(folder, 'r+'), read_json(record)
  if not files:
    return
  total, done = batches.batches_per_epoch, progress['batches']
  with Progress(total, 'part', done) as bar:
    for index in range(done, total):
      batch = batches[index]
      plain = {name: value for name, value in batch.items() if not name.endswith('_kept')}
      states = read(target.params, plain)
      for side, file in files.items():
        is_real = batch[f'{side}_segment'] != 0
        file[batch[f'{side}_kept'][is_real]] = np.asarray(states[side])[is_real]
        file.flush()
      write_json(record, progress | {'batches': index + 1})
      bar.add()
      if not (index + 1 - done) % SHOWN or index + 1 == total:
        bar.show("the model's states")


def open_states(folder: pathlib.Path) -> Kept | None:
  """Returns the states in a stage's folder, mapped from its files; None if they were too large."""
  return _map_files(folder, 'r') or None


def _map_files(folder: pathlib.Path, mode: Any) -> dict[str, np.memmap]:
  """Maps the files of all sides."""
  files = {}
  for side, shape in read_json(folder / RECORD)['sizes'].items():
    file = folder / f'{side}.bfloat16'
    files[side] = np.memmap(file, jnp.bfloat16, mode, shape=tuple(shape))
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
  if key is None:
    key = jax.random.key(0)
  drawn = anchors_of(whole_of(batch), anchors, key)
  chosen = own_rows(batch, drawn)
  if 'target_kept' not in batch:
    features = target.module.features(target.params, batch, taps)
    return Lesson(target, batch, features, chosen, drawn)
  states = jnp.asarray(batch['target_kept']).astype(jnp.float32)
  hidden, *tapped = jnp.split(states, len(taps) + 1, axis=-1)
  source = batch.get('source_kept')
  if source is not None:
    source = jnp.asarray(source).astype(jnp.float32)
  return Lesson(target, batch, Features(hidden, tuple(tapped), source), chosen, drawn)
