"""Writes GGUF files as llama.cpp's converter does, from what Hugging Face folders hold; the names
of tensors are those of the package `gguf`, not ours."""

import json
import re

import numpy as np
from gguf import GGUFWriter, RopeScalingType, get_tensor_name_map
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES, GGMLQuantizationType
from gguf.quants import quantize
from safetensors.numpy import load_file

ARCHITECTURES = {  # of model_types that are called otherwise
  'mistral': 'llama', 'mixtral': 'llama', 'qwen3_moe': 'qwen3moe', 'gemma3_text': 'gemma3',
  'gpt_oss': 'gpt-oss',
}  # fmt: skip
PERMUTED = ('llama', 'granite', 'smollm3')
EXPERT = re.compile(r'(.*)\.experts\.(\d+)\.(\w+)\.weight')
EXPERT_NAMES = {'w1': 'gate', 'w3': 'up', 'w2': 'down'}


def read_folder(folder):
  """Returns config.json, and all tensors in float32."""
  tensors = {}
  for file in sorted(folder.glob('*.safetensors')):
    tensors |= load_file(file)
  config = json.loads((folder / 'config.json').read_text())
  return config, {name: x.astype(np.float32) for name, x in tensors.items()}


def write_model(path, config, tensors, kind='F32', vocabulary=None, adds=None, splits=0):
  """Writes a model as a GGUF file; 1-axis tensors stay in float32.

  kind: type of the matrices. vocabulary: a function that writes a tokenizer. adds: more metadata.
  splits: tensors of each of several files (0: one file).
  """
  arch = ARCHITECTURES.get(config['model_type'], config['model_type'])
  writer = GGUFWriter(path, arch, split_max_tensors=splits)
  _write_sizes(writer, arch, config)
  if vocabulary is not None:
    vocabulary(writer)
  for name, value in (adds or {}).items():
    write = {int: writer.add_uint32, str: writer.add_string, float: writer.add_float32}
    write.get(type(value), writer.add_array)(name, value)
  kind = GGMLQuantizationType[kind]
  for name, x in converted(arch, config, tensors).items():
    of_tensor = kind if x.ndim > 1 and name.endswith('weight') else GGMLQuantizationType.F32
    writer.add_tensor(name, quantize(np.ascontiguousarray(x), of_tensor), raw_dtype=of_tensor)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


def _write_sizes(writer, arch, config):
  heads = config['num_attention_heads']
  width = config.get('head_dim') or config['hidden_size'] // heads
  writer.add_block_count(config['num_hidden_layers'])
  writer.add_context_length(config['max_position_embeddings'])
  writer.add_embedding_length(config['hidden_size'])
  writer.add_feed_forward_length(config['intermediate_size'])
  writer.add_head_count(heads)
  writer.add_head_count_kv(config['num_key_value_heads'])
  writer.add_layer_norm_rms_eps(config['rms_norm_eps'])
  if config.get('head_dim') and arch != 'granite':
    writer.add_key_length(width)
    writer.add_value_length(width)
  if not arch.startswith('gemma'):
    writer.add_rope_dimension_count(width)
  if config.get('sliding_window'):
    writer.add_sliding_window(config['sliding_window'])
  if config.get('num_local_experts'):
    writer.add_expert_count(config['num_local_experts'])
    writer.add_expert_used_count(config['num_experts_per_tok'])
    if arch != 'llama':
      writer.add_expert_feed_forward_length(
        config.get('moe_intermediate_size', config['intermediate_size'])
      )
  for field, write in {
    'attention_multiplier': writer.add_attention_scale,
    'embedding_multiplier': writer.add_embedding_scale,
    'residual_multiplier': writer.add_residual_scale,
    'logits_scaling': writer.add_logit_scale,
    'attn_logit_softcapping': writer.add_attn_logit_softcapping,
    'final_logit_softcapping': writer.add_final_logit_softcapping,
  }.items():
    if config.get(field):
      write(config[field])
  rope = config['rope_parameters']
  if 'full_attention' in rope:
    writer.add_rope_freq_base_swa(rope['sliding_attention']['rope_theta'])
    kinds = [kind == 'sliding_attention' for kind in config['layer_types']]
    writer.add_sliding_window_pattern(kinds)
    rope = rope['full_attention']
  writer.add_rope_freq_base(rope['rope_theta'])
  if rope.get('rope_type') in ('linear', 'yarn'):
    writer.add_rope_scaling_type(RopeScalingType(rope['rope_type']))
    writer.add_rope_scaling_factor(rope['factor'])
  if rope.get('rope_type') == 'yarn':
    writer.add_rope_scaling_orig_ctx_len(rope['original_max_position_embeddings'])
    writer.add_rope_scaling_yarn_beta_fast(rope['beta_fast'])
    writer.add_rope_scaling_yarn_beta_slow(rope['beta_slow'])
  if arch == 'phi3':
    original = config['original_max_position_embeddings']
    scale = config['max_position_embeddings'] / original
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(scale) / np.log(original))))


def converted(arch, config, tensors):
  """Returns the tensors by llama.cpp's names, as its converter changes them."""
  kind = next(key for key, name in MODEL_ARCH_NAMES.items() if name == arch)
  names = get_tensor_name_map(kind, config['num_hidden_layers'])
  of_llama = get_tensor_name_map(MODEL_ARCH.LLAMA, config['num_hidden_layers'])
  renamed, experts = {}, {}
  for name, x in tensors.items():
    if name.endswith('inv_freq'):
      continue
    match = EXPERT.fullmatch(name)
    if match is not None:
      prefix, number, part = match.groups()
      part = EXPERT_NAMES.get(part, part.removesuffix('_proj'))
      layer = prefix.split('.')[2]
      experts.setdefault(f'blk.{layer}.ffn_{part}_exps.weight', {})[int(number)] = x
      continue
    if name.startswith(('blk.', 'rope_')):
      renamed[name] = x
      continue
    if '.experts.' in name:
      renamed |= _of_gpt_oss(name, x)
      continue
    if name.endswith('sinks'):
      name += '.weight'
    ends = ('.weight', '.bias')
    new = names.get_name(name, ends) or of_llama.get_name(
      name, ends
    )  # a dense layer in a model with experts
    assert new is not None, name
    if arch in PERMUTED and '.attn_q.' in new:
      x = permuted(x, config['num_attention_heads'])
    if arch in PERMUTED and '.attn_k.' in new:
      x = permuted(x, config['num_key_value_heads'])
    if arch.startswith('gemma') and new.endswith('norm.weight'):
      x = x + 1
    renamed[new] = x
  for name, parts in experts.items():
    renamed[name] = np.stack([parts[i] for i in sorted(parts)])
  rope = config['rope_parameters']
  if rope.get('rope_type') == 'longrope':
    for length in ('long', 'short'):
      factors = np.array(rope[f'{length}_factor'], np.float32)
      renamed[f'rope_factors_{length}.weight'] = factors
  return renamed


def _of_gpt_oss(name, x):
  layer = name.split('.')[2]
  if 'gate_up_proj' not in name:
    end = 'bias' if name.endswith('bias') else 'weight'
    x = x if end == 'bias' else x.swapaxes(-1, -2)
    return {f'blk.{layer}.ffn_down_exps.{end}': x}
  if name.endswith('bias'):
    parts, end = (x[:, ::2], x[:, 1::2]), 'bias'
  else:
    x, end = x.swapaxes(-1, -2), 'weight'
    parts = x[:, ::2], x[:, 1::2]
  return {
    f'blk.{layer}.ffn_{part}_exps.{end}': half
    for part, half in zip(('gate', 'up'), parts, strict=True)
  }


def permuted(x, heads):
  return x.reshape(heads, 2, len(x) // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
