"""What one step of the loop writes, read off the compiled program: it copies neither parameters nor
the memory."""

import dataclasses
import functools
import re

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.inputs import check_inputs
from fastdec.decoding.run import Coming, Limits, make_calls
from fastdec.heads.block import BlockNetwork
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.eagle import EagleNetwork
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.struct import Bound
from fastdec.training.drafts.start import layers_like

D, D_FF, SOURCE, MAX_LEN = 16, 64, 64, 16
MODEL = Transformer(TransformerConfig(
  d_model=D, d_ff=D_FF, heads=2, encoder_layers=1, decoder_layers=1, vocab_size=40,
))  # fmt: skip
HEADS = {layout: BlockwiseHeads(4, D, D_FF, layout) for layout in ('separate', 'paper')}
STRATEGIES = {
  'greedy': lambda heads: fd.Greedy(),
  'chain': lambda heads: fd.Blockwise(heads('separate')),
  'chain, paper': lambda heads: fd.Blockwise(heads('paper')),
  'tree': lambda heads: fd.Medusa(heads('separate'), [[0], [1], [0, 0], [0, 1], [0, 0, 0]]),
}

# instructions that name a value and compute nothing
NAMES = {'parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'after-all'}
# The instructions that these call run one by one; a fusion runs as one.
OUTER = {'call', 'while', 'conditional'}
CALLED = r'(?:to_apply|body|condition|true_computation|false_computation)=%?([\w.-]+)'
BRANCHES = r'branch_computations={([^}]*)}'


def of_loop(hlo: str) -> list[tuple[str, str]]:
  """The instructions of the longest loop: the opcode of each, and its line of the text."""
  computations = {}
  for line in hlo.splitlines():
    if head := re.match(r'(?:ENTRY )?%?([\w.-]+) \(.*\{$', line):
      instructions = computations[head[1]] = []
    elif opcode := re.match(r'\s+(?:ROOT )?%?[\w.-]+ = .*?[\]})] ([a-z][a-z0-9-]*)\(', line):
      instructions.append((opcode[1], line))

  def launched(name):
    for opcode, line in computations[name]:
      if opcode in OUTER:
        branches = ','.join(re.findall(BRANCHES, line))
        for inner in re.findall(CALLED, line) + re.findall(r'[\w.-]+', branches):
          yield from launched(inner)
      elif opcode not in NAMES:
        yield opcode, line

  return max((list(launched(name)) for name in re.findall(r'body=%?([\w.-]+)', hlo)), key=len)


def shape(line: str) -> tuple[int, ...]:
  """The shape of an instruction's result; of several results, of the first."""
  sizes = re.search(r' = \(?[a-z]+[0-9]*\[([0-9,]*)\]', line)
  assert sizes, line
  return tuple(int(size) for size in sizes[1].split(',') if size)


@pytest.mark.parametrize('name', STRATEGIES)
@pytest.mark.wide('chain')
def test_a_step_copies_no_matrix_of_the_heads_and_no_memory(name):
  """A head's second matrix has d * d_ff entries; the memory's values have d for each token of the
  source."""
  step = step_named(name)
  assert max(np.prod(shape(line), dtype=int) for _, line in step) < D * D_FF == D * SOURCE


@pytest.mark.parametrize('name', [*STRATEGIES, 'eagle', 'speculative'])
@pytest.mark.wide('eagle')
def test_a_step_copies_no_cache_of_one_row(name):
  """The tokens' cache is written in place. A drafter that drafts token by token copies its own keys
  and values once a call, not at every token."""
  step = step_named(name)
  copied = [
    line
    for opcode, line in step
    if opcode == 'copy' and np.prod(shape(line), dtype=int) >= D * MAX_LEN
  ]
  assert len(copied) <= (0 if name in STRATEGIES else 2)


@pytest.mark.parametrize('choices', [None, 6], ids=['chain', 'tree'])
@pytest.mark.wide('tree')
def test_of_all_words_only_the_candidates_of_a_block_are_sorted(choices):
  """The vocabulary has 1,200 words. Only the 8 candidates of a guess are sorted."""
  model = Transformer(dataclasses.replace(MODEL.config, vocab_size=1200))
  draft = BlockNetwork(
    layers=layers_like(model, 1), vocab_size=1200, d_target=D, k=4, markov=2, candidates=8
  )
  step = step_of(
    model, fd.BlockDraft((draft, jax.eval_shape(draft.init, jax.random.key(1))), choices=choices)
  )
  assert max(shape(line)[-1] for opcode, line in step if opcode == 'sort') == 8


@functools.cache
def step_named(name):
  """The step of a strategy, compiled once."""
  fresh = lambda module: (module, jax.jit(module.init)(jax.random.key(1)))
  if name == 'eagle':
    network = EagleNetwork(layers=layers_like(MODEL, 1), vocab_size=40, d_target=D)
    return step_of(MODEL, fd.Eagle(fresh(network), depth=3))
  if name == 'speculative':
    return step_of(MODEL, fd.Speculative(fresh(MODEL), gamma=3))
  return step_of(MODEL, STRATEGIES[name](lambda layout: fresh(HEADS[layout])))


def step_of(model, strategy):
  """The instructions of the compiled loop."""
  max_len, prompt, _ = check_inputs(model, np.full((1, SOURCE), 2), None, None, MAX_LEN, None)
  params = jax.eval_shape(model.init, jax.random.key(0))
  step = of_loop(
    make_calls.lower(Bound(model, params), strategy, None, Coming(prompt, None), Limits(), max_len)
    .compile()
    .as_text()
  )
  assert len(step) > 20
  return step
