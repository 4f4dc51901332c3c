"""Prompt lookup: drafts copied from the text by an n-gram match, without a model or training.

The draft is a chain that copies the text after the latest earlier occurrence of the longest
matching suffix: n-grams of `ngram` tokens first, then shorter ones, down to one token. A copy that
runs past the end of the text continues with itself, as in LZ77: in "a b a b", "a b" was followed by
"a b a b a b ...". Without a match, no node is acceptable.

    text            the cat sat . the cat          ngram 3, k 4
    "the cat"       was followed by                 sat . the

The text is the prompt and the output. In an encoder-decoder model the source is put before them if
both have the same vocabulary; an image does not, nor does a source with its own ids. This is
speculative decoding's n-gram draft (Leviathan et al. 2022, section 4.1), in the form known as
prompt lookup (Saxena 2023). That a copy continues with itself is ours.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fastdec import struct
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Prompt, Step
from fastdec.decoding.sampling import Sampling, check_sampling
from fastdec.decoding.settings import Whole, size
from fastdec.decoding.strategy import LoopStrategy, Sizes
from fastdec.decoding.text import Text
from fastdec.decoding.topology import Topology
from fastdec.heads.ngram_pool import NGramPool, check_is_pool
from fastdec.models.api import Model, has_own_source_ids
from fastdec.struct import Bound

COPIED = (9, 2, 4)  # numbers of copied tokens worth trying
LONGEST = 64  # tokens of an n-gram, each of which is a step of the program


@struct.pytree
class Searched:
  """The text to search in: the source in slots 0 to begin - 1, then the prompt and the output."""

  text: Text  # its length counts the slots of the source; the last token is the root
  source_length: Int[Array, '*b']  # tokens of the source, at most `begin`
  begin: int = struct.static()  # slot of the prompt's first token

  @classmethod
  def start(cls, target: Bound, prefill: Prefill, room: int) -> 'Searched':
    """Returns the text after the prompt, root included, with `room` slots more than it needs."""
    source, source_length = source_text(target.module, prefill.prompt)
    prompt, begin = prefill.prompt, source.shape[1]
    tokens = jnp.pad(prompt.tokens, ((0, 0), (0, prefill.max_len + room)))
    text = Text(jnp.concatenate([source, tokens], axis=1), begin + prompt.length)
    text = text.append(prefill.root[:, None], jnp.ones_like(prompt.length))
    return cls(text, source_length, begin)

  def append(self, step: Step) -> 'Searched':
    """Returns the text with the tokens of this call."""
    text = self.text.append(step.block(step.path.shape[1]), step.count)
    return dataclasses.replace(self, text=text)


@struct.pytree
class LookupDrafter:
  """Drafter by lookup. Its state is the text to search in."""

  ngram: int = struct.static()  # the longest suffix looked for
  nodes: int = struct.static()  # a chain
  pool: NGramPool | None = None

  def init(self, target: Bound, prefill: Prefill) -> Searched:
    return Searched.start(target, prefill, self.nodes)

  def propose(
    self, target: Bound, state: Searched, root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, Searched]:
    copied, is_known, matched_b = jax.vmap(
      functools.partial(_continuation, ngram=self.ngram, count=self.nodes - 1)
    )(state)
    if self.pool is not None:
      copied, is_known = _or_from_pool(self.pool, root, copied, is_known)
    tokens = jnp.concatenate([root[:, None], copied], axis=1)
    acceptable = jnp.pad(is_known, ((0, 0), (1, 0)), constant_values=True)
    chain = dataclasses.replace(Topology.chain(self.nodes), acceptable=acceptable)

    # Laplace's rule of succession, as if each token that matches were a right guess
    matched_b = matched_b.astype(jnp.float32)
    share_b, place_n = (matched_b + 1) / (matched_b + 2), jnp.arange(self.nodes, dtype=jnp.float32)
    return Draft(tokens, chain, chances=share_b[:, None] ** place_n[None]), state

  def observe(self, target: Bound, state: Searched, step: Step) -> Searched:
    return state.append(step)


def _or_from_pool(
  pool: NGramPool, root: Int[Array, ' b'], copied: Int[Array, 'b k'], is_known: Bool[Array, 'b k']
) -> tuple[Int[Array, 'b k'], Bool[Array, 'b k']]:
  """Replaces drafts of rows without a match by what most often followed the root in the pool."""
  best, known = pool.best(root, 1)
  k = copied.shape[1]
  value = jnp.pad(best[:, 0], ((0, 0), (0, max(k - best.shape[2], 0))))[:, :k]
  in_value = known & (jnp.arange(k, dtype=jnp.int32)[None] < best.shape[2])
  is_lost = ~is_known.any(axis=1, keepdims=True)
  return jnp.where(is_lost & in_value, value, copied), jnp.where(is_lost, in_value, is_known)


def source_text(model: Model, prompt: Prompt) -> tuple[Int[Array, 'b s'], Int[Array, ' b']]:
  """Returns the source and its lengths. It is empty unless it is text in the model's vocabulary."""
  if prompt.inputs is None or prompt.inputs.ndim != 2 or has_own_source_ids(model):
    return prompt.tokens[:, :0], jnp.zeros_like(prompt.length)
  return prompt.inputs.astype(prompt.tokens.dtype), prompt.source_length(model)


def _continuation(
  searched: Searched, ngram: int, count: int
) -> tuple[Int[Array, ' k'], Bool[Array, ' k'], Int[Array, '']]:
  """Returns `count` tokens after the best match in one row's text, a mask of known ones, and how
  many tokens match."""
  tokens, root = searched.text.tokens, searched.text.length - 1
  # The latest of the longest matches
  matched = match_suffix(searched, ngram)
  place = tokens.shape[0] - 1 - jnp.argmax(matched[::-1]).astype(jnp.int32)
  in_source = place < searched.begin
  index = jnp.arange(1, count + 1, dtype=jnp.int32)
  index = place + jnp.where(in_source, index, 1 + (index - 1) % jnp.maximum(root - place, 1))
  is_known = (matched[place] > 0) & (~in_source | (index < searched.source_length))
  copied = jnp.where(is_known, tokens.at[index].get(mode='clip'), tokens[root])
  return copied, is_known, matched[place]


def match_suffix(searched: Searched, longest: int) -> Int[Array, ' t']:
  """Returns how many tokens that end in each slot of one row also end its text, up to `longest`.

  A slot with no token after it has 0. A match is in the source or in the rest of the text, and
  never crosses from one to the other.
  """
  tokens, root, begin = searched.text.tokens, searched.text.length - 1, searched.begin
  index = jnp.arange(tokens.shape[0], dtype=jnp.int32)
  is_source = index < begin
  first = jnp.where(is_source, 0, begin)
  agrees = index + 1 < jnp.where(is_source, searched.source_length, root + 1)
  matched = jnp.zeros(tokens.shape, jnp.int32)
  for back in range(longest):
    here = (
      (jnp.roll(tokens, back) == tokens[root - back])
      & (index - back >= first)
      & (root - back >= begin)
    )
    agrees &= here
    matched += agrees.astype(jnp.int32)
  return matched


@struct.pytree
class PromptLookup(LoopStrategy):
  """Decoding with drafts copied from the text so far.

  A draft copies the tokens after the latest earlier occurrence of the longest matching suffix. It
  searches the prompt, the output, and a source of the same vocabulary (`methods.lookup`). It needs
  no training and is lossless: the output is that of greedy decoding or, with `sampling`, has the
  distribution of `Sample`.

  Args:
    ngram: the longest suffix looked for, 1 to 64.
    k: block size, at least 2: at most k - 1 tokens are copied.
    sampling: how tokens are drawn, for which `decode` needs a key; None: greedy decoding.
    pool: n-grams of other texts (`build_pool`), to guess the most likely one if the text has no
      match.
  """

  ngram: Whole = struct.static(default=3)
  k: Whole = struct.static(default=10)
  sampling: Sampling | None = None
  pool: NGramPool | None = None
  joins = True

  def __post_init__(self) -> None:
    ngram = size('ngram', self.ngram, 1, 'a length to look for, 1 or more', LONGEST)
    k = size('k', self.k, 2, 'a block size from 2, or decode by Greedy()')
    struct.assign(self, ngram=ngram, k=k, sampling=check_sampling(self.sampling))
    if self.pool is not None:
      check_is_pool(self.pool)

  def sizes(self, drafted: Sizes = None, nodes: Sizes = None) -> Sequence[Any]:
    return [dataclasses.replace(self, k=n + 1) for n in drafted or COPIED]

  def check(self, model: Model, prompt: Prompt, max_len: int) -> None:
    if self.pool is not None:
      self.pool.check(model.vocab_size)

  def with_pool(self, pool: NGramPool) -> 'PromptLookup':
    """Returns this strategy with n-grams of other texts."""
    return dataclasses.replace(self, pool=pool)

  @property
  def drafter(self) -> Drafter:
    return LookupDrafter(self.ngram, self.k, self.pool)
