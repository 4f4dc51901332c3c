"""Table 1 of Stern et al. 2018 from measured cells, the paper's figures beside ours: Markdown, CSV and text."""

import csv
import dataclasses
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rich.box
import rich.table
import rich.text

from fastdec.evaluation import paper
from fastdec.evaluation.cells import FIELDS, TUNES, Cell, Key, flat, latest

MISSING = '–'
UNBROKEN = 14   # characters: figures are not broken over lines, reasons of failures are
TOP_N_NOTE = "† The paper's top-2 and top-3 figures are for Both, that is with distillation too."
MIN_NOTE = '‡ At least so many tokens a call (section 5.3): not in the paper, which gives no figures.'
CONDITIONS = (
  'bleu_signature', 'split', 'sentences', 'config', 'seed', 'dtype', 'batch', 'device', 'processor', 'cpus', 'commit')


class Entry(NamedTuple):
  """Ours, and the paper's beside it ('' where there is none)."""
  ours: str
  paper: str = ''


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of text, before it is drawn."""
  title: str
  header: tuple[str, ...]
  rows: tuple[tuple[Entry, ...], ...]
  notes: tuple[str, ...]


def table1(cells: Iterable[Cell]) -> Table:
  """BLEU / mean accepted block size, by k and by the way of training, in the paper's layout.

  Rows are the k that were run, then those with a minimum block size; columns the ways of training with exact
  acceptance, then those with top-n. Distillation, Both and top-n appear where they were run.
  """
  found = latest(cells)
  columns = _columns(found)
  ks = sorted({k for k, _, _ in found})
  minima = sorted({rule for _, _, rule in found if rule.startswith('min-')}, key=_number)
  rows = [(Entry(str(k)), *(_entry(found, (k, *column)) for column in columns)) for k in ks]
  for rule in minima:
    for k in ks:
      keys = [(k, tune, rule) if column_rule == 'exact' else None for tune, column_rule in columns]
      if any(key in found for key in keys):
        label = Entry(f'{k}, min {_number(rule)} ‡')
        rows.append((label, *(_entry(found, key) if key else Entry('') for key in keys)))
  notes = ["BLEU / mean accepted block size; in parentheses the paper's (Table 1: WMT14 en-de, newstest2013).",
           *[TOP_N_NOTE] * any(_is_footnoted(column) for column in columns), *[MIN_NOTE] * bool(minima),
           *_conditions(found.values())]
  header = ('k', *(_heading(*column) for column in columns))
  return Table('Blockwise parallel decoding, Table 1', header, tuple(rows), tuple(notes))


def wallclock_table(cells: Iterable[Cell]) -> Table:
  """Milliseconds per sentence against greedy decoding of the same model, and how often each head is right."""
  finished = [cell for cell in latest(cells).values() if cell.error is None]
  rows = []
  for cell in sorted(finished, key=lambda cell: (list(TUNES).index(cell.tune), cell.k, _rank(cell.rule))):
    accuracy = cell.head_accuracy if cell.rule == 'exact' else ()   # it does not depend on the rule
    rows.append(tuple(map(Entry, (
      str(cell.k), TUNES[cell.tune], cell.rule, _text(cell.greedy_ms_per_sentence, '.1f'),
      _text(cell.ms_per_sentence, '.1f'), _text(cell.speedup, '.2f', '×'), _text(cell.calls_per_sentence, '.1f'),
      _text(cell.same_as_greedy and 100 * cell.same_as_greedy, '.1f'),
      ' '.join(_text(a and 100 * a, '.0f') for a in accuracy)))))
  header = (
    'k', 'Training', 'Rule', 'Greedy ms', 'Block ms', 'Speed-up', 'Calls', 'As greedy %', 'Top-1 % of p1 .. pk')
  notes = (
    'Per sentence at batch 1: median of rounds in which both take turns, compiling apart.',
    "As greedy: sentences whose output is that of greedy decoding with the same model.")
  return Table('Wall clock and heads', header, tuple(rows), notes)


def markdown(table: Table) -> str:
  """A pipe table under its title, notes below."""
  def line(texts: Iterable[str]) -> str:
    return '| ' + ' | '.join(text.replace('|', r'\|') for text in texts) + ' |'

  body = [line(' '.join(filter(None, entry)) for entry in row) for row in table.rows]
  notes = [f'{note}\n' for note in table.notes]
  return '\n'.join([f'## {table.title}\n', line(table.header), line(['---'] * len(table.header)), *body, '', *notes])


def terminal(table: Table) -> rich.table.Table:
  """The same for `rich.print`, 80 columns wide if need be: the paper's figure dim, below ours."""
  notes = '\n'.join(table.notes)
  drawn = rich.table.Table(
    title=table.title, caption=notes, caption_justify='left', box=rich.box.SIMPLE, padding=(0, 1, 0, 0))
  for index, heading in enumerate(table.header):
    texts = [*heading.split(), *(text for row in table.rows for text in row[index])]
    drawn.add_column(heading, min_width=max(len(text) for text in texts if len(text) <= UNBROKEN))
  for row in table.rows:
    drawn.add_row(*(rich.text.Text.assemble(ours, (f'\n{beside}' * bool(beside), 'dim')) for ours, beside in row))
  return drawn


def tidy_csv(cells: Iterable[Cell]) -> str:
  """One line a cell, its conditions and the paper's figures included."""
  rows = []
  for key, cell in latest(cells).items():
    bleu, block = paper.TABLE1.get(key, (None, None))
    accuracy = ' '.join(_text(a, '.4f') for a in cell.head_accuracy)
    rows.append(flat(cell) | {'head_accuracy': accuracy, 'paper_bleu': bleu, 'paper_mean_block_size': block})
  columns = dict.fromkeys([*FIELDS, 'paper_bleu', 'paper_mean_block_size', *(name for row in rows for name in row)])
  text = io.StringIO()
  writer = csv.DictWriter(text, list(columns), lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  return text.getvalue()


def write(cells: Sequence[Cell], folder: Path) -> None:
  """Writes table1.md (which shows table1.png, see `figures`) and table1.csv."""
  tables = '\n'.join(map(markdown, (table1(cells), wallclock_table(cells))))
  page = f'{tables}\n![BLEU against block size](table1.png)\n'
  for name, text in ('table1.md', page), ('table1.csv', tidy_csv(cells)):
    temporary = folder / f'.{name}.new'
    temporary.write_text(text)
    os.replace(temporary, folder / name)


def _columns(found: Iterable[Key]) -> list[tuple[str, str]]:
  """(tune, rule) of each column: exact ones first, in the paper's order."""
  present = {(tune, rule) for _, tune, rule in found if not rule.startswith('min-')}
  present |= {('regular', 'exact'), ('finetune', 'exact')}
  return sorted(present, key=lambda c: (c[1] != 'exact', list(TUNES).index(c[0]), _rank(c[1])))


def _heading(tune: str, rule: str) -> str:
  name = TUNES[tune] if rule == 'exact' else f'{TUNES[tune]}, {rule}'
  return f'{name} †' if _is_footnoted((tune, rule)) else name


def _is_footnoted(column: tuple[str, str]) -> bool:
  """Whether the paper's figures of this column are of another way of training."""
  tune, rule = column
  return tune == 'finetune' and rule.startswith('top-')


def _entry(found: dict[Key, Cell], key: Key) -> Entry:
  k, tune, rule = key
  beside = paper.TABLE1.get((k, 'both', rule) if _is_footnoted((tune, rule)) else key)
  return Entry(_figures(found.get(key)), '' if beside is None else f'({beside[0]:.2f} / {beside[1]:.2f})')


def _figures(cell: Cell | None) -> str:
  if cell is None:
    return MISSING
  if cell.error is not None:
    return f'failed: {" ".join(cell.error.split())}'
  return f'{_text(cell.bleu, ".2f")} / {_text(cell.mean_block_size, ".2f")}'


def _conditions(cells: Iterable[Cell]) -> list[str]:
  """One note with what the figures depend on; where cells differ, all values."""
  rows = [flat(cell) for cell in cells if cell.error is None]
  values = {name: dict.fromkeys(str(row[name]) for row in rows if row.get(name) is not None) for name in CONDITIONS}
  text = '; '.join(f'{name} {", ".join(found)}' for name, found in values.items() if found)
  return [f'Conditions: {text}.'] if text else []


def _number(rule: str) -> int:
  return int(rule.rpartition('-')[2])


def _rank(rule: str) -> tuple[str, int]:
  """Order of rules: exact, min-2, min-3, top-2, top-3."""
  name, _, number = rule.partition('-')
  return name, int(number or 0)


def _text(value: Any, form: str, unit: str = '') -> str:
  return MISSING if value is None else f'{value:{form}}{unit}'
