"""Prompt lookup finds what a plain search finds, and changes nothing but the number of calls."""

import dataclasses

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy.stats import chi2_contingency

import fastdec as fd
from fastdec.decoding.dataset import decode_all
from fastdec.decoding.drafters.lookup import LookupDrafter, Text
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.struct import Bound
from tests.decoding.fakes import HashLM, truths
from tests.decoding.test_loop import MAX_LEN, MODEL, some_prompts

SOURCE, SLOTS, NGRAM, K = 6, 14, 3, 5
DRAFTER = LookupDrafter(NGRAM, K)


def search(source, text, ngram, count):
  """The definition in plain Python: what followed the latest earlier occurrence of the longest matching suffix."""
  for n in range(min(ngram, len(text)), 0, -1):
    for place, words in ((1, text), (0, source)):  # the source lies before the text
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


def found(rows):
  """What the drafter drafts for rows of (source, text)."""
  tokens = np.full((len(rows), SOURCE + SLOTS), 2, np.int32)  # a word, where nothing is known
  for row, (source, text) in zip(tokens, rows, strict=True):
    row[: len(source)], row[SOURCE : SOURCE + len(text)] = source, text
  lengths = np.array([[len(source), len(text)] for source, text in rows], np.int32)
  state = Text(jnp.asarray(tokens), jnp.asarray(lengths[:, 0]), jnp.asarray(lengths[:, 1]), SOURCE)
  drafts, acceptable = propose(state, jnp.asarray([text[-1] for _, text in rows], jnp.int32))
  assert [row[0] for row in drafts.tolist()] == [text[-1] for _, text in rows] and acceptable[:, 0].all()
  return [row[1:][ok[1:]].tolist() for row, ok in zip(np.asarray(drafts), np.asarray(acceptable), strict=True)]


words = st.integers(2, 4)
rows = st.tuples(st.lists(words, max_size=SOURCE), st.lists(words, min_size=1, max_size=SLOTS))


@hypothesis.given(rows=st.lists(rows, min_size=8, max_size=8))
@hypothesis.settings(max_examples=150)
def test_it_finds_what_a_plain_search_finds(rows):
  assert found(rows) == [search(source, text, NGRAM, K - 1) for source, text in rows]


@pytest.mark.parametrize(
  'source, text, draft',
  [
    ([], [5, 6, 7, 8, 9, 5, 6], [7, 8, 9, 5]),
    ([], [5, 6, 7, 6, 8, 5, 6], [7, 6, 8, 5]),  # two words matched are better than one matched later
    ([], [5, 6, 7, 5, 6, 8, 5, 6], [8, 5, 6, 8]),  # the latest of two
    ([], [4, 5, 4, 5], [4, 5, 4, 5]),  # a copy goes on with itself
    ([], [4, 5, 6], []),
    ([5, 6, 7, 1], [0, 5, 6], [7, 1]),  # a source ends
    ([5, 6, 8], [6, 7, 6], [7, 6, 7, 6]),  # the text is later than the source
    ([5, 6, 8], [6, 7, 5, 6], [8]),  # but a longer match is better
    ([4, 9, 5], [5, 4], [9, 5]),  # nothing matches across the border, where "5 | 5" lie side by side
  ],
)
def test_by_hand(source, text, draft):
  assert found([(source, text)]) == [draft]


@dataclasses.dataclass(frozen=True)
class Echo(HashLM):
  """Repeats its prompt's first words: the next token is the one `period` positions before, or a hash."""
