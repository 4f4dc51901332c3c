"""Checks of the user's arguments to a drafting strategy: a module with parameters, and a rule."""

from typing import Any

from fastdec import struct
from fastdec.decoding.protocol import Rule
from fastdec.errors import UserError
from fastdec.struct import Bound


def check_draft(part: Any, name: str, wanted: type) -> Bound:
  """Returns a module with its parameters: heads, a draft network or a draft model.

  Raises:
    UserError: something else than a pair, or a module that another strategy takes.
  """
  draft = struct.bound(part, name)
  if not isinstance(draft.module, wanted):
    kind = type(draft.module).__name__
    raise UserError(
      f'this strategy drafts with {wanted.__name__}, not with {kind}: Eagle takes an EagleNetwork,'
      ' BlockDraft a BlockNetwork, Blockwise and Medusa take heads, and Speculative a model'
    )
  return draft


def check_rule(rule: Any) -> None:
  """Raises UserError unless `rule` is a rule."""
  if isinstance(rule, type):
    raise UserError(
      f'rule={rule.__name__} is a class: give a rule of that kind, such as {rule.__name__}()'
    )
  if not isinstance(rule, Rule):
    raise UserError(f'rule={rule!r} is not a rule: give one such as Exact() or TopN(2)')
