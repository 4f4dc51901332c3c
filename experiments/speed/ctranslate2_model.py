"""Our Transformer as a CTranslate2 model, a decoding engine in C++ to compare with."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastdec import extras
from fastdec.models.layers import sinusoids

# ours, and CTranslate2's names
ACTIVATIONS = {'relu': 'RELU', 'gelu': 'GELUTanh', 'swish': 'SWISH'}


def version() -> str:
  """The version of the installed package; UserError where there is none."""
  with extras.explained():
    import ctranslate2
  return ctranslate2.__version__


def write(folder: str, model: Any, params: Any) -> None:
  """Writes the model as CTranslate2 reads it; its pieces are our ids as decimal numbers."""
  from ctranslate2 import specs

  config = model.config
  params = jax.tree.map(lambda x: np.asarray(x, np.float32), params)
  layers = config.encoder_layers, config.decoder_layers
  activation = specs.Activation[ACTIVATIONS[config.activation]]
  spec = specs.TransformerSpec.from_config(layers, config.heads, activation=activation)
  spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = params['embedding']
  spec.decoder.projection.weight = params['embedding']
  for side, part, positions in (
    ('encoder', spec.encoder, 'source'),
    ('decoder', spec.decoder, 'target'),
  ):
    signal = params.get(f'{positions}_positions')
    table = (
      np.asarray(sinusoids(jnp.arange(config.max_positions), config.d_model))
      if signal is None
      else signal
    )
    part.position_encodings.encodings = table
    _fill(part.layer_norm, params[f'{side}_norm'])
    for i, layer in enumerate(part.layer):
      _fill_layer(layer, params[f'{side}_{i}'])
  names = [str(token) for token in range(config.vocab_size)]
  spec.register_source_vocabulary(names)
  spec.register_target_vocabulary(names)
  spec.config.layer_norm_epsilon = config.norm_epsilon
  spec.config.bos_token = spec.config.decoder_start_token = names[config.start_id]
  # no piece is ever unknown
  spec.config.eos_token, spec.config.unk_token = names[config.eos_ids[0]], names[-1]
  spec.validate()
  spec.optimize()  # the three embeddings become one
  spec.save(folder)


def _fill_layer(layer: Any, params: Mapping[str, Any]) -> None:
  attentions: list[tuple[Any, str, tuple[str, ...]]] = [
    (layer.self_attention, 'attention', ('qkv', 'out'))
  ]
  if 'cross' in params:
    attentions.append((layer.attention, 'cross', ('q', 'kv', 'out')))
  for spec, name, projections in attentions:
    _fill(spec.layer_norm, params[f'around_{name}']['norm'])
    for linear, projection in zip(spec.linear, projections, strict=True):
      _fill(linear, params[name][projection])
  _fill(layer.ffn.layer_norm, params['around_feed_forward']['norm'])
  _fill(layer.ffn.linear_0, params['feed_forward']['w1'])
  _fill(layer.ffn.linear_1, params['feed_forward']['w2'])


def _fill(spec: Any, params: Mapping[str, Any]) -> None:
  """A projection, or a norm."""
  names = (
    {'kernel': 'weight', 'bias': 'bias'}
    if 'kernel' in params
    else {'scale': 'gamma', 'bias': 'beta'}
  )
  for name, value in params.items():
    setattr(
      spec, names[name], value.reshape(-1, value.shape[-1]) if name == 'kernel' else value.ravel()
    )
