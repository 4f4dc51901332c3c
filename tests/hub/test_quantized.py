"""Quantized folders: matrices are packed here number by number, as the formats say, and read
back."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import fastdec as fd
from fastdec.files import read_json
from fastdec.folders.stored import Stored, stored_in, write
from fastdec.hub import dequantized, quantized, weight_files
from fastdec.hub.quantized_formats import QuantizationConfig, StoredMatrix, read_gptq
from fastdec.kernels.quantized import Quantized
from fastdec.kernels.sharding import MeshConfig, make_mesh

LLAMA = {
  'model_type': 'llama', 'vocab_size': 40, 'hidden_size': 32, 'intermediate_size': 48,
  'num_hidden_layers': 1, 'num_attention_heads': 4, 'num_key_value_heads': 2,
  'max_position_embeddings': 32, 'eos_token_id': 2, 'dtype': 'float32',
}  # fmt: skip
LINEAR = {
  'self_attn.q_proj': (32, 32), 'self_attn.k_proj': (16, 32), 'self_attn.v_proj': (16, 32),
  'self_attn.o_proj': (32, 32), 'mlp.gate_proj': (48, 32), 'mlp.up_proj': (48, 32),
  'mlp.down_proj': (32, 48),
}  # fmt: skip
FUSED = {
  'self_attn.qkv_proj': (64, 32), 'self_attn.o_proj': (32, 32), 'mlp.gate_up_proj': (96, 32),
  'mlp.down_proj': (32, 48),
}  # fmt: skip
PLAIN = 'model.layers.0.self_attn.o_proj'  # left in floats, as by modules_to_not_convert


def words(numbers, bits, axis, order=None):
  """Packs numbers into words of 32 bits along an axis; `order`: the number at each place of one."""
  numbers, per = np.moveaxis(numbers.astype(np.int64), axis, 0), 32 // bits
  made = np.zeros((-(-len(numbers) // per), *numbers.shape[1:]), np.int64)
  for word in range(len(made)):
    for place, number in enumerate(order or range(per)):
      if word * per + number < len(numbers):
        made[word] += numbers[word * per + number] << (bits * place)
  return np.moveaxis(made, 0, axis).astype(np.uint32).view(np.int32)


def meant(numbers, zeros, scales, dtype=np.float32):
  """(q - zero) * scale, each of them for every number."""
  exact = (numbers.astype(np.float64) - zeros) * np.asarray(scales, np.float64)
  return exact.astype(dtype)


def scales_of(rng, *shape, dtype=np.float32):
  return (rng.random(shape) / 200 + 0.001).astype(dtype)


def fp8(rng, outputs, inputs, block=(24, 20)):
  numbers = (rng.standard_normal((outputs, inputs)) * 20).astype(jnp.float8_e4m3fn)
  scale = scales_of(
    rng, *(-(-size // each) for size, each in zip(numbers.shape, block, strict=True))
  )
  each = np.kron(scale, np.ones(block, np.float32))[:outputs, :inputs]
  return {'weight': numbers, 'weight_scale_inv': scale}, meant(numbers, 0, each)


def fp8_whole(rng, outputs, inputs):
  numbers = (rng.standard_normal((outputs, inputs)) * 20).astype(jnp.float8_e4m3fn)
  scale = scales_of(rng, 1)
  parts = {'weight': numbers, 'weight_scale': scale.reshape(()), 'input_scale': scale}
  return parts, meant(numbers, 0, scale)


def int8(rng, outputs, inputs):
  numbers = rng.integers(-128, 128, (outputs, inputs), np.int8)
  scale = scales_of(rng, outputs, 1, dtype=jnp.bfloat16)
  return {'weight': numbers, 'weight_scale': scale}, meant(numbers, 0, scale)


def int8_with_zeros(rng, outputs, inputs):
  numbers = rng.integers(-128, 128, (outputs, inputs), np.int8)
  scale, zero = scales_of(rng, outputs, 1), rng.integers(-9, 9, (outputs, 1), np.int8)
  parts = {'weight': numbers, 'weight_scale': scale, 'weight_zero_point': zero}
  return parts, meant(numbers, zero, scale)


def float8(rng, outputs, inputs, block=(24, 20)):
  """As compressed-tensors names it."""
  parts, value = fp8(rng, outputs, inputs, block)
  return {'weight': parts['weight'], 'weight_scale': parts['weight_scale_inv']}, value


def packed(rng, outputs, inputs, bits=4, has_zeros=False):
  """Packs signed numbers of `bits` bits, with half their range added, in groups of 16 inputs."""
  half, groups = 2 ** (bits - 1), inputs // 16
  numbers = rng.integers(-half, half, (outputs, inputs))
  scale, zero = scales_of(rng, outputs, groups, dtype=np.float16), np.zeros((outputs, groups), int)
  if has_zeros:
    zero = rng.integers(-half, half, zero.shape)
  parts = {
    'weight_packed': words(numbers + half, bits, 1),
    'weight_shape': np.array([outputs, inputs]),
    'weight_scale': scale,
  }
  if has_zeros:
    parts['weight_zero_point'] = words(zero + half, bits, 0)
  return parts, meant(numbers, np.repeat(zero, 16, 1), np.repeat(scale, 16, 1))


def packed_sorted(rng, outputs, inputs):
  numbers, groups = rng.integers(-8, 8, (outputs, inputs)), inputs // 16
  scale, group = scales_of(rng, outputs, groups), rng.permutation(np.arange(inputs) // 16)
  parts = {
    'weight_packed': words(numbers + 8, 4, 1),
    'weight_shape': np.array([outputs, inputs]),
    'weight_scale': scale,
    'weight_g_idx': group.astype(np.int32),
  }
  return parts, meant(numbers, 0, scale[:, group])


def gptq(rng, outputs, inputs, bits=4, size=16, is_sorted=False, less=1):
  """A matrix [inputs, outputs]; stored zeros are less by 1."""
  group = np.arange(inputs) // (inputs if size == -1 else size)
  if is_sorted:
    group = rng.permutation(group)
  numbers = rng.integers(0, 2**bits, (inputs, outputs))
  zero = rng.integers(1, 2**bits, (group.max() + 1, outputs))
  scale = scales_of(rng, *zero.shape, dtype=np.float16)
  parts = {
    'qweight': words(numbers, bits, 0),
    'qzeros': words(zero - less, bits, 1),
    'scales': scale,
  }
  if size != -1:
    parts['g_idx'] = group.astype(np.int32)
  return parts, meant(numbers, zero[group], scale[group]).T


@pytest.mark.parametrize('is_sorted', [False, True])
@pytest.mark.parametrize('stored', ['less', 'equal', None])
@pytest.mark.parametrize('version', [None, 'gptq', 'gptq_v2'])
@pytest.mark.parametrize('bits', [2, 4, 8])
def test_symmetric_zeros_are_half_the_range_however_they_are_stored(
  bits, version, stored, is_sorted, tmp_path
):
  rng, half = np.random.default_rng(0), 2 ** (bits - 1)
  parts, _ = gptq(rng, 48, 32, bits, is_sorted=is_sorted)
  zeros = np.full((2, 48), half - (stored == 'less'))
  parts |= {'qzeros': words(zeros, bits, 1)}
  if stored is None:
    del parts['qzeros']
  write(tmp_path / 'x.safetensors', parts)
  matrix = StoredMatrix('x', stored_in(tmp_path / 'x.safetensors'))
  config = QuantizationConfig('gptq', bits, group_size=16, checkpoint_format=version, sym=True)
  numbers = dequantized.unpack(parts['qweight'].T, bits).astype(np.float32)
  scale = parts['scales'].astype(np.float32)[parts['g_idx']].T
  np.testing.assert_array_equal(read_gptq(matrix, config)[:, :], (numbers - half) * scale)


def test_other_zeros_contradict_sym(tmp_path):
  write(tmp_path / 'x.safetensors', gptq(np.random.default_rng(0), 48, 32)[0])
  matrix = StoredMatrix('x', stored_in(tmp_path / 'x.safetensors'))
  config = QuantizationConfig('gptq', 4, group_size=16, sym=True)
  with pytest.raises(fd.UserError, match=r'x\.qzeros has other zeros than 8, which sym=true'):
    read_gptq(matrix, config)[:, :]


def awq(rng, outputs, inputs):
  """A matrix [inputs, outputs]; the places of a word hold outputs 0, 2, 4, 6, 1, 3, 5, 7."""
  order, group = (0, 2, 4, 6, 1, 3, 5, 7), np.arange(inputs) // 16
  numbers = rng.integers(0, 16, (inputs, outputs))
  zero = rng.integers(0, 16, (inputs // 16, outputs))
  scale = scales_of(rng, *zero.shape, dtype=np.float16)
  parts = {
    'qweight': words(numbers, 4, 1, order),
    'qzeros': words(zero, 4, 1, order),
    'scales': scale,
  }
  return parts, meant(numbers, zero[group], scale[group]).T


def compressed(form, **weights):
  groups = {'group_0': {'targets': ['Linear'], 'weights': weights or {'num_bits': 8}}}
  return {'quant_method': 'compressed-tensors', 'format': form, 'config_groups': groups}


GPTQ = {'quant_method': 'gptq', 'bits': 4, 'group_size': 16, 'desc_act': False, 'sym': False}
AWQ = {'quant_method': 'awq', 'bits': 4, 'group_size': 16, 'zero_point': True, 'version': 'gemm'}
FP8 = {'quant_method': 'fp8', 'weight_block_size': [24, 20]}
CASES = {
  'fp8 in blocks': (FP8, fp8),
  'fp8, one scale': ({**FP8, 'weight_block_size': None, 'activation_scheme': 'static'}, fp8_whole),
  'int8': (compressed('int-quantized'), int8),
  'int8, naive': (compressed('naive-quantized'), int8),
  'int8 with zeros': (compressed('int-quantized'), int8_with_zeros),
  'float8 of outputs': (
    compressed('float-quantized'), lambda rng, *sizes: float8(rng, *sizes, (1, sizes[1])),
  ),
  'float8 in blocks': (compressed('float-quantized', block_structure=[24, 20]), float8),
  'packed, 4 bits': (compressed('pack-quantized'), packed),
  'packed, 8 bits': (compressed('pack-quantized'), lambda *sizes: packed(*sizes, bits=8)),
  'packed with zeros': (compressed('pack-quantized'), lambda *s: packed(*s, has_zeros=True)),
  'packed, sorted': (compressed('pack-quantized'), packed_sorted),
  'gptq': (GPTQ, gptq),
  'gptq, sorted': ({**GPTQ, 'desc_act': True}, lambda *sizes: gptq(*sizes, is_sorted=True)),
  'gptq, one group': ({**GPTQ, 'group_size': -1}, lambda *sizes: gptq(*sizes, size=-1)),
  'gptq, 8 bits': ({**GPTQ, 'bits': 8}, lambda *sizes: gptq(*sizes, bits=8)),
  'gptq, second': ({**GPTQ, 'checkpoint_format': 'gptq_v2'}, lambda *s: gptq(*s, less=0)),
  'awq': (AWQ, awq),
}  # fmt: skip


def made(folder, case, linear=LINEAR, **changes):
  """Writes a quantized folder, and the same weights in floats next to it. Returns both."""
  quantization, pack = CASES[case]
  rng = np.random.default_rng(0)
  shapes = {'model.embed_tokens': (40, 32), 'model.norm': (32,), 'lm_head': (40, 32)}
  stored, plain = {}, {}
  layer = 'model.layers.0'
  shapes |= {f'{layer}.{at}_layernorm': (32,) for at in ('input', 'post_attention')}
  for name, shape in linear.items():
    parts, value = pack(rng, *shape)
    if f'{layer}.{name}' == PLAIN:
      parts = {'weight': value}
    stored |= {f'{layer}.{name}.{part}': np.ascontiguousarray(x) for part, x in parts.items()}
    plain[f'{layer}.{name}.weight'] = np.ascontiguousarray(value)
  floats = {
    f'{name}.weight': rng.standard_normal(shape, np.float32) / 5 for name, shape in shapes.items()
  }
  both = folder / 'quantized', folder / 'plain'
  for path, tensors in zip(both, (stored, plain), strict=True):
    path.mkdir()
    config = {**LLAMA, **changes}
    if tensors is stored:
      config['quantization_config'] = quantization
    (path / 'config.json').write_text(json.dumps(config))
    write(path / 'model.safetensors', {**tensors, **floats})
  return both


def check_equal(params, expected):
  jax.tree.map(np.testing.assert_array_equal, params, expected)


@pytest.mark.parametrize('case', CASES)
def test_a_matrix_is_what_its_numbers_mean_and_a_part_is_read_by_itself(
  case, tmp_path, monkeypatch
):
  """Reads a whole matrix in several pieces."""
  monkeypatch.setattr(dequantized, 'BLOCK', 7 * 32)
  theirs, plain = made(tmp_path, case)
  config = read_json(theirs / 'config.json')
  tensors = quantized.open_tensors(theirs, config, weight_files.find_files(theirs))
  for name, value in load_file(plain / 'model.safetensors').items():
    np.testing.assert_array_equal(tensors[name][:], value)
  tensors.check()
  name = 'model.layers.0.mlp.down_proj.weight'
  matrix, value = tensors[name], load_file(plain / 'model.safetensors')[name]
  assert tensors[name] is matrix and matrix.shape == value.shape and matrix.ndim == 2
  np.testing.assert_array_equal(matrix[3:30, 5:], value[3:30, 5:])
  cut = matrix.rows(5, 29).reshape(3, 8, 48)
  np.testing.assert_array_equal(cut[1:, 2:3, ::2], value[5:29].reshape(3, 8, 48)[1:, 2:3, ::2])
  assert cut[2:2].shape == (0, 8, 48)


@pytest.mark.parametrize(
  ('case', 'linear'),
  [
    ('fp8 in blocks', FUSED),
    ('int8', LINEAR),
    ('gptq, sorted', FUSED),
    ('awq', LINEAR),
    ('packed with zeros', FUSED),
  ],
)
def test_a_folder_is_read_as_the_same_in_floats(case, linear, tmp_path):
  """Phi's queries, keys and values are one matrix, and no cut is at the edge of a block."""
  kind = {'model_type': 'phi3', 'pad_token_id': 0} if linear is FUSED else {}
  theirs, plain = made(tmp_path, case, linear, **kind)
  (model, params), (_, expected) = fd.load(theirs), fd.load(plain)
  assert model.config.dtype == 'float32'
  check_equal(params, expected)


def test_they_decode_as_the_same_in_floats_in_bfloat16(tmp_path):
  """The type where config.json names none."""
  both = made(tmp_path, 'fp8 in blocks', dtype=None)
  (model, params), (_, expected) = fd.load(both[0]), fd.load(both[1], 'bfloat16')
  assert model.config.dtype == 'bfloat16'
  check_equal(params, expected)
  one, other = (
    fd.decode(model, each, [[3, 4, 5]], fd.Greedy(), max_len=6) for each in (params, expected)
  )
  np.testing.assert_array_equal(one.tokens, other.tokens)


@pytest.mark.parametrize(
  ('linear', 'on_mesh'), [(LINEAR, True), (FUSED, False)], ids=['alone', 'fused']
)
def test_int8_stays_as_it_is_stored(linear, on_mesh, tmp_path):
  kind = {'model_type': 'phi3', 'pad_token_id': 0} if linear is FUSED else {}
  theirs, plain = made(tmp_path, 'int8', linear, **kind)
  mesh = make_mesh(MeshConfig(data=1, model=1)) if on_mesh else None
  model, params = fd.load(theirs, 'int8', mesh)
  stored = {}
  for name, tensor in stored_in(theirs / 'model.safetensors').items():
    stored[name.removeprefix('model.layers.0.')] = tensor[:]
  layer = params['layer_0']
  assert isinstance(layer['down']['kernel'], Quantized)
  np.testing.assert_array_equal(layer['down']['kernel'].values, stored['mlp.down_proj.weight'])
  scale = stored['mlp.down_proj.weight_scale'].astype(np.float32)[:, 0]
  np.testing.assert_array_equal(layer['down']['kernel'].scale, scale)
  if linear is LINEAR:
    values = np.concatenate([stored[f'mlp.{name}_proj.weight'] for name in ('gate', 'up')])
    scale = np.concatenate([stored[f'mlp.{name}_proj.weight_scale'] for name in ('gate', 'up')])
  else:
    values, scale = stored['mlp.gate_up_proj.weight'], stored['mlp.gate_up_proj.weight_scale']
  np.testing.assert_array_equal(layer['gate_up']['kernel'].values, values.reshape(2, 48, 32))
  np.testing.assert_array_equal(
    layer['gate_up']['kernel'].scale, scale.astype(np.float32).reshape(2, 48)
  )
  # everything else is as for any folder, also the layer that is stored in floats
  expected = fd.quantize(model, fd.load(plain)[1])
  for part in ('embedding', 'norm'):
    check_equal(params[part], expected[part])
  check_equal(layer['out'], expected['layer_0']['out'])
  assert jax.tree.structure(params) == jax.tree.structure(expected)


METHODS = {
  'bitsandbytes': ({'quant_method': 'bitsandbytes', 'load_in_4bit': True}, "quant_method='bitsand"),
  'none': ({'bits': 4}, 'quantized by quant_method=None, .* known are fp8, compressed-tensors'),
  'a known word': ('fp8', "quant_method='fp8', which is not supported"),
  'gemv': ({**AWQ, 'version': 'gemv'}, 'by awq, gemv of 4 bits, .* known are gemm of 4 bits'),
  '3 bits': ({**GPTQ, 'bits': 3}, 'gptq, gptq of 3 bits, which is not supported'),
  'nvfp4': (compressed('nvfp4-pack-quantized'), 'by compressed-tensors, nvfp4-pack-quantized'),
  'sparse': ({**compressed('pack-quantized'), 'sparsity_config': {'format': 'sparse-24-bitmask'}},
    'sparse-24-bitmask'),
  'rotated': ({**compressed('pack-quantized'), 'transform_config': {'a': 1}}, 'transform_config'),
  'a bad block': ({**FP8, 'weight_block_size': [0, 128]}, r'weight_block_size\[0\]=0 is not poss'),
}  # fmt: skip


@pytest.mark.parametrize('case', METHODS)
def test_other_formats_are_refused_by_name_before_anything_is_read(case, tmp_path, monkeypatch):
  quantization, message = METHODS[case]
  (tmp_path / 'config.json').write_text(json.dumps({**LLAMA, 'quantization_config': quantization}))
  monkeypatch.setattr(Stored, '__getitem__', lambda self, index: pytest.fail('a tensor is read'))
  with pytest.raises(fd.UserError, match=message):
    fd.load(tmp_path)


NAME = 'model.layers.0.self_attn.q_proj.'
WRONG = {  # a case, a part, what it becomes (None: left out), and the sentence
  'no scale': ('fp8 in blocks', 'weight_scale_inv', None, 'weight is float8_e4m3fn, and has no sc'),
  'no numbers': ('gptq', 'qweight', None, r'lacks model\.layers\.0\.self_attn\.q_proj\.weight'),
  'no zeros': ('awq', 'qzeros', None, 'q_proj has qweight, scales, and lacks qzeros: copy the'),
  'few scales': ('fp8 in blocks', 'weight_scale_inv', np.ones((1, 2), np.float32),
    r'weight_scale_inv is float32\[1, 2\], .* mean .*, \[2, 2\]: they do not belong together'),
  'a wrong shape': ('packed, 4 bits', 'weight_shape', np.array([32, 2**40]), r'is int32\[32, 4\]'),
  'floats': ('int8', 'weight', np.ones((32, 32), np.float32), r'is float32\[32, 32\], .* float8'),
  'a group too many': ('gptq', 'g_idx', np.full(32, 2, np.int32), 'has a group 2, and there are 2'),
}  # fmt: skip


@pytest.mark.parametrize('case', WRONG)
def test_parts_that_do_not_belong_together_are_named(case, tmp_path):
  of, part, value, message = WRONG[case]
  theirs, _ = made(tmp_path, of)
  stored = stored_in(theirs / 'model.safetensors')
  tensors = {name: x[:] for name, x in stored.items()}
  tensors.pop(NAME + part)
  if value is not None:
    tensors[NAME + part] = value
  write(theirs / 'model.safetensors', tensors)
  with pytest.raises(fd.UserError, match=message):
    fd.load(theirs)


def test_another_size_in_config_is_an_error_as_in_any_folder(tmp_path):
  theirs, _ = made(tmp_path, 'gptq', intermediate_size=56)
  with pytest.raises(
    fd.UserError, match=r'gate_proj\.weight is of shape \[48, 32\], .* \[56, 32\]'
  ):
    fd.load(theirs)
