"""Draws the tables of docs/results anew, from the JSON lines that lie beside the pages: `make
results`.

  python -m experiments.results [--folder=docs/results]

A page names a table and its lines, and the table stands between two comments; all other text is
written by hand:

  <!-- table: stern2018.table1 from multi30k.jsonl -->
  ...
  <!-- end -->

The lines are those that launchers append to a workdir's results.jsonl (or speed.jsonl, ...). After
a new measurement, copy the workdir's file over the one here, and draw. Lines that say "recovered"
were read back from tables that had been pasted: their figures have the printed precision.
"""

import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from experiments.lab import cli

FOLDER = flags.DEFINE_string('folder', 'docs/results', 'folder with the pages and their lines')
MARKED = re.compile(r'(<!-- table: (\S+) from (\S+) -->\n).*?(<!-- end -->)', re.DOTALL)
SPEED_CONDITIONS = (
  'config',
  'seed',
  'platform',
  'device',
  'devices',
  'processor',
  'cpus',
  'jax',
  'commit',
)
PEER_CONDITIONS = (
  *(
    'config',
    'dtype',
    'batch',
    'seed',
    'platform',
    'device',
    'devices',
    'processor',
    'cpus',
    'jax',
    'commit',
  ),
  *(
    'prompt',
    'tokens',
    'gamma',
    'ngram',
    'prompts',
    'timed',
    'rounds',
    'transformers',
    'torch',
    'torch_threads',
  ),
)
Draw = Callable[[pathlib.Path], str]  # from a file of lines to Markdown


def main(_: list[str]) -> None:
  from fastdec.errors import UserError
  from fastdec.files import whole_file

  pages = sorted(pathlib.Path(FOLDER.value).glob('*.md'))
  if not pages:
    raise UserError(f'--folder={FOLDER.value} has no pages: give a folder such as docs/results')
  tables = known_tables()
  for page in pages:
    text = drawn(page, tables)
    if text != page.read_text():
      with whole_file(page) as file:
        file.write(text.encode())
      print(f'{page} is drawn anew')


def drawn(page: pathlib.Path, tables: Mapping[str, Draw]) -> str:
  """The text of a page with each table as its lines have it.

  Raises:
    UserError: a table or a file of lines that is not there.
  """
  from fastdec.errors import UserError

  def draw(found: re.Match[str]) -> str:
    begin, name, lines, end = found.groups()
    if name not in tables:
      raise UserError(f"{page} asks for the table '{name}': known are {', '.join(tables)}")
    if not (page.parent / lines).exists():
      raise UserError(
        f'{page} draws {name} from {lines}, which is not beside it: copy it there from the workdir'
      )
    return f'{begin}\n{tables[name](page.parent / lines).strip()}\n\n{end}'

  return MARKED.sub(draw, page.read_text())


def known_tables() -> dict[str, Draw]:
  """The tables by the names that pages have for them; each is drawn by the code that the
  experiment's launcher uses."""
  from experiments import cai2024, drafters, fu2024, incremental_decoding, leviathan2022
  from experiments.lab import precision
  from experiments.papers import leaderboard
  from experiments.speed import drafts as draft_costs
  from experiments.speed import images, lm, translation
  from experiments.speed.costs import peers_table
  from experiments.stern2018 import image_tables
  from experiments.stern2018 import tables as stern2018

  return {
    'stern2018.table1': of_lines(stern2018.table1, stern2018.KEY),
    'stern2018.rules': of_lines(stern2018.rules_table, stern2018.KEY),
    'stern2018.trees': of_lines(stern2018.trees_table, stern2018.KEY),
    'stern2018.wallclock': of_lines(stern2018.wallclock_table, stern2018.KEY),
    'stern2018.table4': of_lines(stern2018.table4, stern2018.KEY),
    'stern2018.beside': beside,
    'stern2018.table2': of_lines(image_tables.table2, stern2018.KEY),
    'stern2018.quality': of_lines(image_tables.quality_table, stern2018.KEY),
    'stern2018.distances': of_lines(image_tables.tau_table, stern2018.KEY),
    'stern2018.image_heads': of_lines(image_tables.heads_table, stern2018.KEY),
    'leviathan2022.speeds': of_lines(leviathan2022.speeds, leviathan2022.PLAN),
    'leviathan2022.alphas': of_lines(leviathan2022.alphas, leviathan2022.PLAN),
    'cai2024.speeds': of_lines(cai2024.speeds, cai2024.PLAN),
    'cai2024.heads': of_calibration(cai2024.accuracies),
    'cai2024.trees': of_calibration(cai2024.widths),
    'drafts.speeds': of_lines(drafters.side_by_side, drafters.PLAN),
    'drafts.lengths': of_lines(drafters.lengths, drafters.PLAN),
    'drafts.acceptance': of_lines(drafters.acceptance, drafters.PLAN),
    'drafts.published': lambda _: shown(drafters.PUBLISHED_TABLE.of(drafters.PUBLISHED_ROWS)),
    'fu2024.speeds': of_lines(fu2024.speeds, fu2024.PLAN),
    'incremental': of_lines(incremental_decoding.tables, incremental_decoding.KEY),
    'leaderboard': lambda folder: shown(leaderboard.leaderboard(folder)),
    'precision': of_lines(precision.table, precision.KEY),
    'speed.translation': of_rows(translation.markdown, SPEED_CONDITIONS),
    'speed.drafts': of_rows(draft_costs.markdown, SPEED_CONDITIONS),
    'speed.images': of_rows(images.markdown, SPEED_CONDITIONS),
    'speed.lm': of_rows(lm.markdown, SPEED_CONDITIONS),
    'speed.generate_peer': of_rows(peers_table, PEER_CONDITIONS),
  }


def of_cells(kind: type, make: Callable[..., Any]) -> Draw:
  """Draws the table, or the tables, that `make` has of the cells in a file."""
  from experiments.lab import cells

  def draw(lines: pathlib.Path) -> str:
    made = make(cells.read(lines, kind))
    return '\n\n'.join(map(shown, made if isinstance(made, list) else [made]))

  return draw


def of_lines(make: Callable[..., Any], key: Sequence[str]) -> Draw:
  """Draws a table, or several, of the latest rows of a file: one for each value of the fields
  `key`."""
  from experiments.lab import rows

  def draw(lines: pathlib.Path) -> str:
    made = make(rows.latest(rows.read(lines), *key))
    return '\n\n'.join(map(shown, made if isinstance(made, list) else [made]))

  return draw


def of_calibration(make: Callable[..., Any]) -> Draw:
  """Draws a table of what was found about heads and trees, in medusa-1-tree.json and the like."""
  from fastdec.evaluation.tree_calibration import Calibration

  def draw(found: pathlib.Path) -> str:
    return shown(make(Calibration.load(found), found.stem.removesuffix('-tree').capitalize()))

  return draw


def of_rows(make: Callable[[Sequence[Mapping[str, Any]]], str], names: Sequence[str]) -> Draw:
  """Draws a benchmark's rows, with the conditions of these names below."""
  import json

  def draw(lines: pathlib.Path) -> str:
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    conditions = '; '.join(
      f'{name} {", ".join(dict.fromkeys(str(row[name]) for row in rows))}' for name in names
    )
    return f'{make(rows)}\n\n{folded(f"Conditions: {conditions}.")}'

  return draw


def beside(lines: pathlib.Path) -> str:
  """Several workdirs side by side; here their rows are in one file, and each says its workdir."""
  from experiments.lab import rows
  from experiments.stern2018.tables import beside

  found: dict[str, list[Any]] = {}
  for row in rows.read(lines):
    found.setdefault(row['workdir'], []).append(row)
  return shown(beside(found))


def shown(table: Any) -> str:
  """A table as Markdown, one level below the page's sections, its conditions folded."""
  from experiments.lab import report

  lines = re.sub('^## ', '### ', report.markdown(table).strip()).split('\n')
  return '\n'.join(folded(line) if line.startswith('Conditions: ') else line for line in lines)


def folded(conditions: str) -> str:
  said = conditions.removeprefix('Conditions: ')
  return f'<details><summary>Conditions</summary>\n\n{said}\n\n</details>'


if __name__ == '__main__':
  cli.run(main)
