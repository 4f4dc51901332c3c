"""Weights with which the tokens of a translation looked at its source, and their picture."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from fastdec.errors import UserError
from fastdec.evaluation.drawing import COLOURS, VERMILION
from fastdec.models.api import Model, Params, causal
from fastdec.models.attention import mix, weights_of
from fastdec.models.stacks import Attend


@functools.partial(jax.jit, static_argnames='model')
def cross_attention(
  model: Any, params: Params, inputs: Int[Array, ' s'], tokens: Int[Array, ' t']
) -> Float[Array, 'layers h t s']:
  """Weights of each source token for each written token, in each layer and head of the decoder:
  rows sum to 1.

  One call over the whole output, given its beginning; row i belongs to the query that wrote token
  i. The model translates, see `check_translates`, and its `apply` takes `across`, which the
  protocol does not ask. Source and output include their ends; padding gets no weight.
  """
  (t,), kept = tokens.shape, []
  fed = jnp.pad(tokens, (1, 0), constant_values=model.start_id)[None, :-1]
  cache = model.init_cache(params, model.encode(params, inputs[None]), 1, t)
  model.apply(params, fed, causal(t), cache, across=keeping(kept))
  return jnp.concatenate(kept)


def check_translates(model: Model, name: str) -> None:
  """Raises UserError where a model has no source tokens to look at."""
  if model.start_id is None:
    raise UserError(f'{name} is decoder-only and looks at no source: give a model that translates')
  if model.fixed_length is not None:
    raise UserError(
      f'{name} makes images, and its source has no tokens to name: give a model that translates'
    )


def keeping(kept: list[Array]) -> Attend:
  """Argument `across` of a model's `apply`: `attention.attend` that also appends its weights [b,
  h, n, s] to a list.

  Under jit the same jitted function must return the weights.
  """

  def attend(
    q: Array, kv: Any, mask: Array, drop: Any = lambda weights: weights, **how: Any
  ) -> Array:
    weights = weights_of(q, kv.k, mask, **how)
    b, g, r, n, s = weights.shape
    kept.append(weights.reshape(b, g * r, n, s))
    return mix(drop(weights), kv.v)

  return attend


# --- the picture: written tokens against source tokens, cut where the model's calls were

CELL, LETTER = 0.17, 0.068  # inches: a token's row or column; a letter of its name
SMALL = 7  # points, of the tokens
MOST = 100  # tokens on an axis


def figure(
  weights: Float[np.ndarray, 'panels t s'],
  names: Sequence[str],
  source: Sequence[str],
  written: Sequence[str],
  block_sizes: Sequence[int],
  title: str,
) -> Figure:
  """A panel for each matrix, in one scale of greys: source tokens across, written tokens down.

  A line marks the end of each call of the model; a call has a colour, and its number at the right.

  Args:
    weights: each row sums to 1.
    names: of the panels.
    source, written: the tokens' pieces, at most `MOST` of each.
    block_sizes: tokens that each call wrote; before them comes the one that came with the prompt.
    title: of the whole.
  """
  columns = len(names) if len(names) <= 3 else min(4, -(-len(names) // 2))
  rows = -(-len(names) // columns)
  across, down = LETTER * max(map(len, written)), LETTER * max(map(len, source))
  width = columns * (CELL * len(source) + 0.3) + across + 1.7  # the calls' names and the scale
  height = rows * (CELL * len(written) + 0.35) + down + 0.7
  made = Figure(
    figsize=(max(width, 5.5), height), dpi=120, layout=ConstrainedLayoutEngine(wspace=0.03)
  )
  panels = made.subplots(rows, columns, squeeze=False).ravel()
  for axes in panels[len(names) :]:
    axes.axis('off')
  sizes = [1, *map(int, filter(None, block_sizes))]
  blocks = np.repeat(np.arange(len(sizes)), sizes).tolist()
  for i, (axes, matrix, name) in enumerate(zip(panels, weights, names, strict=False)):
    shades = axes.imshow(matrix, cmap='Greys', vmin=0, vmax=float(weights.max()), aspect='auto')
    axes.set_title(name, fontsize=9)
    axes.tick_params(length=2)
    below = source if i + columns >= len(names) else ()
    axes.set_xticks(range(len(below)), below, rotation=90, fontsize=SMALL, parse_math=False)
    left = written if i % columns == 0 else ()
    axes.set_yticks(range(len(left)), left, fontsize=SMALL, parse_math=False)
    # inner panels have no labels
    for label, block in zip(axes.get_yticklabels(), blocks, strict=False):
      label.set_color(_colour(block))
    for end in list(itertools.accumulate(sizes))[:-1]:
      axes.axhline(end - 0.5, color=VERMILION, linewidth=0.9)
    if i % columns == columns - 1 or i == len(names) - 1:
      _name_calls(axes, sizes)
  made.colorbar(shades, ax=panels.tolist(), shrink=0.6, aspect=30, pad=0.02).ax.tick_params(
    labelsize=SMALL
  )
  made.suptitle(title, fontsize=10, parse_math=False)
  return made


def _name_calls(axes: Axes, sizes: Sequence[int]) -> None:
  """At the right, in the middle of what each wrote."""
  ends = np.cumsum(sizes)
  beside: Any = axes.secondary_yaxis('right')
  names = ['prompt', *(f'call {i}' for i in range(1, len(sizes)))]
  beside.set_yticks(ends - (np.array(sizes) + 1) / 2, names, fontsize=SMALL)
  beside.tick_params(length=0)
  for block, label in enumerate(beside.get_yticklabels()):
    label.set_color(_colour(block))


def _colour(block: int) -> str:
  """The colour of a block, a dark one so that small letters can be read; what came with the prompt
  is black."""
  return COLOURS[(block - 1) % 3] if block else 'black'
