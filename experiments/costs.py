"""What stages and rows of the papers cost, for `--plan`: one function for each that makes them.

On a GPU a call of decoding is counted by shapes: the weights and the cache that it reads, its
products, and the kernels of its layers. On this machine steps and calls are timed. Tokens of a text
that is not there yet, and the tokens of a call, are assumed.
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

from experiments.lab import cli, own, train
from experiments.lab.config import to_dataclass
from experiments.lab.machine import Count, Machine, count_program, machine_of
from experiments.lab.plan import Cost, Plan
from experiments.lab.rows import Row
from experiments.lab.text import TextConfig
from experiments.stern2018 import runs
from experiments.stern2018.image_tables import PAPERS_TABLE2
from experiments.stern2018.tables import PAPERS_TABLE1
from experiments.stern2018.text import BEAM, GROWN_ON, tree_nodes
from fastdec import folders
from fastdec.data.images import celeba
from fastdec.data.text import wmt14
from fastdec.data.text.corpus import open_text
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.evaluation.calls import DECODER, Calls, FreeDraft, random_params
from fastdec.evaluation.wallclock import measure
from fastdec.kernels.sharding import MeshConfig
from fastdec.training.drafts.trainer import heads_task, train_heads
from fastdec.training.loop import make_step
from fastdec.training.run import RunConfig, Training, time_step
from fastdec.training.state import TrainState, base_task

CHARACTERS = 4  # of a token
SAMPLE = 1000  # pairs whose characters are counted
CALLS = 8  # that are timed together
LAYER = 12  # kernels of a decoder's layer in a call
# tokens a second that a core of a Xeon lays out in batches (benchmarks/inputs.py)
INPUT = 5.6e6


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


# --- training


def training(
  plan: Plan, *, run: RunConfig, data: Any, model: Any = None, base: pathlib.Path | None = None,
  heads: Any = None, k: int = 0, together: bool = False, **_: Any,
) -> Cost:  # fmt: skip
  """Returns the cost of `train.base`, or of `train_heads` on a base, on all devices that the rows
  divide over."""
  what, module = 'base', None
  if base is None:
    model = _module(model, data)
  else:
    model = _model_of(plan, base)
    what, module = f'heads for k={k}', heads.module(model, k)
  if together:
    what += ', with the base'

  # A batch has the same rows on each device.
  rows, machine = run.rows or data.rows, plan.machine
  devices = math.gcd(rows // run.accumulate, machine.devices)
  shape = rows // devices, getattr(data, 'row_length', 0) or model.fixed_length
  usual = dataclasses.replace(run, steps=10**6, every=1, average=1, rows=0)
  step, trained, all_of = _count_step(machine, model, module, together, usual, shape, heads)
  seconds = run.steps * (step.seconds + machine.exchange_seconds(4 * trained, devices))
  return Cost(
    f'trains {what}, {_short(trained)} of {_short(all_of)} parameters',
    steps=run.steps, tokens=run.steps * rows * shape[1], step=step, devices=devices,
    seconds=seconds, disk=4 * all_of, scratch=3 * 4 * trained * (len(run.loop().kept) + 2),
  )  # fmt: skip


@functools.cache
def _count_step(
  machine: Machine, model: Any, module: Any, together: bool, run: RunConfig,
  shape: tuple[int, int], settings: Any,
) -> tuple[Count, int, int]:  # fmt: skip
  """Counts the step that training runs; returns it, and the parameters trained and all."""
  optimizer, smoothing = run.optimizer(model.d_model), run.label_smoothing
  transform = optimizer.build()

  def task_of(trunk: Any) -> Any:
    if module is None:
      return base_task(model, smoothing)
    return heads_task(model, module, trunk, settings, together, smoothing)

  # Trace the step on shapes.
  key = jax.eval_shape(lambda: jax.random.key(0))
  trunk = jax.eval_shape(model.init, key)
  state = jax.eval_shape(
    lambda key, trunk: TrainState.create(task_of(trunk), transform, key), key, trunk
  )
  sides = ('target',) if model.fixed_length else ('target', 'source')
  batch = {}
  for side in sides:
    for name in (side, f'{side}_segment', f'{side}_position'):
      batch[name] = np.ones(shape, np.int32)
  if model.fixed_length:
    batch['source'] = np.zeros((shape[0], 8, 8, 3), np.uint8)
  step: Any = make_step(task_of(trunk), transform, optimizer.learning_rate, run.accumulate)
  frozen = task_of(trunk).frozen
  count = count_program(step.trace(state, frozen, batch).jaxpr.jaxpr, machine)

  # Time it here, if it fits.
  if not machine.flops and count.memory < machine.memory:
    real = Training(task_of(model.init(jax.random.key(0))), [batch] * 4, [model], print)
    count.seconds = time_step(real, run, MeshConfig())
  return count, _numbers(state.params), _numbers(state.params) + _numbers(frozen)


# --- decoding


def translations(plan: Plan, *, model: pathlib.Path, data: Any, distill: Any, **_: Any) -> Cost:
  """Returns the cost of `own.translations`."""
  facts, devices = read_facts(data), math.gcd(distill.rows, plan.machine.devices)
  n = min(data.max_train or np.inf, facts.counts['train'])
  rows = distill.rows // devices * max(distill.beam, distill.samples)
  calls, module = n * facts.tokens / distill.rows, _model_of(plan, model)
  seconds = calls * _call_seconds(plan.machine, module, rows, 1, facts.tokens)
  return Cost(
    f'translates {n:,.0f} sentences, beam {distill.beam}', calls, n * facts.tokens,
    devices=devices, seconds=seconds, disk=2 * n * facts.tokens * (4 + CHARACTERS),
  )  # fmt: skip


def figures(plan: Plan, task: Any, models: Any, missing: Sequence[Row]) -> Cost:
  """Returns the cost of `runs.figures`: the outputs of each rule, many at once, then one at a
  time by the clock, and greedy ones of the same model."""
  c, machine, facts = task.c, plan.machine, read_facts(task.c.data)
  k, regime, table = missing[0]['k'], missing[0]['regime'], task.c.table
  model, tokens = _module(c.model, c.data), facts.tokens
  split = getattr(task, 'split', table.split if hasattr(table, 'split') else 'dev')
  wanted = getattr(table, 'sentences', 0) or getattr(table, 'images', 0)
  n = min(wanted or np.inf, facts.counts.get(split, np.inf))
  devices = math.gcd(min(table.rows, int(n)), machine.devices)
  cost = Cost(f'measures {len(missing)} rows on {n:,.0f} outputs', devices=devices)

  for rule in ['greedy', *(key['rule'] for key in missing)]:
    width, block, beams = k, _block(task.c.data, k, regime, rule), 1
    if rule == 'greedy' or k == 1:
      width, block, beams = 1, 1.0, 4 if rule == BEAM else 1
    elif rule.startswith('tree'):
      width = tree_nodes(rule) or 1
      n += GROWN_ON / (len(missing) + 1)
    rows = min(table.rows, n) * beams / devices
    calls = n * tokens / min(table.rows, n) / block
    cost.seconds += calls * _call_seconds(machine, model, rows, width, tokens)
    cost.steps, cost.tokens = cost.steps + calls, cost.tokens + n * tokens
    if task.timed_rules is None or rule in ('greedy', *task.timed_rules):
      calls = table.timed * (table.repeats + 1) * tokens / block
      cost.seconds += calls * _call_seconds(machine, model, beams, width, tokens)
  return cost


def _block(data: Any, k: int, regime: str, rule: str) -> float:
  """Returns the tokens of a call: the paper's at this k or the next smaller one; else 1."""
  blocks = dict(PAPERS_TABLE2)
  if isinstance(data, TextConfig):
    blocks = {key: block for key, (_, block) in PAPERS_TABLE1.items()}
  for size in range(k, 1, -1):
    for name in (rule, 'exact'):
      if (size, regime, name) in blocks:
        return blocks[size, regime, name]
  return 1.0


@functools.cache
def _call_seconds(machine: Machine, model: Any, rows: float, width: int, tokens: float) -> float:
  """Returns the seconds of a call: it reads the decoder, the projection on words and a cache that
  is half full, and multiplies them by each token. Here it is timed; its drafts cost nothing."""
  if not machine.flops:
    target = runs.prepare(model, random_params(model, 0, 'float32'), None)
    inputs, tokens = np.ones((math.ceil(rows), math.ceil(tokens)), np.int32), math.ceil(tokens)
    if model.fixed_length:
      inputs = np.zeros((len(inputs), 8, 8, 3), np.uint8)
    drafter = FreeDraft(Topology.chain(width))
    calls = Calls.after_prompt(target, drafter, inputs, tokens, CALLS)
    return measure({'calls': calls}, 3)['calls'].median / CALLS

  params = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)))
  layers = [value for name, value in params.items() if name.startswith(DECODER)]
  read = _numbers(layers) + model.vocab_size * model.d_model
  cache = rows * len(layers) * 2 * 2 * tokens / 2 * model.d_model
  flops, dtype = 2 * rows * width * read + 2 * width * cache, model.config.dtype
  size = (read + cache) * jnp.dtype(dtype).itemsize / machine.bandwidth
  return max(flops / machine.flops[dtype], size, len(layers) * LAYER * machine.launch)


def _module(model: Any, data: Any) -> Any:
  """Returns the model of these sizes over the text's words, or of images."""
  if isinstance(data, TextConfig):
    model = dataclasses.replace(model, vocab_size=data.vocab_size)
  return folders.model_of(model)


def _model_of(plan: Plan, folder: pathlib.Path) -> Any:
  """Returns the model of a planned stage, or of a finished run outside the workdir."""
  inputs = plan.inputs.get(folder)
  if inputs is None:
    return folders.open(folder).model
  if 'model' in inputs:
    return _module(inputs['model'], inputs['data'])
  return _model_of(plan, inputs['base'])


def _numbers(tree: Any) -> int:
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


COSTS = {
  train.base: training,
  train_heads: training,
  own.translations: translations,
  runs.figures: figures,
}


# --- in words


def show(page: cli.Page, settings: type, make: cli.Make) -> None:
  """Prints what a paper's function would do, by the flags of its page.

  Raises:
    UserError: it has no text and no images; it needs more disk or memory than there is; or files
      are missing.
  """
  c, machine = to_dataclass(settings, page.config.value), machine_of(page.plan.value)
  root = pathlib.Path(page.workdir.value or 'WORKDIR')
  if not hasattr(c, 'data'):
    raise UserError(
      'a page that trains nothing has no plan: leave out --plan, and its rows come one by one'
    )
  plan, facts = Plan(root, machine, COSTS), read_facts(c.data)
  how = 'on paper' if machine.flops else 'timed here, without compilation'
  print(f'On {machine.devices} x {machine.name}, {how}; the workdir is {root}\n')
  plan.read(make, c)

  # Print each stage, and the rows of each model.
  total, disk, scratch, memory = 0.0, facts.disk, 0.0, 0.0
  read, unknown = 0.0, []  # tokens a second, of both sides of a text; stages without an estimate
  for i, (name, state, cost) in enumerate(plan.entries, start=1):
    if cost is not None:
      print(f'{i:3} {name}: {state}; {cost.what}\n    {_describe(cost)}')
      total, disk = total + cost.seconds, disk + cost.disk
      scratch, memory = max(scratch, cost.scratch), max(memory, cost.step.memory)
      if cost.step.flops and isinstance(c.data, TextConfig):
        read = max(read, 2 * cost.tokens / cost.seconds)
    elif state in ('new', 'begun'):
      print(f'{i:3} {name}: {state}, not estimated')
      unknown.append(name)
    else:
      print(f'{i:3} {name}: {state}')

  # Print what is missing, and the totals.
  if not plan.is_complete:
    print('\nMore rows are known once these stages are made', end='')
  print()
  hours, need, download = total / 3600, disk + scratch, 0.0
  if facts.missing:
    download = facts.download
    print(f'Missing: {facts.missing}\n    a download of {_short(download, "B")}')
  print(
    f'In all: {hours:.3g} h, {hours * machine.devices:.3g} device-hours;'
    f' {_short(need, "B")} of disk, {_short(scratch, "B")} of them for checkpoints;'
    f' a download of {_short(download, "B")}'
  )
  if read:
    cores = math.ceil(read / INPUT)
    print(f'Input: {_short(read)} tokens a second at most, the batches of {cores} cores')
  if unknown:
    print(f'Not counted: {", ".join(unknown)}')

  # Refuse what cannot be done.
  if memory > machine.memory:
    raise UserError(
      f'a step needs {_short(memory, "B")} of memory, and a device of {machine.name} has'
      f' {_short(machine.memory, "B")}: give more devices, or --config.train.accumulate=2'
    )
  free = shutil.disk_usage(next(path for path in (root, *root.parents) if path.exists())).free
  if need > free:
    raise UserError(
      f'this takes {_short(need, "B")} of disk, and {root} has {_short(free, "B")}: choose another'
      ' workdir'
    )


def _describe(cost: Cost) -> str:
  """Returns the figures of a stage in words."""
  words = [f'{_short(cost.steps)} calls', f'{_short(cost.tokens)} tokens']
  if cost.step.flops:
    words[0] = f'{_short(cost.steps)} steps'
    words.append(f'a step on each of {cost.devices}: {_short(cost.step.flops, "FLOPs")}')
    words.append(f'{_short(cost.step.bytes, "B")}, {_short(cost.step.memory, "B")} of memory')
  words.append(f'{cost.seconds / 3600:.3g} h')
  if cost.disk:
    words.append(f'{_short(cost.disk, "B")} of disk')
  return ', '.join(words)


def _short(number: float, unit: str = '') -> str:
  """Returns a number in three digits: 1.23 G, or 1.23 GB."""
  for prefix, size in (('P', 1e15), ('T', 1e12), ('G', 1e9), ('M', 1e6), ('k', 1e3)):
    if number >= size:
      return f'{number / size:.3g} {prefix}{unit}'
  return f'{number:.0f} {unit}'.strip()
