"""Processors and constraints change the target's law at every node: on trained models in float64,
and in samples.

Each test also runs a wrong law, which must fail: there all nodes have the law of the root.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding import request
from fastdec.decoding.request import make_laws
from fastdec.evaluation.calls import Drafted
from tests.decoding.fakes import EOS, HashHeads, Imitation, Scripted
from tests.decoding.methods_table import LOSSLESS, METHODS, NETWORKS, VARIANTS
from tests.decoding.rules.test_rejection import (
  LIES,
  PROMPT,
  TARGET,
  TOKENS,
  TREE,
  WORDS,
  exact_law,
  p_value,
  seen_in,
)
from tests.decoding.test_strategies import MAX_LEN, MODEL, SOURCE, VOCAB, kit, params_made
from tests.laws.test_constraint import Spelt
from tests.laws.test_processors import OfTheRoot


@pytest.fixture
def of_the_root(monkeypatch):
  """A function that makes all laws wrong."""

  def wrong(*args):
    return tuple(map(OfTheRoot, make_laws(*args)))

  return lambda: monkeypatch.setattr(request, 'make_laws', wrong)


# Texts on trained models -----------------------------------------------------------------------

# Each changes the law by the text before; texts become longer than those of the training.
PROCESSORS = {
  'repetition': {'repetition_penalty': np.linspace(2, 4, len(SOURCE))},
  'counts': {'presence_penalty': 4.0, 'frequency_penalty': 3.0},
  'n-grams': {'no_repeat_ngram': 2},
  'source': {'encoder_no_repeat_ngram': 2, 'encoder_repetition_penalty': 1.5},
  'sequences': {'bias': {(i, i + 1): 9.0 for i in range(2, 12)}, 'bad_words': [[5, 6], [9, 4]]},
  'ends': {'forced_begin': 7, 'forced_end': 4, 'length_decay': (2, 1.5), 'min_length': 6},
}
PROCESSORS['all'] = dict(itertools.chain(*(one.items() for one in PROCESSORS.values())))
LAWS = [*PROCESSORS, 'constraint', 'both']


@functools.cache
def law(name):
  """Arguments of `fd.decode`. A constraint allows few words at every third place."""
  arguments, settings = {}, PROCESSORS.get({'both': 'counts'}.get(name, name))
  if settings is not None:
    arguments['processors'] = fd.Processors(**{'min_new_tokens': MAX_LEN - 1} | settings)
  if name in ('constraint', 'both'):
    pytest.importorskip('outlines_core')
    words = Spelt([b'', b'', *(bytes([ord('a') + i]) for i in range(VOCAB - 2))])
    arguments['constraint'] = fd.Constraint.regex('([a-k]{2}[a-d])*[a-k]{0,2}', words)
  return arguments


def decoded(strategy, name):
  params = params_made('trained', 'transformer')
  return fd.decode(MODEL, params, SOURCE, strategy, max_len=MAX_LEN, **law(name))


@functools.cache
def plain(name):
  return np.asarray(decoded(fd.Greedy(), name).tokens)


@pytest.mark.usefixtures('in_float64')
@pytest.mark.parametrize('name', LAWS)
@pytest.mark.parametrize('method', [*METHODS, *NETWORKS])
@pytest.mark.wide('tree-both')
def test_every_method_writes_what_plain_decoding_writes(method, name):
  out = decoded(LOSSLESS[method](kit('trained')), name)
  np.testing.assert_array_equal(out.tokens, plain(name))


@pytest.mark.slow
@pytest.mark.usefixtures('in_float64')
@pytest.mark.parametrize('method', VARIANTS)
def test_every_variant_writes_what_plain_decoding_writes(method):
  out = decoded(LOSSLESS[method](kit('trained')), 'all')
  np.testing.assert_array_equal(out.tokens, plain('all'))


@pytest.mark.usefixtures('in_float64')
@pytest.mark.parametrize('name', LAWS)
@pytest.mark.wide('both')
def test_the_law_of_the_root_is_wrong_behind_it(name, of_the_root):
  """The guesses are the right text: the right law accepts all of them."""
  guesses = Drafted(Scripted(plain(name), 0, nodes=4, chain=True, skill=1.0))
  right = decoded(guesses, name)
  np.testing.assert_array_equal(right.tokens, plain(name))
  assert right.mean_block_size > 2
  of_the_root()
  assert (np.asarray(decoded(guesses, name).tokens) != plain(name)).any()


# The law of samples ----------------------------------------------------------------------------

ROWS = 10_000  # of each kind
KINDS = (
  {'temperature': 5.0, 'top_k': 0, 'top_p': 1.0, 'repetition_penalty': 2.0, 'min_new_tokens': 2},
  {'temperature': 8.0, 'top_k': 3, 'top_p': 0.9, 'frequency_penalty': 4.0},
)
NEUTRAL = {'repetition_penalty': 1.0, 'frequency_penalty': 0.0, 'min_new_tokens': 0}


def changed_by_hand(settings):
  """A function of the text so far and the next token's logits, by each processor's definition."""

  def change(known, logits):
    text = known[PROMPT.size :]
    penalty, frequency = settings['repetition_penalty'], settings['frequency_penalty']
    for v in range(WORDS):
      if v in known:
        logits[v] = logits[v] / penalty if logits[v] > 0 else logits[v] * penalty
      logits[v] -= frequency * text.count(v)
    if len(text) < settings['min_new_tokens']:
      logits[EOS] = -np.inf
    return logits

  return change


@functools.cache
def law_of_kind(kind):
  settings = NEUTRAL | KINDS[kind]
  warps = (settings[name] for name in ('temperature', 'top_k', 'top_p'))
  return exact_law(*warps, changed_by_hand(settings))


SAMPLED = {
  'rejection': lambda draft, warps: fd.Speculative(draft, 2, sampling=fd.Sampling(**warps)),
  'block': lambda draft, warps: fd.Speculative(
    draft, 2, sampling=fd.Sampling(**warps), rule=fd.BlockVerification()
  ),
  'adaptive': lambda draft, warps: fd.Speculative(
    draft, 2, sampling=fd.Sampling(**warps), adaptive=True
  ),
  'tree': lambda draft, warps: fd.Medusa(
    (HashHeads(depth=2), {}), TREE, sampling=fd.Sampling(**warps)
  ),
  'lookahead': lambda draft, warps: fd.Lookahead(
    window=3, ngram=3, guesses=2, sampling=fd.Sampling(**warps)
  ),
  'sampling': lambda draft, warps: fd.Sample(**warps),
}


@functools.cache
def sampled(name, is_wrong=False):
  """Samples texts in rows of both kinds, in turn."""
  both = [NEUTRAL | one for one in KINDS]
  each = {setting: np.tile([one[setting] for one in both], ROWS) for setting in both[0]}
  warps = {name: each.pop(name) for name in ('temperature', 'top_k', 'top_p')}
  draft = Imitation(vocab_size=WORDS), {'lies': jnp.int32(LIES['good'])}
  out = fd.decode(
    TARGET, {}, np.repeat(PROMPT, 2 * ROWS, axis=0), SAMPLED[name](draft, warps),
    max_len=TOKENS + 1, key=jax.random.key(0),
    processors=fd.Processors(**each),
  )  # fmt: skip
  return np.asarray(out.tokens[:, :TOKENS]).reshape(ROWS, 2, TOKENS)


def fits(texts, law):
  """The p-value of texts under a law: 0 if one of them is impossible."""
  try:
    return p_value(seen_in(texts, law), law)
  except KeyError:
    return 0.0


@pytest.mark.parametrize('name', SAMPLED)
@pytest.mark.wide('rejection')
def test_drafted_samples_have_the_law_of_their_row_s_settings(name):
  texts = sampled(name)
  for kind in range(2):
    assert fits(texts[:, kind], law_of_kind(kind)) > 1e-3
    assert fits(texts[:, 1 - kind], law_of_kind(kind)) < 1e-9


@pytest.mark.parametrize('name', ['rejection', 'block', 'tree', 'lookahead'])
@pytest.mark.wide('rejection')
def test_samples_by_the_law_of_the_root_have_another_law(name, of_the_root):
  of_the_root()
  texts = sampled(name, is_wrong=True)
  assert any(fits(texts[:, kind], law_of_kind(kind)) < 1e-9 for kind in range(2))
