"""Processors: the laws that transformers computes, at every node."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

import fastdec as fd
from fastdec import struct
from fastdec.decoding.law import Emitted, begin, change, observe
from fastdec.decoding.protocol import Draft, Prompt
from fastdec.decoding.request import with_ends
from fastdec.decoding.sampling import Sampling
from fastdec.decoding.topology import Topology
from fastdec.evaluation.calls import Drafted
from fastdec.laws.processors import NUMBERS, Processing
from fastdec.models.api import causal
from fastdec.struct import Bound
from tests.decoding.fakes import EOS, HashLM, Scripted
from tests.decoding.methods_table import hash_kit

MODEL, MAX_LEN = HashLM(), 16
PROMPTS = np.array([[3, 4, 5, 3], [6, 7, 8, 0], [2, 9, 0, 0]], np.int32)
LENGTHS = np.array([4, 3, 2], np.int32)
ALL = fd.Processors(
  repetition_penalty=np.array([1.25, 1.5, 0.75]),
  presence_penalty=0.5,
  frequency_penalty=np.array([0.25, 0.5, 0.0]),
  no_repeat_ngram=2,
  min_length=6,
  bad_words=[[9, 2], 12],
  bias={3: 1.5, (4, 5): 2.0, (6, 7, 8): -3.0, (10,): 0.5, (11, 10): 4.0},
  forced_end=EOS,
  min_new_tokens=np.array([9, 3, 0]),
  begin_suppress=[4, 7],
  encoder_repetition_penalty=1.125,
  encoder_no_repeat_ngram=3,
  length_decay=(8, 1.25),
)


def decoded(strategy, processors=ALL, model=MODEL):
  lengths = {'prompt_lengths': LENGTHS, 'max_len': MAX_LEN}
  return fd.decode(model, {}, PROMPTS, strategy, **lengths, processors=processors)


@struct.pytree
class OfTheRoot:
  """A wrong law: all nodes have the processors of the root."""

  law: Processing

  def init(self, model, prompt, max_len):
    return self.law.init(model, prompt, max_len)

  def observe(self, state, emitted):
    return self.law.observe(state, emitted)

  def take(self, rows):
    return OfTheRoot(self.law.take(rows))

  def __call__(self, state, draft, logits):
    root = Draft(draft.tokens[:, :1], Topology.chain(1))
    each = [self.law(state, root, logits[:, i : i + 1]) for i in range(logits.shape[1])]
    return jnp.concatenate(each, axis=1)


class Wrong(fd.Processors):
  def laws(self, model, rows, waits=False):
    return tuple(OfTheRoot(law) for law in super().laws(model, rows, waits))


def test_the_processors_of_the_root_are_wrong_after_it():
  """The guesses are the right text: the right law accepts all of them."""
  plain = np.asarray(decoded(fd.Greedy()).tokens)
  guesses = Drafted(Scripted(plain, 0, nodes=4, chain=True, skill=1.0))
  right = decoded(guesses)
  np.testing.assert_array_equal(right.tokens, plain)
  assert right.mean_block_size > 2.5
  settings = {name: getattr(ALL, name) for name in fd.Processors.__dataclass_fields__}
  assert (np.asarray(decoded(guesses, Wrong(**settings)).tokens) != plain).any()


def test_processors_that_are_off_make_no_law():
  assert fd.Processors().laws(MODEL, 3) == ()
  plain = decoded(fd.Greedy(), None)
  np.testing.assert_array_equal(decoded(fd.Greedy(), fd.Processors()).tokens, plain.tokens)
  assert (np.asarray(plain.tokens) != np.asarray(decoded(fd.Greedy()).tokens)).any(1).all()


@pytest.mark.parametrize('setting, word, large', [
  ({'length_decay': (0, 4.0), 'min_new_tokens': 70}, EOS, [2, -2]),
  ({'length_decay': (70, 1e6)}, EOS, [2, -2]),
  ({'repetition_penalty': 1e-37}, 3, [2]),
  ({'encoder_repetition_penalty': 1e-37}, 3, [-2]),
  ({'encoder_repetition_penalty': 1e6, 'repetition_penalty': 1e-37}, 3, [2]),
])  # fmt: skip
def test_a_factor_beyond_float32_leaves_logits_finite(setting, word, large):
  """Also at a low temperature."""
  (law,) = fd.Processors(**setting).laws(MODEL, 1)
  one = np.ones(1, np.int32)
  prompt = Prompt(None, np.array([[3]], np.int32), one, np.zeros(1, bool), 1000 * one)
  draft = Draft(jnp.array([[3]], jnp.int32), Topology.chain(1))

  @jax.jit
  def laws_of(logits, cold):
    length = jnp.array([1 + 90], jnp.int32)
    state = dataclasses.replace(law.init(MODEL, prompt, 1000), length=length)
    made = law(state, draft, logits)[0, 0]
    return made, cold.log_probs(made)

  for own in (2, -2, 0):
    logits = np.full((1, 1, 14), own, np.float32)
    logits[..., 0] = -np.inf
    made, log_probs = jax.device_get(laws_of(logits, Sampling(1e-6)))
    assert made[0] == -np.inf and np.isfinite(made[1:]).all()
    assert (abs(made[word]) > 1e20) == (own in large)
    assert np.isfinite(log_probs[word])


def test_a_stream_decodes_with_processors():
  plain = decoded(fd.Greedy())
  how = {'prompt_lengths': LENGTHS, 'max_len': MAX_LEN, 'processors': ALL}
  blocks = list(fd.stream(MODEL, {}, PROMPTS, fd.Greedy(), **how))
  for i, row in enumerate(plain.tokens):
    joined = [token for block in blocks for token in block[i]]
    assert joined == row[: plain.lengths[i]].tolist()


@pytest.mark.slow  # test_law.py has drafted ones by default
@pytest.mark.parametrize('is_drafted', [False, True])
def test_each_row_draws_by_its_own_settings(is_drafted):
  """A row draws the same as when it is decoded by itself, also in a pool. A row of temperature 0 is
  greedy."""
  own = [
    {'temperature': 0.0}, {'temperature': 2.0, 'top_k': 3},
    {'temperature': 1.5, 'top_p': 0.7, 'min_p': 0.1},
  ]  # fmt: skip
  plain = {'temperature': 1.0, 'top_k': 0, 'top_p': 1.0, 'min_p': 0.0}
  columns = {name: [(plain | one)[name] for one in own] for name in plain}
  keys, limit = jax.random.split(jax.random.key(3), 3), [5, 16, 9]
  inputs = [row[:length] for row, length in zip(PROMPTS, LENGTHS, strict=True)]
  strategy = fd.Sample(**columns)
  if is_drafted:
    strategy = fd.Speculative(hash_kit().draft, 3, sampling=fd.Sampling(**columns))
  out = fd.decode(MODEL, {}, inputs, strategy, max_len=limit, key=keys, processors=ALL)
  pool = fd.decode_all(MODEL, {}, inputs, strategy, limit, rows=2, key=keys, processors=ALL)
  np.testing.assert_array_equal(pool.tokens, out.tokens)
  assert (np.asarray(out.lengths) <= limit).all()
  for i, settings in enumerate(own):
    if i and is_drafted:
      continue  # drafts use other draws
    # three times, to use the same program
    same = {name: [value] * 3 for name, value in (plain | settings).items()}
    alone = fd.Sample(**same) if i else fd.Greedy()
    numbers = {name: np.broadcast_to(getattr(ALL, name), 3)[[i] * 3] for name in NUMBERS}
    how = {'max_len': [limit[i]] * 3, 'key': keys[np.array([i] * 3)]}
    how['processors'] = dataclasses.replace(ALL, **numbers)
    expected = fd.decode(MODEL, {}, [inputs[i]] * 3, alone, **how).tokens
    np.testing.assert_array_equal(out.tokens[i, : limit[i]], expected[2])


MISTAKES = [
  (lambda: fd.Processors(repetition_penalty=0), 'repetition_penalty=0 is not possible'),
  (lambda: fd.Processors(frequency_penalty='much'), 'frequency_penalty=.much. is not possible'),
  (lambda: fd.Processors(no_repeat_ngram=-1), 'no_repeat_ngram=-1 is not possible'),
  (lambda: fd.Processors(bad_words=[[]]), 'bad_words: .* give 1 to 64 tokens'),
  (lambda: fd.Processors(bias={3: float('inf')}), 'bias=inf is not possible'),
  (lambda: fd.Processors(length_decay=3), 'length_decay=3 is not possible'),
  (lambda: decoded(fd.Greedy(), fd.Processors(bias={14: 1.0})), 'bias has the token 14'),
  (lambda: decoded(fd.Greedy(), fd.Processors(bad_words=[[3, 99]])), 'bad_words has the token 99'),
  (lambda: decoded(fd.Greedy(), fd.Processors(forced_begin=[1, 2, 77])), 'forced_begin has .* 77'),
  (lambda: decoded(fd.Greedy(), fd.Processors(min_length=[1, 2])), '2 numbers, and there are 3'),
  (lambda: decoded(fd.Sample([1.0, 2.0])), 'temperature has 2 numbers, and there are 3 rows'),
  (lambda: fd.decode(MODEL, {}, PROMPTS, fd.Greedy(), max_len=[1, 2]), 'max_len has 2 numbers'),
  (lambda: fd.decode(MODEL, {}, PROMPTS, fd.Greedy(), logprobs=-1), 'logprobs=-1 is not possible'),
]


@pytest.mark.parametrize(('work', 'message'), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes_are_refused_before_any_work(work, message):
  with pytest.raises(fd.UserError, match=message):
    work()


# transformers' cases -------------------------------------------------------------------------


def cases(folder, shared):
  """{name of a case: its generation settings} of a model."""
  path = shared / f'reference/generation/{folder}/settings.json'
  return json.loads(path.read_text())['cases']


TINY = ('llama_tiny', 'marian2_tiny', 't5_tiny')


@pytest.mark.filterwarnings('ignore::fastdec.UserNote')  # the test passes the processors itself
@pytest.mark.parametrize('folder', [pytest.param(name, marks=pytest.mark.slow) for name in TINY])
def test_texts_are_those_of_transformers(folder, shared):
  """In each case of a model: greedy texts by logits, beams by log-probabilities."""
  place = shared / f'reference/generation/{folder}'
  own = shared / f'reference/hf/{folder}'
  model, params = fd.load(own)
  defaults = json.loads((own / 'generation_config.json').read_text())
  is_source = model.start_id is not None
  for name, settings in cases(folder, shared).items():
    if name == 'ragged' or settings.get('do_sample'):
      continue
    expected = np.load(place / f'expected_{name}.npz')
    max_len, beams = settings.get('max_new_tokens', 24), settings.get('num_beams', 1)
    strategy = fd.Greedy()
    if beams > 1:
      strategy = fd.Beam(beams, length_penalty=fd.PowerPenalty(settings['length_penalty']))
    inputs = expected['source' if is_source else 'prompt']
    processors = fd.Processors.of({**defaults, **settings})
    out = fd.decode(model, params, inputs, strategy, max_len=max_len, processors=processors)
    want = expected['greedy' if beams == 1 else 'beam4'][:, is_source:]
    for row, length in enumerate(out.lengths):
      np.testing.assert_array_equal(out.tokens[row, :length], want[row, :length], f'{name} {row}')
    if beams > 1:
      np.testing.assert_allclose(out.scores, expected['beam4_scores'], atol=2e-4)


def test_rows_of_several_lengths_are_those_of_transformers(shared):
  model, params = fd.load(shared / 'reference/hf/llama_tiny')
  expected = np.load(shared / 'reference/generation/llama_tiny/expected_ragged.npz')
  out = fd.decode(
    model, params, expected['prompt'], fd.Greedy(), expected['prompt_length'], max_len=24,
    processors=fd.Processors.of(cases('llama_tiny', shared)['ragged']),
  )  # fmt: skip
  for row, length in enumerate(out.lengths):
    np.testing.assert_array_equal(out.tokens[row, :length], expected['greedy'][row, :length])


@pytest.mark.slow
def test_scores_of_the_first_steps_are_those_of_transformers(shared):
  """All four steps at once, at the nodes of a chain of the right tokens."""
  model, params = fd.load(shared / 'reference/hf/llama_tiny')
  for name, settings in cases('llama_tiny', shared).items():
    expected = np.load(shared / f'reference/generation/llama_tiny/expected_{name}.npz')
    if 'scores' not in expected:
      continue
    ended, tokens = with_ends(model, fd.Processors.of(settings)), expected['greedy'][:, :4]
    text = np.concatenate([expected['prompt'], tokens], axis=1)
    scores = scores_of(ended, params, text, settings)
    ends = np.isin(tokens, ended.eos_ids).cumsum(1) - np.isin(tokens, ended.eos_ids)
    scores = np.where((ends > 0)[..., None], expected['scores'], scores)
    np.testing.assert_allclose(scores, expected['scores'], atol=1e-4, err_msg=name)


def scores_of(model, params, text, settings):
  """Returns the processed logits for the last four tokens of each text."""
  b, t = text.shape
  cache = model.init_cache(params, None, b, t)
  hidden = model.apply(params, jnp.asarray(text), causal(t), cache)[0]
  logits = model.unembed(params, hidden)[:, t - 5 : t - 1]
  target = Bound(model, params, fd.Processors.of(settings).laws(model, b))
  prompt = Prompt(None, text[:, :-4], np.full(b, t - 4), np.zeros(b, bool))
  states = begin(target, prompt, settings.get('max_new_tokens', 24))
  draft = Draft(jnp.asarray(text[:, t - 5 : t - 1]), Topology.chain(4))
  return change(target, states, draft, logits)


# Settings that warp the law of a sample, in the order in which transformers applies them.
WARPS = ('temperature', 'top_k', 'top_p', 'min_p')
# Warps of transformers that fastdec does not have.
LACKING = ('typical_p', 'epsilon_cutoff', 'eta_cutoff', 'top_h')


@pytest.mark.slow
def test_laws_of_single_places_are_those_of_transformers(shared):
  place = shared / 'reference/generation/laws'
  reference = json.loads((place / 'settings.json').read_text())
  expected = np.load(place / 'expected.npz')
  logits, ids = expected['logits'], expected['ids']
  model = HashLM(vocab_size=logits.shape[1], eos_ids=(2,), suppressed_ids=())
  b, n = len(ids), reference['prompt_length']
  prompt = Prompt(None, ids[:, :n], np.full(b, n), np.zeros(b, bool))
  for name, settings in reference['cases'].items():
    if any(word in settings for word in LACKING):
      continue
    target = Bound(model, {}, fd.Processors.of(settings).laws(model, b))
    states = begin(target, prompt, 24)
    for i in range(n, ids.shape[1]):
      newest, nodes = jnp.asarray(ids[:, i : i + 1]), jnp.zeros((b, 1), int)
      one = Emitted(newest, jnp.ones(b, int), nodes, jnp.asarray(logits)[:, None])
      states = observe(target, states, one)
    draft = Draft(jnp.asarray(ids[:, -1:]), Topology.chain(1))
    processed = change(target, states, draft, jnp.asarray(logits)[:, None])
    warps = {word: settings[word] for word in WARPS if word in settings}
    law = np.exp(Sampling(**warps).log_probs(processed))[:, 0]
    rows = reference['rows'][name]
    np.testing.assert_allclose(law[rows], expected[f'probs_{name}'][rows], atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['law2_nucleus', 'law2_penalty'])
def test_two_sampled_tokens_have_the_law_of_transformers(name, shared):
  settings = cases('llama_tiny', shared)[name]
  expected = np.load(shared / f'reference/generation/llama_tiny/expected_{name}.npz')
  model, params = fd.load(shared / 'reference/hf/llama_tiny')
  warps = {word: settings[word] for word in WARPS if word in settings}
  rows, law2 = 4000, expected['law2'].ravel()
  inputs = np.repeat(expected['prompt'], rows, axis=0)
  out = fd.decode(
    model, params, inputs, fd.Sample(**warps), max_len=2, key=jax.random.key(0),
    processors=fd.Processors.of(settings),
  )  # fmt: skip
  first, second = np.asarray(out.tokens).T
  second = np.where(np.isin(first, settings.get('eos_token_id', 2)), 0, second)
  counts = np.bincount(first * model.vocab_size + second, minlength=law2.size)
  assert not counts[law2 == 0].any()
  often = law2 * rows > 5
  seen = [*counts[often], counts[~often].sum()]
  wanted = [*(rows * law2[often]), rows * law2[~often].sum() + 1e-9]
  assert chisquare(seen, np.array(wanted) * sum(seen) / sum(wanted)).pvalue > 1e-3
