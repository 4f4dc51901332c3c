"""Runs and rows of the paper's pages, text and images alike: the models that are missing are
trained, the rows that are missing are measured.

A half of the paper (text.py, images.py) brings `model(k, regime)`, which makes a model, and a
`Bench`: `split`, the sentences or images; `key(folder, k, regime, rule)`, the fields that a row is
found by; `rows(folder, k, regime, rules)`, which yields the rows of one model, measured;
`summary(row)`, a row in one line.
"""

import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from experiments.lab import train
from experiments.lab.report import Drawn, markdown, terminal
from experiments.lab.rows import Row, Rows, each, json_of
from experiments.lab.stage import if_made, seconds_left
from experiments.lab.train import DISTILLED, TUNED, seed_of, without_heads
from fastdec import folders
from fastdec.errors import UserError
from fastdec.files import write_text
from fastdec.struct import Bound
from fastdec.training.losses import head_accuracy

Asked = tuple[int, str, tuple[str, ...]]  # k, regime and rules: the rows of one model


def base_run(c: Any, data: Any, seed: int) -> dict[str, Any]:
  """A base from the first step on, as a stage."""
  same = {'model': c.model, 'run': c.train, 'data': data, 'mesh': c.mesh}
  return {'make': train.base, 'seed': seed, **same}


def heads_run(c: Any, base: pathlib.Path, k: int, regime: str, data: Any) -> dict[str, Any]:
  """Heads on a base, which learns along with them in the tuned regimes, as a stage."""
  is_tuned, order = regime in TUNED, seed_of(c.seed, f'k{k}-{regime}')
  run = c.finetune if is_tuned else c.freeze
  same = {'run': run, 'data': data, 'seed': c.seed, 'order': order, 'mesh': c.mesh}
  heads = {'base': base, 'heads': c.heads, 'k': k, 'together': is_tuned}
  return {'make': train.heads, **heads, **same}


def filled(
  rows: Rows, bench: Any, asked: Sequence[Asked], model: Callable[[int, str], pathlib.Path]
) -> list[Row]:
  """Trains and measures what is missing; the rows that there are then."""
  model(1, 'regular')  # without the base there is nothing
  rules_of = {(k, regime): rules for k, regime, rules in asked}

  def work(k: int, regime: str, split: str) -> None:
    folder = model(k, regime)
    keys = [bench.key(folder, k, regime, rule) for rule in rules_of[k, regime]]
    if there := len(rows.all(keys)):
      rows.console.print(f'k={k} {regime}: {there} of {len(keys)} rows are there')

    def measured(missing: list[Row]) -> Iterator[Row]:
      for row in bench.rows(folder, k, regime, [key['rule'] for key in missing]):
        rows.console.print(bench.summary(json_of(row)))
        yield row
        seconds_left()

    rows.together(keys, measured)

  each(rows, [{'k': k, 'regime': regime, 'split': bench.split} for k, regime in rules_of], work)
  found = []
  for k, regime, rules in asked:
    folder = if_made(lambda k=k, regime=regime: model(k, regime))
    for rule in rules:  # a model that could not be trained has failed for every rule
      there = rows.all([bench.key(folder, k, regime, rule)])
      found += [{**row, 'rule': rule} for row in there]
  rows.shown = found
  return found


def accuracy(folder: pathlib.Path, k: int, dev: Sequence[Any], own: Sequence[Any]) -> Row:
  """Shares of right guesses by the first k heads of a model.

  Args:
    folder: of the model.
    k: tokens of a block.
    dev: batches of the dev set, by people.
    own: batches of what the model writes itself; none where it writes nothing.
  """
  heads = Bound(*folders.load_heads(folder))
  if heads.module.k > k:
    heads = Bound(*heads.module.drafting(heads.params, k - 1))
  model, params = without_heads(*folders.load(folder))
  right = functools.partial(head_accuracy, model, heads.module, params, heads.params)
  return {'head_accuracy': right(dev), 'own_accuracy': right(own) if own else ()}


def show(rows: Rows, tables: Sequence[Drawn]) -> None:
  """Prints tables, but empty ones."""
  for table in tables:
    if table.rows:
      rows.console.print(terminal(table))


def write(path: pathlib.Path, rows: Rows, tables: Sequence[Drawn], picture: str) -> None:
  """Writes <path>.md, which shows a picture; prints the tables and their places."""
  page = '\n'.join(markdown(table) for table in tables if table.rows)
  if not rows.is_complete:
    page += '\nNot finished: the same command goes on.\n'
  write_text(path.with_suffix('.md'), f'{page}\n![The same as a picture]({picture})\n')
  show(rows, tables)
  places = f'{path}.md, the picture {path.with_name(picture)}'
  rows.console.print(f'\nThe table is {places}, every row a line of {rows.path}')


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
