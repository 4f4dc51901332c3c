"""The training runs of the translation experiments: the base model, and heads on it, frozen or fine-tuned."""

import dataclasses
import pathlib
from typing import Any

import jax

from experiments.translation import Experiment, Text
from fastdec import folders
from fastdec.errors import UserError
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.training.checkpoint import average_checkpoints, check_workdir, claim_workdir
from fastdec.training.loop import train
from fastdec.training.losses import dev_loss, head_accuracy
from fastdec.training.state import Task, base_task, finetuned_heads_task, frozen_heads_task


def train_base(experiment: Experiment, workdir: pathlib.Path, budget: float | None = None) -> bool:
  """Trains the base model, or goes on; True when it is finished and `workdir/model` is written."""
  text = Text.of(experiment)
  model = experiment.transformer(text.tokenizer.vocab_size)
  task = base_task(model, experiment.train.label_smoothing)
  dev = text.dev_batches()
  evaluate = lambda params: dev_loss(model, params, dev)
  params = _run(experiment, 1, '', text, task, evaluate, workdir, budget)
  if params is not None:
    folders.save(workdir / 'model', model, params, text.tokenizer_path)
  return params is not None


def train_heads(
  experiment: Experiment,
  k: int,
  tune: str,
  base: str | pathlib.Path,
  workdir: pathlib.Path,
  budget: float | None = None,
) -> bool:
  """Trains heads for block size k on the base model, or goes on; True when `workdir/model` is written.

  Args:
    experiment: the settings.
    k: 2 or more.
    tune: 'freeze' leaves the trunk as it is (the paper's 'regular'), 'finetune' trains it on.
    base: the workdir of the finished base run; with tune='finetune' it may be one with frozen heads for the same k,
      which are then trained on.
    workdir: of this run.
    budget: seconds after which to stop, to be continued.
  """
  model, trunk = folders.load(base)
  text = Text.of(experiment)
  if model != experiment.transformer(text.tokenizer.vocab_size):
    raise UserError(f'{base} holds another model than this config means: give the base run of the same config')
  if folders.load_tokenizer(base).model_proto != text.tokenizer.model_proto:
    raise UserError(f'{base} was trained on other text than this config means: give the base run of the same config')
  heads = experiment.blockwise(k)
  split = (lambda params: (trunk, params)) if tune == 'freeze' else (lambda params: (params['model'], params['heads']))
  dev = text.dev_batches()

  def evaluate(params: Any) -> dict[str, float]:
    accuracy = head_accuracy(model, heads, *split(params), dev)
    return {f'accuracy of head {i}': value for i, value in enumerate(accuracy, start=1)}

  smoothing = experiment.run(k, tune).label_smoothing
  if tune == 'freeze':
    task = frozen_heads_task(model, heads, trunk, smoothing)
  else:
    task = finetuned_heads_task(model, heads, trunk, _heads_of(base, heads), experiment.heads.p1_share, smoothing)
  params = _run(experiment, k, tune, text, task, evaluate, workdir, budget)
  if params is not None:
    model_params, head_params = split(params)
    folders.save(workdir / 'model', model, model_params, text.tokenizer_path, (heads, head_params))
  return params is not None


def _heads_of(base: str | pathlib.Path, wanted: BlockwiseHeads) -> Any:
  """The parameters of the base's heads, None where it has none."""
  if not folders.has_heads(base):
    return None
  heads, params = folders.load_heads(base)
  if heads != wanted:
    raise UserError(f'{base} has {heads}, and this config means {wanted}: give the base run, or one with these heads')
  return params


def train_run(
  experiment: Experiment, k: int, tune: str, base: pathlib.Path, workdir: pathlib.Path, budget: float | None = None
) -> bool:
  """`train_base` for k = 1, else `train_heads`."""
  if k == 1:
    return train_base(experiment, workdir, budget)
  return train_heads(experiment, k, tune, base, workdir, budget)


def is_finished(workdir: pathlib.Path) -> bool:
  """True where a training run has left its model."""
  return (workdir / 'model' / 'config.json').is_file()


def check_run(experiment: Experiment, k: int, tune: str, workdir: pathlib.Path) -> None:
  """Raises UserError where the workdir is no folder, or holds a run of another config."""
  check_workdir(workdir, _record(experiment, k, tune))


def _record(experiment: Experiment, k: int, tune: str) -> dict[str, Any]:
  """What a run is asked to be: its `workdir/config.json`."""
  heads = {'k': k, 'tune': tune, 'heads': dataclasses.asdict(experiment.heads)} if k > 1 else {}  # first told first
  shared = {'data': dataclasses.asdict(experiment.data), 'model': dataclasses.asdict(experiment.model)}
  return {**heads, 'seed': experiment.seed, **shared, 'training': dataclasses.asdict(experiment.run(k, tune))}


def _run(
  experiment: Experiment,
  k: int,
  tune: str,
  text: Text,
  task: Task,
  evaluate: Any,
  workdir: pathlib.Path,
  budget: float | None,
) -> Any:
  """The averaged parameters of a finished run, or None where the budget ended first."""
  config, batches = experiment.run(k, tune), text.train_batches()
  claim_workdir(workdir, _record(experiment, k, tune))  # all that may be wrong with a config has shown
  key = jax.random.key(experiment.seed)
  optimizer = config.optimizer(experiment.model.d_model)
  trained = train(task, batches, optimizer, config.loop(), workdir, key, evaluate, budget)
  return average_checkpoints(workdir, config.average) if trained.is_finished else None
