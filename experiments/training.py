"""The training runs of the translation experiments: the base model, and heads on it, frozen or fine-tuned."""

import dataclasses
import pathlib
from typing import Any

import jax

from experiments.translation import Experiment, RunConfig, Text
from fastdec import folders
from fastdec.errors import UserError
from fastdec.training.checkpoint import average_checkpoints, claim_workdir
from fastdec.training.loop import LoopConfig, train
from fastdec.training.losses import dev_loss, head_accuracy
from fastdec.training.optimizer import OptimizerConfig
from fastdec.training.state import Task, base_task, finetuned_heads_task, frozen_heads_task


def train_base(experiment: Experiment, workdir: pathlib.Path, budget: float | None = None) -> bool:
  """Trains the base model, or goes on; True when it is finished and `workdir/model` is written."""
  text = Text.of(experiment)
  model = experiment.transformer(text.tokenizer.vocab_size)
  task = base_task(model, experiment.train.label_smoothing)
  dev = text.dev_batches()
  evaluate = lambda params: dev_loss(model, params, dev)
  params = _run(experiment, text, task, {}, experiment.train, evaluate, workdir, budget)
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
    base: the workdir of the finished base run.
    workdir: of this run.
    budget: seconds after which to stop, to be continued.
  """
  model, trunk = folders.load(base)
  text = Text.of(experiment)
  if model != experiment.transformer(text.tokenizer.vocab_size):
    raise UserError(f'{base} holds another model than this config means: give the base run of the same config')
  heads = experiment.blockwise(k)
  config: RunConfig = getattr(experiment, tune)
  make_task = frozen_heads_task if tune == 'freeze' else finetuned_heads_task
  split = (lambda params: (trunk, params)) if tune == 'freeze' else (lambda params: (params['model'], params['heads']))
  dev = text.dev_batches()

  def evaluate(params: Any) -> dict[str, float]:
    accuracy = head_accuracy(model, heads, *split(params), dev)
    return {f'accuracy of head {i}': value for i, value in enumerate(accuracy, start=1)}

  task = make_task(model, heads, trunk, config.label_smoothing)
  params = _run(experiment, text, task, {'heads': heads, 'tune': tune}, config, evaluate, workdir, budget)
  if params is not None:
    model_params, head_params = split(params)
    folders.save(workdir / 'model', model, model_params, text.tokenizer_path, (heads, head_params))
  return params is not None


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


def _run(
  experiment: Experiment,
  text: Text,
  task: Task,
  what: dict[str, Any],
  config: RunConfig,
  evaluate: Any,
  workdir: pathlib.Path,
  budget: float | None,
) -> Any:
  """The averaged parameters of a finished run, or None where the budget ended first."""
  asked = {'seed': experiment.seed, 'data': experiment.data, 'model': experiment.model, **what, 'training': config}
  plain = lambda x: dataclasses.asdict(x) if dataclasses.is_dataclass(x) else x
  claim_workdir(workdir, {name: plain(value) for name, value in asked.items()})
  optimizer = OptimizerConfig(
    d_model=experiment.model.d_model, schedule=config.schedule, constant=config.constant, warmup=config.warmup
  )
  loop = LoopConfig(
    config.steps,
    log_every=min(50, config.every),
    eval_every=config.every,
    checkpoint_every=config.every,
    keep=config.average,
  )
  key = jax.random.key(experiment.seed)
  trained = train(task, text.train_batches(), optimizer, loop, workdir, key, evaluate, budget)
  return average_checkpoints(workdir, config.average) if trained.is_finished else None
