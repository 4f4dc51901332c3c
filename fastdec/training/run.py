"""One training run in a folder: its settings, and the run itself, which resumes exactly."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
from jax.sharding import Mesh

from fastdec.fields import Between, Count, Positive, Share
from fastdec.files import write_text
from fastdec.kernels.sharding import MeshConfig, make_mesh, partition_of
from fastdec.models.api import Params
from fastdec.training.checkpoint import average_checkpoints, drop_checkpoints
from fastdec.training.loop import LoopConfig, train
from fastdec.training.optimizer import OptimizerConfig
from fastdec.training.processes import agreed, is_first, wait
from fastdec.training.stage import OutOfTime, seconds_left
from fastdec.training.state import Task

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
  span: Share = 0.0  # share of the run over which they stand; 0: they stand `every` apart
  # Rows of a batch; 0: the data's. All heads at once train faster on small batches.
  rows: Annotated[int, Between(0, 2**16)] = 0
  accumulate: Count = 1  # parts of a batch computed one after the other, to save memory
  b2: float = 0.997  # Adam's, as in T2T v3
  muon: Factor = 0.0  # kernels of layers learn by Muon, at this many times the rate; 0: by Adam
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
    names = 'schedule', 'constant', 'warmup', 'steps', 'b2', 'muon', 'clip', 'heads_rate'
    settings = {name: getattr(self, name) for name in (*names, 'weight_norm')}
    return OptimizerConfig(d_model=d_model, **settings)


def carry_out(
  folder: pathlib.Path,
  task: Task,
  batches: Any,
  run: RunConfig,
  modules: Sequence[Any],
  evaluate: Callable[[Params], dict[str, float]],
  save: Callable[[Params], None],
  seed: int,
  mesh: MeshConfig,
) -> None:
  """Trains in a folder, or continues; at the end saves the mean of the last checkpoints.

  Args:
    folder: of the stage.
    task, batches, run, seed, mesh: see `base`.
    modules: the base, and the heads or draft on it, whose weights the mesh shards.
    evaluate: figures for the log, from parameters.
    save: writes parameters as the result.

  Raises:
    OutOfTime: the budget ended first; there is a checkpoint.
  """
  # The last process was killed while it removed checkpoints.
  if agreed((folder / 'TRAINED').exists()):
    if is_first():
      drop_checkpoints(folder)
    return

  # Train, within the budget.
  loop, devices = run.loop(), devices_of(mesh)
  partition = tuple(rule for module in modules for rule in partition_of(module, mesh.model))
  optimizer, key = run.optimizer(modules[0].d_model), jax.random.key(seed)
  trained = train(
    task, batches, optimizer, loop, folder, key, evaluate, seconds_left(), devices, partition
  )
  if not trained.is_finished:
    raise OutOfTime

  # Save the mean of the last checkpoints, and remove them.
  params = average_checkpoints(folder, loop.kept)
  if is_first():
    save(params)
    write_text(folder / 'TRAINED', '')
    drop_checkpoints(folder)
  wait('saved')


def devices_of(mesh: MeshConfig) -> Mesh | None:
  """Returns the mesh; None where it is one device, which needs none."""
  return None if mesh == MeshConfig() else make_mesh(mesh)
