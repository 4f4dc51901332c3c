"""Sweeps over any settings of a paper's config: one results.jsonl, one table, one picture.

  python -m experiments.sweep --config=configs/wmt14.py:scale=tiny --sweep='k=2,4,6,8' \\
    --sweep='rule=exact,top-2' --workdir=out/sweep
  python -m experiments.sweep --config=configs/lookahead.py:scale=smoke --sweep='window=2,5,10' \\
    --sweep='train.steps=100,200' --engine=slurm --slurm.partition=gpu --workdir=out/sweep

A name is one of the paper's own (k, regime, rule, ...), or a setting of the config. All products
are measured, and the output names those that the page leaves out. A list of the config that is not
swept keeps its values: --sweep=regime=regular measures one of four regimes. Rows run here in order,
by --engine=processes --jobs=N, or by --engine=slurm. Existing rows are not measured again: after a
sweep is killed, the same command continues. sweep.md holds the rows so far.
"""

import dataclasses
import difflib
import functools
import itertools
import pathlib
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from absl import flags

from experiments.lab import cli, report
from experiments.lab.config import Config, leaves_of, read_text, split_values, to_dataclass
from fastdec import extras
from fastdec.errors import UserError
from fastdec.files import write_text

Row = dict[str, Any]
Point = dict[str, Any]  # values of settings that are not lists

MOST = 10_000  # rows of a sweep, which take a day at nine seconds a row
PAGE = cli.Page()
SWEEP = flags.DEFINE_multi_string('sweep', [], 'values of a name or a setting, such as k=2,4')


def main(_: list[str]) -> None:
  from experiments.lab.workdir import Workdir

  extras.require('matplotlib')  # draws the picture, when all is measured
  if PAGE.plan.value:
    raise UserError('a sweep has no plan: give --plan to the command of its page')
  config, root = PAGE.config.value, pathlib.Path(str(PAGE.workdir.value))
  flag: Any = flags.FLAGS['config']
  paper: Any = flag.page.get('PAPER')
  if paper is None:
    raise UserError('this config names no PAPER to sweep: give a page of configs/, or define one')

  # Each point has one value of every swept setting, but a list takes all its values at once.
  swept = parse(SWEEP.value, config, paper)
  lists, single = {}, {}  # values by setting
  for axis in swept:
    if axis.is_listed:
      lists[axis.setting] = axis.values
    else:
      single[axis.setting] = axis.values
  points, settings = products(single), []
  for point in points:
    config.set(point | lists)
    settings.append(to_dataclass(paper.settings, config))  # mistakes show first
  if note := describe_unswept(config, paper, lists):
    print(note)
  for sentence in describe_missing(swept, paper, settings):
    print(sentence)

  # Measure point by point. One that is impossible becomes a failure, the others are measured.
  sweep = Sweep(root / 'sweep', swept, paper)
  workdirs = []
  with PAGE.limit_time():
    for point, c in zip(points, settings, strict=True):
      try:
        on_rows = functools.partial(sweep.so_far, point)
        work = PAGE.make_all(c, paper.make, point | lists, on_rows)
      except UserError as error:  # this point is not possible; the others may be
        if not point:
          raise
        work = Workdir(root)
        work.fail(point, error)
        work.failures([point])
      workdirs.append(work)
      sweep.add(point, work.shown)
  sweep.write(workdirs[0])
  cli.end(workdirs)


@dataclasses.dataclass(frozen=True)
class Swept:
  """A name and its values."""

  name: str  # of a row's field
  setting: str  # with dots, of the config
  values: tuple[Any, ...]  # typed as the config has them
  is_listed: bool  # the setting is a list, which takes them all at once


def parse(words: Sequence[str], config: Config, paper: cli.Paper) -> list[Swept]:
  """Reads the values that --sweep=NAME=A,B gives, as `read_text` does; values are compared as the
  setting has them, so 2 and 02 are the same.

  Raises:
    UserError: an unknown name, no values, a value of the wrong type, or too many products.
  """
  swept: list[Swept] = []
  lists: set[str] = set()  # settings that are swept
  for word in words:
    name, equals, text = word.partition('=')
    where = f"--sweep='{word}' is not possible"
    if not equals:
      raise UserError(f'{where}: give NAME=A,B, each value once')
    setting = paper.axes.get(name, name)
    if setting not in config.hints:
      advice = f'known are {", ".join(paper.axes)}'
      if near := difflib.get_close_matches(name, [*paper.axes, *config.hints], 1):
        advice = f'did you mean {near[0]}?'
      raise UserError(f"{where}: the setting '{name}' is unknown, {advice}")
    if setting in lists:
      raise UserError(f'{where}: {name} is swept already')

    hint, is_listed = config.hints[setting], isinstance(leaves_of(config)[setting], tuple)
    if is_listed:
      values = read_text(hint, text, f'--sweep={name}')
    else:
      values = tuple(read_text(hint, one, f'--sweep={name}') for one in split_values(text))
    if not values or len(set(values)) < len(values):
      raise UserError(f'{where}: give NAME=A,B, each value once')
    swept.append(Swept(name, setting, values, is_listed))
    lists.add(setting)

  # So many products would take days.
  rows, counts = 1, []
  for axis in swept:
    rows *= len(axis.values)
    counts.append(f'{len(axis.values):,} of {axis.name}')
  if rows > MOST:
    raise UserError(
      f'--sweep has {rows:,} products ({" x ".join(counts)}), and {MOST:,} are the most: give fewer'
      ' values'
    )

  # A list that multiplies the rows must have entries.
  for setting in paper.axes.values():
    if setting not in lists and not leaves_of(config)[setting]:
      raise UserError(f'config.{setting}=() is not possible: give one or more values')
  return swept


def products(values: Mapping[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
  """Returns every combination of values, by name."""
  return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]


def describe_missing(
  swept: Sequence[Swept], paper: cli.Paper, settings: Iterable[Any]
) -> list[str]:
  """Says, before anything is measured, which products of the swept lists no page has."""
  if paper.plans is None:
    return []
  planned: list[Mapping[str, Any]] = []
  for c in settings:
    planned += paper.plans(c)
  sentences, listed = [], {}
  for axis in swept:
    if axis.is_listed:
      listed[axis.name] = axis.values
  for wanted in products(listed):
    if not any(wanted.items() <= row.items() for row in planned):
      missing = ', '.join(f'{name}={value}' for name, value in wanted.items())
      sentences.append(f'No row has {missing}: {paper.partial}')
  return sentences


def describe_unswept(config: Config, paper: cli.Paper, swept: Container[str]) -> str:
  """Says which of the paper's lists are not swept, and so multiply the rows; '' if none does."""
  leaves, descriptions, example = leaves_of(config), [], ''
  for name, setting in paper.axes.items():
    values = leaves[setting]
    if setting not in swept and len(values) > 1:
      descriptions.append(f'{name}={",".join(map(str, values))}')
      example = example or f'--sweep={name}={values[0]}'
  if not descriptions:
    return ''
  listed = ', '.join(descriptions)
  return f'Not swept, so the config decides: {listed} ({example} measures only that)'


class Sweep:
  """The rows of a sweep, as far as they are there, and its table. The path of both files, table and
  picture, is given without a suffix."""

  def __init__(self, path: pathlib.Path, swept: Sequence[Swept], paper: cli.Paper) -> None:
    self.path, self.swept, self.paper = path, swept, paper
    self.rows: list[Row] = []  # of the points that are done

  def add(self, point: Point, rows: Sequence[Row]) -> None:
    """Adds the rows of a point that is done."""
    self.rows += self._select(point, rows)

  def so_far(self, point: Point, rows: Sequence[Row]) -> None:
    """Writes the table of the rows so far, to which those of an unfinished point belong: after
    each row, and less often where there are hundreds."""
    rows = [*self.rows, *self._select(point, rows)]
    if len(rows) % (1 + len(rows) // 100) == 0:
      text = report.markdown(self._table(rows))
      write_text(self.path.with_suffix('.md'), f'{text}\nNot finished: other rows are measured.\n')

  def write(self, work: Any) -> None:
    """Writes <path>.md and <path>.png, and prints the table."""
    if not self.rows:
      work.console.print('No row is measured yet')
      return
    picture = self.path.with_suffix('.png')
    _draw(self.rows, self.swept, self._names, self.paper.figures[0], picture)
    report.write(work, self.path.name, [self._table(self.rows)], picture.name)

  def _select(self, point: Point, rows: Sequence[Row]) -> list[Row]:
    """The rows whose lists have the values that are swept, with the settings of their point."""
    wanted = list(rows)
    for axis in self.swept:
      if axis.is_listed:
        first = axis.values[0]  # a row without the field is of every value
        wanted = [row for row in wanted if row.get(axis.name, first) in axis.values]
    return [{**row, **point} for row in wanted]

  @property
  def _names(self) -> list[str]:
    """Fields that name a row."""
    names = [*self.paper.names, *self.paper.axes]
    for axis in self.swept:
      if not axis.is_listed:
        names.append(axis.setting)
    return names

  def _table(self, rows: Sequence[Row]) -> report.Drawn:
    columns = []
    for name in self._names:
      missing = report.MISSING if name in self.paper.axes else str(None)
      columns.append(report.Column(name, name, names_row=True, missing=missing))
    for heading, field, form in self.paper.figures:
      columns.append(report.Column(heading, field, form))
    return report.Table('Sweep', columns).of(rows)


def _draw(
  rows: Sequence[Row],
  swept: Sequence[Swept],
  names: Sequence[str],
  figure: tuple[str, str, str],
  path: pathlib.Path,
) -> None:
  """Draws the first figure against the first swept number, a curve for each of the other values."""
  from fastdec.evaluation import drawing

  heading, field, _ = figure
  measured = [row for row in rows if row.get(field) is not None]

  # The first swept name with only numbers runs across; without one, the rows are simply counted.
  across = 'row'
  for axis in reversed(swept):
    if {type(row.get(axis.name)) for row in measured} <= {int, float}:
      across = axis.name

  # Rows that differ in no other name are one curve.
  curves: dict[str, list[tuple[float, float]]] = {}
  for i, row in enumerate(measured):
    x, label = float(i), ''
    if across != 'row':
      x = float(row[across])
      others = []
      for name in names:
        if name != across and row.get(name) is not None:
          others.append(f'{name} {row[name]}')
      label = ', '.join(others)
    curves.setdefault(label, []).append((x, float(row[field])))

  picture, (panel,) = drawing.panels(1)
  drawing.dress(panel, 'Sweep', heading, across)
  for i, (label, points) in enumerate(curves.items()):
    turn = i % len(drawing.COLOURS)
    style = drawing.Style(drawing.COLOURS[turn], drawing.MARKERS[turn], '-')
    drawing.curve(panel, sorted(points), style, label)
  if not measured:
    drawing.mark_empty(panel)
  drawing.legend(picture, 2)
  drawing.save(picture, path)


if __name__ == '__main__':
  cli.run(main)
