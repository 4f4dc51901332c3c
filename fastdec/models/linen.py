"""Models that are one linen module, and what they share about packed rows."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec.models.api import Nodes, Params, setting
from fastdec.models.taps import Features, check_taps


@dataclasses.dataclass(frozen=True)
class LinenModel:
  """The part of a model (protocol: `models/api.py`) that runs its network, a linen module."""

  config: Any
  # settings of `generate` from the model's folder, for `fd.Processors.of`; programs ignore them
  generation: Mapping[str, Any] = dataclasses.field(
    default_factory=dict, compare=False, repr=False, kw_only=True
  )

  # made from the config; its `__call__` reads a batch, and other methods the nodes of a call
  network: ClassVar[type[nn.Module]]
  layers: ClassVar[Any]  # number of layers whose states can be tapped

  d_model = setting('d_model')
  vocab_size = setting('vocab_size')
  eos_ids = setting('eos_ids')
  pad_id = setting('pad_id')
  suppressed_ids = setting('suppressed_ids')
  max_positions = setting('max_positions')

  def _call(self, params: Params, *args: Any, method: Any, **kwargs: Any) -> Any:
    return self.network(self.config).apply({'params': params}, *args, method=method, **kwargs)

  def apply(
    self,
    params: Params,
    tokens: Int[Array, 'b n'],
    nodes: Nodes,
    cache: Any,
    taps: tuple[int, ...] = (),
    **how: Any,
  ) -> tuple[Float[Array, 'b n d'], tuple[Float[Array, 'b n _'], ...], Any]:
    """See `models.api.Model.apply`. The cache is a `WithMemory`; the network reads it."""
    check_taps(taps, self.layers)
    hidden, states, layers = self._call(
      params, tokens, nodes, cache, taps, method='decode_nodes', **how
    )
    return hidden, states, cache.with_layers(layers)

  def hidden(
    self, params: Params, batch: Mapping[str, Array], dropout_key: Array | None = None
  ) -> Float[Array, 'b t d']:
    """Returns hidden states of all positions at once; their `unembed` predicts batch['target'].

    Training and forced scoring use it.

    Args:
      params: the parameters.
      batch: 'target' int[b, t], and 'source' if the model has an encoder. Text has several
        sentences in a row: 'target_segment' numbers them (0 is padding), 'target_position' is the
        position within a sentence, and the source has the same two. For images 'source' is
        uint8[b, 8, 8, 3], and 'target' has the intensities in raster scan.
      dropout_key: None: no dropout.
    """
    return self.features(params, batch, (), dropout_key).hidden

  def features(
    self,
    params: Params,
    batch: Mapping[str, Array],
    taps: tuple[int, ...] = (),
    dropout_key: Array | None = None,
  ) -> Features:
    """Returns the states that drafts learn from: `hidden`, those of `taps`, and the encoder's.

    Raises:
      UserError: the model does not have one of the layers `taps`.
    """
    check_taps(taps, self.layers)
    settings: dict[str, Any] = {'train': False, 'taps': taps}
    if dropout_key is not None:
      settings['train'] = True
      settings['rngs'] = {'dropout': dropout_key}
    return self._call(params, batch, method='__call__', **settings)


def fed_tokens(batch: Mapping[str, Array], start_id: int) -> Int[Array, 'b t']:
  """Returns the decoder's inputs: the targets shifted right, with the start at position 0."""
  shifted = jnp.pad(batch['target'], ((0, 0), (1, 0)))[:, :-1]
  return jnp.where(batch['target_position'] == 0, start_id, shifted)


def same_segment(query: Int[Array, 'b n'], key: Int[Array, 'b s']) -> Bool[Array, 'b n s']:
  """Mask of packed rows: a token sees the tokens of its own sentence."""
  return query[:, :, None] == key[:, None, :]
