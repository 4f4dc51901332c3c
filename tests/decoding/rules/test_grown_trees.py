"""Trees whose parents are data are lossless, exactly and in law. Wrong drafters and rules fail the
same tests."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec import struct
from fastdec.decoding.methods.growing import advance, finish, start
from fastdec.decoding.protocol import Draft
from fastdec.decoding.rules.matching import Drawn
from fastdec.decoding.strategy import LoopStrategy
from tests.decoding.fakes import HashLM, oracle
from tests.decoding.rules.test_rejection import (
  SETTINGS,
  TARGET,
  WORDS,
  BonusDrawnAgain,
  check_million,
  counts,
  exact_law,
  p_value,
)

DEPTH, WIDTH, NODES = 3, 2, 7
LAWS = np.random.default_rng(0).gumbel(0, 2, (DEPTH, WORDS, WORDS)).astype(np.float32)
LAWS[..., 0] = -np.inf  # suppressed


@struct.pytree
class Grower:
  """Grows a tree by a table of laws, one for each level and token. Its state is unused.

  `names` are the tokens of a law's entries. A token that occurs twice makes equal siblings.
  """

  names: Any = struct.static(default=None)
  nodes: int = struct.static(default=NODES)

  def init(self, target, prefill):
    return jnp.zeros_like(prefill.root)

  def propose(self, target, state, root, keys):
    laws = jax.nn.log_softmax(jnp.asarray(LAWS), axis=-1)
    ids = None if self.names is None else jnp.array(self.names, jnp.int32)
    tree = start(laws[0][root], WIDTH, self.nodes, ids)
    for i in range(1, DEPTH):
      tree = advance(tree, laws[i][tree.tokens], ids)
    tokens, topology, chances = finish(tree, root)
    return Draft(tokens, topology, chances=chances), state

  def observe(self, target, state, step):
    return state


@struct.pytree
class Grown(LoopStrategy):
  drafter: Grower = Grower()
  rule: Any = fd.Exact()


def test_exact_acceptance_writes_what_greedy_decoding_writes_in_every_row():
  prompts = np.random.default_rng(1).integers(2, WORDS, (16, 3)).astype(np.int32)
  out = fd.decode(TARGET, {}, prompts, Grown(), max_len=20)
  for tokens, prompt in zip(np.asarray(out.tokens).tolist(), prompts.tolist(), strict=True):
    expected = oracle(HashLM(vocab_size=WORDS), prompt, 20)
    assert tokens == expected + [0] * (20 - len(expected))
  assert out.mean_block_size > 1.1


@pytest.mark.parametrize('settings', [SETTINGS[0], SETTINGS[3]])
@pytest.mark.wide('settings1')
def test_samples_on_grown_trees_have_the_law_of_the_target(settings):
  law = exact_law(*settings)
  assert p_value(counts(Grown(rule=Drawn(fd.Sampling(*settings))), law, 20_000, 1), law) > 1e-3


EQUAL = (0, 4, 4, 4, 4)  # all siblings are token 4


@pytest.mark.parametrize(
  'wrong',
  [Grown(rule=BonusDrawnAgain(fd.Sampling(5.0))), Grown(Grower(EQUAL), Drawn(fd.Sampling(5.0)))],
)
@pytest.mark.wide('wrong0')
def test_a_wrong_rule_or_equal_siblings_fail_the_same_test(wrong):
  law = exact_law(*SETTINGS[0])
  assert p_value(counts(wrong, law, 20_000, 1), law) < 1e-9


@pytest.mark.slow
def test_a_million_samples_show_a_shift_of_one_percent_and_there_is_none():
  law = exact_law(*SETTINGS[3])
  seen = counts(Grown(rule=Drawn(fd.Sampling(*SETTINGS[3]))), law, 100_000, 10)
  check_million(seen, law)
