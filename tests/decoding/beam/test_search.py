"""Beam search against an exhaustive search, a search in plain Python, and greedy decoding."""

import itertools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import fastdec as fd
from fastdec.decoding.beam.search import Beam
from tests.decoding.beam.by_hand import SmoothLM, by_hand, law
from tests.decoding.fakes import EOS, HashLM

PROMPTS = np.array([[3, 4, 5], [6, 2, 0], [5, 0, 0]], np.int32)
LENGTHS = np.array([3, 2, 1])
MAX_LEN = 7


SMALL, MODEL = SmoothLM(vocab_size=5), SmoothLM(vocab_size=9)
TWO_ENDS = SmoothLM(vocab_size=9, eos_ids=(EOS, 6))


@pytest.fixture(scope='module', autouse=True)
def float64():
  with jax.enable_x64(True):
    yield


def exhaustive(model, prompt, penalty, max_len, min_len):
  """The best of all sequences."""
  scored = []
  for n in range(1, max_len + 1):
    for words in itertools.product(range(1, model.vocab_size), repeat=n):
      ends = words[-1] == EOS
      if EOS in words[:-1] or (n < max_len and not ends) or (ends and n < min_len):
        continue
      total = sum(law(model, [*prompt, *words[:i]])[word] for i, word in enumerate(words))
      scored.append((total / penalty(n), words))
  return max(scored)


@pytest.mark.parametrize('min_len', [1, 3])
@pytest.mark.parametrize(('setting', 'penalty'), [
  (0.6, lambda n: ((5 + n) / 6) ** 0.6),
  (0.0, lambda n: 1.0), (fd.PowerPenalty(1.0), lambda n: n),
  (fd.PowerPenalty(-0.7), lambda n: n**-0.7),
], ids=['gnmt', 'none', 'mean', 'negative'])  # fmt: skip
def test_wide_beams_search_exhaustively(setting, penalty, min_len):
  strategy = Beam(64, length_penalty=setting, min_len=min_len, early_stopping='never')
  out = fd.decode(SMALL, {}, PROMPTS.clip(0, 4), strategy, LENGTHS, max_len=4)
  for row, length in enumerate(LENGTHS):
    score, words = exhaustive(SMALL, PROMPTS[row, :length].clip(0, 4).tolist(), penalty, 4, min_len)
    assert out.tokens[row, : out.lengths[row]].tolist() == list(words)
    np.testing.assert_allclose(out.scores[row], score, rtol=1e-6)


SEARCHES = [
  {'size': 3, 'n_best': 3},
  {'size': 3, 'n_best': 2, 'early_stopping': True},
  {'size': 3, 'n_best': 3, 'early_stopping': 'never', 'no_repeat_ngram': 2},
  {'size': 4, 'n_best': 4, 'groups': 2, 'unknown_id': 4},
  {'size': 2, 'n_best': 1, 'no_repeat_ngram': 1},
  {'size': 3, 'n_best': 3, 'no_repeat_ngram': 3},
]


@pytest.mark.parametrize(
  'static', SEARCHES, ids=lambda s: ' '.join(f'{k}={v}' for k, v in s.items())
)
@pytest.mark.wide('*early_stopping=*', '*groups=*')
@hypothesis.given(
  seed=st.integers(0, 999),
  alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
  min_len=st.integers(1, 5),
  limit=st.sampled_from([(0.0, 99.0), (1.0, 2.0), (2.0, 0.5)]),
  unknown=st.sampled_from([0.0, 1.5]),
  diversity=st.sampled_from([0.0, 0.7]),
)
@hypothesis.settings(max_examples=12, deadline=None)
def test_beams_are_those_of_a_search_written_with_lists(
  static, seed, alpha, min_len, limit, unknown, diversity
):
  rng = np.random.default_rng(seed)
  prompts, lengths = rng.integers(2, 9, (3, 3)).astype(np.int32), rng.integers(1, 4, 3)
  more = {'unknown_penalty': unknown} if 'unknown_id' in static else {}
  more |= {'diversity': diversity} if 'groups' in static else {}
  beam = Beam(length_penalty=alpha, min_len=min_len, max_len=limit, **static, **more)
  out = fd.decode(MODEL, {}, prompts, beam, lengths, max_len=MAX_LEN)
  for row, length in enumerate(lengths):
    expected = by_hand(MODEL, prompts[row, :length].tolist(), beam, MAX_LEN)[: beam.n_best]
    for i, (score, words) in enumerate(expected):
      np.testing.assert_allclose(out.nbest_scores[row, i], score, rtol=1e-6)
      assert out.nbest_tokens[row, i].tolist() == words + [0] * (MAX_LEN - len(words))
    assert out.lengths[row] == len(expected[0][1])


@pytest.mark.parametrize('early_stopping', [False, True])
@pytest.mark.wide('False')
def test_several_end_tokens(early_stopping):
  beam = Beam(3, n_best=3, early_stopping=early_stopping, min_len=3)
  out = fd.decode(TWO_ENDS, {}, PROMPTS, beam, LENGTHS, max_len=MAX_LEN)
  ends = set()
  for row, length in enumerate(LENGTHS):
    expected = by_hand(TWO_ENDS, PROMPTS[row, :length].tolist(), beam, MAX_LEN)
    assert out.nbest_tokens[row].tolist() == [
      words + [0] * (MAX_LEN - len(words)) for _, words in expected
    ]
    ends |= {words[-1] for _, words in expected if len(words) < MAX_LEN}
  assert ends == {EOS, 6}


@pytest.mark.parametrize('model', [HashLM(), MODEL], ids=['with ties', 'without'])
@pytest.mark.wide('with ties')
def test_one_beam_is_greedy(model):
  greedy = fd.decode(model, {}, PROMPTS, fd.Greedy(), LENGTHS, max_len=11)
  beam = fd.decode(model, {}, PROMPTS, Beam(1), LENGTHS, max_len=11)
  for name in ('tokens', 'lengths', 'block_sizes', 'calls'):
    np.testing.assert_array_equal(getattr(greedy, name), getattr(beam, name), err_msg=name)


def test_a_line_may_be_as_long_as_it_likes_in_a_pool_too():
  beam = Beam(2, max_len=(0, 3e9))
  rows = [prompt[:length].tolist() for prompt, length in zip(PROMPTS, LENGTHS, strict=True)]
  out = fd.decode_all(MODEL, {}, rows, beam, rows=2, max_len=6)
  for row, tokens, length in zip(rows, out.tokens, out.lengths, strict=True):
    assert tokens[:length].tolist() == by_hand(MODEL, row, beam, 6)[0][1]


def test_an_unknown_id_is_a_token():
  with pytest.raises(fd.UserError, match='the model knows 0 to 8'):
    fd.decode(MODEL, {}, PROMPTS, Beam(2, unknown_id=9, unknown_penalty=1.0), LENGTHS)


def test_every_token_written_once_leaves_hypotheses_where_there_are_fewer_tokens():
  endless = SmoothLM(vocab_size=5, eos_ids=())
  out = fd.decode(
    endless, {}, PROMPTS.clip(0, 4), Beam(2, n_best=2, no_repeat_ngram=1), LENGTHS, max_len=6
  )
  assert np.isfinite(out.nbest_scores).all() and out.lengths.tolist() == [6, 6, 6]
  for words in np.asarray(out.tokens).tolist():
    assert sorted(words[:4]) == [1, 2, 3, 4]


def test_equal_searches_are_one_program_whatever_kind_of_number_says_so():
  from fastdec.decoding.run import make_calls

  before = make_calls._cache_size()
  for one in (1, 1.0, np.float32(1), np.int64(1), np.array(1.0), jnp.float32(1)):
    beam = Beam(
      2, one, unknown_id=3, unknown_penalty=one, groups=2, diversity=one, max_len=(one, 2)
    )
    fd.decode(MODEL, {}, PROMPTS, beam, LENGTHS, max_len=4)
  for least in (1, np.int64(1), np.array(1), jnp.int32(1)):
    beam = Beam(
      2, min_len=least, unknown_id=3, unknown_penalty=2.0, groups=2, diversity=0.5, max_len=(0, 3)
    )
    fd.decode(MODEL, {}, PROMPTS, beam, LENGTHS, max_len=4)
  assert make_calls._cache_size() == before + 1


@pytest.mark.parametrize(('settings', 'words'), [
  ({'size': 0}, 'at least 1 beam'),
  ({'size': 2, 'n_best': 3}, 'give 1 to size=2'),
  ({'size': 4, 'groups': 3}, 'a divisor of size'),
  ({'early_stopping': 'sometimes'}, "True, False or 'never'"),
  ({'no_repeat_ngram': -1}, '0 for no such rule'),
  ({'unknown_penalty': 1.0}, 'give unknown_id'),
  ({'diversity': 1.0}, 'groups=2 or more'),
  ({'max_len': (1, 2, 3)}, 'a \\* source \\+ b'),
  ({'max_len': 20}, 'a \\* source \\+ b'),
  ({'max_len': (1, -2)}, 'from 0'),
  ({'min_len': -1}, '0 tokens or more'),
  ({'length_penalty': 'long'}, "penalty of 'long' is not possible: give a number"),
  ({'length_penalty': float('nan')}, 'penalty of nan'),
])  # fmt: skip
def test_mistakes(settings, words):
  with pytest.raises(fd.UserError, match=words):
    Beam(**settings)
