"""T5 and T5 v1.1 (Raffel et al. 2020): an encoder-decoder with relative positions only.

The layers are the Transformer's (`stacks.py`), with RMSNorm and without biases. A bias that depends
on the distance from query to key is added to attention scores; the layers of a stack share one
table of biases. The position of a tree's node follows from its depth. Inputs may have any length,
but the model has learnt nothing about lengths beyond those in training.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from fastdec.errors import UserError
from fastdec.fields import check_sizes
from fastdec.kernels.products import KERNELS
from fastdec.kernels.sharding import Table
from fastdec.models.api import Params, check_special_ids
from fastdec.models.encoder_decoder import EncoderDecoder, TextStacks
from fastdec.models.layers import look_up, project
from fastdec.models.stacks import PARTITION, StackConfig


@dataclasses.dataclass(frozen=True)
class T5Config(StackConfig):
  """Sizes and options; the defaults are those of the first T5 (small).

  T5 v1.1 has `is_gated`, the activation 'gelu', and no dropout before fine-tuning. Its logits have
  their own matrix (`is_tied` False) and are not scaled (`scales_logits` False)."""

  dropout: float = 0.1  # after each sublayer, on the embeddings and on each stack's output
  d_kv: int = 64  # width of a head, whatever d_model
  is_gated: bool = False
  buckets: int = 32  # of relative positions
  max_distance: int = 128  # distances from here on share a bucket
  vocab_size: int = 32128
  is_tied: bool = True  # logits by the embedding: `init` makes no matrix for them
  scales_logits: bool = True  # hidden states times 1 / sqrt(d_model) before their projection
  pad_id: int = 0
  eos_ids: tuple[int, ...] = (1,)
  start_id: int = 0  # T5 starts with its pad
  suppressed_ids: tuple[int, ...] = ()

  has_mlp_bias = False
  has_centred_norms = False

  def __post_init__(self) -> None:
    super().__post_init__()
    check_special_ids(self)
    if self.dtype == 'float16':  # its feed-forward layers exceed 65,504
      raise UserError(
        "dtype='float16' is not possible for T5, whose values exceed its range: give"
        ' bfloat16 or float32'
      )
    check_sizes(self, 'max_distance')
    if self.max_distance > 2**20:  # a table in memory
      raise UserError(f'max_distance={self.max_distance} is not possible: give up to {2**20}')
    if self.buckets < 4 or self.buckets % 2:
      raise UserError(f'buckets={self.buckets} is not possible: give an even number from 4')
    if self.max_distance <= self.buckets // 2:
      half = self.buckets // 2
      raise UserError(
        f'max_distance={self.max_distance} is not possible with {self.buckets}'
        f' buckets: give over {half}'
      )

  def _check_heads(self) -> None:
    check_sizes(self, 'd_kv')

  @property
  def head_width(self) -> int:
    return self.d_kv


def bucket(
  ahead: Int[np.ndarray, '*b'], buckets: int, max_distance: int, is_causal: bool
) -> Int[np.ndarray, '*b']:
  """Returns the bucket of a key's position minus its query's (Raffel et al. 2020, section 2.1).

  Half of the buckets hold one near distance each; the others get wider with the logarithm of the
  distance, up to `max_distance`. An encoder uses half of all buckets for keys ahead. A decoder sees
  no keys ahead: they count as distance 0.

      8 buckets, max_distance 16     ahead -17 -8 -5 -4 -3 -2 -1  0   1  2  3
      causal (decoder)                       7  6  4  4  3  2  1  0   0  0  0
      else (encoder)                         3  3  2  2  2  2  1  0   5  6  6
  """
  first, distance = 0, np.maximum(-ahead, 0)
  if not is_causal:
    buckets //= 2
    first, distance = np.where(ahead > 0, buckets, 0), abs(ahead)
  exact = buckets // 2

  # Round to float32 where the checkpoints' training did, so that the borders are the same.
  steps = np.log(np.maximum(distance, 1) / exact).astype(np.float32)
  steps /= np.log(np.float64(max_distance / exact)).astype(np.float32)
  steps *= np.float32(buckets - exact)
  far = np.minimum(exact + steps.astype(np.int64), buckets - 1)
  return first + np.where(distance < exact, distance, far)


class T5Network(TextStacks):
  """All parameters, under one roof."""

  config: T5Config
  scale = 1.0  # queries are not scaled; the initialisation is instead (`T5.init`)
  has_bias = True

  def setup(self) -> None:
    super().setup()
    c = self.config
    small = nn.initializers.normal(c.d_model**-0.5)
    self.embedding = self.param('embedding', nn.initializers.normal(1.0), (c.vocab_size, c.d_model))
    self.encoder_bias = self.param('encoder_bias', small, (c.buckets, c.heads))
    self.decoder_bias = self.param('decoder_bias', small, (c.buckets, c.heads))
    if not c.is_tied:
      self.lm_head = self.param('lm_head', small, (c.vocab_size, c.d_model))

  def embed(
    self, tokens: Int[Array, 'b n'], positions: Int[Array, '#b n'], side: str, train: bool
  ) -> Float[Array, 'b n d']:
    """Returns embeddings without positions, in the compute dtype: attention adds the positions."""
    return self.drop(look_up(self.embedding, tokens).astype(self.config.dtype), train)

  def leave(self, x: Float[Array, 'b n d'], stack: str, train: bool) -> Float[Array, 'b n d']:
    return self.drop(super().leave(x, stack, train), train)

  def bias(
    self, stack: str, queries: Int[Array, 'b n'], keys: Int[Array, 'b s']
  ) -> Float[Array, 'b h n s']:
    c, is_causal = self.config, stack == 'decoder'
    table = self.decoder_bias if is_causal else self.encoder_bias
    every = np.arange(-c.max_distance, c.max_distance + 1)
    by_distance = table[bucket(every, table.shape[0], c.max_distance, is_causal)]
    ahead = (keys[:, None, :] - queries[:, :, None]).clip(-c.max_distance, c.max_distance)
    return jnp.moveaxis(by_distance[ahead + c.max_distance], -1, 1)


@dataclasses.dataclass(frozen=True)
class T5(EncoderDecoder):
  """The model (protocol: `models/api.py`): a hashable value; its parameters are a nested dict."""

  config: T5Config

  network = T5Network
  reads_paths = True
  products = (KERNELS, r'(^|/)(embedding|lm_head)$')  # see `kernels.products`
  max_positions = None

  def partition(self, devices: int) -> Table:
    """Splits embeddings and logits by words, biases by heads, the rest as `stacks`."""
    words = (r'(^|/)(embedding|lm_head)$', P('model'))
    biases = (r'(^|/)(encoder|decoder)_bias$', P(None, 'model'))  # [buckets, heads]
    return (words, biases, *PARTITION)

  def init(self, key: Array) -> Params:
    """Returns fresh float32 parameters.

    Query kernels are multiplied by 1 / sqrt(d_kv), since attention does not scale its scores."""
    leaves, structure = jax.tree.flatten_with_path(super().init(key))
    scale, scaled = self.config.d_kv**-0.5, []
    for path, x in leaves:
      name = jax.tree_util.keystr(path, simple=True, separator='/')
      if name.endswith('/qkv/kernel'):
        x = x.at[0].multiply(scale)
      elif name.endswith('/q/kernel'):
        x = x * scale
      scaled.append(x)
    return jax.tree.unflatten(structure, scaled)

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Returns logits by the matrix 'lm_head' if the parameters have one, else by the embedding."""
    if self.config.scales_logits:
      hidden = hidden * self.config.d_model**-0.5
    matrix = params['lm_head' if 'lm_head' in params else 'embedding']
    return project(hidden, matrix)
