"""Strategies as JSON: a kind and its settings, without the heads or the draft, whose folder is
named beside.

{"kind": "Blockwise", "k": 4, "rule": {"kind": "TopN", "n": 2}}
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fastdec.decoding.methods.block import BlockDraft
from fastdec.decoding.methods.eagle import Eagle
from fastdec.decoding.methods.forecast import LinearForecast
from fastdec.decoding.methods.greedy import Greedy, Sample
from fastdec.decoding.methods.heads import Blockwise, Medusa
from fastdec.decoding.methods.jacobi import Jacobi
from fastdec.decoding.methods.lookahead import Lookahead
from fastdec.decoding.methods.lookup import PromptLookup
from fastdec.decoding.methods.speculative import Speculative
from fastdec.decoding.methods.two_calls import BlockwiseTwoCalls
from fastdec.decoding.rules.matching import Distance, Exact, MinBlock, TopN
from fastdec.decoding.rules.rejection import BlockVerification, Rejection
from fastdec.decoding.rules.sampling import Sampling
from fastdec.decoding.rules.typical import Typical
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.fields import known, shown

STRATEGIES = (
  Greedy, Sample, Blockwise, BlockwiseTwoCalls, Medusa, Speculative, PromptLookup, Lookahead, Jacobi, Eagle, BlockDraft,
  LinearForecast,
)  # fmt: skip
RULES = (Exact, TopN, Distance, MinBlock, Typical, Rejection, BlockVerification, Sampling)
PARTS = {  # the field of a strategy that takes (module, params), and what these are
  'Blockwise': ('heads', 'heads'), 'BlockwiseTwoCalls': ('heads', 'heads'), 'Medusa': ('heads', 'heads'),
  'Speculative': ('draft', 'model'), 'Eagle': ('draft', 'draft'), 'BlockDraft': ('draft', 'draft'),
}  # fmt: skip


def describe(strategy: Any) -> dict[str, Any]:
  """The kind of a strategy and all its settings, as JSON has them.

  Raises:
    UserError: it is of a kind that is not ours, or has a rule that is not.
  """
  if type(strategy) not in STRATEGIES:
    raise UserError(
      f'{type(strategy).__name__} cannot be saved: of strategies, {_names(STRATEGIES)}'
    )
  for name, what in (('pool', 'a pool, which is'), ('weights', 'weights of its own, which are')):
    if getattr(strategy, name, None) is not None:
      kind = type(strategy).__name__
      raise UserError(f'{kind} has {what} not saved with it: leave {name} out, and give it again')
  return _described(strategy, leave_out=_part_field(type(strategy).__name__))


def build(description: Any, part: Any = None) -> Any:
  """The strategy that was described.

  Args:
    description: of `describe`.
    part: (module, params) of its heads or its draft; None for a kind that has none.

  Raises:
    UserError: it describes no strategy of ours.
  """
  kind, settings = _kind(description, STRATEGIES)
  field = _part_field(kind.__name__)
  return kind(**settings, **({field: part} if field else {}))


def part_kind(description: Any) -> str | None:
  """What a described strategy needs beside its settings: 'heads', 'draft' (a draft network),
  'model', or nothing."""
  kind, _ = _kind(description, STRATEGIES)
  return PARTS[kind.__name__][1] if kind.__name__ in PARTS else None


def _part_field(kind: str) -> str:
  return PARTS[kind][0] if kind in PARTS else ''


def _described(value: Any, leave_out: str = '') -> dict[str, Any]:
  found: dict[str, Any] = {'kind': type(value).__name__}
  for field in dataclasses.fields(value):
    if field.init and field.name != leave_out:
      found[field.name] = _plain(getattr(value, field.name))
  return found


def _plain(value: Any) -> Any:
  """A setting as JSON has it."""
  if isinstance(value, Topology):
    return choices_of(value)
  if type(value) in RULES:
    return _described(value)
  if isinstance(value, jax.Array | np.generic | np.ndarray):
    array = np.asarray(value)
    # The shortest number that the array's type reads back as the same: 0.8, not 0.800000011920929.
    return float(str(array)) if array.dtype.kind == 'f' else array.item()
  if value is None or isinstance(value, bool | int | float | str):
    return value
  raise UserError(f'{type(value).__name__} cannot be saved: of rules, {_names(RULES)}')


def choices_of(tree: Topology) -> list[list[int]]:
  """The paths of ranks that `Topology.from_choices` makes this static tree of."""
  paths: list[list[int]] = [[]]
  for parent, rank in zip(tree.parents[1:].tolist(), tree.ranks[1:].tolist(), strict=True):
    paths.append([*paths[parent], rank])
  return paths[1:]


def _kind(description: Any, kinds: tuple[type, ...]) -> tuple[type, dict[str, Any]]:
  """The class that a description names, and its settings, its rule built."""
  by_name = {kind.__name__: kind for kind in kinds}
  named = description.get('kind') if isinstance(description, Mapping) else description
  if not isinstance(named, str) or named not in by_name:
    raise UserError(f'{shown(named)} is no kind that is saved: {known(by_name)}')
  settings = {name: value for name, value in description.items() if name != 'kind'}
  # pyright: ignore
  fields = {field.name for field in dataclasses.fields(by_name[named]) if field.init}
  if unknown := sorted(settings.keys() - (fields - {_part_field(named)})):
    raise UserError(f'{named} has no setting {unknown[0]!r}: {known(sorted(fields))}')
  if settings.get('rule') is not None:
    rule, of_rule = _kind(settings['rule'], RULES)
    settings['rule'] = rule(**of_rule)
  return by_name[named], settings


def _names(kinds: tuple[type, ...]) -> str:
  return f'those that can are {", ".join(kind.__name__ for kind in kinds)}'
