"""A model and heads small enough to train in a blink, and endless packed batches."""

import dataclasses

import grain
import jax
import jax.numpy as jnp
import numpy as np

VOCAB, WIDTH, HEADS = 11, 6, 3


@dataclasses.dataclass(frozen=True)
class Bigram:
  """The hidden state is an embedding of the token before, dropped out; logits are a product with a
  second matrix."""

  vocab_size = VOCAB

  def init(self, key):
    one, two = jax.random.split(key)
    normal = lambda key: jax.random.normal(key, (VOCAB, WIDTH)) * 0.3
    return {'inputs': {'embedding': normal(one)}, 'outputs': normal(two)}

  def hidden(self, params, batch, dropout_key=None):
    before = jnp.where(batch['target_position'] == 0, 0, jnp.roll(batch['target'], 1, axis=1))
    hidden = params['inputs']['embedding'][before]
    if dropout_key is None:
      return hidden
    return jnp.where(jax.random.bernoulli(dropout_key, 0.8, hidden.shape), hidden / 0.8, 0)

  def unembed(self, params, hidden):
    return hidden @ params['outputs'].T


@dataclasses.dataclass(frozen=True)
class Matrices:
  """Head j multiplies the hidden state with matrix j; no dropout."""

  offsets: tuple[int, ...] = tuple(range(1, HEADS + 1))
  rooted: bool = False
  markov: int = 0

  def init(self, key):
    return {'w': jax.random.normal(key, (len(self.offsets), WIDTH, WIDTH))}

  def one(self, params, hidden, index, dropout_key=None):
    return hidden @ params['w'][index]

  def logits_at(self, params, hidden, offset, project, dropout_key=None, root=None, before=None):
    index = offset - self.offsets[0]
    return project(jnp.where(index < 0, hidden, self.one(params, hidden, jnp.maximum(index, 0))))


def packed(seed, rows=3, length=12):
  """A batch of packed rows: sentences of 1 to 5 tokens, each counting up from its first token."""
  rng = np.random.default_rng(seed)
  names = ('target', 'target_segment', 'target_position')
  batch = {name: np.zeros((rows, length), np.int32) for name in names}
  for row in range(rows):
    start, segment = 0, 1
    while (size := rng.integers(1, 6)) <= length - start:
      words = slice(start, start + size)
      batch['target'][row, words] = (rng.integers(1, VOCAB) + np.arange(size)) % (VOCAB - 1) + 1
      batch['target_segment'][row, words] = segment
      batch['target_position'][row, words] = np.arange(size)
      start, segment = start + size, segment + 1
  return batch


def pairs(seed, rows=3, length=12):
  """A batch with sources, for a Transformer; a target segment may be without its source."""
  source = {
    name.replace('target', 'source'): value
    for name, value in packed(seed + 1000, rows, length).items()
  }
  return source | packed(seed, rows, length)


def on_device(seed, rows=3):
  return {name: jnp.asarray(value) for name, value in packed(seed, rows).items()}


def batches(rows=3):
  """An endless, shuffled data set of 40 batches."""
  return grain.MapDataset.range(40).seed(0).shuffle().map(lambda seed: packed(seed, rows)).repeat()
