"""Tensors of Llama and families like it, by Hugging Face's names, for `models/lm.py`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fastdec.folders.stored import Mapped, Stacked
from fastdec.hub.tensors import are_equal, shaped
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
  whatever the config says.

  Raises:
    UserError: a tensor of another shape than the config means.
  """
  c = model.config
  size = (c.vocab_size, c.d_model)
  params: dict[str, Any] = {'embedding': shaped(tensors, 'model.embed_tokens.weight', *size)}
  params['norm'] = {'scale': shaped(tensors, 'model.norm.weight', c.d_model)}
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
  d, queries, keys, reads = c.d_model, c.heads * c.width, c.kv_heads * c.width, reads or c.d_model

  def norm(name, size):
    return {'scale': shaped(tensors, f'{prefix}{name}.weight', size)}

  def dense(has_bias: bool, outputs: int, inputs: int, *names: str) -> Params:
    """Returns one projection, or several of one size as one."""

    def joined(part: str, *shape: int) -> Any:
      found = tuple(shaped(tensors, f'{prefix}{name}.{part}', *shape) for name in names)
      return found[0] if len(found) == 1 else Stacked(found)

    kernel = {'kernel': joined('weight', outputs, inputs)}
    return {**kernel, 'bias': joined('bias', outputs)} if has_bias else kernel

  layer: Params = {}
  fused = f'{prefix}self_attn.qkv_proj.weight'
  if fused in tensors:  # Phi
    qkv = shaped(tensors, fused, queries + 2 * keys, reads)
    layer['q'] = {'kernel': qkv.rows(0, queries)}
    kv = qkv.rows(queries, queries + keys), qkv.rows(queries + keys, queries + 2 * keys)
    layer['kv'] = {'kernel': Stacked(kv)}
    gate_up = shaped(tensors, f'{prefix}mlp.gate_up_proj.weight', 2 * c.d_ff, d)
    halves = gate_up.rows(0, c.d_ff), gate_up.rows(c.d_ff, 2 * c.d_ff)
    layer['gate_up'] = {'kernel': Stacked(halves)}
    layer['down'] = dense(False, d, c.d_ff, 'mlp.down_proj')
  else:
    layer['q'] = dense(c.qkv_bias, queries, reads, 'self_attn.q_proj')
    layer['kv'] = dense(c.qkv_bias, keys, reads, 'self_attn.k_proj', 'self_attn.v_proj')
  if is_sparse and c.experts is not None:
    layer['experts'] = _experts(c.experts, d, tensors, prefix)
  elif 'gate_up' not in layer:
    layer['gate_up'] = dense(c.mlp_bias, c.d_ff, d, 'mlp.gate_proj', 'mlp.up_proj')
    layer['down'] = dense(c.mlp_bias, d, c.d_ff, 'mlp.down_proj')
  layer['out'] = dense(c.out_bias, d, queries, 'self_attn.o_proj')
  if c.sinks:
    layer['sinks'] = shaped(tensors, f'{prefix}self_attn.sinks', c.heads)
  for ours, theirs in NORMS[c.norms].items():
    if is_normed or ours != 'attention_norm':
      layer[ours] = norm(theirs, d)
  if c.qk_norm or c.joined_qk_norm:
    layer['q_norm'] = norm('self_attn.q_norm', c.width if c.qk_norm else queries)
    layer['k_norm'] = norm('self_attn.k_norm', c.width if c.qk_norm else keys)
  return layer


def _experts(c: ExpertsConfig, d: int, tensors: Mapping[str, Any], prefix: str) -> Params:
  """Returns the parameters of a layer's experts: each has its own tensors, or all share them."""
  n, f = c.count, c.d_ff
  mixtral, fused = f'{prefix}block_sparse_moe.', f'{prefix}mlp.experts.'
  if f'{fused}gate_up_proj' in tensors:  # gpt-oss; its kernels are [inputs, outputs]
    router = f'{prefix}mlp.router.'
    rows = shaped(tensors, f'{fused}gate_up_proj', n, d, 2 * f)
    columns = shaped(tensors, f'{fused}down_proj', n, f, d)
    gate_up = Mapped(rows, lambda x: _apart(x.swapaxes(1, 2)), rows.dtype, (n, 2, f, d))
    down = Mapped(columns, lambda x: x.swapaxes(1, 2), rows.dtype, (n, d, f))
    of_rows = shaped(tensors, f'{fused}gate_up_proj_bias', n, 2 * f)
    return {
      'router': shaped(tensors, f'{router}weight', n, d),
      'router_bias': shaped(tensors, f'{router}bias', n),
      'gate_up': {'kernel': gate_up, 'bias': Mapped(of_rows, _apart, rows.dtype, (n, 2, f))},
      'down': {'kernel': down, 'bias': shaped(tensors, f'{fused}down_proj_bias', n, d)},
    }
  where, names = f'{prefix}mlp.', ('gate_proj', 'up_proj', 'down_proj')
  if f'{mixtral}gate.weight' in tensors:
    where, names = mixtral, ('w1', 'w3', 'w2')
  each: list[list[Any]] = [[], []]
  for i in range(n):
    gate, up, down = (f'{where}experts.{i}.{name}.weight' for name in names)
    each[0].append(Stacked((shaped(tensors, gate, f, d), shaped(tensors, up, f, d))))
    each[1].append(shaped(tensors, down, d, f))
  return {
    'router': shaped(tensors, f'{where}gate.weight', n, d),
    'gate_up': {'kernel': Stacked(tuple(each[0]))},
    'down': {'kernel': Stacked(tuple(each[1]))},
  }


def _apart(x: np.ndarray) -> np.ndarray:
  """Returns rows of gates and of the rest, which take turns, as two halves [n, 2, f, ...]."""
  return x.reshape(len(x), -1, 2, *x.shape[2:]).swapaxes(1, 2)
