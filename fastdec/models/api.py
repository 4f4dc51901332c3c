"""The protocol of a model: seven values and four functions, no base class.

A model is a frozen, hashable value (a static argument of jit); its parameters are a plain nested
dict. Every strategy decodes a model that meets the protocol below. Some more members are optional:
`partition(devices)` gives the layout of the parameters on a mesh of devices, as rows of (regex,
PartitionSpec); see `kernels.sharding`. Without it every device has all of them. `products` names
the parameters that may be in int8; see `kernels.quantized`. `d_model` is the width of the hidden
states, by which an `Ensemble` separates those of its members. `source_pad_id` fills up sources, if
`pad_id` may be text: an encoder then reads NO_TOKEN, -1, as padding. `reads_length` is false if the
states of a prompt's beginning do not depend on the prompt's length: rows may then share them.
Drafts that read a model's inner states need `apply(..., taps)` and `features` (`models/taps.py`),
`embedding` and `source` (below).

A whole model in thirty lines (a test runs it):

  @dataclasses.dataclass(frozen=True)
  class Bag:
    '''Next token = argmax of (mean of the embeddings so far) @ E^T.'''
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

    def init_cache(self, params, memory, rows, slots):  # slots: an int, or a `Capacity`
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
NO_PARENT = -1  # the root's entry in a list of parents
NO_TOKEN = -1  # padding where no id is free for it


@struct.pytree
class Nodes:
  """The tokens of one call, a tree that follows the cache; NumPy if the draft's shape is static.

  A node sees every cached position, its ancestors and itself. Node j stands at position
  cache.length + depths[j].

    paths (0,) (1,) (0, 0) -> nodes root, a, b, aa
        root a b aa
    aa [ 1   1 0 1 ]      aa sees root, its parent a, and itself
  """

  parents: Int[Array | np.ndarray, '*b n']  # NO_PARENT for the root, node 0
  depths: Int[Array | np.ndarray, '*c n']  # a chain's may differ by row where its parents do not
  # None: a chain, whose n * n entries need not be stored
  tree_mask: Bool[Array | np.ndarray, '*b n n'] | None
  # length of the prompt that these are a part of, which is read at once: see `Rope.angles`
  text: Int[Array, ' b'] | None

  def __init__(
    self,
    parents: Int[Array | np.ndarray, '*b n'],
    depths: Int[Array | np.ndarray, '*c n'],
    mask: Bool[Array | np.ndarray, '*b n n'] | None = None,
    text: Int[Array, ' b'] | None = None,
  ) -> None:
    struct.assign(self, parents=parents, depths=depths, tree_mask=mask, text=text)

  @property
  def n(self) -> int:
    """Number of nodes, the root included."""
    return self.parents.shape[-1]

  @property
  def is_chain(self) -> bool:
    """True if it is known at compile time that node i sees the nodes up to i.

    Then compare numbers: `mask` would put n * n entries into the program."""
    return self.tree_mask is None

  @property
  def mask(self) -> Bool[Array | np.ndarray, '*b n n']:
    """mask[i, j]: i sees j."""
    return np.tri(self.n, dtype=bool) if self.tree_mask is None else self.tree_mask


def causal(
  n: int, length: Int[Array, ' b'] | None = None, text: Int[Array, ' b'] | None = None
) -> Nodes:
  """Returns a chain of n nodes, each a child of the one before: a prompt, an unbranched draft.

  Nodes from `length` on pad a row. They stand where its last one does, so none is farther on.
  `text` is the length of the whole prompt if these are a part of it.
  """
  index = np.arange(n, dtype=np.int32)  # index - 1 is the node before, and NO_PARENT for the root
  if length is None:
    return Nodes(parents=index - 1, depths=index, text=text)
  last = jnp.maximum(length[:, None] - 1, 0)
  return Nodes(parents=index - 1, depths=jnp.minimum(index[None], last), text=text)


@dataclasses.dataclass(frozen=True)
class Capacity:
  """The slots that a decode needs in a cache.

  The loop hands it to `Model.init_cache` as `slots`. A cache that remembers every token needs
  `total` slots. A ring overwrites tokens out of sight, so `nodes` and `back` are enough for it.
  As a size, such as in the shape of an array, a Capacity means `total`.
  """

  total: int  # tokens of the padded prompt, of its output for now, and of one draft after it
  nodes: int  # tokens of the widest call: on the prompt, or on a draft
  # committed tokens that may be taken back: by draft models, which read their own guesses
  back: int = 0
  more: int = 0  # slots that may be added to `total` later

  def __index__(self) -> int:
    return self.total


@runtime_checkable
class Cache(Protocol):
  """A model's memory of earlier tokens: a frozen pytree with one length per row.

  `Model.apply` writes the n nodes of a call after each row's `length` tokens, and leaves the
  length as it is. Then `commit` keeps some of them. A new call overwrites the uncommitted ones.
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
        for a chain, whose nodes already stand in order, so nothing need be moved.
      count: nodes to keep in each row, 0 to m. 0 leaves a row as it was. With path None it may be
        negative: -c takes the last c committed tokens back. A row never goes back more than
        `Capacity.back` tokens below its greatest length. Targets have `back` 0: only draft models
        read tokens that may be wrong.

    Returns:
      The cache with length + count tokens.
    """
    ...

  def gather(self, rows: Int[Array, ' w']) -> 'Cache':
    """Returns the cache whose row i is row rows[i] of this one.

    Beam search reorders rows with it, and multiplies a row into its beams.

    Args:
      rows: indices of rows of this cache. Row i of the result belongs to the same source as before.
        So the beams of a source share its memory (the encoder's) without a copy.
    """
    ...

  def take(self, rows: Int[Array, ' r'], beams: int) -> 'Cache':
    """Returns the cache of some sources alone.

    Args:
      rows: indices of sources, in the order wanted.
      beams: rows of this cache that each source has, lying together; 1 outside beam search.

    Returns:
      The cache with r * beams rows, and with the shared memory of these r sources.
    """
    ...


@runtime_checkable
class Model(Protocol):
  """A model that the loop can decode: frozen and hashable, since jit compiles a program per value.

  Its functions are pure. The tokens of a call may stand at different positions in different rows:
  row b of a cache has length[b] tokens.
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
    """The token after the end of an output, and of a source."""
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
    """Length of the longest sequence that the model can read, in tokens; None: any."""
    ...

  @property
  def fixed_length(self) -> int | None:
    """Images: the number of tokens of every output. Else None."""
    ...

  def encode(self, params: Params, inputs: Array | None) -> Any:
    """Returns the memory of the inputs: a pytree with rows first, computed once a decode.

    Without an encoder it is None.

    Args:
      params: the model's parameters.
      inputs: source ids int32[b, s], padded with `pad_id`, or images uint8[b, 8, 8, 3]; None
        without an encoder.

    Raises:
      UserError: inputs of a kind that the model does not read.
    """
    ...

  def init_cache(self, params: Params, memory: Any, rows: int, slots: int | Capacity) -> Cache:
    """Returns an empty cache.

    Args:
      params: the model's parameters.
      memory: as `encode` returned it.
      rows: sequences of the batch.
      slots: the most tokens of a row. The loop gives a `Capacity`, which also bounds
        the width of a call and the tokens to take back: so a ring may be smaller. For a plain
        number, calls may have any width, and no tokens are taken back.

    Raises:
      UserError: the cache would have to take tokens back, and cannot: this is not a draft model.
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
      cache: with free slots for n tokens after each row's length.
      taps: layers whose states a drafter reads. k stands for the residual stream after k decoder
        layers: 0 is the input of the first layer (embeddings, with positions if they are added
        there), L the output of the last, before any final norm. A model may leave this argument
        out: the loop gives it only if the drafter asks.

    Returns:
      hidden: a state for each node, from which `unembed` makes the law of the token after it.
      taps: the states of these layers, in the order of the argument; () if it is empty.
      cache: with the nodes written, and not yet committed.

    Raises:
      UserError: taps that the model does not have (`models.taps.check_taps`).
    """
    ...

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Returns logits of the token after each state, in float32 at least, perhaps unnormalised."""
    ...


def check_model(model: Any, params: Any) -> None:
  """Raises UserError unless these are a model and its parameters, in this order."""
  if hasattr(params, 'unembed'):
    raise UserError('the model stands in the place of its parameters: give model, params')
  if not hasattr(model, 'unembed'):
    raise UserError(
      f'a value of the kind {type(model).__name__} is no model: give both that fd.load returns, as'
      ' in model, params = fd.load(path)'
    )


def check_special_ids(config: Any) -> None:
  """Raises UserError for ids not in a tuple, or an id outside the vocabulary that is no end."""
  for name in ('eos_ids', 'suppressed_ids'):
    if not isinstance(getattr(config, name), tuple):
      raise UserError(f'{name}={getattr(config, name)} is not possible: give a tuple, such as (1,)')
  single = ((name, (getattr(config, name, 0),)) for name in ('pad_id', 'start_id', 'bos_id'))
  for name, ids in (*single, ('suppressed_ids', config.suppressed_ids)):
    if any(not 0 <= one < config.vocab_size for one in ids):
      raise UserError(
        f'{name}={getattr(config, name)} is not possible: give ids from 0 to'
        f' {config.vocab_size - 1}'
      )


def setting(name: str) -> Any:
  """Returns a property of a model that reads `name` from its config."""
  return property(lambda model: getattr(model.config, name))


def has_own_source_ids(model: Model) -> bool:
  """True if source ids mean other words than target ids: the model has a `source_vocab_size`."""
  return getattr(model, 'source_vocab_size', None) is not None


def source_words(model: Model) -> int:
  """Size of the source's vocabulary."""
  own = getattr(model, 'source_vocab_size', None)
  return model.vocab_size if own is None else own


def source_pad(model: Model) -> int:
  """Returns the id that fills up sources: `pad_id`, or NO_TOKEN where that ends texts too."""
  own = getattr(model, 'source_pad_id', None)
  return model.pad_id if own is None else own


def source_length(inputs: Int[Array, 'b s'], pad_id: int) -> Int[Array, ' b']:
  """Returns the number of tokens of each row's source; padding stands behind them only."""
  places = jnp.arange(1, inputs.shape[1] + 1, dtype=jnp.int32)
  return jnp.where(inputs != pad_id, places, 0).max(axis=1)


def float_type(params: Params) -> Any:
  """Returns the widest floating-point type among the parameters."""
  return np.result_type(
    *(x.dtype for x in jax.tree.leaves(params) if jnp.issubdtype(x.dtype, jnp.floating))
  )


def vocabulary_projection(model: Model) -> Callable[[Params, Array], Array]:
  """Returns the model's `project` if it has one, else its `unembed`.

  A model whose `unembed` does more than project (a learned p1) has both: heads share only the
  projection."""
  return getattr(model, 'project', model.unembed)


def embedding_of(model: Model) -> Callable[[Params, Array], Array]:
  """Returns the model's `embedding`: (parameters, ids int[...]) -> embeddings [..., e].

  These are its inputs without positions.

  Raises:
    UserError: it has none.
  """
  embedding = getattr(model, 'embedding', None)
  if embedding is None:
    raise UserError(
      f'{type(model).__name__} gives no embeddings of tokens, which rooted heads and draft networks'
      ' read: give it a method embedding(params, tokens), or take heads with rooted=False, or a'
      ' draft network with its own embedding'
    )
  return embedding


def source_of(model: Model) -> Callable[[Any], Any]:
  """Returns the model's `source`, which turns `encode`'s memory into input for drafts.

  A draft's own cross-attention reads the encoder's states `hidden` [b, s, e] and `mask` [b, s],
  true on real ones. A model without an encoder, or without this function, gives None."""
  return getattr(model, 'source', lambda memory: None)


def suppress(logits: Float[Array, '*b v'], ids: tuple[int, ...]) -> Float[Array, '*b v']:
  """Returns the logits with `ids` at minus infinity: never drafted, never emitted."""
  if not ids:
    return logits
  banned = np.zeros(logits.shape[-1], bool)
  banned[list(ids)] = True
  return jnp.where(banned.reshape((1,) * (logits.ndim - 1) + (-1,)), -jnp.inf, logits)
