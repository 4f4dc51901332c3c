"""Suffix decoding drafts the tree of the definition, by counts of strings."""

from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import fastdec as fd
from fastdec.decoding.methods.lookup import Searched
from fastdec.decoding.text import Text
from fastdec.struct import Bound
from tests.decoding.fakes import HashLM

SOURCE, SLOTS, DEPTH = 5, 16, 4


def count(words: list[Any], path: list[Any]) -> int:
  """Returns how often a path occurs."""
  return sum(words[i : i + len(path)] == path for i in range(len(words) - len(path) + 1))


def plan(
  source: list[int], text: list[int], longest: int, nodes: int, factor: float, least: float
) -> dict[int, set[tuple[int, ...]]]:
  """The definition in plain Python: the trees of the lengths that have the largest sum.

  Among nodes of one probability, any may be kept, as long as parents come first. So trees are only
  compared if they have all nodes that are as probable as the last one.
  """
  best, trees = 0.0, {}
  for length in range(1, min(longest, len(text)) + 1):
    suffix = text[-length:]
    # Nothing follows the source's end.
    whole = count(text, suffix) + count(source[:-1], suffix)
    found: dict[tuple[int, ...], float] = {}
    for words in (source, text):
      for place in range(len(words) - length + 1):
        if words[place : place + length] != suffix:
          continue
        for depth in range(1, DEPTH + 1):
          path = words[place + length : place + length + depth]
          if len(path) == depth:
            together = count(text, suffix + path) + count(source, suffix + path)
            found[tuple(path)] = together / whole
    likely = {path: p for path, p in found.items() if p >= least}
    most = min(int(factor * length + 1e-6), nodes - 1)
    kept = sorted(likely, key=lambda path: (-likely[path], len(path)))[:most]
    total = sum(likely[path] for path in kept)
    if total > best + 1e-6:
      best, trees = total, {}
    if total > best - 1e-6 and kept:
      trees[length] = {p for p in likely if likely[p] > likely[kept[-1]] - 1e-6}
  return trees


@st.composite
def texts(draw: Any) -> tuple[list[int], list[int]]:
  token = st.integers(2, 4)
  source = draw(st.lists(token, max_size=SOURCE))
  return source, draw(st.lists(token, min_size=1, max_size=SLOTS))


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
  st.lists(texts(), min_size=2, max_size=2),
  st.sampled_from(
    [(1, 4, 3.0, 0.0), (2, 99, 64.0, 0.0), (4, 8, 1.0, 0.1), (4, 3, 2.0, 0.3), (3, 12, 9.0, 0.0)]
  ),
)
def test_the_tree_is_that_of_the_definition(
  rows: list[tuple[list[int], list[int]]], sizes: tuple[int, int, float, float]
) -> None:
  longest, nodes, factor, least = sizes
  strategy = fd.Suffix(longest, DEPTH, nodes, factor, least)
  tokens = np.full((len(rows), SOURCE + SLOTS), 2, np.int32)  # unused slots hold a word too
  for row, (source, text) in zip(tokens, rows, strict=True):
    row[: len(source)], row[SOURCE : SOURCE + len(text)] = source, text
  lengths = np.array([[len(source), len(text)] for source, text in rows], np.int32)
  text = Text(jnp.asarray(tokens), jnp.asarray(SOURCE + lengths[:, 1]))
  state = Searched(text, jnp.asarray(lengths[:, 0]), SOURCE)
  draft = propose(strategy, state, jnp.asarray([text[-1] for _, text in rows], jnp.int32))

  for row, (source, words) in enumerate(rows):
    paths = set()
    for node in np.flatnonzero(draft[1][row])[1:]:
      path = []
      while node:
        path, node = [int(draft[0][row, node]), *path], draft[2][row, node]
      paths.add(tuple(path))
    trees = plan(source, words, longest, nodes, factor, least)
    assert len(paths) == draft[1][row].sum() - 1  # no path twice
    assert all(path[:-1] in paths for path in paths if len(path) > 1)
    if trees:
      length = max(trees)  # the longest of the best
      most = min(int(factor * length + 1e-6), nodes - 1)
      assert paths <= trees[length] and len(paths) == min(most, len(trees[length]))
    else:
      assert not paths


@jax.jit
def propose(strategy: fd.Suffix, state: Searched, root: jax.Array) -> Any:
  draft, _ = strategy.drafter.propose(Bound(HashLM(), {}), state, root, None)
  return draft.tokens, draft.topology.acceptable, draft.topology.parents


def test_what_followed_always_is_drafted_far_and_what_followed_once_is_not() -> None:
  """After 'a b', c and d follow equally often; after 'x y z', the same words always."""
  words = [5, 6, 7, 5, 6, 8, 5, 6, 9, 5, 6]
  rows = [([], words), ([], [5, 6, 7, 8, 9, 5, 6, 7, 8])]
  tokens = np.zeros((2, SLOTS), np.int32)
  for row, (_, text) in zip(tokens, rows, strict=True):
    row[: len(text)] = text
  state = Searched(Text(jnp.asarray(tokens), jnp.asarray([11, 9])), jnp.zeros(2, jnp.int32), 0)
  draft = propose(fd.Suffix(4, DEPTH, 6, 1.0, 0.3), state, jnp.asarray([6, 8], jnp.int32))
  assert draft[1].sum(axis=1).tolist() == [1, 5]  # with the roots
  assert draft[0][1].tolist() == [8, 9, 5, 6, 7, 8]


@pytest.mark.parametrize(
  ('setting', 'message'),
  [
    ({'longest': 0}, 'longest=0'),
    ({'longest': 65}, 'at most 64'),
    ({'depth': 0}, 'depth=0'),
    ({'nodes': 1}, 'nodes=1'),
    ({'factor': -1}, 'factor=-1'),
    ({'least': 1.5}, 'least=1.5'),
  ],
)
def test_impossible_settings_are_refused(setting: dict[str, Any], message: str) -> None:
  with pytest.raises(fd.UserError, match=message):
    fd.Suffix(**setting)
