"""The Image Transformer: blocked form, ring and full attention agree; images decode exactly, by
every strategy."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastdec as fd
from fastdec.cache.kv import LayerKV
from fastdec.decoding.topology import Topology
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.models import api
from fastdec.models.attention import attend_locally
from fastdec.models.image_start import NEIGHBOURS, start_embedding
from fastdec.models.image_transformer import (
  PHASES,
  ImageTransformer,
  ImageTransformerConfig,
  Network,
)

BLOCK, LENGTH, ROWS = 4, 48, 3
CONFIG = ImageTransformerConfig(
  d_model=16, d_ff=24, heads=2, encoder_layers=1, decoder_layers=2, dropout=0.0, source_size=2,
  size=4, block_length=BLOCK, dtype='float64',
)  # fmt: skip
MODEL = ImageTransformer(CONFIG)
RNG = np.random.default_rng(0)
SOURCE = RNG.integers(0, 256, (ROWS, 2, 2, 3)).astype(np.uint8)
TARGET = RNG.integers(0, 256, (ROWS, LENGTH)).astype(np.int32)
TREE = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]


@pytest.fixture(autouse=True)
def in_float64():
  with jax.enable_x64(True):
    params()  # made outside of what is compiled
    yield


@functools.cache
def params():
  """Away from the initialisation, so that outputs vary: a test holds that they do."""
  return noisy(jax.jit(MODEL.init)(jax.random.key(0)), 0.2)


def noisy(tree, scale):
  rng = np.random.default_rng(1)
  return jax.tree.map(
    lambda x: jnp.asarray(np.float64(x) + rng.normal(scale=scale, size=x.shape)), tree
  )


jitted_hidden = jax.jit(MODEL.hidden)


@functools.cache
def hidden_of(target):
  return jitted_hidden(params(), {'source': jnp.asarray(SOURCE), 'target': jnp.array(target)})


def expected():
  return hidden_of(tuple(map(tuple, TARGET.tolist())))


def full_attention(q, k, v, block):
  """By the definition, one query at a time."""
  out = np.zeros_like(q)
  for i in range(q.shape[1]):
    seen = range(max(0, (i // block - 1) * block), i + 1)
    scores = np.einsum('bhp,bhsp->bhs', q[:, i], k[:, :, seen]) * q.shape[-1] ** -0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out[:, i] = np.einsum('bhs,bhsp->bhp', weights / weights.sum(-1, keepdims=True), v[:, :, seen])
  return out


@pytest.mark.slow
def test_heads_of_a_grid_start_at_neighbours():
  """Where nothing but the place tells tokens apart, each head sees its neighbour and nothing
  else."""
  config = dataclasses.replace(
    CONFIG, d_model=128, heads=4, size=16, source_size=8, block_length=48, grid=True
  )
  model, place = ImageTransformer(config), 5 * 48 + 24  # inside of the picture
  kernels = jax.jit(model.init)(jax.random.key(0))
  signal = Network(config).apply(
    {'params': kernels}, jnp.zeros((1, 768), jnp.int32), jnp.arange(768)[None], 'target', False,
    method='embed'
  )[0].at[:, :64].set(0)  # fmt: skip
  signal /= jnp.sqrt((signal**2).mean(-1, keepdims=True) * 2)
  for layer, head in itertools.product(range(2), range(4)):
    q, k, _ = kernels[f'decoder_{layer}']['attention']['qkv']['kernel'][:, head]
    seen = jax.nn.softmax(
      (signal[place] @ q.T) @ (signal[place - 72 : place + 1] @ k.T).T / 32**0.5
    )
    down, along = NEIGHBOURS[4 * layer + head]
    assert seen[72 + 48 * down + along + 1] > 0.9  # whose input is the token before it


def test_a_grid_decodes_with_a_cache_what_it_learns_without():
  """Greedy decoding's every token is the likeliest by the teacher-forced pass."""
  config = dataclasses.replace(CONFIG, grid=True)
  model, weights = (
    ImageTransformer(config),
    noisy(jax.jit(ImageTransformer(config).init)(jax.random.key(0)), 0.2),
  )
  out = fd.decode(model, weights, SOURCE, fd.Greedy())
  hidden = jax.jit(model.hidden)(weights, {'source': jnp.asarray(SOURCE), 'target': out.tokens})
  np.testing.assert_array_equal(out.tokens, model.unembed(weights, hidden).argmax(-1))


@pytest.mark.parametrize('sizes, words', [
  ({'d_model': 8, 'heads': 2, 'grid': True},
    'grid=True with d_model=8 is not possible: give 16 or more'),
  ({'d_model': 16, 'heads': 8}, 'd_model=16 with heads=8 is not possible: a head needs'),
  ({'size': 12, 'grid': True},
    'grid=True with size=12 is not possible: give a multiple of source_size=8'),
])  # fmt: skip
def test_sizes_without_room_are_refused(sizes, words):
  with pytest.raises(fd.UserError, match=words):
    ImageTransformerConfig(**sizes)


@pytest.mark.parametrize('room', [0, PHASES])
def test_the_intensity_of_a_written_embedding_is_read_back(room):
  """Embeddings and output start alike: what attention carries unchanged has the largest logit."""
  table = start_embedding(128, room)
  np.testing.assert_allclose((table**2).sum(-1), 1, rtol=1e-5)
  np.testing.assert_array_equal((table @ table.T).argmax(-1), np.arange(256))


@pytest.mark.parametrize('t', [1, 3, 4, 7, 8, 13])
def test_the_blocked_form_is_local_attention_by_the_definition(t):
  q, k, v = (np.random.default_rng(i).normal(size=(2, t, 2, 3)) for i in range(3))
  k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
  local = jax.jit(lambda q, k, v: attend_locally(q, LayerKV.of(k, v), BLOCK))
  out = local(q, k, v)
  np.testing.assert_allclose(out, full_attention(q, k, v, BLOCK), atol=1e-12)


@functools.partial(jax.jit, static_argnums=(0,))
def start(nodes):
  return MODEL.init_cache(
    params(), MODEL.encode(params(), jnp.asarray(SOURCE)), ROWS, api.Capacity(LENGTH + nodes, nodes)
  )


@pytest.mark.slow
def test_a_ring_grows_with_the_width_of_a_call_and_not_with_the_text():
  def size(slots):
    memory = MODEL.encode(params(), jnp.asarray(SOURCE))
    return jax.eval_shape(lambda: MODEL.init_cache(params(), memory, ROWS, slots)).own.slots

  assert size(api.Capacity(4000, nodes=3)) == 2 * BLOCK + 2 == size(api.Capacity(40, nodes=3))
  assert size(api.Capacity(40, nodes=3, back=2)) == 2 * BLOCK + 4
  # a plain number: room for all of it, in calls of any width
  assert size(400) == 400 and size(5) == 2 * BLOCK


apply = jax.jit(lambda tokens, nodes, cache: MODEL.apply(params(), tokens, nodes, cache))


@settings(max_examples=15)
@given(
  st.sampled_from([1, 6]), st.lists(st.tuples(*[st.integers(0, 6)] * ROWS), min_size=5, max_size=15)
)
def test_the_ring_gives_what_the_whole_sequence_gives(n, counts):
  """In every call rows advance by 0 to n positions and the rest is rolled back, so that blocks
  start at every place of the ring."""
  inputs = np.pad(TARGET, ((0, 0), (1, n)))[:, : LENGTH + n]
  cache, done = start(n), np.zeros(ROWS, int)
  assert cache.own.slots == 2 * BLOCK + n - 1
  for count in counts:
    count = np.minimum(np.minimum(count, n), LENGTH - done)
    place = done[:, None] + np.arange(n)
    right = np.take_along_axis(inputs, place, axis=1)
    tokens = np.where(np.arange(n) < count[:, None], right, (right + 77) % 256)
    hidden, _, cache = apply(jnp.asarray(tokens), api.causal(n), cache)
    for row in range(ROWS):
      span = slice(done[row], done[row] + count[row])
      np.testing.assert_allclose(hidden[row, : count[row]], expected()[row, span], atol=1e-10)
    cache, done = cache.commit(None, jnp.asarray(count)), done + count


@pytest.mark.parametrize('first', range(2 * BLOCK))
def test_a_path_of_a_tree_sees_what_a_chain_would(first):
  """Nodes below one another across the edge of a block, from every alignment; then the path is
  kept."""
  topology = Topology.from_choices(TREE)
  inputs = jnp.asarray(np.pad(TARGET, ((0, 0), (1, 0))))
  cache = start(topology.n)
  for i in range(first):
    _, _, cache = apply(inputs[:, i : i + 1], api.causal(1), cache)
    cache = cache.commit(None, jnp.ones(ROWS, jnp.int32))
  path = np.array(
    [0, *(i for i, c in enumerate(sorted(TREE, key=lambda c: (len(c), c)), 1) if set(c) == {0})]
  )
  tokens = np.full((ROWS, topology.n), 9)
  tokens[:, path] = inputs[:, first : first + len(path)]
  hidden, _, cache = apply(jnp.asarray(tokens), topology.nodes, cache)
  np.testing.assert_allclose(hidden[:, path], expected()[:, first : first + len(path)], atol=1e-10)
  cache = cache.commit(jnp.broadcast_to(path, (ROWS, len(path))), jnp.full(ROWS, len(path)))
  after = first + len(path)
  hidden, _, _ = apply(inputs[:, after : after + 1], api.causal(1), cache)
  np.testing.assert_allclose(hidden, expected()[:, after : after + 1], atol=1e-10)


def test_no_position_sees_what_comes_later_or_lies_before_the_block_before():
  other = TARGET.copy()
  other[:, 20] += 1
  change = np.abs(hidden_of(tuple(map(tuple, (other % 256).tolist()))) - expected()).max((0, 2)) > 0
  assert not change[:21].any() and change[21]  # token 20 enters at position 21, in block 5
  # each layer reaches to the end of the next block
  two_layers = 2 * 2 * BLOCK + 21 // BLOCK * BLOCK
  assert not change[two_layers:].any() and change[21:28].all()


@functools.cache
def greedy():
  """By the definition: the whole model again for every token."""
  tokens = np.zeros((ROWS, LENGTH), np.int32)
  source = jnp.asarray(SOURCE)
  logits = jax.jit(
    lambda t: MODEL.unembed(params(), MODEL.hidden(params(), {'source': source, 'target': t}))
  )
  for i in range(LENGTH):
    tokens[:, i] = np.asarray(logits(tokens))[:, i].argmax(-1)
  return tokens


def heads(k=5):
  module = BlockwiseHeads(k=k, d_model=16, d_ff=8, dropout=0.0)
  params = jax.jit(module.init)(jax.random.key(2))
  return module, jax.tree.map(lambda x: jnp.asarray(np.float64(x)), params)


def test_the_model_is_worth_testing_on():
  """Its images are neither of one intensity nor of a pattern that goes round."""
  assert min(len(set(itertools.pairwise(image))) for image in greedy().tolist()) > 10


EXACT = {
  'greedy': lambda: fd.Greedy(),
  'blockwise, wider than a block': lambda: fd.Blockwise(heads(11)),
  'two calls': lambda: fd.BlockwiseTwoCalls(heads()),
  'a tree': lambda: fd.Medusa(heads(), TREE),
  'lookup': lambda: fd.PromptLookup(ngram=1, k=4),
  'beam search, 1 beam': lambda: fd.Beam(1),
}


@pytest.mark.parametrize('name', EXACT)
@pytest.mark.wide('greedy', 'a tree')
def test_exact_strategies_write_the_greedy_image(name):
  out = fd.decode(MODEL, params(), SOURCE, EXACT[name]())
  np.testing.assert_array_equal(out.tokens, greedy())
  assert (np.asarray(out.lengths) == LENGTH).all()
  if name == 'lookup':
    # drafts are accepted and refused, in blocks of local attention and across
    assert 1.2 < out.mean_block_size < 4


@pytest.mark.slow
def test_beams_of_an_image_score_as_forced():
  """The ring is reordered among the beams of a source. The best of three beams is more likely than
  the greedy image."""
  out = fd.decode(MODEL, params(), SOURCE, fd.Beam(3, length_penalty=0.0, n_best=3))
  for rank in range(3):
    forced = fd.score(MODEL, params(), SOURCE, out.nbest_tokens[:, rank])
    np.testing.assert_allclose(out.nbest_scores[:, rank], forced.total, rtol=1e-9)
  assert (out.scores > fd.score(MODEL, params(), SOURCE, greedy()).total + 0.1).any()
  assert len({tuple(row) for row in out.nbest_tokens.reshape(-1, LENGTH).tolist()}) == 3 * ROWS


@pytest.mark.parametrize('tau', [0, 2, 9, 255])
def test_distance_keeps_drafts_within_tau_of_the_argmax_of_what_was_kept_before(tau):
  out = fd.decode(MODEL, params(), SOURCE, fd.Blockwise(heads(), rule=fd.Distance(tau)))
  tokens = np.asarray(out.tokens)
  best = np.asarray(MODEL.unembed(params(), hidden_of(tuple(map(tuple, tokens.tolist()))))).argmax(
    -1
  )
  apart = np.abs(tokens - best)
  assert apart.max() <= tau
  for row in range(ROWS):
    # the last call may be cut at a draft
    ends = np.cumsum(np.asarray(out.block_sizes)[row, : out.calls[row] - 1])
    assert (apart[row, ends] == 0).all()  # the last token of a call is the model's own
  if tau == 255:
    assert (np.asarray(out.block_sizes)[:, 0] == 5).all()  # everything passes


@pytest.mark.parametrize('inputs, shape', [
  (np.zeros((2, 2, 2), np.uint8), r'uint8\[2, 2, 2\]'),
  (np.zeros((2, 2, 2, 4), np.uint8), 'uint8.2, 2, 2, 4'),
  (np.zeros((2, 2, 2, 3)), 'float'),
])  # fmt: skip
def test_anything_but_a_small_picture_is_refused(inputs, shape):
  with pytest.raises(fd.UserError, match=shape):
    fd.decode(MODEL, params(), inputs, fd.Greedy())


def test_more_tokens_than_an_image_has_are_refused():
  with pytest.raises(fd.UserError, match='48 positions'):
    fd.decode(MODEL, params(), SOURCE, fd.Greedy(), max_len=LENGTH + 1)


@pytest.mark.parametrize('bias', [False, True])
@pytest.mark.wide('True')
def test_a_fresh_model_sees_its_source(bias):
  """Before any training, the most likely intensity of a pixel is that of its own place in the
  source."""
  sizes = dict(
    d_model=128, d_ff=16, heads=2, encoder_layers=1, decoder_layers=1, source_size=2, size=4,
    dropout=0.0,
  )  # fmt: skip
  model = ImageTransformer(
    ImageTransformerConfig(**sizes, block_length=BLOCK, attention_bias=bias, norm='pre')
  )
  source = np.random.default_rng(0).integers(0, 256, (100, 2, 2, 1), np.uint8).repeat(3, axis=-1)
  batch = {'source': source, 'target': np.full((100, LENGTH), 125)}

  @jax.jit
  def logits_of(batch):
    fresh = model.init(jax.random.key(0))
    return model.unembed(fresh, model.hidden(fresh, batch))

  logits = np.asarray(logits_of(batch)).reshape(100, 2, 2, 2, 2, 3, 256)
  seen = (logits - logits.mean(0)).mean((2, 4, 5)).reshape(100, 4, 256)  # by place in the source
  of_intensity = np.take_along_axis(
    seen[:, :, None], source[..., 0].reshape(100, 1, 4, 1).astype(int), -1
  )
  looked = of_intensity[..., 0].mean(0)  # [place of the pixel, place of the intensity]
  assert (looked.diagonal() > 1.2 * looked.mean(1)).all()
