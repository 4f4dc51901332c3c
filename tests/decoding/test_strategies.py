"""Exact means exact: every lossless strategy writes what greedy decoding by the definition writes,
in float64.

The oracle runs the whole model again for each token, without a cache. Models are a Transformer and
an FConv, random (heads are rarely right) and trained (heads are mostly right), the batch is ragged
and holds an empty sentence.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fastdec as fd
from fastdec.decoding.methods.heads import draft_tokens
from fastdec.decoding.topology import Topology
from fastdec.heads.block import BlockNetwork
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.medusa import MedusaHeads
from fastdec.heads.transformed import Transformed
from fastdec.models.fconv import FConv, FConvConfig
from fastdec.models.lm import LMConfig
from fastdec.models.stacks import StackConfig
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.struct import Bound
from fastdec.training.drafts.losses import DraftLoss, draft_loss
from fastdec.training.losses import head_loss
from tests.decoding.methods_table import GROWN, LOSSLESS, METHODS, NETWORKS, VARIANTS, Kit, hash_kit

pytestmark = pytest.mark.usefixtures('in_float64')

VOCAB, MAX_LEN, K = 13, 12, 10
CONFIG = TransformerConfig(
  vocab_size=VOCAB, d_model=24, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0,
  attention_dropout=0.0, activation_dropout=0.0, dtype='float64',
)  # fmt: skip
FCONV = FConvConfig(
  vocab_size=VOCAB, d_embed=16, d_out=24, encoder_layers=((24, 3), (16, 3)),
  decoder_layers=((24, 3), (16, 4)), dropout=0.0, dtype='float64',
)  # fmt: skip
MODEL = Transformer(CONFIG)
MODELS = {'transformer': MODEL, 'fconv': FConv(FCONV)}
LAYOUTS = ('paper', 'separate')
HEADS = {
  layout: BlockwiseHeads(k=K, d_model=24, d_ff=16, layout=layout, dropout=0.0) for layout in LAYOUTS
}
HEADS['medusa'] = MedusaHeads(depth=3, d_model=24, vocab_size=VOCAB)
# heads that see the root and the guess before
SEEING = {'rooted': True, 'markov': 5, 'words': VOCAB}


def heads_of(family):
  """All kinds of heads for one of the models, whose embeddings differ in width."""
  seeing = SEEING | {'d_embed': 24 if family == 'transformer' else 16}
  rooted = BlockwiseHeads(k=K, d_model=24, d_ff=16, dropout=0.0, **seeing)
  return HEADS | {'rooted': rooted, 'rooted medusa': MedusaHeads(depth=3, d_model=24, **seeing)}


HOMES = {  # where each row of NETWORKS is tried
  'eagle': 'transformer',
  'eagle, a chain': 'transformer',
  'block': 'transformer',
  'block, a chain': 'transformer',
  'block, a static tree': 'fconv',
}


def everywhere(methods):
  """Each method with each model."""
  return [(name, family) for name in methods for family in MODELS]


# that read the root's embedding, whose width differs, or take back tokens in another way
ON_CONVOLUTIONS = (
  'blockwise rooted 10', 'tree rooted', 'two calls rooted', 'speculative, adaptive',
)  # fmt: skip


def at_home(methods):
  return [(name, HOMES[name]) for name in methods]


def network_of(name, family):
  """A draft network: its layers read the Transformer's source, and not the FConv's; EAGLE's reads
  two taps, and does not know the last two words."""
  sizes = {'d_model': 24, 'd_ff': 32, 'heads': 2, 'dropout': 0.0, 'dtype': 'float64'}
  layers, d_embed = LMConfig(**sizes, layers=1), 16
  if family == 'transformer':
    layers = StackConfig(**sizes, decoder_layers=1, attention_dropout=0.0, activation_dropout=0.0)
    d_embed = 24
  seeing = {'layers': layers, 'vocab_size': VOCAB, 'd_target': 24, 'd_embed': d_embed}
  if name == 'eagle':
    return EagleNetwork(**seeing, taps=(0, 1), fuses=True, words=VOCAB - 2)
  return BlockNetwork(**seeing, k=4, markov=5)


def sources(rng, rows):
  """Ids 2..12, ragged, each ending in 1; the last row is empty."""
  out = np.zeros((rows, 8), np.int32)
  for row in out[:-1]:
    length = rng.integers(1, 7)
    row[:length] = rng.integers(2, VOCAB, length)
    row[length] = 1
  return out


SOURCE = sources(np.random.default_rng(0), 7)


def random_params(family):
  """Scaled up from the initialisation, so that outputs vary: a fresh tied model repeats its
  input."""
  params = jax.tree.map(lambda x: 3 * x.astype(jnp.float64), MODELS[family].init(jax.random.key(0)))
  return params | {'embedding': params['embedding'] * 3}


def batch_of(source, target):
  """A batch as in training, a sentence a row."""
  part = lambda x: {
    '': x,
    '_segment': x > 0,
    '_position': np.broadcast_to(np.arange(x.shape[1]), x.shape),
  }
  sides = {'source': source, 'target': target}
  return {
    f'{side}{name}': jnp.asarray(y, jnp.int32)
    for side, x in sides.items()
    for name, y in part(x).items()
  }


def reversed_sources():
  """What the trained model has learnt to write: the source backwards, then an end."""
  return np.stack(
    [np.append(row[:n][::-1], [1, *[0] * (7 - n)]) for row in SOURCE for n in [(row > 1).sum()]]
  )


@functools.cache
def trained_params(family):
  """The model and all heads, trained together until they know the seven sentences by heart."""
  model, kinds = MODELS[family], heads_of(family)
  fresh = {
    'model': model.init(jax.random.key(0)),
    **{n: h.init(jax.random.key(1)) for n, h in kinds.items()},
  }
  params = jax.tree.map(lambda x: x.astype(jnp.float64), fresh)
  batch, optimizer = batch_of(SOURCE, reversed_sources()), optax.adam(4e-3)

  @jax.jit
  def step(params, state, offset):
    def loss(p):
      last = lambda name: kinds[name].offsets[-1]
      of = lambda name, o: head_loss(
        model, kinds[name], p['model'], p[name], batch, jnp.minimum(o, last(name)), 0.0
      )[0]
      return sum(of(name, o) for name in kinds for o in (offset, jnp.zeros_like(offset)))

    updates, state = optimizer.update(jax.grad(loss)(params), state)
    return optax.apply_updates(params, updates), state

  state = optimizer.init(params)
  for i in range(300):
    params, state = step(params, state, jnp.int32(1 + i % (K - 1)))
  return params


@functools.cache
def network_made(name, kind, family):
  """A draft network with fresh parameters, or trained by what the trained model writes; in int8 as
  the latter."""
  if kind == 'int8':
    network, params = network_made(name, 'trained', family)
    return network, fd.quantize(network, params)
  network, target = network_of(name, family), Bound(MODELS[family], made(kind, family)[0])
  params = network.init(jax.random.key(2))
  ids = {'ids': params.pop('ids')} if 'ids' in params else {}
  params = jax.tree.map(lambda x: x.astype(jnp.float64), params)
  if kind == 'random':
    return network, params | ids
  batch, optimizer = batch_of(SOURCE, reversed_sources()), optax.adam(4e-3)
  seen = target.module.features(target.params, batch, network.taps)
  loss = lambda p: draft_loss(Bound(network, p | ids), target, batch, seen, DraftLoss(passes=2))[0]

  @jax.jit
  def step(params, state):
    updates, state = optimizer.update(jax.grad(loss)(params), state)
    return optax.apply_updates(params, updates), state

  state = optimizer.init(params)
  for _ in range(200):
    params, state = step(params, state)
  return network, params | ids


@functools.cache
def made(kind, family='transformer'):
  """(params, {name: head params}, the oracle's tokens)."""
  if kind == 'int8':
    params, heads, _ = made('trained', family)
    params = fd.quantize(MODELS[family], params)
    heads = {name: fd.quantize(heads_of(family)[name], heads[name]) for name in heads}
  elif kind == 'random':
    params, heads = (
      random_params(family),
      {n: h.init(jax.random.key(1)) for n, h in heads_of(family).items()},
    )
  else:
    heads = dict(trained_params(family))
    params = heads.pop('model')
  return params, heads, oracle(MODELS[family], params)


def oracle(model, params):
  """Greedy decoding by the definition: the whole model again for every token."""

  @jax.jit
  def logits(target):
    full = jnp.ones_like(target)
    batch = batch_of(SOURCE, np.ones(target.shape)) | {'target': target, 'target_segment': full}
    return model.unembed(params, model.hidden(params, batch))

  tokens = np.zeros((len(SOURCE), MAX_LEN), np.int32)
  running = (SOURCE > 1).any(1)
  tokens[~running, 0] = 1
  for t in range(MAX_LEN):
    # id 0 is never emitted
    choice = 1 + np.argmax(np.asarray(logits(jnp.asarray(tokens)))[:, t, 1:], axis=-1)
    tokens[running, t] = choice[running]
    running &= choice != 1
  return tokens


@functools.cache
def kit(kind, family='transformer'):
  """Parts for one of the models; the draft model is the Transformer that was made in the same
  way."""
  heads = made(kind, family)[1]
  return Kit(
    heads=lambda name: (heads_of(family)[name], heads[name]),
    draft=(MODEL, made(kind)[0]),
    network=lambda name: network_made(name, kind, family),
    words=VOCAB,
  )


@pytest.mark.parametrize('kind', ['random', 'trained'])
@pytest.mark.parametrize('name, family', [
  *everywhere(METHODS),
  *((name, 'transformer') for name in VARIANTS),
  *((name, 'fconv') for name in ON_CONVOLUTIONS),
  *at_home(NETWORKS),
])  # fmt: skip
@pytest.mark.wide(
  '*-transformer-trained',
  'greedy-*-random',
  'eagle-transformer-random',
  'speculative, adaptive-fconv-random',
  'block, a static tree-fconv-random',
  'blockwise rooted*-fconv-random',
  'tree*-fconv-random',
)
def test_exact_is_lossless(name, kind, family):
  params, _, expected = made(kind, family)
  out = fd.decode(
    MODELS[family], params, SOURCE, LOSSLESS[name](kit(kind, family)), max_len=MAX_LEN
  )
  np.testing.assert_array_equal(out.tokens, expected)
  np.testing.assert_array_equal(out.lengths, 1 + np.sum(out.block_sizes, axis=1))
  assert out.tokens[-1].tolist() == [1] + [0] * (MAX_LEN - 1)  # the empty sentence


@pytest.mark.parametrize('name', ['blockwise', 'medusa', 'speculative', 'eagle', 'block'])
@pytest.mark.wide('eagle', 'medusa', 'speculative')
def test_exact_is_lossless_in_int8_too(name, family='transformer'):
  """Target, heads and drafts are in int8; the oracle's whole sequences are the int8 model's own."""
  params, _, expected = made('int8', family)
  out = fd.decode(
    MODELS[family], params, SOURCE, LOSSLESS[name](kit('int8', family)), max_len=MAX_LEN
  )
  np.testing.assert_array_equal(out.tokens, expected)
  assert out.mean_block_size > 2


@pytest.mark.parametrize('family', MODELS)
def test_the_trained_model_is_worth_testing_on(family):
  """It has learnt the task, its heads draft well, and rows end at different lengths inside
  blocks."""
  model, (params, _, expected) = MODELS[family], made('trained', family)
  np.testing.assert_array_equal(expected[:, :8], reversed_sources())
  out = fd.decode(
    model,
    params,
    SOURCE,
    LOSSLESS['blockwise separate 10'](kit('trained', family)),
    max_len=MAX_LEN,
  )
  assert out.mean_block_size > 2 and len(set(np.asarray(out.lengths))) > 3
  for name in ('tree', 'medusa', *[name for name in HOMES if HOMES[name] == family]):
    drafted = fd.decode(
      model, params, SOURCE, LOSSLESS[name](kit('trained', family)), max_len=MAX_LEN
    )
    assert drafted.mean_block_size > 2, name


MOST = {
  'greedy': 0, 'blockwise': 6, 'two-calls': 3, 'tree': 3, 'speculative': 3, 'lookup': 3,
  'jacobi': 3,
}  # fmt: skip
MOST |= {
  'lookahead': 2, 'eagle': 3, 'eagle, a chain': 4, 'block': 3, 'block, a chain': 3,
  'block, a static tree': 3,
}  # fmt: skip


def test_a_static_tree_is_as_deep_as_it_is_whatever_block_the_draft_makes():
  strategy = fd.BlockDraft(hash_kit().network('block'), k=4, choices=[[0], [1]])
  assert strategy.most_accepted == 1


@pytest.mark.parametrize('name', MOST)
def test_a_call_can_accept_a_chain_or_as_many_as_a_tree_is_deep(name):
  assert LOSSLESS[name](hash_kit()).most_accepted == MOST[name]


@pytest.mark.parametrize('name, family', everywhere(['blockwise', 'tree']) + at_home(GROWN))
@pytest.mark.parametrize('max_len', [1, 2, 5])
def test_max_len_in_the_middle_of_a_block(name, max_len, family):
  params, _, expected = made('trained', family)
  out = fd.decode(
    MODELS[family], params, SOURCE, LOSSLESS[name](kit('trained', family)), max_len=max_len
  )
  np.testing.assert_array_equal(out.tokens, expected[:, :max_len])


@pytest.mark.parametrize('name, family', [
  *((name, 'transformer') for name in METHODS | GROWN),
  *((name, 'fconv') for name in ('blockwise', 'tree', 'speculative')),
])  # fmt: skip
@pytest.mark.wide(
  'eagle-transformer',
  'speculative-fconv',
  'tree-fconv',
  'lookahead-transformer',
  'medusa-*',
  'greedy-*',
)
def test_batch_of_b_equals_b_batches_of_one(name, family):
  params, strategy = made('trained', family)[0], LOSSLESS[name](kit('trained', family))
  together = fd.decode(MODELS[family], params, SOURCE, strategy, max_len=MAX_LEN)
  for i, row in enumerate(SOURCE):
    alone = fd.decode(MODELS[family], params, row[None], strategy, max_len=MAX_LEN)
    for field in ('tokens', 'lengths', 'block_sizes', 'calls'):
      np.testing.assert_array_equal(
        getattr(alone, field)[0], getattr(together, field)[i], err_msg=field
      )


@pytest.mark.parametrize('window', [0, 2])
@pytest.mark.wide('0')
def test_one_call_or_two_calls_draft_the_same(window):
  params, heads, _ = made('trained')
  bound, rule = (HEADS['separate'], heads['separate']), fd.Distance(window)
  one, two = (
    fd.decode(MODEL, params, SOURCE, kind(bound, 4, rule, window), max_len=MAX_LEN)
    for kind in (fd.Blockwise, fd.BlockwiseTwoCalls)
  )
  np.testing.assert_array_equal(one.tokens, two.tokens)
  np.testing.assert_array_equal(one.block_sizes, two.block_sizes)
  np.testing.assert_array_equal(two.draft_calls, two.calls)
  assert not one.draft_calls.any()


FORCED = ('blockwise', 'two-calls', 'tree', 'speculative', 'lookahead', *GROWN)


@pytest.mark.parametrize('name, family', [
  *((name, 'transformer') for name in FORCED),
  *((name, 'fconv') for name in ('blockwise', 'speculative')),
])  # fmt: skip
@pytest.mark.wide('eagle-transformer', 'speculative-fconv', 'blockwise-transformer')
def test_a_forced_prefix_is_continued(name, family):
  params, _, expected = made('trained', family)
  strategy = LOSSLESS[name](kit('trained', family))
  prefix, lengths = expected[:-1, :2], np.array([2, 1, 0, 2, 1, 0])
  out = fd.decode(
    MODELS[family], params, SOURCE[:-1], strategy, prefix=prefix, prompt_lengths=lengths, max_len=6
  )
  for row, n, tokens in zip(expected[:-1], lengths, np.asarray(out.tokens), strict=True):
    if 1 not in row[:n]:
      np.testing.assert_array_equal(tokens, row[n : n + 6])


@pytest.mark.slow
def test_a_convolution_drafts_for_a_transformer():
  """Both were trained on the same sentences."""
  params, _, expected = made('trained')
  strategy = fd.Speculative((MODELS['fconv'], made('trained', 'fconv')[0]), 4)
  out = fd.decode(MODEL, params, SOURCE, strategy, max_len=MAX_LEN)
  np.testing.assert_array_equal(out.tokens, expected)
  assert out.mean_block_size > 2
  sampling = dataclasses.replace(strategy, temperature=1.0)
  drawn = fd.decode(MODEL, params, SOURCE, sampling, max_len=MAX_LEN, key=jax.random.key(0))
  assert drawn.mean_block_size > 1.5


def test_transformed_p1_is_lossless_against_its_own_greedy():
  params, _, _ = made('trained')
  heads = BlockwiseHeads(k=4, d_model=24, d_ff=16, first='transformed')
  head_params = jax.tree.map(lambda x: 4 * x.astype(jnp.float64), heads.init(jax.random.key(5)))
  model, both = Transformed(MODEL, heads), {'model': params, 'heads': head_params}
  greedy = fd.decode(model, both, SOURCE, fd.Greedy(), max_len=MAX_LEN)
  out = fd.decode(model, both, SOURCE, fd.Blockwise((heads, head_params)), max_len=MAX_LEN)
  np.testing.assert_array_equal(out.tokens, greedy.tokens)
  assert (np.asarray(greedy.tokens) != made('trained')[2]).any()  # p1 is another model now


def test_drafts_of_transformed_heads_do_not_pass_through_p1():
  params, _, _ = made('trained')
  heads = BlockwiseHeads(k=4, d_model=24, d_ff=16, first='transformed')
  head_params = jax.tree.map(lambda x: 4 * x.astype(jnp.float64), heads.init(jax.random.key(5)))
  hidden = jax.random.normal(jax.random.key(6), (50, 24), jnp.float64)
  target = Bound(Transformed(MODEL, heads), {'model': params, 'heads': head_params})
  drafting = Bound(*heads.drafting(head_params, 3))
  drafts = draft_tokens(drafting, target, hidden, jnp.zeros(50, jnp.int32), Topology.chain(4))[
    :, 1:
  ]
  logits = MODEL.unembed(params, heads.all(head_params, hidden)[:, 1:])
  np.testing.assert_array_equal(drafts, 1 + np.argmax(np.asarray(logits)[..., 1:], axis=-1))


@pytest.mark.parametrize('family', MODELS)
@pytest.mark.wide('transformer')
def test_relaxed_rules_write_other_text_in_longer_blocks(family):
  """So that a rule that silently became exact would be noticed."""
  params, heads, expected = made('random', family)
  bound = (HEADS['separate'], heads['separate'])
  exact, top, near, least = (
    fd.decode(MODELS[family], params, SOURCE, fd.Blockwise(bound, 7, rule), max_len=MAX_LEN)
    for rule in (fd.Exact(), fd.TopN(3), fd.Distance(2), fd.MinBlock(fd.Exact(), 5))
  )
  assert min(top.mean_block_size, near.mean_block_size) > exact.mean_block_size
  assert least.mean_block_size > 3.5 > exact.mean_block_size
  assert all((np.asarray(out.tokens) != expected).any() for out in (top, near, least))


def test_more_choices_than_words_and_more_tokens_than_positions_are_refused():
  params, choices = made('random')[0], [[rank] for rank in range(VOCAB + 1)]
  with pytest.raises(fd.UserError, match='asks a head for 14'):
    fd.decode(MODEL, params, SOURCE, fd.Medusa(kit('random').heads('separate'), choices))
  with pytest.raises(fd.UserError, match='lower max_len to 1024 or less'):
    fd.decode(MODEL, params, SOURCE, fd.Greedy(), max_len=1025)
