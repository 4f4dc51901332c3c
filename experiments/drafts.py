"""Drafters side by side: heads, draft networks, a draft model and prompt lookup on one base, beside
what is published.

  python -m experiments.drafts --config=configs/drafts.py:scale=smoke,task=translation \\
    --workdir=out/drafts-smoke
  python -m experiments.drafts --config=configs/drafts.py:scale=multi30k,task=lm \\
    --workdir=out/drafts-lm \\
    --config.data.folder=path/to/multi30k [--budget=25m]

Trains the base (or takes that of --config.base), has it write the text that heads and drafts are
trained on (or takes that of --config.data.own), trains them, each as experiments.train does, and
measures chains and trees against plain decoding of the base in turn. In the workdir: base/, own/,
heads/, rooted/, markov/, block/, block-2/, eagle/, model/ (runs), results.jsonl (one line a cell),
drafts.md, .csv and .png, and lengths.png where config.table.short asks for further chains. Finished
cells are skipped, an interrupted run goes on where it was, several processes on one workdir share
the work, and what failed is shown as failed (exit code 1) while the rest goes on.
"""

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('drafts')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the table and its runs', required=True)
BUDGET = cli.budget_flag()


def main(words: list[str]) -> None:
  import pathlib

  from experiments.lab import report
  from experiments.lab.cells import field_names, flat
  from experiments.papers import lengths
  from experiments.papers.drafts import figure, tables
  from experiments.papers.drafts.cells import DraftCell
  from experiments.papers.drafts.page import DraftsPage
  from experiments.papers.drafts.sides import SideBySide
  from fastdec.files import write_text

  budget = cli.seconds(BUDGET.value)
  page = DraftsPage(
    SideBySide.of(CONFIG.value), pathlib.Path(WORKDIR.value), budget, cli.conditions()
  )
  outcome = page.fill()
  if found := page.cells():
    plans = [plan for group in page.groups() for plan in group.plans]
    drawn = (
      tables.speed_table(found, plans),
      tables.acceptance_table(found),
      tables.published_table(),
    )
    picture = '\n![Tokens a call against training tokens](drafts.png)\n'
    if any(cell.short for cell in found):
      drawn += (lengths.table(found),)
      picture += '\n![Tokens a call against k](lengths.png)\n'
      lengths.picture(found, page.workdir / 'lengths.png')
    write_text(page.workdir / 'drafts.md', '\n'.join(map(report.markdown, drawn)) + picture)
    write_text(
      page.workdir / 'drafts.csv',
      report.csv_text([flat(cell) for cell in found], field_names(DraftCell)),
    )
    figure.learning(page.curves(), found, page.workdir / 'drafts.png')
    for table in drawn:
      page.console.print(report.markdown(table))  # too wide for a terminal's table
    paths = f'{page.workdir}/drafts.md and .csv, pictures in .png'
    page.console.print(f'\nThe tables are {paths}, every cell a line of {page.results}')
  page.end(outcome)


if __name__ == '__main__':
  cli.run(main)
