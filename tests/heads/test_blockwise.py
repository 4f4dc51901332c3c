"""Blockwise heads: both layouts, one head at a time equals all at once, p1 identity or
transformed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.transformed import Transformed

D, F, K = 6, 10, 4
LAYOUTS = [
  (layout, first) for layout in ('paper', 'separate') for first in ('identity', 'transformed')
]
HIDDEN = jax.random.normal(jax.random.key(2), (3, D))


def made(layout, first):
  heads = BlockwiseHeads(k=K, d_model=D, d_ff=F, layout=layout, first=first)
  params = heads.init(jax.random.key(0))
  return heads, jax.tree.map(
    lambda x: x + 0.1 * jax.random.normal(jax.random.key(1), x.shape), params
  )


def test_sizes_of_the_paper():
  """Section 6: hidden size k * d_ff, k outputs of size d."""
  _, params = made('paper', 'transformed')
  assert {name: x.shape for name, x in params.items()} == {
    'w1': (K * F, D),
    'b1': (K * F,),
    'w2': (K, D, K * F),
    'b2': (K, D),
  }
  _, params = made('separate', 'identity')
  assert params['w1'].shape == ((K - 1) * F, D) and params['w2'].shape == (K - 1, D, F)


@pytest.mark.parametrize('layout, first', LAYOUTS)
@pytest.mark.wide('paper-identity', 'separate-transformed')
def test_one_head_equals_its_row_of_all(layout, first):
  heads, params = made(layout, first)
  whole = heads.all(params, HIDDEN)
  assert whole.shape == (3, len(heads.offsets), D)
  for j in range(len(heads.offsets)):
    np.testing.assert_allclose(heads.one(params, HIDDEN, jnp.int32(j)), whole[:, j], atol=1e-6)


def test_separate_head_is_a_residual_feed_forward_layer():
  heads, params = made('separate', 'identity')
  params_np, hidden = jax.tree.map(np.asarray, params), np.asarray(HIDDEN)
  w1, b1 = np.split(params_np['w1'], K - 1)[1].T, np.split(params_np['b1'], K - 1)[1]
  expected = hidden + np.maximum(hidden @ w1 + b1, 0) @ params_np['w2'][1].T + params_np['b2'][1]
  np.testing.assert_allclose(heads.all(params, HIDDEN)[:, 1], expected, atol=1e-6)


@pytest.mark.parametrize('layout, first', LAYOUTS)
def test_drafting_leaves_out_p1_and_later_heads(layout, first):
  heads, params = made(layout, first)
  fewer, fewer_params = heads.drafting(params, 2)
  start = heads.offsets.index(1)
  expected = heads.all(params, HIDDEN)[:, start : start + 2]
  np.testing.assert_allclose(fewer.all(fewer_params, HIDDEN), expected, atol=1e-6)


@pytest.mark.parametrize('layout', ['paper', 'separate'])
@pytest.mark.wide('paper')
def test_the_gradient_of_one_head_touches_no_other(layout):
  heads, params = made(layout, 'identity')
  gradient = jax.grad(lambda p: heads.one(p, HIDDEN, jnp.int32(1)).sum())(params)
  touched = [bool(np.any(gradient['w2'][j])) for j in range(K - 1)]
  assert touched == [False, True, False]


def test_transformed_p1_changes_the_logits_and_nothing_else():
  @dataclasses.dataclass(frozen=True)
  class Trunk:
    vocab_size: int = 5

    def unembed(self, params, hidden):
      return hidden @ params

  heads, params = made('separate', 'transformed')
  table = jax.random.normal(jax.random.key(3), (D, 5))
  model = Transformed(Trunk(), heads)
  logits = model.unembed({'model': table, 'heads': params}, HIDDEN)
  np.testing.assert_allclose(logits, heads.all(params, HIDDEN)[:, 0] @ table, atol=1e-5)
  assert model.vocab_size == 5 and hash(model) == hash(Transformed(Trunk(), heads))


@pytest.mark.parametrize('make, message', [
  (lambda: BlockwiseHeads(k=1, d_model=D, d_ff=F), 'k >= 2'),
  (lambda: BlockwiseHeads(k=2, d_model=D, d_ff=F, layout='wide'), 'choose one of paper, separate'),
  (lambda: Transformed(None, made('paper', 'identity')[0]), 'have no learned p1'),
  (lambda: fd.Blockwise(made('paper', 'identity'), k=5), 'trained for k=4'),
  (lambda: fd.Medusa(made('paper', 'identity'), [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]),
    '4 deep, and there are 3'),
])  # fmt: skip
def test_bad_requests_are_refused(make, message):
  with pytest.raises(fd.UserError, match=message):
    make()
