"""Blockwise heads: both layouts, one head at a time equals all at once, p1 identity or
transformed."""

import dataclasses
import functools

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
HIDDEN = jnp.asarray(np.random.default_rng(2).normal(size=(3, D)), jnp.float32)


@functools.cache
def made(layout, first):
  heads = BlockwiseHeads(k=K, d_model=D, d_ff=F, layout=layout, first=first)
  shapes, rng = jax.eval_shape(heads.init, jax.random.key(0)), np.random.default_rng(0)
  draw = lambda x: jnp.asarray(0.3 * rng.normal(size=x.shape), x.dtype)
  return heads, jax.tree.map(draw, shapes)


all_of = jax.jit(lambda heads, params: heads.all(params, HIDDEN), static_argnums=0)
one_of = jax.jit(lambda heads, params, j: heads.one(params, HIDDEN, j), static_argnums=0)


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
  whole = np.asarray(all_of(heads, params))
  assert whole.shape == (3, len(heads.offsets), D)
  for j in range(len(heads.offsets)):
    np.testing.assert_allclose(one_of(heads, params, np.int32(j)), whole[:, j], atol=1e-6)


def test_separate_head_is_a_residual_feed_forward_layer():
  heads, params = made('separate', 'identity')
  w1, b1, w2, b2 = (np.asarray(params[name]) for name in ('w1', 'b1', 'w2', 'b2'))
  w1, b1 = np.split(w1, K - 1)[1].T, np.split(b1, K - 1)[1]
  hidden = np.asarray(HIDDEN)
  expected = hidden + np.maximum(hidden @ w1 + b1, 0) @ w2[1].T + b2[1]
  np.testing.assert_allclose(np.asarray(all_of(heads, params))[:, 1], expected, atol=1e-6)


@pytest.mark.parametrize('layout, first', LAYOUTS)
def test_drafting_leaves_out_p1_and_later_heads(layout, first):
  heads, params = made(layout, first)
  fewer, fewer_params = heads.drafting(params, 2)
  start = heads.offsets.index(1)
  expected = np.asarray(all_of(heads, params))[:, start : start + 2]
  np.testing.assert_allclose(all_of(fewer, fewer_params), expected, atol=1e-6)


@pytest.mark.parametrize('layout', ['paper', 'separate'])
@pytest.mark.wide('paper')
def test_the_gradient_of_one_head_touches_no_other(layout):
  heads, params = made(layout, 'identity')
  gradient = jax.grad(lambda p: one_of(heads, p, np.int32(1)).sum())(params)
  assert np.any(gradient['w2'], axis=(1, 2)).tolist() == [False, True, False]


def test_transformed_p1_changes_the_logits_and_nothing_else():
  @dataclasses.dataclass(frozen=True)
  class Trunk:
    vocab_size: int = 5

    def unembed(self, params, hidden):
      return hidden @ params

  heads, params = made('separate', 'transformed')
  table = np.random.default_rng(3).normal(size=(D, 5)).astype(np.float32)
  model = Transformed(Trunk(), heads)
  logits = jax.jit(model.unembed)({'model': table, 'heads': params}, HIDDEN)
  expected = np.asarray(all_of(heads, params))[:, 0] @ table
  np.testing.assert_allclose(logits, expected, atol=1e-5)
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
