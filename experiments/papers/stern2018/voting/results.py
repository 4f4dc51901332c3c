"""Table 3 from the votes: table3.md in the paper's layout, table3.csv with a line for every method
1."""

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.lab import report
from experiments.papers.stern2018 import published, votes
from fastdec.files import write_text

COLUMNS = (
  'k',
  'rule',
  'percent',
  'low',
  'high',
  'votes',
  'raters',
  'paper_percent',
  'paper_low',
  'paper_high',
)


def write(
  results: Mapping[tuple[int, str], Sequence[tuple[bool, str]]], workdir: Path
) -> report.Drawn:
  """Writes table3.md and table3.csv into the workdir, and returns the table. `results`: see
  `Votes.results`."""
  found, everybody = {}, set()
  for method, given in results.items():
    raters = {rater for _, rater in given}
    found[method] = (
      votes.preference(np.array([preferred for preferred, _ in given])),
      len(given),
      len(raters),
    )
    everybody |= raters
  total = f'Votes in all: {sum(count for _, count, _ in found.values())}; raters: {len(everybody)}.'
  table = votes.table3(found)
  table = dataclasses.replace(table, notes=(*table.notes, total))
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(COLUMNS)
  for method, (preference, *counts) in sorted(found.items()):
    theirs = published.TABLE3.get(method, (None, None, None))
    writer.writerow([*method, *(f'{figure:.2f}' for figure in preference), *counts, *theirs])
  write_text(workdir / 'table3.csv', text.getvalue())
  write_text(workdir / 'table3.md', report.markdown(table))
  return table
