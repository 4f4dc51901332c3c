"""What a call of a language model costs against its width, by shape and type of numbers:
`experiments.speed.lm`."""

import dataclasses
from collections.abc import Sequence

import jax

from experiments.gpu.page import RandomPage, hash_of
from experiments.lab.cells import Cell
from experiments.lab.page import Group
from experiments.lab.report import Drawn, Table
from experiments.speed.costs import COLUMNS
from experiments.speed.lm import MORE_COLUMNS, SpeedConfig, drafts_of, measure_speed
from fastdec.errors import UserError
from fastdec.models.lm import LM


@dataclasses.dataclass(frozen=True)
class WidthCell(Cell):
  """Greedy, a chain or a tree, on one shape in one type: the figures of a row of
  `measure_speed`."""

  shape: str
  dtype: str
  variant: str
  batch: int = 1
  ms_per_call: float | None = None
  to_greedy: float | None = None
  spread: tuple[float, float] | None = None
  to_floor: float | None = None
  floor_ms: float | None = None
  megabytes: float | None = None
  compile_seconds: float | None = None
  rounds: int | None = None
  to_chain: float | None = None
  bandwidth_share: float | None = None
  bare_ms: float | None = None
  overhead_ms: float | None = None
  overhead_share: float | None = None

  @property
  def key(self) -> tuple[str, str, str]:
    return self.shape, self.dtype, self.variant

  @property
  def name(self) -> str:
    return f'widths-{self.shape}-{self.dtype}'


class WidthsPage(RandomPage[WidthCell]):
  """One group a shape and type: all widths are timed in turn."""

  kind = WidthCell

  def groups(self) -> list[Group[WidthCell]]:
    widths, found = self.experiment.widths, []
    for dtype in widths.dtypes:
      for shape in widths.shapes:
        plans = tuple(WidthCell(shape, dtype, variant) for variant in drafts_of(widths.widths))
        found.append(Group(plans[0].name, f'widths: {shape}, {dtype}', plans))
    return found

  def speed(self, plan: WidthCell) -> SpeedConfig:
    """What is timed with a cell."""
    return self.experiment.widths.speed(plan.shape, plan.dtype, self.experiment.seed)

  def models_of(self, plan: WidthCell) -> str:
    return hash_of(self.speed(plan))

  def measure(self, group: Group[WidthCell], missing: Sequence[WidthCell]) -> list[WidthCell]:
    """The whole group, even if only a part of it is missing.

    Raises:
      UserError: the device is too small.
    """
    plan = group.plans[0]
    config = self.speed(plan)
    check_memory(config, plan)
    models, rows = self.models_of(plan), measure_speed(config, self.console.print)
    return [WidthCell(plan.shape, **row, models=models, conditions=self.conditions) for row in rows]

  def summary(self, cell: WidthCell) -> str:
    return (
      f'{cell.variant}: {cell.ms_per_call:.2f} ms, {cell.to_greedy:.2f} of greedy,'
      f' {cell.to_floor:.2f} of the floor'
    )


def check_memory(config: SpeedConfig, plan: WidthCell) -> None:
  """Raises UserError where the weights alone are more than JAX may use of the device, as far as it
  says how much."""
  limit = (jax.devices()[0].memory_stats() or {}).get('bytes_limit')
  shapes = jax.eval_shape(LM(config.model).init, jax.random.key(0))
  wanted = sum(leaf.size for leaf in jax.tree.leaves(shapes)) * jax.numpy.dtype(plan.dtype).itemsize
  if limit is not None and wanted > limit:
    raise UserError(
      f'{plan.shape} in {plan.dtype} has {wanted / 1e9:.1f} GB of weights, and JAX may use'
      f' {limit / 1e9:.1f} GB of this'
      ' device: XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 lets it use more, or leave the shape out by'
      ' --config.widths.shapes'
    )


def tables(cells: Sequence[WidthCell]) -> list[Drawn]:
  """One a shape; of a group that failed as a whole one line is left."""
  notes = (
    'The floor is the time to read once what a call must read, at the bandwidth that matrix-vector'
    ' products reach in'
    ' the same process; the share of the bandwidth is its inverse. A tree runs through the same'
    ' loop as the chain of'
    ' as many nodes. The model alone is its part of a call; the loop adds the rest.',
  )
  drawn = []
  for shape in dict.fromkeys(cell.shape for cell in cells):
    shown, told = [], set()
    for cell in cells:
      failure = cell.name, cell.error
      if cell.shape == shape and (cell.error is None or failure not in told):
        shown.append(cell)
        told.add(failure)
    drawn.append(Table(shape, (*COLUMNS, *MORE_COLUMNS), notes).of(shown))
  return drawn
