"""Counted n-grams of other texts: a table of the tokens that followed each token.

It outlives the decoded text. REST (He et al. 2023) retrieves from a corpus, token recycling (Luo et
al. 2024) from earlier outputs.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from fastdec import struct
from fastdec.errors import UserError

MOST_WORDS = 2**24  # ids of a pool without a model, whose table has an entry for each


@struct.pytree
class NGramPool:
  """Table from each token, the key, to its most frequent continuations, the values.

  Values are ngram - 1 tokens each, the most frequent first. `build_pool` makes a pool, `save_pool`
  writes it, `load_pool` reads it; `Lookahead` and `PromptLookup` draft from it.
  """

  values: Int[Array, 'l c']  # key after key
  # the index of each key's first value; one more entry for the end of the last key's
  starts: Int[Array, ' _']
  # size of the vocabulary of the model whose ids these are; None: unknown
  vocab_size: int | None = struct.static(default=None)

  @property
  def ngram(self) -> int:
    """Number of tokens of an n-gram, its key included."""
    return self.values.shape[1] + 1

  @property
  def words(self) -> int:
    """Number of keys, which are 0 to words - 1."""
    return self.starts.shape[0] - 1

  def best(
    self, key: Int[Array, ' b'], count: int
  ) -> tuple[Int[Array, 'b g c'], Bool[Array, 'b g']]:
    """Returns the `count` most frequent values of each key, and a mask of the known ones."""
    index = self.starts[key][:, None] + jnp.arange(count, dtype=jnp.int32)[None]
    known = index < self.starts[key + 1][:, None]
    return self.values[jnp.where(known, index, 0)], known

  def check(self, vocab_size: int) -> None:
    """Raises UserError if the pool is not of a vocabulary of this size."""
    own = self.words if self.vocab_size is None else self.vocab_size
    if own > vocab_size or self.vocab_size not in (None, vocab_size):
      raise UserError(
        f'this pool is of a vocabulary of {own} words, and the model has {vocab_size}: build it of'
        " texts in the model's own ids, by build_pool(texts, model)"
      )


def check_is_pool(pool: Any) -> None:
  """Raises UserError unless `pool` is an NGramPool."""
  if not isinstance(pool, NGramPool):
    raise UserError(
      f'pool={pool!r} is no pool of n-grams: give what load_pool or build_pool returns'
    )


def build_pool(
  texts: Sequence[Any], model: Any = None, ngram: int = 5, guesses: int = 15
) -> NGramPool:
  """Counts the n-grams of texts, from a corpus or from earlier outputs.

  Args:
    texts: ids of each, of any lengths; no n-gram goes over the end of a text.
    model: its vocabulary bounds the ids; None: they are not checked.
    ngram: tokens of an n-gram, at least 2; `Lookahead` needs its own number.
    guesses: values to keep of each key, the most frequent; of equally frequent ones the lowest ids.

  Raises:
    UserError: ids that the model does not have, sizes below the least, or no text as long as an
      n-gram.
  """
  for name, value, least in (('ngram', ngram, 2), ('guesses', guesses, 1)):
    if not isinstance(value, int | np.integer) or value < least:
      raise UserError(f'{name}={value!r} is not possible: give {least} or more')
  rows = [np.asarray(text) for text in texts]
  long = [row for row in rows if row.ndim == 1 and len(row) >= ngram]
  if not long or any(row.dtype.kind not in 'iu' for row in long):
    raise UserError(
      f'texts must be ids, of {ngram} tokens or more at least one of them: use the tokenizer'
    )
  grams = np.concatenate([np.lib.stride_tricks.sliding_window_view(row, ngram) for row in long])
  words = min(int(grams.max()) + 1, MOST_WORDS) if model is None else model.vocab_size
  if not 0 <= grams.min() <= grams.max() < words:
    span = f'{grams.min()} to {grams.max()}'
    raise UserError(
      f'texts have ids from {span}, and known are 0 to {words - 1}: use the tokenizer of the model'
    )

  # Count, order by key with the most frequent first, and keep the first values of each key.
  different, counts = np.unique(grams, axis=0, return_counts=True)
  different = different[np.lexsort((np.arange(len(counts)), -counts, different[:, 0]))]
  first = np.searchsorted(different[:, 0], np.arange(words))
  kept = different[np.arange(len(different)) - first[different[:, 0]] < guesses]
  starts = np.searchsorted(kept[:, 0], np.arange(words + 1))
  return NGramPool(
    jnp.asarray(kept[:, 1:], jnp.int32),
    jnp.asarray(starts, jnp.int32),
    None if model is None else words,
  )
