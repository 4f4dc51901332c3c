"""A model and drafters without weights: exact in integers, quick to compile, and different at every
prefix."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastdec import struct
from fastdec.cache.kv import KVCache
from fastdec.decoding.protocol import Draft
from fastdec.decoding.topology import Topology
from fastdec.models.attention import node_mask

PRIME, EOS = 1009, 1


@dataclasses.dataclass(frozen=True)
class HashLM:
  """Decoder-only: the logits are a hash of the prefix, which the cache must remember exactly (ids 0
  pad, 1 end)."""

  vocab_size: int = 14
  eos_ids: tuple[int, ...] = (EOS,)
  pad_id: int = 0
  start_id: int | None = None
  suppressed_ids: tuple[int, ...] = (0,)
  max_positions: int | None = None
  fixed_length: int | None = None
  d_model = 1
  reads_paths = True

  def encode(self, params, inputs):
    return None

  def init_cache(self, params, memory, rows, slots):
    return KVCache.empty(layers=1, rows=rows, heads=1, slots=slots, width=1, dtype=jnp.float32)

  def apply(self, params, tokens, nodes, cache):
    positions = cache.length[:, None] + jnp.atleast_2d(nodes.depths)
    value = ((tokens + 7) * (positions * 31 + 5) * 13 % PRIME).astype(jnp.float32)[:, None, :, None]
    layer = cache.layers[0].write(value, value, cache.length)
    sees = node_mask(nodes, cache.length, cache.slots)
    hidden = jnp.where(sees, layer.v[:, 0, None, :, 0], 0).sum(-1, keepdims=True)
    return hidden, (), KVCache((layer,), cache.length)

  def unembed(self, params, hidden):
    v = jnp.arange(self.vocab_size, dtype=jnp.int32).reshape((1,) * (hidden.ndim - 1) + (-1,))
    code = hidden.astype(jnp.int32) % PRIME
    return ((code * (v * v + 3) + v * 17) % 101).astype(jnp.float32) / 8  # few values: ties happen


@dataclasses.dataclass(frozen=True)
class Imitation(HashLM):
  """Predicts what `HashLM` does, but after one prefix in params['lies'] it predicts something
  else."""

  def unembed(self, params, hidden):
    lie = hidden.astype(jnp.int32) % params['lies'] == params['lies'] - 1
    return super().unembed(params, jnp.where(lie, hidden + 1, hidden))


NEVER = 10**6  # as params['lies']: larger than any hidden state


def hash_of(tokens: list[int]) -> int:
  """The hidden state of `HashLM` after a prefix, in plain Python."""
  return sum((token + 7) * (i * 31 + 5) * 13 % PRIME for i, token in enumerate(tokens)) % PRIME


def logits_by_hand(tokens: list[int], vocab_size: int) -> np.ndarray:
  """The logits of `HashLM` after a prefix, in plain Python; no token is suppressed."""
  code = hash_of(tokens)
  return np.array([(code * (v * v + 3) + v * 17) % 101 / 8 for v in range(vocab_size)])


def oracle(
  model: HashLM, prompt: list[int], max_len: int, ends: tuple[int, ...] = (EOS,)
) -> list[int]:
  """Greedy decoding by its definition, in plain Python, one prefix at a time."""
  emitted = []
  while len(emitted) < max_len and (not emitted or emitted[-1] not in ends):
    logits = logits_by_hand([*prompt, *emitted], model.vocab_size)
    emitted.append(1 + int(np.argmax(logits[1:])))  # id 0 is suppressed
  return emitted


@dataclasses.dataclass(frozen=True)
class Silent(HashLM):
  """Writes an end, whatever it reads."""

  def unembed(self, params, hidden):
    return 50 * jax.nn.one_hot(jnp.full(hidden.shape[:-1], EOS), self.vocab_size)


@struct.pytree
class Scripted:
  """Drafts trees whose parents are random data of each row. Some nodes are scored but never
  acceptable.

  It knows the right continuation: a node on the right path is right with probability `skill`. Its
  state is the number of tokens that each row has emitted.
  """

  truth: Any  # int32[b, t]
  seed: Any
  skill: Any = 0.7
  nodes: int = struct.static(default=6)
  window: int = struct.static(default=0)  # number of last nodes that are never acceptable
  chain: bool = struct.static(default=False)
  reach: int = struct.static(default=99)  # a parent is at most this many nodes before its child

  def init(self, target, prefill):
    return jnp.ones(prefill.root.shape, jnp.int32)

  def propose(self, target, state, root, keys):
    b, n = root.shape[0], self.nodes
    each = jax.vmap(
      lambda row, length: jax.random.fold_in(
        jax.random.fold_in(jax.random.key(self.seed), row), length
      )
    )
    keys = jax.vmap(lambda key: jax.random.split(key, 3))(each(self.rows(b), state))
    below = jnp.maximum(jnp.arange(n), 1)
    least = jnp.maximum(below - self.reach, 0)
    parents = jax.vmap(lambda key: jax.random.randint(key, (n,), least, below))(keys[:, 0])
    parents = parents.at[:, 0].set(-1)
    acceptable = jnp.broadcast_to(jnp.arange(n) < n - self.window, (b, n))
    topology = (
      Topology.chain(n) if self.chain else Topology.from_parents(parents, acceptable=acceptable)
    )
    depths = jnp.broadcast_to(topology.depths, (b, n))
    places = (state[:, None] - 1 + depths).clip(0, self.truth.shape[1] - 1)
    right = jnp.take_along_axis(self.truth, places, axis=1)
    wrong = jax.vmap(lambda key: jax.random.randint(key, (n,), 1, target.module.vocab_size))(
      keys[:, 1]
    )
    honest = jax.vmap(lambda key: jax.random.bernoulli(key, self.skill, (n,)))(keys[:, 2])
    tokens = jnp.where(honest, right, wrong).at[:, 0].set(root).astype(jnp.int32)
    return Draft(tokens, topology), state

  def rows(self, b):
    # a row's own number, in whatever batch it is
    return self.truth[:, 0] * 1000 + self.truth[:, 1]

  def observe(self, target, state, step):
    return state + step.count


@dataclasses.dataclass(frozen=True)
class HashHeads:
  """Heads for `HashLM`: each is a hash of the hidden state, and right by luck, as trees of many
  ranks often are."""

  depth: int = 9
  d_model: int = 1
  rooted: bool = False
  markov: int = 0

  def drafting(self, params, depth):
    return HashHeads(depth), params

  def logits(self, params, hidden, project, root=None):
    return jnp.stack([project(hidden * (7 * i + 3) + i) for i in range(self.depth)], axis=1)


def truths(model: HashLM, prompts: np.ndarray, lengths: np.ndarray, max_len: int) -> np.ndarray:
  """The oracle's outputs, padded: int32[b, max_len]."""
  rows = [
    oracle(model, prompt[:length].tolist(), max_len)
    for prompt, length in zip(prompts, lengths, strict=True)
  ]
  return np.array([row + [model.pad_id] * (max_len - len(row)) for row in rows], np.int32)


@struct.pytree
class RecordedState:
  """A drafter's state, and its last draft."""

  state: Any
  drafted: Any  # int32[b, n]


@struct.pytree
class Recorded:
  """A drafter whose state shows its last draft."""

  drafter: Any

  @property
  def nodes(self):
    return self.drafter.nodes

  def init(self, target, prefill):
    state = self.drafter.init(target, prefill)
    return RecordedState(state, jnp.zeros((*prefill.root.shape, self.nodes), jnp.int32))

  def propose(self, target, state, root, keys):
    draft, after = self.drafter.propose(target, state.state, root, keys)
    return draft, RecordedState(after, draft.tokens)

  def observe(self, target, state, step):
    return RecordedState(self.drafter.observe(target, state.state, step), state.drafted)
