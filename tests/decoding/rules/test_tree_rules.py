"""Rules for drawn trees, exactly: all drafts on all trees, with their probabilities.

A rule names the law of its verdict. So the law of a text is a sum over drafts, which must be the
target's. Rules that are wrong in one place, and drafts that are, must fail the same test.
"""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec import struct
from fastdec.decoding.protocol import Draft
from fastdec.decoding.rules.recursive import TreeRule
from fastdec.decoding.topology import Topology

pytestmark = pytest.mark.usefixtures('in_float64')

WORDS = 4
RULES = {
  'recursive': fd.RecursiveRejection(),
  'recursive, independent': fd.RecursiveRejection('independent'),
  'traversal': fd.Traversal(),
  'traversal, independent': fd.Traversal('independent'),
  'univer': fd.UniVer(),
}


@functools.cache
def trees(n):
  """The parents of all trees of n nodes in which the order of siblings counts."""
  if n == 1:
    return [(-1,)]
  found = []
  for parents in trees(n - 1):
    # In the order depth first, the last node hangs below any node of the path to the one before.
    above = n - 2
    while above >= 0:
      found.append((*parents, above))
      above = parents[above]
  return found


@functools.cache
def laws(seed, depth):
  """p and q after each text of up to `depth` tokens, [text, word] for each length; some are 0.

  Seed 0: q is p. Seed 1: words tie. Others: random."""
  rng = np.random.default_rng(seed)
  ps, qs = [], []
  for length in range(depth + 1):
    shape = (WORDS**length, WORDS)
    p, q = rng.dirichlet(np.ones(WORDS), shape[0]), rng.dirichlet(np.ones(WORDS), shape[0])
    if seed == 1:
      p, q = rng.integers(1, 3, shape), rng.integers(1, 3, shape)
    p, q = p * (rng.random(shape) < 0.8), q * (rng.random(shape) < 0.8)
    p, q = p + (p.sum(1) == 0)[:, None], q + (q.sum(1) == 0)[:, None]
    p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
    ps.append(p)
    qs.append(p if seed == 0 else q)
  return ps, qs


@dataclasses.dataclass
class Drafts:
  """All drafts on a tree, a row each."""

  tokens: np.ndarray  # [b, n]
  texts: np.ndarray  # [b, n]: the number of each node's text in the tables of its depth
  depths: np.ndarray  # [n]
  probability: np.ndarray  # [b]
  laws: np.ndarray  # [b, n, v]: q of each node, given its siblings before
  logits: np.ndarray  # [b, n, v]


def norm(x):
  total = x.sum(-1, keepdims=True)
  return np.divide(x, total, out=np.zeros_like(x), where=total > 0)


def drafts_on(parents, siblings, seed, drawn_at=0):
  """Draws a tree in all ways, by plain loops over its nodes."""
  n = len(parents)
  depths = np.zeros(n, int)
  for node in range(1, n):
    depths[node] = depths[parents[node]] + 1
  ps, qs = laws(seed, depths.max())
  tokens = np.array(list(itertools.product(range(WORDS), repeat=n - 1)), int).reshape(-1, n - 1)
  tokens = np.pad(tokens, ((0, 0), (1, 0)))
  rows = np.arange(len(tokens))
  texts, probability = np.zeros_like(tokens), np.ones(len(tokens))
  q = np.zeros((*tokens.shape, WORDS))
  for parent in range(n):
    children = [node for node in range(n) if parents[node] == parent]
    law = qs[depths[parent]][texts[:, parent]]
    ranked = np.argsort(-law, axis=1, kind='stable')
    guesses = ranked[:, : len(children) - 1]
    if siblings == 'mixed' and children:
      law = law.copy()
      np.put_along_axis(law, guesses, 0, axis=1)
    for place, node in enumerate(children):
      law = norm(law)
      if siblings == 'mixed' and place != min(drawn_at, len(children) - 1):
        # All words may be among the guesses: the last ones repeat then, and are never accepted.
        which = place - (place > drawn_at)
        q[:, node] = 0
        if which < guesses.shape[1]:
          q[rows, node, guesses[:, which]] = 1
      else:
        q[:, node] = law
      chance = q[rows, node, tokens[:, node]]
      if siblings == 'guessed':  # not drawn from that law
        chance = tokens[:, node] == ranked[:, place]
      # Where nothing is left to draw, the token is 0.
      probability *= np.where(q[:, node].sum(1) > 0, chance, tokens[:, node] == 0)
      texts[:, node] = WORDS * texts[:, parent] + tokens[:, node]
      if siblings in ('distinct', 'guessed'):
        law = law * (np.arange(WORDS) != tokens[:, node, None])
  logits = np.zeros_like(q)
  for node in range(n):
    with np.errstate(divide='ignore'):
      logits[:, node] = np.log(ps[depths[node]][texts[:, node]])
  kept = probability > 0
  cut = (x[kept] for x in (tokens, texts, probability, q, logits))
  tokens, texts, probability, q, logits = cut
  return Drafts(tokens, texts, depths, probability, q, logits)


@jax.jit
def weighed_rows(rule, parents, tokens, q, logits):
  topology = Topology.from_parents(jnp.broadcast_to(parents, tokens.shape))
  return rule.weigh(Draft(tokens, topology, q), logits, jnp.ones(tokens.shape, bool))


def weighed(rule, drafts, parents):
  """Applies a rule to all drafts: the chance of each node to be the last, and the bonus's law."""
  b = len(drafts.tokens)
  pad = lambda x: np.concatenate([x, np.repeat(x[:1], -b % 256, axis=0)])
  arrays = map(pad, (drafts.tokens, drafts.laws, drafts.logits))
  return [np.asarray(x)[:b] for x in weighed_rows(rule, jnp.array(parents), *arrays)]


def distance(rule, parents, siblings, seed, drawn_at=0, weigh=weighed):
  """The total variation between the rule's law of texts and the target's, and the mean of kept
  drafts."""
  drafts = drafts_on(parents, siblings, seed, drawn_at)
  chance, rest = weigh(rule, drafts, parents)
  np.testing.assert_allclose(chance.sum(1), 1, atol=1e-12)
  assert chance.min() >= 0 and np.nanmin(rest) >= 0  # their logarithms are drawn from
  weight = chance * drafts.probability[:, None]

  # The law of the text of length 1, 2, ..., where a shorter one is continued by the target.
  ps, _ = laws(seed, drafts.depths.max())
  ours, law = np.zeros(1), np.ones(1)
  for depth in range(drafts.depths.max() + 1):
    ended = np.zeros((WORDS**depth, WORDS))
    for node in np.flatnonzero(drafts.depths == depth):
      bonus = norm(rest[:, node]) * weight[:, node, None]
      np.add.at(ended, drafts.texts[:, node], bonus)
    ours = (ours[:, None] * ps[depth] + ended).ravel()
    law = (law[:, None] * ps[depth]).ravel()
  return abs(ours - law).sum() / 2, (weight * drafts.depths).sum()


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('name', RULES)
@pytest.mark.wide('*-2')
def test_texts_have_the_targets_law_on_every_small_tree(name, seed):
  rule = RULES[name]
  by_depth = (-1, 0, 0, 1, 1, 2)
  for parents in [*trees(2), *trees(3), *trees(4), *trees(5)[::3], by_depth]:
    for drawn_at in range(3 if rule.siblings == 'mixed' else 1):
      apart, kept = distance(rule, parents, rule.siblings, seed, drawn_at)
      assert apart < 1e-12, (parents, drawn_at, apart)
    if seed == 0 and parents in CHAINS:
      np.testing.assert_allclose(kept, len(parents) - 1)  # p is q


CHAINS = [tuple(range(-1, n - 1)) for n in range(9)]


@pytest.mark.slow
@pytest.mark.parametrize('n', range(5, 9))
@pytest.mark.parametrize('name', RULES)
def test_texts_have_the_targets_law_on_every_tree_of_up_to_eight_nodes(name, n):
  rule, furthest = RULES[name], 0.0
  for parents in trees(n):
    furthest = max(furthest, distance(rule, parents, rule.siblings, 2)[0])
  print(f'{name}: {len(trees(n))} trees of {n} nodes, furthest {furthest:g}')
  assert furthest < 1e-12


BRANCHED = (-1, 0, 1, 1, 0, 4)


def in_steps(update):
  """Traversal by its definition, a row at a time: nodes are deleted, and weights computed again."""

  def weigh(_, drafts, parents):
    chance, rest = np.zeros(drafts.tokens.shape), np.exp(drafts.logits)
    for tokens, q, p, chances in zip(drafts.tokens, drafts.laws, rest, chance, strict=True):
      alive, kept, reached = list(range(len(tokens))), {0: 1.0}, 1.0
      while alive:
        weight = {}
        for node in alive:
          above, token = parents[node], tokens[node]
          own = kept.get(node)
          if own is None:
            own = weight[above] * p[above, token] / q[node, token] if q[node, token] > 0 else 0.0
          weight[node] = min(1.0, own)
        leaf = next(node for node in alive if node not in {parents[child] for child in alive})
        chances[leaf] = reached * weight[leaf]
        reached *= 1 - weight[leaf]
        alive.remove(leaf)
        if leaf:
          above = parents[leaf]
          left = np.maximum(weight[above] * p[above] - q[leaf], 0)
          kept[above] = update(left.sum(), weight[above], q[leaf], tokens[leaf])
          p[above] = left / left.sum() if left.sum() > 0 else p[above]
          kept[0] = 1.0
    return chance, rest

  return weigh


def published(left, weight, q, token):
  """The weight of a node after a child has failed."""
  return left / (left + 1 - weight) if left + 1 - weight > 0 else 1.0


def by_what_is_left(left, weight, q, token):
  """Wrong, although another project has it: divided by what is left of q."""
  return min(1.0, left / (1 - q[token])) if q[token] < 1 else 1.0


def leaves_first(parents, node=0):
  below = [child for child in range(len(parents)) if parents[child] == node]
  return [each for child in below for each in leaves_first(parents, child)] + [node]


def by_formula(prefix_order):
  """UniVer by its published formulas, a row at a time.

  Args:
    prefix_order: sorts siblings for the sums of chances; the tests have the order of the nodes.
  """

  def weigh(_, drafts, parents):
    n = len(parents)
    chance, rest = np.zeros(drafts.tokens.shape), np.exp(drafts.logits)
    for tokens, q, p, chances in zip(drafts.tokens, drafts.laws, rest, chance, strict=True):
      t, passes = np.ones(n), np.zeros(n)
      for node in range(n):
        children = [child for child in range(n) if parents[child] == node]
        drawn = [child for child in children if 0 < q[child, tokens[child]] < 1]
        fixed = [child for child in children if q[child, tokens[child]] == 1]
        m = q[drawn[0]] if drawn else np.zeros(WORDS)
        z = 1 - t[node] + np.maximum(t[node] * p[node] - m, 0).sum()
        a = {child: 0.0 for child in children}
        failed = 1.0
        for child in drawn:
          a[child] = min(1.0, t[node] * p[node, tokens[child]] / m[tokens[child]])
          failed = 1 - a[child]
        for child in fixed:
          a[child] = t[node] * p[node, tokens[child]] * failed / z if z > 0 else 0.0
        before = 0.0
        for child in prefix_order(children):
          t[child] = min(1.0, a[child] / (1 - before)) if before < 1 else 0.0
          before += a[child]
        ends = failed * (1 - t[node]) / z if z > 0 else 0.0
        passes[node] = 1 - ends / (1 - before) if before < 1 - 1e-15 else 1.0
        if children:
          left = np.maximum(t[node] * p[node] - m, 0)
          left[tokens[fixed]] = 0
          p[node] = left / left.sum() if left.sum() > 0 else p[node]
      passes[0] = 1.0
      reached = 1.0
      for node in leaves_first(parents):
        chances[node] = reached * passes[node]
        reached *= 1 - passes[node]
    return chance, rest

  return weigh


@pytest.mark.parametrize('parents', [BRANCHED, (-1, 0, 0, 0, 3), (-1, 0, 1, 2, 1)])
def test_rules_are_what_was_published(parents):
  """Nodes are deleted in steps; the drawn child is first, as in `UniVer`'s order of tests."""
  for rule, weigh in ((RULES['traversal'], in_steps(published)), (fd.UniVer(), by_formula(list))):
    drafts = drafts_on(parents, rule.siblings, 2)
    ours, theirs = weighed(rule, drafts, parents), weigh(rule, drafts, parents)
    np.testing.assert_allclose(ours[0], theirs[0], atol=1e-12)
    of_rest = theirs[0][..., None] > 1e-9
    np.testing.assert_allclose(ours[1] * of_rest, theirs[1] * of_rest, atol=1e-9)


def test_wrong_weights_fail_the_same_test():
  """Their right forms pass, with any place of the drawn child."""
  assert distance(None, BRANCHED, 'distinct', 2, weigh=in_steps(published))[0] < 1e-12
  assert distance(None, BRANCHED, 'distinct', 2, weigh=in_steps(by_what_is_left))[0] > 1e-3
  for drawn_at in (0, 1):
    right, wrong = by_formula(list), by_formula(lambda children: children[::-1])
    assert distance(None, BRANCHED, 'mixed', 2, drawn_at, right)[0] < 1e-12
    assert distance(None, BRANCHED, 'mixed', 2, drawn_at, wrong)[0] > 1e-3


@struct.pytree
class BonusFromTarget(TreeRule):
  """Wrong: the bonus is drawn from p, although children have failed."""

  rule: Any = None

  def weigh(self, draft, logits, acceptable):
    return self.rule.weigh(draft, logits, acceptable)[0], jax.nn.softmax(logits, axis=-1)


@pytest.mark.parametrize('name', RULES)
def test_a_wrong_bonus_or_guesses_as_if_they_were_drawn_fail_the_same_test(name):
  rule = RULES[name]
  assert distance(BonusFromTarget(rule=rule), BRANCHED, rule.siblings, 2)[0] > 1e-3
  assert distance(rule, BRANCHED, 'guessed', 2)[0] > 1e-3


@pytest.mark.parametrize('seed', range(2, 6))
def test_more_is_kept_leaves_first_and_with_the_likeliest_word(seed):
  """The order that the papers give, on trees of two children a node. On chains, traversal is not
  worse either."""
  kept = []
  for name in ('recursive, independent', 'recursive', 'traversal'):
    kept.append(distance(RULES[name], BRANCHED, RULES[name].siblings, seed)[1])
  assert kept == sorted(kept)
  chains = [distance(RULES[name], CHAINS[4], 'distinct', seed)[1] for name in RULES]
  np.testing.assert_allclose(chains[1], chains[0])
  np.testing.assert_allclose(chains[3:], chains[2])
  assert chains[2] >= chains[0] - 1e-12


@pytest.mark.parametrize('rule', ['recursive', 'traversal'])
def test_on_chains_they_are_the_rules_for_chains(rule):
  """On the same drafts; those after an unacceptable one are as if they were not drafted."""
  chain = {'recursive': fd.Rejection(), 'traversal': fd.BlockVerification()}[rule]
  drafts = drafts_on(CHAINS[4], 'distinct', 2)
  acceptable = np.ones(drafts.tokens.shape, bool)
  acceptable[: len(acceptable) // 2, 2:] = False
  draft = Draft(jnp.array(drafts.tokens), Topology.chain(4), jnp.array(drafts.laws))
  keys = jax.random.split(jax.random.key(0), 4000)

  @jax.jit
  def drawn(rule):
    judge = lambda key: rule(
      jnp.repeat(key[None], len(acceptable)), draft, jnp.array(drafts.logits), jnp.array(acceptable)
    )
    made = jax.lax.map(lambda key: (judge(key).node, judge(key).bonus), keys)
    return made

  counts = []
  for one in (chain, RULES[rule]):
    node, bonus = drawn(one)
    both = np.asarray(node * WORDS + bonus)
    counts.append(np.stack([(both == code).mean(0) for code in range(4 * WORDS)]))
  np.testing.assert_allclose(counts[0], counts[1], atol=0.06)
