"""Pools of n-grams of other texts: counts by hand, files, and guesses where the text has no
match."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.methods.lookup import _or_from_pool
from fastdec.decoding.methods.ngrams import extend_values
from tests.decoding.fakes import HashLM
from tests.decoding.methods.test_lookup import Looping
from tests.decoding.test_loop import some_prompts

MODEL = HashLM()
TEXTS = [[3, 4, 5, 3, 4, 5, 3, 4, 6], [3, 4, 6, 7], [9]]


def test_what_followed_most_often_comes_first():
  pool = fd.build_pool(TEXTS, MODEL, ngram=3, guesses=2)
  counts = collections.Counter(
    tuple(text[i : i + 3]) for text in TEXTS for i in range(len(text) - 2)
  )
  assert pool.ngram == 3 and pool.vocab_size == 14
  values, known = pool.best(jnp.arange(14), 3)
  for key in range(14):
    grams = sorted(
      (gram for gram in counts if gram[0] == key), key=lambda gram: (-counts[gram], gram)
    )
    assert values[key][known[key]].tolist() == [list(gram[1:]) for gram in grams[:2]]


def test_one_list_is_continued_by_another():
  """The first value of the second list is in the first list already, and there is no room for its
  third."""
  first = jnp.array([[[1, 2], [3, 4], [0, 0], [0, 0]]]), jnp.array([[True, True, False, False]])
  second = jnp.array([[[3, 4], [5, 6], [7, 8], [9, 9]]]), jnp.array([[True, True, False, True]])
  values, known = extend_values((first[0], second[0]), (first[1], second[1]))
  assert (
    values[0].tolist()[:4] == [[1, 2], [3, 4], [5, 6], [9, 9]] and known[0].tolist() == [True] * 4
  )
  values, known = extend_values((first[0][:, :3], second[0]), (first[1][:, :3], second[1]))
  assert values[0].tolist() == [[1, 2], [3, 4], [5, 6]]


def test_lookup_guesses_from_the_pool_where_the_text_has_no_match():
  pool = fd.build_pool(TEXTS, MODEL, ngram=3)
  copied, is_known = jnp.zeros((3, 4), jnp.int32), jnp.array([[True] * 4, [False] * 4, [False] * 4])
  guesses, known = _or_from_pool(pool, jnp.array([3, 3, 9]), copied, is_known)
  assert known.tolist() == [[True] * 4, [True, True, False, False], [False] * 4]
  assert guesses[1, :2].tolist() == [4, 5] and not guesses[0].any()


@pytest.mark.parametrize(
  'make',
  [lambda pool: fd.PromptLookup(k=5, pool=pool), lambda pool: fd.Lookahead(2, 5, 3, pool=pool)],
)
@pytest.mark.wide('<lambda>1')
def test_a_pool_changes_the_calls_and_not_the_text(make, tmp_path):
  """The pool is what greedy decoding has written for the same prompts, read back from its file."""
  model = Looping(vocab_size=400, eos_ids=())
  prompts, lengths = some_prompts(3, rows=8)
  settings = {'prompt_lengths': lengths, 'max_len': 12}
  greedy = np.asarray(fd.decode(model, {}, prompts, fd.Greedy(), **settings).tokens)
  fd.save_pool(fd.build_pool(list(greedy), model), tmp_path / 'pool.safetensors')
  pool = fd.load_pool(tmp_path / 'pool.safetensors')
  assert pool.vocab_size == 400
  alone, out = (fd.decode(model, {}, prompts, make(which), **settings) for which in (None, pool))
  np.testing.assert_array_equal(out.tokens, greedy)
  assert out.mean_block_size > 3 and out.mean_block_size > alone.mean_block_size + 0.5


@pytest.mark.parametrize('call, words', [
  (lambda pool: fd.Lookahead(ngram=4, pool=pool),
    'this pool has n-grams of 3 tokens: give ngram=3, not 4'),
  (lambda pool: fd.decode(HashLM(9), {}, [[3]], fd.PromptLookup(pool=pool)),
    'vocabulary of 14 words.* model has 9'),
  (lambda pool: fd.build_pool(TEXTS, HashLM(5)),
    'texts have ids from 3 to 6 and must have 0 to 4'),
  (lambda pool: fd.build_pool([[3], [4]]), 'texts must be ids, and one must have 5 tokens or more'),
  (lambda pool: fd.build_pool(TEXTS, guesses=0), 'guesses=0 is not possible: give 1 or more'),
])  # fmt: skip
def test_mistakes(call, words):
  with pytest.raises(fd.UserError, match=words):
    call(fd.build_pool(TEXTS, MODEL, ngram=3))


WRONG = {
  'vocab_size': (np.zeros(0, np.int32), np.zeros(2, np.int32), np.array([3], np.int32),
                 np.array([-1], np.int32), np.array([np.nan], np.float32)),
  'starts': (np.zeros(0, np.int32), np.zeros(15, np.int32), np.arange(15, dtype=np.int32)[::-1],
             np.full(15, 2**31 - 1, np.int32), np.zeros(15, np.float32)),
  'values': (np.zeros((0, 2), np.int32), np.zeros((5, 0), np.int32), np.full((5, 2), 14, np.int32),
             np.full((5, 2), -1, np.int32), np.zeros((4, 2), np.int32), np.zeros(5, np.int32)),
}  # fmt: skip


def test_a_pool_is_checked_when_it_is_read(tmp_path):
  from safetensors.numpy import load_file, save_file

  fd.save_pool(fd.build_pool(TEXTS, MODEL, ngram=3), tmp_path / 'pool')
  whole = load_file(tmp_path / 'pool')
  assert {name: array.shape for name, array in whole.items()} == {
    'values': (5, 2), 'starts': (15,), 'vocab_size': (1,)
  }  # fmt: skip
  for name, arrays in WRONG.items():
    for array in arrays:
      save_file(whole | {name: np.ascontiguousarray(array)}, tmp_path / 'pool')
      with pytest.raises(fd.UserError, match=r'a (damaged )?pool of n-grams: give what'):
        fd.load_pool(tmp_path / 'pool')


def test_a_pool_of_ids_fits_any_model_that_has_them():
  pool = fd.build_pool([row for row in jax.random.randint(jax.random.key(0), (3, 9), 2, 13)])
  assert pool.vocab_size is None
  out = fd.decode(MODEL, {}, [[3, 4]], fd.PromptLookup(pool=pool), max_len=6)
  np.testing.assert_array_equal(
    out.tokens, fd.decode(MODEL, {}, [[3, 4]], fd.Greedy(), max_len=6).tokens
  )
