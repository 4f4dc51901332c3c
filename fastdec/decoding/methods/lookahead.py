"""Lookahead decoding (Fu et al. 2024): the model guesses without a draft model or training.

Each call scores two things below the root besides the root itself.

  window    N - 1 rows of W columns: the model's predictions of the next tokens in its last N - 1
            calls. Each call reads all rows and predicts a new last row. A column of the window and
            the prediction below it are an n-gram.
  guesses   up to G of the n-grams so far whose key is the root: chains below the root, merged into
            a trie. Only these may be accepted.

The parent of window node (r, j) is (r - 1, j), and the parent of (0, j) is (0, j - 1); (0, 0) is
the root. For W = 3 and N = 4:

    (0,0) root - (0,1) - (0,2)       row 0 is the oldest: positions p, p + 1, p + 2
        |          |       |
      (1,0)      (1,1)   (1,2)       positions p + 1, p + 2, p + 3
        |          |       |
      (2,0)      (2,1)   (2,2)       the last row: predictions here go into the next window

After the call each row replaces the row above it, and its columns then begin at the new root: the
window moves by one token per call, no matter how many were accepted.

There are some differences from the authors' code. They do not change the output:
* Guesses are verified from the first call, not only after N - 2 calls that fill the window.
* After a full match the bonus is emitted too, so a call emits up to N tokens.
* n-grams of the prompt, the source and the output are learnt too.
* The window begins with the prompt's words in their order, not with random words.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fastdec import struct
from fastdec.decoding.methods.lookup import source_text
from fastdec.decoding.methods.ngrams import NONE, Log, Merged, cut_ngrams, extend_values, merge
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Prompt, Step
from fastdec.decoding.sampling import Sampling, argmax, best, check_sampling
from fastdec.decoding.settings import Whole, size
from fastdec.decoding.strategy import LoopStrategy, Sizes
from fastdec.decoding.text import Text
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.heads.ngram_pool import NGramPool, check_is_pool
from fastdec.models.api import Model, suppress
from fastdec.struct import Bound

# window, n-gram and guesses worth trying
AUTHORS = (15, 5, 15)  # calls of 120 tokens, for a GPU
AHEAD = ((5, 4, 4), (2, 3, 2))  # calls of 27 and of 8 tokens


@struct.pytree
class Lookahead(LoopStrategy):
  """Decoding with n-grams of the model's own earlier guesses, and of the text so far.

  It needs no training and no draft model, and is lossless: the output is that of greedy decoding
  or, with `sampling`, has the distribution of `Sample`. A call scores (window + guesses) *
  (ngram - 1) tokens, and emits up to `ngram`.

  Args:
    window: how many tokens ahead the model guesses at once, at least 1.
    ngram: tokens of an n-gram, its key included, at least 3.
    guesses: the most n-grams that a call verifies, at least 1.
    sampling: how tokens are drawn, for which `decode` needs a key; None: greedy decoding.
    pool: n-grams of other texts (`build_pool`), for guesses that this text's n-grams leave free.
  """

  window: Whole = struct.static(default=15)
  ngram: Whole = struct.static(default=5)
  guesses: Whole = struct.static(default=15)
  sampling: Sampling | None = None
  pool: NGramPool | None = None

  def __post_init__(self) -> None:
    window = size('window', self.window, 1, 'how many tokens ahead to guess, 1 or more')
    ngram = size(
      'ngram', self.ngram, 3, '3 or more, or decode by Jacobi(k), whose window is one row'
    )
    guesses = size('guesses', self.guesses, 1, 'how many n-grams to verify a call, 1 or more')
    size('(window + guesses) * (ngram - 1)', (window + guesses) * (ngram - 1), 1, 'fewer')
    sampling = check_sampling(self.sampling)
    struct.assign(self, window=window, ngram=ngram, guesses=guesses, sampling=sampling)
    if self.pool is not None:
      check_is_pool(self.pool)
    if self.pool is not None and self.pool.ngram != ngram:
      raise UserError(
        f'this pool has n-grams of {self.pool.ngram} tokens: give'
        f' ngram={self.pool.ngram}, not {ngram}'
      )

  def sizes(self, drafted: Sizes = None, nodes: Sizes = None) -> Sequence[Any]:
    sizes = AHEAD if jax.default_backend() == 'cpu' else (AUTHORS, *AHEAD)
    return [dataclasses.replace(self, window=w, ngram=n, guesses=g) for w, n, g in sizes]

  def check(self, model: Model, prompt: Prompt, max_len: int) -> None:
    if self.pool is not None:
      self.pool.check(model.vocab_size)
    reach, limit = self.window + self.ngram - 2, model.max_positions
    if limit is not None and reach > limit:
      raise UserError(
        f'window={self.window} and ngram={self.ngram} look {reach} tokens ahead, and the model has'
        f' {limit} positions: give a narrower window'
      )

  def with_pool(self, pool: NGramPool) -> 'Lookahead':
    """Returns this strategy with n-grams of other texts, and with `ngram` as their length."""
    return dataclasses.replace(self, pool=pool, ngram=pool.ngram)

  @property
  def drafter(self) -> Drafter:
    return LookaheadDrafter(self.window, self.ngram, self.guesses, pool=self.pool)

  @property
  def most_accepted(self) -> int:
    return self.ngram - 1


@struct.pytree
class Ahead:
  """The drafter's memory of each row."""

  window: Int[Array, 'b r w']  # the first entry is replaced by the root
  log: Log
  # the last n - 1 tokens of the text, the root included; NONE before its beginning
  recent: Int[Array, 'b _']


@struct.pytree
class LookaheadDrafter:
  """Drafter of the window, node (r, j) having number r * window + j, and then chains of guesses."""

  window: int = struct.static()
  ngram: int = struct.static()
  guesses: int = struct.static()
  # true: n-grams of source and prompt are learnt
  reads_prompt: bool = struct.static(default=True)
  reads_text: bool = struct.static(default=True)  # true: n-grams of the output are learnt
  pool: NGramPool | None = None

  @property
  def rows(self) -> int:
    """Number of the window's rows, and of a guess's tokens."""
    return self.ngram - 1

  @property
  def nodes(self) -> int:
    return (self.window + self.guesses) * self.rows

  def init(self, target: Bound, prefill: Prefill) -> Ahead:
    prompt, root, n = prefill.prompt, prefill.root, self.ngram
    b = len(root)
    text = Text(jnp.pad(prompt.tokens, ((0, 0), (0, 1))), prompt.length)
    text = text.append(root[:, None], jnp.ones_like(root))
    grams = jnp.zeros((b, n, 0), jnp.int32)
    if self.reads_prompt:
      source, source_length = source_text(target.module, prompt)
      of_source = cut_ngrams(source, source_length, n)
      grams = jnp.concatenate([of_source, cut_ngrams(text.tokens, text.length, n)], axis=2)

    # The last n - 1 tokens of the text, for n-grams that begin in it.
    slots = prefill.max_len * (self.window + 1) + self.window + n
    last = text.length[:, None] + jnp.arange(1 - n, 0, dtype=jnp.int32)[None]
    tokens = jnp.take_along_axis(text.tokens, jnp.maximum(last, 0), axis=1)
    recent = jnp.where(last >= 0, tokens, NONE)

    # The first guesses are arbitrary: each node of the window has the word of its position.
    words = guess_words(target, prefill, self.window + self.rows - 1)
    place = np.arange(self.rows)[:, None] + np.arange(self.window)[None]
    return Ahead(words[:, place], Log.of(grams, slots), recent)

  def propose(
    self, target: Bound, state: Ahead, root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, Ahead]:
    chains, known = state.log.newest(root, self.guesses)
    if self.pool is not None:
      others, others_known = self.pool.best(root, self.guesses)
      chains, known = extend_values((chains, others), (known, others_known))
    b, ahead = root.shape[0], self.window * self.rows
    window = state.window.reshape(b, ahead).at[:, 0].set(root)
    chains = jnp.where(known[:, :, None], chains, root[:, None, None])
    tokens = jnp.concatenate([window, chains.reshape(b, -1)], axis=1)
    return Draft(tokens, self.tree_of(merge(chains, known))), state

  def tree_of(self, guesses: Merged) -> Topology:
    """Returns the window's tree and, below the same root, the trie of the guesses."""
    ahead, b = self.window * self.rows, guesses.parents.shape[0]
    n_guesses = self.nodes - ahead

    # The window's own tree, of which only the root is acceptable.
    number = np.arange(ahead, dtype=np.int32)
    parents = np.where(number < self.window, number - 1, number - self.window)
    window = Topology.from_parents(parents, ranks=number, acceptable=number == 0)

    def join(of_window: Any, of_guesses: Any) -> Array:
      shape = of_window.shape[1:]  # of one node's entry
      of_window = jnp.broadcast_to(of_window, (b, ahead, *shape))
      of_guesses = jnp.broadcast_to(of_guesses, (b, n_guesses, *shape))
      return jnp.concatenate([of_window, of_guesses], axis=1)

    # A guess sees the root and guesses, and its parent is one of them.
    parents = jnp.where(guesses.parents < 0, 0, guesses.parents + ahead)
    depths = np.tile(np.arange(1, self.ngram, dtype=np.int32), self.guesses)
    window_mask = np.pad(window.mask, ((0, 0), (0, n_guesses)))
    sees_root = jnp.broadcast_to(np.arange(ahead) == 0, (b, n_guesses, ahead))
    guesses_mask = jnp.concatenate([sees_root, guesses.sees], axis=2)
    return Topology(
      parents=join(window.parents, parents.reshape(b, -1)),
      ranks=join(window.ranks, np.arange(ahead, self.nodes, dtype=np.int32)),
      depths=join(window.depths, depths),
      mask=join(window_mask, guesses_mask),
      acceptable=join(window.acceptable, guesses.is_kept.reshape(b, -1)),
      max_depth=self.rows,  # of nodes that may be accepted
    )

  def observe(self, target: Bound, state: Ahead, step: Step) -> Ahead:
    b, w, n = step.root.shape[0], self.window, self.ngram
    ahead = w * self.rows

    # The columns of the window with the predictions below them are new n-grams.
    predicted = argmax(step.logits[:, ahead - w : ahead])
    window = step.draft.tokens[:, :ahead].reshape(b, self.rows, w)
    grams = jnp.concatenate([window, predicted[:, None]], axis=1)
    learnt, count = grams, jnp.full(b, w, jnp.int32)

    # So are those that the new tokens end.
    text = jnp.concatenate([state.recent, step.block(n)], axis=1)
    place = step.count[:, None] + jnp.arange(n - 1, dtype=jnp.int32)[None]
    recent = jnp.take_along_axis(text, place, axis=1)
    if self.reads_text:
      of_text = cut_ngrams(text, step.count + n - 1, n)
      learnt, count = jnp.concatenate([grams, of_text], axis=2), count + step.count
    return Ahead(grams[:, 1:], state.log.append(learnt, count), recent)


def guess_words(target: Bound, prefill: Prefill, length: int) -> Int[Array, 'b l']:
  """Returns words for the first guesses, repeated until there are enough.

  A decoder-only model gets those of its prompt. A model with an encoder gets those of its source if
  they share a vocabulary, else its most likely first words.
  """
  model, params = target
  words, count_b = source_text(model, prefill.prompt)
  if model.start_id is None:
    words, count_b = prefill.prompt.tokens, prefill.prompt.length
  elif not words.shape[1]:
    logits = suppress(model.unembed(params, prefill.last_hidden), model.suppressed_ids)
    words = best(logits, min(length, model.vocab_size))[1]
    count_b = jnp.full(len(words), words.shape[1], jnp.int32)
  place = jnp.arange(length, dtype=jnp.int32)[None] % jnp.maximum(count_b, 1)[:, None]
  return jnp.take_along_axis(words, place, axis=1)
