"""Tensors of Llama and families like it, by Hugging Face's names, for `models/lm.py`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fastdec.folders.stored import Mapped, Stacked
from fastdec.hub.tensors import are_equal, dense, norm, shaped, stack_params, stacked_dense
from fastdec.models.api import Params
from fastdec.models.experts import ExpertsConfig
from fastdec.models.lm import LM, LMConfig

NORMS = {  # names of a layer's norms, by `LMConfig.norms`
  'before': {'attention_norm': 'input_layernorm', 'mlp_norm': 'post_attention_layernorm'},
  'after': {
    'attention_out_norm': 'post_attention_layernorm', 'mlp_out_norm': 'post_feedforward_layernorm',
  },
  'both': {
    'attention_norm': 'input_layernorm', 'mlp_norm': 'pre_feedforward_layernorm',
    'attention_out_norm': 'post_attention_layernorm', 'mlp_out_norm': 'post_feedforward_layernorm',
  },
}  # fmt: skip


def params_of(model: LM, tensors: Mapping[str, Any]) -> Params:
  """Returns the parameters from tensors by their Hugging Face names, matrices [outputs, inputs].

  A copy of a tied embedding is left out. An output matrix that differs from the embedding is used,
  even if the config says that the two are tied.

  Raises:
    UserError: a tensor's shape does not fit the config.
  """
  c = model.config
  size = (c.vocab_size, c.d_model)
  params: dict[str, Any] = {'embedding': shaped(tensors, 'model.embed_tokens.weight', *size)}
  params['norm'] = norm(tensors, 'model.norm', c.d_model)
  if not c.tied or 'lm_head.weight' in tensors:
    output = shaped(tensors, 'lm_head.weight', *size)
    if not c.tied or not are_equal(output, params['embedding']):
      params['output'] = output
  for i in range(c.layers):
    params[f'layer_{i}'] = layer_params(c, tensors, f'model.layers.{i}.', is_sparse=c.sparse[i])
  return params


def layer_params(
  c: LMConfig,
  tensors: Mapping[str, Any],
  prefix: str,
  reads: int | None = None,
  is_normed: bool = True,
  is_sparse: bool = False,
) -> Params:
  """Returns the parameters of a layer, whose names begin with `prefix`.

  Args:
    c: the sizes.
    tensors: by their names.
    prefix: up to the last dot.
    reads: width of the input of queries, keys and values (None: d_model).
    is_normed: the layer norms that input; first layers of drafts differ in both.
    is_sparse: it has experts.
  """
  d, queries, keys = c.d_model, c.heads * c.width, c.kv_heads * c.width
  reads = reads or d
  attention, mlp = f'{prefix}self_attn.', f'{prefix}mlp.'
  layer: Params = {}
  if f'{attention}qkv_proj.weight' in tensors:  # Phi joins what others store separately
    qkv = shaped(tensors, f'{attention}qkv_proj.weight', queries + 2 * keys, reads)
    kv = qkv.rows(queries, queries + keys), qkv.rows(queries + keys, queries + 2 * keys)
    gate_up = shaped(tensors, f'{mlp}gate_up_proj.weight', 2 * c.d_ff, d)
    halves = gate_up.rows(0, c.d_ff), gate_up.rows(c.d_ff, 2 * c.d_ff)
    layer['q'] = {'kernel': qkv.rows(0, queries)}
    layer['kv'] = {'kernel': Stacked(kv)}
    layer['gate_up'] = {'kernel': Stacked(halves)}
    layer['down'] = dense(tensors, f'{mlp}down_proj', d, c.d_ff)
  else:
    key_value = (f'{attention}k_proj', f'{attention}v_proj')
    layer['q'] = dense(tensors, f'{attention}q_proj', queries, reads, c.qkv_bias)
    layer['kv'] = stacked_dense(tensors, key_value, keys, reads, c.qkv_bias)
  if is_sparse and c.experts is not None:
    layer['experts'] = _experts(c.experts, d, tensors, prefix)
  elif 'gate_up' not in layer:
    gate_up = (f'{mlp}gate_proj', f'{mlp}up_proj')
    layer['gate_up'] = stacked_dense(tensors, gate_up, c.d_ff, d, c.mlp_bias)
    layer['down'] = dense(tensors, f'{mlp}down_proj', d, c.d_ff, c.mlp_bias)
  layer['out'] = dense(tensors, f'{attention}o_proj', d, queries, c.out_bias)
  if c.sinks:
    layer['sinks'] = shaped(tensors, f'{attention}sinks', c.heads)
  for ours, theirs in NORMS[c.norms].items():
    if is_normed or ours != 'attention_norm':
      layer[ours] = norm(tensors, f'{prefix}{theirs}', d)
  if c.qk_norm:  # each head is normed
    layer['q_norm'] = norm(tensors, f'{attention}q_norm', c.width)
    layer['k_norm'] = norm(tensors, f'{attention}k_norm', c.width)
  elif c.joined_qk_norm:  # one norm spans all heads
    layer['q_norm'] = norm(tensors, f'{attention}q_norm', queries)
    layer['k_norm'] = norm(tensors, f'{attention}k_norm', keys)
  return layer


def _experts(c: ExpertsConfig, d: int, tensors: Mapping[str, Any], prefix: str) -> Params:
  """Returns the parameters of a layer's experts: each has its own tensors, or all share them."""
  joined = f'{prefix}mlp.experts.gate_up_proj'
  if joined in tensors and c.bias:
    return _gpt_oss_experts(c, d, tensors, f'{prefix}mlp.')
  if joined in tensors:  # as transformers 5 keeps Mixtral and Qwen3-MoE in memory
    gate_up = shaped(tensors, joined, c.count, 2 * c.d_ff, d)
    down = shaped(tensors, f'{prefix}mlp.experts.down_proj', c.count, d, c.d_ff)
    return {
      'router': shaped(tensors, f'{prefix}mlp.gate.weight', c.count, d),
      'gate_up': {'kernel': gate_up.reshape(c.count, 2, c.d_ff, d)},
      'down': {'kernel': down},
    }
  place, names = f'{prefix}mlp.', ('gate_proj', 'up_proj', 'down_proj')
  if f'{prefix}block_sparse_moe.gate.weight' in tensors:  # Mixtral
    place, names = f'{prefix}block_sparse_moe.', ('w1', 'w3', 'w2')
  gate_ups, downs = [], []
  for i in range(c.count):
    gate, up, down = (f'{place}experts.{i}.{name}' for name in names)
    gate_ups.append(stacked_dense(tensors, (gate, up), c.d_ff, d, c.bias))
    downs.append(dense(tensors, down, d, c.d_ff, c.bias))
  experts = {
    'router': shaped(tensors, f'{place}gate.weight', c.count, d),
    'gate_up': stack_params(gate_ups),
    'down': stack_params(downs),
  }
  if c.bias:
    experts['router_bias'] = shaped(tensors, f'{place}gate.bias', c.count)
  return experts


def _gpt_oss_experts(c: ExpertsConfig, d: int, tensors: Mapping[str, Any], prefix: str) -> Params:
  """Returns the experts of gpt-oss, which share tensors; kernels are stored [inputs, outputs]."""
  n, f = c.count, c.d_ff
  gate_up = shaped(tensors, f'{prefix}experts.gate_up_proj', n, d, 2 * f)
  gate_up_bias = shaped(tensors, f'{prefix}experts.gate_up_proj_bias', n, 2 * f)
  down = shaped(tensors, f'{prefix}experts.down_proj', n, f, d)
  dtype = gate_up.dtype
  return {
    'router': shaped(tensors, f'{prefix}router.weight', n, d),
    'router_bias': shaped(tensors, f'{prefix}router.bias', n),
    'gate_up': {
      'kernel': Mapped(gate_up, lambda x: _deinterleaved(x.swapaxes(1, 2)), dtype, (n, 2, f, d)),
      'bias': Mapped(gate_up_bias, _deinterleaved, dtype, (n, 2, f)),
    },
    'down': {
      'kernel': Mapped(down, lambda x: x.swapaxes(1, 2), dtype, (n, d, f)),
      'bias': shaped(tensors, f'{prefix}experts.down_proj_bias', n, d),
    },
  }


def _deinterleaved(x: np.ndarray) -> np.ndarray:
  """Separates alternating rows of gate and up into halves [n, 2, f, ...]."""
  return x.reshape(len(x), -1, 2, *x.shape[2:]).swapaxes(1, 2)
