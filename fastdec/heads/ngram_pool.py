"""Counted n-grams of other texts: a table of the tokens that followed each token.

The table is made before decoding and used for many texts. REST (He et al. 2023) retrieves from a
corpus, token recycling (Luo et al. 2024) from earlier outputs.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from fastdec import struct
from fastdec.errors import UserError

MOST_WORDS = 2**24  # bound of the ids if there is no model; the table has an entry for each id


@struct.pytree
class NGramPool:
  """Table from each token, the key, to its most frequent continuations, the values.

  A value has ngram - 1 tokens; the most frequent values of a key come first. `build_pool` makes
  a pool, `save_pool` writes it, `load_pool` reads it; `Lookahead` and `PromptLookup` draft from it.
  """

  values: Int[Array, 'l c']  # sorted by key
  # the index of each key's first value, and the end of the last key's values
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
    """Returns the `count` most frequent values of each key, and a mask of those that exist."""
    index = self.starts[key][:, None] + jnp.arange(count, dtype=jnp.int32)[None]
    known = index < self.starts[key + 1][:, None]
    values = self.values[jnp.where(known, index, 0)]
    return values, known

  def check(self, vocab_size: int) -> None:
    """Raises UserError unless the pool fits a vocabulary of this size."""
    own = self.words if self.vocab_size is None else self.vocab_size
    if own > vocab_size or self.vocab_size not in (None, vocab_size):
      raise UserError(
        f'this pool has a vocabulary of {own} words, and the model has {vocab_size}: build it from'
        " texts in the model's own ids, by build_pool(texts, model)"
      )


def check_is_pool(pool: Any) -> None:
  """Raises UserError unless `pool` is an NGramPool."""
  if not isinstance(pool, NGramPool):
    raise UserError(
      f'pool={pool!r} is not a pool of n-grams: give what load_pool or build_pool returns'
    )


def build_pool(
  texts: Sequence[Any], model: Any = None, ngram: int = 5, guesses: int = 15
) -> NGramPool:
  """Counts the n-grams of texts, from a corpus or from earlier outputs.

  Args:
    texts: the ids of each text, which may have any length; an n-gram never spans two texts.
    model: its vocabulary bounds the ids; None: they are not checked.
    ngram: tokens of an n-gram, at least 2; it must be that of the `Lookahead` that uses the pool.
    guesses: number of values to keep for each key, the most frequent first, then the lowest ids.

  Raises:
    UserError: the model does not have these ids, a size is too small, or no text is as long as an
      n-gram.
  """
  for name, value, least in (('ngram', ngram, 2), ('guesses', guesses, 1)):
    if not isinstance(value, int | np.integer) or value < least:
      raise UserError(f'{name}={value!r} is not possible: give {least} or more')
  # The n-grams of all texts that are long enough.
  long = []
  for text in texts:
    row = np.asarray(text)
    if row.ndim == 1 and len(row) >= ngram:
      long.append(row)
  if not long or any(row.dtype.kind not in 'iu' for row in long):
    raise UserError(
      f'texts must be ids, and one must have {ngram} tokens or more: use the tokenizer'
    )
  grams = np.concatenate([np.lib.stride_tricks.sliding_window_view(row, ngram) for row in long])
  if model is None:
    words = min(int(grams.max()) + 1, MOST_WORDS)
  else:
    words = model.vocab_size
  if not 0 <= grams.min() <= grams.max() < words:
    span = f'{grams.min()} to {grams.max()}'
    raise UserError(
      f"texts have ids from {span} and must have 0 to {words - 1}: use the model's own tokenizer"
    )

  # Count, sort by key with the most frequent first, and keep the first values of each key.
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
