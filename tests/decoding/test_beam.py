"""Beam search against an exhaustive search, a search in plain Python, and greedy decoding."""

import itertools
import math

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import fastdec as fd
from fastdec.decoding.beam import Beam
from fastdec.decoding.penalties import GNMTPenalty
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.struct import Bound
from tests.decoding.fakes import EOS, PRIME, HashLM

PROMPTS = np.array([[3, 4, 5], [6, 2, 0], [5, 0, 0]], np.int32)
LENGTHS = np.array([3, 2, 1])
MAX_LEN = 7


class SmoothLM(HashLM):
  """`HashLM` whose sums of log-probabilities never tie."""

  def unembed(self, params, hidden):
    v = jnp.arange(self.vocab_size).reshape((1,) * (hidden.ndim - 1) + (-1,))
    code = hidden.astype(int) % PRIME
    return (code * (v * v + 3) + v * 17) % 101 / 25 + jnp.sin(code * 0.37 + v * 1.7)


SMALL, MODEL = SmoothLM(vocab_size=5), SmoothLM(vocab_size=9)


@pytest.fixture(scope='module', autouse=True)
def float64():
  with jax.enable_x64(True):
    yield


def law(model, tokens):
  """Log-probabilities of the next token, -inf for what is suppressed, in plain Python."""
  code = sum((token + 7) * (position * 31 + 5) * 13 % PRIME for position, token in enumerate(tokens)) % PRIME
  logits = [(code * (v * v + 3) + v * 17) % 101 / 25 + math.sin(code * 0.37 + v * 1.7) for v in range(model.vocab_size)]
  total = math.log(sum(map(math.exp, logits)))
  return [-math.inf if v in model.suppressed_ids else x - total for v, x in enumerate(logits)]


def exhaustive(model, prompt, penalty, max_len, min_len):
  """The best of all sequences."""
  found = []
  for n in range(1, max_len + 1):
    for words in itertools.product(range(1, model.vocab_size), repeat=n):
      ends = words[-1] == EOS
      if EOS in words[:-1] or (n < max_len and not ends) or (ends and n < min_len):
        continue
      total = sum(law(model, [*prompt, *words[:i]])[word] for i, word in enumerate(words))
      found.append((total / penalty(n), words))
  return max(found)


@pytest.mark.parametrize('min_len', [1, 3])
@pytest.mark.parametrize(
  ('setting', 'penalty'),
  [
    (0.6, lambda n: ((5 + n) / 6) ** 0.6),
    (0.0, lambda n: 1.0),
    (fd.PowerPenalty(1.0), lambda n: n),
    (fd.PowerPenalty(-0.7), lambda n: n**-0.7),
  ],
  ids=['gnmt', 'none', 'mean', 'negative'],
)
def test_wide_beams_search_exhaustively(setting, penalty, min_len):
  strategy = Beam(64, length_penalty=setting, min_len=min_len, early_stopping='never')
  out = fd.decode(SMALL, {}, PROMPTS.clip(0, 4), strategy, LENGTHS, max_len=4)
  for row, length in enumerate(LENGTHS):
    score, words = exhaustive(SMALL, PROMPTS[row, :length].clip(0, 4).tolist(), penalty, 4, min_len)
    assert out.tokens[row, : out.lengths[row]].tolist() == list(words)
    np.testing.assert_allclose(out.scores[row], score, rtol=1e-6)


def by_hand(model, prompt, beam: Beam, max_len):
  """(score, tokens) of the finished hypotheses, best first: the search written with lists."""
  each = beam.size // beam.groups
  groups = [{'running': [(0.0, [])], 'finished': [], 'over': False} for _ in range(beam.groups)]
  limit = max_len if beam.max_len is None else min(max_len, int(beam.max_len[0] * len(prompt) + beam.max_len[1]))
  penalty = lambda n: float(beam.length_penalty(jnp.int32(n)))
  n = 0
  while not all(group['over'] for group in groups):
    n += 1
    chosen = [0] * model.vocab_size
    for group in groups:
      if not group['over']:
        candidates = []
        for total, words in group['running']:
          probabilities = law(model, [*prompt, *words])
          for v, x in enumerate(probabilities):
            x -= beam.unknown_penalty if v == beam.unknown_id else 0
            size = beam.no_repeat_ngram
            grams = [words[i : i + size] for i in range(len(words) - size + 1)]
            if (size and [*words, v][-size:] in grams) or (v == EOS and n < beam.min_len):
              x = -math.inf
            candidates.append((total + x - beam.diversity * chosen[v], [*words, v]))
        candidates.sort(key=lambda c: -c[0])
        ends = lambda words: words[-1] == EOS or len(words) >= limit
        ended = [(s / penalty(n), words) for s, words in candidates[:each] if ends(words) and s > -math.inf]
        group['finished'] = sorted(group['finished'] + ended, key=lambda c: -c[0])[:each]
        group['running'] = [c for c in candidates if not ends(c[1])][:each]
        group['over'] = is_over(group, beam, each, n, limit, penalty)
      for total, words in group['running']:
        chosen[words[-1]] += len(words) == n and total > -math.inf
  return sorted((c for group in groups for c in group['finished']), key=lambda c: -c[0])


def is_over(group, beam, each, n, limit, penalty):
  running = [c for c in group['running'] if c[0] > -math.inf]
  if not running:
    return True
  if len(group['finished']) < each:
    return False
  if beam.early_stopping is True:
    return True
  divisor = max(penalty(n), penalty(limit)) if beam.early_stopping == 'never' else penalty(n)
  return running[0][0] / divisor <= group['finished'][-1][0]


SEARCHES = [
  {'size': 3, 'n_best': 3},
  {'size': 3, 'n_best': 2, 'early_stopping': True},
  {'size': 3, 'n_best': 3, 'early_stopping': 'never', 'no_repeat_ngram': 2},
  {'size': 4, 'n_best': 4, 'groups': 2, 'unknown_id': 4},
  {'size': 2, 'n_best': 1, 'no_repeat_ngram': 1},
]


@pytest.mark.parametrize('static', SEARCHES, ids=lambda s: ' '.join(f'{k}={v}' for k, v in s.items()))
@hypothesis.given(
  seed=st.integers(0, 999),
  alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
  min_len=st.integers(1, 5),
  limit=st.sampled_from([(0.0, 99.0), (1.0, 2.0), (2.0, 0.5)]),
  unknown=st.sampled_from([0.0, 1.5]),
  diversity=st.sampled_from([0.0, 0.7]),
)
@hypothesis.settings(max_examples=12, deadline=None)
def test_beams_are_those_of_a_search_written_with_lists(static, seed, alpha, min_len, limit, unknown, diversity):
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


@pytest.mark.parametrize('model', [HashLM(), MODEL], ids=['with ties', 'without'])
def test_one_beam_is_greedy(model):
  greedy = fd.decode(model, {}, PROMPTS, fd.Greedy(), LENGTHS, max_len=11)
  beam = fd.decode(model, {}, PROMPTS, Beam(1), LENGTHS, max_len=11)
  for name in ('tokens', 'lengths', 'block_sizes', 'calls'):
    np.testing.assert_array_equal(getattr(greedy, name), getattr(beam, name), err_msg=name)


TRANSFORMER = Transformer(
  TransformerConfig(
    vocab_size=11, d_model=8, d_ff=16, heads=2, encoder_layers=1, decoder_layers=2, max_positions=32, dtype='float64'
  )
)
SOURCES = np.array([[3, 4, 5, 6, 1], [7, 8, 1, 0, 0], [9, 1, 0, 0, 0], [1, 0, 0, 0, 0]], np.int32)


@pytest.fixture(scope='module')
def params():
  return jax.tree.map(lambda x: x.astype('float64') * 2, TRANSFORMER.init(jax.random.key(7)))


def test_a_batch_is_its_rows_and_an_empty_source_ends_at_once(params):
  together = fd.decode(TRANSFORMER, params, SOURCES, Beam(3, n_best=3), max_len=9)
  for i in range(len(SOURCES)):
    alone = fd.decode(TRANSFORMER, params, SOURCES[i : i + 1], Beam(3, n_best=3), max_len=9)
    np.testing.assert_array_equal(together.nbest_tokens[i], alone.nbest_tokens[0])
    np.testing.assert_allclose(together.nbest_scores[i], alone.nbest_scores[0], rtol=1e-9)
    assert together.calls[i] == alone.calls[0]
  assert together.lengths[3] == 1 and together.tokens[3, 0] == EOS
  assert (np.diff(together.nbest_scores[:3]) <= 0).all()
  assert all(len({tuple(words) for words in row}) == 3 for row in together.nbest_tokens.tolist()[:3])


def test_a_prefix_is_followed_and_not_repeated(params):
  prefix = np.array([[5, 6], [7, 0], [8, 9], [2, 0]])
  out = fd.decode(TRANSFORMER, params, SOURCES, Beam(3), [2, 1, 2, 1], prefix, max_len=6)
  for i, length in enumerate([2, 1, 2]):
    forced = fd.score(TRANSFORMER, params, SOURCES[i : i + 1], out.tokens[i : i + 1], out.lengths[i : i + 1],
                      prefix=prefix[i : i + 1, :length])  # fmt: skip
    np.testing.assert_allclose(out.scores[i], forced.total[0] / ((5 + out.lengths[i]) / 6) ** 0.6, rtol=1e-6)


def search_state(params, strategy, steps):
  target = Bound(TRANSFORMER, params)
  prompt = fd.decoding.inputs.checked(TRANSFORMER, SOURCES, None, None, 9, None)[1]
  state = jax.jit(lambda prompt: strategy.init(target, prompt, 9, None))(prompt)
  step = jax.jit(lambda state: strategy.step(target, state))
  for _ in range(steps):
    state = step(state)
  return step, state


def test_memory_is_not_copied_for_each_beam(params):
  _, state = search_state(params, Beam(5), 0)
  assert all(leaf.shape[0] == len(SOURCES) for leaf in jax.tree.leaves(state.cache.memory))
  assert all(leaf.shape[0] == 5 * len(SOURCES) for leaf in jax.tree.leaves(state.cache.own))


def test_rows_taken_in_the_middle_become_what_they_would_have(params):
  strategy = Beam(3, n_best=2)
  whole = fd.decode(TRANSFORMER, params, SOURCES, strategy, max_len=9)
  step, state = search_state(params, strategy, 2)
  state = strategy.take(state, jnp.array([2, 0]))
  while not strategy.done(state).all():
    state = step(state)
  out = strategy.result(state)
  np.testing.assert_array_equal(out.nbest_tokens, np.asarray(whole.nbest_tokens)[[2, 0]])
  np.testing.assert_array_equal(out.calls, np.asarray(whole.calls)[[2, 0]])


def test_a_sweep_over_penalties_is_one_program():
  from fastdec.decoding.decode import _decode

  fd.decode(MODEL, {}, PROMPTS, Beam(2), LENGTHS, max_len=4)
  before = _decode._cache_size()
  for alpha in (0.0, 1.0, 2):
    fd.decode(MODEL, {}, PROMPTS, Beam(2, length_penalty=GNMTPenalty(alpha * 1.0), min_len=2), LENGTHS, max_len=4)
  assert _decode._cache_size() == before


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    ({'size': 0}, 'at least 1 beam'),
    ({'size': 2, 'n_best': 3}, 'give 1 to size=2'),
    ({'size': 4, 'groups': 3}, 'a divisor of size'),
    ({'early_stopping': 'sometimes'}, "True, False or 'never'"),
    ({'no_repeat_ngram': -1}, '0 for no such rule'),
    ({'unknown_penalty': 1.0}, 'give unknown_id'),
    ({'diversity': 1.0}, 'groups=2 or more'),
    ({'max_len': (1, 2, 3)}, 'a \\* source \\+ b'),
  ],
)
def test_mistakes(settings, words):
  with pytest.raises(fd.UserError, match=words):
    Beam(**settings)
