"""The parts of the report, for who has ten minutes once: what is quick and says most comes
first."""

import contextlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from experiments.gpu import exact, parity, widths
from experiments.gpu.settings import ReportSettings
from experiments.lab.cells import latest
from experiments.lab.conditions import Conditions
from experiments.lab.graph import Outcome
from experiments.lab.page import Page
from experiments.lab.report import Drawn
from experiments.papers.stern2018 import kinds
from experiments.papers.stern2018.text_page import TranslationPage, table1_cells

HIGHEST = 'highest'  # float32 as it is; by default a GPU multiplies it with fewer digits


class Part(NamedTuple):
  """A part.

  Attributes:
    title: its heading.
    says: what it is about, in a sentence or two.
    page: its cells, in a folder of its own.
    tables: what is drawn of them.
    precision: of float32 products; None: JAX's default.
  """

  title: str
  says: str
  page: Page[Any]
  tables: Callable[[Sequence[Any]], list[Drawn]]
  precision: str | None = None

  def fill(self) -> Outcome:
    """Measures what is missing, as far as the budget allows."""
    chosen = (
      contextlib.nullcontext()
      if self.precision is None
      else jax.default_matmul_precision(self.precision)
    )
    with chosen:
      return self.page.fill()

  def drawn(self) -> list[Drawn]:
    """The tables of all cells that there are."""
    found = list(latest(self.page.cells()).values())
    return [table for table in self.tables(found) if table.rows] if found else []


def parts_of(
  settings: ReportSettings, workdir: pathlib.Path, budget: float | None, conditions: Conditions
) -> list[Part]:
  """All parts; their budgets end together."""
  exactly = conditions | {'matmul_precision': HIGHEST}
  parts = [
    Part(
      'Parity',
      'Random models of every kind in float32, on the accelerator and on the CPU, matrix products'
      ' in full precision.',
      parity.ParityPage(settings, workdir / 'parity', budget, exactly),
      parity.tables,
    ),
    Part(
      'Exact strategies',
      'Every strategy that promises the text of greedy decoding, against greedy decoding; float32,'
      ' full precision.',
      exact.ExactPage(settings, workdir / 'exact', budget, exactly),
      exact.tables,
      HIGHEST,
    ),
    Part(
      'What a call costs',
      'Language models of real shapes with random weights, batch 1: milliseconds of a call against'
      ' its width, beside'
      ' the time that reading the weights takes. `experiments.benchmark'
      ' --config=configs/lm_speed.py` is the same.',
      widths.WidthsPage(settings, workdir / 'widths', budget, conditions),
      widths.tables,
    ),
  ]
  if settings.has_text:
    asked = table1_cells(settings.table1)
    parts.append(Part(
      'Table 1 of Stern et al. 2018',
      'Blockwise decoding of models trained here, on the text that was given.',
      TranslationPage(settings.table1, workdir / 'table1', budget, conditions, asked),
      table1_tables,
    ))  # fmt: skip
  for part in parts:
    part.page.paces = settings.paces
  return parts


def table1_tables(cells: Sequence[Any]) -> list[Drawn]:
  """What `experiments.table1` draws."""
  return [make(cells) for make in kinds.KINDS['translation'].tables]
