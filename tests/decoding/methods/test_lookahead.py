"""Lookahead decoding: its pool against a dictionary, its trie against plain search, its calls
against the paper's."""

import collections
import dataclasses
from pathlib import Path
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
from fastdec.decoding import loop
from fastdec.decoding.inputs import check_inputs
from fastdec.decoding.methods import lookahead
from fastdec.decoding.methods.lookahead import Ahead, LookaheadDrafter
from fastdec.decoding.methods.ngrams import NONE, Log, cut_ngrams, merge
from fastdec.decoding.protocol import Accepted
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.topology import take_node
from fastdec.struct import Bound
from tests.decoding.methods.test_lookup import Looping, joint_law
from tests.decoding.models_table import MODELS
from tests.decoding.test_loop import some_prompts

REFERENCE = Path(__file__).parents[4] / 'shared' / 'reference' / 'hf'
WORDS, GUESSES, N = 4, 3, 3


class Pool:
  """The authors' pool: for each key the `size` values that were added last, oldest first."""

  def __init__(self, size: int) -> None:
    self.size = size
    self.values: dict[int, list[tuple[int, ...]]] = collections.defaultdict(list)

  def add(self, gram: tuple[int, ...]) -> None:
    values = self.values[gram[0]]
    if gram[1:] in values:
      values.remove(gram[1:])
    values.append(gram[1:])
    del values[: -self.size]


@jax.jit
def append(log, grams, count):
  return log.append(grams, count)


@jax.jit
def newest(log, keys):
  return log.newest(keys, GUESSES)


gram = st.tuples(*[st.integers(0, WORDS - 1)] * N)


@hypothesis.given(
  calls=st.lists(
    st.lists(st.lists(gram, max_size=4), min_size=2, max_size=2), min_size=6, max_size=6
  )
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_the_log_remembers_what_a_dictionary_would(calls):
  """There are two rows, and a call adds up to four n-grams to each."""
  log, pools = (
    Log.of(jnp.full((2, N, 1), NONE, jnp.int32), slots=24),
    [Pool(GUESSES), Pool(GUESSES)],
  )
  for call in calls:
    grams = np.full((2, N, 4), NONE, np.int32)
    for row, (pool, added) in enumerate(zip(pools, call, strict=True)):
      for i, one in enumerate(added):
        grams[row, :, i] = one
        pool.add(one)
    log = append(log, grams, np.array([len(added) for added in call], np.int32))
  for key in range(WORDS):
    values, known = newest(log, np.full(2, key, np.int32))
    for row, pool in enumerate(pools):
      logged = [tuple(value) for value in values[row][known[row]].tolist()]
      assert logged == pool.values[key][::-1]


def test_n_grams_of_a_text():
  grams = cut_ngrams(jnp.array([[5, 6, 7, 8], [5, 6, 0, 0]]), jnp.array([4, 2]), 3)
  assert grams[0].T.tolist() == [[5, 6, 7], [6, 7, 8]] and grams[1, 0].tolist() == [NONE, NONE]
  assert cut_ngrams(jnp.array([[5, 6]]), jnp.array([2]), 3).shape == (1, 3, 0)


def test_a_trie_by_hand():
  """The example of `merge`: chains a b c, a d e and an unknown one, and which nodes see each
  other."""
  chains = np.array([[[5, 6, 7], [5, 8, 9], [5, 6, 7]]])
  merged = jax.jit(merge)(chains, np.array([[True, True, False]]))
  assert merged.parents[0, :2].tolist() == [[-1, 0, 1], [-1, 0, 4]]
  assert merged.is_kept[0].tolist() == [[True] * 3, [False, True, True], [False] * 3]
  sees = [np.flatnonzero(row).tolist() for row in np.asarray(merged.sees[0, :6])]
  assert sees == [[0], [0, 1], [0, 1, 2], [3], [0, 4], [0, 4, 5]]


chains = st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=5, max_size=5)


@hypothesis.given(chains=chains, known=st.lists(st.booleans(), min_size=5, max_size=5))
@hypothesis.settings(max_examples=60, deadline=None)
def test_a_trie_has_each_beginning_once(chains, known):
  merged = jax.jit(merge)(jnp.array([chains]), jnp.array([known]))
  tokens, parents = np.ravel(chains), np.ravel(merged.parents)
  spelt = []
  for node in np.flatnonzero(merged.is_kept):
    path = [node]
    while parents[path[0]] >= 0:
      path.insert(0, parents[path[0]])
    assert path == np.flatnonzero(merged.sees[0, node]).tolist()
    spelt.append(tuple(tokens[path].tolist()))
  expected = {
    tuple(chain[: d + 1]) for chain, ok in zip(chains, known, strict=True) if ok for d in range(3)
  }
  assert len(spelt) == len(set(spelt)) and set(spelt) == expected


class Reference:
  """Greedy lookahead decoding of one text, in lists, as in the paper and its authors' code.

  The first N - 2 calls fill the window and verify nothing. A full match emits no bonus.

  Args:
    predict: the model, as a function: a list of texts -> the likeliest token after each.
  """

  def __init__(
    self, predict: Any, prompt: list[int], window: int, ngram: int, guesses: int, learns_text: bool
  ) -> None:
    self.predict, self.text, self.w, self.n = predict, list(prompt), window, ngram
    self.pool, self.learns_text = Pool(guesses), learns_text
    if learns_text:
      for i in range(len(prompt) - ngram + 1):
        self.pool.add(tuple(prompt[i : i + ngram]))
    words = np.random.default_rng(0).choice(prompt, window + ngram - 3).tolist()
    choices = predict([self.text + words[:i] for i in range(len(words) + 1)])
    self.emit(choices[:1])
    # row 0 without its first column, which is the newest token
    self.rows = [words[1:], choices[1:]]
    while len(self.rows) < ngram - 1:
      last = len(self.rows) - 1
      choices = predict([self.text, *(self.above(last, j) for j in range(len(self.rows[last])))])
      self.rows = [row[1:] for row in [*self.rows, choices[1:]]]
      self.emit(choices[:1])

  def emit(self, tokens: list[int]) -> None:
    for token in tokens:
      self.text.append(token)
      if self.learns_text and len(self.text) >= self.n:
        self.pool.add(tuple(self.text[-self.n :]))

  def above(self, row: int, column: int) -> list[int]:
    """The tokens that window node (row, column) sees, itself included."""
    return self.text + self.rows[0][:column] + [self.rows[r][column] for r in range(1, row + 1)]

  def call(self) -> int:
    """Makes one call, and returns how many tokens it emits."""
    root, last = self.text[-1], self.n - 2
    chains = self.pool.values[root]
    texts = [
      self.text,
      *(self.text + list(chain[:d]) for chain in chains for d in range(1, self.n)),
    ]
    choices = self.predict(texts + [self.above(last, j) for j in range(self.w)])
    hits: list[int] = []
    for i, chain in enumerate(chains):
      own = [choices[0], *choices[1 + i * (self.n - 1) :][: self.n - 2]]
      same = next((d for d in range(self.n - 1) if chain[d] != own[d]), self.n - 1)
      if same > len(hits):
        hits, after = list(chain[:same]), choices[1 + i * (self.n - 1) + same - 1]
    if len(hits) < self.n - 1:
      hits.append(after if hits else choices[0])
    row = choices[-self.w :]
    for j in range(self.w):
      key = self.rows[0][j - 1] if j else root
      self.pool.add((key, *(self.rows[r][j] for r in range(1, self.n - 1)), row[j]))
    self.rows = [self.rows[1][1:], *self.rows[2:], row]
    self.emit(hits)
    return len(hits)


@struct.pytree
class NoBonus(Exact):
  """As in the authors' code, no bonus follows a full match: its last token is the next root."""

  depth: int = struct.static()

  def __call__(self, keys, draft, logits, acceptable):
    accepted = super().__call__(keys, draft, logits, acceptable)
    if draft.topology.n == 1:
      return accepted
    is_full = take_node(draft.topology.depths, accepted.node) == self.depth
    above = take_node(draft.topology.parents, accepted.node)
    token = take_node(draft.tokens, accepted.node)
    return Accepted(
      jnp.where(is_full, above, accepted.node), jnp.where(is_full, token, accepted.bonus)
    )


@struct.pytree
class Filled(LookaheadDrafter):
  """Begins with the window `rows_before` and the pool `grams_before`."""

  rows_before: Any = None
  grams_before: Any = None

  def init(self, target, prefill):
    fresh = super().init(target, prefill)
    room = fresh.log.grams.shape[2]
    return dataclasses.replace(
      fresh, window=jnp.asarray(self.rows_before), log=Log.of(jnp.asarray(self.grams_before), room)
    )


def filled(reference: Reference, **settings: Any) -> Filled:
  window = np.array([[0, *reference.rows[0]], *reference.rows[1:]], np.int32)
  grams = [(key, *value) for key, values in reference.pool.values.items() for value in values] or [
    (NONE,) * reference.n
  ]
  return Filled(
    **settings, rows_before=window[None], grams_before=np.array(grams, np.int32).T[None]
  )


@pytest.mark.skipif(not REFERENCE.is_dir(), reason='needs ../shared/reference, which is not here')
@pytest.mark.parametrize('learns_text', [False, True], ids=['window alone', 'text too'])
@pytest.mark.parametrize('sizes', [(5, 3, 2), (4, 5, 3)], ids=['ngram 3', 'ngram 5'])
@pytest.mark.wide('ngram 5-text too')
def test_calls_are_those_of_the_paper(sizes, learns_text):
  """On the tiny Llama, tokens, window and pool are equal after each call."""
  model, params = fd.load(REFERENCE / 'llama_tiny')
  model = dataclasses.replace(model, config=dataclasses.replace(model.config, eos_ids=()))
  prompt = np.load(REFERENCE / 'llama_tiny' / 'expected.npz')['prompt'][0].tolist()
  window, ngram, guesses = sizes
  settings = {'window': window, 'ngram': ngram, 'guesses': guesses}
  max_len = 60

  def predict(texts: list[list[int]]) -> list[int]:
    rows = np.ones((20, 96), np.int32)  # one program for all calls of the tests
    for row, text in zip(rows, texts, strict=False):
      row[: len(text)] = text
    lengths = [*map(len, texts), *[1] * (len(rows) - len(texts))]
    out = fd.decode(model, params, rows, fd.Greedy(), lengths, max_len=1)
    return np.asarray(out.tokens)[: len(texts), 0].tolist()

  reference = Reference(predict, prompt, **settings, learns_text=learns_text)
  drafter = filled(reference, **settings, reads_prompt=learns_text, reads_text=learns_text)
  target, rule = Bound(model, params), NoBonus(ngram - 1)
  _, begun, _ = check_inputs(model, [reference.text[:-1]], None, None, max_len, None)
  begun = jax.device_put(begun)  # for what is not compiled
  state = jax.jit(lambda: loop.init(target, drafter, rule, begun, max_len, None))()
  step = jax.jit(lambda state: loop.step(target, drafter, rule, state))
  newest = jax.jit(lambda log, key: log.newest(key, guesses))
  sizes = []
  assert isinstance(state.drafter, Ahead) and state.root.tolist() == reference.text[-1:]
  while not state.done.all():
    before, state = state, step(state)
    sizes.append(reference.call())
    if state.done.all():  # cut at max_len
      break
    assert int(state.length[0] - before.length[0]) == sizes[-1]
    assert (
      state.tokens[0, int(before.length[0]) : int(state.length[0])].tolist()
      == reference.text[-sizes[-1] :]
    )
    assert state.drafter.window[0].reshape(-1)[1:].tolist() == [
      token for row in reference.rows for token in row
    ]
    for key, values in reference.pool.values.items():
      logged, known = newest(state.drafter.log, np.array([key], np.int32))
      assert [tuple(value) for value in logged[0][known[0]].tolist()] == values[::-1]
  assert len(sizes) > 12 and {1, ngram - 1} <= set(sizes)


def test_text_that_repeats_itself_takes_long_blocks():
  prompts, lengths = some_prompts(0, rows=12)
  greedy, out = (
    fd.decode(Looping(), {}, prompts, strategy, lengths, max_len=60)
    for strategy in (fd.Greedy(), fd.Lookahead(4, 4, 3))
  )
  np.testing.assert_array_equal(out.tokens, greedy.tokens)
  loops = np.asarray(out.lengths) == 60
  assert loops.sum() > 3
  sizes = np.asarray(out.block_sizes)[loops]
  assert (sizes[:, :12].max(axis=1) == 4).all()  # three guesses and the bonus
  assert (sizes.sum(axis=1) / (sizes > 0).sum(axis=1) > 2.5).all()


SAMPLING = {
  'lookahead': fd.Lookahead(2, 3, 3, sampling=fd.Sampling(5.0, top_p=0.95)),
  'jacobi': fd.Jacobi(3, sampling=fd.Sampling(5.0, top_p=0.95)),
}


def sampled(name='lookahead', rows=40_000):
  """The model, the counts of the first three tokens, and the mean block size."""
  model = Looping(vocab_size=5)
  prompts = np.repeat(np.array([[4, 2, 3, 4, 2, 2, 4, 2, 4, 3, 2, 4]], np.int32), rows, axis=0)
  out = fd.decode(model, {}, prompts, SAMPLING[name], max_len=4, key=jax.random.key(7))
  counts = np.zeros((5, 5, 5))
  np.add.at(counts, tuple(np.asarray(out.tokens[:, :3]).T), 1)
  return model, counts, out.mean_block_size


def p_value_of(counts, law):
  likely = law * counts.sum() > 10
  assert likely.sum() > 15 and not counts[law == 0].any()
  return chisquare(counts[likely], law[likely] / law[likely].sum() * counts[likely].sum()).pvalue


@pytest.mark.slow  # test_lookup.py has this rule's law
@pytest.mark.parametrize('name', SAMPLING)
def test_sampling_keeps_the_law(name):
  """The first three tokens follow the model's own law. In the prompt words are followed by the same
  word and then by different ones, so guesses would be equal siblings if they were not merged."""
  model, counts, mean = sampled(name)
  assert mean > {'lookahead': 1.3, 'jacobi': 1.2}[name]  # guesses were accepted
  assert p_value_of(counts, joint_law(model, 4, 5.0, 0.95)) > 1e-3
  assert p_value_of(counts, joint_law(model, 4, 0.95 * 5.0, 0.95)) < 1e-6


@pytest.mark.slow
def test_guesses_that_are_not_merged_bend_the_law(monkeypatch):
  """Below each of several equal tokens the model's choice is drawn, and the luckiest one is
  kept."""

  def side_by_side(chains, known):
    g, c = known.shape[1], chains.shape[2]
    # as if all tokens were different
    merged = merge(jnp.arange(g * c).reshape(1, g, c) + jnp.zeros_like(chains), known)
    return dataclasses.replace(merged, is_kept=jnp.broadcast_to(known[:, :, None], chains.shape))

  monkeypatch.setattr(lookahead, 'merge', side_by_side)
  jax.clear_caches()
  model, counts, _ = sampled()
  jax.clear_caches()
  assert p_value_of(counts, joint_law(model, 4, 5.0, 0.95)) < 1e-9


@pytest.mark.parametrize('name', ['transformer', 'image', 'lm with windows'])
@pytest.mark.wide('transformer')
def test_the_first_words_are_of_the_source_or_the_prompt_or_likely(name, monkeypatch):
  model = MODELS[name]
  calls = []
  guess_words = lookahead.guess_words

  def recorded(target, prefill, length):
    words = guess_words(target, prefill, length)
    jax.debug.callback(lambda words: calls.append(words.tolist()), words)
    return words

  monkeypatch.setattr(lookahead, 'guess_words', recorded)
  with jax.enable_x64(True):
    params = model.init(jax.random.key(0))
  inputs = np.zeros((1, 1, 1, 3), np.uint8) if name == 'image' else [[3, 2, 4]]
  with jax.enable_x64(True):
    fd.decode(model, params, inputs, fd.Lookahead(3, 3, 1), max_len=2 if name != 'image' else None)
  jax.effects_barrier()
  if name == 'image':
    assert len(set(calls[-1][0])) == 4
  else:
    assert calls[-1] == [[3, 2, 4, 3]]


def test_a_window_wider_than_the_model_s_positions():
  wanted = 'window=62 and ngram=5 look 65 tokens ahead, and the model has 64 positions'
  with pytest.raises(fd.UserError, match=wanted):
    fd.decode(MODELS['fconv'], {}, [[3]], fd.Lookahead(window=62), max_len=4)
