"""The story of both tasks of Stern et al. 2018: train the models of a table, then measure its rows.

A `Task` says what differs: text.py has that of translations, images.py that of super-resolution.
A cell is a k, a regime and rules of acceptance. `make_rows` trains the models of the cells, each a
stage of the workdir, and measures a row for each model, k and rule:

  base -> heads on it (regular) -> heads and base together (finetune)
  base -> base-distil -> heads on it (distil) -> heads and base together (both)    of text only
"""

import abc
import functools
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

import fastdec as fd
from experiments.lab import costs, train
from experiments.lab.plan import Cost, Plan
from experiments.lab.report import Drawn, markdown
from experiments.lab.rows import Row
from experiments.lab.train import DISTILLED, TUNED, seed_of
from experiments.lab.workdir import Workdir
from experiments.stern2018.tables import UNTRAINED, Key
from fastdec import folders
from fastdec.decoding.protocol import Decoded
from fastdec.errors import UserError
from fastdec.evaluation.wallclock import measure
from fastdec.heads.transformed import without_heads
from fastdec.kernels.packing import pack_if_faster
from fastdec.kernels.sharding import make_own_mesh, mesh_of, place_module
from fastdec.struct import Bound
from fastdec.training.drafts.trainer import train_heads
from fastdec.training.losses import head_accuracy
from fastdec.training.stage import inputs_of

Cell = tuple[int, str, tuple[str, ...]]  # k, regime and rules: the rows of one model
Models = Mapping[tuple[int, str], pathlib.Path]  # folders of trained models by k and regime


class Base(NamedTuple):
  """What heads of a regime are trained on: a base, the data, and the regime of frozen heads."""

  folder: pathlib.Path
  data: Any
  frozen: str


class Task(abc.ABC):
  """A task of the paper with the outputs that are measured, of a split ('dev' or 'test'). Jobs make
  it again from its arguments."""

  timed_rules: tuple[str, ...] | None = None  # None: all
  blocks: Mapping[Key, float]  # the paper's mean accepted block sizes, by which plans count calls

  def __init__(self, c: Any, data: Any, split: str, **limits: int) -> None:
    self.c, self.split = c, split
    self.data = data  # heads on the base learn from it
    self.limits = limits  # arguments of `fd.decode` besides the strategy
    self.greedy: dict[str, Decoded] = {}  # outputs, by the content of the model

  @abc.abstractmethod
  def check(self) -> None:
    """Raises UserError for a mistake that would show only after hours of training."""

  @abc.abstractmethod
  def base(self, work: Workdir, regime: str) -> Base:
    """Returns what heads of a regime are trained on, after training what is missing."""

  def key(self, folder: pathlib.Path, k: int, regime: str, rule: str) -> Row:
    """Returns the key of a row: all that decides its figures. Tasks add what only they have."""
    c, table = self.c, self.c.table
    return {
      'k': k,
      'regime': regime,
      'rule': rule,
      'split': self.split,
      'batch': table.rows,
      'timing_batch': 1,
      'timing_rounds': table.repeats,
      'models': folders.content(folder),
      'dtype': c.model.dtype,
      'seed': c.seed,
    }

  def shape(self, k: int, rule: str) -> tuple[int, int]:
    """Returns the nodes and the beams of a call."""
    return k, 1

  @abc.abstractmethod
  def strategies(
    self, target: Bound, folder: pathlib.Path, k: int, regime: str, rules: Sequence[str]
  ) -> dict[str, Any]:
    """Returns the strategy of each rule, in order, for the model in a folder."""

  @abc.abstractmethod
  def timed_inputs(self) -> list[tuple[Any]]:
    """Returns the inputs of `fd.decode` that are timed, of one output each."""

  @abc.abstractmethod
  def decode(self, target: Bound, strategy: Any) -> Decoded:
    """Decodes all outputs of the split."""

  @abc.abstractmethod
  def batches(self, greedy: Decoded) -> tuple[list[Any], list[Any]]:
    """Returns batches of the dev set, and of the outputs as the model itself wrote them."""

  def model_figures(self, target: Bound) -> Row:
    """Returns figures of the model itself, which the rows of all its rules have."""
    return {}

  @abc.abstractmethod
  def quality(self, key: Row, target: Bound, strategy: Any, out: Decoded, greedy: Decoded) -> Row:
    """Returns the quality of outputs, their block sizes, and the share equal to greedy ones."""

  @abc.abstractmethod
  def summary(self, row: Row) -> str:
    """Returns a row in one line."""


# --- the story


def make_rows(task: Task, work: Workdir, cells: Sequence[Cell]) -> list[Row]:
  """Trains and measures what is missing of the cells. Returns all rows; those of a model that could
  not be trained say why."""
  work.do(task.check)
  task.base(work, 'regular')  # without it nothing can be measured, so its failure is raised
  keys: list[Row] = [{'k': k, 'regime': regime} for k, regime, _ in cells]
  trained = work.each(keys, lambda key: train_model(task, work, key['k'], key['regime']))

  models, failures = {}, []
  for (k, regime, rules), key, folder in zip(cells, keys, trained, strict=True):
    if folder is not None:
      models[k, regime] = folder
    else:
      for failure in work.failures([key]):
        for rule in rules:
          failures.append({**failure, 'rule': rule})
  return measure_rows(task, work, cells, models) + failures


def train_model(task: Task, work: Workdir, k: int, regime: str) -> pathlib.Path:
  """Returns the model of a k and a regime, after training what is missing. A base serves k = 1, and
  forecasts.

  Stages: those of the base; then k<k>-regular or k<k>-distil; then, for heads that are trained
  together with the base, k<k>-finetune or k<k>-both. Heads are nested if none sees the others; then
  one run for the largest k serves all k on a frozen base. With `table.one_run` it does so in every
  regime.
  """
  c, base = task.c, task.base(work, regime)
  if k == 1 or regime in UNTRAINED:
    return base.folder

  # Train heads on the frozen base.
  largest = max(c.table.ks)
  are_nested = c.heads.module(folders.model_of(c.model), 2).are_nested
  k_frozen = largest if c.table.one_run or are_nested else k
  inputs = heads_inputs(c, base.folder, k_frozen, base.frozen, base.data)
  heads = work.stage(f'k{k_frozen}-{base.frozen}', train_heads, **inputs)
  if regime not in TUNED:
    return heads

  # Train heads and base together, beginning at those heads.
  k_tuned = largest if c.table.one_run else k
  inputs = heads_inputs(c, heads, k_tuned, regime, base.data)
  return work.stage(f'k{k_tuned}-{regime}', train_heads, **inputs)


def measure_rows(task: Task, work: Workdir, cells: Sequence[Cell], models: Models) -> list[Row]:
  """Measures the rows of the cells that are missing, those of each model together. Returns the rows
  of all models."""
  groups: list[Row | list[Row]] = []
  for k, regime, rules in cells:
    if (k, regime) in models:
      folder = models[k, regime]
      keys: list[Row] = [{'k': k, 'regime': regime, 'rule': rule} for rule in rules]
      if (folder / 'model').is_dir():  # as that of a plan need not be
        keys = [task.key(folder, **key) for key in keys]
      groups.append(keys)
  cost = functools.partial(cost_of_rows, task)
  return work.fill(groups, functools.partial(figures, task, models), task.summary, cost)


def figures(task: Task, models: Models, missing: list[Row]) -> Iterator[Row]:
  """Measures one model with its first k heads, or a forecast: yields the figures of each missing
  key, in order. Rules are timed in turn with the same model's greedy decoding. k = 1 decodes
  greedily, or by beam search.
  """
  k, regime = missing[0]['k'], missing[0]['regime']
  folder = models[k, regime]
  target = prepare(*folders.load(folder), make_own_mesh(task.c.mesh))
  by_rule = task.strategies(target, folder, k, regime, [key['rule'] for key in missing])
  one = on_one_device(target)

  # Time some outputs one by one. With k = 1 the rule exact is greedy decoding itself.
  timed: dict[str, Any] = {'greedy': fd.Greedy()}
  wanted = [rule for rule in by_rule if task.timed_rules is None or rule in task.timed_rules]
  for rule in wanted:
    if k > 1 or rule != 'exact':
      timed[rule] = by_rule[rule]
  times = {}
  if wanted:
    functions = {}
    for name, strategy in timed.items():
      strategy = on_one_device(strategy)
      functions[name] = functools.partial(fd.decode, *one, strategy=strategy, **task.limits)
    times = measure(functions, task.c.table.repeats, task.timed_inputs())

  # Decode all outputs greedily, and see how often heads guess what comes next.
  content = folders.content(folder)
  if content not in task.greedy:
    task.greedy[content] = task.decode(target, fd.Greedy())
  greedy = task.greedy[content]
  same = task.model_figures(one)
  if k > 1 and regime not in UNTRAINED:
    heads = Bound(*folders.load_heads(folder))
    if heads.module.k > k:
      heads = Bound(*heads.module.drafting(heads.params, k - 1))
    base, trunk = without_heads(*folders.load(folder))
    share_right = functools.partial(head_accuracy, base, heads.module, trunk, heads.params)
    dev, own = task.batches(greedy)
    same['head_accuracy'] = share_right(dev)
    same['own_accuracy'] = share_right(own) if own else ()  # () if the model writes nothing
    same |= task.c.heads.conditions
    if regime not in DISTILLED and task.data.own:
      same['heads_text'] = 'own'

  # Decode all outputs by each rule.
  for key, (rule, strategy) in zip(missing, by_rule.items(), strict=True):
    if k == 1 and rule == 'exact':
      out, time = greedy, times.get('greedy')
    else:
      out, time = task.decode(target, strategy), times.get(rule)
    row = same | task.quality(key, one, strategy, out, greedy)
    if time is not None:
      row['ms_per_output'] = time.milliseconds
      row['greedy_ms_per_output'] = times['greedy'].milliseconds
      row['speedup'] = time.speedup_over(times['greedy'])
      row['spread'] = time.speedups_over(times['greedy'])
      row['compile_seconds'] = time.compile_seconds
    yield row


def cost_of_rows(task: Task, plan: Plan, missing: Sequence[Row]) -> Cost:
  """Returns the cost of `figures` in a plan: the outputs of each rule, many at once, then one at a
  time by the clock, and greedy ones of the same model."""
  c, table, facts = task.c, task.c.table, costs.read_facts(task.c.data)
  wanted = getattr(table, 'sentences', 0) or getattr(table, 'images', 0)
  n = min(wanted or math.inf, facts.counts.get(task.split, math.inf))
  devices = math.gcd(min(table.rows, int(n)), plan.machine.devices)
  cost = Cost(f'measures {len(missing)} rows on {n:,.0f} outputs', devices=devices)
  model, regime = costs.model_over(c.model, c.data), missing[0]['regime']
  seconds_of = functools.partial(costs.seconds_of_calls, plan, model)

  for k, rule in [(1, 'exact'), *((key['k'], key['rule']) for key in missing)]:
    # A call writes the paper's block at this k, or at the next smaller one.
    block, (nodes, beams) = 1.0, task.shape(k, rule)
    for size in range(2, k + 1):
      exact = task.blocks.get((size, regime, 'exact'), block)
      block = task.blocks.get((size, regime, rule), exact)
    calls, once = n * facts.tokens / min(table.rows, n) / block, table.timed * (table.repeats + 1)
    rows = min(table.rows, n) * beams / devices
    cost.seconds += seconds_of(calls, rows, nodes, facts.tokens)
    cost.steps, cost.tokens = cost.steps + calls, cost.tokens + n * facts.tokens
    if task.timed_rules is None or rule in task.timed_rules:
      cost.seconds += seconds_of(once * facts.tokens / block, beams, nodes, facts.tokens)
  return cost


def prepare(module: Any, params: Any, mesh: Mesh | None) -> Bound:
  """Returns a model, or heads, for decoding on a mesh, or packed for one device (None)."""
  if mesh is None:
    return Bound(*pack_if_faster(module, params))
  return Bound(module, place_module(module, params, mesh))


def on_one_device(tree: Any) -> Any:
  """Returns a model, or a strategy, on the first device of its mesh, where clocks run."""
  mesh = mesh_of(tree)
  if mesh is None:
    return tree
  move = functools.partial(jax.device_put, device=mesh.devices.flat[0])
  return jax.tree.map(lambda x: move(x) if isinstance(x, jax.Array) else x, tree)


def choose_rows(most: int, inputs: int, target: Bound) -> int:
  """Returns how many inputs are decoded at once: at most `most`, a multiple of the devices."""
  mesh = mesh_of(target.params)
  unit = 1 if mesh is None else mesh.shape['data']
  return min(most, -(-inputs // unit) * unit)


# --- trainings


def base_inputs(c: Any, seed: int | None = None) -> dict[str, Any]:
  """Returns the inputs of `train.base`: a base, on what people made. None: the seed of `c`."""
  if seed is None:
    seed = c.seed
  return {'model': c.model, 'run': c.train, 'data': c.data.originals, 'seed': seed, 'mesh': c.mesh}


def retraining_inputs(c: Any, base: pathlib.Path, data: Any) -> dict[str, Any]:
  """Returns the inputs of `train.base` by which a base is trained further, on distilled text."""
  order = seed_of(c.seed, 'k1-distil')
  same = {'model': c.model, 'run': c.retrain, 'data': data, 'seed': c.seed, 'mesh': c.mesh}
  return {'start': base, 'order': order, **same}


def heads_inputs(c: Any, base: pathlib.Path, k: int, regime: str, data: Any) -> dict[str, Any]:
  """Returns the inputs of `train_heads`: heads on a base, which learns too in the tuned regimes."""
  is_tuned = regime in TUNED
  return {
    'base': base,
    'heads': c.heads,
    'k': k,
    'together': is_tuned,
    'run': c.finetune if is_tuned else c.freeze,
    'data': data,
    'seed': c.seed,
    'order': seed_of(c.seed, f'k{k}-{regime}'),
    'mesh': c.mesh,
  }


# --- one run: experiments.train and experiments.evaluate


def train_run(c: Any, workdir: pathlib.Path) -> bool:
  """Trains the one run that k, regime and base mean, or continues; False if it was finished.

  Raises:
    UserError: they do not fit each other, or the data.
  """
  is_first = c.k == 1 and c.regime not in DISTILLED
  if c.k == 1 and c.regime in TUNED:
    raise UserError(
      f'k=1 has no heads to train with regime={c.regime}: give another regime, or k of 2 or more'
    )
  if c.k == 1 and c.data.own:
    raise UserError(
      f'data.own={c.data.own} is for heads: leave out --config.data.own=..., or give k of 2 or more'
    )
  if is_first and c.base:
    raise UserError(
      f'k=1 with regime={c.regime} is trained from the first step: leave out --config.base={c.base}'
    )
  if not is_first and not c.base:
    raise UserError(
      f'k={c.k} with regime={c.regime} is trained on a base model: name its workdir by'
      ' --config.base=...'
    )
  if is_first:
    return costs.make_in_place(workdir, train.base, **base_inputs(c))

  base, material = pathlib.Path(c.base), c.data.open()
  material.check_base(base)
  check_model(base, material.model_of(c.model))
  if c.k == 1:
    return costs.make_in_place(workdir, train.base, **retraining_inputs(c, base, c.data))
  return costs.make_in_place(workdir, train_heads, **heads_inputs(c, base, c.k, c.regime, c.data))


def evaluate_run(
  task: Task, work: Workdir, rules: Sequence[str], tables: Sequence[Callable[[list[Row]], Drawn]]
) -> None:
  """Measures the one run that the workdir holds, by some rules; of k = 1 by exact acceptance.
  Prints its tables."""
  c, folder = task.c, work.root
  k, regime = c.k, c.regime

  # Refuse a run with a different k, regime or seed.
  opened, made = folders.open(folder), inputs_of(folder)
  most = opened.heads.k if opened.has_heads else 1
  if not (k == most or (1 < k < most and opened.heads.are_nested)):
    raise UserError(f'{folder} holds a run for k={most}, and this config means k={k}: give that')
  order = None
  if (k, regime) != (1, 'regular'):
    order = seed_of(c.seed, f'k{most}-{regime}')
  if made and made.get('order') != order:
    raise UserError(f'{folder} was trained with a different regime or seed: give those of the run')

  task.check()
  cell = k, regime, tuple(rules) if k > 1 else ('exact',)
  rows = measure_rows(task, work, [cell], {(k, regime): folder})
  for table in [make(rows) for make in tables]:
    if table.rows:
      work.console.print(markdown(table))


def check_model(folder: pathlib.Path, wanted: Any) -> None:
  """Raises UserError where a folder holds another model than the config means."""
  model = folders.open(folder).model
  if getattr(model, 'model', model) != wanted:  # a base that p1's heads wrap counts as itself
    raise UserError(
      f'{folder} holds another model than this config means: give a run of the same config'
    )
