"""Every published kind of block draft is lossless: as a chain and as trees, at temperature 0 and
above."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.methods.eagle import Read
from fastdec.heads.words import suppress_words
from tests.training.drafts.small import KINDS, MODELS, TAPS, bound, network

PARALLEL = {'unknown_id': 3, 'k': 4}
CASES = [('lm', name, KINDS[name]) for name in KINDS] + [
  ('lm', 'p-eagle', PARALLEL), ('translation', 'dflash2', KINDS['dflash2']),
  ('translation', 'lilicorr', KINDS['lilicorr']),
]  # fmt: skip
TREE = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
PROMPTS = [[4, 5, 6], [7, 2], [9, 9, 3, 1]]


def draft_of(task, name, settings):
  kind = 'parallel' if name == 'p-eagle' else 'block'
  return tuple(bound(network(kind, task, **settings | TAPS), 3))


def texts(model, params, prompts, strategy):
  out = fd.decode(model, params, prompts, strategy, max_new_tokens=9)
  return np.asarray(out.tokens)


@pytest.mark.parametrize('task, name, settings', CASES)
@pytest.mark.wide('lm-dflash2-settings3')
def test_a_draft_of_any_kind_writes_what_greedy_decoding_writes(task, name, settings):
  model, params = bound(MODELS[task], 5)
  draft = draft_of(task, name, settings)
  strategies = [fd.BlockDraft(draft), fd.BlockDraft(draft, choices=7)]
  strategies += [fd.BlockDraft(draft, choices=TREE), fd.BlockDraft(draft, k=2)]
  strategies.append(fd.BlockDraft(draft, choices=8, width=3, families=True))
  if name == 'dspark':
    strategies.append(fd.BlockDraft(draft, confidence=0.5))
  in_int8 = fd.quantize(model, params, 'int8')
  for weights, some in ((params, strategies), (in_int8, strategies[:2])):
    wanted = texts(model, weights, PROMPTS, fd.Greedy())
    for strategy in some:
      np.testing.assert_array_equal(texts(model, weights, PROMPTS, strategy), wanted)
    alone = texts(model, weights, PROMPTS[1:2], strategies[1])
    np.testing.assert_array_equal(alone[0], wanted[1][: alone.shape[1]])


@jax.jit
def drawn(drafter, target, cache, root, keys):
  state = Read(cache, jnp.ones((len(root), drafter.draft.module.layers.d_model)))
  draft, _ = drafter.propose(target, state, root, keys)
  module, params = drafter.draft
  states = module.read(params, target, root, state.last, cache)
  logits = suppress_words(params, module.logits(params, target, states), (0,))
  found = drafter.lattice(target, states, state.last, logits)
  laws, carry = [], found.carry
  for i in range(module.depth):
    scores, carry = found.correct(i, draft.tokens[:, i : i + 1], carry)
    laws.append((found.ids[:, i], jax.nn.softmax(scores[:, 0], axis=-1)))
  return draft.tokens, draft.probabilities, laws


@pytest.mark.parametrize('name', ['dflash2', 'lilicorr'])
def test_q_is_the_law_of_the_candidates_after_the_tokens_drawn_before(name):
  """And 0 elsewhere."""
  target, draft = bound(MODELS['lm'], 5), draft_of('lm', name, KINDS[name])
  drafter = fd.BlockDraft(draft, sampling=fd.Sampling()).drafter
  rows = 5
  cache = drafter.draft.module.init_cache(draft[1], None, rows, 8)
  keys = jax.random.split(jax.random.key(0), rows)
  root = jnp.arange(4, 4 + rows, dtype=jnp.int32)
  with jax.default_matmul_precision('highest'):
    tokens, q, laws = drawn(drafter, target, cache, root, keys)
  assert len(set(map(tuple, np.asarray(tokens).tolist()))) == rows
  for i, (ids, law) in enumerate(laws, start=1):
    whole = np.zeros_like(q[:, i])
    np.put_along_axis(whole, np.asarray(ids), np.asarray(law), axis=-1)
    np.testing.assert_allclose(q[:, i], whole, atol=1e-6)
    assert (np.take_along_axis(whole, np.asarray(tokens)[:, i : i + 1], axis=-1) > 0).all()


@pytest.mark.parametrize('settings, words', [
  ({'choices': 40, 'width': 2, 'families': True}, 'fewer than 40'),
  ({'confidence': 0.5}, 'a draft with a confidence head'),
  ({'choices': 6, 'width': 5}, 'this draft has 4 candidates'),
])  # fmt: skip
def test_impossible_settings_are_sentences(settings, words):
  with pytest.raises(fd.UserError, match=words):
    fd.BlockDraft(draft_of('lm', 'dflash2', KINDS['dflash2']), **settings)
