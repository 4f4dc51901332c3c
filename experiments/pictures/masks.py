"""Masks of one call of a model, kind by kind, worked out by the functions that decode with it; and
their picture."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fastdec.decoding.methods import growing
from fastdec.decoding.methods.eagle import frontier_mask
from fastdec.decoding.methods.lookahead import LookaheadDrafter
from fastdec.decoding.methods.ngrams import merge
from fastdec.decoding.topology import Topology
from fastdec.evaluation.drawing import SKY, VERMILION
from fastdec.heads.block import block_mask
from fastdec.models import attention, convolution
from fastdec.models.api import causal
from fastdec.models.transformer import Transformer, TransformerConfig

TREE = Topology.from_choices([[0], [1], [0, 0], [0, 1], [1, 0]]).nodes
TREE_NAMES = ('root', 'a', 'b', 'aa', 'ab', 'ba')
# probabilities after the nodes of each frontier
PROBABILITIES = (((0.7, 0.3), (0.9, 0.1)), ((0.5, 0.5), (0.6, 0.4)), ((0.5, 0.5), (0.5, 0.5)))
# of local attention, of the sliding window, of the convolution's kernel
BLOCK, WINDOW, WIDTH = 3, 4, 3


@dataclasses.dataclass(frozen=True)
class Mask:
  """Columns that each row sees."""

  title: str
  sees: Bool[np.ndarray, 'n s']
  rows: tuple[str, ...]
  columns: tuple[str, ...]  # what a slot holds: a committed position, a node; '': nothing yet
  committed: Bool[np.ndarray, ' s']  # before the call
  edges: tuple[int, ...] = ()  # columns with which a block of positions begins


def every_mask() -> list[Mask]:
  """Makes a mask of each kind; in the cache, nodes follow some committed positions."""
  zero, two, three, four, five = jnp.array([[0], [2], [3], [4], [5]])
  causally = attention.node_mask(causal(6), zero, 8), attention.node_mask(causal(4), three, 8)
  tree, window = attention.node_mask(TREE, three, 9), attention.node_mask(TREE, five, 11)
  window &= attention.node_window(TREE, five, 11, WINDOW)
  # a window of 2 rows and 3 columns, and the guesses b c and b d: the second b is never accepted
  pool = merge(jnp.array([[[1, 2], [1, 3]]]), jnp.ones((1, 2), bool))
  ahead = LookaheadDrafter(window=3, ngram=3, guesses=2).tree_of(pool).nodes
  ahead_names = ('root', '0,1', '0,2', '1,0', '1,1', '1,2', 'b', 'bc', '(b)', 'bd')
  # EAGLE reads one row after another: each call has its own mask
  rows = attention.node_mask(causal(3), jnp.array([4]), 9)
  block, block_names = block_mask(four, 4, 10), ('root', '?', '?', '?')
  return [
    _over_slots('causal: a prompt of 6', causally[0], _positions(0, 6), 0),
    _over_slots('causal: a chain of 4 after 3', causally[1], ('root', 'a', 'aa', 'aaa'), 3),
    _padding(),
    _over_slots('tree after 3', tree, TREE_NAMES, 3),
    _over_slots(f'sliding window of {WINDOW}: tree after 5', window, TREE_NAMES, 5),
    _local(),
    _convolution(),
    _over_slots('lookahead after 2', attention.node_mask(ahead, two, 12), ahead_names, 2),
    _over_slots('EAGLE: a chain of 4 after 4', rows, ('a', 'aa', 'aaa'), 4),
    _eagle_tree(),
    _over_slots('a block of 5 after 4', block, block_names, 4),
  ]


def _over_slots(title: str, sees: Array, rows: tuple[str, ...], length: int) -> Mask:
  """Makes the mask over a cache in which nodes follow `length` committed positions."""
  slots = sees.shape[-1]
  columns = (*_positions(0, length), *rows, *[''] * (slots - length - len(rows)))
  return Mask(title, np.asarray(sees[0]), rows, columns, np.arange(slots) < length)


def _padding() -> Mask:
  """The memory's mask, by an encoder of no size worth mentioning."""
  sizes: Any = {'d_model': 2, 'd_ff': 1, 'heads': 1, 'encoder_layers': 1, 'decoder_layers': 1}
  model = Transformer(TransformerConfig(vocab_size=4, **sizes))
  params = jax.tree.map(lambda x: jnp.zeros(x.shape), jax.eval_shape(model.init, jax.random.key(0)))
  ids = np.where(np.arange(8) < np.array([[8], [3], [5], [6]]), 2, model.pad_id)
  sees = np.asarray(model.encode(params, jnp.asarray(ids, jnp.int32)).mask)
  rows = tuple(f'sentence {i}' for i in range(1, 5))
  return Mask('padding: sources of 8, 3, 5, 6', sees, rows, _positions(0, 8), np.ones(8, bool))


def _local() -> Mask:
  """A ring of 2 B + n - 1 slots: position p of a chain is in slot p modulo their number."""
  length, n = 7, 3
  slots = 2 * BLOCK + n - 1
  sees = np.asarray(attention.local_mask(causal(n), jnp.array([length]), slots, BLOCK)[0])
  position = np.arange(length + n - slots, length + n)
  position = position[np.argsort(position % slots)]
  edges = tuple(np.flatnonzero(position % BLOCK == 0).tolist())
  names = tuple(map(str, position))
  title = f'local, blocks of {BLOCK}: 3 after {length}, a ring'
  return Mask(title, sees, _positions(length, length + n), names, position < length, edges)


def _convolution() -> Mask:
  """Not a mask but the slots that are read; those of `cache.conv`, where only the last ones are
  kept."""
  n, past = len(TREE_NAMES), WIDTH - 1
  sees = np.zeros((n, past + n), bool)
  np.put_along_axis(sees, np.asarray(convolution.frame_slots(TREE, WIDTH)), True, axis=1)
  columns = (*_positions(3 - past, 3), *TREE_NAMES)
  title = f'convolution of width {WIDTH}: tree after 3'
  return Mask(title, sees, TREE_NAMES, columns, np.arange(past + n) < past)


def _eagle_tree() -> Mask:
  """One frontier is read after another. A name is that of the parent, and how likely the node was
  among siblings."""
  width, nodes, length, slots = 2, 8, jnp.array([4]), 10
  tree = growing.start(jnp.log(jnp.array([[0.6, 0.4]])), width, nodes)
  before, names, rows = [''], [], []
  for level in range(3):
    parents = zip(tree.origin[0], tree.tokens[0], strict=True)
    before = [before[i] + 'ab'[rank] for i, rank in parents]
    names += before
    rows.append(frontier_mask(tree.sees, length, slots))
    tree = growing.advance(tree, jnp.log(jnp.array([PROBABILITIES[level]])))
  sees = jnp.concatenate(rows, axis=1)
  return _over_slots('EAGLE: a tree that grows, after 4', sees, tuple(names), 4)


def _positions(start: int, end: int) -> tuple[str, ...]:
  return tuple(map(str, range(start, end)))


# --- the picture: a square for each token and each slot of the cache, filled where it is seen

HIDDEN, COMMITTED, NODE = '#eeeeee', SKY, VERMILION  # told apart in grey, too
COLUMNS = 4


def figure(masks: Sequence[Mask]) -> Figure:
  """A panel for each, and what its colours mean in the last."""
  rows = len(masks) // COLUMNS + 1
  layout = ConstrainedLayoutEngine(wspace=0.04, hspace=0.08)
  made = Figure(figsize=(13, 2.7 * rows), dpi=100, layout=layout)
  panels = made.subplots(rows, COLUMNS).ravel()
  for axes, mask in zip(panels, masks, strict=False):
    _draw(axes, mask)
  for axes in panels[len(masks) :]:
    axes.axis('off')
  meanings = {
    'sees it, committed before': Patch(color=COMMITTED),
    'sees it, written by this call': Patch(color=NODE),
    'does not see it': Patch(color=HIDDEN),
    'a block begins': Line2D([], [], color='black'),
  }
  title = 'a row is a token, a column a slot'
  panels[-1].legend(meanings.values(), meanings, loc='center', frameon=False, title=title)
  return made


def _draw(axes: Axes, mask: Mask) -> None:
  n, s = mask.sees.shape
  kind = np.where(mask.sees, np.where(mask.committed, 1, 2), 0)
  axes.imshow(kind, cmap=ListedColormap([HIDDEN, COMMITTED, NODE]), vmin=0, vmax=2)
  axes.set_xticks(range(s), mask.columns, fontsize=9)
  axes.set_yticks(range(n), mask.rows, fontsize=9)
  axes.set_xticks(np.arange(s + 1) - 0.5, minor=True)
  axes.set_yticks(np.arange(n + 1) - 0.5, minor=True)
  axes.grid(which='minor', color='white', linewidth=1.5)
  axes.tick_params(which='both', length=0)
  axes.spines[:].set_visible(False)
  for edge in mask.edges:
    axes.axvline(edge - 0.5, color='black', linewidth=1.5)
  axes.set_title(mask.title, fontsize=10)
