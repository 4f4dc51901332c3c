"""Unigram and bigram models: laws by hand, their layout, and use as a draft model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.models.api import Model, causal
from fastdec.models.ngram import NGram
from tests.decoding.fakes import HashLM

PAD, END, A, B = range(4)
SENTENCES = [np.array([A, B, A, B, END]), np.array([A, A, END])]


def law_after(model, params, words):
  cache = model.init_cache(params, None, 1, len(words))
  hidden, _, _ = model.apply(params, jnp.asarray([words]), causal(len(words)), cache)
  return np.exp(model.unembed(params, hidden))[0]


def test_a_model_as_the_protocol_has_it():
  assert isinstance(NGram(4), Model)


def test_the_unigram_law_is_of_counts_and_knows_every_word():
  model = NGram(4, successors=0)
  params = model.count(SENTENCES, first=PAD)
  assert set(params) == {'unigram'}
  np.testing.assert_allclose(
    law_after(model, params, [A, B]), [[1 / 12, 3 / 12, 5 / 12, 3 / 12]] * 2, rtol=1e-6
  )


def test_the_bigram_law_backs_off_as_witten_and_bell():
  model = NGram(4, successors=4)
  unigram = np.array([1, 3, 5, 3]) / 12
  laws = law_after(model, model.count(SENTENCES, first=PAD), [PAD, A, B, END])
  # A begins both sentences
  np.testing.assert_allclose(laws[0], (np.array([0, 0, 2, 0]) + 1 * unigram) / 3, rtol=1e-6)
  np.testing.assert_allclose(laws[1], (np.array([0, 1, 1, 2]) + 3 * unigram) / 7, rtol=1e-6)
  np.testing.assert_allclose(laws[2], (np.array([0, 1, 1, 0]) + 2 * unigram) / 4, rtol=1e-6)
  np.testing.assert_allclose(laws[3], unigram, rtol=1e-6)  # nothing follows an end


def test_what_the_lists_leave_out_goes_to_the_unigram_law():
  model = NGram(4, successors=1)
  law = law_after(model, model.count(SENTENCES, first=PAD), [A])[0]
  unigram = np.array([1, 3, 5, 3]) / 12
  np.testing.assert_allclose(law, np.array([0, 0, 0, 2 / 7]) + 5 / 7 * unigram, rtol=1e-6)


def test_lists_of_random_text_against_a_dictionary():
  rng = np.random.default_rng(0)
  sentences = [np.append(rng.zipf(1.5, 12) % 48 + 2, END) for _ in range(200)]
  model = NGram(50, successors=50, suppressed_ids=(0,))
  params = model.count(sentences, first=PAD)
  unigram = np.ones(50)
  pairs: dict[int, list[int]] = {}
  for sentence in sentences:
    for before, word in zip([PAD, *sentence[:-1]], sentence, strict=True):
      unigram[word] += 1
      pairs.setdefault(before, []).append(word)
  unigram[PAD] = 0
  unigram /= unigram.sum()
  laws = law_after(model, params, list(range(50)))
  for word in range(50):
    seen = pairs.get(word, [])
    expected = np.bincount(seen, minlength=50) + (len(set(seen)) or 1) * unigram
    np.testing.assert_allclose(laws[word], expected / expected.sum(), rtol=1e-4, atol=1e-9)


def test_it_drafts_for_a_different_model():
  target = HashLM()
  prompts = np.array([[2, 3, 4], [5, 6, 7], [8, 2, 3]])
  plain = fd.decode(target, {}, prompts, fd.Greedy(), max_len=24)
  sentences = [row[:n] for row, n in zip(np.asarray(plain.tokens), plain.lengths, strict=True)]
  model = NGram(target.vocab_size, successors=target.vocab_size)
  draft = model, model.count(sentences, first=0)
  drafted = fd.decode(target, {}, prompts, fd.Speculative(draft, gamma=3), max_len=24)
  np.testing.assert_array_equal(drafted.tokens, plain.tokens)
  assert int(drafted.calls.sum()) < int(plain.calls.sum())
  sampled = fd.decode(
    target,
    {},
    prompts,
    fd.Speculative(draft, sampling=fd.Sampling(1.0)),
    max_len=8,
    key=jax.random.key(0),
  )
  assert (np.asarray(sampled.lengths) >= 1).all()


def test_empty_sentences_count_for_nothing():
  model = NGram(6, successors=3)
  some = model.count([np.array([3, 4]), np.array([3])], first=2)
  with_empty = model.count(
    [np.array([], int), np.array([3, 4]), np.array([], int), np.array([3])], first=2
  )
  for name, values in some.items():
    np.testing.assert_array_equal(with_empty[name], values)


@pytest.mark.parametrize('sentences, first, message', [
  ([], 0, 'there are 0 words to count'),
  ([np.array([1, 4])], 0, 'ids from 1 to 4, 0 first to count'),
  ([np.array([1])], 9, '9 first to count'),
])  # fmt: skip
def test_what_cannot_be_counted(sentences, first, message):
  with pytest.raises(fd.UserError, match=message):
    NGram(4, successors=2).count(sentences, first)


def test_lists_longer_than_the_vocabulary():
  with pytest.raises(
    fd.UserError, match='successors=5 is not possible: give 0, for a unigram model, to vocab_size=4'
  ):
    NGram(4, successors=5)
