"""Plans of the papers, for `--plan`: what their rows cost, and all of a page in words.

Costs of stages are in `lab/costs.py`. The tokens of a call are the paper's.
"""

import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.lab import cli, costs
from experiments.lab.config import to_dataclass
from experiments.lab.costs import shorten
from experiments.lab.machine import machine_of
from experiments.lab.plan import Cost, Plan
from experiments.lab.rows import Row
from experiments.lab.text import TextConfig
from experiments.stern2018 import runs
from experiments.stern2018.image_tables import PAPERS_TABLE2
from experiments.stern2018.tables import PAPERS_TABLE1
from experiments.stern2018.text import BEAM, GROWN_ON, tree_nodes
from fastdec.errors import UserError

# tokens a second that a core of a Xeon lays out in batches (benchmarks/inputs.py)
INPUT = 5.6e6


def figures(plan: Plan, task: Any, models: Any, missing: Sequence[Row]) -> Cost:
  """Returns the cost of `runs.figures`: the outputs of each rule, many at once, then one at a
  time by the clock, and greedy ones of the same model."""
  c, facts = task.c, costs.read_facts(task.c.data)
  k, regime, table = missing[0]['k'], missing[0]['regime'], task.c.table
  model, tokens = costs.model_over(c.model, c.data), facts.tokens
  wanted = getattr(table, 'sentences', 0) or getattr(table, 'images', 0)
  n = min(wanted or np.inf, facts.counts.get(task.split, np.inf))
  devices = math.gcd(min(table.rows, int(n)), plan.machine.devices)
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
    cost.seconds += costs.seconds_of_calls(plan, calls, model, rows, width, tokens)
    cost.steps, cost.tokens = cost.steps + calls, cost.tokens + n * tokens
    if task.timed_rules is None or rule in ('greedy', *task.timed_rules):
      calls = table.timed * (table.repeats + 1) * tokens / block
      cost.seconds += costs.seconds_of_calls(plan, calls, model, beams, width, tokens)
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


COSTS = {**costs.COSTS, runs.figures: figures}


# --- in words


def show(page: cli.Page, settings: type, make: cli.Make) -> None:
  """Prints what a paper's function would do, by the flags of its page.

  Raises:
    UserError: it has no text and no images; it needs more disk or memory than there is; or files
      are missing.
  """
  c, machine = to_dataclass(settings, page.config.value), machine_of(str(page.plan.value))
  root = pathlib.Path(page.workdir.value or 'WORKDIR')
  if not hasattr(c, 'data'):
    raise UserError(
      'a page that trains nothing has no plan: leave out --plan, and its rows come one by one'
    )
  plan, facts = Plan(root, machine, COSTS), costs.read_facts(c.data)
  how = 'on paper' if machine.flops else 'compiled and timed here'
  print(f'On {machine.devices} x {machine.name}, {how}; the workdir is {root}\n')
  plan.read(make, c)

  # Print each stage, and the rows of each model.
  total, disk, scratch, memory = 0.0, facts.disk, 0.0, 0.0
  read = 0.0  # tokens a second, of both sides of a text
  for i, (name, state, cost) in enumerate(plan.entries, start=1):
    if cost is not None:
      print(f'{i:3} {name}: {state}; {cost.what}\n    {_describe(cost)}')
      total, disk = total + cost.seconds, disk + cost.disk
      scratch, memory = max(scratch, cost.scratch), max(memory, cost.step.memory)
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
  hours, need, download = total / 3600, disk + scratch, 0.0
  if facts.missing:
    download = facts.download
    print(f'Missing: {facts.missing}\n    a download of {shorten(download, "B")}')
  print(
    f'In all: {hours:.3g} h, {hours * machine.devices:.3g} device-hours;'
    f' {shorten(need, "B")} of disk, {shorten(scratch, "B")} of them for checkpoints;'
    f' a download of {shorten(download, "B")}'
  )
  if read:
    cores = math.ceil(read / INPUT)
    print(f'Input: {shorten(read)} tokens a second at most, the batches of {cores} cores')
  known = [cost for _, _, cost in plan.entries if cost is not None]
  costs.check_room(known, machine.memory, root, facts.disk)


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
