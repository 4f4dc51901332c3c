"""Decoding that is driven call by call: what a timed call is, and what is refused before one."""

import dataclasses
import re

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.topology import Topology
from fastdec.evaluation.calls import (
  Drafted,
  FreeDraft,
  computing_in,
  random_params,
  repeated,
  texts,
)
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.models.lm import LM, LMConfig
from fastdec.quantized import is_quantized
from fastdec.struct import Bound
from tests.decoding.fakes import HashLM

PROMPTS = np.array([[3, 4, 5]], np.int32)
SMALL = LM(LMConfig(vocab_size=14, d_model=8, d_ff=8, layers=1, heads=2))


def test_what_the_model_cannot_serve_is_a_sentence():
  draft = (dataclasses.replace(HashLM(), start_id=0), {})
  with pytest.raises(fd.UserError, match='the draft model has an encoder, and the target has none'):
    texts(Bound(HashLM(), {}), fd.Speculative(draft, 2), PROMPTS, 8, None, 0)


def test_a_call_has_no_branch_so_that_it_takes_as_long_where_a_text_has_ended():
  """The loop over calls is the only one in the program, and nothing in it depends on what was
  written."""
  target = Bound(SMALL, random_params(SMALL, 0, 'float32'))
  strategy = Drafted(FreeDraft(Topology.chain(3)), Exact())
  state = texts(target, strategy, PROMPTS, 8, None, 0)
  program = repeated.lower(target, strategy, state, 4).as_text()
  assert program.count('stablehlo.while') == 1 and not re.search(r'stablehlo\.(if|case)\b', program)


@pytest.mark.parametrize(
  'module', [SMALL, BlockwiseHeads(k=2, d_model=8, d_ff=6)], ids=['model', 'heads']
)
def test_random_parameters_in_int8_are_those_of_float32_quantized(module):
  in_int8, wide = (random_params(module, 0, dtype) for dtype in ('int8', 'float32'))
  assert is_quantized(in_int8) and computing_in('int8') == 'float32'
  jax.tree.map(np.testing.assert_array_equal, in_int8, fd.quantize(module, wide))
