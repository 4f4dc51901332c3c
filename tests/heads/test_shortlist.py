"""Drafters that guess among few words. Over all words nothing changes; over few the text is still
greedy decoding's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.evaluation.tree_growth import NEVER, rank_guesses
from fastdec.heads.block import BlockNetwork
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.medusa import MedusaHeads
from fastdec.heads.shortlist import find_output, most_frequent
from fastdec.hub.medusa import save_heads
from fastdec.models.fconv import FConv, FConvConfig
from fastdec.models.lm import LM, LMConfig
from fastdec.struct import Bound

D, WORDS, LENGTH = 16, 24, 12
MODEL = LM(
  LMConfig(d_model=D, d_ff=32, heads=2, layers=1, vocab_size=WORDS, dropout=0.0, eos_ids=(1,))
)
LAYERS = LMConfig(d_model=D, d_ff=32, heads=2, layers=1, vocab_size=WORDS, dropout=0.0)
PROMPTS = np.random.default_rng(0).integers(2, WORDS, (6, 4))
DRAFTERS = {
  'blockwise': BlockwiseHeads(4, D, 32),
  'blockwise, rooted, bias': BlockwiseHeads(4, D, 32, rooted=True, markov=4, words=WORDS),
  'medusa': MedusaHeads(3, D),
  'medusa, own projections': MedusaHeads(3, D, vocab_size=WORDS),
  'eagle': EagleNetwork(layers=LAYERS, vocab_size=WORDS, d_target=D),
  'block': BlockNetwork(layers=LAYERS, vocab_size=WORDS, d_target=D, k=4, markov=4, candidates=6),
}


@pytest.fixture(scope='module')
def params():
  return jax.jit(MODEL.init)(jax.random.key(0))


@functools.cache
def fresh(name):
  """A drafter whose parameters are all random: biases that start at 0 too."""
  module = DRAFTERS[name]
  rng, params = np.random.default_rng(2), jax.jit(module.init)(jax.random.key(1))
  noisy = lambda x: x + 0.3 * rng.normal(size=x.shape).astype(np.float32)
  return module, jax.tree.map(noisy, params)


def chain(drafter, rule=None):
  kinds = {
    EagleNetwork: lambda: fd.Eagle(drafter, 3, rule=rule),
    BlockNetwork: lambda: fd.BlockDraft(drafter, rule=rule),
  }
  return kinds.get(type(drafter[0]), lambda: fd.Blockwise(drafter, rule=rule or fd.Exact()))()


def tree(drafter):
  kinds = {
    EagleNetwork: lambda: fd.Eagle(drafter, 3, 2, 6),
    BlockNetwork: lambda: fd.BlockDraft(drafter, choices=6),
  }
  return kinds.get(
    type(drafter[0]), lambda: fd.Medusa(drafter, [[0], [1], [0, 0], [0, 1], [1, 0]])
  )()


def decoded(params, strategy):
  return fd.decode(MODEL, params, PROMPTS, strategy, max_len=LENGTH)


def drafts(params, drafter):
  """Returns the first chains. A block that is accepted whole shows what was drafted."""
  out = decoded(params, chain(drafter, fd.MinBlock(fd.Exact(), 4)))
  return np.asarray(out.tokens)


@pytest.mark.parametrize(
  'name', ['blockwise, rooted, bias', 'medusa, own projections', 'eagle', 'block']
)
@pytest.mark.wide('eagle')
def test_over_all_words_the_drafts_are_the_same(params, name):
  drafter = fresh(name)
  whole = fd.shortlist((MODEL, params), drafter, np.arange(WORDS), WORDS)
  assert whole[1]['ids'].tolist() == list(range(WORDS))
  np.testing.assert_array_equal(drafts(params, drafter), drafts(params, whole))


@pytest.mark.parametrize(
  'name, make',
  [('blockwise, rooted, bias', chain), ('medusa', tree), ('eagle', tree), ('block', chain)],
)
@pytest.mark.wide('medusa-tree')
def test_over_few_words_the_text_is_greedy_decodings(params, name, make):
  greedy = decoded(params, fd.Greedy())
  short = fd.shortlist((MODEL, params), fresh(name), greedy.tokens, 8)
  np.testing.assert_array_equal(decoded(params, make(short)).tokens, greedy.tokens)


@pytest.mark.parametrize('name', DRAFTERS)
@pytest.mark.wide('blockwise', 'eagle')
def test_only_these_words_are_guessed(params, name):
  drafter, text = fresh(name), np.repeat(np.arange(3, 11), 2)
  short = fd.shortlist((MODEL, params), drafter, text, 8)
  # where a text ends, and of equally frequent ones the lower
  assert short[1]['ids'].tolist() == [1, *range(3, 10)]
  first, without = (
    drafts(params, which)[:, 1:4] for which in (short, drafter)
  )  # a first token by the model, then these
  assert np.isin(
    first, [*short[1]['ids'], MODEL.pad_id]
  ).all()  # after an end there is only padding
  assert not np.isin(without, [*short[1]['ids'], MODEL.pad_id]).all()


def test_a_shortlist_can_be_shortened_saved_and_put_into_int8(params, tmp_path):
  half = fd.shortlist((MODEL, params), fresh('eagle'), np.arange(WORDS), 12)
  short = fd.shortlist((MODEL, params), half, np.arange(4, WORDS), 8)
  assert short[1]['ids'].tolist() == [1, *range(4, 11)]
  np.testing.assert_array_equal(short[1]['output'], find_output(MODEL, params, D)[short[1]['ids']])
  fd.save_draft(tmp_path / 'draft', short)
  module, loaded = fd.load_draft(tmp_path / 'draft')
  assert module == short[0]
  jax.tree.map(np.testing.assert_array_equal, loaded, short[1])
  eight = fd.quantize(*short)
  np.testing.assert_array_equal(
    decoded(params, chain((module, eight))).tokens, decoded(params, fd.Greedy()).tokens
  )


@pytest.mark.parametrize('name', ['blockwise', 'blockwise, rooted, bias', 'medusa'])
@pytest.mark.wide('medusa')
def test_a_word_that_heads_cannot_guess_has_no_rank(params, name):
  drafter, texts = fresh(name), decoded(params, fd.Greedy())
  short = fd.shortlist((MODEL, params), drafter, np.arange(WORDS), 12)
  restricted = rank_guesses((MODEL, params), short, PROMPTS, texts)
  whole = rank_guesses((MODEL, params), drafter, PROMPTS, texts)
  for ranks, before, tokens, length in zip(
    restricted, whole, texts.tokens, texts.lengths, strict=True
  ):
    for place in range(int(length) - 2):
      known = int(tokens[place + 1]) in short[1]['ids'].tolist()
      assert (ranks[place, 0] == NEVER) != known
      assert not known or ranks[place, 0] <= before[place, 0]  # a rank never rises


CONV = FConv(FConvConfig(
  vocab_size=WORDS, d_embed=D, d_out=D, encoder_layers=((D, 3),), decoder_layers=((D, 3),),
))  # fmt: skip


@pytest.mark.parametrize('change, sentence', [
  ({'drafter': (MODEL, {})},
    'of type LM cannot be shortened: give prediction heads or a draft network'),
  ({'words': WORDS + 1}, 'words=25 is not possible: give 1 to 24'),
  ({'tokens': [3, WORDS]},
    'tokens has ids from 3 to 24, and this model has 0 to 23: encode the text'),
  ({'tokens': [[3, 4], [5]]}, 'tokens must be one array: give the ids of all texts in a row'),
  ({'of': fd.pack}, 'this drafter is packed: shorten it first, and pack the result'),
  ({'of': fd.quantize}, 'this drafter is in int8: shorten it first, and quantize the result'),
])  # fmt: skip
def test_mistakes(params, change, sentence):
  wide = 64 if change.get('of') is fd.pack else D  # narrow kernels are not packed
  heads = BlockwiseHeads(2, wide, wide)
  drafter = change.get('drafter', (heads, heads.init(jax.random.key(0))))
  if 'of' in change:
    drafter = drafter[0], change['of'](*drafter)
  with pytest.raises(fd.UserError, match=sentence):
    fd.shortlist(
      (MODEL, params), drafter, change.get('tokens', np.arange(WORDS)), change.get('words', 4)
    )


@pytest.mark.parametrize('module, sentence', [
  (BlockwiseHeads(2, 8, 8),
    'these heads are for hidden states of 8, and this model has 16: give its own'),
  (BlockwiseHeads(2, D, 8, markov=2, words=9),
    'these heads are for 9 words, and this model has 24: give its own'),
  (EagleNetwork(layers=LAYERS, vocab_size=9, d_target=D),
    'this draft is for 9 words, and this model has 24'),
])  # fmt: skip
def test_drafters_of_a_different_model_are_refused(params, module, sentence):
  with pytest.raises(fd.UserError, match=sentence):
    fd.shortlist((MODEL, params), (module, module.init(jax.random.key(0))), np.arange(WORDS), 8)


@pytest.mark.parametrize('name', ['blockwise', 'medusa', 'medusa, own projections'])
def test_heads_with_few_words_are_not_trained(params, name):
  module, short = fd.shortlist((MODEL, params), fresh(name), np.arange(WORDS), 8)
  with pytest.raises(fd.UserError, match='heads with a short list cannot be trained: train them'):
    module.logits_at(short, jnp.ones((1, D)), jnp.array(1), lambda x: x)
  with pytest.raises(fd.UserError, match='without a bias: keep these heads in a model folder'):
    save_heads('nowhere', (module, short), 'a model')


def test_padding_is_not_counted():
  assert most_frequent(MODEL, [[3, 0, 0], [0, 0, 5]], 3).tolist() == [1, 3, 5]


def test_logits_that_are_not_a_product_are_refused():
  params = CONV.init(jax.random.key(0))
  params = jax.tree.map(lambda x: x + jnp.ones_like(x), params)  # the bias too
  with pytest.raises(fd.UserError, match='changes its logits after the product: a shortlist needs'):
    fd.shortlist(
      (CONV, params),
      (BlockwiseHeads(2, D, D), BlockwiseHeads(2, D, D).init(jax.random.key(0))),
      np.arange(WORDS),
      4,
    )


def test_heads_say_how_few_words_they_have():
  with pytest.raises(fd.UserError, match='short=-1 is not possible'):
    BlockwiseHeads(2, D, D, short=-1)
  heads = BlockwiseHeads(3, D, D, short=5)
  assert Bound(heads, heads.init(jax.random.key(0))).params['output'].shape == (5, D)
