"""Adaptive keeps the nodes of each call that pay, by a rule in plain Python, in one program."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.methods.adaptive import CLASSES, KEEP, PRIOR, AdaptiveDrafter, Watched
from fastdec.decoding.protocol import Accepted, Draft, Step
from fastdec.struct import Bound
from tests.decoding.fakes import HashLM

COSTS = {1: 1.0, 2: 1.3, 4: 1.6, 6: 2.6}
PARENTS = np.array([[-1, 0, 1, 0, 3, 3], [-1, 0, 0, 2, 3, 4]])


@dataclasses.dataclass(frozen=True)
class Fixed:
  """A drafter of one draft."""

  parents: Any
  chances: Any
  nodes = 6

  def propose(self, target: Bound, state: Any, root: Any, keys: Any) -> tuple[Draft, Any]:
    tokens = jnp.broadcast_to(jnp.arange(10, 16), self.parents.shape).at[:, 0].set(root)
    tree = fd.Topology.from_parents(jnp.asarray(self.parents))
    return Draft(tokens, tree, chances=self.chances), state

  def observe(self, target: Bound, state: Any, step: Step) -> Any:
    return state


TARGET = Bound(HashLM(), {})


def start(chances: Any, is_running: Any) -> tuple[AdaptiveDrafter, Watched]:
  drafter = AdaptiveDrafter(Fixed(PARENTS, chances), tuple(COSTS.items()))
  nothing = jnp.zeros((2, CLASSES))
  return drafter, Watched((), jnp.asarray(is_running), nothing, nothing)


def propose(drafter: AdaptiveDrafter, state: Watched) -> tuple[Any, Any]:
  return drafter.propose(TARGET, state, jnp.full(2, 3, jnp.int32), None)


def observe(drafter: Any, state: Watched, draft: Draft, accepted: Any, count: Any) -> Watched:
  """Tells the drafter of each row's last accepted node, and of the tokens that were emitted."""
  zeros, floats = jnp.zeros((2, 6), jnp.int32), jnp.zeros((2, 6, 1))
  step = Step(
    draft=draft, hidden=floats, taps=(), logits=floats, path=zeros, root=zeros[:, 0],
    accepted=Accepted(jnp.asarray(accepted, jnp.int32), zeros[:, 0]),
    count=jnp.asarray(count, jnp.int32), tokens=zeros, length=zeros[:, 0],
  )  # fmt: skip
  return drafter.observe(TARGET, state, step)


@pytest.mark.parametrize('is_running', [[True, True], [True, False], [False, True]])
@pytest.mark.parametrize('seed', range(6))
def test_the_width_is_that_of_most_tokens_for_its_cost(seed: int, is_running: list[bool]) -> None:
  rng = np.random.default_rng(seed)
  chances = np.ones((2, 6), np.float32)
  for row in range(2):
    for node in range(1, 6):
      chances[row, node] = chances[row, PARENTS[row, node]] * rng.choice([0.1, 0.5, 0.95])
  draft, _ = propose(*start(jnp.asarray(chances), is_running))

  rates = {}
  for width, cost in COSTS.items():
    best = -np.sort(-chances, axis=1)[:, :width]
    rates[width] = best[np.array(is_running)].sum() / cost
  assert list(COSTS)[int(draft.choice)] == max(rates, key=rates.__getitem__)

  # The likeliest nodes are first, below the same parents, and only they are acceptable.
  width = list(COSTS)[int(draft.choice)]
  tree = draft.topology
  for row in range(2):
    numbers = [0, *(np.asarray(draft.tokens[row, 1:]) - 10)]
    np.testing.assert_array_equal(chances[row, numbers], -np.sort(-chances[row]))
    for place, number in enumerate(numbers[1:], start=1):
      assert numbers[tree.parents[row, place]] == PARENTS[row, number]
    expected = fd.Topology.from_parents(tree.parents)
    np.testing.assert_array_equal(tree.mask, expected.mask)
    np.testing.assert_array_equal(tree.depths, expected.depths)
    assert tree.acceptable[row].tolist() == [place < width for place in range(6)]


def test_where_a_drafter_says_nothing_chances_fall_with_depth_and_rank() -> None:
  """A path of twelve nodes of rank 9: their shares multiply to more than an int32 holds."""
  parents, ranks = np.arange(-1, 12, dtype=np.int32), np.array([0] + [9] * 12, np.int32)

  class Deep(Fixed):
    nodes = 13

    def propose(self, target: Bound, state: Any, root: Any, keys: Any) -> tuple[Draft, Any]:
      tree = fd.Topology.from_parents(jnp.asarray(parents), jnp.asarray(ranks))
      return Draft(jnp.zeros((2, 13), jnp.int32), tree), state

  drafter = AdaptiveDrafter(Deep(parents, None), ((13, 1.0),))
  draft, _ = propose(drafter, start(None, [True, True])[1])
  np.testing.assert_allclose(draft.chances[1], 20.0 ** -np.arange(13), rtol=1e-5)


def test_chances_are_calibrated_by_what_was_kept() -> None:
  """Two rows count together, finished rows do not, and older calls count less."""
  chances = jnp.asarray([[1, 0.9, 0.5, 0.4, 0.3, 0.2], [1, 0.9, 0.5, 0.5, 0.2, 0.1]], jnp.float32)
  drafter, state = start(chances, [True, True])
  tried, kept = 0.0, 0.0
  for accepted, count in [([1, 0], [2, 1]), ([0, 1], [1, 2]), ([1, 0], [2, 0])]:
    draft, state = propose(drafter, state)
    assert int(draft.choice) > 0  # the likeliest node is scored in each call
    state = observe(drafter, state, draft, accepted, count)
    running = np.array(count) > 0
    tried = KEEP * tried + running.sum()
    kept = KEEP * kept + ((np.array(accepted) == 1) & running).sum()
  np.testing.assert_allclose(
    state.calibrate(chances)[:, 1], (kept + PRIOR * 0.9) / (tried + PRIOR), rtol=1e-6
  )
  assert state.calibrate(chances)[:, 0].tolist() == [1, 1]


def test_guesses_that_are_never_kept_are_given_up_and_tried_again() -> None:
  """The drafter is sure, and wrong: most calls become greedy ones."""
  drafter, state = start(
    jnp.broadcast_to(jnp.asarray([1, 0.9, 0.8, 0.7, 0.6, 0.5]), (2, 6)), [True, True]
  )
  choices = []
  for _ in range(400):
    draft, state = propose(drafter, state)
    state = observe(drafter, state, draft, [0, 0], [1, 1])
    choices.append(int(draft.choice))
  assert choices[0] > 0 and choices[100:].count(0) > 0.9 * 300
  assert max(choices[100:]) > 0


def test_a_call_that_expects_nothing_is_a_greedy_one() -> None:
  """The layers see one token of each row, or all nodes: as the device chooses."""
  seen = []

  @dataclasses.dataclass(frozen=True)
  class Counting(HashLM):
    def apply(self, params: Any, tokens: Any, nodes: Any, cache: Any) -> Any:
      jax.debug.callback(lambda: seen.append(tokens.shape[1]))
      return super().apply(params, tokens, nodes, cache)

  strategy = fd.Adaptive(fd.Suffix(longest=4, depth=4, nodes=5), costs={1: 1.0, 5: 1.2})
  prompts = jnp.asarray([[3, 4, 5, 6, 7, 3, 4, 5]])
  model: Any = Counting()
  fd.decode(model, {}, prompts, strategy, max_len=12)
  jax.effects_barrier()
  assert {1, 5} <= set(seen[1:])


@pytest.mark.parametrize(
  ('strategy', 'costs', 'message'),
  [
    (fd.Suffix(nodes=4), {1: 1, 3: 2}, 'widths from 1 to 4'),
    (fd.Suffix(nodes=4), {1: 0, 4: 2}, 'with costs above 0'),
    (fd.Suffix(nodes=4), {0: 1, 4: 2}, 'costs='),
    (fd.Suffix(nodes=4), {}, 'costs='),
    (fd.Suffix(nodes=4), [1, 2], 'costs='),
    (fd.Suffix(nodes=4, sampling=fd.Sampling(1.0)), {4: 1}, 'sampling to Adaptive'),
    (fd.Union(fd.Forced(), fd.Forced()), {1: 1}, 'Union cannot be a part'),
    (fd.Jacobi(4), {4: 1}, 'this Jacobi cannot be a part of Adaptive'),
  ],
)
def test_impossible_settings_are_refused(strategy: Any, costs: Any, message: str) -> None:
  with pytest.raises(fd.UserError, match=message):
    fd.Adaptive(strategy, costs=costs)
