"""The training loop: one compiled step, seen by a progress bar, TensorBoard, evaluations and checkpoints.

A run continues exactly where its last checkpoint stands: same batches, same dropout, same parameters bit for bit,
however often it was killed.
"""

import dataclasses
import functools
import os
import time
from collections.abc import Callable

import grain
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Key

from fastdec.errors import UserError
from fastdec.models.api import Params
from fastdec.training.checkpoint import Checkpoints, Keep
from fastdec.training.losses import Batch, Metrics
from fastdec.training.optimizer import OptimizerConfig
from fastdec.training.progress import Progress
from fastdec.training.state import Task, TrainState

AHEAD = 2  # steps given to the device before the host waits for one
Evaluate = Callable[[Params], dict[str, float]]


@dataclasses.dataclass(frozen=True)
class LoopConfig:
  """How long, and how often what; in steps unless said otherwise."""

  steps: int
  log_every: int = 50
  eval_every: int = 1000
  checkpoint_every: int = 1000
  checkpoint_seconds: float = 300.0  # of work that a kill may cost
  keep: int = 5  # checkpoints, at multiples of checkpoint_every

  def __post_init__(self) -> None:
    for name, value in dataclasses.asdict(self).items():
      if value <= 0:
        raise UserError(f'{name}={value} is not possible: give a number above 0')


@dataclasses.dataclass(frozen=True)
class Trained:
  """What a run ends with."""
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
) -> Trained:
  """Trains, or continues the training found in `workdir`.

  Args:
    task: what is trained.
    data: endless packed batches.
    optimizer: the rate and its schedule.
    config: lengths and intervals.
    workdir: gets `checkpoints/` and TensorBoard's `tb/`.
    key: all randomness: first parameters, dropout, drawn heads.
    evaluate: parameters -> named numbers, called every `eval_every` steps and at the end.
    budget: seconds after which to stop, with a checkpoint, at the end of a step (the first at the earliest).

  Raises:
    UserError: the loss is no finite number, or the workdir's checkpoints are unreadable or of another model.
  """
  start = time.monotonic()
  transform = optimizer.build()
  step = make_step(task, transform, optimizer.learning_rate)
  iterator = iter(data.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))
  checkpoints = Checkpoints(workdir, Keep(config.checkpoint_every, config.keep))
  state = checkpoints.restore(TrainState.create(task, transform, key), iterator)
  first = done = int(state.step)
  if done > config.steps:
    raise UserError(f'{workdir} is at step {done} already, after steps={config.steps}: choose more, or another workdir')
  is_over = lambda: done == config.steps or (budget is not None and time.monotonic() - start > budget)
  over, saved_at = done == config.steps, start  # a call makes at least one step
  with Progress(workdir, done, config.steps) as progress:
    while not over:
      state, metrics = step(state, task.frozen, next(iterator))
      done += 1
      progress.add(metrics, AHEAD)
      over = is_over()
      save = over or done % config.checkpoint_every == 0 or time.monotonic() - saved_at > config.checkpoint_seconds
      if save or done % config.log_every == 0 or done == first + 1:  # the first step apart: it compiles
        progress.log()
      if evaluate is not None and (done % config.eval_every == 0 or done == config.steps):
        progress.evaluated(evaluate(state.params))
      if save:
        _check_finite(state)
        checkpoints.save(state, iterator)
        saved_at = time.monotonic()
  checkpoints.close()
  return Trained(state.params, done, done == config.steps)


def make_step(
  task: Task, transform: optax.GradientTransformation, learning_rate: optax.Schedule
) -> Callable[[TrainState, Params, Batch], tuple[TrainState, Metrics]]:
  """(state, frozen parameters, batch) -> (state, metrics), compiled; the memory of the state given is reused."""

  @functools.partial(jax.jit, donate_argnums=0)
  def step(state: TrainState, frozen: Params, batch: Batch) -> tuple[TrainState, Metrics]:
    key = jax.random.fold_in(state.key, state.step)
    (_, metrics), gradients = jax.value_and_grad(task.loss, has_aux=True)(state.params, frozen, batch, key)
    updates, opt_state = transform.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    metrics |= {'gradient_norm': optax.tree.norm(gradients), 'learning_rate': learning_rate(state.step)}
    return dataclasses.replace(state, step=state.step + 1, params=params, opt_state=opt_state), metrics

  return step


def _check_finite(state: TrainState) -> None:
  """Losses tell about the parameters before a step; this is about what is going to be saved."""
  if not _all_finite(state.params):
    raise UserError(
      f'a parameter is no finite number after step {int(state.step)}: the last good checkpoint is kept; lower the'
      ' learning rate in another workdir'
    )


@jax.jit
def _all_finite(params: Params) -> Bool[Array, '']:
  return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)]).all()
