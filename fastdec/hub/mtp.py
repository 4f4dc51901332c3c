"""Multi-token prediction heads in Qwen's models, as `mtp.*` among their own tensors.

One layer, like the model's own with full attention, reads the token's embedding and the last hidden
state, both normed and joined. The next row reads the state after `mtp.norm`. Newer models
(`ZERO_CENTRED`) store the scale of a norm minus 1.

Source: the code of vLLM (qwen3_next_mtp.py) and of speculators at c05b95b. The layers of the
published Qwen3-Next and Qwen3.5 have output gates, rotate a part of each head, and mix experts:
they are refused.
"""

from collections.abc import Mapping
from typing import Any

from fastdec.errors import UserError
from fastdec.folders.stored import scales_plus_one
from fastdec.heads.eagle import EagleNetwork
from fastdec.hub.draft_parts import check_no_taps, draft_layers
from fastdec.hub.lm_tensors import layer_params
from fastdec.hub.tensors import dense, norm
from fastdec.models.api import Params
from fastdec.models.taps import Taps

ZERO_CENTRED = ('qwen3_next', 'qwen3_5', 'qwen3_5_text')
MODEL_TYPES = ('qwen3', *ZERO_CENTRED)


def mtp(
  config: Mapping[str, Any], tensors: Mapping[str, Any], dtype: str, taps: Taps | None
) -> tuple[EagleNetwork, Params]:
  """Returns the network of a model's folder, and its parameters, unread.

  Raises:
    UserError: layers that are not supported.
  """
  check_no_taps(taps)
  if isinstance(config.get('text_config'), Mapping):  # of models that see images too
    config = config['text_config']
  model_type = config.get('model_type')
  if model_type not in MODEL_TYPES:
    raise UserError(
      f'its mtp.* tensors are of model_type {model_type!r}, which is not supported: known are'
      f' {", ".join(MODEL_TYPES)}'
    )
  _check_layers(str(model_type), config, tensors)
  layers = draft_layers('qwen3', {**config, 'num_hidden_layers': 1}, dtype)
  d = layers.d_model
  network = EagleNetwork(layers=layers, vocab_size=layers.vocab_size, d_target=d)
  inner = {
    'embedding_norm': norm(tensors, 'mtp.pre_fc_norm_embedding', d),
    'feature_norm': norm(tensors, 'mtp.pre_fc_norm_hidden', d),
    'join': dense(tensors, 'mtp.fc', d, 2 * d),
    'tower': {'layer_0': layer_params(layers, tensors, 'mtp.layers.0.')},
    'norm': norm(tensors, 'mtp.norm', d),
  }
  if model_type in ZERO_CENTRED:
    inner = scales_plus_one(inner)
  return network, {'network': inner}


def _check_layers(model_type: str, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
  """Raises UserError for a layer that computes more than `models/lm.py` does."""
  is_zero_centred = model_type in ZERO_CENTRED
  if any(name.startswith('mtp.layers.1.') for name in tensors):
    raise UserError(
      'its mtp.* tensors are of several layers, which is not supported: give a model with one'
    )
  for name in tensors:
    if '.experts.' in name or '.shared_expert' in name or name.endswith('.mlp.gate.weight'):
      raise UserError(
        'its mtp layer mixes experts, which is not supported: give a model whose layers are dense'
      )
  if config.get('attn_output_gate', is_zero_centred):
    raise UserError(
      'its mtp layer gates what attention gives (attn_output_gate), which is not supported'
    )
  rope = config.get('rope_parameters') or config.get('rope_scaling') or {}
  has_share = 'partial_rotary_factor' in config or (
    isinstance(rope, Mapping) and 'partial_rotary_factor' in rope
  )
  if is_zero_centred and not has_share:  # absent means a quarter
    raise UserError(
      'its mtp layer rotates a part of each head (partial_rotary_factor 0.25), which'
      ' is not supported'
    )
