"""Medusa's published head files: every way of naming the tensors gives the same heads; what is not
whole is refused."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.folders.stored import Stored
from fastdec.heads.medusa import MedusaHeads
from fastdec.models.lm import LM, LMConfig
from fastdec.text.load import open_folder

D, V = 4, 7
FILE = 'medusa_lm_head.safetensors'


def tensors_of(depth=3, layers=1, own=True):
  """As the Medusa project stores them."""
  rng = np.random.default_rng(0)
  tensors = {}
  for i in range(depth):
    for j in range(layers):
      tensors[f'{i}.{j}.linear.weight'] = rng.normal(size=(D, D)).astype(np.float32)
      tensors[f'{i}.{j}.linear.bias'] = rng.normal(size=D).astype(np.float32)
    if own:
      tensors[f'{i}.{layers}.weight'] = rng.normal(size=(V, D)).astype(np.float32)
  return tensors


def write(folder, tensors, file=FILE, config=None):
  from safetensors.numpy import save_file

  folder.mkdir(parents=True, exist_ok=True)
  if config is None:
    config = {'medusa_num_heads': 3, 'medusa_num_layers': 1, 'base_model_name_or_path': 'a/model'}
  (folder / 'config.json').write_text(json.dumps(config))
  save_file(tensors, folder / file)
  return folder


def as_vllm(tensors, prefix='', layers=1):
  named = {}
  for name, value in tensors.items():
    i, j, *rest = name.split('.')
    part = rest[-1]
    named[
      prefix + (f'blocks.{i}.layers.{j}.{part}' if int(j) < layers else f'lm_heads.{i}.weight')
    ] = value
  return named


VLLM = {
  'model_type': 'medusa', 'hidden_size': D, 'vocab_size': V, 'num_heads': 3, 'num_hidden_layers': 1,
}  # fmt: skip
VARIANTS = {
  'heads alone': lambda folder, tensors: write(folder, tensors),
  'config of fewer heads': lambda folder, tensors: write(
    folder, tensors, config={'medusa_num_heads': 2}
  ),
  'prefixed': lambda folder, tensors: write(
    folder, {f'medusa_head.{name}': x for name, x in tensors.items()}
  ),
  "among a model's": lambda folder, tensors: write(
    folder,
    {f'medusa_head.{name}': x for name, x in tensors.items()}
    | {'lm_head.weight': np.zeros((V, D), np.float32)},
    'model.safetensors',
    {'model_type': 'llama', 'medusa_num_heads': 3},
  ),
  'vllm': lambda folder, tensors: write(folder, as_vllm(tensors), 'model.safetensors', VLLM),
  'vllm, prefixed': lambda folder, tensors: write(
    folder, as_vllm(tensors, 'medusa_heads.'), 'model.safetensors', VLLM
  ),
  'vllm, all words in its map': lambda folder, tensors: write(
    folder,
    as_vllm(tensors) | {'token_map': np.arange(V)},
    'model.safetensors',
    VLLM | {'truncated_vocab_size': V},
  ),
}


@pytest.mark.parametrize('variant', VARIANTS)
@pytest.mark.parametrize('own', [True, False], ids=['own projections', "the model's"])
def test_every_naming_gives_the_same_heads(variant, own, tmp_path, monkeypatch):
  tensors = tensors_of(own=own)
  folder = VARIANTS[variant](tmp_path, tensors)
  heads, params = fd.load_heads(folder)
  assert (
    heads == MedusaHeads(depth=3, d_model=D, vocab_size=V if own else None)
    and open_folder(folder).has_heads
  )
  for i in range(3):
    own_params = params[f'head_{i}']
    np.testing.assert_array_equal(own_params['block_0']['kernel'], tensors[f'{i}.0.linear.weight'])
    np.testing.assert_array_equal(own_params['block_0']['bias'], tensors[f'{i}.0.linear.bias'])
    if own:
      np.testing.assert_array_equal(own_params['projection']['kernel'], tensors[f'{i}.1.weight'])
  assert heads.init(jax.random.key(0)).keys() == params.keys()
  monkeypatch.setattr(Stored, '__getitem__', lambda self, index: pytest.fail('a tensor is read'))
  assert open_folder(folder).heads == heads


@pytest.mark.parametrize(
  'name, config', [('lm_head', {}), ('lm_heads.0', {'original_lm_head': True})]
)
def test_one_projection_for_all_heads_stays_one_array(name, config, tmp_path):
  tensors = as_vllm(tensors_of(own=False))
  projection = np.random.default_rng(1).normal(size=(V, D)).astype(np.float32)
  write(tmp_path, tensors | {f'{name}.weight': projection}, 'model.safetensors', VLLM | config)
  heads, params = fd.load_heads(tmp_path)
  kernels = [params[f'head_{i}']['projection']['kernel'] for i in range(3)]
  assert heads.vocab_size == V and kernels[0] is kernels[1] is kernels[2]
  np.testing.assert_array_equal(kernels[0], projection)


def test_heads_in_a_whole_file_go_before_those_of_an_index(tmp_path):
  new, old = as_vllm(tensors_of()), {name: x + 1 for name, x in as_vllm(tensors_of()).items()}
  write(tmp_path, old, 'model-0.safetensors', VLLM)
  (tmp_path / 'model.safetensors.index.json').write_text(
    json.dumps({'weight_map': dict.fromkeys(old, 'model-0.safetensors')})
  )
  _, params = fd.load_heads(write(tmp_path, new, 'model.safetensors', VLLM))
  np.testing.assert_array_equal(params['head_0']['projection']['kernel'], new['lm_heads.0.weight'])


def test_int8_keeps_one_projection_for_all_heads_one_array(tmp_path):
  tensors = as_vllm(tensors_of(own=False)) | {'lm_head.weight': tensors_of()['0.1.weight']}
  write(tmp_path, tensors, 'model.safetensors', VLLM)
  (heads, params), in_int8 = fd.load_heads(tmp_path), fd.load_heads(tmp_path, 'int8')[1]
  jax.tree.map(np.testing.assert_array_equal, in_int8, fd.quantize(heads, params))
  assert in_int8['head_0']['projection']['kernel'] is in_int8['head_2']['projection']['kernel']


def test_blocks_without_biases_have_zeros(tmp_path):
  tensors = {name: x for name, x in as_vllm(tensors_of()).items() if 'bias' not in name}
  _, params = fd.load_heads(write(tmp_path, tensors, 'model.safetensors', VLLM))
  assert not np.any(params['head_2']['block_0']['bias'])


def test_no_config_is_needed_and_a_dtype_is_wanted(tmp_path):
  write(tmp_path, tensors_of(layers=2), config={})
  (tmp_path / 'config.json').unlink()
  heads, params = fd.load_heads(tmp_path, dtype='bfloat16')
  assert heads.layers == 2 and {x.dtype.name for x in jax.tree.leaves(params)} == {'bfloat16'}


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize('sizes', [{'vocab_size': V}, {}, {'vocab_size': V, 'layers': 2}])
def test_what_is_written_is_read_back(sizes, dtype, tmp_path):
  from safetensors import safe_open

  heads = MedusaHeads(depth=2, d_model=D, **sizes)
  params = jax.tree.map(lambda x: (x + 0.5).astype(dtype), heads.init(jax.random.key(0)))
  fd.save_heads(tmp_path / 'heads', (heads, params), base_model='a/model')
  loaded, loaded_params = fd.load_heads(tmp_path / 'heads')
  assert loaded == heads
  jax.tree.map(np.testing.assert_array_equal, loaded_params, params)
  with safe_open(tmp_path / 'heads' / FILE, 'numpy') as file:
    assert set(file.keys()) == set(tensors_of(2, heads.layers, heads.vocab_size is not None))
  config = json.loads((tmp_path / 'heads' / 'config.json').read_text())
  assert (config['medusa_num_heads'], config['medusa_num_layers']) == (2, heads.layers)
  assert config['base_model_name_or_path'] == 'a/model' and [
    x.name for x in tmp_path.iterdir()
  ] == ['heads']
  with pytest.raises(fd.UserError, match='is there already: give a new folder'):
    fd.save_heads(tmp_path / 'heads', (heads, params), base_model='a/model')


@pytest.mark.parametrize('prefix', ['medusa_head', 'medusa_heads'])
@pytest.mark.parametrize('depth', [1, 3])
@pytest.mark.parametrize('form', ['said', 'unsaid', 'index'])
def test_a_model_with_heads_among_its_tensors_loads_without_them(
  form, depth, prefix, shared, tmp_path
):
  from safetensors.numpy import load_file

  source = shared / 'reference' / 'hf' / 'llama_tiny'
  heads = {f'{prefix}.{name}': x for name, x in tensors_of(depth).items()}
  config, model = json.loads((source / 'config.json').read_text()), source / 'model.safetensors'
  if form == 'said':
    config['medusa_num_heads'] = depth
  if form == 'index':
    files = {'a.safetensors': load_file(model), 'b.safetensors': heads}
    for file, tensors in files.items():
      write(tmp_path, tensors, file, config)
    places = {name: file for file, tensors in files.items() for name in tensors}
    (tmp_path / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': places}))
  else:
    write(tmp_path, load_file(model) | heads, 'model.safetensors', config)
  _, params = fd.load(tmp_path)
  jax.tree.map(np.testing.assert_array_equal, params, fd.load(source)[1])
  assert fd.load_heads(tmp_path)[0].depth == depth


REFUSED = {
  'fewer than promised': ({'1.0.linear.weight': None}, {},
    r'lacks head_1/block_0/kernel of its 3 heads'),
  'unknown': ({'3.gate': np.zeros(3)}, {},
    r'has unknown 3\.gate: Medusa heads are called 0\.0\.linear\.weight'),
  'config of more heads': ({}, {'medusa_num_heads': 5}, 'has 3 heads, and its config.json says 5'),
  'another width': ({'1.0.linear.weight': np.zeros((5, 5))}, {},
    r'holds \[5, 5\] for head_1/block_0/kernel'),
  'a part of the words': (
    {'token_map': np.arange(V)}, {'truncated_vocab_size': V, 'vocab_size': 9},
      'a part of the vocabulary'
  ),
}  # fmt: skip


@pytest.mark.parametrize('case', REFUSED)
def test_what_does_not_fit_is_refused(case, tmp_path):
  changes, config, message = REFUSED[case]
  tensors = {name: x for name, x in (tensors_of() | changes).items() if x is not None}
  write(tmp_path, tensors, config={'medusa_num_heads': 3} | config)
  with pytest.raises(fd.UserError, match=message):
    fd.load_heads(tmp_path)


def test_a_torn_file_and_a_folder_without_heads_are_refused(tmp_path):
  write(tmp_path / 'torn', tensors_of())
  (tmp_path / 'torn' / FILE).write_bytes((tmp_path / 'torn' / FILE).read_bytes()[:50])
  with pytest.raises(fd.UserError, match='corrupt or cut short'):
    fd.load_heads(tmp_path / 'torn')
  (tmp_path / 'config.json').write_text(json.dumps({'model_type': 'llama'}))
  with pytest.raises(fd.UserError, match='holds a model without heads'):
    fd.load_heads(tmp_path)


def test_heads_of_a_different_model_are_refused_before_decoding(tmp_path):
  write(tmp_path, tensors_of())
  for sizes, message in (
    ({'vocab_size': V, 'd_model': 8}, 'hidden states of 4, and this model has 8'),
    ({'vocab_size': 9, 'd_model': D}, 'among 7 words, and this model has 9'),
  ):
    model = LM(LMConfig(**sizes, d_ff=8, layers=1, heads=2))
    with pytest.raises(fd.UserError, match=message):
      fd.decode(
        model, model.init(jax.random.key(0)), [[3]], fd.Medusa(fd.load_heads(tmp_path), [[0], [1]])
      )


def test_other_heads_are_not_written_as_published(tmp_path):
  heads = MedusaHeads(depth=2, d_model=D, vocab_size=V, output_bias=True)
  with pytest.raises(fd.UserError, match='without a bias'):
    fd.save_heads(tmp_path / 'heads', (heads, heads.init(jax.random.key(0))), base_model='')
  assert not list(tmp_path.iterdir())
