"""What the report's own pages have in common: random weights, so nothing is trained, and a group is
a node."""

import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

from experiments.lab import graph
from experiments.lab.cells import Cell
from experiments.lab.page import Page
from experiments.lab.run import Run

Measured = TypeVar('Measured', bound=Cell)


class RandomPage(Page[Measured]):
  """See `Page`; `experiment` is the report's settings."""

  def runs(self) -> list[Run]:
    return []

  def nodes(self) -> list[graph.Node]:
    return self.group_nodes()

  def check_cells(self, done: Sequence[Measured]) -> None:
    """Nothing: what decides a cell is in its hash, so a cell of other sizes is missing."""


def hash_of(*settings: Any) -> str:
  """A hash of sizes and seed: random weights are nothing but these."""
  return hashlib.sha256(repr(settings).encode()).hexdigest()[:16]
