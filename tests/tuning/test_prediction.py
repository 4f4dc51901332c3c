"""Predictions where all is known: costs that are straight lines, drafts that are accepted by the
same chance."""

import numpy as np
import pytest

import fastdec as fd
from fastdec.tuning import prediction
from fastdec.tuning.prediction import Member, Ran
from tests.decoding.fakes import HashLM
from tests.decoding.methods_table import hash_kit

WIDE = {1: 2.0, 4: 2.6, 8: 3.4}  # seconds: 1.8 + 0.2 n
PROMPT, STEPS, ACCEPTED = 5.0, 40.0, (0.8, 0.5, 0.5, 0.4)


def tokens(size):
  return prediction.tokens_of_chain(ACCEPTED, size)


def chain(size):
  """A chain whose draft takes 0.3 seconds a token."""
  steps = STEPS / tokens(size)
  seconds = PROMPT + steps * (1.8 + 0.2 * (size + 1) + 0.3 * size)
  return Ran(seconds, steps, PROMPT + STEPS * 2.0, STEPS, tokens(size), ACCEPTED[:size])


def test_tokens_of_a_chain_are_sums_of_products():
  assert [tokens(size) for size in (0, 1, 2, 3)] == pytest.approx([1, 1.8, 2.2, 2.4])
  assert prediction.tokens_of_chain((0.5, float('nan')), 2) == 1.5  # a place that no call came to


def test_chains_between_the_shortest_and_the_longest_are_what_their_calls_cost():
  members = {f'{n}': Member('chains', n, True) for n in (1, 2, 3, 4)}
  nodes = {name: member.size + 1 for name, member in members.items()}
  found = prediction.predicted(members, {'1': chain(1), '4': chain(4)}, nodes, WIDE)
  assert found.keys() == {'2', '3'}
  for size in (2, 3):
    ours = chain(size)
    assert found[f'{size}'] == pytest.approx(ours.plain_seconds / ours.seconds)


def test_a_family_of_which_one_ran_has_drafts_that_cost_as_much_for_each_token():
  members = {f'{n}': Member('chains', n, True) for n in (2, 4)}
  nodes = {name: member.size + 1 for name, member in members.items()}
  found = prediction.predicted(members, {'4': chain(4)}, nodes, WIDE, frozenset(members))
  assert found == {'2': pytest.approx(chain(2).plain_seconds / chain(2).seconds)}


def test_trees_between_grow_with_the_logarithm_of_their_nodes():
  def tree(nodes, per_call):
    steps = STEPS / per_call
    return Ran(
      PROMPT + steps * (1.8 + 0.2 * nodes + 1.0), steps, PROMPT + STEPS * 2.0, STEPS, per_call
    )

  members = {f'{n}': Member('trees', n, False) for n in (2, 4, 8)}
  found = prediction.predicted(
    members, {'2': tree(2, 1.5), '8': tree(8, 2.5)}, {'2': 2, '4': 4, '8': 8}, WIDE
  )
  assert found == {'4': pytest.approx(tree(4, 2.0).plain_seconds / tree(4, 2.0).seconds)}


def test_what_nothing_is_known_of_is_not_predicted():
  members = {
    '3': Member('chains', 3, True),
    '4': Member('chains', 4, True),
    'tree': Member('trees', 8, False),
  }
  nodes = {'3': 4, '4': 5, 'tree': 8}
  assert prediction.predicted(members, {}, nodes, WIDE) == {}
  # no longer one than what ran
  assert prediction.predicted(members, {'3': chain(3)}, nodes, WIDE) == {}


def test_strategies_that_differ_in_one_size_are_a_family():
  kit = hash_kit()
  heads = kit.heads('separate')
  three, six = (prediction.member_of(fd.Blockwise(heads, k)) for k in (3, 6))
  assert three.family == six.family and (three.size, six.size) == (2, 5)
  assert prediction.member_of(fd.Blockwise(heads, 3, fd.TopN(2))).family != three.family
  assert prediction.member_of(fd.Blockwise(heads, 3, window=2)).family != three.family
  assert prediction.member_of(fd.BlockwiseTwoCalls(heads, 3)).family != three.family
  short = heads[0], {**heads[1], 'ids': np.arange(5)}
  assert prediction.member_of(fd.Blockwise(short, 3)).family != three.family
  others = heads[0], {**heads[1], 'b1': np.arange(3)}
  assert prediction.member_of(fd.Blockwise(others, 3)).family != three.family
  lookups = [
    fd.PromptLookup(),
    fd.PromptLookup(temperature=1.0),
    fd.PromptLookup(pool=fd.build_pool([[2, 3, 4, 5, 6]], HashLM())),
  ]
  assert len({prediction.member_of(one).family for one in lookups}) == 3
  draft = kit.network('eagle')
  trees = [prediction.member_of(fd.Eagle(draft, 3, 2, nodes)) for nodes in (6, 7)]
  assert trees[0].family == trees[1].family and [(one.size, one.is_chain) for one in trees] == [
    (6, False),
    (7, False),
  ]
  assert prediction.member_of(fd.BlockDraft(kit.network('block'), choices=6)).size == 6
  assert prediction.member_of(fd.Medusa(heads, [[0], [1]])).size == 3
  assert prediction.member_of(fd.Speculative(kit.draft, 3, adaptive=True)) is None
  assert prediction.member_of(fd.Greedy()) is None
