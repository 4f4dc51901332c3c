"""Early exit drafts what a draft model of the target's first layers drafts."""

import dataclasses

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec.errors import UserError
from fastdec.evaluation.replay import replay
from tests.decoding.fakes import HashLM
from tests.decoding.models_table import made, random_params


@pytest.mark.usefixtures('in_float64')
@pytest.mark.parametrize('sampling', [None, fd.Sampling(0.7)])
@pytest.mark.parametrize('name', ['lm with windows', 't5', 'transformer'])
@pytest.mark.wide('transformer-*', 't5-sampling1')
def test_it_is_speculative_decoding_by_a_model_of_the_first_layers(name, sampling):
  case = made(name)
  model = case.model
  if name != 'lm with windows':  # the table's have one layer
    model = dataclasses.replace(model, config=dataclasses.replace(model.config, decoder_layers=2))
  params, rows = random_params(model, 0), case.rows()

  def decode(strategy):
    return fd.decode(model, params, **rows, strategy=strategy, max_len=12, key=jax.random.key(0))

  early = fd.EarlyExit(1, gamma=3, sampling=sampling)
  ours = decode(early)
  theirs = decode(fd.Speculative((model.first_layers(1), params), 3, sampling=sampling))
  np.testing.assert_array_equal(ours.tokens, theirs.tokens)
  np.testing.assert_array_equal(ours.block_sizes, theirs.block_sizes)
  if sampling is None:
    np.testing.assert_array_equal(ours.tokens, decode(fd.Greedy()).tokens)
    replayed = replay(model, params, rows.pop('inputs'), ours, early, **rows)
    np.testing.assert_array_equal(replayed.block_sizes, ours.block_sizes)


@pytest.mark.usefixtures('in_float64')
def test_errors():
  case = made('lm with windows')
  with pytest.raises(UserError, match='layers=9 is not possible: the model has 2'):
    fd.decode(case.model, case.params, **case.rows(), strategy=fd.EarlyExit(9))
  fconv = made('fconv')
  with pytest.raises(UserError, match='EarlyExit cannot read FConv early'):
    fd.decode(fconv.model, fconv.params, **fconv.rows(), strategy=fd.EarlyExit(1))
  with pytest.raises(UserError, match='EarlyExit cannot read HashLM early'):
    fd.decode(HashLM(), {}, [[3, 4]], fd.EarlyExit(1), max_len=4)
