"""The language model: training and decoding agree, and its parts are what their papers define."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.models.api import Nodes, causal
from fastdec.models.attention import node_mask, node_window
from fastdec.models.lm import LM, LMConfig
from fastdec.models.rotary import Rope, rotate
from fastdec.training.losses import model_loss

SMALL = LMConfig(
  vocab_size=17, d_model=16, d_ff=24, layers=2, heads=4, key_heads=2, qkv_bias=True, out_bias=True,
  mlp_bias=True, qk_norm=True, windows=(0, 3), tied=False, dtype='float64', norm_epsilon=1e-5,
)  # fmt: skip


@pytest.fixture
def small():
  with jax.enable_x64(True):
    model = LM(SMALL)
    rng, fresh = np.random.default_rng(1), jax.jit(model.init)(jax.random.key(0))
    noise = lambda x: jnp.asarray(np.asarray(x) + 0.3 * rng.normal(size=x.shape))
    yield model, jax.tree.map(noise, fresh)


def test_packed_training_computes_what_decoding_does(small):
  """A row holds two texts, each predicted from bos. Each is compared with itself, decoded token by
  token over the cache."""
  model, params = small
  texts = [[3, 4, 5, 6, 7], [8, 9, 10, 11]]
  place = lambda of: jnp.array(
    [[x for i, text in enumerate(texts) for j, x in enumerate(of(i, text))] + [0]]
  )
  batch = {
    'target': place(lambda i, text: text),
    'target_segment': place(lambda i, text: [i + 1] * len(text)),
    'target_position': place(lambda i, text: range(len(text))),
  }
  packed = jax.jit(model.hidden)(params, batch)
  step = jax.jit(lambda tokens, cache: model.apply(params, tokens, causal(1), cache))
  at = 0
  for text in texts:
    cache = model.init_cache(params, None, 1, 5)
    for token in [model.config.bos_id, *text[:-1]]:
      hidden, _, cache = step(jnp.array([[token]]), cache)
      cache = cache.commit(None, jnp.array([1], jnp.int32))
      np.testing.assert_allclose(hidden[0, 0], packed[0, at], rtol=1e-8)
      at += 1


def numpy_hidden(c, p, tokens):
  """The model over one text, all positions at once, from the papers' definitions; float64."""
  norm = lambda x, scale: (
    x / np.sqrt((x**2).mean(-1, keepdims=True) + c.norm_epsilon) * np.asarray(scale['scale'])
  )
  apply = lambda w, x: (
    np.einsum('...d,td->...t', x, flat(w['kernel'])) + np.asarray(w['bias']).reshape(-1)
  )
  flat = lambda w: np.asarray(w).reshape(-1, w.shape[-1])
  t, width = len(tokens), c.width
  turn = np.exp(1j * np.arange(t)[:, None] * c.rope_theta ** (-np.arange(0, width, 2) / width))[
    :, None
  ]

  def rotated(x):
    z = (x[..., : width // 2] + 1j * x[..., width // 2 :]) * turn
    return np.concatenate([z.real, z.imag], -1)

  x = np.asarray(p['embedding'])[tokens]
  for i, window in enumerate(c.layer_windows):
    layer = p[f'layer_{i}']
    h = norm(x, layer['attention_norm'])
    q = rotated(norm(apply(layer['q'], h).reshape(t, c.heads, width), layer['q_norm']))
    k, v = np.split(apply(layer['kv'], h).reshape(t, 2 * c.kv_heads, width), 2, axis=1)
    k = rotated(norm(k, layer['k_norm']))
    k, v = (np.repeat(x, c.heads // c.kv_heads, axis=1) for x in (k, v))
    scores = np.einsum('ihp,jhp->hij', q, k) / width**0.5
    behind = np.arange(t)[:, None] - np.arange(t)
    scores = np.where((behind >= 0) & (behind < (window or t)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    x = x + apply(layer['out'], np.einsum('hij,jhp->ihp', weights, v).reshape(t, -1))
    gate, up = np.split(apply(layer['gate_up'], norm(x, layer['mlp_norm'])), 2, axis=-1)
    x = x + apply(layer['down'], gate / (1 + np.exp(-gate)) * up)
  return norm(x, p['norm'])


def test_it_is_its_definition(small):
  model, params = small
  tokens = np.array([1, 5, 9, 13, 2, 6, 10, 14])
  apply = jax.jit(
    lambda tokens: model.apply(params, tokens, causal(8), model.init_cache(params, None, 1, 8))
  )
  hidden, _, _ = apply(jnp.asarray(tokens)[None])
  expected = numpy_hidden(model.config, params, tokens)
  np.testing.assert_allclose(hidden[0], expected, rtol=1e-5, atol=1e-5)  # positions turn in float32
  logits = jax.jit(model.unembed)(params, hidden)[0]
  np.testing.assert_allclose(
    logits, expected @ np.asarray(params['output']).T, rtol=1e-5, atol=1e-4
  )


def test_window_of_a_tree_is_by_position():
  """The docstring's example: root, a, b, aa after two committed slots; window 3."""
  mask = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], bool)
  nodes = Nodes(parents=np.array([-1, 0, 0, 1]), depths=np.array([0, 1, 1, 2]), mask=mask)
  length = jnp.array([2])
  np.testing.assert_array_equal(node_window(nodes, length, 6, 3)[0, 3], [0, 0, 1, 1, 1, 1])
  both = node_mask(nodes, length, 6) & node_window(nodes, length, 6, 3)
  expected = [[1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 0, 0], [0, 1, 1, 0, 1, 0], [0, 0, 1, 1, 0, 1]]
  np.testing.assert_array_equal(both[0], expected)


def test_a_query_and_a_key_meet_by_their_distance():
  rope = Rope('default', 1e4, 1.0, 1.0, 4.0, 8192)
  q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 8)).astype(np.float32)
  at = jax.jit(lambda x, position: rotate(x, rope.turns(jnp.array([[position]]), 8)))
  meet = lambda i, j: np.vdot(at(q, i), at(k, j))
  np.testing.assert_allclose(meet(9, 4), meet(25, 20), rtol=1e-4)
  assert abs(meet(9, 4) - meet(9, 5)) > 1e-3


def test_stretched_waves():
  plain = Rope('default', 1e4, 1.0, 1.0, 4.0, 64).frequencies(16)
  np.testing.assert_allclose(Rope('linear', 1e4, 4.0, 1.0, 4.0, 64).frequencies(16), plain / 4)
  expected = []
  for frequency in plain:  # as Meta's code has it
    wavelength = 2 * np.pi / frequency
    if wavelength < 64 / 4:
      expected.append(frequency)
    elif wavelength > 64 / 1:
      expected.append(frequency / 8)
    else:
      smooth = (64 / wavelength - 1) / (4 - 1)
      expected.append((1 - smooth) * frequency / 8 + smooth * frequency)
  frequencies = Rope('llama3', 1e4, 8.0, 1.0, 4.0, 64).frequencies(16)
  np.testing.assert_allclose(frequencies, expected)
  assert ((frequencies < plain * 0.99) & (frequencies > plain / 8 * 1.01)).any()


def test_it_trains_without_a_source():
  model = LM(LMConfig(vocab_size=12, d_model=8, d_ff=8, layers=1, heads=2, dropout=0.1))
  ones = jnp.ones((1, 4), jnp.int32)
  batch = {'target': 3 * ones, 'target_segment': ones, 'target_position': jnp.arange(4)[None]}
  params = jax.jit(model.init)(jax.random.key(0))
  assert 'output' not in params
  grads = jax.jit(jax.grad(lambda p: model_loss(model, p, batch, 0.1, jax.random.key(1))[0]))(
    params
  )
  assert all((np.asarray(x) != 0).any() for x in jax.tree.leaves(grads))


@pytest.mark.parametrize(('wrong', 'message'), [
  ({'activation': 'tanh'}, "activation='tanh' is unknown"),
  ({'rope': 'llama3', 'rope_low': 4.0}, 'rope_low=4.0 and rope_high=4.0 are not possible'),
  ({'key_heads': 3}, 'heads=8 is not divisible by key_heads=3'),
  ({'heads': 7}, 'give head_width'),
  ({'windows': (3,)}, 'one number for each of the 6 layers'),
  ({'pad_id': -1}, 'pad_id=-1 is not possible: give ids from 0 to 31999'),
  ({'suppressed_ids': (0, 99999)}, r'suppressed_ids=\(0, 99999\) is not possible'),
])  # fmt: skip
def test_wrong_sizes_are_refused(wrong, message):
  with pytest.raises(fd.UserError, match=message):
    LMConfig(**wrong)
