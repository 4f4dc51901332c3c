"""The training of a draft network on a finished base.

workdir/draft/   the network, with the temperatures that calibrate it; written last
workdir/model/   the base that was trained together with it, where it was (regime=both)
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from experiments.lab.run import InWorkdir, Job, carry_out
from experiments.lab.settings import seed_of
from experiments.lab.text import OnModelText, Text
from experiments.papers.drafts.settings import DraftExperiment, words_of
from fastdec import folders
from fastdec.errors import UserError
from fastdec.folders.drafts import draft_content, load_draft, save_draft
from fastdec.heads.draft import DraftNetwork
from fastdec.heads.shortlist import most_frequent
from fastdec.heads.transformed import Transformed
from fastdec.models.api import Params
from fastdec.sharding import Table, partition_of
from fastdec.struct import Bound
from fastdec.training.drafts.calibration import warmth_of
from fastdec.training.drafts.losses import draft_accuracy
from fastdec.training.drafts.start import begin
from fastdec.training.drafts.tasks import finetuned_draft_task, frozen_draft_task, split

# batches of the training text that a draft is looked at on, beside those of the dev set
SAMPLE = 16


@dataclasses.dataclass(frozen=True)
class DraftRun(InWorkdir):
  """One training run: what is trained, and the folder that it gets."""

  experiment: DraftExperiment
  workdir: pathlib.Path

  @property
  def base(self) -> pathlib.Path:
    """The workdir of the finished base."""
    if not self.experiment.base:
      raise UserError('a draft is trained on a base model: name its workdir by --config.base=...')
    return pathlib.Path(self.experiment.base)

  @property
  def result(self) -> pathlib.Path:
    """The folder of the draft."""
    return self.workdir / 'draft'

  def train(self, budget: float | None = None) -> bool:
    """Trains, or goes on; True when the run is finished and the draft is written.

    Args:
      budget: seconds, None for endless.
    """
    experiment, config = self.experiment, self.experiment.run
    experiment.draft.check_init()
    self._check_text()
    target = self._target()
    module = experiment.draft.network(target.module)
    text = self._text(target.module)
    material = text.open()
    material.check_base(self.base)
    batches = material.train_batches(
      config.rows, seed_of(experiment.seed, f'{experiment.kind}-{experiment.regime}')
    )
    ids = None
    if module.words is not None:
      ids = most_frequent(target.module, words_of(material), module.words)
    key = jax.random.key(experiment.seed)
    draft = Bound(module, self._begun(module, target, jax.random.fold_in(key, 1), ids))
    dev = material.own_dev_batches() if experiment.data.own else material.dev_batches()
    if not dev:
      raise UserError(
        'the dev set has no sentence that fits into config.data.row_length: give longer rows'
      )
    job = self._job(material, target, draft, dev, [batches[i] for i in range(SAMPLE)])
    self.claim(material.content)  # a wrong config has shown by now
    table = self._partition(target, module)
    return carry_out(
      job, batches, config, target.module.d_model, self.workdir, key, budget, text.devices, table
    )

  def _begun(
    self, module: DraftNetwork, target: Bound, key: Array, ids: Int[np.ndarray, ' w'] | None
  ) -> Params:
    """What the draft begins at: `config.draft.init`."""
    init = self.experiment.draft.init
    if not self.experiment.draft.begins_trained:
      return begin(module, target, key, init, ids)
    known, params = load_draft(init, dtype='float32')
    other = differences(known, module)
    if other:
      raise UserError(
        f'{init} holds another draft than config.draft means ({", ".join(other)}):'
        ' give its settings'
      )
    if ids is not None and not np.array_equal(params['ids'], ids):
      raise UserError(
        f'{init} drafts other words than those that are frequent in this text: give'
        ' the text it is of'
      )
    return {name: x for name, x in params.items() if name != 'warmth'}

  def _job(
    self, material: Text, target: Bound, draft: Bound, dev: list[Any], sample: list[Any]
  ) -> Job:
    """The task, what it is evaluated by, and how its result is saved."""
    experiment, fixed = self.experiment, split(draft.params)[1]
    is_both, depth, anchors = (
      experiment.regime == 'both',
      experiment.draft.depth,
      experiment.loss.anchors,
    )
    if is_both:
      task = finetuned_draft_task(
        target, draft, experiment.loss, experiment.p1_share, experiment.run.label_smoothing
      )
    else:
      task = frozen_draft_task(target, draft, experiment.loss)

    def parts(params: Params) -> tuple[Bound, Bound]:
      learnt, of_target = (params['heads'], params['model']) if is_both else (params, target.params)
      return Bound(draft.module, learnt | fixed), Bound(target.module, of_target)

    def evaluate(params: Params) -> dict[str, float]:
      found = {}
      for name, batches in (('dev', dev), ('training', sample)):
        for what, value in draft_accuracy(*parts(params), batches, depth, anchors).items():
          found[f'{name} {what}'] = value
      return found

    def save(params: Params) -> None:
      learnt, of_target = parts(params)
      if is_both:
        folders.save(
          self.workdir / 'model', target.module, of_target.params, material.tokenizer_path
        )
      warmth = warmth_of(learnt, of_target, dev, depth, anchors)
      save_draft(self.result, (draft.module, learnt.params | {'warmth': jnp.asarray(warmth)}))

    return Job(task, evaluate, save)

  def _check_text(self) -> None:
    """Raises UserError where the text is not for this regime."""
    own, distilled = self.experiment.data.own, self.experiment.data.distilled
    if self.experiment.regime == 'both' and (own or not distilled):
      remedy = 'name it by --config.data.distilled=..., and leave out config.data.own'
      raise UserError(f"regime=both trains the base too, on a teacher's text: {remedy}")

  def _target(self) -> Bound:
    """The base, without heads that it may have."""
    folder = folders.open(self.base)
    model, params = folder.model, folder.params(as_stored=True)
    if isinstance(model, Transformed):
      model, params = model.model, params['model']
    return Bound(model, params)

  def _text(self, model: Any) -> OnModelText:
    return self.experiment.text(model.model if isinstance(model, Transformed) else model)

  def _partition(self, target: Bound, draft: Any) -> Table:
    devices = self.experiment.mesh.model
    return (*partition_of(target.module, devices), *partition_of(draft, devices))

  def _inputs(self) -> tuple[dict[str, str], str]:
    contents = {'base': folders.content(self.base)}
    if self.experiment.draft.begins_trained:
      contents['init'] = draft_content(self.experiment.draft.init)
    return contents, self._text(folders.open(self.base).model).distilled_key()

  def _names_of_inputs(self) -> tuple[str, str]:
    return str(self.base), self.experiment.data.own or self.experiment.data.distilled

  def _record(
    self, base: Mapping[str, Any], distilled: str, content: str | None = None
  ) -> dict[str, Any]:
    experiment = self.experiment
    own = "the base's" if experiment.data.own else ''
    data = dataclasses.replace(experiment.data, distilled=distilled, own=own)
    parts = {
      'draft': experiment.draft,
      'loss': experiment.loss,
      'data': data,
      'training': experiment.run,
    }
    plain = {name: dataclasses.asdict(part) for name, part in parts.items()}
    if self.experiment.draft.begins_trained:
      plain['draft']['init'] = 'a trained draft'  # which one, `base` says: its 'init'
    if content is not None:
      plain['data']['content'] = content
    together = {'p1_share': experiment.p1_share} if experiment.regime == 'both' else {}
    named = {'kind': experiment.kind, 'regime': experiment.regime, 'seed': experiment.seed}
    return {**named, **together, **plain, **base}


def differences(known: DraftNetwork, wanted: DraftNetwork) -> list[str]:
  """The settings by which one draft is not the other; those that no parameter was trained with do
  not count."""
  found = []
  for part, at, to in (('', known, wanted), ('layers.', known.layers, wanted.layers)):
    if type(at) is not type(to):
      return [f'{part}{type(at).__name__} for {type(to).__name__}']
    names = [field.name for field in dataclasses.fields(at) if not _is_free(field.name)]
    found += [part + name for name in names if getattr(at, name) != getattr(to, name)]
  return found


def _is_free(name: str) -> bool:
  return name in ('layers', 'dtype', 'candidates') or name.endswith('dropout')
