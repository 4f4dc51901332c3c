"""Exact means exact: in float64 every lossless strategy writes what greedy decoding writes.

The oracle runs the whole model again for each token, without a cache. Models are a Transformer and
an FConv. They are random (heads are rarely right) or trained (heads are mostly right). The batch is
ragged and has an empty sentence.
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
from fastdec.heads.anchors import anchors_of
from fastdec.heads.block import BlockNetwork
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.lesson import Lesson
from fastdec.heads.medusa import MedusaHeads
from fastdec.heads.transformed import Transformed
from fastdec.models.fconv import FConv, FConvConfig
from fastdec.models.lm import LMConfig
from fastdec.models.stacks import StackConfig
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.struct import Bound
from fastdec.training.drafts.losses import DraftLoss, draft_loss
from fastdec.training.losses import head_loss, model_loss
from tests.decoding.methods_table import GROWN, LOSSLESS, METHODS, NETWORKS, Kit

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
HEADS = {
  layout: BlockwiseHeads(k=K, d_model=24, d_ff=16, layout=layout, dropout=0.0)
  for layout in ('paper', 'separate')
}
HEADS['medusa'] = MedusaHeads(depth=3, d_model=24, vocab_size=VOCAB)
# settings of heads that see the root and the guess before
SEEING = {'rooted': True, 'markov': 5, 'words': VOCAB}


def heads_of(family):
  """All kinds of heads for one of the models. Their embeddings differ in width."""
  seeing = SEEING | {'d_embed': 24 if family == 'transformer' else 16}
  rooted = BlockwiseHeads(k=K, d_model=24, d_ff=16, dropout=0.0, **seeing)
  return HEADS | {'rooted': rooted, 'rooted medusa': MedusaHeads(depth=3, d_model=24, **seeing)}


def network_of(name, family):
  """A draft network. Its layers read the Transformer's source, but not the FConv's. EAGLE's reads
  two taps and does not know the last two words."""
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


def batch_of(source, target):
  """A batch as in training, a sentence a row."""
  batch = {}
  for side, ids in (('source', source), ('target', target)):
    batch[side] = ids
    batch[f'{side}_segment'] = ids > 0
    batch[f'{side}_position'] = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
  return {name: jnp.asarray(x, jnp.int32) for name, x in batch.items()}


def reversed_sources():
  """What the trained model has learnt to write: the source backwards, then an end."""
  target = np.zeros_like(SOURCE)
  for row, source in zip(target, SOURCE, strict=True):
    words = source[source > 1]
    row[: len(words) + 1] = [*words[::-1], 1]
  return target


def fresh(module, seed=0, scale=1.0):
  """Fresh parameters in float64, scaled."""
  scaled = lambda x: x if x.dtype == jnp.int32 else jnp.asarray(scale * np.asarray(x, float))
  return jax.tree.map(scaled, module.init(jax.random.key(seed)))


def fitted(loss, params, steps):
  """Parameters after steps of Adam on `loss(params, step)`, in one program."""
  optimizer = optax.adam(4e-3)

  @jax.jit
  def fit(params):
    def step(i, carried):
      params, state = carried
      updates, state = optimizer.update(jax.grad(loss)(params, i), state)
      return optax.apply_updates(params, updates), state

    return jax.lax.fori_loop(0, steps, step, (params, optimizer.init(params)))[0]

  return fit(params)


TAUGHT = batch_of(SOURCE, reversed_sources())


@functools.cache
def params_made(kind, family):
  """A model's parameters.

  'random' are fresh ones, scaled up, because a fresh tied model repeats its input; 'trained' ones
  know the seven sentences by heart; 'int8' are the trained ones in int8.
  """
  model = MODELS[family]
  if kind == 'int8':
    return fd.quantize(model, params_made('trained', family))
  if kind == 'random':
    params = fresh(model, scale=3.0)
    return params | {'embedding': params['embedding'] * 3}
  return fitted(lambda params, i: model_loss(model, params, TAUGHT, 0.0)[0], fresh(model), 300)


@functools.cache
def heads_made(name, kind, family):
  """Heads for a model whose parameters were made in the same way."""
  model, heads = MODELS[family], heads_of(family)[name]
  if kind == 'int8':
    return fd.quantize(heads, heads_made(name, 'trained', family))
  if kind == 'random':
    return fresh(heads, 1)
  trunk = params_made('trained', family)

  def loss(params, i):
    return head_loss(model, heads, trunk, params, TAUGHT, 1 + i % heads.offsets[-1], 0.0)[0]

  return fitted(loss, fresh(heads, 1), 300)


@functools.cache
def network_made(name, kind, family):
  """A draft network, trained by what the trained model writes."""
  if kind == 'int8':
    network, params = network_made(name, 'trained', family)
    return network, fd.quantize(network, params)
  network = network_of(name, family)
  params = fresh(network, 2)
  if kind == 'trained':
    ids = {'ids': params.pop('ids')} if 'ids' in params else {}
    target = Bound(MODELS[family], params_made(kind, family))
    seen = jax.jit(lambda: target.module.features(target.params, TAUGHT, network.taps))()

    lesson = Lesson(target, TAUGHT, seen, anchors_of(TAUGHT))

    def loss(params, i):
      return draft_loss(Bound(network, params | ids), lesson, DraftLoss(passes=2))[0]

    params = fitted(loss, params, 200) | ids
  return network, params


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, params, target):
  """The logits of whole sequences, without a cache."""
  batch = batch_of(SOURCE, np.ones(target.shape)) | {'target': target}
  return model.unembed(params, model.hidden(params, batch))


@functools.cache
def greedy_text(kind, family='transformer'):
  """Greedy decoding by its definition: the whole model runs again for every token."""
  tokens = np.zeros((len(SOURCE), MAX_LEN), np.int32)
  running = (SOURCE > 1).any(1)
  tokens[~running, 0] = 1
  for t in range(MAX_LEN):
    # id 0 is never emitted
    logits = logits_of(MODELS[family], params_made(kind, family), tokens)
    choice = 1 + np.argmax(np.asarray(logits)[:, t, 1:], axis=-1)
    tokens[running, t] = choice[running]
    running &= choice != 1
  return tokens


@functools.cache
def kit(kind, family='transformer'):
  """Parts for one of the models. The draft model is the Transformer of the same kind of
  parameters."""
  return Kit(
    heads=lambda name: (heads_of(family)[name], heads_made(name, kind, family)),
    draft=(MODEL, params_made(kind, 'transformer')),
    network=lambda name: network_made(name, kind, family),
    words=VOCAB,
  )


def decoded(name, kind, family='transformer', source=SOURCE, **more):
  """Decodes by a method of the table."""
  strategy = LOSSLESS[name](kit(kind, family))
  settings = {'max_len': MAX_LEN} | more
  return fd.decode(MODELS[family], params_made(kind, family), source, strategy, **settings)


# These read the root's embedding, whose width differs, or take back tokens in another way.
ON_CONVOLUTIONS = (
  'blockwise rooted 10', 'tree rooted', 'two calls rooted', 'speculative, adaptive',
  'block, a static tree',
)  # fmt: skip
TRAINED = ('blockwise', 'tree', 'medusa', 'speculative', *NETWORKS)  # these draft well


@pytest.mark.parametrize('kind', ['random', 'trained'])
@pytest.mark.parametrize('name, family', [
  *((name, 'transformer') for name in LOSSLESS),
  *((name, 'fconv') for name in (*METHODS, *ON_CONVOLUTIONS)),
])  # fmt: skip
@pytest.mark.wide(
  *(f'{name}-transformer-trained' for name in (*METHODS, *GROWN, 'eagle, a chain')),
  'tree-fconv-random',
  'blockwise rooted 10-fconv-random',
)
def test_exact_is_lossless(name, kind, family):
  out, expected = decoded(name, kind, family), greedy_text(kind, family)
  np.testing.assert_array_equal(out.tokens, expected)
  np.testing.assert_array_equal(out.lengths, 1 + np.sum(out.block_sizes, axis=1))
  assert out.tokens[-1].tolist() == [1] + [0] * (MAX_LEN - 1)  # the empty sentence
  if kind == 'trained' and name in TRAINED:
    assert out.mean_block_size > 2
  among_others = decoded(name, kind, family, np.roll(SOURCE, 3, axis=0))
  # One row differs: if all were the same, a different program would encode the source once.
  equals = [2] * 6 + [0]
  among_equals = decoded(name, kind, family, SOURCE[equals])
  for field in ('tokens', 'lengths', 'block_sizes', 'calls'):
    values = np.asarray(getattr(out, field))
    np.testing.assert_array_equal(getattr(among_others, field), np.roll(values, 3, axis=0), field)
    np.testing.assert_array_equal(getattr(among_equals, field), values[equals], field)


@pytest.mark.parametrize('name', METHODS | NETWORKS)
@pytest.mark.wide('eagle', 'tree')
def test_a_row_alone_decodes_as_among_others(name):
  alone = decoded(name, 'trained', source=SOURCE[2:3])
  together = decoded(name, 'trained')
  for field in ('tokens', 'lengths', 'block_sizes', 'calls'):
    np.testing.assert_array_equal(getattr(alone, field)[0], getattr(together, field)[2], field)


@pytest.mark.parametrize('name', ['blockwise', 'medusa', 'speculative', 'eagle', 'block'])
@pytest.mark.wide('eagle')
def test_exact_is_lossless_in_int8_too(name):
  """Target, heads and drafts are in int8, and the oracle runs the int8 model."""
  out = decoded(name, 'int8')
  np.testing.assert_array_equal(out.tokens, greedy_text('int8'))
  assert out.mean_block_size > 2


@pytest.mark.parametrize('family', MODELS)
@pytest.mark.wide('transformer')
def test_the_trained_model_is_worth_testing_on(family):
  """It has learnt the task, and rows end at different lengths."""
  expected = greedy_text('trained', family)
  np.testing.assert_array_equal(expected[:, :8], reversed_sources())
  assert len(set((expected > 0).sum(1))) > 3


MOST = {
  'greedy': 0, 'blockwise': 6, 'two-calls': 3, 'tree': 3, 'speculative': 3, 'lookup': 3,
  'suffix': 3, 'jacobi': 3, 'lookahead': 2, 'eagle': 3, 'eagle, a chain': 4,
  'eagle, a static tree': 3, 'block': 3, 'block, a chain': 3, 'block, a static tree': 3,
  'union': 3, 'union of heads': 3, 'adaptive': 3, 'adaptive suffix': 3,
}  # fmt: skip


@pytest.mark.parametrize('name', MOST)
def test_a_call_can_accept_a_chain_or_as_many_as_a_tree_is_deep(name):
  assert LOSSLESS[name](kit('trained')).most_accepted == MOST[name]
  shallow = fd.BlockDraft(kit('trained').network('block'), k=4, choices=[[0], [1]])
  assert shallow.most_accepted == 1  # whatever block the draft makes


@pytest.mark.parametrize('name, family', [
  *((name, 'transformer') for name in ('blockwise', 'tree', *GROWN)),
  *((name, 'fconv') for name in ('blockwise', 'tree')),
])  # fmt: skip
@pytest.mark.wide('*-transformer')
def test_max_len_in_the_middle_of_a_block(name, family):
  for n in (1, 2, 5):
    out = decoded(name, 'trained', family, max_len=n)
    np.testing.assert_array_equal(out.tokens, greedy_text('trained', family)[:, :n])


@pytest.mark.parametrize('window', [0, 2])
@pytest.mark.slow
def test_one_call_or_two_calls_draft_the_same(window):
  heads, rule = kit('trained').heads('separate'), fd.Distance(window)
  one, two = (
    fd.decode(MODEL, params_made('trained', 'transformer'), SOURCE, strategy, max_len=MAX_LEN)
    for strategy in (
      fd.Blockwise(heads, 4, rule, window),
      fd.BlockwiseTwoCalls(heads, 4, rule, window),
    )
  )
  np.testing.assert_array_equal(one.tokens, two.tokens)
  np.testing.assert_array_equal(one.block_sizes, two.block_sizes)
  np.testing.assert_array_equal(two.draft_calls, two.calls)
  assert not one.draft_calls.any() and one.mean_block_size > 1.5


FORCED = ('blockwise', 'two-calls', 'tree', 'speculative', 'lookahead', *GROWN)


@pytest.mark.parametrize('name, family', [
  *((name, 'transformer') for name in FORCED),
  *((name, 'fconv') for name in ('blockwise', 'speculative')),
])  # fmt: skip
@pytest.mark.wide('eagle-transformer', 'speculative-transformer')
def test_a_forced_prefix_is_continued(name, family):
  expected, lengths = greedy_text('trained', family), np.array([2, 1, 0, 2, 1, 0, 0])
  prefix = expected[:, :2]
  out = decoded(name, 'trained', family, prefix=prefix, prompt_lengths=lengths, max_len=6)
  for row, n, tokens in zip(expected, lengths, np.asarray(out.tokens), strict=True):
    if 1 not in row[:n]:
      np.testing.assert_array_equal(tokens, row[n : n + 6])


@pytest.mark.slow
def test_a_convolution_drafts_for_a_transformer():
  """Both were trained on the same sentences."""
  params = params_made('trained', 'transformer')
  strategy = fd.Speculative((MODELS['fconv'], params_made('trained', 'fconv')), 4)
  out = fd.decode(MODEL, params, SOURCE, strategy, max_len=MAX_LEN)
  np.testing.assert_array_equal(out.tokens, greedy_text('trained'))
  assert out.mean_block_size > 2
  sampling = dataclasses.replace(strategy, sampling=fd.Sampling(temperature=1.0))
  drawn = fd.decode(MODEL, params, SOURCE, sampling, max_len=MAX_LEN, key=jax.random.key(0))
  assert drawn.mean_block_size > 1.5


def test_p1_may_be_transformed():
  """The text is what the transformed model writes greedily. Drafts are not transformed."""
  params = params_made('trained', 'transformer')
  heads = BlockwiseHeads(k=4, d_model=24, d_ff=16, first='transformed')
  head_params = fresh(heads, 5, scale=4.0)
  model, both = Transformed(MODEL, heads), {'model': params, 'heads': head_params}
  greedy, out = (
    fd.decode(model, both, SOURCE, strategy, max_len=MAX_LEN)
    for strategy in (fd.Greedy(), fd.Blockwise((heads, head_params)))
  )
  np.testing.assert_array_equal(out.tokens, greedy.tokens)
  assert (np.asarray(greedy.tokens) != greedy_text('trained')).any()  # it is another model now

  @jax.jit
  def drafts_and_logits(hidden):
    drafting = Bound(*heads.drafting(head_params, 3))
    roots = jnp.zeros(50, jnp.int32)
    drafts = draft_tokens(drafting, Bound(model, both), hidden, roots, Topology.chain(4))[:, 1:]
    return drafts, MODEL.unembed(params, heads.all(head_params, hidden)[:, 1:])

  drafts, logits = drafts_and_logits(np.random.default_rng(6).normal(size=(50, 24)))
  np.testing.assert_array_equal(drafts, 1 + np.argmax(np.asarray(logits)[..., 1:], axis=-1))


def test_more_choices_than_words_and_more_tokens_than_positions_are_refused():
  params, choices = params_made('trained', 'transformer'), [[rank] for rank in range(VOCAB + 1)]
  with pytest.raises(fd.UserError, match='needs 14 choices of a head'):
    fd.decode(MODEL, params, SOURCE, fd.Medusa(kit('trained').heads('separate'), choices))
  with pytest.raises(fd.UserError, match='lower max_len to 1024 or less'):
    fd.decode(MODEL, params, SOURCE, fd.Greedy(), max_len=1025)
