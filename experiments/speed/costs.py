"""What calls cost, from their timings: against greedy's call, and against the time to read what a
call must read."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from experiments.lab.report import Column, Table, between, markdown
from fastdec.errors import UserError
from fastdec.evaluation.calls import Calls
from fastdec.evaluation.wallclock import Timing, measure

LARGEST = 2**30  # bytes of the matrix that the bandwidth is measured by: more than any cache holds
READS = 8  # of that matrix in one program, so that starting the program hardly counts
Row = dict[str, Any]


def rounds(row: Any) -> str:
  """The least and the largest of rounds, to stand beside a ratio of a row or a cell; '' without."""
  return between(row.get('spread') if isinstance(row, Mapping) else row.spread)


COLUMNS = (
  Column('dtype', 'dtype', names_row=True),
  Column('batch', 'batch', names_row=True),
  Column('variant', 'variant', names_row=True),
  Column('ms a call', 'ms_per_call', '.2f'),
  Column('to greedy', 'to_greedy', '.2f', beside=rounds),
  Column('to the floor', 'to_floor', '.2f'),
  Column('floor ms', 'floor_ms', '.2f'),
)
PEERS = (
  Column('strategy', 'strategy'),
  Column('engine', 'engine'),
  Column('same as our greedy', 'same_as_greedy', '.1%'),
  Column('ms a token', 'ms_per_token', '.3f'),
  Column('times as fast as transformers', 'to_peer', '.2f', beside=rounds),
  Column('as its own greedy', 'to_greedy', '.2f'),
  Column('calls of the target', 'target_calls', '.1f'),
  Column('of the draft model', 'draft_calls', '.1f'),
)


def check_at_least(least: int, config: Any, *names: str) -> None:
  """Raises UserError where a field, or an entry of a field that is a tuple, is below `least`, or a
  tuple is empty."""
  for name in names:
    value = getattr(config, name)
    if not value and isinstance(value, tuple):
      raise UserError(f'{name}={value} is not possible: give one value at least')
    if min(value if isinstance(value, tuple) else (value,)) < least:
      raise UserError(f'{name}={value} is not possible: give {least} or more')


def measured(variants: Mapping[str, Calls], rounds: int, projection: str) -> list[Row]:
  """One row a variant, 'greedy' among them: milliseconds a call, the ratio to greedy's call, and to
  the floor."""
  return figures(measure(variants, rounds), variants, projection)


def figures(
  timings: Mapping[str, Timing], variants: Mapping[str, Calls], projection: str
) -> list[Row]:
  """The rows of `measured`, from timings that there are already."""
  sizes = {name: variant.bytes(projection) for name, variant in variants.items()}
  bandwidth = _bandwidth(sizes['greedy'])
  rows = []
  for name, variant in variants.items():
    timing, floor = timings[name], sizes[name] / bandwidth
    rows.append({
      'variant': name,
      'ms_per_call': timing.milliseconds / variant.calls,
      'to_greedy': 1 / timing.speedup_over(timings['greedy']),
      'spread': timings['greedy'].speedups_over(timing),
      'to_floor': timing.median / variant.calls / floor,
      'floor_ms': 1e3 * floor,
      'megabytes': sizes[name] / 1e6,
      'compile_seconds': timing.compile_seconds,
      'rounds': len(timing.seconds),
    })  # fmt: skip
  return rows


def _bandwidth(size: int) -> float:
  """Bytes a second that matrix-vector products read from a matrix of about `size` bytes: the
  fastest of seven runs."""
  matrix = jnp.ones((-(-min(size, LARGEST) // 4096), 1024), jnp.float32)

  @jax.jit
  def products(matrix: Any) -> Any:
    return jax.lax.fori_loop(
      0, READS, lambda _, vector: vector + 1e-30 * (matrix @ vector).sum(), matrix[0]
    )

  return (
    READS * matrix.nbytes / measure({'products': lambda: products(matrix)}, 7)['products'].spread[0]
  )


def calls_table(rows: Sequence[Mapping[str, Any]]) -> str:
  """Rows of `measured`, with the columns dtype and batch, as a pipe table."""
  return table(rows, COLUMNS)


def peers_table(rows: Sequence[Mapping[str, Any]]) -> str:
  """Rows of `experiments.generate_peer`, one a strategy and engine, as a pipe table."""
  return table(rows, PEERS)


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> str:
  """A pipe table without title and notes."""
  return markdown(Table('', columns).of(rows)).strip()
