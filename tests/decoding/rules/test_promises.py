"""The promise of each rule: `fd.tune` leaves out strategies that promise too little."""

import jax.numpy as jnp
import pytest

import fastdec as fd
from fastdec.decoding.protocol import promise_of
from fastdec.decoding.rules.matching import Drawn, Exact
from fastdec.decoding.rules.rejection import Warped
from tests.decoding.methods_table import LOSSLESS, OTHERS, hash_kit

PROMISES = [
  (fd.Exact(), 'exact'), (fd.TopN(1), 'exact'), (fd.TopN(2), 'relaxed'), (fd.Distance(0), 'exact'),
  (fd.Distance(1), 'relaxed'),
  (fd.MinBlock(fd.Exact(), 1), 'exact'),
  (fd.MinBlock(fd.Exact(), 2), 'relaxed'),
  (fd.MinBlock(fd.TopN(3), 1), 'relaxed'),
  (fd.Typical(temperature=0), 'exact'), (fd.Typical(), 'relaxed'), (Drawn(fd.Sampling(0.7)), 'law'),
  (fd.Rejection(), 'law'), (fd.Rejection(0.9), 'relaxed'), (fd.Rejection().greedy, 'exact'),
  (fd.Rejection(0.9).greedy, 'relaxed'),
  (fd.BlockVerification(), 'law'),
  (fd.BlockVerification().greedy, 'exact'),
  (fd.RecursiveRejection(), 'law'), (fd.Traversal(), 'law'), (fd.UniVer(), 'law'),
  (fd.Traversal().greedy, 'exact'),
  (Warped(fd.Rejection(), fd.Sampling()), 'law'),
  (Warped(fd.Rejection(0.5), fd.Sampling()), 'relaxed'),
]  # fmt: skip


@pytest.mark.parametrize(
  'rule, promise', PROMISES, ids=[f'{type(rule).__name__} {promise}' for rule, promise in PROMISES]
)
def test_what_a_rule_promises(rule, promise):
  assert promise_of(rule) == promise


def test_a_rule_made_of_another_promises_nothing_until_it_says_so():
  class Lax(Exact):
    def matches(self, draft, logits, choice):
      return jnp.ones_like(draft.tokens, bool)

  assert promise_of(Exact()) == 'exact' and promise_of(Lax()) == 'relaxed'


@pytest.mark.parametrize('name', LOSSLESS)
def test_every_method_that_tests_hold_to_greedy_text_promises_it(name):
  assert promise_of(LOSSLESS[name](hash_kit()).effective_rule) == 'exact'


def test_sampling_promises_its_law_and_drafts_keep_it():
  draft = hash_kit().draft
  assert promise_of(OTHERS['sampling'](hash_kit()).effective_rule) == 'law'
  assert promise_of(fd.Speculative(draft, sampling=fd.Sampling(1.0)).effective_rule) == 'law'
  assert (
    promise_of(
      fd.Speculative(draft, sampling=fd.Sampling(1.0), rule=fd.Rejection(0.5)).effective_rule
    )
    == 'relaxed'
  )
  # at temperature 0
  assert promise_of(fd.Speculative(draft, rule=fd.Rejection(0.5)).effective_rule) == 'relaxed'
  assert promise_of(fd.PromptLookup(sampling=fd.Sampling(1.0)).effective_rule) == 'law'
