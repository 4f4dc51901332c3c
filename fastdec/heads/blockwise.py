"""Prediction heads of blockwise parallel decoding (Stern et al. 2018, section 6 and figure 3).

Head i of k predicts the i-th next token from one hidden state of the decoder. It is a feed-forward
layer and a residual from the hidden state; all heads share the trunk's vocabulary projection.

Two layouts of the feed-forward layer:
  'paper'     one layer with hidden size k * d_ff; each of k outputs of size d sees all hidden units
  'separate'  k independent layers d -> d_ff -> d: 1 / k of the paper's second matrix

Head 1 (p1) predicts the trunk's own next token. `first='identity'` (the paper's footnote 1) omits
it: then exact decoding with a frozen trunk gives the trunk's greedy output by construction.
`first='transformed'` learns it as the paper does. `Transformed` is the model whose predictions all
go through it.

Unlike the paper's, heads may also read the root and the guess before: `heads.context`.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from fastdec.errors import UserError
from fastdec.fields import check_choices, check_shares, check_sizes
from fastdec.heads.context import Context
from fastdec.kernels.packed import drop_panels
from fastdec.kernels.sharding import WORDS, Table
from fastdec.models.api import Params
from fastdec.models.layers import affine, dropout, project, project_each, unit_scaling

LAYOUTS = ('paper', 'separate')
FIRSTS = ('identity', 'transformed')


@dataclasses.dataclass(frozen=True)
class BlockwiseHeads(Context):
  """The heads' sizes: a hashable value.

  Parameters for h outputs: w1 [f, d], b1 [f], w2 and b2 [h, d]. In the layout 'paper' f = k * d_ff
  and w2 is [h, d, k * d_ff]; in 'separate' f = h * d_ff and w2 is [h, d, d_ff]. In rooted heads w1
  is [f, d + e], for embeddings of width e. A Markov bias has before [words, markov] and after
  [the heads' words, markov]."""

  k: int  # block size: head 1 is p1, heads 2..k draft
  d_model: int
  d_ff: int
  layout: str = 'separate'
  first: str = 'identity'
  dropout: float = 0.1  # on the hidden units and on each output, in training
  rooted: bool = False  # the heads read the root's embedding too
  d_embed: int | None = None  # its width (None: d_model)
  markov: int = 0  # rank of a bias by the token guessed before; 0: none
  words: int | None = None  # size of the vocabulary, for that bias
  # number of words that they guess among, with their own output (`heads.shortlist`); 0: all
  short: int = 0

  products = (r'(^|/)(w[12]|output|after)$',)  # see `kernels.products`

  def __post_init__(self) -> None:
    if self.k < 2:
      raise UserError(
        f'heads need k >= 2, not k={self.k}: for k = 1, which drafts nothing, decode greedily'
      )
    check_sizes(self, 'd_model', 'd_ff')
    check_shares(self, 'dropout')
    check_choices(self, layout=LAYOUTS, first=FIRSTS)
    self.check_context()
    if self.rooted and self.first == 'transformed':
      raise UserError(
        "rooted=True with first='transformed' is not possible: p1 predicts the root,"
        ' and cannot read it'
      )

  @property
  def offsets(self) -> tuple[int, ...]:
    """Distances: output j predicts the target `offsets[j]` positions after p1's."""
    return tuple(range(1 if self.first == 'identity' else 0, self.k))

  @property
  def are_nested(self) -> bool:
    """True if the first heads on a frozen trunk are those that a smaller k would have.

    This holds if no head sees the others."""
    return self.layout == 'separate' and self.first == 'identity' and not self.markov

  @property
  def depth(self) -> int:
    """Number of tokens that the heads draft below the root."""
    return self.k - 1

  def partition(self, devices: int) -> Table:
    """Splits by hidden units; see `kernels.sharding`.

    The first matrix of separate heads is not split: each head's slice would be on one device."""
    rows = [(r'(^|/)w2$', P(None, None, 'model'))]
    if self.layout == 'paper':
      rows.append((r'(^|/)[wb]1$', P('model')))
    return (*rows, *WORDS)

  def init(self, key: Array) -> Params:
    """Returns fresh float32 parameters."""
    h, d = len(self.offsets), self.d_model
    if self.layout == 'paper':
      f = inner = self.k * self.d_ff
    else:
      f, inner = h * self.d_ff, self.d_ff
    key1, key2 = jax.random.split(key)
    params = {
      'w1': unit_scaling(key1, (f, d + self.root_width)),
      'b1': jnp.zeros(f),
      'w2': jax.vmap(lambda key: unit_scaling(key, (d, inner)))(jax.random.split(key2, h)),
      'b2': jnp.zeros((h, d)),
    }
    return params | self.init_bias(jax.random.fold_in(key, 0)) | self.init_words()

  def one(
    self,
    params: Params,
    hidden: Float[Array, '*b d'],
    index: Int[Array, ''],
    dropout_key: Array | None = None,
    root: Float[Array, '*b e'] | None = None,
  ) -> Float[Array, '*b d']:
    """Returns the hidden state of output `index` only: training draws a head for each minibatch."""
    w1, b1 = params['w1'], params['b1']
    if self.layout == 'separate':
      cut = functools.partial(
        jax.lax.dynamic_slice_in_dim, start_index=index * self.d_ff, slice_size=self.d_ff
      )
      w1, b1 = jax.tree.map(cut, drop_panels((w1, b1)))
    units = jax.nn.relu(affine(self.join_root(hidden, root), w1, b1))
    if dropout_key is None or not self.dropout:
      return hidden + affine(units, params['w2'][index], params['b2'][index])
    unit_key, output_key = jax.random.split(dropout_key)
    units = dropout(units, self.dropout, unit_key)
    output = affine(units, params['w2'][index], params['b2'][index])
    return hidden + dropout(output, self.dropout, output_key)

  def all(
    self, params: Params, hidden: Float[Array, 'b d'], root: Float[Array, 'b e'] | None = None
  ) -> Float[Array, 'b h d']:
    """Returns the hidden states of all outputs, at one position of each row."""
    w2, b2 = params['w2'], params['b2']
    units = jax.nn.relu(affine(self.join_root(hidden, root), params['w1'], params['b1']))
    if self.layout == 'paper':
      outputs = project(units, w2)
    else:
      outputs = project_each(units.reshape(len(units), -1, self.d_ff), w2)
    return hidden[:, None] + (outputs.astype(units.dtype) + b2.astype(units.dtype)[None])

  def drafting(self, params: Params, depth: int) -> tuple['BlockwiseHeads', Params]:
    """Returns the heads that draft `depth` tokens below the root, without p1 and later heads."""
    start = self.offsets.index(1)
    outputs, units = slice(start, start + depth), slice(None)
    if self.layout == 'separate':
      units = slice(start * self.d_ff, (start + depth) * self.d_ff)
    chosen = {
      'w1': params['w1'][units],
      'b1': params['b1'][units],
      'w2': params['w2'][outputs],
      'b2': params['b2'][outputs],
    }
    heads = dataclasses.replace(self, k=depth + 1, first='identity')
    return heads, chosen | self.take_shared(params)

  def logits(
    self,
    params: Params,
    hidden: Float[Array, 'b d'],
    project: Callable[[Array], Array],
    root: Float[Array, 'b e'] | None = None,
  ) -> Float[Array, 'b h v']:
    """See `Context`."""
    return project(self.all(params, hidden, root))

  def logits_at(
    self,
    params: Params,
    hidden: Float[Array, '*b d'],
    offset: Int[Array, ''],
    project: Callable[[Array], Array],
    dropout_key: Array | None = None,
    root: Float[Array, '*b e'] | None = None,
    before: Int[Array, '*b'] | None = None,
  ) -> Float[Array, '*b v']:
    """See `Context`; `offset` is one of `offsets`, or 0."""
    self.check_whole()
    first = self.offsets[0]

    def read(hidden):
      return self.one(params, hidden, jnp.maximum(offset - first, 0), dropout_key, root)

    # Without a learned p1, offset 0 is the trunk's own state.
    if first == 0:
      state = read(hidden)
    else:
      state = jax.lax.cond(offset == 0, lambda x: x, read, hidden)
    return self.add_markov_bias(params, project(state), offset, before)
