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
from fastdec.models.lm import LM
from fastdec.models.stacks import StackConfig
from fastdec.models.transformer import Transformer
from fastdec.struct import Bound

INITS = ('target', 'fresh')
NEW = ('q_norm', 'k_norm')  # norms that a draft may have, and its target not


def layers_like(model: Model, layers: int) -> LayersConfig:
  """Returns the config of layers like the target's.

  Raises:
    UserError: the target is neither a `Transformer` nor an `LM`.
  """
  if isinstance(model, LM):
    plain: dict[str, Any] = {'windows': (), 'unrotated': (), 'sinks': False, 'experts': None}
    return dataclasses.replace(model.config, layers=layers, **plain)
  if isinstance(model, Transformer):
    own = model.config.of_decoder
    settings: dict[str, Any] = {'decoder_layers': layers}
    for field in dataclasses.fields(StackConfig):
      settings.setdefault(field.name, getattr(own, field.name))
    return StackConfig(**settings)
  raise UserError(
    f'drafts have layers of a Transformer or an LM, and this model is a {type(model).__name__}'
  )


def begin(
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
    params |= {'ids': jnp.asarray(ids, jnp.int32), 'output': output[:, ids].T}
  return params


def _last_layers(draft: DraftNetwork, target: Bound, fresh: Params) -> Params:
  """Returns the target's last layers under the draft's names.

  Norms that the target lacks stay fresh. A first layer that reads embedding and feature side by
  side (`EagleNetwork.entry`) reads the feature as the target's reads its input, and at first
  nothing of the embedding.
  """
  name = 'decoder' if tower.reads_source(draft.layers) else 'layer'
  depth = sum(re.fullmatch(rf'{name}_\d+', part) is not None for part in target.params)
  wanted = tower.depth_of(draft.layers)
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
      if own is not None and own.shape != kernel.shape and getattr(draft, 'entry', '') == 'beside':
        own = jnp.pad(own, [(m - n, 0) for n, m in zip(own.shape, kernel.shape, strict=True)])
      if own is None or own.shape != kernel.shape:
        raise UserError(
          "init=target: the draft's layers have other sizes than the target's: give init=fresh"
        )
      layer[path] = own
    layers[f'layer_{i}'] = unflatten_dict(layer)
  return layers
