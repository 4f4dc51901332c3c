"""Published EAGLE-1, -2 and -3 (Li et al. 2024, 2025), in five spellings, and P-EAGLE (2026).

  fc, layers.0 without input_layernorm             EAGLE-1 and -2 (SafeAILab, HASS), one network
  fc, layers.0, norm, embed_tokens                 EAGLE-1 and -2 of NeMo Automodel
  fc, midlayer, norm, lm_head, d2t                 EAGLE-3 of SafeAILab and of SpecForge
  fc, layers.i, norm, lm_head, embed_tokens, d2t   EAGLE-3 of speculators; config.json nests layers
  fc, layers.0, norm, lm_head, embed_tokens        EAGLE-3 of DeepSpec; taps numbered as in DFlash
  model.fc, model.layers.i, model.norm, lm_head    EAGLE-3 of NeMo Automodel
  layers.i, ..., mask_hidden                       P-EAGLE: speculators, SpecForge, Automodel

Their configs mean what their code reads: SafeAILab/EAGLE at cb7e084, SpecForge at a6b6b02,
speculators at c05b95b, DeepSpec at afdfa7c, NeMo Automodel at 36044ad.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from fastdec.errors import UserError
from fastdec.fields import Between, Layers, Size, Token
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.parallel import ParallelNetwork
from fastdec.hub.draft_parts import (
  check_no_taps,
  draft_layers,
  read_architectures,
  taps_after,
  vocabulary,
)
from fastdec.hub.families import read_fields
from fastdec.hub.lm_tensors import layer_params
from fastdec.hub.tensors import dense, norm, shaped
from fastdec.models.api import Params
from fastdec.models.lm import LMConfig
from fastdec.models.taps import RULE, Taps, number_taps

UnreadDraft = tuple[EagleNetwork | ParallelNetwork, Params]  # network and parameters
# keys that the code of SafeAILab and SpecForge never reads
IGNORED = {'attention_bias': False, 'mlp_bias': False}
AUTOMODEL = 'LlamaEagleDraftModel'  # the class of its EAGLE-1


@dataclasses.dataclass(frozen=True)
class Eagle1Fields:
  """Fields of EAGLE-1's config.json that do not describe layers."""

  bias: bool = True  # of fc; older files have it without this field
  qkv_bias: bool | None = False
  # Automodel, whose config.json is else the target's
  fc_bias: bool | None = False
  draft_num_hidden_layers: Layers | None = None


@dataclasses.dataclass(frozen=True)
class TapFields:
  """Fields of `eagle_config`."""

  eagle_aux_hidden_state_layer_ids: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Eagle3Fields:
  """Fields of EAGLE-3's config.json that describe neither layers nor the vocabulary."""

  target_hidden_size: Size | None = None
  norm_before_residual: bool | None = False
  norm_before_fc: bool | None = False
  fc_norm: bool | None = False
  norm_output: bool | None = None
  eagle_aux_hidden_state_layer_ids: tuple[int, ...] | None = None  # k: the input of layer k
  eagle_config: TapFields | None = None  # k: the output of layer k
  target_layer_ids: tuple[int, ...] | None = None  # DeepSpec. k: the output of layer k
  num_target_layers: Size | None = None


@dataclasses.dataclass(frozen=True)
class ParallelFields:
  """Fields of P-EAGLE's config.json: names of the mask's id, of which the first that is there
  counts, and of the number of guesses."""

  mask_token_id: Token | None = None
  dspark_noise_token_id: Token | None = None
  pard_token: Token | None = None
  ptd_token_id: Token | None = None
  speculative_tokens: Annotated[int, Between(1, 998)] | None = None
  num_depths: Annotated[int, Between(1, 998)] = 7


def eagle1(
  config: Mapping[str, Any], tensors: Mapping[str, Any], dtype: str, taps: Taps | None
) -> UnreadDraft:
  """Reads EAGLE-1 and -2, which use the target's last hidden state and vocabulary projection."""
  check_no_taps(taps)
  fields = read_fields(Eagle1Fields, config)
  is_whole = AUTOMODEL in read_architectures(config)  # its layers have all norms
  if is_whole:
    depth = fields.draft_num_hidden_layers or config.get('num_hidden_layers')
    config = {**config, 'num_hidden_layers': depth, 'sliding_window': None}
    layers, join_bias = draft_layers('llama', config, dtype), bool(fields.fc_bias)
    if fields.qkv_bias:
      layers = dataclasses.replace(layers, qkv_bias=True)
  else:
    join_bias = fields.bias
    layers = _layers(config, tensors, dtype, 'layers.0.', qkv_bias=bool(fields.qkv_bias))
  d = layers.d_model
  network = EagleNetwork(
    layers=layers,
    vocab_size=layers.vocab_size,
    d_target=d,
    norms_entry=False,
    join_bias=join_bias,
    norms_first=is_whole,
    norms_last=is_whole,
  )
  inner: Params = {'join': dense(tensors, 'fc', d, 2 * d, join_bias), 'tower': {}}
  for i in range(layers.layers):
    layer = layer_params(layers, tensors, f'layers.{i}.', is_normed=is_whole or i > 0)
    inner['tower'][f'layer_{i}'] = layer
  if is_whole:
    inner['norm'] = norm(tensors, 'norm', d)
  params: Params = {'network': inner}
  if 'embed_tokens.weight' in tensors:
    params['embedding'] = shaped(tensors, 'embed_tokens.weight', layers.vocab_size, d)
  return network, params


def eagle3(
  config: Mapping[str, Any], tensors: Mapping[str, Any], dtype: str, taps: Taps | None
) -> UnreadDraft:
  """Reads EAGLE-3 of SafeAILab and SpecForge: one layer, `midlayer`."""
  fields = read_fields(Eagle3Fields, config)
  layers = _layers({**config, 'num_hidden_layers': 1}, tensors, dtype, 'midlayer.')
  taps = taps or _outputs(fields)
  has_norm = fields.norm_output is not False  # absent means true
  if not has_norm:
    norm(tensors, 'norm', layers.d_model)  # the file still has one, which counts as used
  return _eagle3(
    config,
    fields,
    layers,
    tensors,
    taps,
    first='midlayer.',
    norms_last=has_norm,
    recycles_normed=False,
  )


def speculators_eagle3(
  config: Mapping[str, Any], tensors: Mapping[str, Any], dtype: str, taps: Taps | None
) -> UnreadDraft:
  """Reads EAGLE-3 and P-EAGLE of speculators: layers of Llama or of Qwen3."""
  fields = read_fields(Eagle3Fields, config)
  layers = nested_layers(config, dtype, ('llama', 'qwen3'))
  options: dict[str, Any] = {'recycles_normed': bool(fields.norm_output)}
  if config.get('speculators_model_type') == 'peagle':
    options = _block_options(config)
  return _eagle3(config, fields, layers, tensors, taps, **options)


def flat_eagle3(
  config: Mapping[str, Any], tensors: Mapping[str, Any], dtype: str, taps: Taps | None
) -> UnreadDraft:
  """Reads P-EAGLE of SpecForge, and EAGLE-3 and P-EAGLE of NeMo Automodel, whose config.json is the
  target's with more fields, but whose layers are Llama's without windows."""
  fields = read_fields(Eagle3Fields, config)
  changes: dict[str, Any] = {**IGNORED, 'parallel_drafting': False}
  is_parallel = True
  if 'LlamaEagle3DraftModel' in read_architectures(config):
    changes = {'sliding_window': None, 'parallel_drafting': False}
    is_parallel = bool(config.get('parallel_drafting'))
  options: dict[str, Any] = {'recycles_normed': bool(fields.norm_output)}
  if is_parallel:
    options = _block_options(config)
  else:
    changes['num_hidden_layers'] = 1
  layers = draft_layers('llama', {**config, **changes}, dtype)
  return _eagle3(config, fields, layers, tensors, taps or _outputs(fields), **options)


def _block_options(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the options of P-EAGLE's network: the mask, and the usual number of guesses."""
  flat = dict(config)
  speculators, methods = config.get('speculators_config'), None
  if isinstance(speculators, Mapping):
    methods = speculators.get('proposal_methods')
  first = methods[:1] if isinstance(methods, list) else []
  for part in (*first, config.get('dflash_config')):
    if isinstance(part, Mapping):
      flat |= part
  fields = read_fields(ParallelFields, flat)
  for name in ('mask_token_id', 'dspark_noise_token_id', 'pard_token', 'ptd_token_id'):
    mask = getattr(fields, name)
    if mask is not None:
      return {'unknown_id': mask, 'k': (fields.speculative_tokens or fields.num_depths) + 1}
  raise UserError('config.json lacks mask_token_id: set it to a whole number')


def _outputs(fields: Eagle3Fields) -> Taps | None:
  """Returns the taps that `eagle_config` names, by the layers whose outputs they are."""
  outputs = fields.eagle_config and fields.eagle_config.eagle_aux_hidden_state_layer_ids
  return None if outputs is None else taps_after(outputs, fields.num_target_layers)


def deepspec_eagle3(
  config: Mapping[str, Any], tensors: Mapping[str, Any], dtype: str, taps: Taps | None
) -> UnreadDraft:
  """Reads EAGLE-3 of DeepSpec: one layer of Qwen3."""
  fields = read_fields(Eagle3Fields, config)
  layers = draft_layers('qwen3', config, dtype)
  if layers.layers > 1:
    raise UserError(
      f'num_hidden_layers={layers.layers} of config.json is not supported, since each of these'
      ' layers reads the embedding: give a draft of one layer'
    )
  if taps is None and fields.target_layer_ids is not None:
    taps = taps_after(fields.target_layer_ids, fields.num_target_layers)
  return _eagle3(config, fields, layers, tensors, taps, recycles_normed=False)


def nested_layers(config: Mapping[str, Any], dtype: str, model_types: tuple[str, ...]) -> LMConfig:
  """Returns the config of the layers of a draft of speculators."""
  inner = config.get('transformer_layer_config')
  model_type = inner.get('model_type') if isinstance(inner, Mapping) else None
  if not isinstance(inner, Mapping) or model_type not in model_types:
    known = f'one with model_type {" or ".join(model_types)}'
    raise UserError(
      f'transformer_layer_config of config.json is of model_type {model_type!r}: give {known}'
    )
  return draft_layers(str(model_type), inner, dtype)


def _layers(
  config: Mapping[str, Any], tensors: Mapping[str, Any], dtype: str, prefix: str, **changes: Any
) -> LMConfig:
  """Returns the config of SafeAILab's and SpecForge's layers: Llama's, without biases.

  SafeAILab's code ignores head_dim: a head is hidden_size / heads wide. It takes 10000 for the base
  of linearly stretched rotations. Its drafts name LlamaForCausalLM, but so do others: therefore the
  tensors decide the width.
  """
  layers = draft_layers('llama', {**config, **IGNORED}, dtype, **changes)
  name = f'{prefix}self_attn.q_proj.weight'
  if name in tensors and layers.head_width is not None:
    width = layers.d_model // layers.heads
    if tensors[name].shape[0] == width * layers.heads:
      layers = dataclasses.replace(layers, head_width=width)
  if layers.rope == 'linear' and 'LlamaForCausalLM' in read_architectures(config):
    layers = dataclasses.replace(layers, rope_theta=1e4)
  return layers


def _eagle3(
  config: Mapping[str, Any],
  fields: Eagle3Fields,
  layers: LMConfig,
  tensors: Mapping[str, Any],
  taps: Taps | None,
  first: str = 'layers.0.',
  **options: Any,
) -> UnreadDraft:
  """Reads the parts that all spellings of EAGLE-3 share.

  Args:
    config: the content of config.json.
    fields: read from it.
    layers: sizes of the layers.
    tensors: by their names.
    taps: the target's layers that it reads; None: as config.json names them.
    first: prefix of the names of the first layer, which reads embedding and features.
    options: fields of the network in which the spellings differ; of a `ParallelNetwork` with k.
  """
  if fields.norm_before_fc and fields.fc_norm:
    raise UserError(
      'norm_before_fc and fc_norm of config.json exclude one another: set one of them to false'
    )
  if taps is None:
    taps = fields.eagle_aux_hidden_state_layer_ids or RULE
  if fields.num_target_layers is not None:
    taps = number_taps(taps, fields.num_target_layers)
  d, n = layers.d_model, len(taps)
  d_target = fields.target_hidden_size or d
  words, params = vocabulary(tensors, config, layers, embeds=d_target != d)
  is_parallel = 'k' in options
  kind: Any = ParallelNetwork if is_parallel else EagleNetwork
  if not is_parallel:
    options['entry'] = 'beside'
  network = kind(
    layers=layers,
    vocab_size=layers.vocab_size,
    d_target=d_target,
    d_embed=None if d_target == d else d,
    words=words,
    taps=taps,
    fuses=True,
    norms_taps=bool(fields.fc_norm),
    norms_joined=bool(fields.norm_before_fc),
    keeps_normed=bool(fields.norm_before_residual),
    **options,
  )
  features = {'fuse': dense(tensors, 'fc', d, n * d_target)}
  if network.norms_taps:
    for i in range(n):
      features[f'tap_norm_{i}'] = norm(tensors, f'fc_norm.{i}', d_target)
  if network.norms_joined:
    features['joined_norm'] = norm(tensors, 'input_norm', n * d_target)
  tower = {'layer_0': layer_params(layers, tensors, first, reads=2 * d, is_normed=False)}
  for i in range(1, layers.layers):
    tower[f'layer_{i}'] = layer_params(layers, tensors, f'layers.{i}.')
  inner = {
    'make_features': features,
    'embedding_norm': norm(tensors, f'{first}input_layernorm', d),
    'feature_norm': norm(tensors, f'{first}hidden_norm', d),
    'tower': tower,
  }
  if is_parallel or network.norms_last:
    inner['norm'] = norm(tensors, 'norm', d)
  if is_parallel:
    inner['mask_hidden'] = np.zeros(n * d_target, np.float32)  # if the file has none
    if 'mask_hidden' in tensors:
      inner['mask_hidden'] = shaped(tensors, 'mask_hidden', 1, 1, n * d_target)
  return network, params | {'network': inner}
