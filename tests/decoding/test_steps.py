"""What one step of the loop writes, read off the compiled program: parameters and the memory are read as they lie."""

import re

import jax
import numpy as np
import pytest

import fastdec as fd
from experiments.papers.incremental.operations import of_loop
from fastdec.decoding.decode import _decode
from fastdec.decoding.inputs import checked
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.models.transformer import Transformer, TransformerConfig

D, D_FF, SOURCE = 16, 64, 64
MODEL = Transformer(TransformerConfig(d_model=D, d_ff=D_FF, heads=2, encoder_layers=1, decoder_layers=1, vocab_size=40))
HEADS = {layout: BlockwiseHeads(4, D, D_FF, layout) for layout in ('separate', 'paper')}
STRATEGIES = {
  'greedy': lambda heads: fd.Greedy(),
  'chain': lambda heads: fd.Blockwise(heads('separate')),
  'chain, paper': lambda heads: fd.Blockwise(heads('paper')),
  'tree': lambda heads: fd.Medusa(heads('separate'), [[0], [1], [0, 0], [0, 1], [0, 0, 0]]),
}


def entries(line: str) -> int:
  """How many numbers an instruction's result has."""
  shape = re.search(r' = \(?[a-z]+[0-9]*\[([0-9,]*)\]', line)
  assert shape, line
  return int(np.prod([int(size) for size in shape[1].split(',') if size], dtype=int))


@pytest.mark.parametrize('name', STRATEGIES)
def test_a_step_copies_no_matrix_of_the_heads_and_no_memory(name):
  """A head's second matrix has d * d_ff entries, the values of the memory d for each of the source's tokens."""

  def heads(layout):
    return HEADS[layout], HEADS[layout].init(jax.random.key(1))

  params = MODEL.init(jax.random.key(0))
  max_len, prompt, _ = checked(MODEL, np.full((1, SOURCE), 2), None, None, 16, None)
  compiled = _decode.lower(MODEL, STRATEGIES[name](heads), params, prompt, None, max_len).compile()
  step = of_loop(compiled.as_text())
  assert len(step) > 20
  assert max(entries(line) for _, line in step) < D * D_FF == D * SOURCE
