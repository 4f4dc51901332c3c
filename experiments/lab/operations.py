"""Counts of the operations that a program launches: compiled, and one primitive at a time."""

import re
from collections.abc import Iterator
from typing import Any

from jax.extend import core

# instructions that give a value a name, and launch nothing
NAMES = {'parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'after-all'}
NAMES |= {'partition-id', 'replica-id'}
CALLED = r'(?:to_apply|body|condition|calls|true_computation|false_computation)=%?([\w.-]+)'
BRANCHES = r'branch_computations={([^}]*)}'
# computations that these call are launched instruction by instruction
OUTER = {'call', 'while', 'conditional', 'async-start'}


def launches(hlo: str) -> int:
  """Counts instructions of a compiled program, `compiled.as_text()`, that run by themselves: on a
  GPU kernels and library calls.

  Bodies of loops and branches count once each; a fusion is one.
  """
  computations, entry = _computations(hlo)
  return len(list(_launched(computations, entry)))


def of_loop(hlo: str) -> list[tuple[str, str]]:
  """Lists the instructions that `launches` counts in the body of the longest loop, in order: opcode
  and line of the text."""
  computations, _ = _computations(hlo)
  bodies = [list(_launched(computations, name)) for name in re.findall(r'body=%?([\w.-]+)', hlo)]
  return max(bodies, key=len)


def _launched(
  computations: dict[str, list[tuple[str, str]]], name: str
) -> Iterator[tuple[str, str]]:
  for opcode, line in computations[name]:
    if opcode in OUTER:
      branches = ','.join(re.findall(BRANCHES, line))
      for inner in re.findall(CALLED, line) + re.findall(r'[\w.-]+', branches):
        yield from _launched(computations, inner)
    elif opcode not in NAMES and not opcode.endswith('-done'):
      yield opcode, line


def primitives(jaxpr: Any) -> int:
  """Counts operations of a traced program (`jax.make_jaxpr(f)(...)`), as if nothing were compiled
  as a whole."""
  total = 0
  for equation in jaxpr.eqns:
    inner = list(_inner(equation.params.values()))
    total += sum(map(primitives, inner)) if inner else 1
  return total


def _computations(hlo: str) -> tuple[dict[str, list[tuple[str, str]]], str]:
  """The (opcode, line) pairs of each computation, and which is the entry."""
  found: dict[str, list[tuple[str, str]]] = {}
  entry = name = ''
  for line in hlo.splitlines():
    if head := re.match(r'(ENTRY )?%?([\w.-]+) \(.*\{$', line):
      name = head[2]
      found[name] = []
      entry = name if head[1] else entry
    elif opcode := re.match(r'\s+(?:ROOT )?%?[\w.-]+ = .*?[\]})] ([a-z][a-z0-9-]*)\(', line):
      found[name].append((opcode[1], line))
  return found, entry


def _inner(values: Any) -> Iterator[Any]:
  """The programs among an equation's parameters."""
  for value in values:
    if isinstance(value, tuple | list):
      yield from _inner(value)
    elif isinstance(value, core.ClosedJaxpr):
      yield value.jaxpr
    elif isinstance(value, core.Jaxpr):
      yield value
