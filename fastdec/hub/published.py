"""Writes drafts that were trained here in published formats, for vLLM, SGLang and others.

  EAGLE-3   fc, midlayer, norm, lm_head, d2t: SafeAILab's form, which SpecForge writes too
  DFlash    z-lab's form, which has no vocabulary: it uses the target's embeddings and words

`hub.drafts` reads both back as the same network and parameters. The temperatures of the guesses
are lost, since the formats have no place for them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fastdec.errors import UserError
from fastdec.files import PathLike, place, whole_folder, write_json
from fastdec.folders.stored import write
from fastdec.heads.block import BlockNetwork
from fastdec.heads.eagle import EagleNetwork
from fastdec.hub.weight_files import SINGLE
from fastdec.models.api import Params
from fastdec.models.lm import LMConfig
from fastdec.models.taps import number_taps
from fastdec.struct import bound

SCALINGS = {  # ropes with a form in rope_scaling: its fields by ours
  'linear': {'factor': 'rope_factor'},
  'llama3': {
    'factor': 'rope_factor', 'low_freq_factor': 'rope_low', 'high_freq_factor': 'rope_high',
    'original_max_position_embeddings': 'rope_original',
  },
}  # fmt: skip
PLAIN = LMConfig()  # what else layers may differ in has no place in config.json of a draft
FREE = (
  'vocab_size', 'd_model', 'd_ff', 'layers', 'heads', 'key_heads', 'head_width', 'norm_epsilon',
  'rope', 'rope_theta', 'rope_factor', 'rope_low', 'rope_high', 'rope_original', 'qk_norm', 'tied',
  'max_positions', 'bos_id', 'eos_ids', 'pad_id', 'suppressed_ids', 'dropout', 'dtype',
)  # fmt: skip


def publish_draft(folder: PathLike, draft: tuple[Any, Params], target_layers: int) -> None:
  """Writes a draft as its kind is published.

  Args:
    folder: a new one.
    draft: an `EagleNetwork` with an entry 'beside' and its own words, or a `BlockNetwork` with
      entry='masks' and the target's words, with layers of Llama or Qwen3.
    target_layers: number of layers of the model that it drafts for.

  Raises:
    UserError: the draft has no published form, or the folder exists.
  """
  path = place(folder)
  module, params = bound(draft, 'draft')
  if path.exists():
    raise UserError(f'{path} is there already: give a new folder')
  is_eagle3 = isinstance(module, EagleNetwork) and module.entry == 'beside'
  is_dflash = isinstance(module, BlockNetwork) and module.entry == 'masks' and module.drops_first
  lacks = None
  if not (is_eagle3 or is_dflash) or module.norms_taps or module.norms_joined:
    lacks = 'only fastdec has such a network: train it with --kind=eagle3 or --kind=dflash'
  elif is_eagle3 and 'output' not in params:
    lacks = 'EAGLE-3 has words of its own: train it with --words'
  elif is_dflash and ('output' in params or module.markov):
    lacks = 'DFlash has no words of its own, and no Markov bias: train it with --words=0'
  elif not isinstance(module.layers, LMConfig) or module.layers.qk_norm == is_eagle3:
    lacks = 'its layers are not those of Llama (EAGLE-3) or Qwen3 (DFlash)'
  if lacks is None:
    layers: Any = module.layers
    for name, value in vars(layers).items():
      if name not in FREE and value != getattr(PLAIN, name):
        lacks = f'its layers have {name}={value!r}'
    if layers.rope not in ('default', *SCALINGS):
      lacks = f'its layers have rope={layers.rope!r}'
  if lacks is not None:
    raise UserError(f'this draft has no published form: {lacks}')
  write_layout: Any = _dflash
  if is_eagle3:
    write_layout = _eagle3
  config, tensors = write_layout(module, params, target_layers)
  with whole_folder(path) as partial:
    write(partial / SINGLE, tensors)
    write_json(partial / 'config.json', config)


def _eagle3(module: EagleNetwork, params: Params, layers: int) -> tuple[dict[str, Any], Params]:
  network, c = params['network'], module.layers
  assert isinstance(c, LMConfig)
  config = _layers_config(c) | {
    'architectures': ['LlamaForCausalLMEagle3'],
    'model_type': 'llama',
    'num_hidden_layers': 1,
    'draft_vocab_size': len(params['output']),
    'norm_before_residual': module.keeps_normed,
    'norm_output': module.norms_last,
    'target_hidden_size': module.d_target,
  }
  taps = number_taps(module.taps, layers)
  if taps != (2, layers // 2, layers - 3):  # `RULE`, which needs no name
    ids = [tap - 1 for tap in taps]
    config['eagle_config'] = {'eagle_aux_hidden_state_layer_ids': ids}
  tensors = _layer(c, network['tower']['layer_0'], 'midlayer.') | {
    'fc.weight': _flat(network['make_features']['fuse']['kernel']),
    'midlayer.input_layernorm.weight': network['embedding_norm']['scale'],
    'midlayer.hidden_norm.weight': network['feature_norm']['scale'],
    'norm.weight': network['norm']['scale'],
    'lm_head.weight': params['output'],
  }
  if 'ids' in params:
    ids = np.asarray(params['ids'], np.int64)
    has_word = np.zeros(module.vocab_size, bool)
    has_word[ids] = True
    tensors |= {'d2t': ids - np.arange(len(ids)), 't2d': has_word}
  return config, tensors


def _dflash(module: BlockNetwork, params: Params, layers: int) -> tuple[dict[str, Any], Params]:
  network, c = params['network'], module.layers
  assert isinstance(c, LMConfig)
  config = _layers_config(c) | {
    'architectures': ['DFlashDraftModel'],
    'model_type': 'qwen3',
    'num_hidden_layers': c.layers,
    'layer_types': ['full_attention'] * c.layers,
    'num_target_layers': layers,
    'block_size': module.k,
    'is_causal': False,
    'dflash_config': {
      'mask_token_id': module.unknown_id,
      'target_layer_ids': [tap - 1 for tap in number_taps(module.taps, layers)],
    },
  }
  tensors = {
    'fc.weight': _flat(network['make_features']['fuse']['kernel']),
    'hidden_norm.weight': network['make_features']['fused_norm']['scale'],
    'norm.weight': network['norm']['scale'],
  }
  for i in range(c.layers):
    tensors |= _layer(c, network['tower'][f'layer_{i}'], f'layers.{i}.')
  return config, tensors


def _layers_config(c: LMConfig) -> dict[str, Any]:
  """Returns the fields of config.json that layers of Llama and Qwen3 share."""
  config: dict[str, Any] = {
    'vocab_size': c.vocab_size,
    'hidden_size': c.d_model,
    'intermediate_size': c.d_ff,
    'num_attention_heads': c.heads,
    'num_key_value_heads': c.kv_heads,
    'head_dim': c.width,
    'hidden_act': c.activation,
    'rms_norm_eps': c.norm_epsilon,
    'rope_theta': c.rope_theta,
    'rope_scaling': None,
    'attention_bias': False,
    'mlp_bias': False,
    'tie_word_embeddings': False,
    'max_position_embeddings': c.max_positions or 32_768,
    'torch_dtype': 'float32',
  }
  if c.rope in SCALINGS:
    fields = {theirs: getattr(c, ours) for theirs, ours in SCALINGS[c.rope].items()}
    config['rope_scaling'] = {'rope_type': c.rope, **fields}
  return config


def _layer(c: LMConfig, layer: Mapping[str, Any], prefix: str) -> Params:
  """Returns a layer's tensors, [outputs, inputs]; the inverse of `lm_tensors.layer_params`."""
  tensors, attention = {}, f'{prefix}self_attn.'
  tensors[f'{attention}q_proj.weight'] = _flat(layer['q']['kernel'])
  for name, kernel in zip(('k_proj', 'v_proj'), layer['kv']['kernel'], strict=True):
    tensors[f'{attention}{name}.weight'] = _flat(kernel)
  tensors[f'{attention}o_proj.weight'] = _flat(layer['out']['kernel'])
  for name, kernel in zip(('gate_proj', 'up_proj'), layer['gate_up']['kernel'], strict=True):
    tensors[f'{prefix}mlp.{name}.weight'] = _flat(kernel)
  tensors[f'{prefix}mlp.down_proj.weight'] = _flat(layer['down']['kernel'])
  tensors[f'{prefix}post_attention_layernorm.weight'] = layer['mlp_norm']['scale']
  if 'attention_norm' in layer:
    tensors[f'{prefix}input_layernorm.weight'] = layer['attention_norm']['scale']
  if c.qk_norm:
    tensors[f'{attention}q_norm.weight'] = layer['q_norm']['scale']
    tensors[f'{attention}k_norm.weight'] = layer['k_norm']['scale']
  return tensors


def _flat(kernel: Any) -> np.ndarray:
  """Returns a kernel as a matrix [outputs, inputs]."""
  array = np.asarray(kernel, np.float32)
  return array.reshape(-1, array.shape[-1])
