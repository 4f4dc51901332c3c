"""Eagle and BlockDraft: the memory of their drafters, the law of their samples, and the messages of
wrong settings.

test_strategies.py, test_loop.py and test_pool.py test that they are lossless, and the same in every
batch.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec import struct
from fastdec.decoding.inputs import check_inputs
from fastdec.decoding.strategy import LoopStrategy
from fastdec.heads.block import BlockNetwork
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.medusa import MedusaHeads
from fastdec.heads.words import suppress_words
from fastdec.models.lm import LMConfig
from fastdec.models.stacks import StackConfig
from fastdec.struct import Bound
from tests.decoding.fakes import HashLM
from tests.decoding.models_table import MODELS, WORDS, made
from tests.decoding.rules.test_rejection import check_million, p_value
from tests.decoding.test_models import KINDS, Misled, counts, law_by_scores

pytestmark = pytest.mark.usefixtures('in_float64')

MAX_LEN = 14
LM_LAYERS = LMConfig(d_model=8, d_ff=12, layers=2, heads=2, key_heads=1, dtype='float64')
STACK_LAYERS = StackConfig(
  d_model=8, d_ff=12, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0,
  attention_dropout=0.0, activation_dropout=0.0, dtype='float64',
)  # fmt: skip
SIZES = {'lm with windows': {'layers': LM_LAYERS}, 'transformer': {'layers': STACK_LAYERS}}
SIZES = {name: sizes | {'vocab_size': WORDS, 'd_target': 8} for name, sizes in SIZES.items()}
TAPS = {'taps': (0, 1), 'fuses': True}


@functools.cache
def bound(module):
  """A module with noise on all its parameters, so that none keeps a first value such as zero."""
  rng = np.random.default_rng(5)

  def noisy(x):
    if x.dtype == jnp.int32:
      return x
    return jnp.asarray(np.asarray(x, float) + rng.normal(scale=0.5, size=x.shape))

  return Bound(module, jax.tree.map(noisy, module.init(jax.random.key(0))))


def eagle(name, **settings):
  return bound(EagleNetwork(**SIZES[name], **settings))


def block(name, **settings):
  return bound(BlockNetwork(**SIZES[name], **{'k': 4, 'markov': 3} | settings))


# Rules for chains and for trees that accept many drafts, right or wrong.
LONG, WIDE = fd.MinBlock(fd.Exact(), 3), fd.TopN(4)
REMEMBERING = {
  'eagle, a tree': ('lm with windows', lambda of: fd.Eagle(eagle(of, **TAPS), 3, 2, 6, WIDE)),
  'eagle, a chain': ('transformer', lambda of: fd.Eagle(eagle(of, words=4), 3, rule=LONG)),
  'block, a tree': ('transformer',
    lambda of: fd.BlockDraft(block(of, **TAPS), choices=8, rule=WIDE)),
  'block, a chain': ('lm with windows',
    lambda of: fd.BlockDraft(block(of, markov_kind='rnn'), rule=LONG)),
}  # fmt: skip


@pytest.mark.parametrize('name', REMEMBERING)
@pytest.mark.wide('eagle, a chain')  # test_published_drafts.py has blocks
def test_a_drafter_remembers_what_one_would_that_begins_behind_the_text_so_far(name):
  """It remembers the accepted tokens with the target's features, and none of its guesses. Rows end
  one after another."""
  of, make = REMEMBERING[name]
  case, strategy = made(of), make(of)
  target, rows = Bound(case.model, case.params), case.rows()
  _, prompt, _ = check_inputs(
    case.model, rows['inputs'], rows.get('prompt_lengths'), None, MAX_LEN, None
  )
  prompt = dataclasses.replace(
    prompt,
    tokens=jnp.pad(prompt.tokens, ((0, 0), (0, MAX_LEN))),
    limit=jnp.array([MAX_LEN, 4, 9], jnp.int32),
  )
  begin = jax.jit(lambda prompt: strategy.init(target, prompt, MAX_LEN, None))
  step = jax.jit(lambda state: strategy.step(target, state))
  state, looked = begin(prompt), 0
  while not state.done.all():
    state = step(state)
    fresh = begin(behind(prompt, state))
    for row in np.flatnonzero(~state.done):
      assert fresh.root[row] == state.root[row]
      for old, new in zip(remembered(state, row), remembered(fresh, row), strict=True):
        np.testing.assert_allclose(old, new, rtol=0, atol=1e-9)
      looked += 1
  assert looked > 2 and state.block_sizes.max() > 2


@jax.jit
def guessed(strategy, target, prompt):
  """Returns the first guesses after token 4."""
  state = strategy.init(target, prompt, MAX_LEN, jax.random.split(jax.random.key(0), 3))
  root = jnp.full(3, 4, jnp.int32)
  return strategy.drafter.propose(target, state.drafter, root, None)[0].tokens


def test_a_static_tree_has_the_same_guesses_at_any_temperature():
  """Also where all words are candidates and no bias corrects them, as in published DFlash
  drafts."""
  case, tree = made('lm with windows'), [[0], [2], [0, 1], [2, 0]]
  target, draft = (
    Bound(case.model, case.params),
    block('lm with windows', markov=0, candidates=None),
  )
  rows = case.rows()
  _, prompt, _ = check_inputs(
    case.model, rows['inputs'], rows['prompt_lengths'], None, MAX_LEN, None
  )
  guesses = []
  for temperature in (0.0, 1.0):
    strategy = fd.BlockDraft(draft, choices=tree, sampling=fd.Sampling(temperature))
    guesses.append(guessed(strategy, target, prompt))
  np.testing.assert_array_equal(*guesses)


@pytest.mark.parametrize('words', [None, WORDS - 2])
@pytest.mark.wide('4')
def test_a_block_is_the_best_path_over_all_of_its_words(words):
  """Against plain Python, also with a draft vocabulary whose ids have another order."""
  case, (module, params) = made('lm with windows'), block('lm with windows', words=words)
  if words is not None:
    params = params | {
      'ids': jnp.asarray(np.random.default_rng(1).permutation(WORDS)[:words], jnp.int32)
    }
  target, strategy = Bound(case.model, case.params), fd.BlockDraft((module, params))
  rows = case.rows()
  _, prompt, _ = check_inputs(
    case.model, rows['inputs'], rows['prompt_lengths'], None, MAX_LEN, None
  )
  root = jnp.array([4, 2, 5], jnp.int32)

  @jax.jit
  def drafted(prompt):
    state = strategy.init(target, prompt, MAX_LEN, None).drafter
    states = module.read(params, target, root, state.last, state.cache)
    logits = module.logits(params, target, states)
    tokens = strategy.drafter.propose(target, state, root, None)[0].tokens
    return tokens, suppress_words(params, logits, case.model.suppressed_ids)

  tokens, logits = drafted(prompt)
  ids = np.asarray(params.get('ids', np.arange(WORDS)))
  for row in range(3):
    path = [int(root[row])]
    for scores in np.asarray(logits)[row]:
      corrected = scores + np.asarray(params['after']) @ np.asarray(params['before'])[path[-1]]
      path.append(int(ids[corrected.argmax()]))
    assert tokens[row].tolist() == path


def behind(prompt, state):
  """A prompt of all emitted tokens but the root."""
  tokens, length = np.array(prompt.tokens), state.length - 1
  for row, (begun, emitted) in enumerate(zip(prompt.length.tolist(), length.tolist(), strict=True)):
    tokens[row, begun : begun + emitted] = state.tokens[row, :emitted]
  return dataclasses.replace(prompt, tokens=jnp.asarray(tokens), length=prompt.length + length)


def remembered(state, row):
  """The drafter's memory of one row: its committed keys and values, and the state that the next
  draft begins with."""
  own = state.drafter.cache.own
  length = int(own.length[row])
  entries = []
  for layer in own.layers:
    entries += [layer.k[row, ..., :length], layer.v[row, :, :length]]
  return [*entries, state.drafter.last[row]]


@struct.pytree
class Unbiased:
  """A drafter that reports the laws without the Markov bias, unless it is honest."""

  drafter: Any
  honest: Any

  @property
  def nodes(self):
    return self.drafter.nodes

  def init(self, target, prefill):
    return self.drafter.init(target, prefill)

  def propose(self, target, state, root, keys):
    draft, _ = self.drafter.propose(target, state, root, keys)
    module, params = self.drafter.draft
    plain = dataclasses.replace(
      self.drafter, draft=Bound(dataclasses.replace(module, markov=0), params)
    )
    wrong, _ = plain.propose(target, state, root, keys)
    q_bnv = jnp.where(self.honest, draft.probabilities, wrong.probabilities)
    return dataclasses.replace(draft, probabilities=q_bnv), state

  def observe(self, target, state, step):
    return self.drafter.observe(target, state, step)


@struct.pytree
class Doubted(LoopStrategy):
  """A one-pass draft whose reported law may be wrong."""

  strategy: fd.BlockDraft
  honest: Any

  @property
  def drafter(self):
    return Unbiased(self.strategy.drafter, self.honest)

  @property
  def effective_rule(self):
    return self.strategy.effective_rule


OF = 'lm with windows'
WARM = KINDS[OF]
RULES = {'rejection': fd.Rejection(), 'block verification': fd.BlockVerification()}


def eagle_chain(rule, honest):
  misled = Misled(rule, jnp.float64(0.0 if honest else 0.5))
  return fd.Eagle(eagle(OF, **TAPS, words=4), 2, rule=misled, sampling=fd.Sampling(WARM))


def block_chain(rule, honest):
  module, params = block(OF, k=3, candidates=4)
  # the bias decides the samples, at this temperature too
  biased = module, params | {'after': 8 * params['after']}
  return Doubted(fd.BlockDraft(biased, rule=rule, sampling=fd.Sampling(WARM)), jnp.array(honest))


CHAINS = {'eagle': eagle_chain, 'block': block_chain}


def eagle_tree(rule, honest):
  misled = Misled(rule, jnp.float64(0.0 if honest else 0.5))
  network = eagle(OF, **TAPS, words=4)
  return fd.Eagle(network, choices=(2, 2), rule=misled, sampling=fd.Sampling(WARM))


def block_tree(rule, honest):
  chain = block_chain(rule, honest)
  return dataclasses.replace(chain, strategy=dataclasses.replace(chain.strategy, choices=(2, 2)))


TREES = {
  'recursive rejection': (eagle_tree, fd.RecursiveRejection()),
  'recursive rejection, independent': (block_tree, fd.RecursiveRejection('independent')),
  'traversal': (eagle_tree, fd.Traversal()),
  'traversal, independent': (block_tree, fd.Traversal('independent')),
  'univer': (eagle_tree, fd.UniVer()),
  'univer, block': (block_tree, fd.UniVer()),
}


def seen(strategy, rows, chunks=1):
  """Counts how often each text of three tokens is written after the first prompt."""
  case, law, times = made(OF), law_by_scores(OF), 0
  inputs = {name: np.repeat(x[:1], rows, axis=0) for name, x in case.rows().items()}
  for chunk in range(chunks):
    key = jax.random.key(chunk)
    out = fd.decode(case.model, case.params, **inputs, strategy=strategy, max_len=5, key=key)
    assert 1.2 < out.mean_block_size < 2.8  # drafts are accepted, and taken back
    times = times + counts(out, law)
  return times


@pytest.mark.parametrize('chain, rule', [('eagle', 'rejection'), ('block', 'block verification')])
@pytest.mark.wide('eagle-*')
def test_chains_have_the_law_of_the_target_and_with_a_wrong_q_they_have_not(chain, rule):
  law = law_by_scores(OF)
  assert p_value(seen(CHAINS[chain](RULES[rule], True), 5_000), law) > 1e-3
  assert p_value(seen(CHAINS[chain](RULES[rule], False), 5_000), law) < 1e-9


@pytest.mark.parametrize('name', TREES)
@pytest.mark.wide('traversal', 'univer, block')
def test_drawn_trees_have_the_law_of_the_target_and_with_a_wrong_q_they_have_not(name):
  (tree, rule), law = TREES[name], law_by_scores(OF)
  assert p_value(seen(tree(rule, True), 5_000), law) > 1e-3
  assert p_value(seen(tree(rule, False), 5_000), law) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize('name', TREES)
def test_a_million_texts_of_drawn_trees_show_a_shift_of_one_percent_and_there_is_none(name):
  tree, rule = TREES[name]
  check_million(seen(tree(rule, True), 10_000, 100), law_by_scores(OF))


@pytest.mark.slow  # test_grown_trees.py tests the law of a different drafter
def test_a_tree_that_grows_has_the_law_of_the_target():
  strategy = fd.Eagle(eagle(OF, **TAPS), 2, 2, 5, sampling=fd.Sampling(WARM))
  assert p_value(seen(strategy, 10_000), law_by_scores(OF)) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize('rule', RULES)
@pytest.mark.parametrize('chain', CHAINS)
def test_a_million_samples_show_a_shift_of_one_percent_and_there_is_none(chain, rule):
  law = law_by_scores(OF)
  times = seen(CHAINS[chain](RULES[rule], True), 10_000, 100)
  check_million(times, law)


@dataclasses.dataclass(frozen=True)
class Mute(HashLM):
  """Reads a source, but has no states of it."""

  start_id: int | None = 2


@dataclasses.dataclass(frozen=True)
class Seeing(HashLM):
  """Has embeddings, but no taps."""

  def embedding(self, params, tokens):
    return tokens[..., None].astype(jnp.float32)


LINE = LMConfig(d_model=1, heads=1, key_heads=1, head_width=2)
HASH = {'layers': LM_LAYERS, 'vocab_size': 14, 'd_target': 1, 'fuses': True}  # for `HashLM`
NETWORK = EagleNetwork(**SIZES[OF])
BLOCK = BlockNetwork(**SIZES[OF], k=4, candidates=2)
HEADS = MedusaHeads(depth=3, d_model=8, vocab_size=WORDS)


@pytest.mark.parametrize('make, message', [
  (lambda: fd.Eagle((BLOCK, {})),
    'with EagleNetwork, not with BlockNetwork: Eagle takes an EagleNetwork'),
  (lambda: fd.BlockDraft((NETWORK, {})), 'with BlockNetwork, not with EagleNetwork'),
  (lambda: fd.Eagle((HEADS, {})), 'not with MedusaHeads.*Medusa take heads'),
  (lambda: fd.Eagle((NETWORK, {}), 3, 2, 3), 'nodes=3 is not possible.* has at least 4'),
  (lambda: fd.Eagle((NETWORK, {}), 0), 'depth=0'),
  (lambda: fd.Eagle((NETWORK, {}), width=WORDS + 1),
    'width=7 is not possible: this draft has 6 candidates'),
  (lambda: fd.Eagle((NETWORK, {}), rule=fd.Exact(), sampling=fd.Sampling(1.0)),
    'Exact does not sample.*give Rejection'),
  (lambda: fd.Eagle((NETWORK, {}), width=2, rule=fd.Rejection(), sampling=fd.Sampling(1.0)),
    'Rejection needs a chain'),
  (lambda: fd.Eagle((NETWORK, {}), width=2, rule=fd.Exact(), sampling=fd.Sampling(1.0)),
    'leave out the rule for a tree'),
  (lambda: fd.Eagle((NETWORK, {}), width=2, rule=fd.Traversal(), sampling=fd.Sampling(1.0)),
    'Traversal needs a tree of a static shape.*choices='),
  (lambda: fd.Eagle((NETWORK, {}), choices=(1, 7)), 'width=7 is not possible'),
  (lambda: fd.Eagle((NETWORK, {}), choices=(300, 300)), 'nodes=90301 is more than a call can hold'),
  (lambda: fd.Traversal('equal'), "siblings='equal' is not possible: known are distinct"),
  (lambda: fd.BlockDraft((BLOCK, {}), k=5), 'k=5 is out of range.*give 2 <= k <= 4'),
  (lambda: fd.BlockDraft((BLOCK, {}), choices=[[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]),
    'a tree 4 deep'),
  (lambda: fd.BlockDraft((BLOCK, {}), choices=[[0], [1], [2]]),
    'rank 2 is not possible: a draft has 2 candidates'),
  (lambda: fd.BlockDraft((BLOCK, {}), choices=3), 'nodes=3 is not possible'),
  (lambda: fd.BlockDraft((BLOCK, {}), choices=8, rule=fd.BlockVerification()),
    'BlockVerification needs a chain'),
])  # fmt: skip
def test_settings_that_are_not_possible(make, message):
  with pytest.raises(fd.UserError, match=message):
    make()


@pytest.mark.parametrize('of, change, message', [
  (OF, {'d_target': 4, 'fuses': True}, 'hidden states of 4, and this model has 8'),
  (OF, {'vocab_size': 7}, 'is for 7 words, and this model has 6'),
  (OF, {'layers': STACK_LAYERS}, 'reads an encoder, and this model has none'),
  (OF, {'taps': (0, 5), 'fuses': True}, 'has layer 5, which does not exist: give numbers from 0'),
  (OF, {'layers': LMConfig(d_model=4, heads=1, key_heads=1), 'fuses': True},
    'layers of width 4 do not fit the vocabulary'),
  (OF, {'d_embed': 4}, 'reads embeddings of width 4, and .* width 8'),
  ('transformer', {'d_source': 5}, 'needs an encoder of width 5, and .* width 8'),
  ('fconv', {'taps': (0, 2), 'fuses': True}, 'reads states of width 8, and .* width 6'),
  ('ensemble', {'d_target': 16, 'fuses': True}, 'Ensemble has no embedding'),
  (HashLM(), HASH, 'HashLM has no embedding'),
  (Seeing(), HASH | {'layers': LINE, 'taps': (0,)}, 'Seeing does not return its layers'),
  (Mute(), HASH | {'layers': STACK_LAYERS}, 'for which Mute needs a method source'),
])  # fmt: skip
def test_drafts_that_cannot_read_their_target(of, change, message):
  model, params, inputs = of, {}, {'inputs': [[3, 4]]}
  if of in MODELS:
    model, params, inputs = MODELS[of], made(of).params, made(of).rows()
  network = EagleNetwork(**SIZES.get(of, SIZES[OF]) | change)
  # the others are refused before parameters are looked at
  own = bound(network).params if 'd_embed' in change else {}
  with pytest.raises(fd.UserError, match=message):
    fd.decode(model, params, **inputs, strategy=fd.Eagle((network, own), 2), max_len=3)
