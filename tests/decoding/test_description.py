"""Descriptions of strategies are written, read again, and refused if they are not a strategy."""

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.description import describe, label, parse
from fastdec.decoding.rules.matching import Exact
from fastdec.struct import Bound
from tests.decoding.fakes import HashLM
from tests.decoding.methods_table import LOSSLESS, hash_kit

KIT = hash_kit()
HEADS = KIT.heads('separate')
KINDS = {
  **LOSSLESS,
  'sampling': lambda kit: fd.Sample(0.8, 5, 0.95),
  'typical': lambda kit: fd.Medusa(HEADS, [[0], [1], [0, 0]], fd.Typical(0.1, 0.3, 0.7)),
  'min': lambda kit: fd.Blockwise(HEADS, 3, fd.MinBlock(fd.TopN(2), 2)),
  'lenient': lambda kit: fd.Speculative(
    kit.draft, 2, sampling=fd.Sampling(0.8), rule=fd.Rejection(0.5), same_ids=True
  ),
  'verified': lambda kit: fd.Speculative(
    kit.draft, 2, sampling=fd.Sampling(1e-6), rule=fd.BlockVerification()
  ),
  'drawn tree': lambda kit: fd.Eagle(
    kit.network('eagle'),
    choices=(1, 2),
    rule=fd.Traversal('independent'),
    sampling=fd.Sampling(1.0),
  ),
}


def same(one, other):
  leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
  is_same = all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in leaves)
  return is_same and jax.tree.structure(one) == jax.tree.structure(other)  # with all that is static


@pytest.mark.parametrize('name', KINDS)
def test_a_strategy_comes_back_from_its_words_as_it_was(name):
  strategy = KINDS[name](KIT)
  part = getattr(strategy, strategy.part) if strategy.part else None
  text = describe(strategy)
  assert same(parse(text, part), strategy) and describe(parse(text, part)) == text


@pytest.mark.parametrize('text, strategy', [
  ('greedy', fd.Greedy()),
  (' prompt_lookup( k = 5 )', fd.PromptLookup(k=5)),
  ('jacobi(k=4, temperature=0.5, top_p=.9)', fd.Jacobi(4, sampling=fd.Sampling(0.5, top_p=0.9))),
  ('blockwise(k=3, rule=top_n(n=2))', fd.Blockwise(HEADS, 3, fd.TopN(2))),
  ('Blockwise(k=3, rule=Exact)', fd.Blockwise(HEADS, 3)),
  ('medusa(choices=[[0], [0, 0]])', fd.Medusa(HEADS, [[0], [0, 0]])),
  ("medusa(choices='zephyr_stage2')", fd.Medusa(HEADS, 'zephyr_stage2')),
  ('eagle(choices=(1, 2), rule=univer, temperature=1)',
   fd.Eagle(KIT.network('eagle'), choices=[[0], [0, 0], [0, 1]], rule=fd.UniVer(),
            sampling=fd.Sampling(1.0))),
  ('Eagle(depth=3, width=2, nodes=6)', fd.Eagle(KIT.network('eagle'), 3, 2, 6)),
  ('union(prompt_lookup, eagle(depth=3), temperature=0.5)',
   fd.Union(fd.PromptLookup(), fd.Eagle(KIT.network('eagle'), 3), sampling=fd.Sampling(0.5))),
])  # fmt: skip
def test_words_are_those_of_python(text, strategy):
  assert same(parse(text, getattr(strategy, strategy.part) if strategy.part else None), strategy)


def test_labels_say_what_differs():
  assert label(fd.Greedy()) == 'Greedy'
  assert (
    label(fd.PromptLookup(k=5, sampling=fd.Sampling(0.5))) == 'PromptLookup(k=5, temperature=0.5)'
  )
  assert label(fd.Medusa(HEADS, [[0], [1]], fd.TopN(2))) == (
    'Medusa(choices=[3 nodes], rule=TopN(n=2))'
  )
  both = fd.Union(fd.PromptLookup(), fd.Blockwise(HEADS, 3), sampling=fd.Sampling(0.5))
  assert label(both) == 'Union(PromptLookup(), Blockwise(k=3), temperature=0.5)'
  pool = fd.build_pool([[2, 3, 4, 5, 6]], HashLM())
  for strategy in (fd.PromptLookup(pool=pool), fd.Union(fd.PromptLookup(pool=pool), fd.Forced())):
    with pytest.raises(fd.UserError, match='a pool cannot be described: leave it out'):
      describe(strategy)


def test_what_is_someone_elses_is_not_described():
  class Own(fd.Greedy):
    pass

  class Lax(Exact):
    pass

  with pytest.raises(fd.UserError, match='Own cannot be described'):
    describe(Own())
  with pytest.raises(fd.UserError, match='Lax cannot be described'):
    describe(fd.Blockwise(HEADS, 3, Lax()))


@pytest.mark.parametrize('text, message', [
  ('', 'is not a strategy: write one as in Python'),
  ('3', "'' is not a strategy: known are Greedy"),
  ('beam(size=2)', "'beam' is not a strategy"),
  ('fd.Greedy()', "'' is not a strategy"),
  ('__import__("os")', "'__import__' is not a strategy"),
  ('greedy(k=2)', "Greedy has no setting 'k'"),
  ('greedy(**{})', 'Greedy has no setting None'),
  ('greedy() + greedy()', 'is not a strategy'),
  ('jacobi(4)', 'Jacobi takes its settings by name: known are k'),
  ('jacobi', 'Jacobi needs k'),
  ('jacobi(k=4, k=5)', 'Jacobi: k is given twice: give it once'),
  ('jacobi(k=4, top_k=5, top_k=0)', 'Jacobi: top_k is given twice'),
  ('union', 'Union takes two drafters: write union'),
  ('union(forced, forced, forced)', 'Union takes two drafters'),
  ('union(forced, jacobi(k=4))', "'jacobi' is not a part of Union: known are Medusa"),
  ('union(union(forced, forced), forced)', "'union' is not a part of Union"),
  ('union(forced, eagle(depth=5))', 'Eagle drafts with draft: give their folder too'),
  ('union(forced, first=forced)', "Union has no setting 'first'"),
  ('adaptive', 'Adaptive needs costs'),
  ('adaptive(costs={1: 1})', 'Adaptive takes a drafter: write'),
  ('adaptive(suffix, costs=[[0]])', 'costs=.* are not possible'),
  ('adaptive(suffix(nodes=4), costs={1: 1})', 'give {nodes: cost} of some widths from 1 to 4'),
  ('union(' * 10_000, 'is not a strategy'),
  ('jacobi(k=open)', "'open' is not a rule"),
  ('jacobi(k=2**9)', 'Jacobi: k is not possible: give a number, a rule or a tree'),
  ('jacobi(k=[[0]])', 'k=.* is not possible'),
  ('jacobi(k={1: 2})', 'is not possible: give'),
  ('jacobi(k=10000000)', 'k=10000000 is more than a call can hold'),
  ('prompt_lookup(pool=3)', "PromptLookup has no setting 'pool'"),
  ('linear_forecast(weights=[[1]])', "LinearForecast has no setting 'weights'"),
  ('blockwise(k=3)', 'Blockwise drafts with heads: give their folder too'),
  ('blockwise(heads=3)', "Blockwise has no setting 'heads'"),
  ('speculative(adaptive=[[0]])', 'adaptive is not possible: give True or False'),
  ("medusa(choices='/etc/passwd')", 'is not a published tree: known are mc_sim_7b_63'),
  (f'medusa(choices={[[0] * 10_000]})', 'has no parent'),
  (f'medusa(choices={[[i] for i in range(4500)]})', 'more than a call can hold'),
  (f'medusa(choices={[[i] for i in range(50_000)]})', 'give at most 65536 characters'),
  ('(' * 60_000, 'is not a strategy'),
  ('-' * 60_000 + '1', 'is not a strategy'),
  ('jacobi(k=' + '[' * 60_000, 'is not a strategy'),
  ('jacobi(k=' + '-' * 60_000 + '1)', 'is no'),
  ('jacobi(k=' + '9' * 60_000 + ')', 'is no'),
  ('a' + '.a' * 30_000, 'is not a strategy'),
])  # fmt: skip
def test_what_is_no_strategy_is_one_short_sentence(text, message):
  part = HEADS if text.startswith('medusa') else KIT.draft if text.startswith('spec') else None
  with pytest.raises(fd.UserError, match=message) as raised:
    parse(text, part)
  assert len(str(raised.value)) < 400


def test_sizes_are_those_of_the_drafter_unless_others_are_passed():
  chain = lambda strategies: [one.k for one in strategies]
  assert chain(fd.PromptLookup().sizes()) == [10, 3, 5]
  assert chain(fd.PromptLookup().sizes((2,))) == [3]
  heads = Bound(*HEADS)
  most = heads.module.depth
  assert chain(fd.Blockwise(heads).sizes())[:3] == [most + 1, 5, 9]
  assert chain(fd.Blockwise(heads).sizes((2, 50))) == [3]
  assert [one.gamma for one in fd.Speculative(KIT.draft).sizes()] == [4, 8, 2, 6, 3, 1]
  eagle = fd.Eagle(KIT.network('eagle'))
  assert [label(one) for one in eagle.sizes((2,), (8,))] == [
    'Eagle(depth=2, nodes=3)',
    'Eagle(depth=5, width=8, nodes=8)',
    'Eagle(depth=3, width=8, nodes=8)',
  ]
  block = fd.BlockDraft(KIT.network('block'), sampling=fd.Sampling(0.5))
  assert [label(one) for one in block.sizes((1, 3, 9), (2, 6))] == [
    'BlockDraft(k=2, temperature=0.5)',
    'BlockDraft(k=4, choices=6, temperature=0.5)',
    'BlockDraft(k=4, temperature=0.5)',
  ]
  assert fd.Greedy().sizes() == [fd.Greedy()]
