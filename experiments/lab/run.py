"""The training runs of a page: base models, and heads on them, frozen or trained together."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh
from jaxtyping import Array

from experiments.lab import record
from experiments.lab.settings import (
  DISTILLED,
  TUNED,
  HeadsTraining,
  Material,
  RunConfig,
  Training,
  seed_of,
)
from fastdec import folders
from fastdec.errors import UserError
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.transformed import Transformed
from fastdec.models.api import Model, Params
from fastdec.sharding import Table, partition_of
from fastdec.training.checkpoint import average_checkpoints, drop_checkpoints
from fastdec.training.loop import train
from fastdec.training.losses import dev_loss, head_accuracy
from fastdec.training.processes import is_first, wait
from fastdec.training.state import Task, base_task, finetuned_heads_task, frozen_heads_task


@dataclasses.dataclass(frozen=True)
class Job:
  """What a run brings to the training loop: its task, its evaluation, and how the result is
  saved."""

  task: Task
  evaluate: Callable[[Params], dict[str, float]]
  save: Callable[[Params], None]


def carry_out(
  job: Job,
  batches: Any,
  config: RunConfig,
  d_model: int,
  workdir: pathlib.Path,
  key: Array,
  budget: float | None,
  devices: Mesh | None,
  table: Table,
) -> bool:
  """Trains in a workdir that the run has claimed, or goes on; True when it is finished and the
  result is saved."""
  loop, optimizer = config.loop(), config.optimizer(d_model)
  trained = train(
    job.task, batches, optimizer, loop, workdir, key, job.evaluate, budget, devices, table
  )
  if trained.is_finished:
    params = average_checkpoints(workdir, loop.kept)
    if is_first():
      job.save(params)
      drop_checkpoints(workdir)
    wait('saved')
  return trained.is_finished


class InWorkdir:
  """What all training runs share: the record in their workdir says what they were trained with.

  Attributes:
    workdir: of the run.
  """

  workdir: pathlib.Path

  @property
  def result(self) -> pathlib.Path:
    """The folder that is written last."""
    raise NotImplementedError

  def _inputs(self) -> tuple[dict[str, str], str]:
    """What decides the result beside the settings: the hashes of the base and of what a draft
    begins at, if there are such, as {'base': ..., 'init': ...}; and that of the text.

    Raises:
      UserError: they are not there.
    """
    raise NotImplementedError

  def _names_of_inputs(self) -> tuple[str, str]:
    """The base and the text, as the user named them."""
    raise NotImplementedError

  def _record(
    self, base: Mapping[str, Any], distilled: str, content: str | None = None
  ) -> dict[str, Any]:
    """Returns the settings written to `workdir/config.json`, and the data's content if known."""
    raise NotImplementedError

  @property
  def is_finished(self) -> bool:
    """Whether the result has been written."""
    return (self.result / 'config.json').is_file()

  @property
  def is_current(self) -> bool:
    """Whether it is finished, and was trained on the base and the text as they are now."""
    try:
      self.check_inputs()
    except UserError:  # among them: the base is not there
      return False
    return self.is_finished

  def check(self) -> None:
    """Raises UserError where the workdir is no folder, or holds a run of another config, whatever
    its base and text."""
    there = record.read(self.workdir)
    distilled = record.part(there, 'data').get('distilled', '')
    base = {name: there[name] for name in ('base', 'init') if name in there}
    record.check(self.workdir, self._record(base, distilled), self.is_finished)

  def check_inputs(self) -> None:
    """Raises UserError where the run there was trained on another base or other text than there is
    now."""
    there, (base, distilled) = record.read(self.workdir), self._inputs()
    if not there:
      return
    named_base, named_text = self._names_of_inputs()
    what = None
    if there.get('base', base.get('base')) != base.get('base'):
      what = f'base than {named_base}'
    elif there.get('init', base.get('init')) != base.get('init'):
      what = 'draft to begin at than there'
    elif record.part(there, 'data').get('distilled', '') != distilled:
      what = f'text than {named_text}'
    if what is not None:
      raise UserError(
        f'{self.workdir} was trained on another {what} is now: remove it, and let it'
        ' be trained again'
      )

  def claim(self, content: str) -> None:
    """Begins the run's record, or finds it there, whose data has this content.

    Raises:
      UserError: the run there has another config, another base or other text.
    """
    self.check_inputs()
    record.claim(self.workdir, self._record(*self._inputs(), content))


@dataclasses.dataclass(frozen=True)
class Run(InWorkdir):
  """One training run.

  Attributes:
    experiment: the settings; `distilled` is set for the regimes that train on a teacher's
      translations.
    k: 1 for a base model, 2 or more for heads.
    regime: a column of Table 1 ('regular', 'distil', 'finetune', 'both').
    base: the workdir of the finished run that this one starts from; None for a base from scratch.
      Heads that are trained together with the base may start from a run with frozen heads for the
      same k, or nested ones for more.
    workdir: of this run; it gets `model/` at the end.
  """

  experiment: Training
  k: int
  regime: str
  base: pathlib.Path | None
  workdir: pathlib.Path

  def __post_init__(self) -> None:
    if self.k == 1 and self.regime in TUNED:
      raise UserError(
        f'k=1 has no heads to train with regime={self.regime}: give regime=regular or'
        ' distil, or k >= 2'
      )

  @property
  def data_seed(self) -> int:
    """Draws the order of the batches: a stage that follows another one does not see them in the
    same order."""
    is_plain = (self.k, self.regime) == (1, 'regular')
    return (
      self.experiment.seed
      if is_plain
      else seed_of(self.experiment.seed, f'k{self.k}-{self.regime}')
    )

  @property
  def result(self) -> pathlib.Path:
    """The folder of the model."""
    return self.workdir / 'model'

  def train(self, budget: float | None = None, material: Material | None = None) -> bool:
    """Trains, or goes on; True when the run is finished and `model/` is written.

    Args:
      budget: seconds, None for endless.
      material: what the experiment trains on, if it is open; its batches are not packed again.
    """
    distils, distilled = self.regime in DISTILLED, self.experiment.distilled
    if distils != bool(distilled):
      wanted = 'name it by' if distils else 'leave out'
      raise UserError(
        f'regime={self.regime} with distilled text {distilled!r}: {wanted}'
        ' --config.data.distilled=...'
      )
    if self.experiment.own and self.k == 1:
      raise UserError(
        f'data.own={self.experiment.own!r} is for heads: leave out'
        ' --config.data.own=..., or give k >= 2'
      )
    if self.base is None and (self.k > 1 or distils):
      what = f'heads for k={self.k}' if self.k > 1 else f'regime={self.regime}'
      raise UserError(f'{what}: trained on a base model, name its workdir by --config.base=...')
    material = self.experiment.open() if material is None else material
    job = self._heads(material) if self.k > 1 else self._base(material)
    config = self.experiment.run(self.k, self.regime)
    batches = material.train_batches(config.rows, self.data_seed)
    self.claim(material.content)  # a wrong config has shown by now
    key, width = jax.random.key(self.experiment.seed), self.experiment.model.d_model
    devices, table = self.experiment.devices, self._partition(material.model)
    return carry_out(job, batches, config, width, self.workdir, key, budget, devices, table)

  def _base(self, material: Material) -> Job:
    smoothing, dev = self.experiment.run(1, self.regime).label_smoothing, material.dev_batches()
    if self.base:
      model, start = self._start(self.base, material)
      task = base_task(model, smoothing, start)
    else:
      model = material.model
      task = dataclasses.replace(base_task(model, smoothing), init=material.init)
    return Job(
      task,
      lambda params: dev_loss(model, params, dev),
      lambda params: folders.save(self.result, model, params, material.tokenizer_path),
    )

  def _heads(self, material: Material) -> Job:
    assert self.base is not None  # `train` has refused heads without a base
    model, trunk = self._start(self.base, material)
    experiment, dev = self._with_heads, material.dev_batches()
    settings, heads = experiment.heads, experiment.heads_for(self.k)
    same: Any = {
      'smoothing': experiment.run(self.k, self.regime).label_smoothing,
      'draw': settings.draw,
      'decay': settings.decay,
      'anchors': settings.anchors,
    }
    fresh = experiment.fresh_heads(heads, model, trunk)
    if self.regime in TUNED:
      trained = _heads_of(self.base, heads)
      start = fresh if trained is None else trained
      task = finetuned_heads_task(model, heads, trunk, start, settings.p1_share, **same)
    else:
      task = frozen_heads_task(model, heads, trunk, start=fresh, **same)

    def split(params: Params) -> tuple[Params, Params]:
      return (params['model'], params['heads']) if self.regime in TUNED else (trunk, params)

    def evaluate(params: Params) -> dict[str, float]:
      accuracy = head_accuracy(model, heads, *split(params), dev)
      return {f'accuracy of head {i}': value for i, value in enumerate(accuracy, start=1)}

    def save(params: Params) -> None:
      model_params, head_params = split(params)
      folders.save(self.result, model, model_params, material.tokenizer_path, (heads, head_params))

    return Job(task, evaluate, save)

  def _partition(self, model: Model) -> Table:
    """How the parameters of the model, and of heads that are trained on it, lie on the mesh."""
    devices = self.experiment.mesh.model
    heads = partition_of(self._with_heads.heads_for(self.k), devices) if self.k > 1 else ()
    return (*partition_of(model, devices), *heads)

  @property
  def _with_heads(self) -> HeadsTraining:
    """The settings of a run for k > 1."""
    assert isinstance(self.experiment, HeadsTraining), (
      f'{type(self.experiment).__name__} has no heads to train'
    )
    return self.experiment

  def _start(self, base: pathlib.Path, material: Material) -> tuple[Model, Params]:
    """The base that the run starts from."""
    folder = folders.open(base)
    model, params = folder.model, folder.params(as_stored=True)
    if isinstance(model, Transformed):
      model, params = model.model, params['model']
    if model != material.model:
      raise UserError(
        f'{base} holds another model than this config means: give the base run of the same config'
      )
    material.check_base(base)
    return model, params

  def _inputs(self) -> tuple[dict[str, str], str]:
    return {} if self.base is None else {
      'base': folders.content(self.base)
    }, self.experiment.distilled_key()

  def _names_of_inputs(self) -> tuple[str, str]:
    return str(self.base), self.experiment.own or self.experiment.distilled

  def _record(
    self, base: Mapping[str, Any], distilled: str, content: str | None = None
  ) -> dict[str, Any]:
    experiment, is_plain = self.experiment, (self.k, self.regime) == (1, 'regular')
    heads = {'heads': self._with_heads.heads} if self.k > 1 else {}
    data = experiment.recorded_data(distilled)
    parts = {
      **heads,
      'data': data,
      'model': experiment.model,
      'training': experiment.run(self.k, self.regime),
    }
    named = {} if is_plain else {'k': self.k, 'regime': self.regime}  # first told first
    plain = {name: dataclasses.asdict(part) for name, part in parts.items()}
    if content is not None:
      plain['data']['content'] = content
    return {**named, 'seed': experiment.seed, **plain, **base}


def _heads_of(base: pathlib.Path, wanted: BlockwiseHeads) -> Params | None:
  """The parameters of the base's heads (the first of them if it has more than wanted); None if it
  has no heads."""
  folder = folders.open(base)
  if not folder.has_heads:
    return None
  heads, params = folder.heads, folder.head_params(as_stored=True)
  if heads == wanted:
    return params
  if not (
    heads.are_nested and dataclasses.replace(heads, k=wanted.k) == wanted and heads.k > wanted.k
  ):
    raise UserError(
      f'{base} has {heads}, and this config means {wanted}: give the base run, or one'
      ' with these heads'
    )
  return heads.drafting(params, wanted.depth)[1]
