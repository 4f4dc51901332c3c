"""GGUF files: what llama.cpp's converter makes of a folder reads as the folder does."""

import contextlib
import dataclasses
import json
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

import fastdec as fd
from fastdec.hub.families import families
from fastdec.hub.gguf.header import read_header
from fastdec.hub.gguf.metadata import ARCHITECTURES
from fastdec.hub.gguf.tensors import GgufTensors
from fastdec.text.load import open_folder
from fastdec.tuning.tuned import default_file
from tests.hub.gguf_writing import read_folder, write_model
from tests.hub.test_gguf_tokenizers import BYTES, byte_level

REFERENCE = Path(__file__).parents[3] / 'shared' / 'reference' / 'hf'
needs_reference = pytest.mark.skipif(
  not REFERENCE.is_dir(), reason='needs ../shared/reference, which is not here'
)

FOLDERS = {  # folders, and changes of config.json where GGUF cannot say what it says
  'llama_gqa_tiny': {}, 'llama_yarn_tiny': {}, 'llama_linear_tiny': {'eos_token_id': 2},
  'mistral_window_tiny': {}, 'mixtral_tiny': {}, 'qwen3_moe_tiny': {},
  'granite_tiny': {}, 'smollm3_tiny': {}, 'olmo2_tiny': {}, 'phi3_longrope_tiny': {},
  'gemma2_tiny': {'query_pre_attn_scalar': 16}, 'gemma3_tiny': {'query_pre_attn_scalar': 16},
  'gpt_oss_tiny': {'swiglu_limit': 7.0},
}  # fmt: skip
DERIVED = {  # made from llama_gqa_tiny: model_type, and what is added to each layer
  'qwen2': {'q_proj.bias': 32, 'k_proj.bias': 16, 'v_proj.bias': 16},
  'qwen3': {'q_norm.weight': 8, 'k_norm.weight': 8},
  'llama': {
    'q_proj.bias': 32, 'k_proj.bias': 16, 'v_proj.bias': 16, 'o_proj.bias': 32,
  },
}  # fmt: skip


def model_of(name):
  """A folder's config.json and tensors, changed so that GGUF can say it all."""
  config, tensors = read_folder(REFERENCE / ('llama_gqa_tiny' if name in DERIVED else name))
  random = np.random.default_rng(0)
  for part, size in DERIVED.get(name, {}).items():
    config |= {'model_type': name, 'attention_bias': name == 'llama'}
    for i in range(config['num_hidden_layers']):
      tensors[f'model.layers.{i}.self_attn.{part}'] = random.normal(size=size).astype(np.float32)
  return config | FOLDERS.get(name, {}), tensors


def folder_of(folder, config, tensors):
  from safetensors.numpy import save_file

  folder.mkdir()
  (folder / 'config.json').write_text(json.dumps(config | {'dtype': 'float32'}))
  save_file(tensors, folder / 'model.safetensors')
  return folder


def ids(writer, config):
  ends = config['eos_token_id']
  writer.add_bos_token_id(config['bos_token_id'])
  writer.add_eos_token_id(ends)
  if config['pad_token_id'] is not None:
    writer.add_pad_token_id(config['pad_token_id'])


def arrays_of(folder):
  """The parameters as they are read, on no device: by their paths."""
  tensors = folder.tensors()
  stored = families()[folder.config['model_type']].params_of(folder.model, tensors)
  tensors.check()
  flat = flatten_dict(stored, sep='/')
  return {name: np.asarray(x[(slice(None),) * x.ndim], np.float32) for name, x in flat.items()}


def same(ours, theirs, **tolerance):
  assert ours.keys() == theirs.keys()
  for name in ours:
    np.testing.assert_allclose(ours[name], theirs[name], err_msg=name, **tolerance)


def nearly(config):
  """A config with its floats rounded: GGUF keeps 32 bits."""
  rounded = {}
  for name, value in dataclasses.asdict(config).items():
    if isinstance(value, float):
      value = float(f'{value:.6g}')
    elif isinstance(value, tuple) and any(type(entry) is float for entry in value):
      value = tuple(float(f'{entry:.6g}') for entry in value)
    rounded[name] = value
  return rounded


@needs_reference
@pytest.mark.parametrize('name', [*FOLDERS, *DERIVED])
def test_a_converted_folder_is_the_same_model(name, tmp_path):
  config, tensors = model_of(name)
  folder = folder_of(tmp_path / 'folder', config, tensors)
  file = write_model(
    tmp_path / 'model.gguf', config, tensors, vocabulary=lambda writer: ids(writer, config)
  )
  ours, theirs = open_folder(file), open_folder(folder)
  assert nearly(ours.model.config) == nearly(theirs.model.config)
  same(arrays_of(ours), arrays_of(theirs), rtol=1e-6, atol=1e-6)  # Gemma's scales lose a bit


def test_every_architecture_is_converted_by_some_test():
  of_folders = {name.removesuffix('_tiny').split('_')[0] for name in FOLDERS} | set(DERIVED)
  of_folders |= {'gpt-oss', 'qwen3moe'}
  assert set(ARCHITECTURES) <= of_folders


@needs_reference
@pytest.mark.parametrize('original', [8192, 16], ids=['as_published', 'others'])
def test_factors_of_the_rope_are_those_of_llama_3(original, tmp_path):
  config, tensors = model_of('llama_gqa_tiny')
  config['rope_parameters'] = {
    'rope_type': 'llama3', 'rope_theta': 5e5, 'factor': 8.0, 'low_freq_factor': 1.0,
    'high_freq_factor': 4.0, 'original_max_position_embeddings': original,
  }  # fmt: skip
  theirs = open_folder(folder_of(tmp_path / 'folder', config, tensors)).model
  plain = 5e5 ** (-np.arange(0, 8, 2) / 8)
  factors = (plain / theirs.config.rotary.frequencies(8)).astype(np.float32)
  file = write_model(tmp_path / 'model.gguf', config, tensors | {'rope_freqs.weight': factors})
  ours = open_folder(file)
  assert 'rope_freqs.weight' not in ours.tensors()
  if original == 8192:
    assert ours.model.config.rotary == theirs.config.rotary
  positions = jnp.arange(128)[None]
  angles = theirs.config.rotary.angles(positions, 8)
  np.testing.assert_allclose(ours.model.config.rotary.angles(positions, 8), angles, rtol=1e-5)


@pytest.fixture(scope='module')
def every_type(tmp_path_factory):
  """A file with a matrix of each type that the package dequantizes, of random bytes."""
  file = tmp_path_factory.mktemp('types') / 'types.gguf'
  writer, random, stored = GGUFWriter(file, 'llama'), np.random.default_rng(0), {}
  for kind in GGMLQuantizationType:
    block, size = GGML_QUANT_SIZES[kind]
    raw = random.integers(0, 256, (6, 512 // block * size), np.uint8)
    with contextlib.suppress(NotImplementedError), np.errstate(all='ignore'):
      stored[kind.name] = dequantize(raw, kind)
    if kind.name not in stored:
      continue
    shape = (2, 3, raw.shape[1])
    writer.add_tensor(f'x.{kind.name}', raw.reshape(shape), raw_dtype=kind)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return GgufTensors(read_header(file), ARCHITECTURES['llama'], 2), stored


@pytest.mark.parametrize('kind', ['F32', 'F16', 'BF16', 'Q4_0', 'Q4_K', 'Q6_K', 'IQ2_XS', 'MXFP4'])
def test_parts_of_a_matrix_are_those_of_the_whole(every_type, kind):
  tensors, stored = every_type
  x, whole = tensors[f'x.{kind}'], stored[kind].reshape(2, 3, 512)
  read = lambda part: np.asarray(part, np.float32)
  np.testing.assert_array_equal(read(x[:, :, :]), whole)
  np.testing.assert_array_equal(read(x.reshape(6, 512)[1:5, 7:100]), stored[kind][1:5, 7:100])
  np.testing.assert_array_equal(read(x.rows(1, 2).reshape(3, 512)[1:, :]), whole[1, 1:])


def test_every_type_of_the_package_is_read(every_type):
  tensors, stored = every_type
  assert len(stored) >= 24
  for kind, whole in stored.items():
    x = np.asarray(tensors[f'x.{kind}'].reshape(6, 512)[:, :], np.float32)
    np.testing.assert_array_equal(x, whole, err_msg=kind)


@pytest.fixture(scope='module')
def small():
  """config.json and tensors of a small Llama, with matrices that blocks of 32 divide."""
  config = {
    'model_type': 'llama', 'vocab_size': 320, 'hidden_size': 64, 'intermediate_size': 96,
    'num_hidden_layers': 2, 'num_attention_heads': 4, 'num_key_value_heads': 2,
    'rms_norm_eps': 1e-5, 'max_position_embeddings': 128, 'rope_parameters': {'rope_theta': 1e4},
    'bos_token_id': 1, 'eos_token_id': 2, 'pad_token_id': None, 'tie_word_embeddings': True,
  }  # fmt: skip
  random = np.random.default_rng(0)
  matrix = lambda *shape: random.normal(0, 0.1, shape).astype(np.float32)
  tensors = {'model.embed_tokens.weight': matrix(320, 64), 'model.norm.weight': matrix(64) + 1}
  for i in range(2):
    layer = {
      'self_attn.q_proj': matrix(64, 64), 'self_attn.k_proj': matrix(32, 64),
      'self_attn.v_proj': matrix(32, 64), 'self_attn.o_proj': matrix(64, 64),
      'mlp.gate_proj': matrix(96, 64), 'mlp.up_proj': matrix(96, 64),
      'mlp.down_proj': matrix(64, 96), 'input_layernorm': matrix(64) + 1,
      'post_attention_layernorm': matrix(64) + 1,
    }  # fmt: skip
    tensors |= {f'model.layers.{i}.{name}.weight': x for name, x in layer.items()}
  return config, tensors


def test_types_of_numbers_are_chosen_as_for_folders(small, tmp_path):
  plain = write_model(tmp_path / 'plain.gguf', *small)
  half = write_model(tmp_path / 'half.gguf', *small, kind='F16')
  quantized = write_model(tmp_path / 'quantized.gguf', *small, kind='Q8_0')
  assert open_folder(plain).model.config.dtype == 'float32'
  assert open_folder(half).model.config.dtype == 'bfloat16'
  assert open_folder(quantized, 'float32').model.config.dtype == 'float32'
  model, params = fd.load(quantized, dtype='int8w')
  assert model.config.dtype == params['norm']['scale'].dtype == 'bfloat16'
  kernel, up = params['layer_1']['down']['kernel'], small[1]['model.layers.1.mlp.down_proj.weight']
  assert kernel.values.dtype == np.int8
  floats = np.asarray(kernel.values, np.float32) * np.asarray(kernel.scale)[:, None]
  np.testing.assert_allclose(floats, up, atol=2 * np.abs(up).max() / 127)


def test_a_model_in_several_files_is_opened_by_any_of_them(small, tmp_path):
  one = write_model(tmp_path / 'model.gguf', *small)
  write_model(tmp_path / 'parts.gguf', *small, splits=7)
  parts = sorted(tmp_path.glob('parts-*.gguf'))
  assert [part.name for part in parts] == [f'parts-0000{i}-of-00003.gguf' for i in (1, 2, 3)]
  for part in parts:
    folder = open_folder(part)
    assert folder.path == parts[0]
    same(arrays_of(folder), arrays_of(open_folder(one)))
    assert folder.content == open_folder(parts[0]).content != open_folder(one).content
    assert default_file(part).name == 'parts-00001-of-00003.tuned.json'
  parts[1].rename(tmp_path / 'aside.gguf')
  with pytest.raises(
    fd.UserError, match=r"lacks 'parts-00002-of-00003\.gguf', a part of the model"
  ):
    fd.load(parts[2])
  (tmp_path / 'aside.gguf').rename(parts[1])
  parts[0].rename(tmp_path / 'first.gguf')
  with pytest.raises(fd.UserError, match=r'split\.count=3, but by its name it is file 1 of 1'):
    fd.load(tmp_path / 'first.gguf')


def test_old_files_have_each_expert_apart(small, tmp_path):
  config, tensors = small
  config = config | {'num_local_experts': 3, 'num_experts_per_tok': 2}
  random, apart, together = np.random.default_rng(1), {}, {}
  for i in range(2):
    apart[f'blk.{i}.ffn_gate_inp.weight'] = together[f'blk.{i}.ffn_gate_inp.weight'] = (
      random.normal(size=(3, 64)).astype(np.float32)
    )
    for part, shape in (('gate', (96, 64)), ('up', (96, 64)), ('down', (64, 96))):
      x = random.normal(size=(3, *shape)).astype(np.float32)
      together[f'blk.{i}.ffn_{part}_exps.weight'] = x
      apart |= {f'blk.{i}.ffn_{part}.{j}.weight': x[j] for j in range(3)}
  dense = {name: x for name, x in tensors.items() if '.mlp.' not in name}
  old = open_folder(write_model(tmp_path / 'old.gguf', config, dense | apart))
  new = open_folder(write_model(tmp_path / 'new.gguf', config, dense | together))
  assert old.config['model_type'] == 'mixtral'
  same(arrays_of(old), arrays_of(new))


@pytest.fixture(scope='module')
def chats(small, tmp_path_factory):
  """A model with a tokenizer of bytes in one file, a smaller one in another."""
  place, theirs = tmp_path_factory.mktemp('chats'), byte_level(BYTES)

  def vocabulary(writer):
    tokens = sorted(theirs.get_vocab(), key=theirs.get_vocab().get)
    writer.add_tokenizer_model('gpt2')
    writer.add_tokenizer_pre('gpt-2')
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token == '<end>' else 1 for token in tokens])
    writer.add_token_merges(
      [' '.join(pair) for pair in json.loads(theirs.to_str())['model']['merges']]
    )
    writer.add_eos_token_id(theirs.token_to_id('<end>'))

  config, tensors = small
  model = write_model(place / 'model.gguf', config, tensors, vocabulary=vocabulary)
  config = config | {'num_hidden_layers': 1}
  first = {name: x for name, x in tensors.items() if '.layers.1.' not in name}
  return model, write_model(place / 'draft.gguf', config, first, 'Q8_0', vocabulary=vocabulary)


def test_text_goes_in_and_comes_out_as_from_a_folder(chats, tmp_path):
  model, draft = chats
  generator = fd.Generator.load(model, dtype='float32')
  fd.save(generator.model, generator.params, tmp_path / 'copy', tokenizer=generator.tokenizer)
  text = generator('the boat', max_new_tokens=9).text
  assert fd.Generator.load(tmp_path / 'copy')('the boat', max_new_tokens=9).text == text
  strategy = fd.Generator.load(model, draft=draft, dtype='float32').strategy
  assert isinstance(strategy, fd.Speculative)
  assert strategy.draft.module.config.layers == 1


def test_commands_take_files(chats, capsys):
  from fastdec.cli import check

  check.main([str(chats[0]), '--max-len=9'])
  shown = capsys.readouterr().out
  assert 'model: llama, LM,' in shown
  assert 'tokenizer: 299 ids' in shown
  assert 'lacks' not in shown
  assert '9 tokens' in shown


def test_a_choice_is_kept_next_to_the_file(chats):
  assert default_file(chats[0]).name == 'model.tuned.json'
  with pytest.raises(fd.UserError, match=r'model\.tuned\.json does not exist: make it by fastdec'):
    fd.load_tuned(chats[0])


def test_zero_of_metadata_is_none(small, tmp_path):
  adds = {
    'llama.rope.scaling.factor': 0.0,
    'llama.attention.key_length': 0,
    'llama.expert_count': 0,
  }
  ours = open_folder(write_model(tmp_path / 'zero.gguf', *small, adds=adds)).model
  assert ours == open_folder(write_model(tmp_path / 'none.gguf', *small)).model


def test_ends_are_those_of_the_file_and_of_its_chats(small, tmp_path):
  tokens = ['a', '<|end|>', '<|return|>', '<|call|>', '<eos>', '<eom>', '<end_of_turn>']

  def ends(template):
    def vocabulary(writer):
      writer.add_token_list(tokens)
      writer.add_eos_token_id(4)
      writer.add_eom_token_id(5)
      writer.add_chat_template(template)

    return open_folder(
      write_model(tmp_path / 'x.gguf', *small, vocabulary=vocabulary)
    ).model.eos_ids

  assert ends('{{ x }}') == (4, 5)
  assert ends('<|end|>') == (4, 5, 1)
  assert ends('<end_of_turn>\n') == (4, 5, 6)
  assert ends('<|end|> <|return|> <|call|>') == (4, 5, 2, 3)  # gpt-oss ends parts of an answer too


def test_a_missing_package_is_a_sentence(monkeypatch, tmp_path):
  monkeypatch.setitem(sys.modules, 'gguf.constants', None)
  (tmp_path / 'x.gguf').write_bytes(b'anything')
  with pytest.raises(
    fd.UserError, match=r"gguf is not installed: run pip install 'fastdec\[gguf\]'"
  ):
    fd.load(tmp_path / 'x.gguf')
