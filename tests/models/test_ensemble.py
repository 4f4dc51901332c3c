"""Ensembles: the mean of the members' laws, by every way of decoding."""

import dataclasses

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.medusa import MedusaHeads
from fastdec.models.transformer import Transformer, TransformerConfig
from tests.decoding.fakes import HashLM
from tests.decoding.methods_table import METHODS, Kit
from tests.decoding.models_table import made

CONFIG = TransformerConfig(
  vocab_size=13, d_model=8, d_ff=16, heads=2, encoder_layers=1, decoder_layers=1, max_positions=32,
  dtype='float64',
)  # fmt: skip
SMALL, WIDE = (
  Transformer(CONFIG),
  Transformer(dataclasses.replace(CONFIG, d_model=12, decoder_layers=2)),
)
SOURCES = np.array([[3, 4, 5, 1], [6, 7, 1, 0]], np.int32)


@pytest.fixture(scope='module', autouse=True)
def float64():
  with jax.enable_x64(True):
    yield


@pytest.fixture(scope='module')
def params():
  made = [jax.jit(one.init)(jax.random.key(i)) for i, one in enumerate((SMALL, WIDE))]
  return tuple(jax.tree.map(lambda x: np.float64(x) * 2, made))


@pytest.mark.parametrize('strategy', [fd.Greedy(), fd.Beam(3)], ids=['greedy', 'beam'])
@pytest.mark.slow
def test_a_model_with_itself_decodes_as_the_model(strategy, params):
  both = fd.Ensemble((SMALL, SMALL))
  alone = fd.decode(SMALL, params[0], SOURCES, strategy, max_len=7)
  together = fd.decode(both, (params[0], params[0]), SOURCES, strategy, max_len=7)
  np.testing.assert_array_equal(alone.tokens, together.tokens)


@pytest.fixture(scope='module')
def kit(params):
  """Parts that fit the ensemble of both: random heads on their hidden states side by side, and one
  of them as draft."""
  separate = BlockwiseHeads(k=7, d_model=8 + 12, d_ff=8, dropout=0.0)
  medusa = MedusaHeads(depth=3, d_model=8 + 12, vocab_size=13)
  heads = {'separate': separate, 'medusa': medusa}
  key = jax.random.key(2)
  made = {name: (module, jax.jit(module.init)(key)) for name, module in heads.items()}
  return Kit(heads=made.get, draft=(SMALL, params[0]), network={}.get, words=13)


# a chain, a tree, a draft model, and several chains at once
@pytest.mark.parametrize('name', ['blockwise', 'medusa', 'speculative', 'lookahead'])
@pytest.mark.wide('medusa')
def test_every_kind_of_method_writes_what_greedy_decoding_writes(name, params, kit):
  model = fd.Ensemble((SMALL, WIDE))
  greedy = fd.decode(model, params, SOURCES, fd.Greedy(), max_len=7)
  out = fd.decode(model, params, SOURCES, METHODS[name](kit), max_len=7)
  np.testing.assert_array_equal(out.tokens, greedy.tokens)


def test_the_law_is_the_mean_of_the_laws(params):
  targets = np.array([[5, 6, 7, 1], [8, 1, 0, 0]], np.int32)
  alone = [
    fd.score(m, p, SOURCES, targets).tokens for m, p in zip((SMALL, WIDE), params, strict=True)
  ]
  together = fd.score(fd.Ensemble((SMALL, WIDE)), params, SOURCES, targets).tokens
  real = np.asarray(together) != 0
  mean = np.log((np.exp(np.asarray(alone[0])) + np.exp(np.asarray(alone[1]))) / 2)
  np.testing.assert_allclose(np.asarray(together)[real], mean[real], rtol=1e-9)
  assert not np.allclose(alone[0], alone[1])


@pytest.mark.slow
def test_beams_of_an_ensemble_score_as_forced(params):
  model = fd.Ensemble((SMALL, WIDE))
  out = fd.decode(model, params, SOURCES, fd.Beam(3, length_penalty=0.0), max_len=7)
  forced = fd.score(model, params, SOURCES, out.tokens, target_lengths=out.lengths)
  np.testing.assert_allclose(out.scores, forced.total, rtol=1e-9)


@pytest.mark.slow
def test_images_are_decoded_together():
  """A model together with itself draws its own picture. Two models draw a picture that is
  neither's, and drafts do not change it."""
  case = made('image')
  both, pictures = fd.Ensemble((case.model, case.model)), case.rows()['inputs']
  alone = case.decode(fd.Greedy(), None)
  assert both.d_model == 2 * case.model.d_model
  np.testing.assert_array_equal(
    fd.decode(both, (case.params, case.params), pictures, fd.Greedy()).tokens, alone.tokens
  )
  mixed = case.params, case.noisy
  together = fd.decode(both, mixed, pictures, fd.Greedy())
  drafted = fd.decode(both, mixed, pictures, fd.Speculative((case.model, case.params), 3))
  assert (together.tokens != alone.tokens).any()
  np.testing.assert_array_equal(drafted.tokens, together.tokens)
  assert drafted.mean_block_size > 1.1


def test_members_must_agree():
  other = Transformer(dataclasses.replace(CONFIG, vocab_size=14))
  with pytest.raises(
    fd.UserError, match='model 2 of the ensemble has vocab_size=14, and the first has 13'
  ):
    fd.Ensemble((SMALL, other))
  with pytest.raises(fd.UserError, match='at least one'):
    fd.Ensemble(())


class Mute(HashLM):
  """A model that does not say how wide its hidden states are, or says something wrong."""

  d_model = None


def test_members_must_say_how_wide_their_hidden_states_are():
  with pytest.raises(
    fd.UserError,
    match=r'model 2 of the ensemble, Mute, has no d_model: .*'
    r' d_model',
  ):
    fd.Ensemble((HashLM(), Mute()))

  class Wrong(HashLM):
    d_model = 3

  with pytest.raises(fd.UserError, match=r'are \[1, 1\] wide, and its models have d_model'):
    fd.decode(fd.Ensemble((HashLM(), Wrong())), ({}, {}), SOURCES, fd.Greedy(), max_len=2)


@pytest.mark.parametrize('strategy', [fd.Greedy(), fd.Sample(2.0)], ids=['greedy', 'sample'])
@pytest.mark.wide('greedy')
def test_members_may_have_no_encoder(strategy):
  prompts, key = SOURCES[:, :2], jax.random.key(0)
  alone = fd.decode(HashLM(), {}, prompts, strategy, max_len=6, key=key)
  together = fd.decode(
    fd.Ensemble((HashLM(), HashLM())), ({}, {}), prompts, strategy, max_len=6, key=key
  )
  np.testing.assert_array_equal(alone.tokens, together.tokens)


@pytest.mark.parametrize(('count', 'words'), [(1, 'not 1'), (3, 'not 3'), (None, 'not a dict')])
def test_each_member_needs_its_parameters(count, words):
  params = {} if count is None else ({},) * count
  with pytest.raises(fd.UserError, match=f'2 models needs a tuple of as many parameters, {words}'):
    fd.decode(fd.Ensemble((HashLM(), HashLM())), params, SOURCES, fd.Greedy(), max_len=3)


def test_the_least_number_of_positions_holds():
  short = Transformer(dataclasses.replace(CONFIG, max_positions=9))
  assert fd.Ensemble((SMALL, short)).max_positions == 9
  assert fd.Ensemble((HashLM(), HashLM())).max_positions is None
