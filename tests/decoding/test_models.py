"""Drafts on every kind of model: caches keep accepted tokens and take back the others.

So greedy drafts are what the draft model would write. Samples have the law that the target's scores
of whole sequences give; for three tokens of five words it can be written down.
"""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec import struct
from fastdec.decoding import loop
from fastdec.decoding.inputs import check_inputs
from fastdec.decoding.strategy import LoopStrategy
from fastdec.models.t5 import T5
from fastdec.struct import Bound
from tests.decoding.fakes import Recorded, Scripted
from tests.decoding.models_table import MODELS, WORDS, made
from tests.decoding.rules.test_rejection import p_value

pytestmark = pytest.mark.usefixtures('in_float64')

GAMMA, MAX_LEN = 4, 16


def programs(case):
  """Two compiled functions: the first begins to decode with a draft of some parameters, the second
  makes a step."""
  rows, target = case.rows(), Bound(case.model, case.params)
  _, prompt, _ = check_inputs(
    case.model, rows['inputs'], rows.get('prompt_lengths'), None, MAX_LEN, None
  )
  prompt = jax.device_put(prompt)  # for what is not compiled

  def parts(draft):
    strategy = fd.Speculative((case.model, draft), GAMMA, adaptive=True)
    return target, Recorded(strategy.drafter), strategy.effective_rule

  begin = jax.jit(lambda draft: loop.init(*parts(draft), prompt, MAX_LEN, None))
  step = jax.jit(lambda draft, state: loop.step(*parts(draft), state))
  return begin, step


def wanting(state, gamma):
  """The state, but with rows that want `gamma` drafts each."""
  reading = dataclasses.replace(state.drafter.state, gamma=jnp.asarray(gamma, jnp.int32))
  return dataclasses.replace(state, drafter=dataclasses.replace(state.drafter, state=reading))


@pytest.mark.parametrize('name', MODELS)
@pytest.mark.wide('lm with windows', 'fconv')
def test_what_is_drafted_is_what_the_draft_model_would_write(name):
  """Rows accept all, some and none of the drafts before, side by side. Where a model drafts for
  itself, rows that want 1, 2 and 4 drafts accept them all, and want more from call to call."""
  case = made(name)
  begin, step = programs(case)
  state = wanting(begin(case.params), [1, 2, 4])
  after = jax.device_get(state)
  while not after.done.all():
    before, state = after, step(case.params, state)
    after = jax.device_get(state)
    expected = np.minimum(before.drafter.state.gamma + 1, MAX_LEN - before.length)
    assert (after.length - before.length).tolist() == expected.tolist()
  assert after.calls.tolist() == [4, 4, 3]

  state = begin(case.noisy)
  known, drafts, blocks = [], [], set()
  for _ in range(5):
    before, state = jax.device_get(state), step(case.noisy, state)
    after = jax.device_get(state)
    for row in np.flatnonzero(~before.done):
      known.append((row, before.tokens[row, : before.length[row]].tolist()))
      wanted = int(before.drafter.state.gamma[row])
      drafts.append(after.drafter.drafted[row, 1 : 1 + wanted].tolist())
      accepted = int(after.length[row] - before.length[row]) - 1
      blocks.add('all' if accepted == wanted else 'some' if accepted else 'none')
  assert blocks == {'all', 'some', 'none'}
  for drafted, written in zip(drafts, case.greedy_after(known, GAMMA), strict=True):
    assert drafted == written[: len(drafted)]


@struct.pytree
class Known(LoopStrategy):
  """Drafts from a script."""

  drafter: Any = None  # a field, where the base has a property
  rule: Any = fd.Exact()


@pytest.mark.parametrize('name', ['lm with windows', 'fconv', 'image'])
@pytest.mark.wide('fconv')  # test_deep.py has windows
def test_deep_paths_of_trees_are_kept(name):
  """The drafter knows the text, and each row has another tree, six deep."""
  case = made(name)
  greedy = case.decode(fd.Greedy(), MAX_LEN).tokens
  out = case.decode(Known(Scripted(greedy, 0, nodes=12, skill=0.97, reach=2)), MAX_LEN)
  np.testing.assert_array_equal(out.tokens, greedy)
  assert out.block_sizes.max() > 5 and out.mean_block_size > 3


GUESSING = {
  'lookahead': fd.Lookahead(window=2, ngram=3, guesses=2),
  'jacobi': fd.Jacobi(4),
  'lookup': fd.PromptLookup(ngram=1, k=4),
}


# test_strategies.py and test_ensemble.py have the others
@pytest.mark.parametrize('name', ['lm with windows', 't5', 'image'])
@pytest.mark.parametrize('strategy', GUESSING)
@pytest.mark.wide('lookahead-lm with windows')
def test_guesses_from_the_text_change_the_calls_and_not_the_text(strategy, name):
  """Rows have different lengths. Some guesses are accepted, so caches keep several tokens of a
  call."""
  case = made(name)
  out = case.decode(GUESSING[strategy], MAX_LEN)
  np.testing.assert_array_equal(out.tokens, case.decode(fd.Greedy(), MAX_LEN).tokens)
  assert out.block_sizes.max() > 1


def test_a_draft_with_another_pad_id_gets_its_own_padding():
  """A row's blocks do not depend on how far its batch is padded. Id 0 is not a word in the sources
  of either model."""
  case = made('t5')
  draft = T5(dataclasses.replace(case.model.config, pad_id=0))
  target = T5(dataclasses.replace(case.model.config, pad_id=5))
  source = np.array([[1, 2, 3, 4], [2, 1, 5, 5]], np.int32)
  padded = np.pad(source, ((0, 0), (0, 12)), constant_values=5)
  for inputs in (source, padded):
    strategy = fd.Speculative((draft, case.params), 4)
    out = fd.decode(target, case.params, inputs, strategy, max_len=MAX_LEN)
    assert out.block_sizes[:, :3].tolist() == [[5, 5, 5]] * 2


@struct.pytree
class Misled:
  """Passes a wrong q to its rule: the law that drafts were drawn from, mixed with a `share` of the
  uniform law."""

  rule: Any
  share: Any
  greedy = fd.Exact()

  @property
  def siblings(self):
    return self.rule.siblings  # only rules for drawn trees have them

  def __call__(self, keys, draft, logits, acceptable):
    q_bnv = draft.probabilities
    if q_bnv is not None:
      q_bnv = jnp.where(
        q_bnv.sum(-1, keepdims=True) > 0, (1 - self.share) * q_bnv + self.share / WORDS, 0
      )
    return self.rule(keys, dataclasses.replace(draft, probabilities=q_bnv), logits, acceptable)


RULES = {'rejection': fd.Rejection(), 'block': fd.BlockVerification()}
# two kinds of caches, and temperatures at which outputs vary
KINDS = {'lm with windows': 4.0, 'fconv': 60.0}
TEXTS = np.array(list(itertools.product(range(1, WORDS), repeat=3)), np.int32)


def sampled(name, draft, rule, share, rows):
  """Draws samples after the first prompt."""
  case, key = made(name), jax.random.key(1)
  strategy = fd.Speculative(
    (case.model, draft),
    2,
    sampling=fd.Sampling(KINDS.get(name, 4.0)),
    rule=Misled(rule, jnp.float64(share)),
  )
  inputs = {k: np.repeat(x[:1], rows, axis=0) for k, x in case.rows().items()}
  return fd.decode(case.model, case.params, **inputs, strategy=strategy, max_len=5, key=key)


@functools.cache
def law_by_scores(name):
  """{text: probability} of the first three tokens after the first prompt. Each text is scored in
  one call."""
  case = made(name)
  inputs = {k: np.repeat(x[:1], len(TEXTS), axis=0) for k, x in case.rows().items()}
  scores = fd.score(case.model, case.params, inputs.pop('inputs'), TEXTS, **inputs).tokens
  warmed = np.exp(scores / KINDS[name]).reshape((WORDS - 1,) * 3 + (3,))  # not normalised
  first, second, third = np.moveaxis(warmed, -1, 0)
  weights = first[:, 0, 0], second[:, :, 0], third
  p1, p2, p3 = (x / x.sum(-1, keepdims=True) for x in weights)  # each after the tokens before it
  law = p1[:, None, None] * p2[:, :, None] * p3
  return dict(zip(map(tuple, TEXTS.tolist()), law.reshape(-1).tolist(), strict=True))


def counts(out, law):
  texts, times = np.unique(np.asarray(out.tokens[:, :3]), axis=0, return_counts=True)
  seen = dict(zip(map(tuple, texts.tolist()), times.tolist(), strict=True))
  return np.array([seen.get(text, 0) for text in law])


@pytest.mark.parametrize('name, rule', list(zip(KINDS, RULES, strict=True)))
@pytest.mark.slow  # test_draft_networks.py has another draft of this law
def test_samples_have_the_law_of_the_target_and_with_a_wrong_q_they_have_not(name, rule):
  case, law, rows = made(name), law_by_scores(name), 10_000
  right, wrong = (sampled(name, case.noisy, RULES[rule], share, rows) for share in (0.0, 0.5))
  assert 1.2 < right.mean_block_size < 2.8  # drafts are accepted, and taken back
  assert p_value(counts(right, law), law) > 1e-3
  assert p_value(counts(wrong, law), law) < 1e-9


@pytest.mark.parametrize('name', [*KINDS, 't5', 'image that forecasts'])
@pytest.mark.slow  # drafts of the model's own greedy text are, too
def test_samples_of_a_model_that_drafts_for_itself_are_accepted_whole(name):
  """p = q, but for rounding: the draft reads token by token, and the target all at once."""
  out = sampled(name, made(name).params, fd.Rejection(), 0.0, 10_000 if name in KINDS else 100)
  assert (np.asarray(out.block_sizes)[:, :2] == [3, 1]).all()


@pytest.mark.parametrize(
  ('name', 'dtype'),
  [('lm with windows', 'int8'), ('t5', 'int8'), ('image', 'int8'), ('lm with windows', 'int8w')],
)
@pytest.mark.wide('*-int8w')
def test_wide_calls_in_int8_write_what_narrow_ones_do(name, dtype):
  case = made(name)
  in_int8 = dataclasses.replace(case, params=fd.quantize(case.model, case.params, dtype))
  greedy, wide = (
    in_int8.decode(strategy, MAX_LEN) for strategy in (fd.Greedy(), fd.PromptLookup(ngram=1, k=4))
  )
  np.testing.assert_array_equal(greedy.tokens, wide.tokens)
