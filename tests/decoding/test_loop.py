"""The loop's contract for every kind of draft: chains, trees, trees as data, and nodes that are
never acceptable."""

import dataclasses
import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import fastdec as fd
from fastdec import struct
from fastdec.decoding import loop
from fastdec.decoding.methods.greedy import NoDraft
from fastdec.decoding.protocol import Accepted, Draft, Prompt
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.topology import Topology
from fastdec.struct import Bound
from tests.decoding.fakes import EOS, HashHeads, HashLM, Scripted, truths
from tests.decoding.methods_table import GROWN, METHODS, hash_kit

MODEL = HashLM()
TARGET = Bound(MODEL, {})
MAX_LEN = 11
ROWS, PROMPT = 5, 4


def drafter_of(make, truth, seed):
  """The drafter of a method of the table, which does not know the truth."""
  return make(hash_kit()).drafter


SCRIPTED = {
  'chain': lambda truth, seed: Scripted(truth, seed, nodes=4, chain=True),
  'perfect chain': lambda truth, seed: Scripted(truth, seed, nodes=4, chain=True, skill=1.0),
  'trees as data': lambda truth, seed: Scripted(truth, seed, nodes=7),
  'trees with a window': lambda truth, seed: Scripted(truth, seed, nodes=8, window=3),
  'wider than max_len': lambda truth, seed: Scripted(
    truth, seed, nodes=MAX_LEN + 3, chain=True, skill=0.9
  ),
}
DRAFTERS = SCRIPTED | {
  name: functools.partial(drafter_of, make) for name, make in (METHODS | GROWN).items()
}


def some_prompts(seed: int, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(seed)
  lengths = rng.integers(1, PROMPT + 1, rows)
  prompts = rng.integers(2, MODEL.vocab_size, (rows, PROMPT))
  return np.where(np.arange(PROMPT) < lengths[:, None], prompts, 0).astype(
    np.int32
  ), lengths.astype(np.int32)


def as_prompt(prompts: np.ndarray, lengths: np.ndarray) -> Prompt:
  return Prompt(None, jnp.asarray(prompts), jnp.asarray(lengths), jnp.zeros(len(prompts), bool))


def decoded(target, drafter, rule, prompt, max_len, keys):
  """The state when every row is done."""
  state = loop.init(target, drafter, rule, prompt, max_len, keys)
  return jax.lax.while_loop(
    lambda s: ~s.done.all(), lambda s: loop.step(target, drafter, rule, s), state
  )


@jax.jit
def run(drafter, prompt):
  return decoded(TARGET, drafter, Exact(), prompt, MAX_LEN, None)


@jax.jit
def init(drafter, prompt):
  return loop.init(TARGET, drafter, Exact(), prompt, MAX_LEN, None)


@jax.jit
def step(drafter, state):
  return loop.step(TARGET, drafter, Exact(), state)


@pytest.mark.parametrize('drafter', DRAFTERS)
@hypothesis.given(seed=st.integers(0, 10_000))
@hypothesis.settings(max_examples=40, deadline=None)
def test_exact_equals_the_oracle_token_for_token(drafter, seed):
  prompts, lengths = some_prompts(seed)
  truth = truths(MODEL, prompts, lengths, MAX_LEN)
  state = run(DRAFTERS[drafter](truth, seed), as_prompt(prompts, lengths))
  np.testing.assert_array_equal(state.tokens, truth)
  np.testing.assert_array_equal(state.length, (truth != 0).sum(1))
  np.testing.assert_array_equal(state.length, 1 + state.block_sizes.sum(1))
  np.testing.assert_array_equal(state.calls, (state.block_sizes > 0).sum(1))


@pytest.mark.parametrize('drafter', [*SCRIPTED, 'medusa', 'speculative', 'lookahead'])
@pytest.mark.wide('chain', 'trees as data')
def test_python_loop_equals_while_loop_and_the_cache_lags_by_the_root(drafter):
  prompts, lengths = some_prompts(3)
  made = DRAFTERS[drafter](truths(MODEL, prompts, lengths, MAX_LEN), 3)
  whole, state = run(made, as_prompt(prompts, lengths)), init(made, as_prompt(prompts, lengths))
  while not state.done.all():
    np.testing.assert_array_equal(state.cache.length, lengths + state.length - 1)
    before, state = state, step(made, state)
    frozen = np.asarray(before.done)
    for name in ('length', 'root', 'calls'):
      np.testing.assert_array_equal(
        np.asarray(getattr(state, name))[frozen], np.asarray(getattr(before, name))[frozen]
      )
  for name in ('tokens', 'length', 'block_sizes', 'calls', 'root', 'done'):
    np.testing.assert_array_equal(getattr(whole, name), getattr(state, name), err_msg=name)


# test_strategies.py has the methods
@pytest.mark.parametrize('drafter', SCRIPTED)
@pytest.mark.wide('trees with a window')
def test_batch_of_b_equals_b_batches_of_one(drafter):
  prompts, lengths = some_prompts(8)
  truth = truths(MODEL, prompts, lengths, MAX_LEN)
  together = run(SCRIPTED[drafter](truth, 8), as_prompt(prompts, lengths))
  for i in range(ROWS):
    alone = run(
      SCRIPTED[drafter](truth[i : i + 1], 8), as_prompt(prompts[i : i + 1], lengths[i : i + 1])
    )
    for name in ('tokens', 'length', 'block_sizes', 'calls'):
      np.testing.assert_array_equal(
        getattr(alone, name)[0], getattr(together, name)[i], err_msg=name
      )


def some_choices(rng):
  """A random static tree: each node a parent's next free rank."""
  paths, ranks = [()], {(): 0}
  for _ in range(rng.integers(1, 15)):
    parents = [path for path in paths if len(path) < 9]
    parent = parents[rng.integers(len(parents))]
    paths.append((*parent, ranks[parent]))
    ranks[parent], ranks[paths[-1]] = ranks[parent] + 1, 0
  return paths[1:]


@pytest.mark.parametrize('seed', range(30))
@pytest.mark.wide('1', '2')
def test_static_trees_of_any_shape_are_lossless(seed):
  prompts, lengths = some_prompts(seed)
  rng = np.random.default_rng(seed)
  max_len, heads = int(rng.integers(1, 10)), hash_kit().heads('medusa' if seed % 2 else 'separate')
  strategy = fd.Medusa(heads, some_choices(rng))
  out = fd.decode(MODEL, {}, prompts, strategy, prompt_lengths=lengths, max_len=max_len)
  np.testing.assert_array_equal(out.tokens, truths(MODEL, prompts, lengths, max_len))


@pytest.mark.parametrize('k', range(1, 11))
@pytest.mark.wide('1', '10')
def test_chains_of_any_length_are_lossless(k):
  prompts, lengths = some_prompts(k, rows=12)
  out = fd.decode(
    MODEL, {}, prompts, fd.Blockwise((HashHeads(), {}), k), prompt_lengths=lengths, max_len=MAX_LEN
  )
  np.testing.assert_array_equal(out.tokens, truths(MODEL, prompts, lengths, MAX_LEN))
  assert (np.asarray(out.block_sizes) <= k).all()


def test_stream_yields_the_blocks_of_decode():
  prompts, lengths = some_prompts(2)
  strategy = fd.Medusa((HashHeads(), {}), [[rank] for rank in range(8)])
  out = fd.decode(MODEL, {}, prompts, strategy, prompt_lengths=lengths, max_len=MAX_LEN)
  blocks = list(fd.stream(MODEL, {}, prompts, strategy, prompt_lengths=lengths, max_len=MAX_LEN))
  for i, length in enumerate(np.asarray(out.lengths)):
    sizes = [len(block[i]) for block in blocks]
    assert sizes == [1, *np.asarray(out.block_sizes)[i, : len(blocks) - 1].tolist()]
    assert [token for block in blocks for token in block[i]] == out.tokens[i, :length].tolist()


@pytest.mark.parametrize(
  'rule', [fd.TopN(14), fd.Distance(14), fd.MinBlock(fd.Exact(), 4)], ids=['n', 'tau', 'size']
)
@pytest.mark.wide('n')
def test_no_rule_emits_a_suppressed_token(rule):
  """All drafts are id 0, and these rules accept them where they may. The loop lets them only if 0
  is not suppressed."""
  prompts, lengths = some_prompts(4)
  zeros = Scripted(jnp.zeros((ROWS, MAX_LEN), jnp.int32), 0, nodes=4, chain=True, skill=1.0)
  emits_zero = {}
  for suppressed in ((), (0,)):
    target = Bound(HashLM(suppressed_ids=suppressed), {})
    state = jax.jit(
      lambda prompt, target=target: decoded(target, zeros, rule, prompt, MAX_LEN, None)
    )(as_prompt(prompts, lengths))
    emitted = np.arange(MAX_LEN) < np.asarray(state.length)[:, None]
    emits_zero[suppressed] = bool((np.asarray(state.tokens)[emitted] == 0).any())
  assert emits_zero == {(): True, (0,): False}


def test_a_good_drafter_needs_fewer_calls():
  """Guards the tests above: blocks longer than one occur on chains and on trees, and some rows end
  while others do not."""
  mean, ends = {}, []
  for name in SCRIPTED:
    emitted = calls = 0
    for seed in range(8):
      prompts, lengths = some_prompts(seed)
      truth = truths(MODEL, prompts, lengths, MAX_LEN)
      state = run(SCRIPTED[name](truth, seed), as_prompt(prompts, lengths))
      emitted, calls = emitted + int(state.length.sum()) - ROWS, calls + int(state.calls.sum())
      ends += (truth == EOS).any(1).tolist()
    mean[name] = emitted / calls
  assert mean['perfect chain'] > 2.5 > mean['chain'] > 1.3
  assert mean['trees as data'] > 1.3 and mean['trees with a window'] > 1.2
  assert 0.1 < np.mean(ends) < 0.9


@pytest.mark.parametrize('rule', [
  fd.MinBlock(fd.TopN(3), 1), fd.MinBlock(fd.TopN(1), 5), fd.MinBlock(fd.Distance(2), 1),
], ids=['n', 'size', 'tau'])  # fmt: skip
def test_relaxed_rules_write_other_text_in_longer_blocks(rule):
  """Otherwise a rule that became exact would go unnoticed."""
  prompts, lengths = some_prompts(0, rows=12)
  exact, out = (
    fd.decode(MODEL, {}, prompts, fd.Blockwise((HashHeads(), {}), 7, one), lengths, max_len=MAX_LEN)
    for one in (fd.MinBlock(fd.TopN(1), 1), rule)
  )
  assert out.mean_block_size > exact.mean_block_size
  assert (np.asarray(out.tokens) != np.asarray(exact.tokens)).any()


def test_pinned_counting_example():
  """The example of docs/loop.md, 'Once | upon a | time , in': the prompt gives Once, and the calls
  emit 2 and 3 tokens."""
  truth = np.array([[4, 5, 6, 7, 8, 9]], np.int32)

  @dataclasses.dataclass(frozen=True)
  class Parrot(HashLM):
    """Writes truth[position], whatever it reads."""

    def apply(self, params, tokens, nodes, cache):
      _, taps, cache = super().apply(params, tokens, nodes, cache)
      return (
        (cache.length[:, None] + jnp.atleast_2d(nodes.depths))[..., None].astype(jnp.float32),
        taps,
        cache,
      )

    def unembed(self, params, hidden):
      return jax.nn.one_hot(
        jnp.asarray(truth[0])[hidden[..., 0].astype(jnp.int32).clip(0, 5)], self.vocab_size
      )

  @dataclasses.dataclass(frozen=True)
  class Guess(Scripted):
    """Right for one draft at the first call, for two at the second."""

    def propose(self, target, state, root, keys):
      draft, state = super().propose(target, state, root, keys)
      wrong_from = jnp.where(state == 1, 2, 3)[:, None]
      return dataclasses.replace(
        draft, tokens=jnp.where(jnp.arange(4)[None] < wrong_from, draft.tokens, 13)
      ), state

  guess = Guess(truth, 0, nodes=4, chain=True, skill=1.0)
  prompt = as_prompt(np.array([[3]], np.int32), np.array([1], np.int32))
  state = jax.jit(lambda: decoded(Bound(Parrot(), {}), guess, Exact(), prompt, 6, None))()
  np.testing.assert_array_equal(state.tokens, truth)
  assert state.block_sizes[0].tolist() == [2, 3, 0, 0, 0, 0]
  assert (int(state.length[0]), int(state.calls[0])) == (6, 2)


def test_max_len_one_needs_no_call():
  prompt = as_prompt(*some_prompts(0))
  state = jax.jit(lambda: decoded(TARGET, NoDraft(), Exact(), prompt, 1, None))()
  assert state.calls.sum() == 0 and state.length.tolist() == [1] * ROWS


@pytest.mark.parametrize('make', [
  lambda truth: Scripted(truth, 0, nodes=5, chain=True, skill=1.0),
  lambda truth: fd.Medusa((HashHeads(), {}), [[0], [1], [0, 0], [0, 1]]).drafter,
  lambda truth: fd.Speculative((MODEL, {}), 4).drafter,
  lambda truth: fd.Speculative((MODEL, {}), 4, adaptive=True).drafter,
  lambda truth: fd.BlockwiseTwoCalls((HashHeads(), {}), 4).drafter,
  lambda truth: GROWN['eagle'](hash_kit()).drafter,
  lambda truth: GROWN['block'](hash_kit()).drafter,
], ids=['chain', 'tree', 'speculative', 'adaptive', 'two calls', 'eagle', 'block'])  # fmt: skip
@pytest.mark.wide('eagle', 'two calls')
def test_no_write_is_clamped(monkeypatch, make):
  """`dynamic_update_slice` would silently move a late write onto committed entries. So all caches,
  the drafter's own included, have slots to the end of the longest row, when other rows are long
  done."""
  from fastdec.cache.kv import LayerKV

  room, write = [], LayerKV.write

  def watched(self, k, v, start):
    slots = self.slots - k.shape[2]
    jax.debug.callback(lambda start: room.append(slots - int(start.max())), start)
    return write(self, k, v, start)

  monkeypatch.setattr(LayerKV, 'write', watched)
  prompts, lengths = some_prompts(6)
  drafter = make(truths(MODEL, prompts, lengths, MAX_LEN))
  state = jax.jit(
    lambda: decoded(TARGET, drafter, Exact(), as_prompt(prompts, lengths), MAX_LEN, None)
  )()
  assert min(state.length.tolist()) < MAX_LEN == max(state.length.tolist())
  jax.effects_barrier()
  assert len(room) >= 3 and min(room) >= 0


def test_rows_have_limits_of_their_own():
  prompts, lengths = some_prompts(6)
  truth, limits = (
    truths(MODEL, prompts, lengths, MAX_LEN),
    np.array([1, 3, 4, 7, MAX_LEN], np.int32),
  )
  expected = np.where(np.arange(MAX_LEN) < limits[:, None], truth, 0)
  prompt = dataclasses.replace(as_prompt(prompts, lengths), limit=jnp.asarray(limits))
  state = run(DRAFTERS['trees as data'](truth, 6), prompt)
  np.testing.assert_array_equal(state.tokens, expected)
  np.testing.assert_array_equal(state.length, 1 + state.block_sizes.sum(1))


def test_no_key_is_used_twice():
  """A row's key is folded with its length (0 before the first token), and split into the drafter's
  key and the rule's key."""

  def bits(keys):
    return (jax.vmap(jax.random.bits)(keys) >> 12).astype(jnp.int32)  # as token ids

  @struct.pytree
  class KeyAsDraft(NoDraft):
    """Its draft is its key."""

    nodes = 2

    def propose(self, target, state, root, keys):
      return Draft(jnp.stack([root, bits(keys)], axis=1), Topology.chain(2)), state

  @struct.pytree
  class KeyAsBonus(Exact):
    """Accepts all acceptable nodes, and its bonus is its key."""

    def __call__(self, keys, draft, logits, acceptable):
      return Accepted(acceptable.sum(1, dtype=jnp.int32) - 1, bits(keys))

  prompt = as_prompt(*some_prompts(0))
  target = Bound(HashLM(vocab_size=2**20, eos_ids=(), suppressed_ids=()), {})
  row_keys = jax.random.split(jax.random.key(4), ROWS)
  state = jax.jit(lambda: decoded(target, KeyAsDraft(), KeyAsBonus(), prompt, MAX_LEN, row_keys))()
  fold = jax.vmap(jax.random.fold_in, (0, None))
  expected = [bits(fold(row_keys, 0))]
  for length in range(1, MAX_LEN, 2):
    pairs = jax.vmap(jax.random.split)(fold(row_keys, length))
    expected += [bits(pairs[:, 0]), bits(pairs[:, 1])]
  np.testing.assert_array_equal(state.tokens, jnp.stack(expected, axis=1))
  assert len(np.unique(state.tokens)) == ROWS * MAX_LEN
