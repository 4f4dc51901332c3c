"""Counts the operations of one call, so that no change makes a call slower unnoticed.

The program is counted as it is traced, before XLA compiles it: the counts depend on neither the
machine nor XLA's version. `BOUNDS` are upper bounds. To renew them, copy the counts that a failing
test prints, and say in the commit why the call must cost more. Lower them where a call has become
cheaper.
"""

import collections
import functools
import math

import jax
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

import fastdec as fd
from fastdec.decoding.inputs import check_inputs
from fastdec.decoding.prefill import SUMMED
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.eagle import EagleNetwork
from fastdec.kernels import forms
from fastdec.models.lm import LM, LMConfig
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.struct import Bound
from fastdec.training.drafts.start import layers_like

ROWS, PROMPT, MAX_LEN = 2, 8, 16
D, D_FF, VOCAB = 16, 32, 40
MODEL = LM(LMConfig(vocab_size=VOCAB, d_model=D, d_ff=D_FF, layers=1, heads=2))
TRANSLATOR = Transformer(TransformerConfig(
  vocab_size=VOCAB, d_model=D, d_ff=D_FF, heads=2, encoder_layers=1, decoder_layers=1,
))  # fmt: skip
HEADS = BlockwiseHeads(4, D, D_FF)
EAGLE = EagleNetwork(layers=layers_like(MODEL, 1), vocab_size=VOCAB, d_target=D)
PROGRAMS = {
  'greedy': (MODEL, lambda: fd.Greedy()),
  'chain': (TRANSLATOR, lambda: fd.Blockwise(zeros(HEADS))),
  'beam': (TRANSLATOR, lambda: fd.Beam(4)),
  'grown tree': (MODEL, lambda: fd.Eagle(zeros(EAGLE), depth=3, width=2, nodes=6)),
}
BOUNDS = {
  'greedy': {
    'products': 8, 'multiplications': 10496, 'sorts': 0, 'reads': 9, 'writes': 4,
    'operations': 475, 'values': 11284,
  },
  'chain': {
    'products': 14, 'multiplications': 47104, 'sorts': 0, 'reads': 11, 'writes': 4,
    'operations': 676, 'values': 46381,
  },
  'beam': {
    'products': 11, 'multiplications': 52224, 'sorts': 4, 'reads': 10, 'writes': 2,
    'operations': 653, 'values': 71538,
  },
  'grown tree': {
    'products': 35, 'multiplications': 124672, 'sorts': 7, 'reads': 32, 'writes': 12,
    'operations': 1815, 'values': 119596,
  },
}  # fmt: skip
# Another version of JAX may make its small functions of a few more operations.
MARGIN = {'operations': 1.1, 'values': 1.1}
KINDS = {
  'dot_general': 'products', 'sort': 'sorts', 'top_k': 'sorts',
  'gather': 'reads', 'dynamic_slice': 'reads',
  'scatter': 'writes', 'scatter-add': 'writes', 'dynamic_update_slice': 'writes',
}  # fmt: skip


@pytest.fixture(autouse=True)
def default_forms():
  """Products as without a table of this machine, which another test may have measured."""
  forms.use({})


def zeros(module):
  """A module, and parameters of its shapes: their values do not matter here."""
  shapes = jax.eval_shape(module.init, jax.random.key(0))
  return module, jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)


def operations(jaxpr, times=1):
  """Yields the operations of a program, and how often each runs.

  A scan's body runs as often as the scan is long. The number of passes of other loops is unknown:
  they count as one. All branches of a condition count, but of a choice by platform that of CPUs.
  """
  for equation in jaxpr.eqns:
    bodies = list(jaxprs_in_params(equation.params))
    platforms = equation.params.get('branches_platforms')
    if platforms is not None:
      bodies = [bodies[platforms.index(('cpu',))]]
    for body in bodies:
      yield from operations(body, times * equation.params.get('length', 1))
    if not bodies:
      yield equation, times


@functools.cache
def counts_of(name):
  """Counts what one step of a program computes for two rows.

  'products' are those of matrices, and 'multiplications' those of their entries; 'values' are the
  entries of all results.
  """
  model, make = PROGRAMS[name]
  strategy, target = make(), Bound(*zeros(model))
  _, prompt, _ = check_inputs(model, np.full((ROWS, PROMPT), 2), None, None, MAX_LEN, None)
  # the strategy is an argument, as in `decode`, so that its parameters are not constants
  begin = lambda strategy, target, prompt: strategy.init(target, prompt, MAX_LEN, None)
  step = lambda strategy, target, state: strategy.step(target, state)
  state = jax.eval_shape(begin, strategy, target, prompt)
  program = jax.make_jaxpr(step)(strategy, target, state)

  counts = collections.Counter()
  for operation, times in operations(program.jaxpr):
    primitive = operation.primitive.name
    counts['operations'] += times
    counts['values'] += times * sum(math.prod(out.aval.shape) for out in operation.outvars)
    if primitive in KINDS:
      counts[KINDS[primitive]] += times
    if primitive == 'dot_general':
      (summed, _), _ = operation.params['dimension_numbers']
      terms = math.prod(operation.invars[0].aval.shape[axis] for axis in summed)
      counts['multiplications'] += times * terms * math.prod(operation.outvars[0].aval.shape)
  return counts


@pytest.mark.parametrize('name', PROGRAMS)
def test_a_call_computes_no_more_than_it_did(name):
  counts = counts_of(name)
  for kind, bound in BOUNDS[name].items():
    assert counts[kind] <= bound * MARGIN.get(kind, 1), f'{kind} of {name}; all counts: {counts}'


def test_a_greedy_call_multiplies_as_often_as_its_matrices_say():
  """By hand: the attention's four matrices and the memory of all slots, the gated feed-forward
  layer's three, and the vocabulary's."""
  slots = -(-(PROMPT + MAX_LEN + 1) // SUMMED) * SUMMED
  # the single query of a head goes in twice
  row = 4 * D * D + 2 * 2 * slots * D + 3 * D * D_FF + D * VOCAB
  assert counts_of('greedy')['multiplications'] == ROWS * row
