"""What `experiments.tune` tries: strategies of several sizes, made of the drafters that there are.

Of each family the longest draft comes first and the shortest next: where time is short, all
families are tried before any in detail.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

import fastdec as fd
from experiments.tools.generation_settings import Settings
from experiments.tools.strategies import WIDTH
from fastdec.evaluation.tree_calibration import calibrate
from fastdec.heads.block import BlockNetwork
from fastdec.struct import Bound

# tokens drafted a call in a row, by a draft model or an autoregressive network
DRAFTED = (8, 1, 4, 2, 6, 3)
COPIED = (9, 2, 4)  # by lookup
AUTHORS = (15, 5, 15)  # window, n-gram and guesses of lookahead: calls of 120 tokens
AHEAD = ((5, 4, 4), (2, 3, 2))  # calls of 27 and of 8 tokens
TREES = (32, 8, 16)  # nodes, the root included
LEVELS = (5, 3)  # how deep an autoregressive network's trees are
CALIBRATED = 64  # prompts that a tree for heads is found on


@dataclasses.dataclass(frozen=True)
class Candidate:
  """A strategy and the folder of its heads or draft."""

  strategy: Any
  part: str | None = None


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Which sizes are tried; None: those that suit the drafter."""

  gammas: Sequence[int] | None = None  # tokens drafted a call in a row
  nodes: Sequence[int] | None = None  # of trees, the root included


Family = Mapping[str, Candidate]


def in_turn(families: Sequence[Family]) -> dict[str, Candidate]:
  """The first of each family, then the second of each, and so on."""
  found: dict[str, Candidate] = {}
  for several in itertools.zip_longest(*(family.items() for family in families)):
    found.update(one for one in several if one is not None)
  return found


def of_lookup(settings: Settings, sizes: Sizes) -> list[Family]:
  """Drafts copied from the text so far."""
  gammas = COPIED if sizes.gammas is None else sizes.gammas
  return [
    {f'lookup gamma={n}': Candidate(fd.PromptLookup(k=n + 1, **_law(settings))) for n in gammas}
  ]


def of_lookahead(settings: Settings) -> list[Family]:
  """N-grams that the model has guessed before: the authors' sizes on a GPU, and sizes whose calls a
  CPU can bear."""
  sizes = AHEAD if jax.default_backend() == 'cpu' else (AUTHORS, *AHEAD)
  found = {}
  for window, ngram, guesses in sizes:
    strategy = fd.Lookahead(window, ngram, guesses, **_law(settings))
    found[f'lookahead {window} {ngram} {guesses}'] = Candidate(strategy)
  return [found]


def of_draft(settings: Settings, sizes: Sizes, draft: Any) -> list[Family]:
  """A smaller model drafts."""
  gammas = DRAFTED if sizes.gammas is None else sizes.gammas
  chains = {
    f'draft gamma={n}': Candidate(
      fd.Speculative(draft, n, same_ids=True, **_law(settings)), settings.draft
    )
    for n in gammas
  }
  return [chains]


def of_network(settings: Settings, sizes: Sizes, network: Any) -> list[Family]:
  """A draft network: chains, and trees that grow."""
  gammas, nodes = sizes.gammas or DRAFTED, sizes.nodes or TREES
  chains, trees = {}, {}
  if isinstance(network[0], BlockNetwork):
    most = network[0].k - 1
    for n in _from_longest(gammas, most, with_most=sizes.gammas is None):
      chains[f'draft head gamma={n}'] = fd.BlockDraft(network, n + 1, **_law(settings))
    for n in nodes:
      trees[f'draft head nodes={n}'] = fd.BlockDraft(network, choices=n, **_law(settings))
  else:
    for n in gammas:
      chains[f'draft head gamma={n}'] = fd.Eagle(network, n, **_law(settings))
    for n, depth in itertools.product(nodes, LEVELS):
      if n > depth:
        trees[f'draft head gamma={depth} nodes={n}'] = fd.Eagle(
          network, depth, WIDTH, n, **_law(settings)
        )
  return [_of_part(family, settings.draft_head) for family in (chains, trees)]


def of_heads(
  settings: Settings, sizes: Sizes, heads: Any, tree: Sequence[Sequence[int]], is_relaxed: bool
) -> list[Family]:
  """Prediction heads: chains, and a tree cut to several sizes.

  Args:
    tree: paths of ranks, of which each beginning is a tree (`tree_of`, or --choices).
    is_relaxed: whether to try rules that are not lossless too.
  """
  rule = settings.sampling if settings.temperature else fd.Exact()
  most = heads[0].depth
  chains, trees, relaxed = {}, {}, {}
  for n in _from_longest(sizes.gammas or DRAFTED, most, with_most=sizes.gammas is None):
    chains[f'heads gamma={n}'] = fd.Blockwise(heads, n + 1, rule)
  for n in _from_longest(
    [n - 1 for n in sizes.nodes or TREES], len(tree), with_most=sizes.nodes is None
  ):
    trees[f'heads nodes={n + 1}'] = fd.Medusa(heads, [list(path) for path in tree[:n]], rule)
  if is_relaxed and not settings.temperature:
    for n in (2, 3):
      relaxed[f'heads gamma={most} top-{n}'] = fd.Blockwise(heads, rule=fd.TopN(n))
  if is_relaxed and tree:
    typical = fd.Typical(temperature=settings.temperature or 1.0)
    relaxed['heads typical'] = fd.Medusa(
      heads, [list(path) for path in tree[: max(TREES) - 1]], typical
    )
  return [_of_part(family, settings.heads) for family in (chains, trees, relaxed)]


def tree_of(
  target: Bound, heads: Any, prompts: Sequence[Sequence[int]], max_len: int, nodes: int
) -> list[list[int]]:
  """Paths of ranks in the order in which they pay for these heads, on what the model writes; [] if
  none ever does."""
  some = list(prompts)[:CALIBRATED]
  found = calibrate(target, Bound(*heads), some, nodes, max_len, min(16, len(some)))
  return [list(path) for path in found.tree.choices]


def whole_tree(choices: str) -> list[list[int]]:
  """--choices in an order of which every beginning is a tree: its own where that is one, else by
  depth."""
  paths = fd.medusa_choices(choices)
  known: set[tuple[int, ...]] = {()}
  for path in paths:
    if tuple(path[:-1]) not in known:
      return sorted(paths, key=len)
    known.add(tuple(path))
  return paths


def _law(settings: Settings) -> dict[str, Any]:
  return {'temperature': settings.temperature, 'top_k': settings.top_k, 'top_p': settings.top_p}


def _from_longest(sizes: Sequence[int], most: int, with_most: bool) -> Iterator[int]:
  """The most, unless sizes were asked for, and those sizes that are possible."""
  if with_most and most:
    yield most
  yield from (n for n in sizes if n < most or (n == most and not with_most))


def _of_part(strategies: Mapping[str, Any], part: str | None) -> Family:
  return {name: Candidate(strategy, part) for name, strategy in strategies.items()}
