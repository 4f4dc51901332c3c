"""Parts that text.py and images.py share: models and keys of the cells of a table, the inputs of
heads, figures of rows, the printing of tables, and which k, regime and base make one run of
`experiments.train`."""

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.lab.report import Drawn, markdown, terminal
from experiments.lab.rows import Row
from experiments.lab.train import DISTILLED, TUNED, seed_of, without_heads
from experiments.lab.workdir import Workdir
from fastdec import folders
from fastdec.errors import UserError
from fastdec.evaluation.wallclock import Timing
from fastdec.files import write_text
from fastdec.struct import Bound
from fastdec.training.losses import head_accuracy

Cell = tuple[int, str, tuple[str, ...]]  # k, regime and rules: the rows of one model
Models = Mapping[tuple[int, str], pathlib.Path]  # folders of trained models by k and regime


def train_each(
  work: Workdir, cells: Sequence[Cell], model: Callable[[int, str], pathlib.Path]
) -> Models:
  """Calls model(k, regime), which trains what is missing, for each cell. Returns the folders of all
  models but those that failed: a training that fails is a row that says why."""
  keys: list[Row] = [{'k': k, 'regime': regime} for k, regime, _ in cells]
  trained = work.each(keys, lambda key: model(key['k'], key['regime']))
  models = {}
  for key, folder in zip(keys, trained, strict=True):
    if folder is not None:
      models[key['k'], key['regime']] = folder
  return models


def keys_of(
  cells: Sequence[Cell], models: Models, key_of: Callable[[pathlib.Path, int, str, str], Row]
) -> list[list[Row]]:
  """Returns the keys of the rows, those of each model together; key_of(folder, k, regime, rule)
  makes one."""
  groups = []
  for k, regime, rules in cells:
    if (k, regime) in models:
      folder = models[k, regime]
      groups.append([key_of(folder, k, regime, rule) for rule in rules])
  return groups


def failures_of(work: Workdir, cells: Sequence[Cell], models: Models) -> list[Row]:
  """Returns a failure for each rule of a model that could not be trained."""
  failures = []
  for k, regime, rules in cells:
    if (k, regime) not in models:
      for failure in work.failures([{'k': k, 'regime': regime}]):
        failures += [{**failure, 'rule': rule} for rule in rules]
  return failures


def heads_inputs(c: Any, base: pathlib.Path, k: int, regime: str, data: Any) -> dict[str, Any]:
  """Returns the inputs of `train.heads`: heads on a base, which learns too in the tuned regimes."""
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


def accuracy(folder: pathlib.Path, k: int, dev: Sequence[Any], own: Sequence[Any]) -> Row:
  """Returns the shares of right guesses by the first k heads of a model.

  Args:
    folder: of the model.
    k: tokens of a block.
    dev: batches of the dev set.
    own: batches of outputs of the model itself; none if it writes nothing.
  """
  heads = Bound(*folders.load_heads(folder))
  if heads.module.k > k:
    heads = Bound(*heads.module.drafting(heads.params, k - 1))
  model, params = without_heads(*folders.load(folder))
  right = functools.partial(head_accuracy, model, heads.module, params, heads.params)
  return {'head_accuracy': right(dev), 'own_accuracy': right(own) if own else ()}


def beside_greedy(ours: Timing, greedy: Timing) -> Row:
  """Returns the timing fields of a row whose outputs were decoded one at a time."""
  return {
    'ms_per_output': ours.milliseconds,
    'greedy_ms_per_output': greedy.milliseconds,
    'speedup': ours.speedup_over(greedy),
    'spread': ours.speedups_over(greedy),
    'compile_seconds': ours.compile_seconds,
  }


def show(work: Workdir, tables: Sequence[Drawn]) -> None:
  """Prints the tables that have rows."""
  for table in tables:
    if table.rows:
      work.console.print(terminal(table))


def write(work: Workdir, name: str, tables: Sequence[Drawn], picture: str) -> None:
  """Writes <name>.md in the workdir, which shows a picture; prints the tables and their places."""
  page = '\n'.join(markdown(table) for table in tables if table.rows)
  if not work.is_complete:
    page += '\nNot finished: the same command continues.\n'
  path = work.root / name
  write_text(path.with_suffix('.md'), f'{page}\n![The same as a picture]({picture})\n')
  show(work, tables)
  places = f'{path}.md, the picture {path.with_name(picture)}'
  work.console.print(f'\nThe table is {places}, every row a line of {work.path}')


def check_alone(c: Any) -> None:
  """Raises UserError where k, regime and base mean no run of `experiments.train`."""
  if c.k == 1 and c.regime in TUNED:
    raise UserError(
      f'k=1 has no heads to train with regime={c.regime}: give another regime, or k of 2 or more'
    )
  if c.k == 1 and c.data.own:
    raise UserError(
      f'data.own={c.data.own} is for heads: leave out --config.data.own=..., or give k of 2 or more'
    )
  is_first = c.k == 1 and c.regime not in DISTILLED
  if is_first and c.base:
    raise UserError(
      f'k=1 with regime={c.regime} is trained from the first step: leave out --config.base={c.base}'
    )
  if not is_first and not c.base:
    raise UserError(
      f'k={c.k} with regime={c.regime} is trained on a base model: name its workdir by'
      ' --config.base=...'
    )


def check_model(folder: pathlib.Path, wanted: Any) -> None:
  """Raises UserError where a folder holds another model than the config means."""
  model = folders.open(folder).model
  if getattr(model, 'model', model) != wanted:  # a base that p1's heads wrap counts as itself
    raise UserError(
      f'{folder} holds another model than this config means: give a run of the same config'
    )
