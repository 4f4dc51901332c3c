"""What the decoding loop asks of a model: seven values and four functions, no base class.

A model is a frozen, hashable value (a static argument of jit); its parameters are a plain nested dict. Meet the
protocol below and every strategy decodes your model. A whole model in thirty lines (a test runs it):

  @dataclasses.dataclass(frozen=True)
  class Bag:
    '''Next token = argmax of (mean of the embeddings so far) @ E^T: a language model that is a running sum.'''
    vocab_size: int = 11
    eos_ids: tuple[int, ...] = (1,)
    pad_id: int = 0
    start_id: int | None = None          # decoder-only: the prompt is the input
    suppressed_ids: tuple[int, ...] = ()
    max_positions: int | None = None
    fixed_length: int | None = None

    def init(self, key):
      return {'embedding': jax.random.normal(key, (self.vocab_size, 8))}

    def encode(self, params, inputs):
      return None                        # nothing to encode

    def init_cache(self, params, memory, rows, slots):                       # slots: an int, or a `Capacity`
      return KVCache.empty(layers=1, rows=rows, heads=1, slots=slots, width=8, dtype=jnp.float32)

    def apply(self, params, tokens, nodes, cache):
      x = params['embedding'][tokens]                                        # [b, n, d]
      layer = cache.layers[0].write(x[:, None], x[:, None], cache.length)    # remember the nodes
      sees = attention.node_mask(nodes, cache.length, cache.slots)           # [b, n, s]
      hidden = jnp.einsum('bns,bsd->bnd', sees / sees.sum(-1, keepdims=True), layer.v[:, 0])
      return hidden, (), KVCache((layer,), cache.length)

    def unembed(self, params, hidden):
      return hidden @ params['embedding'].T

One method more is optional: `partition(devices)` says how the parameters lie on a mesh of devices, as rows of (regex,
PartitionSpec); see `fastdec.sharding`. Without it every device has all of them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct

Params = Any  # a nested dict of arrays


@struct.pytree
class Nodes:
  """The tokens of one call, relative to what is cached: NumPy where the shape of the draft is static.

  A node sees every cached position, its ancestors and itself. Node j stands at position cache.length + depths[j].

    paths (0,) (1,) (0, 0) -> nodes root, a, b, aa
        root a b aa
    aa [ 1   1 0 1 ]      aa sees root, its parent a, and itself
  """

  parents: Int[Array | np.ndarray, '*b n']  # -1: the root
  depths: Int[Array | np.ndarray, '*b n']
  mask: Bool[Array | np.ndarray, '*b n n']  # mask[i, j]: i sees j


def causal(n: int) -> Nodes:
  """A chain of n nodes, each the child of the one before: a prompt, or a draft without branches."""
  index = np.arange(n, dtype=np.int32)
  return Nodes(parents=index - 1, depths=index, mask=np.tri(n, dtype=bool))


@dataclasses.dataclass(frozen=True)
class Capacity:
  """How much room a decode needs in a cache.

  The loop hands it to `Model.init_cache` as `slots`. A cache that remembers every token needs `total` slots; a ring,
  which overwrites what nobody sees any more, needs to know only how wide a call is. Python takes a Capacity wherever it
  takes a size (in the shape of an array, say): there it stands for `total`.
  """

  total: int  # tokens of the padded prompt, of the longest output, and of one draft behind it
  nodes: int  # tokens of the widest call: that of the prompt, or of a draft

  def __index__(self) -> int:
    return self.total


@runtime_checkable
class Cache(Protocol):
  """A frozen pytree with one length per row; see `fastdec/cache`."""

  length: Int[Array, ' b']

  def commit(self, path: Int[Array, 'b m'] | None, count: Int[Array, ' b']) -> 'Cache':
    """Keeps the first `count` nodes of `path` (None: of a chain) among the nodes of the last call."""

  def gather(self, rows: Int[Array, ' w']) -> 'Cache':
    """Reorders or multiplies the beams of each row; what is the same for all beams of a row is not copied."""

  def take(self, rows: Int[Array, ' r'], beams: int) -> 'Cache':
    """These rows alone, each of them `beams` beams that lie together."""


@runtime_checkable
class Model(Protocol):
  """Frozen and hashable: jit compiles one program per value."""

  vocab_size: int
  eos_ids: tuple[int, ...]
  pad_id: int
  start_id: int | None  # encoder-decoder: the token before the first; None: decoder-only, the prompt is the input
  suppressed_ids: tuple[int, ...]  # never emitted
  max_positions: int | None
  fixed_length: int | None  # images: the number of tokens of every output

  def encode(self, params: Params, inputs: Array) -> Any:
    """The memory of the inputs, or None without an encoder."""

  def init_cache(self, params: Params, memory: Any, rows: int, slots: int | Capacity) -> Cache:
    """An empty cache of `rows` rows with room for `slots` tokens in each.

    The loop gives a `Capacity`, so that a ring may be smaller; other callers may give a plain number, and get a cache
    with room for a call of any width.
    """

  def apply(
    self, params: Params, tokens: Int[Array, 'b n'], nodes: Nodes, cache: Cache
  ) -> tuple[Float[Array, 'b n d'], Any, Cache]:
    """Hidden states of the nodes, asked-for inner states (taps), the cache with the nodes written, not committed."""

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Logits, at least float32."""


def setting(name: str) -> property:
  """A value of a model that its config says."""
  return property(lambda model: getattr(model.config, name))


def has_own_source_ids(model: Model) -> bool:
  """Whether ids of the source mean other words than those of the target: then the model has a `source_vocab_size`."""
  return getattr(model, 'source_vocab_size', None) is not None


def source_words(model: Model) -> int:
  """How many ids a source may have."""
  own = getattr(model, 'source_vocab_size', None)
  return model.vocab_size if own is None else own


def vocabulary_projection(model: Model) -> Callable[[Params, Array], Array]:
  """The model's `project` where it has one: a model whose `unembed` does more than project (a learned p1) has both, so
  that heads share the projection and not the rest. Else its `unembed`."""
  return getattr(model, 'project', model.unembed)


def suppress(logits: Float[Array, '*b v'], ids: tuple[int, ...]) -> Float[Array, '*b v']:
  """The logits with `ids` at minus infinity: never drafted, never emitted."""
  if not ids:
    return logits
  banned = np.zeros(logits.shape[-1], bool)
  banned[list(ids)] = True
  return jnp.where(banned.reshape((1,) * (logits.ndim - 1) + (-1,)), -jnp.inf, logits)
