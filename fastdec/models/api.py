"""The protocol of a model: seven values and four functions, no base class.

A model is a frozen, hashable value (a static argument of jit); its parameters are a plain nested
dict. Every strategy can decode a model that meets the protocol below. These members are optional:

  partition      partition(devices) returns the layout of the parameters on a mesh of devices, as
                 rows (regex, PartitionSpec); see `kernels.sharding`. Without it every device
                 holds all parameters.
  products       the parameters that may be stored in int8; see `kernels.quantized`
  d_model        the width of the hidden states, by which an `Ensemble` tells its members' apart
  source_pad_id  the id that pads sources, for models whose `pad_id` may also occur in a text. Their
                 encoders read NO_TOKEN, -1, as padding.
  reads_paths    True if caches are lists of slots, and `apply` takes masks, and positions of slots,
                 from `models/attention.py`, which reads `Nodes.paths`. Then beam search keeps all
                 beams of a row in one cache; otherwise it copies caches (`Cache.gather`).
  reads_length   False if the states of a prompt's beginning do not depend on the prompt's length:
                 prompts with the same beginning may then share them

Drafts that read a model's inner states need `apply(..., taps)`, `features` (`models/taps.py`),
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
NO_TOKEN = -1  # padding, where every id may occur in a text


@struct.pytree
class Paths:
  """A cache that holds several paths of a tree; see `decoding.beam.caches.PathCache`."""

  mask: Bool[Array, 'b n s']  # slots that each node of a call sees, its own included
  positions: Int[Array, 'b s']  # of the token in each slot, including the nodes'


@struct.pytree
class Nodes:
  """The tokens of one call: a tree that follows the cache. NumPy if the draft's shape is static.

  A node sees every cached position, its ancestors and itself, unless `paths` says otherwise. Node j
  is at position cache.length + depths[j].

    paths (0,) (1,) (0, 0) -> nodes root, a, b, aa
        root a b aa
    aa [ 1   1 0 1 ]      aa sees root, its parent a, and itself
  """

  parents: Int[Array | np.ndarray, '*b n']  # NO_PARENT for the root, node 0
  # the rows of a chain may have different depths, although they share its parents
  depths: Int[Array | np.ndarray, '*c n']
  # None: a chain, whose n * n entries need not be stored
  tree_mask: Bool[Array | np.ndarray, '*b n n'] | None
  # length of the whole prompt, if these tokens are a part of one; see `Rope.angles`
  text: Int[Array, ' b'] | None
  # None: the cache holds one text. Otherwise depths may be negative, since several tokens of the
  # cache have one position
  paths: Paths | None

  def __init__(
    self,
    parents: Int[Array | np.ndarray, '*b n'],
    depths: Int[Array | np.ndarray, '*c n'],
    mask: Bool[Array | np.ndarray, '*b n n'] | None = None,
    text: Int[Array, ' b'] | None = None,
    paths: Paths | None = None,
  ) -> None:
    struct.assign(self, parents=parents, depths=depths, tree_mask=mask, text=text, paths=paths)

  @property
  def n(self) -> int:
    """Number of nodes, the root included."""
    return self.parents.shape[-1]

  @property
  def is_chain(self) -> bool:
    """True if it is known at compile time that node i sees exactly the nodes 0 to i.

    Then compare indices instead of reading `mask`, which puts n * n entries into the program."""
    return self.tree_mask is None

  @property
  def mask(self) -> Bool[Array | np.ndarray, '*b n n']:
    """mask[i, j]: i sees j."""
    if self.tree_mask is None:
      return np.tri(self.n, dtype=bool)
    return self.tree_mask


def causal(
  n: int, length: Int[Array, ' b'] | None = None, text: Int[Array, ' b'] | None = None
) -> Nodes:
  """Returns a chain of n nodes, each a child of the one before, such as a prompt.

  Nodes from `length` on are padding. They get the position of the row's last real node, so that no
  position exceeds it. `text` is the length of the whole prompt, if the nodes are a part of one.
  """
  index = np.arange(n, dtype=np.int32)  # index - 1 is the node before, and NO_PARENT for the root
  if length is None:
    return Nodes(parents=index - 1, depths=index, text=text)
  last = jnp.maximum(length[:, None] - 1, 0)
  return Nodes(parents=index - 1, depths=jnp.minimum(index[None], last), text=text)


@dataclasses.dataclass(frozen=True)
class Capacity:
  """The slots that a decode needs in a cache.

  The loop passes it to `Model.init_cache` as `slots`. A cache that remembers every token needs
  `total` slots. A ring overwrites tokens that are out of sight: its size follows from `nodes` and
  `back`. Used as an integer, for example in the shape of an array, a Capacity is its `total`.
  """

  total: int  # tokens of the padded prompt, of the output so far planned, and of one draft
  nodes: int  # tokens of the widest call: the prompt, or a draft
  # committed tokens that may be taken back, by draft models that have read their own guesses
  back: int = 0
  # `total` of the last size to which the cache may grow; None: it does not grow. What kinds of
  # layers a cache has may depend on `most`, `nodes` and `back`, which do not change as it grows.
  most: int | None = None

  def __index__(self) -> int:
    return self.total

  @property
  def last_total(self) -> int:
    """Returns `most`, or `total` if the cache does not grow."""
    return self.total if self.most is None else self.most


@runtime_checkable
class Cache(Protocol):
  """A model's memory of earlier tokens: a frozen pytree with one length per row.

  `Model.apply` writes the n nodes of a call after each row's `length` tokens and does not change
  the length. Then `commit` keeps some of the nodes. The next call overwrites the others.
  `fastdec/cache` has several kinds; a model may bring its own.
  """

  length: Int[Array, ' b']  # committed tokens of each row

  def commit(self, path: Int[Array, 'b m'] | None, count: Int[Array, ' b']) -> 'Cache':
    """Keeps the first `count` nodes of `path`, of the nodes written last, and forgets the others.

    Args:
      path: node indices from the root down; entries from `count` on are ignored. None: the nodes
        are a chain. They are in order already, so nothing is moved.
      count: nodes to keep in each row, 0 to m. 0 does not change the row. If path is None, it may
        be negative: -c takes back the last c committed tokens. A row never goes back more than
        `Capacity.back` tokens from its greatest length. For targets `back` is 0: only draft models
        read tokens that may turn out wrong.

    Returns:
      The cache with length + count tokens.
    """
    ...

  def gather(self, rows: Int[Array, ' w']) -> 'Cache':
    """Returns the cache whose row i is row rows[i] of this one.

    A beginning that rows share is copied by it. So are the beams of a model without `reads_paths`,
    which beam search also reorders by it.

    Args:
      rows: indices of rows of this cache. Rows never move to another source, so the beams of
        a source can share the encoder's memory without a copy.
    """
    ...


@runtime_checkable
class Model(Protocol):
  """A model that the loop can decode. It is frozen and hashable: jit compiles a program per value.

  Its functions are pure. Rows may differ in length: row b of a cache has length[b] tokens, and the
  tokens of a call follow them.
  """

  vocab_size: int  # ids are 0 to vocab_size - 1
  eos_ids: tuple[int, ...]  # tokens that end a row; () for images
  pad_id: int  # fills up outputs and sources after their end
  # the decoder's first input token; None: a decoder-only model, whose input is the prompt
  start_id: int | None
  suppressed_ids: tuple[int, ...]  # never drafted and never emitted
  # tokens of the longest sequence that the model can read; None: no limit
  max_positions: int | None
  # number of tokens of every output (images); None: rows end with one of `eos_ids`
  fixed_length: int | None

  def encode(self, params: Params, inputs: Array | None) -> Any:
    """Encodes the inputs, once per decode: returns a pytree whose leaves have rows first.

    A model without an encoder returns None.

    Args:
      params: the model's parameters.
      inputs: source ids int32[b, s], padded with `pad_id`, or images uint8[b, 8, 8, 3]; None
        for a model without an encoder.

    Raises:
      UserError: the model cannot read inputs of this kind.
    """
    ...

  def init_cache(self, params: Params, memory: Any, rows: int, slots: int | Capacity) -> Cache:
    """Returns an empty cache.

    Args:
      params: the model's parameters.
      memory: what `encode` returned.
      rows: number of sequences in the batch.
      slots: the most tokens of a row. The loop passes a `Capacity`, which also bounds the width of
        a call and the number of tokens to take back, so that a ring may be smaller. If it is
        a plain number, calls may have any width, and no tokens are taken back.

    Raises:
      UserError: `slots.back` is not 0, and this cache cannot take tokens back. Such a model cannot
        be used as a draft.
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
      tokens: the nodes' ids. A row may end with padding, which no real node sees and which is never
        committed.
      nodes: their tree. Node j of row b is at position cache.length[b] + depths[j]. It sees the
        committed tokens, its ancestors and itself.
      cache: has free slots for n tokens after each row's length.
      taps: layers whose states a drafter reads. Tap k is the residual stream after k decoder
        layers: 0 is the input of the first layer (embeddings, with positions if they are added
        there), L is the output of the last layer, before any final norm. A model may omit this
        argument: the loop passes it only if the drafter needs it.

    Returns:
      hidden: a state for each node; `unembed` turns it into the logits of the token after the node.
      taps: the states of these layers, in the order of the argument; () if it is empty.
      cache: the cache with the nodes written but not yet committed.

    Raises:
      UserError: the model does not have one of the taps (`models.taps.check_taps`).
    """
    ...

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Returns the logits of the token after each state, in float32 or wider.

    They need not be normalised."""
    ...


def check_model(model: Any, params: Any) -> None:
  """Raises UserError unless these are a model and its parameters, in this order."""
  if hasattr(params, 'unembed'):
    raise UserError('the model was given instead of its parameters: give model, params')
  if not hasattr(model, 'unembed'):
    raise UserError(
      f'a value of type {type(model).__name__} is not a model: give both that fd.load returns,'
      ' as in model, params = fd.load(path)'
    )


def check_special_ids(config: Any) -> None:
  """Raises UserError unless lists of ids are tuples and ids are in the vocabulary.

  End tokens may be outside the vocabulary: such an id never occurs, so it ends nothing."""
  for name in ('eos_ids', 'suppressed_ids'):
    if not isinstance(getattr(config, name), tuple):
      raise UserError(f'{name}={getattr(config, name)} must be a tuple, such as (1,)')
  for name in ('pad_id', 'start_id', 'bos_id', 'suppressed_ids'):
    given = getattr(config, name, 0)
    for one in given if isinstance(given, tuple) else (given,):
      if not 0 <= one < config.vocab_size:
        raise UserError(
          f'{name}={given} is not possible: give ids from 0 to {config.vocab_size - 1}'
        )


def setting(name: str) -> Any:
  """Returns a property of a model that reads `name` from its config."""
  return property(lambda model: getattr(model.config, name))


def has_own_source_ids(model: Model) -> bool:
  """True if the source has its own vocabulary: the model has a `source_vocab_size`."""
  return getattr(model, 'source_vocab_size', None) is not None


def source_words(model: Model) -> int:
  """Size of the source's vocabulary."""
  own = getattr(model, 'source_vocab_size', None)
  return model.vocab_size if own is None else own


def source_pad(model: Model) -> int:
  """The id that pads sources: the model's `source_pad_id` if it has one, else its `pad_id`."""
  own = getattr(model, 'source_pad_id', None)
  return model.pad_id if own is None else own


def source_length(inputs: Int[Array, 'b s'], pad_id: int) -> Int[Array, ' b']:
  """Returns the number of tokens of each row's source. Only pad ids at its end are padding."""
  places = jnp.arange(1, inputs.shape[1] + 1, dtype=jnp.int32)
  return jnp.where(inputs != pad_id, places, 0).max(axis=1)


def float_type(params: Params) -> Any:
  """Returns the widest floating-point type of the parameters."""
  types = []
  for x in jax.tree.leaves(params):
    if jnp.issubdtype(x.dtype, jnp.floating):
      types.append(x.dtype)
  return np.result_type(*types)


def vocabulary_projection(model: Model) -> Callable[[Params, Array], Array]:
  """Returns the model's `project` if it has one, else its `unembed`.

  A model needs `project` only if its `unembed` does more than project, as with a learned p1. Heads
  share just the projection."""
  return getattr(model, 'project', model.unembed)


def embedding_of(model: Model) -> Callable[[Params, Array], Array]:
  """Returns the model's `embedding`: (parameters, ids int[...]) -> embeddings [..., e].

  Embeddings are the model's inputs without positions.

  Raises:
    UserError: the model has no `embedding`.
  """
  embedding = getattr(model, 'embedding', None)
  if embedding is None:
    raise UserError(
      f'{type(model).__name__} has no embedding(params, tokens), which rooted heads and draft'
      ' networks call: add this method, or use heads with rooted=False or a draft network with its'
      ' own embedding'
    )
  return embedding


def source_of(model: Model) -> Callable[[Any], Any]:
  """Returns the model's `source`, which turns the memory of `encode` into a draft's input.

  The input has the encoder's states `hidden` [b, s, e] and `mask` [b, s], true on real tokens; the
  draft's own cross-attention reads them. A model without an encoder, or without `source`, has none:
  the result is then a function that returns None."""
  return getattr(model, 'source', lambda memory: None)


def suppress(logits: Float[Array, '*b v'], ids: tuple[int, ...]) -> Float[Array, '*b v']:
  """Returns the logits with `ids` set to minus infinity: these are never drafted nor emitted."""
  if not ids:
    return logits
  banned = np.zeros(logits.shape[-1], bool)
  banned[list(ids)] = True
  return jnp.where(banned.reshape((1,) * (logits.ndim - 1) + (-1,)), -jnp.inf, logits)
