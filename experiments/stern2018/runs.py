"""Parts that text.py and images.py share: the inputs of heads, their accuracy, the printing of
tables, and which k, regime and base make one run of `experiments.train`."""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

from experiments.lab.report import Drawn, markdown, terminal
from experiments.lab.rows import Row
from experiments.lab.train import DISTILLED, TUNED, seed_of, without_heads
from experiments.lab.workdir import Workdir
from fastdec import folders
from fastdec.errors import UserError
from fastdec.files import write_text
from fastdec.struct import Bound
from fastdec.training.losses import head_accuracy


def heads_inputs(c: Any, base: pathlib.Path, k: int, regime: str, data: Any) -> dict[str, Any]:
  """Inputs of `train.heads`: heads on a base, which learns along with them in the tuned regimes."""
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


def show(work: Workdir, tables: Sequence[Drawn]) -> None:
  """Prints tables, but empty ones."""
  for table in tables:
    if table.rows:
      work.console.print(terminal(table))


def write(work: Workdir, name: str, tables: Sequence[Drawn], picture: str) -> None:
  """Writes <name>.md in the workdir, which shows a picture; prints the tables and their places."""
  page = '\n'.join(markdown(table) for table in tables if table.rows)
  if not work.is_complete:
    page += '\nNot finished: the same command goes on.\n'
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
