"""Checkpoints of a training run: parameters, optimizer, key and data position, whole or absent.

  workdir/config.json            the settings of the run
  workdir/checkpoints/<step>/    params, rest (optimizer, key), data.json (position),
                                 jax.json (what decides random numbers), sums.json (of every file)

Orbax writes the arrays, and checks little when it reads them. So a checkpoint is filled under a
temporary name, sums included, then renamed. It is compared with its sums before it is read. Saving
blocks, because a step reuses the memory being saved. Several processes share one workdir: each
writes its parts of the arrays, and the first does everything else. A checkpoint fits any number of
processes, on any mesh.
"""

import contextlib
import dataclasses
import logging
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from fastdec import extras
from fastdec.errors import UserError
from fastdec.files import read_json, whole_folder, write_json
from fastdec.models.api import Params
from fastdec.training.processes import agreed, is_first, wait
from fastdec.training.state import TrainState

with extras.explained():
  import grain
  import orbax.checkpoint as ocp

PathLike = str | os.PathLike[str]
SUMS = 'sums.json'
JAX = 'jax.json'


class Checkpoints:
  """The checkpoints of one workdir.

  Args:
    workdir: the folder of the run.
    kept: the steps that are averaged at the end. Their checkpoints stay, and so do the newest two:
      if the newest is damaged, a run continues from the second newest.
  """

  def __init__(self, workdir: PathLike, kept: Sequence[int]) -> None:
    self.folder, self._kept = _folder(workdir), kept

  def save(self, state: TrainState, data: grain.DatasetIterator) -> None:
    """Writes the state after step `state.step`; returns when it is on disk.

    Raises:
      UserError: the checkpoint cannot be written. No part of it remains.
    """
    step = int(state.step)
    path = self.folder / str(step)
    partial = path.with_name(f'{step}.partial')
    with whole_folder(path) if is_first() else contextlib.nullcontext():
      # The first process has made the folder; each process writes its own parts of the arrays.
      wait(f'{partial} is there')
      _save_arrays(partial / 'params', state.params)
      _save_arrays(partial / 'rest', _rest(state))
      if is_first():
        write_json(partial / 'data.json', data.get_state())
        write_json(partial / JAX, _jax_settings(state.key))
        write_json(partial / SUMS, _sums(partial))
    if is_first():
      self._remove_others(step)
    wait(f'{path} is there')

  def restore(self, fresh: TrainState, data: grain.DatasetIterator) -> TrainState:
    """Reads the newest undamaged state, and sets `data` to its position.

    Returns `fresh` if there is no checkpoint. Prints a line for each newer, damaged checkpoint;
    these stay until the run saves again.

    Raises:
      UserError: the parameters or the optimizer have other names, shapes or types, random numbers
        are drawn in another way, or every checkpoint is damaged.
    """
    # Only the first process checks a checkpoint; all processes then read that one.
    damages = {}
    for step in reversed(_steps(self.folder)):
      folder = self.folder / str(step)
      damage = _damage(folder) if is_first() else None
      if agreed(damage is None):
        if is_first():
          for other, words in damages.items():
            print(
              f'checkpoint {other} is damaged ({words}): continuing from step {step}', flush=True
            )
        return _read(folder, fresh, data)
      damages[step] = damage
    if damages:
      step, words = next(iter(damages.items()))
      raise UserError(
        f'no checkpoint in {self.folder} can be read (steps {", ".join(map(str, damages))}; of'
        f' {step}: {words}): put back a good copy, or choose another workdir to start again'
      )
    return fresh

  def _remove_others(self, step: int) -> None:
    """Removes the checkpoints that are not kept, and those after this step, which were damaged.

    It also removes leftovers of a process that was killed while saving.
    """
    steps = _steps(self.folder)
    newest = [other for other in steps if other <= step][-2:]
    stay = {*newest, *(other for other in self._kept if other <= step)}
    for other in steps:
      if other not in stay:
        shutil.rmtree(self.folder / str(other), ignore_errors=True)
    for folder in self.folder.glob('*.partial'):
      shutil.rmtree(folder, ignore_errors=True)


def average_checkpoints(workdir: PathLike, steps: Sequence[int]) -> Params:
  """Averages the parameters of the checkpoints after these steps, as NumPy arrays.

  Checkpoints that were removed are left out.

  Raises:
    UserError: all of them are missing, or one of them is damaged.
  """
  folder = _folder(workdir)
  averaged = [step for step in _steps(folder) if step in steps]
  if not averaged:
    raise UserError(
      f'{folder} has no checkpoint after any of the steps {", ".join(map(str, steps))}: train first'
    )
  total = _read_params(folder / str(averaged[0]))
  for step in averaged[1:]:
    total = jax.tree.map(np.add, total, _read_params(folder / str(step)))
  return jax.tree.map(lambda x: (x / len(averaged)).astype(np.float32), total)


def drop_checkpoints(workdir: PathLike) -> None:
  """Removes the checkpoints of a run whose result is written: they are several models."""
  shutil.rmtree(_folder(workdir), ignore_errors=True)


def _steps(folder: Path) -> list[int]:
  """Lists the steps that have checkpoints, in order."""
  try:
    return sorted(int(name) for name in os.listdir(folder) if name.isdecimal())
  except FileNotFoundError:
    return []
  except OSError as error:
    raise UserError(
      f'{folder} cannot be read as a folder ({error.strerror}): choose another workdir'
    ) from None


def _read(folder: Path, fresh: TrainState, data: grain.DatasetIterator) -> TrainState:
  """Reads the state in an undamaged checkpoint, laid out as `fresh`."""
  # Keys must draw the same numbers as before.
  here = there = _jax_settings(fresh.key)
  if (folder / JAX).is_file():  # earlier versions wrote none
    there = read_json(folder / JAX)
  for name, value in here.items():
    if there.get(name) != value:
      raise UserError(
        f'{folder} was written with {name}={there.get(name)}, and here it is {value}, which draws'
        f' different random numbers: set {name}={there.get(name)} in the environment'
      )

  wanted, read, version = {'params': fresh.params, 'rest': _rest(fresh)}, {}, ' of fastdec or Orbax'
  try:
    with _arrays() as arrays:
      for part, tree in wanted.items():
        saved: Any = arrays.metadata(folder / part).item_metadata
        _check_leaves(saved.tree, tree, folder, part)
        read[part] = arrays.restore(folder / part, args=ocp.args.StandardRestore(tree))
    version = ' of Grain, or for different text'
    data.set_state(read_json(folder / 'data.json'))
  except UserError:
    raise
  except Exception as error:  # Orbax, TensorStore and Grain have their own kinds
    words = ' '.join(str(error).split())[:120]
    raise UserError(
      f'{folder} is undamaged, but was written by a different version{version} ({words}): choose'
      ' another workdir, or restore what it was written with'
    ) from error
  return TrainState(params=read['params'], **read['rest'])


def _jax_settings(key: Array) -> dict[str, Any]:
  """Returns the settings of JAX that decide which numbers a key draws."""
  return {
    'JAX_DEFAULT_PRNG_IMPL': str(jax.random.key_impl(key)),
    'JAX_THREEFRY_PARTITIONABLE': jax.config.values['jax_threefry_partitionable'],
    'JAX_ENABLE_X64': jax.config.values['jax_enable_x64'],
  }


def _read_params(folder: Path) -> Params:
  """Reads parameters in float64, so that sums are exact enough, whatever mesh they were on."""
  if damage := _damage(folder):
    raise UserError(f'{folder} is damaged ({damage}): average fewer checkpoints')
  with _arrays() as arrays:
    saved: Any = arrays.metadata(folder / 'params').item_metadata
    like = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), saved.tree)
    params = arrays.restore(folder / 'params', args=ocp.args.StandardRestore(like))
  return jax.tree.map(lambda x: np.asarray(x, np.float64), params)


def _damage(folder: Path) -> str | None:
  """Explains how the files of a checkpoint differ from those written; None if they do not."""
  try:
    expected = read_json(folder / SUMS)
    actual = _sums(folder)
  except UserError:
    return f'{SUMS} is missing or damaged'
  except OSError as error:
    return str(error)
  for name, value in expected.items():
    if name not in actual:
      return f'{name} is missing'
    if actual[name] != value:
      return f'{name} is damaged'
  return None


def _sums(folder: Path) -> dict[str, int]:
  """Computes the CRC-32 of every file."""
  sums = {}
  for path in sorted(folder.rglob('*')):
    if path.is_file() and path.name != SUMS:
      name = str(path.relative_to(folder))
      sums[name] = 0
      with open(path, 'rb') as file:
        while part := file.read(1 << 24):
          sums[name] = zlib.crc32(part, sums[name])
  return sums


def _check_leaves(saved: PyTree, wanted: PyTree, folder: Path, part: str) -> None:
  """Raises UserError with the first array whose shape or type differs; Orbax would print a page."""

  def describe(tree):
    shapes, types = {}, {}
    for path, leaf in jax.tree.leaves_with_path(tree):
      if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
      name = jax.tree_util.keystr(path, simple=True, separator='/')
      shapes[name] = f'shape {tuple(leaf.shape)}'
      types[name] = f'type {np.dtype(leaf.dtype).name}'
    return shapes, types

  what = {'params': 'model: parameter', 'rest': 'optimizer or kind of random key:'}[part]
  for there, here in zip(describe(saved), describe(wanted), strict=True):
    for name in {**here, **there}:
      if there.get(name) != here.get(name):
        raise UserError(
          f'{folder} belongs to a different {what} {name} has {there.get(name, "no counterpart")}'
          f' there and {here.get(name, "no counterpart")} here; choose another workdir, or the'
          ' config of that run'
        )


def _rest(state: TrainState) -> dict[str, Any]:
  """Returns everything except the parameters. Averaging reads only the parameters."""
  rest = {}
  for field in dataclasses.fields(state):
    if field.name != 'params':
      rest[field.name] = getattr(state, field.name)
  return rest


def _save_arrays(folder: Path, tree: PyTree) -> None:
  """Writes a tree; a full disk is an OSError, as elsewhere."""
  try:
    with _arrays() as arrays:
      arrays.save(folder, args=ocp.args.StandardSave(tree))
  except ValueError as error:  # TensorStore's, which ends with the system's message
    if 'os_error_code' not in str(error):
      raise
    raise OSError(str(error).rpartition(': ')[2]) from error


@contextlib.contextmanager
def _arrays() -> Iterator[ocp.Checkpointer]:
  """Opens Orbax without its log, which repeats raised errors in pages."""
  log = logging.getLogger('absl')
  level = log.level
  log.setLevel(logging.CRITICAL)
  try:
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as arrays:
      yield arrays
  finally:
    log.setLevel(level)


def _folder(workdir: PathLike) -> Path:
  return Path(workdir).absolute() / 'checkpoints'
