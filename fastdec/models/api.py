"""What the decoding loop asks of a model: seven values and four functions, no base class.

A model is a frozen, hashable value (a static argument of jit); its parameters are a plain nested
dict. Meet the protocol below and every strategy decodes your model. Three members more are
optional. `partition(devices)` says how the parameters lie on a mesh of devices, as rows of (regex,
PartitionSpec); see `fastdec.sharding`. Without it every device has all of them. `products` says
which of them may be in int8; see `fastdec.quantized`. `d_model` is the width of the hidden states,
by which an `Ensemble` tells its members' apart. Drafts that look into a model ask for more:
`apply(..., taps)` and `features` (`models/taps.py`), `embedding` and `source` (below).

A whole model in thirty lines (a test runs it):

  @dataclasses.dataclass(frozen=True)
  class Bag:
    '''Next token = argmax of (mean of the embeddings so far) @ E^T: a language model that is a
    running sum.''' vocab_size: int = 11
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
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.errors import UserError

Params = Any  # a nested dict of arrays
NO_PARENT = -1  # what stands for the root's parent in a list of parents


@struct.pytree
class Nodes:
  """The tokens of one call, relative to what is cached: NumPy where the shape of the draft is
  static.

  A node sees every cached position, its ancestors and itself. Node j stands at position
  cache.length + depths[j].

    paths (0,) (1,) (0, 0) -> nodes root, a, b, aa
        root a b aa
    aa [ 1   1 0 1 ]      aa sees root, its parent a, and itself
  """

  parents: Int[Array | np.ndarray, '*b n']  # NO_PARENT for the root, node 0
  depths: Int[Array | np.ndarray, '*b n']
  # None: a chain, whose n * n entries need not be stored
  tree_mask: Bool[Array | np.ndarray, '*b n n'] | None

  def __init__(
    self,
    parents: Int[Array | np.ndarray, '*b n'],
    depths: Int[Array | np.ndarray, '*b n'],
    mask: Bool[Array | np.ndarray, '*b n n'] | None = None,
  ) -> None:
    struct.assign(self, parents=parents, depths=depths, tree_mask=mask)

  @property
  def n(self) -> int:
    """How many there are, the root included."""
    return self.parents.shape[-1]

  @property
  def is_chain(self) -> bool:
    """Whether it is known at compile time that node i sees the nodes up to i: then compare numbers,
    and leave `mask` alone, which would put n * n entries into the program."""
    return self.tree_mask is None

  @property
  def mask(self) -> Bool[Array | np.ndarray, '*b n n']:
    """mask[i, j]: i sees j."""
    return np.tri(self.n, dtype=bool) if self.tree_mask is None else self.tree_mask


def causal(n: int) -> Nodes:
  """A chain of n nodes, each the child of the one before: a prompt, or a draft without branches."""
  index = np.arange(n, dtype=np.int32)  # index - 1 is the node before, and NO_PARENT for the root
  return Nodes(parents=index - 1, depths=index)


@dataclasses.dataclass(frozen=True)
class Capacity:
  """How much room a decode needs in a cache.

  The loop hands it to `Model.init_cache` as `slots`. A cache that remembers every token needs
  `total` slots; a ring, which overwrites what nobody sees any more, needs to know only how wide a
  call is and how far it may have to go back. Python takes a Capacity wherever it takes a size (in
  the shape of an array, say): there it stands for `total`.
  """

  total: int  # tokens of the padded prompt, of the longest output, and of one draft behind it
  nodes: int  # tokens of the widest call: that of the prompt, or of a draft
  # committed tokens that may be taken back: a draft model's, which reads its own guesses
  back: int = 0

  def __index__(self) -> int:
    return self.total


@runtime_checkable
class Cache(Protocol):
  """What a model remembers of the tokens before: a frozen pytree with one length per row.

  `Model.apply` writes the n nodes of a call behind each row's `length` tokens, and leaves the
  length as it is. Then `commit` keeps some of them. A new call overwrites what was not committed.
  The kinds in `fastdec/cache` follow this; a model may have its own.
  """

  @property
  def length(self) -> Int[Array, ' b']:
    """Committed tokens of each row."""
    ...

  def commit(self, path: Int[Array, 'b m'] | None, count: Int[Array, ' b']) -> 'Cache':
    """Keeps the first `count` nodes of `path` among the nodes written last, and forgets the rest.

    Args:
      path: node indices from the root down; entries from `count` on do not matter. None
        for a chain, whose nodes already stand in order, so that nothing need be moved.
      count: nodes to keep in each row, 0 to m. 0 leaves a row as it was. With path None it may be
        negative: that takes back as many tokens that were committed last. No row goes back further
        than `Capacity.back` tokens behind the longest that it has been, and none of a target, where
        `back` is 0: only draft models read what may be wrong.

    Returns:
      The cache with length + count tokens.
    """
    ...

  def gather(self, rows: Int[Array, ' w']) -> 'Cache':
    """The cache whose row i is this one's row rows[i]: beam search reorders so, and multiplies a
    row into its beams.

    Args:
      rows: indices of rows of this cache. Row i of the result belongs to the same source as before,
        so that what all beams of a source share (the encoder's memory) is not copied.
    """
    ...

  def take(self, rows: Int[Array, ' r'], beams: int) -> 'Cache':
    """The cache of some sources alone.

    Args:
      rows: indices of sources, in the order wanted.
      beams: rows of this cache that each source has, lying together; 1 outside beam search.

    Returns:
      The cache with r * beams rows, and what the sources share, for these sources.
    """
    ...


@runtime_checkable
class Model(Protocol):
  """A model that the loop can decode: a frozen and hashable value, since jit compiles one program
  per value.

  Its functions are pure. Tokens that one of them is given may stand at different positions in
  different rows: row b of a cache has length[b] tokens.
  """

  @property
  def vocab_size(self) -> int:
    """Ids are 0 to vocab_size - 1."""
    ...

  @property
  def eos_ids(self) -> tuple[int, ...]:
    """Tokens that end a row; none for images."""
    ...

  @property
  def pad_id(self) -> int:
    """What stands behind the end of an output, and of a source."""
    ...

  @property
  def start_id(self) -> int | None:
    """Encoder-decoder: the token before the first. None: decoder-only, the prompt is the input."""
    ...

  @property
  def suppressed_ids(self) -> tuple[int, ...]:
    """Tokens that are never drafted and never emitted."""
    ...

  @property
  def max_positions(self) -> int | None:
    """The longest sequence that it can read, in tokens; None: any."""
    ...

  @property
  def fixed_length(self) -> int | None:
    """Images: the number of tokens of every output. Else None."""
    ...

  def encode(self, params: Params, inputs: Array | None) -> Any:
    """The memory of the inputs: a pytree with rows first, computed once a decode. None without an
    encoder.

    Args:
      params: the model's parameters.
      inputs: source ids int32[b, s], padded with `pad_id`, or images uint8[b, 8, 8, 3]; None
        without an encoder.

    Raises:
      UserError: inputs of a kind that the model does not read.
    """
    ...

  def init_cache(self, params: Params, memory: Any, rows: int, slots: int | Capacity) -> Cache:
    """An empty cache.

    Args:
      params: the model's parameters.
      memory: as `encode` returned it.
      rows: sequences of the batch.
      slots: tokens that a row must have room for. The loop gives a `Capacity`, which says besides
        how wide a call is, so that a ring may be smaller, and how far the cache must be able to go
        back; for a plain number it must have room for a call of any width, and need not go back.

    Raises:
      UserError: the cache would have to go back, and cannot: the model is no draft model.
    """
    ...

  def apply(
    self,
    params: Params,
    tokens: Int[Array, 'b n'],
    nodes: Nodes,
    cache: Cache,
    taps: tuple[int, ...] = (),
  ) -> tuple[Float[Array, 'b n d'], tuple[Float[Array, 'b n _'], ...], Cache]:
    """Reads the nodes of one call.

    Args:
      params: the model's parameters.
      tokens: the nodes' ids. Padding may stand at the end of a row: nothing real sees it, and it is
        never committed.
      nodes: their tree. Node j of row b stands at position cache.length[b] + depths[j], and sees
        the committed tokens, its ancestors and itself.
      cache: with room for n tokens behind each row's length.
      taps: layers whose states a drafter reads. k stands for the residual stream after k decoder
        layers: 0 is what enters the first layer (embeddings, with positions where they are added),
        L what leaves the last, before any final norm. A model may leave this argument out: the loop
        gives it only where the drafter asks.

    Returns:
      hidden: a state for each node, from which `unembed` makes the law of the token after it.
      taps: the states of these layers, in the order asked for; () where nobody asked, and nothing
        is computed.
      cache: with the nodes written, and not yet committed.

    Raises:
      UserError: taps that are not there (`models.taps.check_taps`).
    """
    ...

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Logits of the token after each hidden state, in float32 at least. They need not be
    normalised."""
    ...


def check_special_ids(config: Any) -> None:
  """Raises UserError where a config's pad id or a suppressed id is outside its vocabulary, or ids
  are no tuple."""
  for name in ('eos_ids', 'suppressed_ids'):
    if not isinstance(getattr(config, name), tuple):
      raise UserError(f'{name}={getattr(config, name)} is not possible: give a tuple, such as (1,)')
  for name, ids in (('pad_id', (config.pad_id,)), ('suppressed_ids', config.suppressed_ids)):
    if any(not 0 <= one < config.vocab_size for one in ids):
      raise UserError(
        f'{name}={getattr(config, name)} is not possible: give ids from 0 to'
        f' {config.vocab_size - 1}'
      )


def setting(name: str) -> Any:
  """A value of a model that its config says."""
  return property(lambda model: getattr(model.config, name))


def has_own_source_ids(model: Model) -> bool:
  """Whether ids of the source mean other words than those of the target: then the model has a
  `source_vocab_size`."""
  return getattr(model, 'source_vocab_size', None) is not None


def source_words(model: Model) -> int:
  """How many ids a source may have."""
  own = getattr(model, 'source_vocab_size', None)
  return model.vocab_size if own is None else own


def float_type(params: Params) -> Any:
  """The widest type among the parameters that are no whole numbers."""
  return np.result_type(
    *(x.dtype for x in jax.tree.leaves(params) if jnp.issubdtype(x.dtype, jnp.floating))
  )


def vocabulary_projection(model: Model) -> Callable[[Params, Array], Array]:
  """The model's `project` where it has one: a model whose `unembed` does more than project (a
  learned p1) has both, so that heads share the projection and not the rest. Else its `unembed`."""
  return getattr(model, 'project', model.unembed)


def embedding_of(model: Model) -> Callable[[Params, Array], Array]:
  """The model's `embedding`: parameters and ids int[...] -> the embeddings [..., e] that it reads,
  without positions.

  Raises:
    UserError: it has none.
  """
  found = getattr(model, 'embedding', None)
  if found is None:
    raise UserError(
      f'{type(model).__name__} gives no embeddings of tokens, which rooted heads and draft networks'
      ' read: give it a'
      ' method embedding(params, tokens), or take heads with rooted=False, or a draft network with'
      ' its own embedding'
    )
  return found


def source_of(model: Model) -> Callable[[Any], Any]:
  """The model's `source`: memory, as `encode` returned it, -> what a draft's own cross-attention
  reads, the encoder's states `hidden` [b, s, e] and where they are real, `mask` [b, s]. None of a
  model without an encoder, or without this function."""
  return getattr(model, 'source', lambda memory: None)


def suppress(logits: Float[Array, '*b v'], ids: tuple[int, ...]) -> Float[Array, '*b v']:
  """The logits with `ids` at minus infinity: never drafted, never emitted."""
  if not ids:
    return logits
  banned = np.zeros(logits.shape[-1], bool)
  banned[list(ids)] = True
  return jnp.where(banned.reshape((1,) * (logits.ndim - 1) + (-1,)), -jnp.inf, logits)
