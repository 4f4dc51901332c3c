"""report.md: the machine, what is there and what is not, then each part's tables."""

import pathlib
from collections.abc import Mapping, Sequence

from experiments.gpu.parts import Part
from experiments.lab import report
from experiments.lab.graph import Outcome
from fastdec.files import write_text

WITHOUT_TEXT = (
  "Table 1 trains on text of yours: give `--config.data.folder=` the folder of Multi30k's files."
)


def fill(
  parts: Sequence[Part], machine: Sequence[str], file: pathlib.Path, has_text: bool
) -> dict[str, Outcome]:
  """Has every part measured, in turn, and the page written anew after each: what is there is shown.

  Args:
    parts: in their order; their budgets end together.
    machine: lines of `machine.lines`.
    file: the page.
    has_text: whether Table 1 was asked for.

  Returns:
    What has come of each part, by its title.
  """
  for part in parts:
    part.page.check()  # a mistake shows before any work
  outcomes = {}
  for part in parts:
    part.page.console.rule(part.title)
    outcomes[part.title] = part.fill()
    write_text(file, text(machine, parts, outcomes, has_text))
  return outcomes


def text(
  machine: Sequence[str], parts: Sequence[Part], outcomes: Mapping[str, Outcome], has_text: bool
) -> str:
  """The whole page; `outcomes` are of those parts that had their turn."""
  written = [
    '# What fastdec does on this machine',
    '\n'.join(machine),
    '## What is here',
    summary(parts, outcomes),
  ]
  for number, part in enumerate(parts, start=1):
    written += [f'## {number}. {part.title}', part.says]
    tables = part.drawn()
    written += [heading_below(report.markdown(table)).strip() for table in tables] or [
      'Nothing was measured yet.'
    ]
    written += missing(part, outcomes.get(part.title))
  if not has_text:
    written.append(WITHOUT_TEXT)
  return '\n\n'.join(written) + '\n'


def summary(parts: Sequence[Part], outcomes: Mapping[str, Outcome]) -> str:
  """A table with a line a part: how many of its cells are there."""
  rows = []
  for part in parts:
    outcome = outcomes.get(part.title)
    groups = part.page.groups()
    cells = sum(len(group.plans) for group in groups)
    done = cells - sum(len(part.page.missing(group)) for group in groups)
    failed = len(outcome.failed) if outcome else 0
    rows.append(f'| {part.title} | {done} of {cells} | {failed} |')
  return '\n'.join(['| Part | Measured cells | Failed pieces |', '| --- | --- | --- |', *rows])


def missing(part: Part, outcome: Outcome | None) -> list[str]:
  """What is not there and why, as a list in Markdown."""
  lines = []
  for node in part.page.paced_nodes():
    if outcome is not None and node.name in outcome.failed:
      lines.append(f'* {node.title}: failed: {outcome.failed[node.name]}')
    elif not node.is_done():
      wants = f' (begins where {node.seconds:.0f} s of it are left)' if node.seconds else ''
      lines.append(f'* {node.title}: not reached within the budget{wants}')
  return ['\n'.join(['Not measured; the same command goes on:', '', *lines])] if lines else []


def heading_below(markdown: str) -> str:
  """A table whose title is a heading below the part's."""
  return f'#{markdown}' if markdown.startswith('## ') else markdown
