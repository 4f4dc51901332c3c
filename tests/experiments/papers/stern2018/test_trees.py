"""Trees for Table 1: never grown on what is measured, and no deeper than the heads of that k."""

import dataclasses

import numpy as np
import pytest

import fastdec as fd
from configs import wmt14
from experiments.lab.decoding import tree_nodes
from experiments.papers.stern2018 import trees
from experiments.papers.stern2018.text_measure import TranslationMeasuring
from experiments.papers.stern2018.text_settings import TranslationExperiment
from fastdec import folders
from fastdec.struct import Bound


@pytest.fixture(scope='module')
def experiment(tmp_path_factory):
  config = wmt14.get_config('scale=smoke')
  config.data.update(
    {'cache': str(tmp_path_factory.mktemp('cache')), 'vocab_size': 300, 'max_train': 200}
  )
  config.table.update({'sentences': 6, 'rules': ('exact', 'tree-8')})
  return TranslationExperiment.of(config)


@pytest.mark.parametrize('split, other', [('dev', 'test'), ('test', 'dev')])
def test_sources_are_of_the_other_split_and_evenly_spaced(experiment, split, other):
  text = experiment.open()
  measuring, everything = (
    TranslationMeasuring(experiment, text, split, {}),
    text.tokens(other).source,
  )
  spaced = np.linspace(0, len(everything) - 1, min(400, len(everything))).round().astype(int)
  assert measuring.tree_sources == [everything[i].tolist() for i in spaced]
  assert measuring.tree_conditions == {'tree_split': other, 'tree_sentences': len(spaced)}


def test_without_trees_no_other_split_is_read(experiment):
  table = dataclasses.replace(experiment.table, rules=('exact', 'top-2'))
  chains = dataclasses.replace(experiment, table=table)
  text = chains.open()
  read = []
  recorded = dataclasses.replace(text)
  object.__setattr__(recorded, 'pairs', lambda split: read.append(split) or text.pairs(split))
  assert TranslationMeasuring(chains, recorded, 'dev', {}).tree_sources == [] and read == ['dev']


def test_a_tree_is_as_deep_as_the_heads_of_its_k_and_writes_what_greedy_writes(translator):
  # trained for k = 3
  target, heads = Bound(*folders.load(translator)), Bound(*folders.load_heads(translator))
  sources = [[5, 6, 7, 2], [8, 9, 2], [10, 11, 12, 13, 2]]
  depths = {}
  for k in (2, 3):
    found = trees.grown(target, heads, k - 1, sources, nodes=(2, 6), max_len=12, rows=2)
    tree = found[6]
    depths[k] = max(map(len, tree.choices))
    assert len(found[2].choices) == 1 < len(tree.choices) < 6
  assert depths == {2: 1, 3: 2}
  source = np.array([[5, 6, 7, 2]], np.int32)
  on_tree, greedy = (
    fd.decode(*target, source, how, max_len=12) for how in (fd.Medusa(heads, tree.choices), fd.Greedy()))  # fmt: skip
  assert on_tree.tokens.tolist() == greedy.tokens.tolist() and int(on_tree.calls[0]) <= int(
    greedy.calls[0]
  )


def test_names_of_trees():
  assert [tree_nodes(name) for name in ('tree-2', 'tree-32', 'tree-999', 'exact', 'top-2')] == [
    2,
    32,
    999,
    None,
    None,
  ]
  for name in ('tree', 'tree-1', 'tree-0', 'tree-08', 'tree-1000', 'tree-x', 'trees'):
    with pytest.raises(
      fd.UserError, match=f'^the rule {name} names no tree: give tree-N of 2 to 999 nodes'
    ):
      tree_nodes(name)
