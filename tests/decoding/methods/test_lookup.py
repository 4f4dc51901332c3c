"""Prompt lookup finds what a plain search finds, and changes nothing but the number of calls."""

import dataclasses
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy.stats import chisquare

import fastdec as fd
from fastdec import struct
from fastdec.decoding.methods.lookup import LookupDrafter, Searched
from fastdec.decoding.protocol import Prefill, Prompt
from fastdec.decoding.text import Text
from fastdec.models import api
from fastdec.struct import Bound
from tests.decoding.fakes import HashLM, truths
from tests.decoding.test_loop import MODEL, some_prompts

SOURCE, SLOTS, NGRAM, K = 6, 14, 3, 5
DRAFTER = LookupDrafter(NGRAM, K)


def search(source, text, ngram, count):
  """The definition in plain Python: the tokens that followed the latest earlier occurrence of the
  longest matching suffix."""
  for n in range(min(ngram, len(text)), 0, -1):
    for place, words in ((1, text), (0, source)):  # the source is before the text
      for end in range(len(words) - 1, n - 1, -1):  # something follows it
        if words[end - n : end] == text[-n:]:
          if not place:
            return source[end:][:count]
          copy = list(text)
          for i in range(count):
            copy.append(copy[end + i])
          return copy[len(text) :]
  return []


@jax.jit
def propose(state, root):
  draft, _ = DRAFTER.propose(Bound(MODEL, {}), state, root, None)
  return draft.tokens, jnp.broadcast_to(draft.topology.acceptable, draft.tokens.shape)


def drafted(rows):
  """The drafts for rows of (source, text)."""
  tokens = np.full((len(rows), SOURCE + SLOTS), 2, np.int32)  # unused slots hold a word too
  for row, (source, text) in zip(tokens, rows, strict=True):
    row[: len(source)], row[SOURCE : SOURCE + len(text)] = source, text
  lengths = np.array([[len(source), len(text)] for source, text in rows], np.int32)
  text = Text(jnp.asarray(tokens), jnp.asarray(SOURCE + lengths[:, 1]))
  state = Searched(text, jnp.asarray(lengths[:, 0]), SOURCE)
  drafts, acceptable = propose(state, jnp.asarray([text[-1] for _, text in rows], jnp.int32))
  assert [row[0] for row in drafts.tolist()] == [text[-1] for _, text in rows] and acceptable[
    :, 0
  ].all()
  return [
    row[1:][ok[1:]].tolist()
    for row, ok in zip(np.asarray(drafts), np.asarray(acceptable), strict=True)
  ]


words = st.integers(2, 4)
rows = st.tuples(st.lists(words, max_size=SOURCE), st.lists(words, min_size=1, max_size=SLOTS))


@hypothesis.given(rows=st.lists(rows, min_size=8, max_size=8))
@hypothesis.settings(max_examples=150)
def test_it_finds_what_a_plain_search_finds(rows):
  assert drafted(rows) == [search(source, text, NGRAM, K - 1) for source, text in rows]


@pytest.mark.parametrize(
  'source, text, draft',
  [
    ([], [5, 6, 7, 8, 9, 5, 6], [7, 8, 9, 5]),
    # two words matched are better than one matched later
    ([], [5, 6, 7, 6, 8, 5, 6], [7, 6, 8, 5]),
    ([], [5, 6, 7, 5, 6, 8, 5, 6], [8, 5, 6, 8]),  # the latest of two
    ([], [4, 5, 4, 5], [4, 5, 4, 5]),  # a copy continues with itself
    ([], [4, 5, 6], []),
    ([5, 6, 7, 1], [0, 5, 6], [7, 1]),  # a source ends
    ([5, 6, 8], [6, 7, 6], [7, 6, 7, 6]),  # the text is later than the source
    ([5, 6, 8], [6, 7, 5, 6], [8]),  # but a longer match is better
    # nothing matches across the border, where "5 | 5" lie side by side
    ([4, 9, 5], [5, 4], [9, 5]),
  ],
)
def test_by_hand(source, text, draft):
  assert drafted([(source, text)]) == [draft]


@dataclasses.dataclass(frozen=True)
class Looping(HashLM):
  """The next token depends only on the last one, so the text soon repeats itself."""

  def apply(self, params, tokens, nodes, cache):
    return self.hidden(tokens), (), super().apply(params, tokens, nodes, cache)[2]

  def hidden(self, tokens):
    return (tokens * 3 + 15).astype(jnp.float32)[..., None]


@struct.pytree
class Page:
  """A memory and a cache in one: the source, and how much of it has been written."""

  source: Any
  length: Any

  def commit(self, path, count):
    return dataclasses.replace(self, length=self.length + count)


@dataclasses.dataclass(frozen=True)
class Copier(HashLM):
  """An encoder-decoder that writes its source, the end included."""

  start_id: int = 0

  def encode(self, params, inputs):
    return inputs

  def init_cache(self, params, memory, rows, slots):
    return Page(memory, jnp.zeros(rows, jnp.int32))

  def apply(self, params, tokens, nodes, cache):
    places = cache.length[:, None] + nodes.depths
    return (
      jnp.take_along_axis(cache.source, places, axis=1, mode='clip').astype(jnp.float32)[..., None],
      (),
      cache,
    )

  def unembed(self, params, hidden):
    return jax.nn.one_hot(hidden[..., 0].astype(int), self.vocab_size)


def test_text_that_repeats_itself_takes_long_blocks():
  prompts, lengths = some_prompts(0, rows=12)
  greedy, out = (
    fd.decode(Looping(), {}, prompts, strategy, lengths, max_len=60)
    for strategy in (fd.Greedy(), fd.PromptLookup())
  )
  np.testing.assert_array_equal(out.tokens, greedy.tokens)
  loops = np.asarray(out.lengths) == 60
  assert loops.sum() > 3
  assert (np.asarray(out.calls)[loops] <= 15).all()
  assert (np.asarray(out.block_sizes).max(axis=1)[loops] == 10).all()


def test_a_source_is_copied():
  """Ten words at once as soon as one is known, the end included. Padding is not copied."""
  source = np.zeros((3, 24), np.int32)
  for row, length in zip(source, (24, 15, 2), strict=True):
    row[:length] = np.append(2 + np.arange(length - 1), 1)
  out = fd.decode(Copier(vocab_size=26), {}, source, fd.PromptLookup(ngram=2, k=10), max_len=30)
  np.testing.assert_array_equal(out.tokens[:, :24], source)
  assert out.block_sizes[:, :4].tolist() == [[10, 10, 3, 0], [10, 4, 0, 0], [1, 0, 0, 0]]


def test_images_are_no_source():
  image = np.zeros((2, 4, 4, 3), np.uint8)
  prompt = Prompt(
    jnp.asarray(image), jnp.zeros((2, 1), jnp.int32), jnp.ones(2, jnp.int32), jnp.zeros(2, bool)
  )
  prefill = Prefill(
    prompt, None, jnp.zeros((2, 1, 1)), (), jnp.array([5, 6]), api.Capacity(9, nodes=3), max_len=5
  )
  assert DRAFTER.init(Bound(MODEL, {}), prefill).begin == 0


@pytest.mark.parametrize('k, ngram, max_len', [(2, 1, 2), (4, 2, 23), (40, 3, 1), (40, 3, 23)])
@pytest.mark.wide('40-3-23')
def test_ends_and_max_len(k, ngram, max_len):
  for model in (MODEL, Looping()):
    prompts, lengths = some_prompts(k, rows=8)
    if model is MODEL:
      expected = truths(MODEL, prompts, lengths, max_len)
    else:
      expected = fd.decode(model, {}, prompts, fd.Greedy(), lengths, max_len=max_len).tokens
    out = fd.decode(model, {}, prompts, fd.PromptLookup(ngram, k), lengths, max_len=max_len)
    np.testing.assert_array_equal(out.tokens, expected)
    np.testing.assert_array_equal(out.lengths, 1 + np.sum(out.block_sizes, axis=1))


def test_sampling_keeps_the_law():
  """The first three tokens follow the model's own law. Drafts are copied from the prompt and often
  accepted."""
  model, rows, temperature = Looping(vocab_size=5), 40_000, 5.0
  prompts = np.repeat(np.array([[3, 4, 2, 3, 4, 3, 4]], np.int32), rows, axis=0)
  strategy = fd.PromptLookup(k=4, sampling=fd.Sampling(temperature, top_p=0.95))
  out = fd.decode(model, {}, prompts, strategy, max_len=4, key=jax.random.key(7))
  assert out.mean_block_size > 1.1
  places = tuple(np.asarray(out.tokens[:, :3]).T)
  counts = np.zeros((5, 5, 5))
  np.add.at(counts, places, 1)
  for warmth, is_right in ((temperature, True), (0.95 * temperature, False)):
    law = joint_law(model, 4, warmth, 0.95)
    likely = law * rows > 10
    assert likely.sum() > 15 and not counts[law == 0].any()
    expected = law[likely] / law[likely].sum() * counts[likely].sum()
    pvalue = chisquare(counts[likely], expected).pvalue
    assert pvalue > 1e-3 if is_right else pvalue < 1e-6


def joint_law(model, last, temperature, top_p):
  """Returns the joint law of the three tokens after `last`. Pads follow an end."""
  logits = np.asarray(model.unembed({}, model.hidden(jnp.arange(5))), np.float64)
  law = np.zeros((5, 5))
  for before in range(5):
    weights = np.exp(logits[before] / temperature) * (np.arange(5) > 0)
    order = np.argsort(-weights, kind='stable')
    likelier = np.cumsum(weights[order]) / weights.sum() - weights[order] / weights.sum()
    law[before, order] = np.where(likelier < top_p, weights[order], 0)
  law /= law.sum(axis=1, keepdims=True)
  law[:2] = np.eye(5)[0]  # after an end, or a pad
  return np.einsum('a,ab,bc->abc', law[last], law, law)


def test_a_small_top_p_is_greedy():
  prompts, lengths = some_prompts(6)
  strategy = fd.PromptLookup(sampling=fd.Sampling(2.0, top_p=1e-6))
  out = fd.decode(MODEL, {}, prompts, strategy, lengths, max_len=8, key=jax.random.key(0))
  np.testing.assert_array_equal(out.tokens, truths(MODEL, prompts, lengths, 8))
