"""Parameters at the start of a draft's training: fresh layers or the target's last ones."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Int

from fastdec.errors import UserError
from fastdec.heads import tower
from fastdec.heads.draft import DraftNetwork
from fastdec.heads.tower import LayersConfig
from fastdec.models.api import Model, Params, vocabulary_projection
from fastdec.models.lm import LM, LMConfig
from fastdec.models.stacks import StackConfig
from fastdec.models.t5 import T5, T5Config
from fastdec.models.transformer import Transformer
from fastdec.struct import Bound

INITS = ('target', 'fresh')
# what a draft may have, and its target not: norms, and convolutions that change nothing at first
NEW = ('q_norm', 'k_norm', 'attention_conv', 'mlp_conv')


def layers_like(model: Model, layers: int) -> LayersConfig:
  """Returns the config of layers like the target's; of a float16 one in float32, to be trained.

  A draft of T5 has a language model's layers of its sizes: what it reads knows the source already.

  Raises:
    UserError: the target is neither a `Transformer` nor a `T5` nor an `LM`.
  """
  if not isinstance(model, LM | Transformer | T5):
    kind = type(model).__name__
    raise UserError(
      f'drafts have layers of a Transformer, a T5 or an LM, and this model is a {kind}'
    )
  config = model.config
  dtype = 'float32' if config.dtype == 'float16' else config.dtype  # whose gradients vanish
  if isinstance(config, LMConfig):
    plain: dict[str, Any] = {'windows': (), 'unrotated': (), 'sinks': False, 'experts': None}
    return dataclasses.replace(config, layers=layers, dtype=dtype, **plain)
  own = config.of_decoder
  if isinstance(config, T5Config):
    return LMConfig(
      vocab_size=model.vocab_size, d_model=own.d_model, d_ff=own.d_ff, layers=layers,
      heads=own.heads, head_width=config.d_kv, norm_epsilon=own.norm_epsilon,
      eos_ids=model.eos_ids, pad_id=model.pad_id, dtype=dtype,
    )  # fmt: skip
  settings: dict[str, Any] = {'decoder_layers': layers, 'dtype': dtype}
  for field in dataclasses.fields(StackConfig):
    settings.setdefault(field.name, getattr(own, field.name))
  return StackConfig(**settings)


def start_params(
  draft: DraftNetwork, target: Bound, key: Array, init: str, ids: Int[np.ndarray, ' w'] | None
) -> Params:
  """Makes the parameters to begin with.

  Args:
    draft: the draft network.
    target: the model and its parameters.
    key: draws fresh parameters.
    init: 'target': the layers are copies of the target's last ones; or 'fresh'.
    ids: the target's ids of the draft's words, whose projection is copied from the target; None: it
      drafts all words.

  Raises:
    UserError: the target's layers are not of the draft's kind and sizes.
  """
  if init not in INITS:
    raise UserError(f'init={init!r} is unknown: choose one of {", ".join(INITS)}')
  params = jax.jit(draft.init)(key)
  if init == 'target':
    params['network'] = params['network'] | {
      'tower': _last_layers(draft, target, params['network']['tower'])
    }
  if ids is not None:
    # The matrix of the target's projection results from projecting the identity.
    project = vocabulary_projection(target.module)
    zero = jnp.zeros((1, draft.layers.d_model))
    output = project(target.params, jnp.eye(draft.layers.d_model)) - project(target.params, zero)
    params |= {'ids': jnp.asarray(ids, jnp.int32), 'output': output[:, ids].T.astype(jnp.float32)}
  return params


def _last_layers(draft: DraftNetwork, target: Bound, fresh: Params) -> Params:
  """Returns the target's last layers under the draft's names, in the type that it learns in.

  Norms and convolutions that the target lacks stay fresh. A first layer that reads embedding and
  feature side by side (`EagleNetwork.entry`) reads the feature as the target's reads its input, and
  at first nothing of the embedding.
  """
  name = 'decoder' if draft.reads_source else 'layer'
  depth = sum(re.fullmatch(rf'{name}_\d+', part) is not None for part in target.params)
  wanted = len(tower.windows_of(draft.layers))
  if wanted > depth:
    raise UserError(
      f'init=target with {wanted} layers, and the target has {depth}: give as many, or init=fresh'
    )
  layers = {}
  for i in range(wanted):
    copied: dict[Any, Any] = dict(flatten_dict(target.params[f'{name}_{depth - wanted + i}']))
    layer: dict[Any, Any] = dict(flatten_dict(fresh[f'layer_{i}']))
    for path, kernel in list(layer.items()):
      own = copied.pop(path, None)
      if own is None and path[0] in NEW:
        continue
      if own is not None and own.shape != kernel.shape and draft.entry == 'beside':
        own = jnp.pad(own, [(m - n, 0) for n, m in zip(own.shape, kernel.shape, strict=True)])
      if own is None or own.shape != kernel.shape:
        raise UserError(
          "init=target: the draft's layers have other sizes than the target's: give init=fresh"
        )
      layer[path] = own.astype(kernel.dtype)
    layers[f'layer_{i}'] = unflatten_dict(layer)
  return layers
