"""Transformer, FConv and T5: cached equals uncached, nothing sees the future; a user's own model
joins by the protocol."""

import collections
import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from configs.wmt14 import FCONV
from fastdec.cache.kv import KVCache
from fastdec.decoding.topology import Topology
from fastdec.models import api, attention
from fastdec.models.fconv import ARCHITECTURES, FConv, FConvConfig
from fastdec.models.t5 import T5, T5Config
from fastdec.models.transformer import Transformer, TransformerConfig

SMALL = TransformerConfig(
  vocab_size=19, d_model=16, d_ff=24, heads=2, encoder_layers=1, decoder_layers=2
)
POST = dataclasses.replace(
  SMALL, norm='post', positions='learned', attention_bias=True, activation='gelu', max_positions=32,
  source_vocab_size=12, is_tied=False, embedding_norm=True,
)  # fmt: skip
# kernels of odd and even width, and of 1; channels that change and stay
CONVOLUTIONS = FConvConfig(
  vocab_size=19, d_embed=12, d_out=16, max_positions=32, encoder_layers=((16, 3), (8, 4), (8, 1)),
  decoder_layers=((16, 3), (8, 2), (8, 1)),
)  # fmt: skip
# so few buckets of distances that sentences of six tokens reach the last one
RELATIVE = T5Config(
  vocab_size=19, d_model=10, d_ff=24, d_kv=4, heads=2, encoder_layers=1, decoder_layers=2,
  buckets=8, max_distance=5,
)  # fmt: skip
MODELS = {
  'pre-norm': Transformer(SMALL),
  'post-norm, learned positions, biases, three matrices of words': Transformer(POST),
  'convolutions': FConv(CONVOLUTIONS),
  'convolutions, tied': FConv(dataclasses.replace(CONVOLUTIONS, d_out=12, is_tied=True)),
  't5': T5(RELATIVE),
  't5 v1.1': T5(
    dataclasses.replace(
      RELATIVE, is_gated=True, activation='gelu', is_tied=False, scales_logits=False
    )
  ),
}


@pytest.fixture(params=MODELS, scope='module')
def made(request):
  model = MODELS[request.param]

  @jax.jit
  def params():
    noise = lambda x: 0.1 * jax.random.normal(jax.random.key(1), x.shape)
    return jax.tree.map(lambda x: x + noise(x), model.init(jax.random.key(0)))

  return model, params()


hidden_of = jax.jit(lambda model, params, batch: model.hidden(params, batch), static_argnums=0)
apply = jax.jit(lambda model, *args: model.apply(*args), static_argnums=0)


def a_batch(source, target):
  """A sentence a row."""
  batch = {}
  for side, ids in (('source', np.array(source)), ('target', np.array(target))):
    places = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    batch |= {side: ids, f'{side}_segment': ids > 0, f'{side}_position': places}
  return {name: jnp.asarray(x, jnp.int32) for name, x in batch.items()}


BATCH = a_batch([[3, 4, 5, 1, 0, 0], [7, 8, 9, 10, 11, 1]], [[9, 8, 7, 1, 0], [2, 3, 4, 5, 1]])
SHIFTED = jnp.array([[0, 9, 8, 7, 1], [0, 2, 3, 4, 5]], jnp.int32)


@functools.partial(jax.jit, static_argnums=0)
def an_empty_cache(model, params):
  return model.init_cache(params, model.encode(params, BATCH['source']), 2, 12)


@pytest.mark.wide('convolutions')
def test_cached_equals_uncached_in_steps_of_any_width(made):
  model, params = made
  expected = hidden_of(model, params, BATCH)
  cache, hidden = an_empty_cache(model, params), []
  for start, width in ((0, 1), (1, 3), (4, 1)):
    h, _, cache = apply(model, params, SHIFTED[:, start : start + width], api.causal(width), cache)
    cache = cache.commit(None, jnp.full(2, width))
    hidden.append(h)
  real = BATCH['target'] != 0
  np.testing.assert_allclose(jnp.concatenate(hidden, 1)[real], expected[real], atol=2e-5)


@pytest.mark.wide('convolutions', 't5')
def test_a_tree_scores_each_path_as_if_it_were_alone(made):
  """Nodes root, a, b, aa, ba: the path root, b, ba gives the same as a chain of these tokens. After
  a commit so does the next call."""
  model, params = made
  tree = Topology.from_choices([[0], [1], [0, 0], [1, 0]])
  tokens = jnp.array([[0, 9, 8, 7, 6], [0, 2, 3, 4, 5]], jnp.int32)
  hidden, _, cache = apply(model, params, tokens, tree.nodes, an_empty_cache(model, params))
  path = jnp.array([[0, 2, 4], [0, 1, 3]])  # row 0 keeps b, row 1 keeps a
  cache = cache.commit(path, jnp.array([3, 3]))
  alone = jnp.take_along_axis(tokens, path, axis=1)
  expected, _, chain = apply(model, params, alone, api.causal(3), an_empty_cache(model, params))
  picked = jnp.take_along_axis(hidden, path[..., None], axis=1)
  np.testing.assert_allclose(picked, expected, atol=2e-5)
  after = lambda c: apply(model, params, jnp.array([[5], [6]]), api.causal(1), c)[0]
  np.testing.assert_allclose(after(cache), after(chain.commit(None, jnp.array([3, 3]))), atol=2e-5)


@pytest.mark.wide('convolutions', 't5')
def test_causality_by_gradient(made):
  """Position 2 depends on targets 0 and 1 (its inputs) and on the whole source; on nothing
  later."""
  model, params = made
  tables = {name: params[name] for name in ('embedding', 'source_embedding') if name in params}
  gradients = jax.jit(
    jax.grad(lambda tables: model.hidden({**params, **tables}, BATCH)[1, 2].sum())
  )(tables)
  moved = {name: np.abs(gradient).sum(1) > 0 for name, gradient in gradients.items()}
  row = {'source': [7, 8, 9, 10, 11, 1], 'seen targets': [0, 2, 3], 'later targets': [4, 5]}
  assert moved.get('source_embedding', moved['embedding'])[row['source']].all()
  assert moved['embedding'][row['seen targets']].all()
  assert not moved['embedding'][row['later targets']].any()


@pytest.mark.wide('convolutions', 't5')
def test_packed_sentences_do_not_see_each_other(made):
  model, params = made
  alone = a_batch([[3, 4, 1]], [[5, 6, 1]])
  packed = {
    'source': [[3, 4, 1, 7, 1]], 'source_segment': [[1, 1, 1, 2, 2]],
    'source_position': [[0, 1, 2, 0, 1]], 'target': [[8, 1, 5, 6, 1]],
    'target_segment': [[2, 2, 1, 1, 1]], 'target_position': [[0, 1, 0, 1, 2]],
  }  # fmt: skip
  packed = {name: jnp.array(x, jnp.int32) for name, x in packed.items()}
  np.testing.assert_allclose(
    hidden_of(model, params, packed)[:, 2:], hidden_of(model, params, alone), atol=2e-5
  )


@pytest.mark.wide('convolutions')
def test_padding_of_the_source_changes_nothing(made):
  model, params = made
  narrow = np.array([[3, 4, 5, 1]], np.int32)
  wide = np.pad(narrow, ((0, 0), (0, 5)))
  short, long = (fd.decode(model, params, x, fd.Greedy(), max_len=9) for x in (narrow, wide))
  np.testing.assert_array_equal(short.tokens, long.tokens)


@pytest.mark.wide('t5')
def test_bfloat16_is_near_float32(made):
  model, params = made
  half = type(model)(dataclasses.replace(model.config, dtype='bfloat16'))
  wide, narrow = (m.unembed(params, hidden_of(m, params, BATCH)) for m in (model, half))
  assert narrow.dtype == jnp.float32
  np.testing.assert_allclose(narrow, wide, atol=0.25)
  # the one-row products
  tokens = fd.decode(half, params, BATCH['source'][:1], fd.Greedy(), max_len=4).tokens
  assert tokens.shape == (1, 4)


@pytest.mark.parametrize('change, message', [
  ({'norm': 'middle'}, 'one of pre, post'),
  ({'heads': 5}, 'not divisible'), ({'positions': 'no'}, 'sinusoidal'),
])  # fmt: skip
def test_bad_sizes_are_refused(change, message):
  with pytest.raises(fd.UserError, match=message):
    dataclasses.replace(SMALL, **change)


@pytest.mark.parametrize('change, message', [
  ({'decoder_layers': ((8, 3), (8, 0))},
    r'decoder_layers\[1\]=\(8, 0\) is not possible: give \(channels'),
  ({'is_tied': True}, 'd_out=16 is not possible with is_tied: give d_embed=12'),
  ({'max_positions': 0}, 'give 1 or more'),
])  # fmt: skip
def test_bad_convolutions_are_refused(change, message):
  with pytest.raises(fd.UserError, match=message):
    dataclasses.replace(CONVOLUTIONS, **change)


@pytest.mark.parametrize(
  'name, kernels',  # of the decoder: (outputs of both halves, width * inputs), how many times
  [
    ('fconv', {(1024, 1536): 20}),
    ('fconv_iwslt_de_en', {(512, 768): 3}),
    (
      'fconv_wmt_en_de',
      {(1024, 1536): 9, (2048, 1536): 1, (2048, 3072): 3, (4096, 1024): 1, (4096, 2048): 1},
    ),
  ],
)
@pytest.mark.wide('fconv_wmt_en_de-*')
def test_the_published_architectures(name, kernels):
  model = FConv(FConvConfig(vocab_size=7, **ARCHITECTURES[name]))
  params = jax.eval_shape(model.init, jax.random.key(0))
  convs = [
    params[f'decoder_{i}']['conv']['kernel'].shape for i in range(len(model.config.decoder_layers))
  ]
  assert collections.Counter((2 * channels, frame) for _, channels, frame in convs) == kernels
  assert (
    params['decoder_leave']['kernel'].shape[0] == params['output'].shape[1] == model.config.d_out
  )


def test_the_config_of_wmt14_is_the_published_one():
  assert FCONV['wmt14'] == FConvConfig(**ARCHITECTURES['fconv_wmt_en_de'])


@pytest.mark.parametrize('name', [name for name in MODELS if MODELS[name].max_positions])
def test_a_source_longer_than_the_positions_is_refused(name):
  tokens = MODELS[name].max_positions + 1
  with pytest.raises(fd.UserError, match=f'source of {tokens} tokens exceeds'):
    fd.decode(MODELS[name], {}, np.ones((1, tokens), np.int32), fd.Greedy(), max_len=4)


def test_the_example_of_the_protocol_decodes():
  """The model in `models/api.py`'s docstring is code that works, with a draft too."""
  example = re.split(r'\(a test runs it\):\n', api.__doc__)[1]
  names = {
    'dataclasses': dataclasses, 'jax': jax, 'jnp': jnp, 'KVCache': KVCache, 'attention': attention,
  }  # fmt: skip
  exec('\n'.join(line[2:] for line in example.splitlines()), names)
  model = names['Bag']()
  assert isinstance(model, api.Model)
  params = model.init(jax.random.key(0))
  out = fd.decode(
    model, params, np.array([[3, 4, 5], [6, 0, 0]]), fd.Greedy(), prompt_lengths=[3, 1], max_len=5
  )
  embedding = np.asarray(params['embedding'])
  tokens = [3, 4, 5]
  for _ in range(int(out.lengths[0])):
    tokens.append(int(np.argmax(embedding[tokens].mean(0) @ embedding.T)))
  assert out.tokens[0, : out.lengths[0]].tolist() == tokens[3:]
