"""Union: guesses of both drafters in one tree, each path once, and no fewer tokens than either."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec import struct
from fastdec.decoding import loop
from fastdec.decoding.methods.union import UnionDrafter, merge_drafts
from fastdec.decoding.protocol import Draft, Prefill
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.topology import Topology
from fastdec.models.api import Capacity
from tests.decoding.fakes import HashLM, Scripted, truths
from tests.decoding.methods_table import hash_kit
from tests.decoding.test_loop import TARGET, as_prompt, some_prompts

CHAIN = Topology.chain(4)
TREE = Topology.from_choices([[0], [1], [0, 0], [1, 0], [1, 0, 0]])


def paths(draft: Draft) -> list[list[int]]:
  """The guesses on the way to each node of row 0 that can be accepted, the root left out."""
  tokens, mask = np.asarray(draft.tokens)[0], np.asarray(draft.topology.mask)[0]
  acceptable = np.asarray(draft.topology.acceptable)[0]
  kept = [node for node in range(1, len(tokens)) if acceptable[mask[node]].all()]
  return sorted(tokens[mask[node]].tolist()[1:] for node in kept)


@pytest.mark.parametrize('first, second, together', [
  # the same chain twice, a chain of which a tree has the beginning, and nothing in common
  ((CHAIN, [7, 2, 3, 4]), (CHAIN, [7, 2, 3, 4]), [[2], [2, 3], [2, 3, 4]]),
  ((CHAIN, [7, 2, 3, 4]), (TREE, [7, 5, 2, 6, 3, 8]),
   [[2], [2, 3], [2, 3, 4], [2, 3, 8], [5], [5, 6]]),
  ((TREE, [7, 5, 2, 6, 3, 8]), (CHAIN, [7, 2, 3, 4]),
   [[2], [2, 3], [2, 3, 4], [2, 3, 8], [5], [5, 6]]),
  # the same words in a different order are not duplicates
  ((CHAIN, [7, 2, 3, 4]), (CHAIN, [7, 3, 2, 4]),
   [[2], [2, 3], [2, 3, 4], [3], [3, 2], [3, 2, 4]]),
])  # fmt: skip
def test_a_path_that_both_guess_stands_in_the_tree_once(first, second, together):
  drafts = [Draft(jnp.asarray([tokens]), topology) for topology, tokens in (first, second)]
  both = merge_drafts(*drafts)
  assert both.topology.n == drafts[0].topology.n + drafts[1].topology.n - 1
  assert paths(both) == together


def test_what_cannot_be_accepted_is_no_duplicate():
  """Lookup without a match guesses the root; another drafter may guess that in earnest."""
  nothing = dataclasses.replace(CHAIN, acceptable=jnp.asarray([[True, False, False, False]]))
  sevens = jnp.full((1, 4), 7, jnp.int32)
  silent, earnest = Draft(sevens, nothing), Draft(sevens, CHAIN)
  for drafts in ((silent, earnest), (earnest, silent)):
    assert paths(merge_drafts(*drafts)) == [[7], [7, 7], [7, 7, 7]]


@jax.jit
def step(drafter: Any, state: Any) -> Any:
  return loop.step(TARGET, drafter, Exact(), state)


@pytest.mark.parametrize('seed', range(3))
def test_a_call_accepts_what_the_better_of_the_two_would_have(seed):
  prompts, lengths = some_prompts(seed)
  truth = truths(HashLM(), prompts, lengths, 11)
  first = Scripted(truth, seed, nodes=5, chain=True, skill=0.6)
  both = UnionDrafter((first, Scripted(truth, seed + 50, nodes=7, window=1)))
  state = loop.init(TARGET, both, Exact(), as_prompt(prompts, lengths), 11, None)
  while not state.done.all():
    one, other = (
      step(drafter, dataclasses.replace(state, drafter=own))
      for drafter, own in zip(both.parts, state.drafter, strict=True)
    )
    state = step(both, state)
    np.testing.assert_array_equal(state.length, np.maximum(one.length, other.length))
  np.testing.assert_array_equal(state.tokens, truth)


@struct.pytree
class Reading:
  """A drafter that keeps what it sees of the layers `taps`."""

  taps: Any = struct.static()

  def init(self, target: Any, prefill: Any) -> Any:
    return prefill.taps


def test_each_reads_its_own_layers_in_its_own_order():
  both = UnionDrafter((Reading((1, 0)), Reading((2, 1))))
  assert both.taps == (1, 0, 2)
  states = tuple(jnp.full((5, 4, 1), tap) for tap in (1.0, 0.0, 2.0))
  root = jnp.zeros(5, jnp.int32)
  prompt = as_prompt(*some_prompts(0))
  prefill = Prefill(prompt, None, states[0], states, root, Capacity(20, 4), max_len=8)
  read = [[float(x.max()) for x in taps] for taps in both.init(TARGET, prefill)]
  assert read == [[1, 0], [2, 1]]


@pytest.mark.parametrize('part, message', [
  (fd.Jacobi(4), 'Jacobi cannot be a part of Union'),
  (fd.Greedy(), 'Greedy cannot be a part of Union'),
  (fd.Speculative(hash_kit().draft), 'Speculative cannot be a part of Union'),
  (fd.PromptLookup, 'PromptLookup.* is not a strategy'),
  (fd.PromptLookup(sampling=fd.Sampling(0.5)), 'without a rule or sampling, and sampling to Union'),
  (fd.Blockwise(hash_kit().heads('separate'), rule=fd.TopN(2)), 'this Blockwise cannot be'),
])  # fmt: skip
def test_what_cannot_join_is_refused(part, message):
  for parts in ((part, fd.PromptLookup()), (fd.PromptLookup(), part)):
    with pytest.raises(fd.UserError, match=message):
      fd.Union(*parts)
