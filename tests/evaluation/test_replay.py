"""A replay makes the calls of the decode, block by block, with every kind of draft, on 3 models."""

import dataclasses

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec.evaluation.replay import replay, tokens_a_call
from fastdec.struct import Bound
from tests.decoding import test_deep, test_strategies
from tests.decoding.fakes import HashLM
from tests.decoding.methods_table import DEEP, DRAWN, LOSSLESS
from tests.decoding.test_loop import some_prompts

INPUTS = test_deep.prompts(0, 40)


def same_calls(replayed, decoded):
  decoded = decoded.resized(int(decoded.lengths.max()), 0)
  for field in ('tokens', 'lengths', 'block_sizes', 'calls', 'draft_calls'):
    np.testing.assert_array_equal(getattr(replayed, field), getattr(decoded, field), field)


@pytest.mark.parametrize('name', [name for name in DEEP if not name.startswith('lookahead')])
@pytest.mark.wide('union')
def test_a_language_model_whose_drafts_are_often_right(name):
  strategy = DEEP[name](test_deep.kit())
  decoded = fd.decode(*test_deep.target(), INPUTS, strategy, max_len=test_deep.MAX_LEN)
  assert decoded.mean_block_size > 3
  same_calls(replay(*test_deep.target(), INPUTS, decoded, strategy), decoded)


@pytest.mark.parametrize('name', ['medusa', 'eagle, a growing tree', 'union'])
@pytest.mark.slow
def test_drawn_texts_whose_guesses_the_draw_accepts(name):
  strategy, key = DRAWN[name](test_deep.kit()), jax.random.key(0)
  decoded = fd.decode(*test_deep.target(), INPUTS, strategy, max_len=test_deep.MAX_LEN, key=key)
  assert decoded.mean_block_size > 3
  same_calls(replay(*test_deep.target(), INPUTS, decoded, strategy), decoded)


@pytest.mark.parametrize('family', ['transformer', 'fconv'])
@pytest.mark.parametrize(
  'name', ['lookup', 'blockwise', 'two-calls', 'tree', 'speculative', 'suffix']
)
@pytest.mark.slow
@pytest.mark.usefixtures('in_float64')
def test_encoder_decoders(name, family):
  params = test_strategies.params_made('trained', family)
  decoded = test_strategies.decoded(name, 'trained', family)
  strategy = LOSSLESS[name](test_strategies.kit('trained', family))
  model, source = test_strategies.MODELS[family], test_strategies.SOURCE
  same_calls(replay(model, params, source, decoded, strategy), decoded)


def test_texts_as_lists_and_prompts_of_different_lengths():
  prompts, lengths = some_prompts(0)
  decoded = fd.decode(HashLM(), {}, prompts, fd.PromptLookup(), lengths, max_len=9)
  texts = [decoded.written(row) for row in range(len(prompts))]
  same_calls(replay(HashLM(), {}, prompts, texts, fd.PromptLookup(), lengths), decoded)
  with pytest.raises(fd.UserError, match='4 texts for 5 inputs: give one for each'):
    replay(HashLM(), {}, prompts, texts[1:], fd.PromptLookup(), lengths)


@pytest.mark.parametrize('strategy, message', [
  (fd.Jacobi(4), 'Jacobi with the rule Exact cannot be replayed'),
  (fd.Beam(2), 'Beam cannot stream'),
  (fd.Speculative((HashLM(), {}), sampling=fd.Sampling(0.5)), 'with the rule Warped'),
])  # fmt: skip
def test_what_does_not_follow_from_a_text_is_refused(strategy, message):
  with pytest.raises(fd.UserError, match=message):
    replay(HashLM(), {}, [[2, 3]], [[4, 5]], strategy)


def test_texts_that_only_fit_into_the_positions_with_their_own_limits():
  """A long prompt with a short text, and a short prompt with a long text."""
  model, params = test_deep.target()
  model = dataclasses.replace(model, config=dataclasses.replace(model.config, max_positions=24))
  prompts, limits = [[5] * 18, [5, 6]], [4, 20]
  decoded = fd.decode(model, params, prompts, fd.PromptLookup(), max_len=limits)
  same_calls(replay(model, params, prompts, decoded, fd.PromptLookup()), decoded)


def test_tokens_a_call_are_those_of_the_calls_of_a_category():
  prompts, strategy = [('b', [4, 5, 4]), ('a', [6]), ('b', [5, 5, 5, 5])], fd.PromptLookup(k=4)
  texts, alone = [], []
  for category, ids in prompts:
    decoded = fd.decode(HashLM(), {}, [ids], strategy, max_len=8)
    texts.append((category, ids, decoded.written(0)))
    alone.append((int(decoded.block_sizes.sum()), int(decoded.calls.sum())))
  (x, n), (y, m), (z, k) = alone
  expected = {'a': y / m, 'b': (x + z) / (n + k), 'all': (x + y + z) / (n + m + k)}
  worth = tokens_a_call(Bound(HashLM(), {}), strategy, texts)
  assert worth == pytest.approx(expected) and [*worth] == ['a', 'b', 'all']
