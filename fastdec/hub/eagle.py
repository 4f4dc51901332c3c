"""Published EAGLE-1, -2 and -3 (Li et al. 2024, 2025), in four spellings.

  fc, layers.0 without input_layernorm             EAGLE-1 and -2 (SafeAILab, HASS), one network
  fc, midlayer, norm, lm_head, d2t                 EAGLE-3 of SafeAILab and of SpecForge
  fc, layers.i, norm, lm_head, embed_tokens, d2t   EAGLE-3 of speculators; config.json nests layers
  fc, layers.0, norm, lm_head, embed_tokens        EAGLE-3 of DeepSpec; taps numbered as in DFlash

The meaning of their configs is from their code: SafeAILab/EAGLE at cb7e084, SpecForge at a6b6b02,
speculators at c05b95b, DeepSpec at afdfa7c.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import Size
from fastdec.heads.eagle import EagleNetwork
from fastdec.hub.draft_parts import (
  architectures_of,
  dense,
  draft_layers,
  norm,
  read_said,
  vocabulary,
)
from fastdec.hub.lm_tensors import layer_params
from fastdec.hub.tensors import shaped
from fastdec.models.api import Params
from fastdec.models.lm import LMConfig
from fastdec.models.taps import RULE, Taps, numbered

Read = tuple[EagleNetwork, Params]  # the network, and its parameters, unread
# keys that the code of SafeAILab and SpecForge never reads
IGNORED = {'attention_bias': False, 'mlp_bias': False}


@dataclasses.dataclass(frozen=True)
class Said1:
  """Fields of EAGLE-1's config.json beside the layers."""

  bias: bool = True  # of fc; older files have one, and do not say so
  qkv_bias: bool = False


@dataclasses.dataclass(frozen=True)
class SaidOfTaps:
  """Fields of `eagle_config`."""

  eagle_aux_hidden_state_layer_ids: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Said3:
  """Fields of EAGLE-3's config.json beside the layers and the vocabulary."""

  target_hidden_size: Size | None = None
  norm_before_residual: bool | None = False
  norm_before_fc: bool | None = False
  fc_norm: bool | None = False
  norm_output: bool | None = None
  eagle_aux_hidden_state_layer_ids: tuple[int, ...] | None = None  # k: the input of layer k
  eagle_config: SaidOfTaps | None = None  # k: the output of layer k
  target_layer_ids: tuple[int, ...] | None = None  # DeepSpec. k: the output of layer k
  num_target_layers: Size | None = None


def eagle1(
  config: Mapping[str, Any], tensors: Mapping[str, Any], dtype: str, taps: Taps | None
) -> Read:
  """Reads EAGLE-1 and -2, which use the target's last hidden state and vocabulary projection."""
  if taps:
    raise UserError(
      f'taps={taps} are given, and this draft reads the last hidden state alone: leave them out'
    )
  said: Said1 = read_said(Said1, config)
  layers = _layers(config, tensors, dtype, 'layers.0.', qkv_bias=said.qkv_bias)
  d = layers.d_model
  network = EagleNetwork(
    layers=layers,
    vocab_size=layers.vocab_size,
    d_target=d,
    norms_entry=False,
    join_bias=said.bias,
    norms_first=False,
    norms_last=False,
  )
  tower = {
    f'layer_{i}': layer_params(layers, tensors, f'layers.{i}.', is_normed=i > 0)
    for i in range(layers.layers)
  }
  params = {'network': {'join': dense(tensors, 'fc', d, 2 * d, said.bias), 'tower': tower}}
  if 'embed_tokens.weight' in tensors:
    params['embedding'] = shaped(tensors, 'embed_tokens.weight', layers.vocab_size, d)
  return network, params


def eagle3(
  config: Mapping[str, Any], tensors: Mapping[str, Any], dtype: str, taps: Taps | None
) -> Read:
  """Reads EAGLE-3 of SafeAILab and SpecForge: one layer, `midlayer`."""
  said: Said3 = read_said(Said3, config)
  layers = _layers({**config, 'num_hidden_layers': 1}, tensors, dtype, 'midlayer.')
  named = said.eagle_config and said.eagle_config.eagle_aux_hidden_state_layer_ids
  if taps is None and named is not None:
    taps = tuple(k + 1 for k in named)
  # absent: true; if it is false the file still has the norm
  has_norm = said.norm_output is not False
  if not has_norm:
    norm(tensors, 'norm', layers.d_model)
  return _eagle3(
    config, said, layers, tensors, taps, ('midlayer.',), norms_last=has_norm, recycles_normed=False
  )


def speculators_eagle3(
  config: Mapping[str, Any], tensors: Mapping[str, Any], dtype: str, taps: Taps | None
) -> Read:
  """Reads EAGLE-3 of speculators: layers of Llama or of Qwen3."""
  said: Said3 = read_said(Said3, config)
  layers = nested_layers(config, dtype, ('llama', 'qwen3'))
  if 'verifier_norm.weight' in tensors:  # of the target, for training
    norm(tensors, 'verifier_norm', layers.d_model)
  prefixes = tuple(f'layers.{i}.' for i in range(layers.layers))
  return _eagle3(
    config, said, layers, tensors, taps, prefixes, recycles_normed=bool(said.norm_output)
  )


def deepspec_eagle3(
  config: Mapping[str, Any], tensors: Mapping[str, Any], dtype: str, taps: Taps | None
) -> Read:
  """Reads EAGLE-3 of DeepSpec: one layer of Qwen3."""
  said: Said3 = read_said(Said3, config)
  layers = draft_layers('qwen3', config, dtype)
  if layers.layers > 1:
    raise UserError(
      f'num_hidden_layers={layers.layers} of config.json is not supported, since each of these'
      ' layers reads the embedding: give a draft of one layer'
    )
  if taps is None and said.target_layer_ids is not None:
    taps = tuple(k + 1 for k in said.target_layer_ids)
  return _eagle3(config, said, layers, tensors, taps, ('layers.0.',), recycles_normed=False)


def nested_layers(config: Mapping[str, Any], dtype: str, kinds: tuple[str, ...]) -> LMConfig:
  """Returns the config of the layers of a draft of speculators."""
  inner = config.get('transformer_layer_config')
  kind = inner.get('model_type') if isinstance(inner, Mapping) else None
  if not isinstance(inner, Mapping) or kind not in kinds:
    known = f'one with model_type {" or ".join(kinds)}'
    raise UserError(
      f'transformer_layer_config of config.json is of model_type {kind!r}: give {known}'
    )
  return draft_layers(str(kind), inner, dtype)


def _layers(
  config: Mapping[str, Any], tensors: Mapping[str, Any], dtype: str, prefix: str, **changes: Any
) -> LMConfig:
  """Returns the config of SafeAILab's and SpecForge's layers: Llama's, without biases.

  SafeAILab's code ignores head_dim and takes hidden_size / heads for the width of a head. It takes
  10000 for the base of linearly stretched rotations. Its drafts say LlamaForCausalLM, but others'
  do too: so the tensors decide the width.
  """
  layers = draft_layers('llama', {**config, **IGNORED}, dtype, **changes)
  name = f'{prefix}self_attn.q_proj.weight'
  plain = layers.d_model // layers.heads
  if (
    name in tensors
    and layers.head_width is not None
    and tensors[name].shape[0] == plain * layers.heads
  ):
    layers = dataclasses.replace(layers, head_width=plain)
  is_official = 'LlamaForCausalLM' in architectures_of(config)
  if is_official and layers.rope == 'linear':
    layers = dataclasses.replace(layers, rope_theta=1e4)
  return layers


def _eagle3(
  config: Mapping[str, Any],
  said: Said3,
  layers: LMConfig,
  tensors: Mapping[str, Any],
  taps: Taps | None,
  prefixes: tuple[str, ...],
  **habits: bool,
) -> Read:
  """Reads what all spellings of EAGLE-3 share.

  `prefixes` begin the names of the layers; the first layer is the special one."""
  if said.norm_before_fc and said.fc_norm:
    raise UserError(
      'norm_before_fc and fc_norm of config.json exclude one another: set one of them to false'
    )
  if taps is None:
    taps = said.eagle_aux_hidden_state_layer_ids or RULE
  if said.num_target_layers is not None:
    taps = numbered(taps, said.num_target_layers)
  d, d_target, n = layers.d_model, said.target_hidden_size or layers.d_model, len(taps)
  words, params = vocabulary(tensors, config, layers, embeds=d_target != d)
  network = EagleNetwork(
    layers=layers,
    vocab_size=layers.vocab_size,
    d_target=d_target,
    d_embed=None if d_target == d else d,
    words=words,
    taps=taps,
    fuses=True,
    norms_taps=bool(said.fc_norm),
    norms_joined=bool(said.norm_before_fc),
    entry='beside',
    keeps_normed=bool(said.norm_before_residual),
    **habits,
  )
  features = {'fuse': dense(tensors, 'fc', d, n * d_target)}
  if network.norms_taps:
    features |= {f'tap_norm_{i}': norm(tensors, f'fc_norm.{i}', d_target) for i in range(n)}
  if network.norms_joined:
    features['joined_norm'] = norm(tensors, 'input_norm', n * d_target)
  first, *others = prefixes
  tower = {'layer_0': layer_params(layers, tensors, first, reads=2 * d, is_normed=False)}
  for i, prefix in enumerate(others, 1):
    tower[f'layer_{i}'] = layer_params(layers, tensors, prefix)
  inner = {
    'make_features': features,
    'embedding_norm': norm(tensors, f'{first}input_layernorm', d),
    'feature_norm': norm(tensors, f'{first}hidden_norm', d),
    'tower': tower,
  }
  if network.norms_last:
    inner['norm'] = norm(tensors, 'norm', d)
  return network, params | {'network': inner}
