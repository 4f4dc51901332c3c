"""Checkpoints of a training run: parameters, optimizer, key and data position, whole or not there
at all.

  workdir/config.json            what the run was asked to be
  workdir/checkpoints/<step>/    params, rest (optimizer, key), data (position), sums.json (of every file)
  workdir/checkpoints.bad/       what could not be read, moved out of the way

Orbax writes into a temporary folder and renames it. Saving blocks: a step reuses the memory being
saved. Several processes share one workdir: each writes its parts of the arrays, the first does all
else, and what is read fits any number of them, on any mesh.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from fastdec import extras
from fastdec.errors import UserError
from fastdec.files import parse_json, write_json
from fastdec.models.api import Params
from fastdec.training.files import damage_of, write_sums
from fastdec.training.processes import everywhere, is_first, wait
from fastdec.training.state import TrainState

with extras.explained():
  import grain
  import orbax.checkpoint as ocp
  from orbax.checkpoint.checkpoint_managers import PreservationContext

PathLike = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Keep:
  """Which checkpoints stay: those of the steps that are averaged in the end, and the newest two.

  The second newest is what a run goes on from where the newest is damaged.
  """

  steps: tuple[int, ...]

  def should_preserve(
    self, checkpoints: Sequence[Any], *, context: PreservationContext
  ) -> Sequence[bool]:
    """Orbax's question, about its PolicyCheckpointInfo of each checkpoint, oldest first."""
    return [info.step in self.steps or info in checkpoints[-2:] for info in checkpoints]


class Checkpoints:
  """The checkpoints of one workdir."""

  def __init__(self, workdir: PathLike, keep: Keep) -> None:
    self.folder = _folder(workdir)
    self._manager = _manager(self.folder, preservation_policy=keep, cleanup_tmp_directories=True)

  def save(self, state: TrainState, data: grain.DatasetIterator) -> None:
    """Writes the state after step `state.step`; returns when it is on disk."""
    params, rest = _split(state)
    args = ocp.args.Composite(
      params=ocp.args.StandardSave(params),
      rest=ocp.args.StandardSave(rest),
      data=ocp.args.JsonSave(data.get_state()),
    )
    self._manager.save(int(state.step), args=args)
    folder = self.folder / str(int(state.step))
    if is_first():
      write_sums(folder)
    wait(f'saved {folder.name}')

  def restore(self, fresh: TrainState, data: grain.DatasetIterator) -> TrainState:
    """The newest readable state, with `data` set to its position; `fresh` where there are no
    checkpoints.

    Unreadable checkpoints newer than that are moved to `checkpoints.bad`, with a printed note.

    Raises:
      UserError: a checkpoint of parameters with other names or shapes, or none that is readable.
    """
    unreadable = []
    for step in sorted(self._manager.all_steps(), reverse=True):
      state = error = None
      try:
        state = self._read(step, fresh, data)
      except UserError:
        raise
      except Exception as its_own:  # Orbax, TensorStore, JSON and the file system each have theirs
        error = its_own
      if everywhere(error is None) and state is not None:
        self._move_away(unreadable, f'continuing from step {step}')
        return state
      unreadable.append((step, error or OSError('another process cannot read it')))
    if unreadable:
      steps = ', '.join(str(step) for step, _ in unreadable)
      raise UserError(
        f'no checkpoint in {self.folder} can be read (steps {steps}; {_short(unreadable[0][1])}):'
        ' put back a good copy, or choose another workdir to start again'
      )
    return fresh

  def close(self) -> None:
    self._manager.close()

  def _read(self, step: int, fresh: TrainState, data: grain.DatasetIterator) -> TrainState:
    folder = self.folder / str(step)
    damage = damage_of(folder) if is_first() else None
    if not everywhere(damage is None):  # before they wait for each other in reading
      raise OSError(damage or 'the first process finds it damaged')
    params, rest = _split(fresh)
    _check_shapes(self._manager.item_metadata(step)['params'].tree, params, folder)
    args = ocp.args.Composite(
      params=ocp.args.StandardRestore(params),
      rest=ocp.args.StandardRestore(rest),
      data=ocp.args.JsonRestore(),
    )
    found: Any = self._manager.restore(step, args=args)
    data.set_state(found.data)
    return TrainState(params=found.params, **found.rest)

  def _move_away(self, unreadable: list[tuple[int, Exception]], consequence: str) -> None:
    """Makes room, so that their steps can be saved again."""
    if not unreadable:
      return
    bad = _bad(self.folder)
    for step, error in unreadable if is_first() else ():
      bad.mkdir(exist_ok=True)
      copies = len(list(bad.glob(f'{step}*')))
      (self.folder / str(step)).rename(bad / (f'{step}.{copies}' if copies else str(step)))
      print(
        f'checkpoint {step} cannot be read ({_short(error)}): moved to {bad}, {consequence}',
        flush=True,
      )
    wait('moved away')
    self._manager.reload()


def average_checkpoints(workdir: PathLike, steps: Sequence[int]) -> Params:
  """The mean of the parameters of the checkpoints after these steps, as NumPy arrays; those that
  are gone are left out.

  Raises:
    UserError: none of them is there, or one of them cannot be read.
  """
  folder = _folder(workdir)
  if not folder.is_dir():
    raise UserError(f'there is no checkpoint in {folder}: train first')
  with _manager(folder) as manager:
    there = [step for step in steps if step in manager.all_steps()]
    if not there:
      raise UserError(
        f'there is no checkpoint in {folder} of the steps {", ".join(map(str, steps))}: train first'
      )
    total = None
    for step in there:
      params = _read_params(manager, folder, step)
      total = params if total is None else jax.tree.map(np.add, total, params)
  return jax.tree.map(lambda x: (x / len(there)).astype(np.float32), total)


def _read_params(manager: ocp.CheckpointManager, folder: Path, step: int) -> Params:
  """Parameters in float64, whatever mesh they were on: a sum of them is exact enough."""
  try:
    if damage := damage_of(folder / str(step)):
      raise OSError(damage)
    like = jax.tree.map(
      lambda x: np.empty(x.shape, x.dtype), manager.item_metadata(step)['params'].tree
    )
    found: Any = manager.restore(
      step, args=ocp.args.Composite(params=ocp.args.StandardRestore(like))
    )
  except Exception as error:
    raise UserError(
      f'{folder / str(step)} cannot be read ({_short(error)}): average fewer checkpoints'
    ) from None
  return jax.tree.map(lambda x: np.asarray(x, np.float64), found.params)


def drop_checkpoints(workdir: PathLike) -> None:
  """Removes the checkpoints of a run whose result is written; the optimizer's state is twice the
  model."""
  folder = _folder(workdir)
  for unneeded in (folder, _bad(folder)):
    shutil.rmtree(unneeded, ignore_errors=True)


def claim_workdir(workdir: PathLike, config: dict[str, Any]) -> None:
  """Writes `workdir/config.json`, or checks that the run there was asked to be the same.

  Raises:
    UserError: as `check_workdir`, or the folder cannot be written to.
  """
  check_workdir(workdir, config)
  path = Path(workdir) / 'config.json'
  if is_first() and not path.exists():
    write_json(path, config)


def check_workdir(
  workdir: PathLike,
  config: dict[str, Any],
  decisive: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> None:
  """Checks, without writing, that the run in a workdir, if there is one, was asked to be the same.

  Args:
    workdir: the folder of the run.
    config: what the run is asked to be now.
    decisive: what of the record there has to be the same (None: all of it).

  Raises:
    UserError: it was made by another config, its record cannot be read, or the workdir is a file.
  """
  path = Path(workdir) / 'config.json'
  config = json.loads(json.dumps(config))
  for folder in path.parents:
    if folder.exists() and not folder.is_dir():
      raise UserError(
        f'the workdir {workdir} cannot be a folder, because {folder} is a file: choose another'
      )
  if not path.exists():
    return
  try:
    there = parse_json(path.read_text())
  except (OSError, ValueError) as error:
    raise UserError(f'{path} cannot be read ({_short(error)}): choose another workdir') from None
  if not isinstance(there, dict):
    raise UserError(f'{path} is no record of a run: choose another workdir')
  there = there if decisive is None else decisive(there)
  if there != config:
    raise UserError(
      f'{workdir} was made by another config: {_differences(there, config)}; choose another'
      ' workdir, or that config'
    )


def _differences(there: dict[str, Any], config: dict[str, Any]) -> str:
  old, new = _dotted(there), _dotted(config)
  keys = [key for key in {**old, **new} if (key in old, old.get(key)) != (key in new, new.get(key))]

  def value(flat, key):
    return json.dumps(flat[key]) if key in flat else 'nothing'

  shown = [f'{key} is {value(old, key)} there and {value(new, key)} here' for key in keys[:3]]
  return ', '.join(shown) + (f', and {len(keys) - 3} more' if len(keys) > 3 else '')


def _dotted(tree: Any, path: str = '') -> dict[str, Any]:
  if not isinstance(tree, dict) or not tree:
    return {path: tree}
  return {
    k: v for key in tree for k, v in _dotted(tree[key], f'{path}.{key}' if path else key).items()
  }


def _check_shapes(saved: PyTree, wanted: PyTree, folder: Path) -> None:
  """Orbax would say the same in a page."""

  def named(tree):
    return {
      '/'.join(str(getattr(key, 'key', key)) for key in path): tuple(leaf.shape)
      for path, leaf in jax.tree.leaves_with_path(tree)
    }

  there, here = named(saved), named(wanted)
  for name in {**here, **there}:
    if there.get(name) != here.get(name):

      def shape(shapes, name=name):
        return f'shape {shapes[name]}' if name in shapes else 'no counterpart'

      raise UserError(
        f'{folder} is of another model: parameter {name} has {shape(there)} there and {shape(here)}'
        ' here;'
        ' choose another workdir, or the config of that run'
      )


def _split(state: TrainState) -> tuple[Params, dict[str, Any]]:
  """The parameters, which averaging reads alone, and the rest."""
  rest = {
    field.name: getattr(state, field.name)
    for field in dataclasses.fields(state)
    if field.name != 'params'
  }
  return state.params, rest


def _manager(folder: Path, **options: Any) -> ocp.CheckpointManager:
  handlers = {
    'params': ocp.StandardCheckpointHandler(),
    'rest': ocp.StandardCheckpointHandler(),
    'data': ocp.JsonCheckpointHandler(),
  }
  settings = ocp.CheckpointManagerOptions(enable_async_checkpointing=False, **options)
  return ocp.CheckpointManager(folder, item_handlers=handlers, options=settings)


def _folder(workdir: PathLike) -> Path:
  return Path(workdir).absolute() / 'checkpoints'


def _bad(folder: Path) -> Path:
  return folder.with_name(f'{folder.name}.bad')


def _short(error: Exception) -> str:
  """The first words of what a library says."""
  words = ' '.join(str(error).split()) or type(error).__name__
  return words if len(words) <= 120 else f'{words[:117]}...'
