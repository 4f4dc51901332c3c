"""What the tables of text and of images have in common: the order of regimes and rules, failures, conditions."""

from collections.abc import Callable, Iterable

from experiments.lab.cells import REGIMES, Cell, Key, flat
from experiments.lab.report import MISSING

SPEED_NOTE = 'One output at a time (batch 1), in turn with greedy decoding by the same model: median ratio of rounds.'
SAME_NOTE = 'Same: outputs that are those of greedy decoding with the same model.'
CONDITIONS = (
  'bleu_signature',
  'compound_bleu_signature',
  'split',
  'outputs',
  'config',
  'seed',
  'dtype',
  'batch',
  'device',
  'processor',
  'cpus',
  'commit',
)


def outcome(cell: Cell | None, show: Callable[[Cell], str]) -> str:
  """What stands in a table for a cell: its figures as `show` has them, a dash, or why it failed."""
  if cell is None:
    return MISSING
  return show(cell) if cell.error is None else f'failed: {" ".join(cell.error.split())}'


def in_order(cells: Iterable[Cell]) -> list[Cell]:
  """By regime, k and rule."""
  return sorted(cells, key=lambda cell: (list(REGIMES).index(cell.regime), cell.k, rank(cell.rule)))


def regimes(found: Iterable[Key]) -> list[str]:
  """Those that were run, in the paper's order."""
  run = {regime for _, regime, _ in found}
  return [regime for regime in REGIMES if regime in run]


def rank(rule: str) -> tuple[bool, str, int]:
  """Order of rules: exact, distance-0, distance-2, min-2, min-3, top-2, top-3, tree-8."""
  name, _, number = rule.partition('-')
  return name != 'exact', name, int(number or 0)


def conditions(cells: Iterable[Cell]) -> list[str]:
  """One note with what the figures depend on; where cells differ, all values."""
  rows = [flat(cell) for cell in cells if cell.error is None]
  values = {name: dict.fromkeys(str(row[name]) for row in rows if row.get(name) is not None) for name in CONDITIONS}
  note = '; '.join(f'{name} {", ".join(found)}' for name, found in values.items() if found)
  return [f'Conditions: {note}.'] if note else []
