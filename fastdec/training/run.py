"""One training run in a folder: its settings, and the run itself, which resumes exactly."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
from jax.sharding import Mesh

from fastdec.evaluation import wallclock
from fastdec.fields import Between, Count, Positive, Share
from fastdec.files import write_text
from fastdec.kernels import sharding
from fastdec.kernels.sharding import MeshConfig, make_mesh, partition_of
from fastdec.models.api import Params
from fastdec.training.checkpoint import average_checkpoints, drop_checkpoints
from fastdec.training.loop import LoopConfig, make_step, train
from fastdec.training.optimizer import OptimizerConfig
from fastdec.training.processes import agreed, is_first, wait
from fastdec.training.stage import OutOfTime, seconds_left
from fastdec.training.state import Task, TrainState

Rows = Annotated[int, Between(1, 2**16)]  # at once
Factor = Annotated[float, Between(0, 1e30)]


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """One training run, by Adam or Muon; the schedules are those of `OptimizerConfig`."""

  steps: Count
  warmup: Count  # steps
  every: Count  # steps between evaluations and checkpoints
  schedule: str = 'rsqrt'  # or 'noam', T2T's older one; 'linear' and 'cosine' fall to 0
  constant: Positive = 2.0  # with a short warm-up the paper's 2.0 would peak too high
  label_smoothing: Share = 0.1
  average: Count = 2  # checkpoints whose mean is the result
  span: Share = 0.0  # share of the run that they span; 0: they are `every` steps apart
  # Rows of a batch; 0: the data's. All heads at once train faster on small batches.
  rows: Annotated[int, Between(0, 2**16)] = 0
  accumulate: Count = 1  # parts of a batch computed one after the other, to save memory
  b2: float = 0.997  # Adam's, as in T2T v3
  muon: Factor = 0.0  # factor on the rate with which Muon trains kernels of layers; 0: Adam does
  clip: Factor = 0.0  # longer gradients are shortened to this norm; 0: none is
  heads_rate: Factor = 1.0  # rate of heads that are trained together with the base, in its units
  weight_norm: bool = False  # kernels as directions and lengths (Salimans and Kingma 2016)

  @classmethod
  def falling(cls, **settings: Any) -> 'RunConfig':
    """Returns a run whose rate falls from `constant` to 0, averaged over its last twentieth."""
    return cls(**{'schedule': 'linear', 'average': 5, 'span': 0.05} | settings)

  def loop(self) -> LoopConfig:
    """Returns length and intervals of the training loop."""
    return LoopConfig(
      self.steps,
      log_every=min(50, self.every),
      eval_every=self.every,
      checkpoint_every=self.every,
      keep=self.average,
      span=self.span,
      accumulate=self.accumulate,
    )

  def optimizer(self, d_model: int) -> OptimizerConfig:
    """Returns the rate for a model of this width."""
    return OptimizerConfig(
      d_model,
      self.schedule,
      constant=self.constant,
      warmup=self.warmup,
      steps=self.steps,
      b2=self.b2,
      muon=self.muon,
      clip=self.clip,
      heads_rate=self.heads_rate,
      weight_norm=self.weight_norm,
    )


@dataclasses.dataclass(frozen=True)
class Training:
  """What one training consists of, apart from its length and its rate (`RunConfig`).

  Attributes:
    task: what is trained, and by which loss.
    batches: endless batches, by index.
    modules: the base, and the heads or the draft on it, whose weights the mesh shards.
    save: writes parameters as the result.
    evaluate: returns figures for the log, from parameters; None: nothing is evaluated.
  """

  task: Task
  batches: Any
  modules: Sequence[Any]
  save: Callable[[Params], None]
  evaluate: Callable[[Params], dict[str, float]] | None = None


def carry_out(
  folder: pathlib.Path, training: Training, run: RunConfig, seed: int, mesh: MeshConfig
) -> None:
  """Trains in a folder, or continues; at the end saves the mean of the last checkpoints.

  Args:
    folder: of the stage.
    training: what is trained.
    run: steps, rate and so on.
    seed: draws the first parameters and the dropout.
    mesh: the devices; they change nothing but rounding.

  Raises:
    OutOfTime: the budget ended first; there is a checkpoint.
  """
  # The last process was killed while it removed checkpoints.
  if agreed((folder / 'TRAINED').exists()):
    if is_first():
      drop_checkpoints(folder)
    return

  # Train, within the budget.
  loop, modules = run.loop(), training.modules
  partition = tuple(rule for module in modules for rule in partition_of(module, mesh.model))
  optimizer, key = run.optimizer(modules[0].d_model), jax.random.key(seed)
  trained = train(
    training.task, training.batches, optimizer, loop, folder, key, training.evaluate,
    seconds_left(), choose_devices(mesh), partition,
  )  # fmt: skip
  if not trained.is_finished:
    raise OutOfTime

  # Save the mean of the last checkpoints, and remove them.
  params = average_checkpoints(folder, loop.kept)
  if is_first():
    training.save(params)
    write_text(folder / 'TRAINED', '')
    drop_checkpoints(folder)
  wait('saved')


def choose_devices(mesh: MeshConfig) -> Mesh | None:
  """Returns the mesh; None where it is one device, which needs none."""
  return None if mesh == MeshConfig() else make_mesh(mesh)


def time_step(training: Training, run: RunConfig, mesh: MeshConfig) -> float:
  """Returns the seconds that a step of a training takes, by the clock of three."""
  optimizer, devices = run.optimizer(training.modules[0].d_model), make_mesh(mesh)
  task, transform, begin = training.task, optimizer.build(), 0.0
  state = TrainState.create(task, transform, jax.random.key(0))
  state = sharding.place(state, devices, sharding.REPLICATED)
  frozen = sharding.place(task.frozen, devices, sharding.REPLICATED)
  step = make_step(task, transform, optimizer.learning_rate, run.accumulate)
  for index in range(4):  # the first one compiles
    batch = sharding.place_rows(training.batches[index], devices, run.accumulate)
    state = jax.block_until_ready(step(state, frozen, batch)[0])
    begin = begin or wallclock.now()
  return (wallclock.now() - begin) / 3
