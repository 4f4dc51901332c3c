"""T5: its network written again in NumPy, by its definition; test_transformer has what it shares
with other models."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.cache.kv import LayerKV
from fastdec.decoding.topology import Topology
from fastdec.models.attention import attend, slot_positions
from fastdec.models.t5 import T5, bucket
from tests.models.test_transformer import BATCH, MODELS, RELATIVE, SHIFTED, hidden_of


def random_params(model):
  """Nothing at its neutral value. Embeddings are small and biases large: else a random model
  repeats one token."""
  rng = np.random.default_rng(1)
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  params = jax.tree.map(
    lambda x: (rng.normal(scale=0.5, size=x.shape) + (x.ndim == 1)).astype(np.float32), shapes
  )
  params['embedding'] /= 5
  params['decoder_bias'] *= 4
  return jax.tree.map(jnp.asarray, params)


@pytest.fixture(params=['t5', 't5 v1.1'], scope='module')
def made(request):
  model = MODELS[request.param]
  return model, random_params(model)


# ---- relative positions


def the_bucket(ahead, buckets, max_distance, is_causal):
  """The definition in integers: (max / exact)^(step / steps) <= distance / exact, taken to the
  power of `steps`."""
  first, distance = 0, max(-ahead, 0)
  if not is_causal:
    buckets //= 2
    first, distance = buckets * (ahead > 0), abs(ahead)
  exact = buckets // 2
  if distance < exact:
    return first + distance
  steps = buckets - exact
  is_reached = lambda step: max_distance**step * exact**steps <= distance**steps * exact**step
  return first + exact + max(step for step in range(steps) if is_reached(step))


@pytest.mark.parametrize('is_causal', [True, False])
@pytest.mark.parametrize(('buckets', 'max_distance'), [(32, 128), (8, 5), (16, 64), (64, 256)])
def test_buckets_are_those_of_the_definition(buckets, max_distance, is_causal):
  ahead = np.arange(-max_distance - 20, max_distance + 20)
  expected = [the_bucket(int(x), buckets, max_distance, is_causal) for x in ahead]
  np.testing.assert_array_equal(bucket(ahead, buckets, max_distance, is_causal), expected)


def test_the_buckets_of_the_docstring():
  ahead = np.array([-17, -8, -5, -4, -3, -2, -1, 0, 1, 2, 3])
  assert bucket(ahead, 8, 16, True).tolist() == [7, 6, 4, 4, 3, 2, 1, 0, 0, 0, 0]
  assert bucket(ahead, 8, 16, False).tolist() == [3, 3, 2, 2, 2, 2, 1, 0, 5, 6, 6]


def test_slots_are_at_the_positions_of_the_docstring():
  nodes = Topology.from_choices([[0], [1], [0, 0]]).nodes
  positions = slot_positions(nodes, jnp.array([2, 0]), 6)
  assert positions[0].tolist() == [0, 1, 2, 3, 3, 4]
  assert positions[1, :4].tolist() == [0, 1, 1, 2]


def test_a_bias_is_of_the_query_head_where_heads_share_keys():
  rng = np.random.default_rng(0)
  shapes = (1, 3, 4, 5), (1, 2, 6, 5), (1, 2, 6, 5), (1, 4, 3, 6)
  q, k, v, bias = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
  mask = rng.random((1, 3, 6)) < 0.7
  kv = LayerKV.of(jnp.asarray(k), jnp.asarray(v))
  attended = jax.jit(lambda q, mask, bias: attend(q, kv, mask, bias=bias, scale=0.5))
  out = np.asarray(attended(q, mask, bias))
  for head in range(4):
    weights = np.exp(0.5 * q[0, :, head] @ k[0, head // 2].T + bias[0, head]) * mask[0]
    expected = weights / weights.sum(-1, keepdims=True) @ v[0, head // 2]
    np.testing.assert_allclose(out[0, :, head], expected, atol=1e-5)


# ---- the network, written again


def forward(config, params, source, target):
  """Logits of one sentence, in NumPy and float64: loops over heads, positions one by one."""
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)

  def norm(x, where):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_epsilon) * where['scale']

  def attention(x, memory, q, kv, out, table, is_causal):
    heads = []
    for h in range(config.heads):
      scores = (x @ q[h].T) @ (memory @ kv[0][h].T).T
      for i, j in np.ndindex(*scores.shape):
        if table is not None:
          scores[i, j] += table[
            the_bucket(j - i, config.buckets, config.max_distance, is_causal), h
          ]
        if is_causal and j > i:
          scores[i, j] = -np.inf
      weights = np.exp(scores - scores.max(-1, keepdims=True))
      heads.append(weights / weights.sum(-1, keepdims=True) @ (memory @ kv[1][h].T))
    return np.concatenate(heads, axis=-1) @ out.T

  def feed_forward(x, w):
    if config.is_gated:
      a, b = (x @ kernel.T for kernel in w['gate_w1']['kernel'])
      units = 0.5 * a * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3))) * b
    else:
      units = np.maximum(x @ w['w1']['kernel'].T, 0)
    return units @ w['w2']['kernel'].T

  def stack(x, side, layers, memory):
    for layer in (p[f'{side}_{i}'] for i in range(layers)):
      y, own = norm(x, layer['around_attention']['norm']), layer['attention']
      qkv, is_causal = own['qkv']['kernel'], side == 'decoder'
      x = x + attention(y, y, qkv[0], qkv[1:], own['out']['kernel'], p[f'{side}_bias'], is_causal)
      if is_causal:
        y, cross = norm(x, layer['around_cross']['norm']), layer['cross']
        kernels = (cross[name]['kernel'] for name in ('q', 'kv', 'out'))
        x = x + attention(y, memory, *kernels, None, False)
      x = x + feed_forward(norm(x, layer['around_feed_forward']['norm']), layer['feed_forward'])
    return norm(x, p[f'{side}_norm'])

  memory = stack(p['embedding'][source], 'encoder', config.encoder_layers, None)
  hidden = stack(p['embedding'][target], 'decoder', config.decoder_layers, memory)
  return hidden @ (p['embedding'] / config.d_model**0.5 if config.is_tied else p['lm_head']).T


def test_the_network_is_that_of_the_definition(made):
  model, params = made
  logits = np.asarray(jax.jit(model.unembed)(params, hidden_of(model, params, BATCH)))
  for row, (s, t) in enumerate([(4, 4), (6, 5)]):
    expected = forward(model.config, params, BATCH['source'][row, :s], SHIFTED[row, :t])
    np.testing.assert_allclose(logits[row, :t], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.wide('t5')
def test_dropout_is_used_only_in_training(made):
  model, params = made
  hidden = jax.jit(model.hidden)
  dropped = [hidden(params, BATCH, jax.random.key(seed)) for seed in (0, 0, 1)]
  np.testing.assert_array_equal(dropped[0], dropped[1])
  assert (dropped[0] != dropped[2]).any()
  assert 0.02 < float((dropped[0] == 0).mean()) < 0.25  # what leaves the decoder too


def test_fresh_scores_have_the_variance_that_scaled_ones_have():
  model = T5(dataclasses.replace(RELATIVE, d_model=64, d_kv=16))
  layer = jax.tree.map(np.asarray, jax.jit(model.init)(jax.random.key(0))['decoder_0'])
  (q, k, _), cross = layer['attention']['qkv']['kernel'], layer['cross']
  for queries, keys in ((q, k), (cross['q']['kernel'], cross['kv']['kernel'][0])):
    assert queries.std() * 4 == pytest.approx(keys.std(), rel=0.1)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'d_kv': 0}, 'd_kv=0'), ({'buckets': 7}, 'even number'), ({'max_distance': 4}, 'give over 4'),
    ({'activation': 'no'}, 'relu'), ({'dropout': 1.0}, 'below 1'),
  ],
)  # fmt: skip
def test_bad_sizes_are_refused(change, message):
  with pytest.raises(fd.UserError, match=message):
    dataclasses.replace(RELATIVE, **change)
