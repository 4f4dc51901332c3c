"""The decoder-only Transformer of today's language models: RMSNorm, rotary positions, gated MLP, grouped heads.

Llama, Mistral, Qwen2 and Qwen3 are settings of it (`convert/llama.py` reads theirs). One set of linen modules
(`lm_network.py`) serves training on packed rows (`LM.hidden`) and decoding over a cache (`LM.apply`).
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec.cache.kv import KVCache
from fastdec.models.api import Nodes, Params, setting
from fastdec.models.attention import attend, node_mask, node_window
from fastdec.models.layers import project
from fastdec.models.lm_network import LMConfig, Network

__all__ = ['LM', 'LMConfig']


@dataclasses.dataclass(frozen=True)
class LM:
  """The model (protocol: `models/api.py`): a hashable value; its parameters are a nested dict."""

  config: LMConfig

  start_id = None  # the prompt is the input
  fixed_length = None

  vocab_size = setting('vocab_size')
  eos_ids = setting('eos_ids')
  pad_id = setting('pad_id')
  suppressed_ids = setting('suppressed_ids')
  max_positions = setting('max_positions')

  def init(self, key: Array) -> Params:
    """Fresh float32 parameters."""
    ones = jnp.ones((1, 2), jnp.int32)
    batch = {'target': ones, 'target_segment': ones, 'target_position': ones}
    return Network(self.config).init(key, batch, train=False)['params']

  def hidden(
    self, params: Params, batch: Mapping[str, Int[Array, 'b _']], dropout_key: Array | None = None
  ) -> Float[Array, 'b t d']:
    """Hidden states whose `unembed` predicts batch['target'], all positions at once (training, forced scoring).

    The first token of a segment is predicted from `bos_id`: a model trained so decodes prompts that begin with it.

    Args:
      params: the parameters.
      batch: 'target', 'target_segment' (several texts a row; 0 is padding), 'target_position'; others are not read.
      dropout_key: None switches dropout off.
    """
    train = dropout_key is not None
    rngs = {'dropout': dropout_key} if train else {}
    return Network(self.config).apply({'params': params}, batch, train=train, rngs=rngs)

  def encode(self, params: Params, inputs: Array | None) -> None:
    """Nothing: there is no encoder."""

  def init_cache(self, params: Params, memory: None, rows: int, slots: int) -> KVCache:
    """An empty cache, as wide as the key heads; a sliding window only masks it."""
    c = self.config
    return KVCache.empty(c.layers, rows, c.kv_heads, slots, c.width, c.dtype)

  def apply(
    self, params: Params, tokens: Int[Array, 'b n'], nodes: Nodes, cache: KVCache
  ) -> tuple[Float[Array, 'b n d'], tuple[()], KVCache]:
    """See `models.api.Model.apply`."""
    mask = node_mask(nodes, cache.length, cache.slots)
    sees = lambda window: mask & node_window(nodes, cache.length, cache.slots, window) if window else mask
    attends = {window: functools.partial(attend, mask=sees(window)) for window in set(self.config.layer_windows)}
    positions = cache.length[:, None] + jnp.atleast_2d(nodes.depths)
    args = (tokens, positions, attends, cache)
    hidden, layers = Network(self.config).apply({'params': params}, *args, method='decode')
    return hidden, (), dataclasses.replace(cache, layers=layers)

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Logits by the matrix 'output' where the parameters have one, else by the embedding."""
    return project(hidden, params['output'] if 'output' in params else params['embedding'])
