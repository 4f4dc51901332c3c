"""Trees: the documented examples, the published trees, and trees as data, which equal static
ones."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.methods.trees import PUBLISHED
from fastdec.decoding.topology import Topology
from tests.decoding.fakes import HashHeads


def test_docstring_example():
  tree = fd.Topology.from_choices([[0], [1], [0, 0]])
  assert tree.parents.tolist() == [-1, 0, 0, 1]
  assert tree.depths.tolist() == [0, 1, 1, 2]
  assert tree.ranks.tolist() == [0, 0, 1, 0]
  assert tree.paths.tolist() == [[0, 2, -1], [0, 1, 3]]
  assert tree.mask.astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]


def test_order_of_choices_does_not_matter_and_equal_trees_are_equal():
  one, other = ([[0], [1], [0, 0]], [[0, 0], [1], [0]])
  assert Topology.from_choices(one) == Topology.from_choices(other)
  assert hash(Topology.from_choices(one)) == hash(Topology.from_choices(other))
  assert Topology.from_choices(one) != Topology.chain(4)


def test_a_chain_is_a_tree():
  assert Topology.from_choices([[0], [0, 0]]) == Topology.chain(3)
  assert Topology.chain(3).is_chain and not Topology.from_choices([[0], [1]]).is_chain
  assert Topology.chain(1).n == 1 and Topology.chain(1).max_depth == 0


def test_parents_as_data_give_the_same_tree_in_every_row():
  trees = [
    Topology.from_choices(c)
    for c in ([[0], [1], [0, 0], [0, 0, 0]], [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]])
  ]
  rows = Topology.from_parents(jnp.stack([jnp.asarray(tree.parents) for tree in trees]))
  for i, tree in enumerate(trees):
    np.testing.assert_array_equal(rows.depths[i], tree.depths)
    np.testing.assert_array_equal(rows.mask[i], tree.mask)
    for node in range(tree.n):
      path = tree.path_to(jnp.array([node]))[0]
      dynamic = rows.path_to(jnp.full(2, node))[i]
      depth = tree.depths[node]
      assert (
        path[: depth + 1].tolist()
        == dynamic[: depth + 1].tolist()
        == np.flatnonzero(tree.mask[node]).tolist()
      )


@pytest.mark.parametrize('choices, message', [
  ([[0], [1, 0]], r'no parent: list \[1\] too'),
  ([[0], [0]], 'twice'), ([[-1]], 'not a path of ranks'), ([[]], 'not a path of ranks'),
])  # fmt: skip
def test_bad_choices_are_refused(choices, message):
  with pytest.raises(fd.UserError, match=message):
    fd.Topology.from_choices(choices)


def test_strategies_take_static_trees_alone():
  tree = Topology.from_parents(jnp.array([[-1, 0, 0]]))
  with pytest.raises(fd.UserError, match='this tree is data, one for each row: give a static one'):
    fd.Medusa((HashHeads(depth=4), {}), tree)


def test_which_nodes_are_acceptable_may_be_a_list():
  tree = Topology.from_parents([-1, 0, 0], acceptable=[True, True, False])
  assert tree.acceptable.dtype == bool and tree.acceptable.tolist() == [True, True, False]
  with pytest.raises(
    fd.UserError,
    match=r'acceptable has shape \[2\]: give one for each of the 3'
    r' nodes',
  ):
    Topology.from_parents([-1, 0, 0], acceptable=[True, False])


@pytest.mark.parametrize('kind', [list, np.array, jnp.array])
def test_siblings_are_numbered_where_no_ranks_are_given(kind):
  tree = Topology.from_parents(kind([-1, 0, 0, 1, 0, 1]))
  assert tree.ranks.tolist() == [0, 0, 1, 0, 2, 1]
  assert tree.is_static == (kind is not jnp.array)
  rows = Topology.from_parents(jnp.array([[-1, 0, 0, 1], [-1, 0, 1, 1]]))
  assert rows.ranks.tolist() == [[0, 0, 1, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize('parents', [
  [-1, 2, 1], [-1, 2, 0], [-1, 1], [-1, 3],
  [-1, -1], [-1, -2], [0, 0], [], [[-1, 0]],
  [-1.0, 0.0], [-1, None],
])  # fmt: skip
def test_parents_that_are_no_tree_are_refused(parents):
  """Cycles, a child before its parent, a node that is its own parent, numbers out of range, two
  roots or none, and values that are not a list of numbers."""
  with pytest.raises(fd.UserError, match=r'do not make a tree: give -1 for node 0'):
    Topology.from_parents(parents)


@pytest.mark.parametrize('ranks', [[0, 1, 1, 0], [0, 0, -1, 0], [0, 0, 1], [0, 0, 1, 0, 0]])
def test_ranks_that_siblings_share_are_refused(ranks):
  with pytest.raises(fd.UserError, match='another rank from 0 up'):
    Topology.from_parents([-1, 0, 0, 1], np.array(ranks))


def test_published_trees_are_those_of_the_project(shared):
  """The nine trees of the Medusa project have 63 nodes and the root. The numbers of leaves are
  those of the project's own buffers."""
  trees = json.loads((shared / 'reference' / 'medusa_choices.json').read_text())
  leaves = {
    'mc_sim_7b_63': 42,
    'vicuna_7b_stage1': 44,
    'vicuna_33b_stage1': 46,
    'zephyr_stage2': 44,
  }
  assert trees.keys() == PUBLISHED.keys() and len(trees) == 9
  for name, choices in trees.items():
    assert sorted(fd.medusa_choices(name)) == sorted(choices)
    tree = Topology.from_choices(choices)
    assert tree.n == 64
    if name in leaves:
      assert len(tree.paths) == leaves[name]


def test_published_trees_by_name():
  """The numbers of nodes at depths 1 to 4 are those of the project's files."""
  counts = {
    'mc_sim_7b_63': [10, 28, 23, 2],
    'vicuna_7b_stage2': [10, 23, 23, 7],
    'vicuna_33b_stage1': [10, 34, 19],
  }
  for name, expected in counts.items():
    strategy = fd.Medusa((HashHeads(depth=4), {}), name)
    assert np.bincount(strategy.choices.depths)[1:].tolist() == expected
    assert strategy == fd.Medusa((HashHeads(depth=4), {}), fd.medusa_choices(name)[::-1])
  expected = (
    r"'mc_sim' is not a published tree: known are mc_sim_7b_63, vicuna_7b_stage2, .*; a JSON"
    r' file .* will do too'
  )
  with pytest.raises(fd.UserError, match=expected):
    fd.Medusa((HashHeads(depth=4), {}), 'mc_sim')


def test_a_tree_in_a_file_is_its_paths_and_a_published_name_is_no_file(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  choices = [[0], [1], [0, 2]]
  for name, content in (
    ('list', choices),
    ('object', {'choices': choices, 'nodes': 4}),
    ('zephyr_stage2', choices),
  ):
    (tmp_path / name).write_text(json.dumps(content))
  assert fd.medusa_choices('list') == fd.medusa_choices(tmp_path / 'object') == choices
  assert len(fd.medusa_choices('zephyr_stage2')) == 63
  for file in ('list', tmp_path / 'object'):
    assert fd.Medusa((HashHeads(depth=4), {}), file).choices == Topology.from_choices(choices)


NO_LIST = 'tree holds no list of paths of ranks: give'


@pytest.mark.parametrize('content, message', [
  (b'', 'tree is not JSON: give'), (b'\xff', 'is not JSON'), (b'[' * 10**5, 'is not JSON'),
  (b'3', NO_LIST), (b'[0, 1]', NO_LIST), (b'[["0"]]', NO_LIST), (b'[[0.5]]', NO_LIST),
  (b'[]', NO_LIST),
  (b'[[true]]', NO_LIST), (b'[[4294967296]]', NO_LIST), (b'{"tree": [[0]]}', NO_LIST),
  (b'{"choices": [[0], [1, 0]]}', r'tree holds no tree: choice \[1, 0\] has no parent'),
  (b'[[-1]]', r'tree holds no tree: choice \[-1\] is not a path'),
  (None, r'cannot read .*tree \(Is a directory\)'),
])  # fmt: skip
def test_a_file_that_holds_no_tree_is_refused(content, message, tmp_path):
  path = tmp_path / 'tree'
  path.mkdir() if content is None else path.write_bytes(content)
  with pytest.raises(fd.UserError, match=message) as caught:
    fd.medusa_choices(path)
  assert '\n' not in str(caught.value)
  with pytest.raises(
    fd.UserError, match='4 deep, and there are 3 heads: give paths of 1 to 3 ranks'
  ):
    fd.Medusa((HashHeads(depth=3), {}), 'zephyr_stage2')
