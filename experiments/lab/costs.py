"""What stages need and cost: one function for each that makes them.

A plan without a machine, which every command makes before any work, asks only for what is cheap to
know: memory for weights and optimizer, disk for checkpoints and texts. `--plan` asks for all. On a
GPU a training step is counted (`machine.py`), and a call of decoding by shapes: the weights and the
cache that it reads, its products, and the kernels of its layers. On this machine steps and calls
are compiled and timed. Tokens of a text that is not there yet are assumed.
"""

import dataclasses
import functools
import math
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import own, train
from experiments.lab.machine import Count, Machine, count_program
from experiments.lab.plan import Cost, Plan
from experiments.lab.text import TextConfig
from fastdec import folders
from fastdec.data.images import celeba
from fastdec.data.text import wmt14
from fastdec.data.text.corpus import open_text
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.evaluation import wallclock
from fastdec.evaluation.calls import DECODER, Calls, FreeDraft, random_params
from fastdec.kernels.packing import pack_if_faster
from fastdec.kernels.sharding import MeshConfig
from fastdec.struct import Bound
from fastdec.training.drafts.trainer import heads_task, train_heads
from fastdec.training.loop import make_step
from fastdec.training.losses import dev_loss, head_accuracy
from fastdec.training.run import RunConfig, Training, time_step
from fastdec.training.state import Task, TrainState, base_task

CHARACTERS = 4  # of a token
SAMPLE = 1000  # pairs whose characters are counted
CALLS = 8  # that are timed together
INPUT = 5.6e6  # tokens a second that a core of a Xeon lays out in batches (benchmarks/inputs.py)
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


# --- trainings


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
def shapes_of(kind: Trained) -> tuple[Any, Any, Any]:
  """Returns shapes of a key, of the model's parameters, and of those that are trained."""
  key = jax.eval_shape(lambda: jax.random.key(0))
  trunk = jax.eval_shape(kind.model.init, key)
  return key, trunk, jax.eval_shape(lambda key, trunk: kind.task(trunk).init(key), key, trunk)


def training(
  plan: Plan, *, run: RunConfig, data: Any, model: Any = None, base: pathlib.Path | None = None,
  heads: Any = None, k: int = 0, together: bool = False, mesh: MeshConfig = MeshConfig(), **_: Any,
) -> Cost:  # fmt: skip
  """Returns the cost of `train.base`, or of `train_heads` on a base, on all devices that the rows
  divide over. It needs memory for weights, gradients and Adam's moments; what a step needs besides
  is known once it is traced, which takes longer."""
  what, module = 'base', None
  if base is None:
    trunk = model_over(model, data)
  else:
    trunk = model_of_stage(plan, base)
    what, module = f'heads for k={k}', heads.module(trunk, k)
    if together:
      what += ', with the base'
  kind = Trained(trunk, module, heads, together, run.label_smoothing)
  _, shapes, learnt = shapes_of(kind)
  trained = count_numbers(learnt)
  all_of = trained + count_numbers(kind.task(shapes).frozen)
  cost = Cost(
    f'trains {what}, {shorten(trained)} of {shorten(all_of)} parameters', run.steps,
    step=Count(memory=4 * (all_of + 3 * trained) / mesh.model),
    disk=4 * all_of, scratch=3 * 4 * trained * (len(run.loop().kept) + 2),
  )  # fmt: skip
  if plan.machine is None:
    return cost

  # A batch has the same rows on each device.
  rows, machine = run.rows or data.rows, plan.machine
  cost.devices = math.gcd(rows // run.accumulate, machine.devices)
  shape = rows // cost.devices, getattr(data, 'row_length', 0) or trunk.fixed_length
  usual = dataclasses.replace(run, steps=10**6, every=1, average=1, rows=0)
  cost.step, compiling = _count_step(machine, kind, usual, shape)
  exchange = machine.exchange_seconds(4 * trained, cost.devices)
  cost.tokens = run.steps * rows * shape[1]
  cost.seconds = compiling + run.steps * (cost.step.seconds + exchange)
  return cost


@functools.cache
def _count_step(
  machine: Machine, trained: Trained, run: RunConfig, shape: tuple[int, int]
) -> tuple[Count, float]:
  """Counts the step that training runs; also returns the seconds of compiling here."""
  model, optimizer = trained.model, run.optimizer(trained.model.d_model)
  sides = ('target',) if model.fixed_length else ('target', 'source')
  batch = {}
  for side in sides:
    for name in (side, f'{side}_segment', f'{side}_position'):
      batch[name] = np.ones(shape, np.int32)
  if model.fixed_length:
    batch['source'] = np.zeros((shape[0], 8, 8, 3), np.uint8)

  # Trace the step on shapes.
  (key, trunk, _), transform = shapes_of(trained), optimizer.build()
  state = jax.eval_shape(
    lambda key, trunk: TrainState.create(trained.task(trunk), transform, key), key, trunk
  )
  task = trained.task(trunk)
  step: Any = make_step(task, transform, optimizer.learning_rate, run.accumulate)
  count, compiling = count_program(step.trace(state, task.frozen, batch).jaxpr.jaxpr, machine), 0.0

  # Time it here, if it fits.
  if not machine.flops and count.memory < machine.memory:
    params = model.init(jax.random.key(0))
    evaluate = functools.partial(dev_loss, model, params)
    if trained.heads is not None:
      heads = trained.heads.init(jax.random.key(0))
      evaluate = functools.partial(head_accuracy, model, trained.heads, params, heads)
    real, began = Training(trained.task(params), [batch] * 4, [model], print), wallclock.now()
    count.seconds = time_step(real, run, MeshConfig())
    evaluate([batch])
    compiling = wallclock.now() - began - 4 * count.seconds
  return count, compiling


# --- decoding


def translations(plan: Plan, *, model: pathlib.Path, data: Any, distill: Any, **_: Any) -> Cost:
  """Returns the cost of `own.translations`. It needs the disk for lines and ids."""
  facts = read_facts(data)
  n = min(data.max_train or math.inf, facts.counts['train'])
  tokens = n * facts.tokens
  disk = 2 * tokens * (4 + CHARACTERS)
  cost = Cost(f'translates {n:,.0f} sentences, beam {distill.beam}', tokens=tokens, disk=disk)
  if plan.machine is None:
    return cost
  cost.devices = math.gcd(distill.rows, plan.machine.devices)
  rows = distill.rows // cost.devices * max(distill.beam, distill.samples)
  cost.steps = tokens / distill.rows
  module = model_of_stage(plan, model)
  cost.seconds = seconds_of_calls(plan, module, cost.steps, rows, 1, facts.tokens)
  return cost


def seconds_of_calls(
  plan: Plan, model: Any, calls: float, rows: float, width: int, tokens: float
) -> float:
  """Returns the seconds of some calls. A call reads the decoder, the projection on words and a
  cache that is half full, and multiplies them by each token. Here it is timed, and the first ones
  of a plan compile the program; drafts cost nothing."""
  machine = plan.machine
  if not machine.flops:
    program = model, math.ceil(rows), width, math.ceil(tokens)
    seconds, compiling = time_call(*program)
    if program in plan.compiled:
      compiling = 0.0
    plan.compiled.add(program)
    return compiling + calls * seconds

  params = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)))
  layers = [value for name, value in params.items() if name.startswith(DECODER)]
  read = count_numbers(layers) + model.vocab_size * model.d_model
  cache = rows * len(layers) * 2 * 2 * tokens / 2 * model.d_model
  flops, dtype = 2 * rows * width * read + 2 * width * cache, model.config.dtype
  size = (read + cache) * jnp.dtype(dtype).itemsize / machine.bandwidth
  return calls * max(flops / machine.flops[dtype], size, len(layers) * LAYER * machine.launch)


@functools.cache
def time_call(model: Any, rows: int, width: int, tokens: int) -> tuple[float, float]:
  """Times a call here; returns its seconds, and those before the first one."""
  began = wallclock.now()
  target = Bound(*pack_if_faster(model, random_params(model, 0, 'float32')))
  inputs: Any = np.ones((rows, tokens), np.int32)
  if model.fixed_length:
    inputs = np.zeros((rows, 8, 8, 3), np.uint8)
  calls = Calls.after_prompt(target, FreeDraft(Topology.chain(width)), inputs, tokens, CALLS)
  timing = wallclock.measure({'calls': calls}, 3)['calls']
  return timing.median / CALLS, wallclock.now() - began - sum(timing.seconds)


COSTS = {train.base: training, train_heads: training, own.translations: translations}


def disk_of(costs: Sequence[Cost]) -> tuple[float, float]:
  """Returns the most bytes of the disk that stages take at once, and those of them that are free
  again afterwards."""
  scratch = max([0.0, *(cost.scratch for cost in costs)])
  return sum(cost.disk for cost in costs) + scratch, scratch


def check_room(costs: Sequence[Cost], there: float, root: pathlib.Path, data: float = 0.0) -> None:
  """Raises UserError where stages need more memory than a device has, `there` bytes, or, with
  `data` bytes for the data, more disk than there is."""
  memory, disk = max([0.0, *(cost.step.memory for cost in costs)]), data + disk_of(costs)[0]
  if memory > there:
    raise UserError(
      f'a step needs {shorten(memory, "B")} of memory, and a device has {shorten(there, "B")}: give'
      ' a smaller model, more devices, or --config.train.accumulate=2'
    )
  free = shutil.disk_usage(next(path for path in (root, *root.parents) if path.exists())).free
  if disk > free:
    raise UserError(
      f'this takes {shorten(disk, "B")} of disk, and {root} has {shorten(free, "B")}:'
      ' choose another workdir'
    )


# --- in words


def show(c: Any, make: Callable[[Any, Any], None], root: pathlib.Path, machine: Machine) -> None:
  """Prints what a paper's function would do with these settings in a workdir.

  Raises:
    UserError: it has no text and no images; it needs more disk or memory than there is; or files
      are missing.
  """
  if not hasattr(c, 'data'):
    raise UserError(
      'a page that trains nothing has no plan: leave out --plan, and its rows come one by one'
    )
  plan, facts = Plan(root, machine, COSTS), read_facts(c.data)
  how = 'on paper' if machine.flops else 'compiled and timed here'
  print(f'On {machine.devices} x {machine.name}, {how}; the workdir is {root}\n')
  plan.read(make, c)

  # Print each stage, and the rows of each model.
  read = 0.0  # tokens a second, of both sides of a text
  for i, (name, state, cost) in enumerate(plan.entries, start=1):
    if cost is not None:
      print(f'{i:3} {name}: {state}; {cost.what}\n    {_describe(cost)}')
      if cost.step.flops and isinstance(c.data, TextConfig):
        read = max(read, 2 * cost.tokens / cost.seconds)
    elif state in ('new', 'begun'):
      print(f'{i:3} {name}: {state}, not estimated and not counted below')
    else:
      print(f'{i:3} {name}: {state}')

  # Print what is missing, and the totals.
  if not plan.is_complete:
    print('\nMore rows are known once these stages are made', end='')
  print()
  download = 0.0
  if facts.missing:
    download = facts.download
    print(f'Missing: {facts.missing}')
  known = [cost for _, _, cost in plan.entries if cost is not None]
  hours, (disk, scratch) = sum(cost.seconds for cost in known) / 3600, disk_of(known)
  print(
    f'In all: {hours:.3g} h, {hours * machine.devices:.3g} device-hours;'
    f' {shorten(facts.disk + disk, "B")} of disk, {shorten(scratch, "B")} of them for checkpoints;'
    f' a download of {shorten(download, "B")}'
  )
  if read:
    cores = math.ceil(read / INPUT)
    print(f'Input: {shorten(read)} tokens a second at most, the batches of {cores} cores')
  check_room(known, machine.memory, root, facts.disk)


def _describe(cost: Cost) -> str:
  """Returns the figures of a stage in words."""
  words = [f'{shorten(cost.steps)} calls', f'{shorten(cost.tokens)} tokens']
  if cost.step.flops:
    words[0] = f'{shorten(cost.steps)} steps'
    words.append(f'a step on each of {cost.devices}: {shorten(cost.step.flops, "FLOPs")}')
    words.append(f'{shorten(cost.step.bytes, "B")}, {shorten(cost.step.memory, "B")} of memory')
  words.append(f'{cost.seconds / 3600:.3g} h')
  if cost.disk:
    words.append(f'{shorten(cost.disk, "B")} of disk')
  return ', '.join(words)


def shorten(number: float, unit: str = '') -> str:
  """Returns a number in three digits: 1.23 G, or 1.23 GB."""
  for prefix, size in (('P', 1e15), ('T', 1e12), ('G', 1e9), ('M', 1e6), ('k', 1e3)):
    if number >= size:
      return f'{number / size:.3g} {prefix}{unit}'
  return f'{number:.0f} {unit}'.strip()
