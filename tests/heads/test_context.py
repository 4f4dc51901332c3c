"""Heads that see the root, and the token guessed before them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.methods.heads import draft_tokens as eager
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.medusa import MedusaHeads
from fastdec.models.fconv import FConv, FConvConfig
from fastdec.struct import Bound

WORDS, D, E = 60, 6, 4
KINDS = {
  'blockwise': BlockwiseHeads(
    k=4, d_model=D, d_ff=8, rooted=True, d_embed=E, markov=3, words=WORDS
  ),
  'medusa': MedusaHeads(3, D, vocab_size=WORDS, rooted=True, d_embed=E, markov=3, words=WORDS),
}
MODEL = FConv(FConvConfig(
  vocab_size=WORDS, d_embed=E, d_out=D, encoder_layers=((E, 3),), decoder_layers=((E, 3),),
  is_tied=False,
))  # fmt: skip
TREE = Topology.from_choices([[0], [1], [0, 0], [0, 1], [1, 0], [1, 2], [0, 1, 0], [1, 2, 1]])


def noisy(module, seed=5):
  rng, fresh = np.random.default_rng(seed), jax.jit(module.init)(jax.random.key(0))
  noise = lambda x: jnp.asarray(np.asarray(x) + 0.7 * rng.normal(size=x.shape), jnp.float32)
  return jax.tree.map(noise, fresh)


@pytest.fixture(params=KINDS, scope='module')
def heads(request):
  """Heads whose bias is stronger than they are, so that their guesses differ from their own
  ranks."""
  module = KINDS[request.param]
  params = noisy(module)
  return Bound(module, params | {'after': jnp.asarray(8 * np.asarray(params['after']))})


@pytest.fixture(scope='module')
def target():
  return Bound(MODEL, noisy(MODEL))


HIDDEN = jnp.asarray(np.random.default_rng(6).normal(size=(2, D)), jnp.float32)
draft_tokens = jax.jit(eager, static_argnums=(4, 5))
ROOT = jnp.array([7, 31], jnp.int32)


@jax.jit
def unbiased(heads, target):
  embedded = target.module.embedding(target.params, ROOT)
  project = lambda hidden: target.module.unembed(target.params, hidden)
  return heads.module.logits(heads.params, HIDDEN, project, embedded)


@jax.jit
def trained(heads, target, offset, before):
  """Returns a head's logits as in training, with the token before given."""
  project = lambda hidden: target.module.unembed(target.params, hidden)
  embedded = target.module.embedding(target.params, ROOT)
  return heads.module.logits_at(heads.params, HIDDEN, offset, project, None, embedded, before)


def before_bias(heads, target, row):
  """Returns the logits of each head for a row, without the bias."""
  logits = np.array(unbiased(heads, target))[row]
  logits[:, 0] = -np.inf
  return logits


def one_by_one(heads, target, row):
  """The tree of a row in plain Python: the words of each head, ranked after each parent's token."""
  logits = before_bias(heads, target, row)
  before, after = (np.asarray(heads.params[name]) for name in ('before', 'after'))
  tokens = [int(ROOT[row])]
  for node in range(1, TREE.n):
    corrected = logits[TREE.depths[node] - 1] + after @ before[tokens[TREE.parents[node]]]
    tokens.append(int(np.argsort(-corrected, kind='stable')[TREE.ranks[node]]))
  return tokens


@pytest.mark.wide('blockwise')
def test_a_tree_is_filled_after_the_tokens_of_its_parents(heads, target):
  tokens = draft_tokens(heads, target, HIDDEN, ROOT, TREE)
  assert tokens.tolist() == [one_by_one(heads, target, row) for row in range(2)]
  ranks = []
  for row in range(2):
    logits = before_bias(heads, target, row)[TREE.depths[1:] - 1]
    ranks.extend(
      (logits > np.take_along_axis(logits, np.asarray(tokens)[row, 1:, None], axis=1)).sum(axis=1)
    )
  assert max(ranks) > 16  # the bias reaches far down
  without = {name: x for name, x in heads.params.items() if name not in ('before', 'after')}
  plain = Bound(dataclasses.replace(heads.module, markov=0, words=None), without)
  assert not np.array_equal(tokens, draft_tokens(plain, target, HIDDEN, ROOT, TREE))


def test_what_is_drafted_is_what_was_trained(heads, target):
  """The heads' law in training, with the token before given, at the first choice of a chain."""
  drafted = np.asarray(draft_tokens(heads, target, HIDDEN, ROOT, Topology.chain(4)))
  for offset in (1, 2, 3):
    law = np.asarray(trained(heads, target, np.int32(offset), drafted[:, offset - 1]))
    np.testing.assert_array_equal(1 + law[:, 1:].argmax(-1), drafted[:, offset])


def test_the_root_is_seen_at_one_size_whatever_the_model_scales_it_by(heads, target):
  embedding = jnp.asarray(50 * np.asarray(target.params['embedding']))
  larger = Bound(MODEL, target.params | {'embedding': embedding})
  tokens = draft_tokens(heads, target, HIDDEN, ROOT, TREE)
  np.testing.assert_array_equal(draft_tokens(heads, larger, HIDDEN, ROOT, TREE), tokens)
  other = draft_tokens(heads, target, HIDDEN, jnp.array([31, 7], jnp.int32), TREE)
  assert not np.array_equal(np.asarray(other)[:, 1:], np.asarray(tokens)[:, 1:])


def test_a_fresh_bias_does_nothing(heads):
  fresh, bias = jax.jit(heads.module.init)(jax.random.key(0)), jax.jit(heads.module.bias)
  assert not np.any(bias(fresh, ROOT)) and np.any(bias(heads.params, ROOT))


@pytest.mark.parametrize(('make', 'words'), [
  (lambda: BlockwiseHeads(k=4, d_model=6, d_ff=8, markov=4), 'markov=4 with words=None'),
  (lambda: MedusaHeads(3, 6, markov=-1), 'markov=-1'),
  (lambda: BlockwiseHeads(k=4, d_model=6, d_ff=8, rooted=True, first='transformed'),
    'p1 predicts the root'),
])  # fmt: skip
def test_mistakes_are_named(make, words):
  with pytest.raises(UserError, match=words):
    make()


def test_a_model_without_embeddings_and_too_many_ranks_are_named(heads, target):
  class Blind(FConv):
    embedding = None

  with pytest.raises(UserError, match='Blind has no embedding'):
    draft_tokens(heads, Bound(Blind(MODEL.config), target.params), HIDDEN, ROOT, TREE)
  wide = Topology.from_choices([[rank] for rank in range(70)])
  with pytest.raises(UserError, match='needs 70 choices of a head, and there are 60 words'):
    draft_tokens(heads, target, HIDDEN, ROOT, wide)


@pytest.mark.parametrize('reach', [1, 4])
def test_a_window_ranks_what_the_bias_has_corrected(heads, target, reach):
  """Compared with plain Python, after each parent's token. A window before the bias would give
  other guesses."""

  def near(logits):
    law = np.exp(logits - logits.max())
    law /= law.sum()
    return np.array(
      [law[max(0, i - reach) : i + reach + 1].sum() + 1e-3 * law[i] for i in range(WORDS)]
    )

  chain = Topology.chain(4)
  drafted = np.asarray(draft_tokens(heads, target, HIDDEN, ROOT, chain, reach))
  before, after = (np.asarray(heads.params[name]) for name in ('before', 'after'))
  wrong = 0
  for row in range(2):
    logits, token = before_bias(heads, target, row), int(ROOT[row])
    for i in range(3):
      bias = after @ before[token]
      wrong += int(np.argmax(np.log(near(logits[i])) + bias)) != int(
        np.argmax(near(logits[i] + bias))
      )
      token = int(np.argmax(near(logits[i] + bias)))
      assert drafted[row, i + 1] == token
  assert wrong and not np.array_equal(drafted, draft_tokens(heads, target, HIDDEN, ROOT, chain))


@pytest.mark.parametrize('window', [-1, 1.5, True])
def test_a_window_is_a_whole_number(heads, window):
  with pytest.raises(
    UserError, match=f'window={window} is not possible: give .*0 for the likeliest id'
  ):
    fd.Blockwise(heads, window=window)


def test_few_words_have_no_window(heads):
  with pytest.raises(
    UserError, match='have a short vocabulary, whose ids are not in order: leave window out'
  ):
    fd.Blockwise((heads.module, heads.params | {'ids': jnp.arange(5)}), window=1)
