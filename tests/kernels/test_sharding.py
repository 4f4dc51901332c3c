"""Meshes: eight virtual devices give the same as one, the cache is created in parts, and mistakes
are named."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import fastdec as fd
from fastdec.decoding.sampling import FEW
from fastdec.heads.block import BlockNetwork
from fastdec.heads.blockwise import LAYOUTS, BlockwiseHeads
from fastdec.heads.medusa import MedusaHeads
from fastdec.heads.transformed import Transformed
from fastdec.kernels.sharding import (
  REPLICATED,
  MeshConfig,
  by_rows,
  check_rows,
  choose_shardings,
  constrain,
  make_mesh,
  mesh_of,
  partition_of,
  place,
  place_rows,
  using,
)
from fastdec.models.fconv import FConv, FConvConfig
from fastdec.models.lm import LM, LMConfig
from fastdec.models.ngram import NGram
from fastdec.models.t5 import T5, T5Config
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.training.drafts.start import layers_like
from fastdec.training.optimizer import OptimizerConfig

ROOT = Path(__file__).parents[2]
CONFIG = TransformerConfig(
  vocab_size=30, d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1
)
MODEL = Transformer(CONFIG)
TABLE = MODEL.partition(2)


def on_eight_devices(module, *args):
  """Runs a module in a process of its own, because the number of devices is fixed when JAX starts;
  returns what it prints last."""
  cached = {
    'JAX_COMPILATION_CACHE_DIR': str(ROOT / '.cache' / 'jax'),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
  }
  command = [sys.executable, '-m', module, *args]
  done = subprocess.run(
    command, cwd=ROOT, env=os.environ | cached, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr[-3000:]
  return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope='module')
def core():
  return on_eight_devices('tests.on_eight_devices', 'core')


@pytest.fixture(scope='module')
def rest():
  return on_eight_devices('tests.on_eight_devices', 'rest')


def test_eight_devices_decode_what_one_does(core):
  assert core['decoding'] == {'greedy on 4 x 2': True}


def test_the_cache_is_born_in_parts_and_stays_so_in_the_compiled_step(core):
  assert core['compiled']['greedy on 4 x 2']['specs'] == ["P('data', 'model')"]


def test_eight_devices_train_as_one_does_dropout_included(core):
  np.testing.assert_allclose(core['losses']['4 x 2'], core['losses']['1'], rtol=1e-5)


def test_words_that_are_split_have_the_same_best_cuts_and_draws_as_on_one_device(core):
  same = core['words']['same']
  assert len(same) == 27 and all(same.values()), same


def test_devices_exchange_only_their_best_words(core):
  assert core['words']['widest'] == 8 * FEW  # each of eight devices its best


def test_embeddings_are_looked_up_where_they_are(core):
  assert core['looked up'] == dict.fromkeys(core['looked up'], True)
  assert len(core['looked up']) == 6


def test_training_gathers_nothing_for_embeddings(core):
  assert core['gathered for embeddings'] == []


def check_exchanges(steps):
  """Gradients are exchanged once, and nothing else that is large."""
  for name, step in steps.items():
    summed = [one['entries'] for one in step['sent'] if one['dtype'] == 'f32']
    others = [one['entries'] for one in step['sent'] if one['dtype'] != 'f32']
    assert 0 < sum(summed) - step['trained'] < 10, name  # gradients, and metrics
    assert max(others) <= 2 * 16 * 12, name  # ids of tokens and their segments


def test_a_training_step_exchanges_gradients_once(core):
  check_exchanges(core['steps'])


@pytest.mark.slow
def test_steps_of_heads_and_drafts_exchange_gradients_once():
  found = on_eight_devices('tests.on_eight_devices', 'steps')
  assert len(found) == 6
  check_exchanges(found)


def test_what_is_on_several_devices_is_not_packed(core):
  assert 'on several devices cannot be packed' in core['packing']


@pytest.mark.slow
def test_every_strategy_decodes_on_eight_devices_what_it_does_on_one(rest):
  assert len(rest['decoding']) == 11 and all(rest['decoding'].values()), rest['decoding']


@pytest.mark.slow
def test_rows_of_beams_stay_on_their_devices(rest):
  assert rest['compiled'] == {'beam on 8 x 1': {'specs': ["P('data',)"], 'sent': []}}


@pytest.mark.slow
@pytest.mark.parametrize('what', ['losses', 'losses of heads', 'losses in parts'])
def test_losses_and_gradients_are_those_of_one_device(rest, what):
  (alone, *others) = rest[what].values()
  for other in others:
    np.testing.assert_allclose(other, alone, rtol=1e-5)


@pytest.mark.slow
def test_draft_networks_learn_and_draft_on_eight_devices_as_on_one():
  results = on_eight_devices('tests.on_eight_devices', 'drafts')
  assert results['decoding'] == {'EagleNetwork': True, 'BlockNetwork': True, 'BlockwiseHeads': True}
  assert set(results['losses']) == {'EagleNetwork', 'BlockNetwork'}
  for of_kind in results['losses'].values():
    for other in ('4 x 2', 'in parts'):
      np.testing.assert_allclose(of_kind[other], of_kind['1'], rtol=1e-5)


@pytest.mark.slow
def test_draws_rankings_and_changed_logits_of_split_words_write_what_one_device_does():
  found = on_eight_devices('tests.on_eight_devices', 'chosen')
  assert len(found) == 6 and all(found.values()), found


@pytest.mark.slow
def test_a_run_continues_on_a_different_mesh(rest):
  assert 0 < rest['continuing'] < 1e-4  # other sums, other roundings


@pytest.fixture(scope='module')
def families():
  return on_eight_devices('tests.on_eight_devices', 'families')


@pytest.mark.slow
def test_language_models_and_encoder_decoders_decode_on_eight_devices_what_they_do_on_one(families):
  assert len(families['tokens']) == 17 and all(families['tokens'].values()), families['tokens']


@pytest.mark.slow
def test_the_states_of_layers_on_eight_devices_are_those_on_one(families):
  assert families['taps'] == dict.fromkeys(('lm', 'experts', 't5', 'fconv'), True)


HALVES = {  # the shape of each split parameter on one of two devices
  'grouped heads': {'embedding': [16, 16], 'output': [16, 16]} | {
    f'layer_{i}/{name}': shape for i in range(2) for name, shape in {
      'q/kernel': [2, 4, 16],  # [heads, width, inputs]
      'q/bias': [2, 4],
      'kv/kernel': [2, 1, 4, 16],  # [2, key heads, width, inputs]
      'kv/bias': [2, 1, 4],
      'out/kernel': [16, 8],  # [outputs, heads * width]
      'gate_up/kernel': [2, 12, 16],  # the gates of the same outputs
      'gate_up/bias': [2, 12],
      'down/kernel': [16, 12],
    }.items()
  },
  'experts': {
    'embedding': [16, 16],
    'layer_0/q/kernel': [2, 4, 16], 'layer_0/kv/kernel': [2, 2, 4, 16],
    'layer_0/out/kernel': [16, 8],
    'layer_0/experts/gate_up/kernel': [2, 2, 24, 16],  # whole experts
    'layer_0/experts/gate_up/bias': [2, 2, 24],
    'layer_0/experts/down/kernel': [2, 16, 24],
    'layer_0/experts/down/bias': [2, 16],
  },
  't5': {
    'embedding': [16, 16], 'lm_head': [16, 16], 'encoder_bias': [32, 2], 'decoder_bias': [32, 2],
    'decoder_0/cross/q/kernel': [2, 4, 16], 'decoder_0/cross/kv/kernel': [2, 2, 4, 16],
    'decoder_0/cross/out/kernel': [16, 8],
  } | {
    f'{stack}_0/{name}': shape for stack in ('encoder', 'decoder') for name, shape in {
      'attention/qkv/kernel': [3, 2, 4, 16], 'attention/out/kernel': [16, 8],
      'feed_forward/gate_w1/kernel': [2, 12, 16], 'feed_forward/w2/kernel': [16, 12],
    }.items()
  },
  'fconv': {
    'embedding': [16, 16], 'output': [16, 16], 'output_bias': [16],
    'encoder_0/conv/kernel': [2, 8, 48], 'encoder_0/conv/bias': [2, 8],
    'decoder_0/conv/kernel': [2, 8, 48], 'decoder_0/conv/bias': [2, 8],
    'decoder_1/conv/kernel': [2, 6, 32], 'decoder_1/conv/bias': [2, 6],
  },
  'medusa': {
    f'head_{i}/{name}': shape for i in range(2) for name, shape in {
      'block_0/kernel': [8, 16], 'block_0/bias': [8], 'projection/kernel': [16, 16],
    }.items()
  },
}  # fmt: skip


@pytest.mark.slow
def test_each_of_two_devices_has_half_of_the_matrices(families):
  for name, parts in HALVES.items():
    assert families['parts'][name] == parts
  table = families['parts']['one key head']
  assert not any('kv' in name for name in table) and table['layer_0/q/kernel'] == [2, 4, 16]


@pytest.fixture(scope='module')
def mesh():
  return make_mesh(MeshConfig())


@pytest.fixture(scope='module')
def params():
  return jax.jit(Transformer(CONFIG).init)(jax.random.key(0))


def specs(tree):
  """Only those that split something."""
  named = {
    jax.tree_util.keystr(path, simple=True, separator='/'): x
    for path, x in jax.tree.leaves_with_path(tree)
  }
  return {name: x.sharding.spec for name, x in named.items() if any(x.sharding.spec)}


def test_the_table_splits_pairs_of_products_so_that_heads_stay_whole(mesh, params):
  laid_out = specs(place(params, mesh, TABLE))
  assert laid_out == {
    'embedding': P('model'),
    'decoder_0/attention/qkv/kernel': P(None, 'model'),  # [3, heads, width, inputs]
    'decoder_0/attention/out/kernel': P(None, 'model'),  # [outputs, heads * width]
    'decoder_0/cross/q/kernel': P('model'),  # [heads, width, inputs]
    'decoder_0/cross/kv/kernel': P(None, 'model'),
    'decoder_0/cross/out/kernel': P(None, 'model'),
    'decoder_0/feed_forward/w1/kernel': P('model'),
    'decoder_0/feed_forward/w1/bias': P('model'),
    'decoder_0/feed_forward/w2/kernel': P(None, 'model'),
    'encoder_0/attention/qkv/kernel': P(None, 'model'),
    'encoder_0/attention/out/kernel': P(None, 'model'),
    'encoder_0/feed_forward/w1/kernel': P('model'),
    'encoder_0/feed_forward/w1/bias': P('model'),
    'encoder_0/feed_forward/w2/kernel': P(None, 'model'),
  }
  assert specs(place(params, mesh, REPLICATED)) == {}


def test_a_kernel_in_int8_is_split_as_in_floats_and_its_scales_along_its_outputs(mesh, params):
  laid_out = specs(place(fd.quantize(MODEL, params), mesh, TABLE))
  assert laid_out == specs(fd.quantize(MODEL, place(params, mesh, TABLE)))
  of_kernels = {
    name: spec
    for name, spec in specs(place(params, mesh, TABLE)).items()
    if not name.endswith('bias')
  }
  assert {
    name.removesuffix('/values'): spec
    for name, spec in laid_out.items()
    if name.endswith('/values')
  } == of_kernels
  assert laid_out['decoder_0/attention/qkv/kernel/scale'] == P(None, 'model')  # [3, heads, width]
  assert (
    laid_out['embedding/scale'] == P('model')
    and 'decoder_0/feed_forward/w2/kernel/scale' not in laid_out
  )


def test_every_matrix_of_words_is_split_by_words(mesh):
  names = ('embedding', 'source_embedding', 'output')
  words = {name: jnp.zeros((4, 3)) for name in (*names, 'source_positions')}
  assert specs(place(words, mesh, TABLE[:1])) == dict.fromkeys(names, P('model'))


@pytest.mark.parametrize('family', ['fconv', 'transformer'])
def test_directions_are_split_like_their_kernels_and_lengths_stay_whole(mesh, family):
  sizes = dict(encoder_layers=((16, 3),), decoder_layers=((16, 3),), is_tied=True)
  model, kernel = {
    'fconv': (FConv(FConvConfig(vocab_size=30, d_embed=16, d_out=16, **sizes)), 'conv'),
    'transformer': (MODEL, 'feed_forward/w2'),
  }[family]
  state = (
    OptimizerConfig(d_model=16, weight_norm=True)
    .build()
    .init(jax.tree.map(jnp.asarray, shapes(model)))
  )
  laid_out = specs(place(state, mesh, model.partition(2)))
  assert [
    spec for name, spec in laid_out.items() if name.endswith(f'decoder_0/{kernel}/kernel')
  ] == [P(None, 'model')] * 3
  # directions have Adam's two moments too
  assert not any(name.endswith('/length') for name in laid_out)


def test_a_plain_t5_and_a_tied_language_model_are_split_by_the_same_tables(mesh):
  sizes = dict(vocab_size=32, d_model=16, d_ff=24, heads=4)
  model = T5(T5Config(**sizes, d_kv=4, encoder_layers=1, decoder_layers=1))
  laid_out = specs(place(shapes(model), mesh, model.partition(2)))
  assert (
    laid_out['decoder_0/feed_forward/w1/kernel'] == laid_out['embedding'] == P('model')
    and 'lm_head' not in laid_out
  )
  model = LM(LMConfig(**sizes, layers=1))
  laid_out = specs(place(shapes(model), mesh, model.partition(2)))
  assert laid_out == {
    'embedding': P('model'),
    'layer_0/q/kernel': P('model'),
    'layer_0/kv/kernel': P(None, 'model'),
    'layer_0/out/kernel': P(None, 'model'),
    'layer_0/gate_up/kernel': P(None, 'model'),
    'layer_0/down/kernel': P(None, 'model'),
  }


def shapes(model):
  """Returns parameters of zeros, so that nothing is compiled."""
  return jax.tree.map(
    lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(model.init, jax.random.key(0))
  )


@pytest.mark.parametrize('layout', LAYOUTS)
def test_heads_have_tables_by_their_layout(mesh, layout):
  heads = BlockwiseHeads(k=3, d_model=16, d_ff=8, layout=layout)
  split = {'separate': {'w2'}, 'paper': {'w1', 'b1', 'w2'}}[layout]
  assert specs(place(shapes(heads), mesh, heads.partition(2))).keys() == split
  few = dataclasses.replace(heads, short=6)
  assert specs(place(shapes(few), mesh, few.partition(2))).keys() == split | {'output'}


@pytest.mark.parametrize('module', [
  BlockwiseHeads(k=3, d_model=16, d_ff=8, markov=2, words=30),
  MedusaHeads(depth=2, d_model=16, markov=2, words=30),
  BlockNetwork(layers=layers_like(MODEL, 1), vocab_size=30, d_target=16, k=3, markov=2),
], ids=lambda module: type(module).__name__)  # fmt: skip
def test_a_markov_bias_is_split_by_words(mesh, module):
  laid_out = specs(place(shapes(module), mesh, module.partition(2)))
  assert laid_out['before'] == laid_out['after'] == P('model')


@pytest.mark.parametrize(
  'own', [{}, {'vocab_size': 32, 'output_bias': True}], ids=['shared projection', 'own']
)
def test_medusa_heads_are_split_by_their_outputs(mesh, own):
  heads = MedusaHeads(depth=2, d_model=16, layers=2, **own)
  laid_out = specs(place(shapes(heads), mesh, heads.partition(2)))
  parts = ('block_0', 'block_1', *(['projection'] if own else []))
  names = {
    f'head_{i}/{part}/{name}' for i in range(2) for part in parts for name in ('kernel', 'bias')
  }
  assert laid_out == dict.fromkeys(names, P('model'))


def test_key_heads_that_cannot_be_divided_stay_whole(mesh):
  model = LM(LMConfig(vocab_size=32, d_model=16, d_ff=24, heads=4, key_heads=2, layers=1))
  split, whole = (specs(place(shapes(model), mesh, model.partition(devices))) for devices in (2, 4))
  assert (
    split == whole | {'layer_0/kv/kernel': P(None, 'model')} and 'layer_0/kv/kernel' not in whole
  )


def test_a_model_of_models_has_the_tables_of_its_parts(mesh):
  sizes = dict(vocab_size=32, d_model=16, d_ff=24, layers=1, heads=4)
  one_key, plain = LM(LMConfig(**sizes, key_heads=1)), LM(LMConfig(**sizes))
  both = fd.Ensemble((one_key, plain))
  laid_out = specs(place((shapes(one_key), shapes(plain)), mesh, both.partition(2)))
  alone = specs(place(shapes(plain), mesh, plain.partition(2)))
  expected = {f'{i}/{name}': spec for i in (0, 1) for name, spec in alone.items()}
  del expected['0/layer_0/kv/kernel']
  assert laid_out == expected

  heads = BlockwiseHeads(k=3, d_model=16, d_ff=8, first='transformed')
  tree = {'model': shapes(plain), 'heads': shapes(heads)}
  laid_out = specs(place(tree, mesh, Transformed(plain, heads).partition(2)))
  assert laid_out == {f'model/{name}': spec for name, spec in alone.items()} | {
    'heads/w2': P(None, None, 'model')
  }


def test_a_model_without_tables_is_whole_on_every_device():
  assert partition_of(NGram(vocab_size=5), 2) == REPLICATED
  assert fd.Ensemble((NGram(vocab_size=5), NGram(vocab_size=5))).partition(2) == REPLICATED


def test_placed_values_are_the_same_and_tell_their_mesh(mesh, params):
  tree = {'params': params, 'key': jax.random.key(7), 'numpy': np.arange(3)}
  placed = place(tree, mesh, REPLICATED)
  assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), tree, placed))
  assert mesh_of(placed) == mesh and mesh_of(tree) is None
  assert jax.jit(lambda tree: tree['numpy'] + (mesh_of(tree) is None))(placed).tolist() == [1, 2, 3]


def test_without_a_mesh_nothing_is_constrained():
  x = jnp.arange(6).reshape(2, 3)
  assert constrain(x, 'data', 'model') is x
  assert by_rows(lambda x: x + 1)(x).tolist() == (x + 1).tolist()
  assert place_rows({'x': x}, None)['x'] is x


def test_a_dimension_that_does_not_divide_stays_whole():
  shape = jax.sharding.AbstractMesh(
    (4, 2), ('data', 'model'), axis_types=(jax.sharding.AxisType.Auto,) * 2
  )
  with jax.sharding.use_abstract_mesh(shape):
    jaxpr = str(jax.make_jaxpr(lambda x: constrain(x, 'data', 'model'))(jnp.zeros((8, 3))))
  assert "P('data', None)" in jaxpr.replace('PartitionSpec', 'P')


# nothing is put there
EIGHT = jax.sharding.Mesh(np.array(jax.devices() * 8).reshape(4, 2), ('data', 'model'))


def test_a_vocabulary_that_cannot_be_divided_stays_whole_with_a_note():
  model = LM(LMConfig(vocab_size=31, d_model=16, d_ff=24, heads=2, layers=1))
  with pytest.warns(fd.UserNote, match=r'31 words cannot be divided over mesh.model=2 devices'):
    shardings = choose_shardings(shapes(model), EIGHT, model.partition(2))
  assert shardings['embedding'].spec == P()
  assert shardings['layer_0']['out']['kernel'].spec == P(None, 'model')


@pytest.mark.parametrize(
  ('mistake', 'words'),
  [
    (lambda params: make_mesh(MeshConfig(data=50, model=2)), 'needs 100 devices, and there are 1'),
    (
      lambda params: place(params, EIGHT, ((r'nothing$', P('model')),)),
      'matches no parameter: there are decoder_0/',
    ),
    (
      lambda params: place({'a/qkv/kernel': jnp.zeros((3, 5, 2, 4))}, EIGHT, TABLE[1:2]),
      r'and 5 cannot be divided over mesh.model=2 devices',  # heads
    ),
    (
      lambda params: place({'b': jnp.zeros(4)}, EIGHT, (('b', P(None, 'model')),)),
      'needs 2 axes: fix the table',
    ),
    (
      lambda params: check_rows(12, 4, 2),
      '12 rows .* 2 parts of a batch: give a multiple of 8 rows',
    ),
    (
      lambda params: mesh_of(
        jax.device_put(jnp.zeros(2), jax.NamedSharding(jax.make_mesh((1,), ('x',)), P()))
      ),
      'axes .*x.*: make it by make_mesh',
    ),
  ],
)
def test_mistakes_are_named(params, mistake, words):
  with pytest.raises(fd.UserError, match=words):
    mistake(params)


def test_using_is_over_when_it_ends(mesh):
  with using(mesh):
    assert not jax.sharding.get_abstract_mesh().empty
  assert jax.sharding.get_abstract_mesh().empty
