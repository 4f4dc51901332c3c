"""Decoding call by call: what a timed call computes, and what is refused before it."""

import dataclasses
import re

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.methods.greedy import NoDraft
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.topology import Topology
from fastdec.evaluation.calls import (
  Calls,
  Drafted,
  FreeDraft,
  choose_compute_dtype,
  decode_repeatedly,
  measure_costs,
  random_params,
  repeat_calls,
)
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.kernels.quantized import is_quantized
from fastdec.models.image_transformer import ImageTransformer, ImageTransformerConfig
from fastdec.models.lm import LM, LMConfig
from fastdec.struct import Bound
from tests.decoding.fakes import HashLM

PROMPTS = np.array([[3, 4, 5]], np.int32)
SMALL = LM(LMConfig(vocab_size=14, d_model=8, d_ff=8, layers=1, heads=2))


def test_what_the_model_cannot_serve_is_a_sentence():
  draft = (dataclasses.replace(HashLM(), start_id=0), {})
  with pytest.raises(fd.UserError, match='the draft model has an encoder, and the target has none'):
    decode_repeatedly(Bound(HashLM(), {}), fd.Speculative(draft, 2), PROMPTS, 8, None, 0)


def test_a_call_has_no_branch_so_that_it_takes_as_long_where_a_text_has_ended():
  """The loop over calls is the only one in the program, and nothing in it depends on what was
  written."""
  target = Bound(SMALL, random_params(SMALL, 0, 'float32'))
  strategy = Drafted(FreeDraft(Topology.chain(3)), Exact())
  state = decode_repeatedly(target, strategy, PROMPTS, 8, None, 0)
  program = repeat_calls.lower(target, strategy, state, 4).as_text()
  assert program.count('stablehlo.while') == 1 and 'stablehlo.if' not in program
  # Only choices by the platform have several branches, and these are constants.
  assert program.count('}, {') == len(re.findall(r'stablehlo\.case"\(%c', program))


@pytest.mark.parametrize(
  'module', [SMALL, BlockwiseHeads(k=2, d_model=8, d_ff=6)], ids=['model', 'heads']
)
@pytest.mark.parametrize('dtype', ['int8', 'int8w'])
@pytest.mark.wide('int8w-model', 'int8-heads')
def test_random_parameters_in_int8_are_those_of_floats_quantized(module, dtype):
  in_int8, wide = (random_params(module, 0, one) for one in (dtype, choose_compute_dtype(dtype)))
  assert is_quantized(in_int8) and choose_compute_dtype('int8') == 'float32'
  jax.tree.map(np.testing.assert_array_equal, in_int8, fd.quantize(module, wide, dtype))


def test_random_parameters_are_of_their_type_and_those_of_a_seed():
  model = LM(dataclasses.replace(SMALL.config, dtype='bfloat16', qkv_bias=True, tied=False))
  params = random_params(model, 0, 'bfloat16')
  shapes = lambda tree: jax.tree.map(lambda x: x.shape, tree)
  assert shapes(params) == shapes(jax.eval_shape(model.init, jax.random.key(0)))
  assert {x.dtype.name for x in jax.tree.leaves(params)} == {'bfloat16'}
  assert (params['norm']['scale'] == 1).all() and (params['layer_0']['q']['bias'] == 0).all()
  assert float(params['output'].std()) == pytest.approx(8**-0.5, rel=0.2)
  assert not (params['output'] == params['embedding']).all()
  assert (params['output'] != random_params(model, 1, 'bfloat16')['output']).any()


@pytest.mark.parametrize('tied', [True, False])
def test_a_call_reads_one_vocabulary_matrix(tied):
  model = LM(dataclasses.replace(SMALL.config, tied=tied))
  target = Bound(model, random_params(model, 0, 'float32'))
  calls = Calls.after_prompt(target, NoDraft(), np.repeat(PROMPTS, 2, axis=0), 8, 1)
  layer = 4 * 8 * 8 + 3 * 8 * 8 + 2 * 8
  cache = 2 * 2 * 8 * 32  # rows, keys and values, width, slots: 3 + 8 + 1, rounded up
  lengths = 4 * 2
  assert calls.bytes == 4 * (layer + 8 + 14 * 8 + cache) + lengths


def test_a_call_on_images_reads_decoder_output_and_cache():
  d, f, rows, ring = 16, 32, 2, 2 * 8
  model = ImageTransformer(ImageTransformerConfig(
    d_model=d, d_ff=f, heads=2, encoder_layers=1, decoder_layers=1, source_size=2, size=4,
    block_length=8,
  ))  # fmt: skip
  target = Bound(model, random_params(model, 0, 'float32'))
  pictures = np.zeros((rows, 2, 2, 3), np.uint8)
  calls = Calls.after_prompt(target, NoDraft(), pictures, model.fixed_length, calls=1)
  attention, cross, feed_forward, norms = 4 * d * d, 2 * d * d, 2 * d * f + f + d, 3 * 2 * d
  cache = rows * 2 * d * (ring + 2 * 2 * 3)  # keys and values: the ring, the small picture
  others = rows * 4 + rows * 2 * 2 * 3  # lengths, the memory's mask
  floats = attention + cross + feed_forward + norms + 256 * (d + 1) + cache
  assert calls.bytes == 4 * floats + others


def test_calls_continue_with_the_decode_and_past_its_end():
  target = Bound(SMALL, random_params(SMALL, 0, 'float32'))
  expected = fd.decode(*target, PROMPTS, fd.Greedy(), max_len=8).tokens
  calls = Calls.after_prompt(target, NoDraft(), PROMPTS, 8, calls=5)
  np.testing.assert_array_equal(calls().tokens[:, :6], expected[:, :6])
  np.testing.assert_array_equal(calls().tokens[:, :8], expected)
  assert calls().done.all()


def test_a_free_tree_is_scored_as_a_tree_and_keeps_only_its_root():
  target = Bound(SMALL, random_params(SMALL, 0, 'float32'))
  tree = Topology.from_choices([[0], [1], [0, 0]])
  calls = Calls.after_prompt(target, FreeDraft(tree), PROMPTS, 20, 5)
  plain = fd.decode(*target, PROMPTS, fd.Greedy(), max_len=6).tokens
  np.testing.assert_array_equal(calls().tokens[:, :6], plain)
  draft, _ = FreeDraft(tree).propose(target, (), calls.state.root, None)
  assert draft.topology is tree and draft.tokens.shape == (1, 4)


def test_costs_are_ratios_to_greedy_and_to_the_floor():
  target = Bound(SMALL, random_params(SMALL, 0, 'float32'))
  drafters = {'greedy': NoDraft(), 'width 4': FreeDraft(Topology.chain(4))}
  variants = {
    name: Calls.after_prompt(target, one, PROMPTS, 20, 2) for name, one in drafters.items()
  }
  greedy, wide = measure_costs(variants, 2, bytes_per_second=1e6)
  assert [greedy['variant'], wide['variant']] == ['greedy', 'width 4'] and greedy['to_greedy'] == 1
  for row, calls in zip((greedy, wide), variants.values(), strict=True):
    assert row['floor_ms'] == pytest.approx(calls.bytes / 1e3)
    assert row['to_floor'] == pytest.approx(row['ms_per_call'] / row['floor_ms'])
