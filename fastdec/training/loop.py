"""The training loop: one compiled step, a progress bar, metrics, evaluations and checkpoints.

A run that was killed continues exactly from its last checkpoint: same batches, same dropout, same
parameters bit for bit.

It runs on a mesh of devices (`kernels.sharding`), of one process or several, which all call `train`
with the same arguments. Each makes the whole batch, and uploads the rows of its own devices. So the
batches, and the position in the data, do not depend on the number of processes.
"""

import dataclasses
import functools
import os
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Key

from fastdec import extras
from fastdec.errors import UserError
from fastdec.evaluation import wallclock
from fastdec.kernels.sharding import (
  REPLICATED,
  MeshConfig,
  Table,
  make_mesh,
  place,
  place_rows,
  using,
)
from fastdec.models.api import Params
from fastdec.training.checkpoint import Checkpoints
from fastdec.training.gradients import compute_gradients
from fastdec.training.log import TrainingLog
from fastdec.training.losses import Batch, Metrics
from fastdec.training.optimizer import OptimizerConfig
from fastdec.training.processes import agreed, count
from fastdec.training.state import Task, TrainState

with extras.explained():
  import grain
  import optax

AHEAD = 2  # steps queued on the device before the host waits for one
Evaluate = Callable[[Params], dict[str, float]]


@dataclasses.dataclass(frozen=True)
class LoopConfig:
  """The length of a run and its intervals, in steps if no other unit is named."""

  steps: int
  log_every: int = 50
  eval_every: int = 1000
  checkpoint_every: int = 1000
  checkpoint_seconds: float = 300.0  # the most work that a kill may cost
  keep: int = 5  # number of checkpoints whose mean is the result
  # the share of the run that they span, at equal distances; 0: they are checkpoint_every apart
  span: float = 0.0
  accumulate: int = 1  # parts of a batch, computed one after the other to save memory

  def __post_init__(self) -> None:
    for name, value in dataclasses.asdict(self).items():
      if value <= 0 and name != 'span':
        raise UserError(f'{name}={value} is not possible: give a number above 0')
    if not 0 <= self.span <= 1:
      raise UserError(f'span={self.span} is not possible: give a share of the run, from 0 to 1')

  @property
  def kept(self) -> tuple[int, ...]:
    """The steps whose checkpoints stay to the end: the last one, and `keep - 1` before it."""
    if self.span:
      apart = max(1, round(self.span * self.steps / self.keep))
      steps = list(range(self.steps, 0, -apart))
    else:
      last_multiple = (self.steps - 1) // self.checkpoint_every * self.checkpoint_every
      steps = [self.steps, *range(last_multiple, 0, -self.checkpoint_every)]
    return tuple(sorted(steps[: self.keep]))


@dataclasses.dataclass(frozen=True)
class Trained:
  """The end of a run."""

  params: Params
  step: int
  is_finished: bool  # False: stopped by the budget; call `train` again to continue


def train(
  task: Task,
  data: grain.MapDataset,
  optimizer: OptimizerConfig,
  config: LoopConfig,
  workdir: str | os.PathLike[str],
  key: Key[Array, ''],
  evaluate: Evaluate | None = None,
  budget: float | None = None,
  mesh: Mesh | None = None,
  table: Table = REPLICATED,
) -> Trained:
  """Trains, or continues the training found in `workdir`.

  Args:
    task: the parameters to train, and their loss.
    data: endless packed batches.
    optimizer: the rate and its schedule.
    config: lengths and intervals.
    workdir: gets `checkpoints/`, `metrics.jsonl` and TensorBoard's `tb/`.
    key: all randomness: first parameters, dropout, drawn heads.
    evaluate: parameters -> named numbers, called every `eval_every` steps and at the end.
    budget: seconds after which to stop, with a checkpoint, at the end of a step (the first at the
      earliest; several processes look at the clock when they log).
    mesh: the devices (None: one).
    table: how the mesh shards the task's parameters and its frozen ones.

  Raises:
    UserError: the loss is not finite, the workdir's checkpoints are unreadable or belong to a
      different model, or batches or parameters cannot be divided over the mesh.
  """
  start = wallclock.now()
  mesh = mesh or make_mesh(MeshConfig())
  transform = optimizer.build()
  placed = place(
    {'state': TrainState.create(task, transform, key), 'frozen': task.frozen}, mesh, table
  )
  state, frozen = placed['state'], placed['frozen']
  shardings = jax.tree.map(lambda x: x.sharding, state)
  step = make_step(task, transform, optimizer.learning_rate, config.accumulate, shardings)

  # Continue from the newest checkpoint, at its position in the text.
  iterator = iter(data.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))
  checkpoints = Checkpoints(workdir, config.kept)
  state = checkpoints.restore(state, iterator)
  first = done = int(state.step)
  if done > config.steps:
    raise UserError(
      f'{workdir} is at step {done} already, after steps={config.steps}: choose more,'
      ' or another workdir'
    )

  # After each step, log, evaluate and save what is due. A call makes at least one step.
  over, saved_at = done == config.steps, start
  with TrainingLog(workdir, done, config.steps) as progress, using(mesh):
    while not over:
      state, metrics = step(state, frozen, place_rows(next(iterator), mesh, config.accumulate))
      done += 1
      progress.add(metrics, AHEAD)
      log = done % config.log_every == 0 or done == first + 1  # the first step apart: it compiles
      over = done == config.steps or _has_passed(start, budget, log)
      save = over or done % config.checkpoint_every == 0 or done in config.kept
      save = save or _has_passed(saved_at, config.checkpoint_seconds, log)
      look = evaluate is not None and (done % config.eval_every == 0 or done == config.steps)
      if save or log or look:
        progress.log()
      if evaluate is not None and look:
        progress.log_evaluation(evaluate(state.params))
      if save:
        _check_finite(state)
        checkpoints.save(state, iterator)
        saved_at = wallclock.now()
  return Trained(state.params, done, done == config.steps)


def _has_passed(since: float, limit: float | None, may_ask: bool) -> bool:
  """True if more than `limit` seconds have passed, by the first process's clock.

  Several processes wait for its answer, so they ask only where `may_ask` is true.
  """
  if limit is None or not (may_ask or count() == 1):
    return False
  return agreed(wallclock.now() - since > limit)


def make_step(
  task: Task,
  transform: optax.GradientTransformation,
  learning_rate: optax.Schedule,
  accumulate: int = 1,
  shardings: TrainState | None = None,
) -> Callable[[TrainState, Params, Batch], tuple[TrainState, Metrics]]:
  """Compiles (state, frozen parameters, batch) -> (state, metrics); it reuses the state's memory.

  Args:
    task: the task to train.
    transform: the optimizer.
    learning_rate: its schedule, to report the rate.
    accumulate: parts of a batch; see `gradients.compute_gradients`.
    shardings: the new state's shardings, a tree like the state (None: the compiler chooses).
  """

  @functools.partial(jax.jit, donate_argnums=0, out_shardings=(shardings, None))
  def step(state: TrainState, frozen: Params, batch: Batch) -> tuple[TrainState, Metrics]:
    key = jax.random.fold_in(state.key, state.step)
    gradients, metrics = compute_gradients(task, state.params, frozen, batch, key, accumulate)
    updates, opt_state = transform.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    rate, norm = learning_rate(state.step), optax.tree.norm(gradients)
    metrics |= {'gradient_norm': jnp.asarray(norm), 'learning_rate': jnp.asarray(rate)}
    return dataclasses.replace(
      state, step=state.step + 1, params=params, opt_state=opt_state
    ), metrics

  return step


def _check_finite(state: TrainState) -> None:
  """Raises UserError for parameters that are not finite; losses show only those before the step."""
  if not _all_finite(state.params):
    raise UserError(
      f'a parameter is not finite after step {int(state.step)}: the last good checkpoint is'
      ' kept; lower the learning rate in another workdir'
    )


@jax.jit
def _all_finite(params: Params) -> Bool[Array, '']:
  return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)]).all()
