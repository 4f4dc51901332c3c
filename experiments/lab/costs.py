"""What stages need and cost: one function for each that makes them.

`NEEDS` is the cheap part, which every command asks before any work: memory for weights and
optimizer, disk for checkpoints and texts. `COSTS` is for `--plan`. On a GPU a training step is
counted (`machine.py`), and a call of decoding by shapes: the weights and the cache that it reads,
its products, and the kernels of its layers. On this machine steps and calls are timed. Tokens of a
text that is not there yet are assumed.
"""

import dataclasses
import functools
import math
import pathlib
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import own, train
from experiments.lab.machine import Count, Machine, count_program
from experiments.lab.own import DistillConfig
from experiments.lab.plan import Cost, Plan
from experiments.lab.text import TextConfig
from fastdec import folders
from fastdec.data.images import celeba
from fastdec.data.text import wmt14
from fastdec.data.text.corpus import open_text
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.evaluation.calls import DECODER, Calls, FreeDraft, random_params
from fastdec.evaluation.wallclock import measure
from fastdec.kernels.packing import pack_if_faster
from fastdec.kernels.sharding import MeshConfig
from fastdec.struct import Bound
from fastdec.training.drafts.trainer import heads_task, train_heads
from fastdec.training.loop import make_step
from fastdec.training.run import RunConfig, Training, time_step
from fastdec.training.state import Task, TrainState, base_task

CHARACTERS = 4  # of a token
SAMPLE = 1000  # pairs whose characters are counted
CALLS = 8  # that are timed together
LAYER = 12  # kernels of a decoder's layer in a call


# --- data and models


class Facts(NamedTuple):
  """A text or images: numbers of examples, and what is not there."""

  counts: dict[str, int]  # pairs or images of each split
  tokens: float  # of a side of a pair, or of an image
  missing: str = ''  # says what is not there and what to do; '': all is
  download: float = 0  # bytes
  disk: float = 0  # bytes that the prepared set and its ids take


@functools.cache
def read_facts(data: Any) -> Facts:
  """Returns the facts of a text or of images; nothing is prepared.

  Raises:
    UserError: files are missing, and their size is unknown.
  """
  # Text that is there is counted; so are images.
  if data.kind in ('embedded', 'files') and isinstance(data, TextConfig):
    with tempfile.TemporaryDirectory() as cache:
      text = open_text(data.data, cache)
      lengths = [len(source) + len(target) for source, target in text.pairs('train', SAMPLE)]
      return Facts(dict(text.counts), sum(lengths) / len(lengths) / 2 / CHARACTERS + 1)
  if data.kind in ('embedded', 'npz'):
    return Facts(data.images.counts, 3 * data.side**2)

  # The papers' own sets are known, and may be missing.
  missing = ''
  try:
    if not isinstance(data, TextConfig):
      celeba.from_tfds(data.folder, data.max_train or None, data.side)
    elif data.kind == 'tfds':
      wmt14.from_tfds(data.folder, data.source, data.target)
    else:
      wmt14.in_archives(data.folder, data.source, data.target)
  except UserError as error:
    missing = str(error)
  if not isinstance(data, TextConfig):
    sizes = celeba.DOWNLOAD, 2 * celeba.DOWNLOAD
    return Facts(celeba.COUNTS, 3 * data.side**2, missing, *sizes)
  ids = 2 * 4 * wmt14.TOKENS * wmt14.COUNTS['train']
  return Facts(wmt14.COUNTS, wmt14.TOKENS, missing, wmt14.DOWNLOAD, 2 * wmt14.DOWNLOAD + ids)


def model_over(model: Any, data: Any) -> Any:
  """Returns the model of these sizes over the text's words, or of images."""
  if isinstance(data, TextConfig):
    model = dataclasses.replace(model, vocab_size=data.vocab_size)
  return folders.model_of(model)


def model_of_stage(plan: Plan, folder: pathlib.Path) -> Any:
  """Returns the model of a planned stage, or of a finished run outside the workdir."""
  inputs = plan.inputs.get(folder)
  if inputs is None:
    return folders.open(folder).model
  if 'model' in inputs:
    return model_over(inputs['model'], inputs['data'])
  return model_of_stage(plan, inputs['base'])


def count_numbers(tree: Any) -> int:
  """Returns how many entries the arrays of a tree have."""
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


# --- what stages need


class Trained(NamedTuple):
  """What a training trains: a model, or heads on it (None: none)."""

  model: Any
  heads: Any
  settings: Any  # of the heads
  together: bool  # the model learns too
  smoothing: float  # of labels

  def task(self, trunk: Any) -> Task:
    """Returns the task on these parameters of the model."""
    if self.heads is None:
      return base_task(self.model, self.smoothing)
    return heads_task(self.model, self.heads, trunk, self.settings, self.together, self.smoothing)


@functools.cache
def count_parameters(kind: Trained) -> tuple[int, int]:
  """Returns the numbers of parameters that are trained, and of all."""
  key = jax.eval_shape(lambda: jax.random.key(0))
  trunk = jax.eval_shape(kind.model.init, key)
  params = jax.eval_shape(lambda key, trunk: kind.task(trunk).init(key), key, trunk)
  trained = count_numbers(params)
  return trained, trained + count_numbers(kind.task(trunk).frozen)


def find_trained(
  plan: Plan, *, run: RunConfig, data: Any, model: Any = None, base: pathlib.Path | None = None,
  heads: Any = None, k: int = 0, together: bool = False, **_: Any,
) -> Trained:  # fmt: skip
  """Returns what `train.base`, or `train_heads` on a base, trains."""
  if base is None:
    return Trained(model_over(model, data), None, None, False, run.label_smoothing)
  trunk = model_of_stage(plan, base)
  return Trained(trunk, heads.module(trunk, k), heads, together, run.label_smoothing)


def needs_of_training(
  plan: Plan, *, run: RunConfig, mesh: MeshConfig = MeshConfig(), **inputs: Any
) -> Cost:
  """Returns what a training needs for its weights, gradients and Adam's moments, and for its
  checkpoints. A step is not traced, which takes longer: what it needs for a batch is left out."""
  kind = find_trained(plan, run=run, **inputs)
  trained, all_of = count_parameters(kind)
  what = 'base'
  if kind.heads is not None:
    what = f'heads for k={inputs["k"]}'
  if kind.together:
    what += ', with the base'
  return Cost(
    f'trains {what}, {shorten(trained)} of {shorten(all_of)} parameters', run.steps,
    step=Count(memory=4 * (all_of + 3 * trained) / mesh.model),
    disk=4 * all_of, scratch=3 * 4 * trained * (len(run.loop().kept) + 2),
  )  # fmt: skip


def needs_of_text(plan: Plan, *, data: TextConfig, distill: DistillConfig, **_: Any) -> Cost:
  """Returns what `own.translations` needs: the disk for lines and ids."""
  facts = read_facts(data)
  n = min(data.max_train or math.inf, facts.counts['train'])
  what, tokens = f'translates {n:,.0f} sentences, beam {distill.beam}', n * facts.tokens
  return Cost(what, tokens=tokens, disk=2 * tokens * (4 + CHARACTERS))


def check_room(
  costs: Sequence[Cost], machine: Machine, root: pathlib.Path, disk: float = 0.0
) -> None:
  """Raises UserError where stages need more memory or, with `disk` bytes for the data, more disk
  than there is."""
  memory, scratch = 0.0, 0.0
  for cost in costs:
    memory, scratch = max(memory, cost.step.memory), max(scratch, cost.scratch)
    disk += cost.disk
  if memory > machine.memory:
    raise UserError(
      f'a step needs {shorten(memory, "B")} of memory, and a device of {machine.name} has'
      f' {shorten(machine.memory, "B")}: give a smaller model, more devices, or'
      ' --config.train.accumulate=2'
    )
  free = shutil.disk_usage(next(path for path in (root, *root.parents) if path.exists())).free
  if disk + scratch > free:
    raise UserError(
      f'this takes {shorten(disk + scratch, "B")} of disk, and {root} has {shorten(free, "B")}:'
      ' choose another workdir'
    )


# --- what they cost


def training(plan: Plan, *, run: RunConfig, data: Any, **inputs: Any) -> Cost:
  """Returns the cost of `train.base`, or of `train_heads` on a base, on all devices that the rows
  divide over."""
  cost = needs_of_training(plan, run=run, data=data, **inputs)
  trained = find_trained(plan, run=run, data=data, **inputs)
  rows, machine = run.rows or data.rows, plan.machine
  cost.devices = math.gcd(rows // run.accumulate, machine.devices)

  # A batch has the same rows on each device.
  shape = rows // cost.devices, getattr(data, 'row_length', 0) or trained.model.fixed_length
  usual = dataclasses.replace(run, steps=10**6, every=1, average=1, rows=0)
  cost.step = _count_step(machine, trained, usual, shape)
  exchange = machine.exchange_seconds(4 * count_parameters(trained)[0], cost.devices)
  cost.tokens = run.steps * rows * shape[1]
  cost.seconds = run.steps * (cost.step.seconds + exchange)
  return cost


@functools.cache
def _count_step(
  machine: Machine, trained: Trained, run: RunConfig, shape: tuple[int, int]
) -> Count:  # fmt: skip
  """Counts the step that training runs."""
  model, optimizer = trained.model, run.optimizer(trained.model.d_model)
  sides = ('target',) if model.fixed_length else ('target', 'source')
  batch = {}
  for side in sides:
    for name in (side, f'{side}_segment', f'{side}_position'):
      batch[name] = np.ones(shape, np.int32)
  if model.fixed_length:
    batch['source'] = np.zeros((shape[0], 8, 8, 3), np.uint8)

  # Trace the step on shapes.
  key = jax.eval_shape(lambda: jax.random.key(0))
  trunk, transform = jax.eval_shape(model.init, key), optimizer.build()
  state = jax.eval_shape(
    lambda key, trunk: TrainState.create(trained.task(trunk), transform, key), key, trunk
  )
  task = trained.task(trunk)
  step: Any = make_step(task, transform, optimizer.learning_rate, run.accumulate)
  count = count_program(step.trace(state, task.frozen, batch).jaxpr.jaxpr, machine)

  # Time it here, if it fits.
  if not machine.flops and count.memory < machine.memory:
    real = Training(trained.task(model.init(jax.random.key(0))), [batch] * 4, [model], print)
    count.seconds = time_step(real, run, MeshConfig())
  return count


def translations(plan: Plan, *, model: pathlib.Path, data: Any, distill: Any, **_: Any) -> Cost:
  """Returns the cost of `own.translations`."""
  cost, tokens = needs_of_text(plan, data=data, distill=distill), read_facts(data).tokens
  cost.devices = math.gcd(distill.rows, plan.machine.devices)
  rows = distill.rows // cost.devices * max(distill.beam, distill.samples)
  cost.steps = cost.tokens / distill.rows
  module = model_of_stage(plan, model)
  cost.seconds = cost.steps * call_seconds(plan.machine, module, rows, 1, tokens)
  return cost


@functools.cache
def call_seconds(machine: Machine, model: Any, rows: float, width: int, tokens: float) -> float:
  """Returns the seconds of a call: it reads the decoder, the projection on words and a cache that
  is half full, and multiplies them by each token. Here it is timed; its drafts cost nothing."""
  if not machine.flops:
    target = Bound(*pack_if_faster(model, random_params(model, 0, 'float32')))
    inputs, tokens = np.ones((math.ceil(rows), math.ceil(tokens)), np.int32), math.ceil(tokens)
    if model.fixed_length:
      inputs = np.zeros((len(inputs), 8, 8, 3), np.uint8)
    drafter = FreeDraft(Topology.chain(width))
    calls = Calls.after_prompt(target, drafter, inputs, tokens, CALLS)
    return measure({'calls': calls}, 3)['calls'].median / CALLS

  params = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)))
  layers = [value for name, value in params.items() if name.startswith(DECODER)]
  read = count_numbers(layers) + model.vocab_size * model.d_model
  cache = rows * len(layers) * 2 * 2 * tokens / 2 * model.d_model
  flops, dtype = 2 * rows * width * read + 2 * width * cache, model.config.dtype
  size = (read + cache) * jnp.dtype(dtype).itemsize / machine.bandwidth
  return max(flops / machine.flops[dtype], size, len(layers) * LAYER * machine.launch)


NEEDS = {
  train.base: needs_of_training,
  train_heads: needs_of_training,
  own.translations: needs_of_text,
}
COSTS = {train.base: training, train_heads: training, own.translations: translations}


def shorten(number: float, unit: str = '') -> str:
  """Returns a number in three digits: 1.23 G, or 1.23 GB."""
  for prefix, size in (('P', 1e15), ('T', 1e12), ('G', 1e9), ('M', 1e6), ('k', 1e3)):
    if number >= size:
      return f'{number / size:.3g} {prefix}{unit}'
  return f'{number:.0f} {unit}'.strip()
