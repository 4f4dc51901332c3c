"""What a configuration would take that was not run: from what calls cost by their rows, and
acceptance counted once.

  time of a text = prompt + calls * (call of the target on n nodes + draft)

The target's calls are timed by themselves for a few n, and the prompt's share is what they leave of
plain decoding. Strategies with one drafter that differ in one size alone are a family. Of a chain,
the longest that ran shows how often each place is accepted where those before it are, and so how
many tokens any shorter one writes a call; of trees, tokens a call are taken to grow with the
logarithm of their nodes between the smallest and the largest. What is left of the time of those two
is their draft, and in between it is a straight line. So predicted are those between, whether they
ran or not.
"""

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fastdec.decoding.methods.block import BlockDraft
from fastdec.decoding.methods.eagle import Eagle
from fastdec.decoding.methods.forecast import LinearForecast
from fastdec.decoding.methods.heads import Blockwise, Medusa
from fastdec.decoding.methods.lookup import PromptLookup
from fastdec.decoding.methods.speculative import Speculative
from fastdec.decoding.strategy import LoopStrategy
from fastdec.decoding.topology import Topology
from fastdec.struct import Bound

MARKS = 8  # numbers of a drafter that are compared
STEPWISE = (Speculative, Eagle)  # strategies whose chains cost a call of the drafter for each token


@dataclasses.dataclass(frozen=True)
class Member:
  """A strategy as one of a family."""

  family: Hashable
  size: int  # tokens drafted in a row, or nodes of a tree
  is_chain: bool


@dataclasses.dataclass(frozen=True)
class Ran:
  """What a strategy that ran has shown, in means over the batches that it decoded."""

  seconds: float
  steps: float  # calls of the target
  plain_seconds: float  # of the plain strategy, on the same batches
  plain_steps: float
  tokens_per_call: float
  accepted: tuple[float, ...] = ()  # of a chain: how often each place is, where those before it are


def member_of(strategy: Any) -> Member | None:
  """The family of a strategy; None for those that have no sizes."""

  def chain(drafted: int, *settings: Hashable) -> Member:
    return Member((*kind, *settings), drafted, True)

  def tree(nodes: int, *settings: Hashable) -> Member:
    return Member((*kind, *settings), nodes, False)

  if not isinstance(strategy, LoopStrategy):
    return None
  kind = type(strategy), repr(strategy.effective_rule)
  match strategy:
    case Blockwise(k=int(k), heads=Bound(params=params), window=window):
      return chain(k - 1, _marks(params), window)
    case PromptLookup(ngram=ngram, k=k, pool=pool):
      return chain(k - 1, ngram, id(pool))
    case LinearForecast(k=int(k), weights=weights):
      return chain(k - 1, _marks(weights))
    case Speculative(gamma=gamma, adaptive=False, draft=Bound(module=draft, params=params)):
      return chain(gamma, draft, _marks(params))
    case Eagle(width=1, depth=depth, draft=Bound(module=draft, params=params)):
      return chain(depth, draft, _marks(params))
    case Eagle(
      width=width, depth=depth, nodes=int(nodes), draft=Bound(module=draft, params=params)
    ):
      return tree(nodes, draft, _marks(params), width, depth)
    case BlockDraft(choices=None, k=int(k), draft=Bound(module=draft, params=params)):
      return chain(k - 1, draft, _marks(params))
    case BlockDraft(choices=int(nodes), k=k, draft=Bound(module=draft, params=params)):
      return tree(nodes, draft, _marks(params), k)
    case Medusa(choices=Topology() as choices, heads=Bound(params=params)):
      return tree(choices.n, _marks(params))
  return None


def _marks(params: Any) -> Hashable:
  """What tells two drafters of one kind and size apart: how many words they guess among
  (`fd.shortlist`), and a few of their numbers, those that they keep where later heads are cut
  away."""
  leaves = jax.tree.leaves(params)
  if not leaves:
    return None
  words = len(params['ids']) if isinstance(params, Mapping) and 'ids' in params else None
  return words, np.asarray(leaves[0].ravel()[:MARKS]).tobytes()


def predicted(
  members: Mapping[str, Member],
  ran: Mapping[str, Ran],
  nodes: Mapping[str, int],
  wide: Mapping[int, float],
  stepwise: frozenset[str] = frozenset(),
) -> dict[str, float]:
  """How many times as fast as plain decoding each of these strategies should be; without those that
  the prediction rests on.

  Args:
    members: by name, those to predict and those to predict from.
    ran: by name, those that ran.
    nodes: of each one's calls.
    wide: seconds of a call of the target, by its nodes, from one on.
    stepwise: those whose draft costs as much for each token, where one size alone ran.
  """
  families: dict[Hashable, list[str]] = {}
  for name, member in members.items():
    families.setdefault(member.family, []).append(name)
  found = {}
  for names in families.values():
    known = sorted((name for name in names if name in ran), key=lambda name: members[name].size)
    if not known:
      continue
    least, most = known[0], known[-1]
    drafts = {name: _draft(ran[name], nodes[name], wide) for name in (least, most)}
    for name in names:
      if name in (least, most):
        continue
      tokens = _tokens(members, ran, name, least, most)
      share = _between(members[name].size, members[least].size, members[most].size)
      draft = drafts[least] + share * (drafts[most] - drafts[least])
      if least == most:
        draft = drafts[most] * (members[name].size / members[most].size if name in stepwise else 1)
      if tokens is not None:
        found[name] = _speedup(ran[most], tokens, _call(wide, nodes[name]) + max(draft, 0.0), wide)
  return found


def tokens_of_chain(accepted: Sequence[float], size: int) -> float:
  """Tokens a call of a chain that is cut to `size` drafts.

  >>> tokens_of_chain((0.5, 0.5, 0.5), 2)
  1.75
  """
  shares = [0.0 if math.isnan(share) else share for share in accepted[:size]]
  return 1.0 + sum(math.prod(shares[: place + 1]) for place in range(len(shares)))


def _tokens(
  members: Mapping[str, Member], ran: Mapping[str, Ran], name: str, least: str, most: str
) -> float | None:
  """Tokens a call; None where what ran says nothing about this size."""
  size, longest = members[name].size, members[most].size
  if size > longest:
    return None
  if members[name].is_chain:
    return tokens_of_chain(ran[most].accepted, size)
  if size < members[least].size or least == most:
    return None
  share = _between(math.log(size), math.log(members[least].size), math.log(longest))
  return ran[least].tokens_per_call + share * (
    ran[most].tokens_per_call - ran[least].tokens_per_call
  )


def _draft(one: Ran, nodes: int, wide: Mapping[int, float]) -> float:
  """Seconds of one draft: what the calls of the target leave of a call."""
  return (one.seconds - _prompt(one, wide)) / one.steps - _call(wide, nodes)


def _speedup(one: Ran, tokens: float, call: float, wide: Mapping[int, float]) -> float:
  """Over plain decoding of the batches that `one` decoded."""
  return one.plain_seconds / (_prompt(one, wide) + one.plain_steps / tokens * call)


def _prompt(one: Ran, wide: Mapping[int, float]) -> float:
  """What a batch takes beside its calls."""
  return max(one.plain_seconds - one.plain_steps * wide[1], 0.0)


def _call(wide: Mapping[int, float], nodes: int) -> float:
  """Seconds of a call; between the widths that were timed, on a straight line."""
  widths = sorted(wide)
  return float(np.interp(nodes, widths, [wide[width] for width in widths]))


def _between(value: int | float, low: int | float, high: int | float) -> float:
  return (value - low) / (high - low) if high > low else 0.0
