"""Lossless in law: samples of speculative decoding, against the exact joint law of the first
tokens.

The model's law is a table over four words at every prefix, so the law of all texts of four tokens
can be written down. A rule that is wrong in one place must fail the same test.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

import fastdec as fd
from fastdec import struct
from fastdec.decoding.protocol import Accepted, Draft
from fastdec.decoding.rules.matching import Drawn
from fastdec.decoding.sampling import draw
from fastdec.decoding.topology import Topology, take_node
from tests.decoding.fakes import EOS, NEVER, HashHeads, HashLM, Imitation, logits_by_hand
from tests.decoding.test_sampling import law_by_hand

WORDS, TOKENS = 5, 4  # word 0 is suppressed, 1 ends
TARGET = HashLM(vocab_size=WORDS)
# One token in this many is wrong. They are numbers, so that all drafts are one program.
LIES = {'identical': NEVER, 'good': 3, 'bad': 1}
PROMPT = np.array([[3, 4, 2]], np.int32)
SETTINGS = [(5.0, 0, 1.0), (8.0, 3, 1.0), (9.0, 0, 0.8), (7.0, 3, 0.9)]
RULES = {'rejection': fd.Rejection(), 'block': fd.BlockVerification()}


@struct.pytree
class BonusFromTarget:
  """Wrong: a rejected draft is replaced by a token drawn from p, not from the rest of p above q."""

  rule: fd.Rejection | fd.BlockVerification
  greedy = fd.Exact()

  def __call__(self, keys, draft, logits, acceptable):
    node = self.rule(keys, draft, logits, acceptable).node
    return Accepted(
      node, draw(jax.vmap(jax.random.fold_in, (0, None))(keys, 7), take_node(logits, node))
    )


@functools.cache
def exact_law(temperature, top_k, top_p, change=lambda known, logits: logits):
  """{text: probability} of all texts of TOKENS tokens, or fewer where they end.

  `change` changes the logits after a text."""

  def continued(known, text, probability):
    if len(text) == TOKENS or (text and text[-1] == EOS):
      return {text: probability}
    logits = logits_by_hand(known, WORDS)
    logits = change(known, np.where(np.arange(WORDS) > 0, logits, -np.inf))
    law = law_by_hand(logits, temperature, top_k, top_p)
    parts = (
      continued([*known, v], (*text, v), probability * law[v]) for v in range(WORDS) if law[v] > 0
    )
    return {text: p for part in parts for text, p in part.items()}

  return continued(PROMPT[0].tolist(), (), 1.0)


def counts(strategy, law, rows, chunks):
  """Counts how often each text of the law was written. Other texts raise a KeyError."""
  seen = np.zeros(len(law))
  for chunk in range(chunks):
    key = jax.random.key(chunk)
    out = fd.decode(
      TARGET, {}, np.repeat(PROMPT, rows, axis=0), strategy, max_len=TOKENS + 1, key=key
    )
    seen += seen_in(np.asarray(out.tokens[:, :TOKENS]), law)
  return seen


def seen_in(texts, law):
  """Counts how often each text of the law is among these. Other texts raise a KeyError."""
  places, seen = {text: i for i, text in enumerate(law)}, np.zeros(len(law))
  for text, n in zip(*np.unique(texts, axis=0, return_counts=True), strict=True):
    seen[places[tuple(token for token in text.tolist() if token)]] += n
  return seen


def p_value(seen, law):
  """The p-value of the counts under the law. Texts expected fewer than five times count as one."""
  expected = seen.sum() * np.fromiter(law.values(), float)
  rare = expected < 5
  pooled = lambda x: np.append(x[~rare], x[rare].sum()) if rare.any() else x
  return chisquare(pooled(seen), pooled(expected)).pvalue


def check_million(seen, law):
  """Checks that a million samples have the law, and that they would show a shift of one percent."""
  assert p_value(seen, law) > 1e-3
  probabilities = np.fromiter(law.values(), float)
  shifted = 0.99 * probabilities + 0.01 * np.roll(probabilities, 1)
  assert p_value(seen, dict(zip(law, shifted, strict=True))) < 1e-9


def speculative(draft, rule, settings, adaptive=False):
  draft_model = Imitation(vocab_size=WORDS), {'lies': jnp.int32(LIES[draft])}
  return fd.Speculative(
    draft_model, 2, sampling=fd.Sampling(*settings), rule=rule, adaptive=adaptive
  )


@pytest.mark.parametrize('settings', SETTINGS, ids=range(4))
@pytest.mark.parametrize('adaptive', [False, True])
@pytest.mark.parametrize('draft', LIES)
@pytest.mark.parametrize('rule', RULES)
@pytest.mark.wide('rejection-bad-False-[03]', 'block-good-True-[03]')
def test_the_joint_law_of_the_first_tokens_is_the_targets(rule, draft, adaptive, settings):
  law, strategy = exact_law(*settings), speculative(draft, RULES[rule], settings, adaptive)
  assert p_value(counts(strategy, law, 20_000, 1), law) > 1e-3


@pytest.mark.parametrize(
  'rule', [*map(BonusFromTarget, RULES.values()), fd.Rejection(lenience=0.7)]
)
@pytest.mark.wide('rule1', 'rule2')
def test_a_wrong_rule_fails_the_same_test(rule):
  law = exact_law(*SETTINGS[0])
  assert p_value(counts(speculative('bad', rule, SETTINGS[0]), law, 20_000, 1), law) < 1e-9


TREE = Topology.from_choices([[0], [1], [2], [0, 0], [0, 1], [1, 0], [1, 1]])


def on_a_tree(topology, rule):
  return fd.Medusa((HashHeads(depth=2), {}), topology, rule)


@pytest.mark.slow  # test_grown_trees.py has both tests for trees that are data
@pytest.mark.parametrize('settings', [SETTINGS[0], SETTINGS[3]])
def test_samples_on_a_tree_have_the_law_of_the_target(settings):
  law = exact_law(*settings)
  assert p_value(counts(on_a_tree(TREE, Drawn(fd.Sampling(*settings))), law, 20_000, 1), law) > 1e-3


@struct.pytree
class BonusDrawnAgain(Drawn):
  """Wrong: the token after the accepted path is drawn again, although the first draw matched no
  draft."""

  def __call__(self, keys, draft, logits, acceptable):
    node = super().__call__(keys, draft, logits, acceptable).node
    return Accepted(
      node,
      draw(
        jax.vmap(jax.random.fold_in, (0, None))(keys, 7),
        self.sampling.log_probs(take_node(logits, node)),
      ),
    )


# `from_parents` makes no such tree
EQUAL_SIBLINGS = dataclasses.replace(TREE, ranks=np.zeros_like(TREE.ranks))


@pytest.mark.slow
@pytest.mark.parametrize(
  'wrong',
  [
    on_a_tree(TREE, BonusDrawnAgain(fd.Sampling(5.0))),
    on_a_tree(EQUAL_SIBLINGS, Drawn(fd.Sampling(5.0))),
  ],
)
def test_a_wrong_rule_or_equal_siblings_on_a_tree_fail_the_same_test(wrong):
  law = exact_law(*SETTINGS[0])
  assert p_value(counts(wrong, law, 20_000, 1), law) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize('draft', LIES)
@pytest.mark.parametrize('rule', RULES)
def test_a_million_samples_show_a_shift_of_one_percent_and_there_is_none(rule, draft):
  law = exact_law(*SETTINGS[3])
  seen = counts(speculative(draft, RULES[rule], SETTINGS[3]), law, 100_000, 10)
  check_million(seen, law)


@jax.jit
def judged(rule, keys, tokens, q, logits, acceptable):
  """Applies a rule to chains: (node, bonus)."""
  made = rule(keys, Draft(tokens, Topology.chain(tokens.shape[1]), q), logits, acceptable)
  return made.node, made.bonus


def applied(rule, p, q, rows, seed=0):
  """Applies a rule to `rows` drafts: their i-th tokens have the law q[i]; p is the same
  everywhere."""
  rng, p, q, gamma = np.random.default_rng(seed), np.asarray(p), np.asarray(q), len(q)
  drafts = np.stack([rng.choice(q.shape[1], rows, p=law) for law in q], axis=1).astype(np.int32)
  tokens = np.pad(drafts, ((0, 0), (1, 0)))
  laws = np.broadcast_to(np.pad(q, ((1, 0), (0, 0))), (rows, gamma + 1, q.shape[1]))
  with np.errstate(divide='ignore'):
    logits = np.broadcast_to(np.log(p), (rows, gamma + 1, p.shape[-1]))
  return *judged_rows(rule, tokens, laws, logits, np.ones((rows, gamma + 1), bool)), drafts


def judged_rows(rule, tokens, laws, logits, acceptable):
  keys = jax.random.split(jax.random.key(0), len(tokens))
  floats = (x.astype(np.float32) for x in (laws, logits))
  return map(np.asarray, judged(rule, keys, tokens, *floats, acceptable))


def test_the_papers_example_of_block_verification():
  """Sun et al. 2024, section 3: of two drafts over two words, 10/9 are accepted token by token, and
  11/9 as a block."""
  p, q = [1 / 3, 2 / 3], [[2 / 3, 1 / 3]] * 2
  for rule, expected in ((fd.Rejection(), 10 / 9), (fd.BlockVerification(), 11 / 9)):
    accepted, _, drafts = applied(rule, p, q, 40_000)
    assert abs(accepted.mean() - expected) < 4 * accepted.std() / 200
  by_draft = {
    text: accepted[(drafts == text).all(1)].mean() for text in itertools.product((0, 1), repeat=2)
  }
  np.testing.assert_allclose(
    [by_draft[text] for text in ((0, 0), (0, 1), (1, 0), (1, 1))], [0.5, 2, 1.5, 2], atol=0.05
  )


@pytest.mark.parametrize('rule', RULES)
def test_equal_laws_accept_everything_and_disjoint_ones_nothing(rule):
  law = np.array([0.1, 0.0, 0.7, 0.2])
  accepted, bonus, _ = applied(RULES[rule], law, np.stack([law] * 3), 4000)
  assert (accepted == 3).all() and not (bonus == 1).any()
  assert chisquare(np.bincount(bonus)[law > 0], 4000 * law[law > 0]).pvalue > 1e-3
  accepted, bonus, _ = applied(RULES[rule], law, np.array([[0.0, 1.0, 0, 0]] * 3), 400)
  assert not accepted.any() and not (bonus == 1).any()


def test_lenience_accepts_more_and_keeps_its_bound():
  """A.5: alpha = sum min(p / l, q), and no token has more than p / l."""
  p, q, lenience, rows = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.3, 0.6]), 0.5, 40_000
  accepted, bonus, drafts = applied(fd.Rejection(lenience), p, q[None], rows)
  kept = np.minimum(p / lenience, q)
  assert abs(accepted.mean() - kept.sum()) < 4 * accepted.std() / 200
  emitted = np.where(accepted > 0, drafts[:, 0], bonus)
  left = np.maximum(p - q, 0)
  law = kept + (1 - kept.sum()) * left / left.sum()
  assert (law <= p / lenience).all()
  assert chisquare(np.bincount(emitted, minlength=3), rows * law).pvalue > 1e-3


@pytest.mark.parametrize('rule', RULES)
def test_nothing_is_accepted_where_it_must_not_be(rule):
  """The token in its place has the target's law, as where nothing was drafted."""
  p = np.array([0.2, 0.8])
  rows, q = 4000, np.array([[[0, 0], [0.5, 0.5], [0.5, 0.5]]])
  tokens, laws = np.zeros((rows, 3), np.int32), np.repeat(q, rows, 0)
  logits = np.broadcast_to(np.log(p), (rows, 3, 2))
  acceptable = np.broadcast_to([True, False, False], (rows, 3))
  node, bonus = judged_rows(RULES[rule], tokens, laws, logits, acceptable)
  assert not node.any()
  assert chisquare(np.bincount(bonus), rows * p).pvalue > 1e-3


@pytest.mark.parametrize('rule', RULES)
def test_drafts_without_a_law_and_trees_are_refused(rule):
  keys, logits, acceptable = (
    jax.random.split(jax.random.key(0), 1),
    jnp.zeros((1, 3, 5)),
    jnp.ones((1, 3), bool),
  )
  tokens = jnp.ones((1, 3), jnp.int32)
  with pytest.raises(fd.UserError, match='only a draft model or a draft network gives'):
    RULES[rule](keys, Draft(tokens, Topology.chain(3)), logits, acceptable)
  with pytest.raises(fd.UserError, match='not a tree'):
    RULES[rule](
      keys,
      Draft(tokens, Topology.from_choices([[0], [1]]), jnp.zeros((1, 3, 5))),
      logits,
      acceptable,
    )
