"""Length penalties at known values, and which tokens would repeat an n-gram, against a search
through lists."""

import hypothesis
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from fastdec.decoding.beam.penalties import GNMTPenalty, PowerPenalty, repeats

WORDS = st.lists(st.integers(0, 2), min_size=8, max_size=8)


def test_penalties():
  n = jnp.array([1, 7, 13])
  np.testing.assert_allclose(GNMTPenalty(1.0)(n), [1, 2, 3], rtol=1e-6)
  np.testing.assert_allclose(GNMTPenalty(0.6)(n), [1, 2**0.6, 3**0.6], rtol=1e-6)
  np.testing.assert_allclose(PowerPenalty(2.0)(n), [1, 49, 169], rtol=1e-6)
  np.testing.assert_allclose(PowerPenalty(0.0)(n), [1, 1, 1], rtol=1e-6)


@hypothesis.given(
  ngram=st.integers(1, 4),
  rows=st.lists(st.tuples(WORDS, st.integers(0, 8)), min_size=3, max_size=3),
)
@hypothesis.settings(max_examples=60)
# the docstring's: a b c a b -> c
@hypothesis.example(ngram=3, rows=[([0, 1, 2, 0, 1, 0, 0, 0], 5)] * 3)
def test_repeats(ngram, rows):
  tokens, lengths = np.array([words for words, _ in rows], np.int32), np.array([n for _, n in rows])
  repeating = np.asarray(repeats(jnp.array(tokens), jnp.array(lengths), ngram, 3))
  for (words, n), row in zip(rows, repeating, strict=True):
    grams = [words[i : i + ngram] for i in range(n - ngram + 1)]
    expected = [n >= ngram - 1 and [*words[n - ngram + 1 : n], v] in grams for v in range(3)]
    assert row.tolist() == expected
