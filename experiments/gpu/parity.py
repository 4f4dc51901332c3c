"""Whether float32 on the accelerator is float32 on the CPU: logits along one text, and what both
write greedily."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import fastdec as fd
from experiments.gpu.models import Case, case_of
from experiments.gpu.page import RandomPage, hash_of
from experiments.lab.cells import Cell
from experiments.lab.page import Group
from experiments.lab.report import Column, Drawn, Table
from fastdec.decoding.inputs import prompt_of
from fastdec.decoding.protocol import Decoded
from fastdec.decoding.score import forced
from fastdec.errors import UserError
from fastdec.evaluation.agreement import partings


@dataclasses.dataclass(frozen=True)
class ParityCell(Cell):
  """A model on two sides."""

  model: str
  sides: tuple[str, str] | None = None
  largest_difference: float | None = None  # of logits along the first side's text
  largest_logit: float | None = None
  same_tokens: float | None = None  # share
  parted: int | None = None  # rows
  largest_gap: float | None = None  # between the logits of two tokens where a row parts
  rows: int | None = None

  @property
  def key(self) -> tuple[str]:
    return (self.model,)

  @property
  def name(self) -> str:
    return f'parity-{self.model}'


class Side(NamedTuple):
  """A device and a precision of products."""

  name: str
  device: Any
  precision: str

  @contextlib.contextmanager
  def used(self) -> Iterator[None]:
    """In this block programs are made for this side."""
    with jax.default_device(self.device), jax.default_matmul_precision(self.precision):
      yield


class ParityPage(RandomPage[ParityCell]):
  """One group a kind of model."""

  kind = ParityCell

  def groups(self) -> list[Group[ParityCell]]:
    plans = [ParityCell(kind) for kind in self.experiment.parity.models]
    return [Group(plan.name, f'parity: {plan.model}', (plan,)) for plan in plans]

  def models_of(self, plan: ParityCell) -> str:
    sizes = dataclasses.replace(self.experiment.parity, models=())
    return hash_of(sizes, plan.model, self.experiment.seed)

  def measure(self, group: Group[ParityCell], missing: Sequence[ParityCell]) -> list[ParityCell]:
    (plan,) = missing
    first, second = sides()
    with first.used():
      # pyright: ignore[reportArgumentType]
      case = case_of(plan.model, self.experiment.parity, self.experiment.seed)
    tokens = None if case.model.fixed_length else self.experiment.parity.tokens
    text, other = written(case, first, tokens), written(case, second, tokens)
    logits, others = (logits_along(case, side, text) for side in (first, second))
    with first.used():
      gaps = partings((case.model, case.params), case.inputs, other, text)
    figures = {
      'sides': (first.name, second.name),
      'largest_difference': float(np.abs(logits - others).max()),
      'largest_logit': float(np.abs(logits).max()),
      'same_tokens': float((np.asarray(text.tokens) == np.asarray(other.tokens)).mean()),
      'parted': len(gaps),
      'largest_gap': float(gaps.max()) if gaps.size else None,
      'rows': len(case.inputs),
    }
    models = self.models_of(plan)
    return [dataclasses.replace(plan, **figures, models=models, conditions=self.conditions)]

  def summary(self, cell: ParityCell) -> str:
    return (
      f'{cell.model}: logits differ by at most {cell.largest_difference:.1e},'
      f' {cell.same_tokens:.1%} same tokens'
    )


def sides() -> tuple[Side, Side]:
  """The CPU and the accelerator, both in highest precision; on a CPU alone, its highest and its
  default precision.

  Raises:
    UserError: JAX was told not to see the CPU.
  """
  device = jax.devices()[0]
  if device.platform == 'cpu':
    return Side('CPU, highest', device, 'highest'), Side('CPU, default', device, 'default')
  try:
    cpu = jax.devices('cpu')[0]
  except RuntimeError:
    remedy = f'leave JAX_PLATFORMS unset, or set it to {device.platform},cpu'
    raise UserError(f'JAX sees no CPU to compare with: {remedy}') from None
  return Side('CPU', cpu, 'highest'), Side(device.device_kind, device, 'highest')


def written(case: Case, side: Side, tokens: int | None) -> Decoded:
  """What a side writes greedily."""
  with side.used():
    params = jax.device_put(case.params, side.device)
    return jax.device_get(
      fd.decode(case.model, params, case.inputs, fd.Greedy(), max_len=tokens).checked()
    )


def logits_along(case: Case, side: Side, text: Decoded) -> np.ndarray:
  """The logits of a side for each token of a text, all before it being given."""
  with side.used():
    prompt = prompt_of(case.model, case.inputs, None, None)
    args = jax.device_put((case.params, prompt, text.tokens), side.device)
    return np.asarray(_logits(case.model, *args))


@functools.partial(jax.jit, static_argnames='model')
def _logits(model: Any, params: Any, prompt: Any, tokens: Any) -> Any:
  return model.unembed(params, forced(model, params, prompt, tokens))


PARITY = Table(
  '',
  (
    Column('Model', 'model', names_row=True),
    Column('Between', lambda cell: ' and '.join(cell.sides)),
    Column('Logits differ by at most', 'largest_difference', '.1e'),
    Column('Largest logit', 'largest_logit', '.1f'),
    Column('Same greedy tokens', 'same_tokens', '.2f', ' %', 100),
    Column('Rows that part', lambda cell: f'{cell.parted} of {cell.rows}'),
    Column('at gaps up to', 'largest_gap', '.1e'),
  ),
  ('Logits are teacher-forced along what the first of the two writes. A gap is how far the two'
   ' tokens are apart in'
   ' logits where a row parts: rounding explains less than 1e-4.',),
)  # fmt: skip


def tables(cells: Sequence[ParityCell]) -> list[Drawn]:
  """The table; a note says where there was no accelerator."""
  alone = any((cell.sides or ('', ''))[1].startswith('CPU') for cell in cells)
  notes = (
    ['The only device is the CPU: its default precision of products is compared with the highest.']
    if alone
    else []
  )
  return [PARITY.of(cells, notes=notes)]
