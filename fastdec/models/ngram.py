"""Unigram and bigram models by counting, the cheapest drafts.

Source: Leviathan et al. 2022, section 4.2 and table 3. The probability of the word after w backs
off to the unigram probability (Witten and Bell 1991), the more so the more different words (types)
have followed w:

    P(x | w) = (count(w x) + types(w) P(x)) / (count(w) + types(w))

The parameters list each word's most frequent successors: [v, m] ids and [v, m] shares. For 8,000
words and m = 64 they take 4 MB; a whole matrix would take 256 MB. The share of unlisted successors
is spread by unigram probabilities, so the probabilities after a word still sum to 1.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from fastdec.cache.kv import KVCache
from fastdec.errors import UserError
from fastdec.models.api import Capacity, Nodes, Params


@dataclasses.dataclass(frozen=True)
class NGram:
  """The model (protocol: `models/api.py`): decoder-only; `count` makes its parameters.

  Its cache holds only lengths.

  Attributes:
    successors: m, the number of words listed after each word; 0 for a unigram model.
  """

  vocab_size: int
  successors: int = 0
  eos_ids: tuple[int, ...] = (1,)
  pad_id: int = 0
  suppressed_ids: tuple[int, ...] = ()

  d_model = 1
  start_id = None
  max_positions = None
  fixed_length = None

  def __post_init__(self) -> None:
    if not 0 <= self.successors <= self.vocab_size:
      allowed = f'0, for a unigram model, to vocab_size={self.vocab_size}'
      raise UserError(f'successors={self.successors} is not possible: give {allowed}')

  def count(self, sentences: Sequence[Integer[np.ndarray, ' _']], first: int) -> Params:
    """Returns the parameters: shares of words, of successors, and of unlisted successors.

    Args:
      sentences: ids, end tokens included.
      first: the word that precedes each sentence; it is not counted itself.

    Raises:
      UserError: ids are outside the vocabulary, or there are no words at all.
    """
    sentences = [sentence for sentence in sentences if len(sentence)]
    words = np.concatenate([np.zeros(0, np.int32), *sentences])
    ids = np.append(words, first)
    if not words.size or ids.min() < 0 or ids.max() >= self.vocab_size:
      counted = '0 words'
      if words.size:
        counted = f'ids from {words.min()} to {words.max()}, {first} first'
      raise UserError(
        f'there are {counted} to count: give at least one word, and ids from 0 to'
        f' {self.vocab_size - 1}'
      )

    # Add one to each count, so that no word is impossible.
    unigram = np.bincount(words, minlength=self.vocab_size) + 1.0
    unigram[list(self.suppressed_ids)] = 0
    params = {'unigram': jnp.asarray(unigram / unigram.sum(), jnp.float32)}
    if self.successors:
      before = np.concatenate([[first, *sentence[:-1]] for sentence in sentences]).astype(np.int64)
      params |= jax.tree.map(jnp.asarray, self._count_successors(before, words))
    return params

  def _count_successors(
    self, before: Int[np.ndarray, ' n'], words: Integer[np.ndarray, ' n']
  ) -> dict[str, np.ndarray]:
    """Returns the lists of successors, by the frequency of bigrams."""
    v, m = self.vocab_size, self.successors
    pairs, counts = np.unique(before * v + words, return_counts=True)

    # Order by the word before, then by count, and take the first m of each word.
    order = np.lexsort((pairs, -counts, pairs // v))
    first, second = np.divmod(pairs[order], v)
    types = np.bincount(first, minlength=v)
    rank = np.arange(len(first)) - np.repeat(np.cumsum(types) - types, types)
    total = np.bincount(before, minlength=v) + types
    ids, shares = np.zeros((v, m), np.int32), np.zeros((v, m), np.float32)
    listed = rank < m
    ids[first[listed], rank[listed]] = second[listed]
    shares[first[listed], rank[listed]] = (counts[order] / total[first])[listed]
    rest = (1 - shares.sum(1, dtype=np.float64)).astype(np.float32)
    return {'ids': ids, 'shares': shares, 'rest': rest}

  def encode(self, params: Params, inputs: Any) -> None:
    """Returns None: it does not read a source, even as a draft for an encoder-decoder."""

  def init_cache(self, params: Params, memory: Any, rows: int, slots: int | Capacity) -> KVCache:
    """Returns a cache that holds only lengths."""
    return KVCache((), jnp.zeros(rows, jnp.int32))

  def apply(
    self, params: Params, tokens: Int[Array, 'b n'], nodes: Nodes, cache: KVCache
  ) -> tuple[Float[Array, 'b n 1'], tuple[()], KVCache]:
    """Returns the words themselves, as numbers, instead of hidden states."""
    return tokens[..., None].astype(jnp.float32), (), cache

  def unembed(self, params: Params, hidden: Float[Array, '*b 1']) -> Float[Array, '*b v']:
    """Returns log-probabilities."""
    words = hidden[..., 0].astype(jnp.int32).reshape(-1)
    unigram = params['unigram']
    if self.successors:
      probabilities = params['rest'][words, None] * unigram[None]
      rows, ids = jnp.arange(len(words))[:, None], params['ids'][words]
      probabilities = probabilities.at[rows, ids].add(params['shares'][words])
    else:
      probabilities = jnp.broadcast_to(unigram, (len(words), self.vocab_size))
    return jnp.log(probabilities).reshape(*hidden.shape[:-1], self.vocab_size)
