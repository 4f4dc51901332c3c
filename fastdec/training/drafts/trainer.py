"""Trains a drafter on a finished model: a draft network, or prediction heads.

`fastdec train-draft` and the experiments are two doors to this trainer. Both give a folder, which
is a stage (`training.stage`): a killed training resumes exactly. They differ in their text and in
how they read the base, so they hand over `data`, whose `open()` returns the material:

  read_base(base)                  the model that drafts are trained on, and its parameters
  written_words()                  all tokens of the training text
  train_batches(rows, order)       endless packed batches
  draft_batches(), dev_batches()   held-out batches, on which networks and heads are evaluated
  with_states(base, taps)          the material, perhaps with the base's states, kept on the disk
  save(folder, base, heads)        writes the base, with heads on it
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastdec import folders
from fastdec.errors import UserError
from fastdec.folders.drafts import save_draft
from fastdec.heads.transformed import without_heads
from fastdec.kernels.sharding import MeshConfig
from fastdec.models.api import Params
from fastdec.struct import Bound
from fastdec.training.drafts.calibration import fit_temperatures
from fastdec.training.drafts.losses import DraftLoss, draft_accuracy
from fastdec.training.drafts.tasks import finetuned_draft_task, frozen_draft_task, split
from fastdec.training.losses import Batch, head_accuracy
from fastdec.training.run import RunConfig, Training, carry_out
from fastdec.training.state import Task, finetuned_heads_task, frozen_heads_task

SAMPLE = 16  # batches of the training text, on which a network is evaluated too


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnBase:
  """A training on a finished base.

  Attributes:
    base: names the finished base, for the data to read.
    data: the text or images to train on; see the top of this file.
    run: steps, rate and so on.
    seed: draws the first parameters and the dropout.
    order: draws the order of the batches.
    mesh: the devices; they change nothing but rounding.
  """

  base: Any
  data: Any
  run: RunConfig
  seed: int
  order: int
  mesh: MeshConfig = MeshConfig()


def plan_network(
  folder: pathlib.Path,
  draft: Any,
  loss: DraftLoss,
  on: OnBase,
  p1_share: float = 0.0,
  sample: int = SAMPLE,
) -> Training:
  """Plans to train a draft network on a finished base, and to calibrate it.

  Args:
    folder: of the stage. It gets draft/, and model/ if the base learns too.
    draft: settings of the network (`drafts.settings`).
    loss: of a place in the text.
    on: base, data and settings.
    p1_share: share of the loss that is the base's own; 0: the base stays as it is.
    sample: batches of the training text on which the network is evaluated too.
  """
  # Read the base, and make the network that training begins with.
  material = on.data.open()
  target = material.read_base(on.base)
  key = jax.random.fold_in(jax.random.key(on.seed), 1)
  start = draft.begin(target, key, material.written_words())
  module, fixed = start.module, split(start.params)[1]
  material = material.with_states(target, module.taps)
  batches = material.train_batches(on.run.rows, on.order)
  samples = {'dev': material.draft_batches()}
  if sample:
    samples['training'] = [batches[i] for i in range(sample)]
  if getattr(module, 'edge', None) == 'rnn':  # its loss changes during training
    batches = batches.map_with_index(functools.partial(_add_share, steps=on.run.steps))
  if p1_share:
    task = finetuned_draft_task(target, start, loss, p1_share, on.run.label_smoothing)
  else:
    task = frozen_draft_task(target, start, loss)

  def separate(params: Params) -> tuple[Bound, Bound]:
    """Returns the network and the base, of what is trained."""
    if p1_share:
      return Bound(module, params['heads'] | fixed), Bound(target.module, params['model'])
    return Bound(module, params | fixed), target

  def evaluate(params: Params) -> dict[str, float]:
    figures = {}
    for name, sample in samples.items():
      accuracy = draft_accuracy(*separate(params), sample, draft.depth, loss.anchors)
      for figure, value in accuracy.items():
        figures[f'{name} {figure}'] = value
    return figures

  def save(params: Params) -> None:
    learnt, base = separate(params)
    if p1_share:
      material.save(folder, base)
    kept = dict(learnt.params)
    if getattr(module, 'edge_kind', None) != 'correlator':  # whose scores have their own scale
      warmth = fit_temperatures(learnt, base, samples['dev'], draft.depth, loss.anchors)
      kept['warmth'] = jnp.asarray(warmth)
    save_draft(folder / 'draft', (module, kept))

  return Training(task, batches, [target.module, module], save, evaluate)


def _add_share(index: int, batch: Batch, steps: int) -> Batch:
  """Adds the share of the training that was done before this batch, for each row."""
  share = np.full(len(batch['target']), min(index / steps, 1.0), np.float32)
  return {**batch, 'share': share}


def plan_heads(
  folder: pathlib.Path, heads: Any, k: int, on: OnBase, together: bool = False
) -> Training:
  """Plans to train heads on a finished base, which stays as it is or learns along with them.

  If the base has heads of the same kind, for this k or (nested ones) more, training together begins
  with those.

  Args:
    folder: of the stage.
    heads: settings: `module(model, k)`, `fresh(module, model, trunk)` (parameters to begin with, or
      None), draw, decay, anchors, p1_share.
    k: tokens of a block.
    on: base, data and settings.
    together: whether the base learns too.
  """
  material = on.data.open()
  model, trunk = material.read_base(on.base)
  module = heads.module(model, k)
  dev = material.dev_batches()
  start = heads.fresh(module, model, trunk)
  if together:
    start = read_heads(on.base, module) or start
  task = heads_task(model, module, trunk, heads, together, on.run.label_smoothing, start)

  def separate(params: Params) -> tuple[Params, Params]:
    """Returns the base's and the heads' parameters, of what is trained."""
    if together:
      return params['model'], params['heads']
    return trunk, params

  def evaluate(params: Params) -> dict[str, float]:
    accuracy = head_accuracy(model, module, *separate(params), dev)
    return {f'accuracy of head {i}': value for i, value in enumerate(accuracy, start=1)}

  def save(params: Params) -> None:
    of_model, of_heads = separate(params)
    material.save(folder, Bound(model, of_model), (module, of_heads))

  batches = material.train_batches(on.run.rows, on.order)
  return Training(task, batches, [model, module], save, evaluate if dev else None)


def train(plan: Callable[..., Training], folder: pathlib.Path, **inputs: Any) -> None:
  """Carries out in a folder what `plan` returns; inputs are its own, and the fields of `OnBase`."""
  on_base = {}
  for field in dataclasses.fields(OnBase):
    if field.name in inputs:
      on_base[field.name] = inputs.pop(field.name)
  on = OnBase(**on_base)
  carry_out(folder, plan(folder, on=on, **inputs), on.run, on.seed, on.mesh)


train_network = functools.partial(train, plan_network)
train_heads = functools.partial(train, plan_heads)


def heads_task(
  model: Any,
  module: Any,
  trunk: Params,
  heads: Any,
  together: bool,
  smoothing: float,
  start: Params | None = None,
) -> Task:
  """Returns the task of `train_heads`: heads on the trunk of a model, which learns too if both are
  trained together; they begin with `start`, or fresh."""
  settings: Any = {'draw': heads.draw, 'decay': heads.decay, 'anchors': heads.anchors}
  settings |= {'smoothing': smoothing, 'start': start}
  if together:
    return finetuned_heads_task(model, module, trunk, p1_share=heads.p1_share, **settings)
  return frozen_heads_task(model, module, trunk, **settings)


def read_trunk(folder: pathlib.Path) -> Bound:
  """Reads the model of a finished run, without heads that change its p1."""
  opened = folders.open(folder)
  return Bound(*without_heads(opened.model, opened.params(as_stored=True)))


def read_heads(folder: pathlib.Path, wanted: Any) -> Params | None:
  """Reads the heads in a folder, or the first ones if it has more; None without heads.

  Raises:
    UserError: they are not heads of the wanted kind.
  """
  opened = folders.open(folder)
  if not opened.has_heads:
    return None
  module, params = opened.heads, opened.head_params(as_stored=True)
  if module == wanted:
    return params
  is_longer = module.are_nested and module.k > wanted.k
  if not (is_longer and dataclasses.replace(module, k=wanted.k) == wanted):
    raise UserError(f'{folder} has {module}, and this config means {wanted}: give the base run')
  return module.drafting(params, wanted.depth)[1]
