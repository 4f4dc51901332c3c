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
from experiments.lab.machine import Count, Machine, count_program, memory_here
from experiments.lab.plan import Cost, Plan, shorten
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
from fastdec.models.fresh import trace_shapes
from fastdec.struct import Bound
from fastdec.training.drafts.trainer import heads_task, train_heads
from fastdec.training.loop import make_step
from fastdec.training.losses import dev_loss, head_accuracy
from fastdec.training.run import RunConfig, Training, time_step
from fastdec.training.stage import in_place
from fastdec.training.state import Task, TrainState, base_task

CHARACTERS = 4  # of a token
SAMPLE = 1000  # pairs whose characters are counted
CALLS = 8  # that are timed together
INPUT = 5.6e6  # tokens a second that a core of a Xeon lays out in batches (benchmarks/inputs.py)
LAYER = 12  # kernels of a decoder's layer in a call
shapes_of = functools.cache(trace_shapes)  # of a module's parameters


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
  is_text, known, tokens = isinstance(data, TextConfig), wmt14, wmt14.TOKENS
  if not is_text:
    known, tokens = celeba, 3 * data.side**2

  # The papers' own sets are known, and may be missing.
  if data.kind in ('archives', 'tfds'):
    missing, disk = '', 2 * known.DOWNLOAD
    try:
      if not is_text:
        celeba.from_tfds(data.folder, data.max_train or None, data.side)
      elif data.kind == 'tfds':
        wmt14.from_tfds(data.folder, data.source, data.target)
      else:
        wmt14.in_archives(data.folder, data.source, data.target)
    except UserError as error:
      missing = str(error)
    if is_text:
      disk += 2 * 4 * tokens * known.COUNTS['train']
    return Facts(known.COUNTS, tokens, missing, known.DOWNLOAD, disk)

  # Text that is there is counted; so are images.
  if not is_text:
    return Facts(data.images.counts, tokens)
  with tempfile.TemporaryDirectory() as cache:
    text = open_text(data.data, cache)
    lengths = [len(source) + len(target) for source, target in text.pairs('train', SAMPLE)]
    return Facts(dict(text.counts), sum(lengths) / len(lengths) / 2 / CHARACTERS + 1)


def model_over(model: Any, data: Any) -> Any:
  """Returns the model of these sizes over the text's words, or of images."""
  if isinstance(data, TextConfig):
    model = dataclasses.replace(model, vocab_size=data.vocab_size)
  return folders.model_of(model)


def model_of_stage(plan: Plan, folder: pathlib.Path) -> Any:
  """Returns the model of a planned stage, or of a finished run outside the workdir."""
  inputs = plan.inputs.get(folder)
  if inputs is None:
    model = folders.open(folder).model
    return getattr(model, 'model', model)  # heads may wrap it
  if 'model' in inputs:
    return model_over(inputs['model'], inputs['data'])
  return model_of_stage(plan, inputs['base'])


def count_numbers(tree: Any) -> int:
  """Returns how many entries the arrays of a tree have."""
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


# --- trainings


def training(
  plan: Plan, *, run: RunConfig, data: Any, model: Any = None, base: pathlib.Path | None = None,
  heads: Any = None, k: int = 0, together: bool = False, mesh: MeshConfig = MeshConfig(), **_: Any,
) -> Cost:  # fmt: skip
  """Returns the cost of `train.base`, or of `train_heads` on a base, on all devices that the rows
  divide over. It needs memory for weights, gradients and Adam's moments; what a step needs besides
  is known once it is traced, which takes longer."""
  if base is None:
    what, module, trunk = 'base', None, model_over(model, data)
    trained = all_of = count_numbers(shapes_of(trunk))
  else:
    trunk = model_of_stage(plan, base)
    what, module = f'heads for k={k}', heads.module(trunk, k)
    trained = count_numbers(shapes_of(module))
    all_of = trained + count_numbers(shapes_of(trunk))
  if together:
    what, trained = f'{what}, with the base', all_of
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
  cost.step, compiling = _count_step(machine, usual, shape, trunk, module, heads, together)
  exchange = machine.exchange_seconds(4 * trained, cost.devices)
  cost.tokens = run.steps * rows * shape[1]
  cost.seconds = compiling + run.steps * (cost.step.seconds + exchange)
  return cost


@functools.cache
def _count_step(
  machine: Machine, run: RunConfig, shape: tuple[int, int], model: Any, module: Any, heads: Any,
  together: bool,
) -> tuple[Count, float]:  # fmt: skip
  """Counts the step that training runs on rows of this shape: of the model (`module` None), or of
  heads on it, whose settings are `heads`. Also returns the seconds of compiling here."""
  batch: dict[str, Any] = {}
  for side in ('source', 'target'):
    for name in (side, f'{side}_segment', f'{side}_position'):
      batch[name] = np.ones(shape, np.int32)
  if model.fixed_length:
    batch['source'] = np.zeros((shape[0], 8, 8, 3), np.uint8)

  def task_on(trunk: Any) -> Task:
    if module is None:
      return base_task(model, run.label_smoothing)
    return heads_task(model, module, trunk, heads, together, run.label_smoothing)

  # Trace the step on shapes.
  key, trunk = jax.eval_shape(lambda: jax.random.key(0)), shapes_of(model)
  task, optimizer = task_on(trunk), run.optimizer(model.d_model)
  transform = optimizer.build()
  state = jax.eval_shape(
    lambda key, trunk: TrainState.create(task_on(trunk), transform, key), key, trunk
  )
  step: Any = make_step(task, transform, optimizer.learning_rate, run.accumulate)
  count, compiling = count_program(step.trace(state, task.frozen, batch).jaxpr.jaxpr, machine), 0.0

  # Time it here, if it fits.
  if not machine.flops and count.memory < machine.memory:
    params = model.init(jax.random.key(0))
    evaluate = functools.partial(dev_loss, model, params)
    if module is not None:
      fresh = module.init(jax.random.key(0))
      evaluate = functools.partial(head_accuracy, model, module, params, fresh)
    real, began = Training(task_on(params), [batch] * 4, [model], print), wallclock.now()
    count.seconds = time_step(real, run, MeshConfig())
    evaluate([batch])
    compiling = wallclock.now() - began - 4 * count.seconds
  return count, compiling


# --- decoding


def texts(
  plan: Plan, *, data: Any, model: Any = None, heads: Any = None, distill: Any = None,
  max_len: int = 0, calibrated: int = 0, **_: Any,
) -> Cost:  # fmt: skip
  """Returns the cost of `own.translations`, with `distill`, or of a language model's own texts:
  `own.continuations`, or `calibrated` ones for the tree of heads. It needs the disk for lines and
  ids."""
  facts = read_facts(data)
  n = min(data.max_train or math.inf, facts.counts['train'])
  if heads is not None:
    n, model = min(calibrated, facts.counts['dev']), heads
  cost, length, rows, beams = Cost(f'writes {n:,.0f} texts'), float(max_len), own.ROWS, 1
  if distill is not None:
    cost.what, length = f'translates {n:,.0f} sentences, beam {distill.beam}', facts.tokens
    rows, beams = distill.rows, max(distill.beam, distill.samples)
  cost.tokens = n * length
  if heads is None:
    cost.disk = 2 * cost.tokens * (4 + CHARACTERS)
  if plan.machine is not None:
    cost.devices, cost.steps = math.gcd(rows, plan.machine.devices), cost.tokens / rows
    module, rows_of_device = model_of_stage(plan, model), rows // cost.devices * beams
    cost.seconds = seconds_of_calls(plan, module, cost.steps, rows_of_device, 1, length)
  return cost


def seconds_of_calls(
  plan: Plan, model: Any, calls: float, rows: float, width: int, tokens: float
) -> float:
  """Returns the seconds of some calls. A call reads the decoder, the projection on words and a
  cache that is half full, and multiplies them by each token. Here it is timed, and the first ones
  of a plan compile the program; drafts cost nothing."""
  machine = plan.machine
  if not machine.flops:
    program, compiling = (model, math.ceil(rows), width, math.ceil(tokens)), 0.0
    if program not in plan.timed:
      plan.timed[program], compiling = time_call(*program)
    return compiling + calls * plan.timed[program]

  layers = [value for name, value in shapes_of(model).items() if name.startswith(DECODER)]
  read = count_numbers(layers) + model.vocab_size * model.d_model
  cache = rows * len(layers) * 2 * 2 * tokens / 2 * model.d_model
  flops, dtype = 2 * rows * width * read + 2 * width * cache, model.config.dtype
  size = (read + cache) * jnp.dtype(dtype).itemsize / machine.bandwidth
  return calls * max(flops / machine.flops[dtype], size, len(layers) * LAYER * machine.launch)


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


COSTS = {
  train.base: training,
  train_heads: training,
  own.translations: texts,
  own.continuations: texts,
}


# --- room


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


def make_in_place(folder: pathlib.Path, make: Callable[..., object], **inputs: Any) -> bool:
  """Makes a stage in a folder that the user names, if there is room for it; see `in_place`."""
  if make in COSTS and not folder.is_dir():
    check_room([COSTS[make](Plan(folder, None, COSTS), **inputs)], memory_here(), folder)
  return in_place(folder, make, **inputs)


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
  print(f'On {machine.devices} x {machine.name}, {how}; the workdir is {root}\n', flush=True)
  plan.read(make, c)

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
  steps = [cost for cost in known if cost.step.flops and isinstance(c.data, TextConfig)]
  if steps:
    read = max(2 * cost.tokens / cost.seconds for cost in steps)  # both sides of a text
    cores = math.ceil(read / INPUT)
    print(f'Input: {shorten(read)} tokens a second at most, the batches of {cores} cores')
  check_room(known, machine.memory, root, facts.disk)
