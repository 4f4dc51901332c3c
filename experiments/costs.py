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
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import own, train
from experiments.lab.plan import Cost, Count, Machine, Plan, count_program
from experiments.lab.rows import Row
from experiments.lab.text import TextConfig
from experiments.stern2018 import images as faces
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
from fastdec.training.drafts.trainer import train_heads
from fastdec.training.loop import make_step
from fastdec.training.run import RunConfig, Training, time_step
from fastdec.training.state import TrainState, base_task, finetuned_heads_task, frozen_heads_task

CHARACTERS = 4  # of a token
SAMPLE = 1000  # pairs whose characters are counted
CALLS = 8  # that are timed together
LAYER = 12  # kernels of a decoder's layer in a call
INPUT = (
  5.6e6  # tokens a second that a core lays out in batches (benchmarks/inputs.py, one Xeon core)
)


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
  if not isinstance(data, TextConfig):
    tokens = 3 * data.side**2
    if data.kind != 'tfds':
      return Facts(data.images.counts, tokens)
    missing = _missing(lambda: celeba.from_tfds(data.folder, data.max_train or None, data.side))
    return Facts(celeba.COUNTS, tokens, missing, celeba.DOWNLOAD, 2 * celeba.DOWNLOAD)

  if data.kind in ('tfds', 'archives'):
    opened = wmt14.from_tfds if data.kind == 'tfds' else wmt14.in_archives
    missing = _missing(lambda: opened(data.folder, data.source, data.target))
    counts, tokens = wmt14.COUNTS, wmt14.TOKENS
    ids = 2 * 4 * tokens * counts['train']
    return Facts(counts, tokens, missing, wmt14.DOWNLOAD, 2 * wmt14.DOWNLOAD + ids)
  with tempfile.TemporaryDirectory() as cache:
    text = open_text(data.data, cache)
    lengths = [len(source) + len(target) for source, target in text.pairs('train', SAMPLE)]
    return Facts(dict(text.counts), sum(lengths) / len(lengths) / 2 / CHARACTERS + 1)


def _missing(look: Callable[[], object]) -> str:
  try:
    look()
  except UserError as error:
    return str(error)
  return ''


# --- training


def base(plan: Plan, *, model: Any, run: RunConfig, data: Any, **_: Any) -> Cost:
  """Returns the cost of `train.base`."""
  return _training(plan, 'base', _module(model, data), None, False, run, data)


def heads(
  plan: Plan, *, base: pathlib.Path, heads: Any, k: int, run: RunConfig, data: Any,
  together: bool = False, **_: Any,
) -> Cost:  # fmt: skip
  """Returns the cost of `train_heads`."""
  model = _model_of(plan, base)
  what = f'heads for k={k}, with the base' if together else f'heads for k={k}'
  return _training(plan, what, model, heads.module(model, k), together, run, data, heads)


def _training(
  plan: Plan, what: str, model: Any, module: Any, together: bool, run: RunConfig, data: Any,
  settings: Any = None,
) -> Cost:  # fmt: skip
  """Returns the cost of a training on all devices that its rows divide over."""
  rows, machine = run.rows or data.rows, plan.machine
  devices = math.gcd(rows // run.accumulate, machine.devices)
  shape = rows // devices, getattr(data, 'row_length', 0) or model.fixed_length
  usual = dataclasses.replace(run, steps=10**6, every=1, average=1, rows=0)
  step, trained, all_of = _count_step(machine, model, module, together, usual, shape, settings)
  seconds = run.steps * (step.seconds + machine.exchange_seconds(4 * trained, devices))
  return Cost(
    f'trains {what}, {_short(trained).strip()} of {_short(all_of).strip()} parameters',
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
    same: Any = {'draw': settings.draw, 'decay': settings.decay, 'anchors': settings.anchors}
    if together:
      shares = None, settings.p1_share, smoothing
      return finetuned_heads_task(model, module, trunk, *shares, **same)
    return frozen_heads_task(model, module, trunk, smoothing, **same)

  # Trace the step on shapes.
  key = jax.eval_shape(lambda: jax.random.key(0))
  trunk = jax.eval_shape(model.init, key)
  state = jax.eval_shape(
    lambda key, trunk: TrainState.create(task_of(trunk), transform, key), key, trunk
  )
  ids, task = np.ones(shape, np.int32), task_of(trunk)
  batch = {'target': ids, 'target_segment': ids}
  if model.fixed_length:
    batch['source'] = np.zeros((shape[0], 8, 8, 3), np.uint8)
  else:
    for name in ('source', 'source_segment', 'source_position', 'target_position'):
      batch[name] = ids
  step: Any = make_step(task, transform, optimizer.learning_rate, run.accumulate)
  count = count_program(step.trace(state, task.frozen, batch).jaxpr.jaxpr, machine)
  trained, frozen = _numbers(state.params), _numbers(task.frozen)

  # Time it here, if it fits.
  if not machine.flops and count.memory < machine.memory:
    training = Training(task_of(model.init(jax.random.key(0))), [batch] * 4, [model], print)
    count.seconds = time_step(training, run, MeshConfig())
  return count, trained, trained + frozen


# --- decoding


def translations(plan: Plan, *, model: pathlib.Path, data: Any, distill: Any, **_: Any) -> Cost:
  """Returns the cost of `own.translations`."""
  facts = read_facts(data)
  n = min(data.max_train or np.inf, facts.counts['train'])
  devices = math.gcd(distill.rows, plan.machine.devices)
  rows = distill.rows // devices * max(distill.beam, distill.samples)
  calls, module = n * facts.tokens / distill.rows, _model_of(plan, model)
  seconds = calls * _call_seconds(plan.machine, module, rows, 1, facts.tokens)
  return Cost(
    f'translates {n:,.0f} sentences, beam {distill.beam}', calls, n * facts.tokens,
    devices=devices, seconds=seconds, disk=2 * n * facts.tokens * (4 + CHARACTERS),
  )  # fmt: skip


def write_images(plan: Plan, *, base: pathlib.Path, data: Any, images: int, **_: Any) -> Cost:
  """Returns the cost of `write_images`."""
  n, tokens = images or read_facts(data).counts['train'], read_facts(data).tokens
  devices, calls = math.gcd(faces.PART, plan.machine.devices), n * tokens / faces.PART
  second = _call_seconds(plan.machine, _model_of(plan, base), faces.PART // devices, 1, tokens)
  return Cost(
    f'writes {n:,} images', calls, n * tokens, devices=devices, seconds=calls * second,
    disk=n * tokens,
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

  rules = ['greedy', *(key['rule'] for key in missing)]
  for rule in rules:
    width, block, beams = k, _block(task.c.data, k, regime, rule), 1
    if rule == 'greedy' or k == 1:
      width, block, beams = 1, 1.0, 4 if rule == BEAM else 1
    elif rule.startswith('tree'):
      width = tree_nodes(rule) or 1
      n += GROWN_ON / len(rules)
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
  for size in range(k, 1, -1):
    for name in (rule, 'exact'):
      if isinstance(data, TextConfig) and (size, regime, name) in PAPERS_TABLE1:
        return PAPERS_TABLE1[size, regime, name][1]
      if not isinstance(data, TextConfig) and (size, regime, name) in PAPERS_TABLE2:
        return PAPERS_TABLE2[size, regime, name]
  return 1.0


def _call_seconds(machine: Machine, model: Any, rows: float, width: int, tokens: float) -> float:
  """Returns the seconds of a call: it reads the decoder, the projection on words and a cache that
  is half full, and multiplies them by each token."""
  if not machine.flops:
    return _time_call(model, math.ceil(rows), width, math.ceil(tokens))
  read, layers, size = _decoder(model)
  cache = rows * layers * 2 * 2 * tokens / 2 * model.d_model
  flops, dtype = 2 * rows * width * read + 2 * width * cache, model.config.dtype
  rate, kernels = machine.flops[dtype], layers * LAYER
  return max(flops / rate, (read + cache) * size / machine.bandwidth, kernels * machine.launch)


@functools.cache
def _time_call(model: Any, rows: int, width: int, tokens: int) -> float:
  """Returns the seconds of a call on this machine, whose drafts cost nothing."""
  target = runs.prepare(model, random_params(model, 0, 'float32'), None)
  inputs = np.ones((rows, tokens), np.int32)
  if model.fixed_length:
    inputs, tokens = np.zeros((rows, 8, 8, 3), np.uint8), model.fixed_length
  drafter = FreeDraft(Topology.chain(width))
  calls = Calls.after_prompt(target, drafter, inputs, tokens, CALLS)
  return measure({'calls': calls}, 3)['calls'].median / CALLS


@functools.cache
def _decoder(model: Any) -> tuple[int, int, int]:
  """Returns the numbers of the decoder and the projection, the layers, and bytes of a number."""
  params = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)))
  layers = [value for name, value in params.items() if name.startswith(DECODER)]
  words = model.vocab_size * model.d_model
  return _numbers(layers) + words, len(layers), jnp.dtype(model.config.dtype).itemsize


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
  train.base: base,
  train_heads: heads,
  own.translations: translations,
  faces.write_images: write_images,
  runs.figures: figures,
}


# --- in words


def show(make: Callable[[Any, Any], None], c: Any, root: pathlib.Path, machine: Machine) -> None:
  """Prints what a paper's function would do.

  Raises:
    UserError: it has no text and no images; it needs more disk or memory than there is; or files
      are missing.
  """
  if not hasattr(c, 'data'):
    raise UserError(
      'a page that trains nothing has no plan: leave out --plan, and its rows come one by one'
    )
  plan, facts = Plan(root, machine, COSTS), read_facts(c.data)
  how = 'on paper' if machine.flops else 'timed here'
  print(f'On {machine.devices} x {machine.name}, {how}; the workdir is {root}\n')
  plan.read(make, c)

  # Print each stage, and the rows of each model.
  total, disk, scratch, memory, unknown = 0.0, facts.disk, 0.0, 0.0, []
  read = 0.0  # tokens a second, of both sides of a text
  for i, (name, state, cost) in enumerate(plan.entries, start=1):
    if cost is None:
      is_done = state not in ('new', 'begun')
      print(f'{i:3} {name}: {state}' + ('' if is_done else ', not estimated'))
      unknown += [] if is_done else [name]
      continue
    print(f'{i:3} {name}: {state}; {cost.what}')
    print('    ' + ', '.join(_words(cost)))
    total, disk = total + cost.seconds, disk + cost.disk
    scratch, memory = max(scratch, cost.scratch), max(memory, cost.step.memory)
    if cost.step.flops and isinstance(c.data, TextConfig):
      read = max(read, 2 * cost.tokens / cost.seconds)

  # Print what is missing, and the totals.
  if not plan.is_complete:
    print('\nMore rows are known once these stages are made', end='')
  print()
  hours, need = total / 3600, disk + scratch
  if facts.missing:
    print(f'Missing: {facts.missing}\n    a download of {_short(facts.download)}B')
  print(
    f'In all: {hours:.3g} h, {hours * machine.devices:.3g} device-hours;'
    f' {_short(need)}B of disk, {_short(scratch)}B of them for checkpoints;'
    f' a download of {_short(facts.download if facts.missing else 0)}B'
  )
  if read:
    cores = math.ceil(read / INPUT)
    print(f'Input: {_short(read).strip()} tokens a second at most, the batches of {cores} cores')
  if unknown:
    print(f'Not counted: {", ".join(unknown)}')

  # Refuse what cannot be done.
  if memory > machine.memory:
    raise UserError(
      f'a step needs {_short(memory)}B of memory, and a device of {machine.name} has'
      f' {_short(machine.memory)}B: give more devices, or --config.train.accumulate=2'
    )
  free = shutil.disk_usage(next(path for path in (root, *root.parents) if path.exists())).free
  if need > free:
    raise UserError(
      f'this takes {_short(need)}B of disk, and {root} has {_short(free)}B: choose another workdir'
    )


def _words(cost: Cost) -> list[str]:
  """Returns the figures of a stage in words."""
  words = [f'{_short(cost.steps).strip()} calls', f'{_short(cost.tokens).strip()} tokens']
  if cost.step.flops:
    words[0] = f'{_short(cost.steps).strip()} steps'
    words.append(f'a step on each of {cost.devices}: {_short(cost.step.flops)}FLOPs')
    words.append(f'{_short(cost.step.bytes)}B, {_short(cost.step.memory)}B of memory')
  words.append(f'{cost.seconds / 3600:.3g} h')
  if cost.disk:
    words.append(f'{_short(cost.disk)}B of disk')
  return words


def _short(number: float) -> str:
  """Returns a number in three digits: 1.23 G."""
  for unit, size in (('P', 1e15), ('T', 1e12), ('G', 1e9), ('M', 1e6), ('k', 1e3)):
    if number >= size:
      return f'{number / size:.3g} {unit}'
  return f'{number:.0f} '
