"""How a token is chosen from logits: `Sampling` and its distribution, draws, and rankings."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

from fastdec import struct
from fastdec.decoding.settings import (
  COLDEST,
  HOTTEST,
  LARGEST,
  SMALLEST,
  check_one_per_row,
  each,
  is_traced,
  is_zero,
)
from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.kernels.sharding import by_rows, by_words, constrain

FEW = 256  # tokens that are ranked first; the others only if they are needed
BLOCK = 16  # tokens in a block of `best`, which first ranks only the largest of each block
TIE = 1e-3  # what a window's middle counts extra, in `score_windows`


@struct.pytree
class Sampling:
  """How tokens are drawn from a model's logits: by temperature, top-k, top-p and min-p in turn.

  Each setting is one number, or an array with one number for each row. They are array leaves, so
  one compiled program serves a sweep.

  Args:
    temperature: divides the logits, 1e-6 to 1e6. 0 is greedy decoding: a strategy keeps it as
      `sampling=None`. In an array with one value for each row, 0 leaves only the most likely token.
    top_k: only the k most likely tokens (0: all).
    top_p: only the fewest most likely tokens with this probability together, after top_k (1: all).
    min_p: only tokens at least this fraction as likely as the likeliest, after top_p (0: all).

  Raises:
    UserError: a setting is out of range.
  """

  temperature: Any = 1.0  # float32, as all but top_k
  top_k: Any = 0  # int32
  top_p: Any = 1.0
  min_p: Any = 0.0

  def __post_init__(self) -> None:
    allowed = '0 for greedy decoding, or 1e-6 to 1e6'
    temperature = each('temperature', self.temperature, 0.0, HOTTEST, allowed)
    if not is_traced(temperature) and ((temperature > 0) & (temperature < COLDEST)).any():
      raise UserError(f'temperature={quote(self.temperature)} is not possible: give {allowed}')
    struct.assign(
      self,
      temperature=jnp.asarray(temperature),
      top_k=jnp.asarray(each('top_k', self.top_k, 0, LARGEST, 'a whole number from 0', True)),
      top_p=jnp.asarray(each('top_p', self.top_p, SMALLEST, 1.0, 'more than 0 and at most 1')),
      min_p=jnp.asarray(each('min_p', self.min_p, 0.0, 1.0, '0 to 1')),
    )

  @property
  def is_greedy(self) -> bool:
    """True at temperature 0, unless it is traced or rows have their own."""
    return is_zero(self.temperature)

  def log_probs(self, logits: Float[Array, '*b v']) -> Float[Array, '*b v']:
    """Returns log-probabilities of the distribution to draw from."""
    log_probs = warp(logits, self.temperature, self.top_k, self.top_p, self.min_p)
    # A new setting changes log_probs here, after the others: docs/add/sampling-setting.md.
    return log_probs

  def check_rows(self, rows: int) -> None:
    """Raises UserError unless settings that differ by row have one number for each of `rows`."""
    for name, value in vars(self).items():
      check_one_per_row(name, value, rows)

  def select_rows(self, rows: Any) -> 'Sampling':
    """Returns the settings of these rows only; one number for all rows stays."""
    return jax.tree.map(lambda x: x[rows] if x.ndim else x, self)


SETTINGS = tuple(field.name for field in dataclasses.fields(Sampling))  # temperature, top_k, ...


def check_sampling(sampling: Any) -> Sampling | None:
  """Returns the `sampling` of a strategy, and None for temperature 0: the most likely token.

  Raises:
    UserError: something else than `Sampling` or None.
  """
  if sampling is None:
    return None
  if not isinstance(sampling, Sampling):
    raise UserError(
      f'sampling={quote(sampling)} is not possible: give fd.Sampling(temperature=0.8), for example,'
      ' or None for greedy decoding'
    )
  return None if sampling.is_greedy else sampling


def argmax(x: Float[Array, '*b v']) -> Int[Array, '*b']:
  """Returns the index of the largest entry, the lowest if several are equal.

  XLA's CPU backend vectorises these two reductions, but not `jnp.argmax`, which reduces pairs.
  """
  v = x.shape[-1]
  at_max = x == x.max(axis=-1, keepdims=True)
  return jnp.where(at_max, jnp.arange(v, dtype=jnp.int32), v - 1).min(axis=-1)


def best(x: Float[Array, '*b v'], m: int) -> tuple[Float[Array, '*b m'], Int[Array, '*b m']]:
  """Returns the m largest entries and their indices, largest first.

  Among equal entries the lowest index comes first, but 0 may come before -0. On a mesh each device
  ranks its own words.
  """
  if m == 1:
    return x.max(axis=-1, keepdims=True), argmax(x)[..., None]
  values, ids = by_words(_rank_blocks)(x, m)
  return values, ids


def _rank_blocks(
  x: Float[Array, '*b v'], m: int
) -> tuple[Float[Array, '*b m'], Int[Array, '*b m']]:
  """Returns the result of `best`.

  Ranking takes most of the time, so only m blocks are ranked: those with the largest maxima, which
  are cheap to find and must contain the m largest entries.
  """
  v = x.shape[-1]
  if v < 2 * m * BLOCK:
    return rank(x, m)
  pad = [(0, 0)] * (x.ndim - 1) + [(0, -v % BLOCK)]
  blocks = jnp.pad(x, pad, constant_values=-jnp.inf).reshape(*x.shape[:-1], -1, BLOCK)
  # The blocks are in the order of indices, so that the first of equal entries has the lowest index.
  which = jnp.sort(rank(blocks.max(axis=-1), m)[1], axis=-1)
  few = jnp.take_along_axis(blocks, which[..., None], axis=-2)
  values, places = rank(few.reshape(*x.shape[:-1], -1), m)
  return values, jnp.take_along_axis(which, places // BLOCK, axis=-1) * BLOCK + places % BLOCK


def score_windows(logits: Float[Array, '*b v'], reach: int) -> Float[Array, '*b v']:
  """Returns for each token the log-probability of all tokens at most `reach` ids away.

  It ranks guesses for ids that have an order, where a rule accepts guesses near the right one
  (`Distance`). Among equally likely windows the one with the most likely middle wins. Tokens that
  are never emitted keep minus infinity. For a reach of 0 it returns the logits.
  """
  if not reach:
    return logits
  wide = jax.nn.softmax(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)), axis=-1)
  v = wide.shape[-1]
  reach = min(reach, v - 1)
  padded = jnp.pad(wide, [(0, 0)] * (wide.ndim - 1) + [(reach, reach)])
  near = jax.lax.reduce_window(
    padded, 0.0, jax.lax.add, (1,) * (wide.ndim - 1) + (2 * reach + 1,), (1,) * wide.ndim, 'valid'
  )
  return jnp.where(jnp.isneginf(logits), -jnp.inf, jnp.log(near + TIE * wide))


def rank(x: Float[Array, '*b v'], m: int) -> tuple[Float[Array, '*b m'], Int[Array, '*b m']]:
  """Returns the result of `lax.top_k`, on a CPU with a barrier around it.

  Without the barrier, XLA's CPU backend sorts all entries if only a slice of the result is read,
  which takes ten times as long.
  """

  def top(x: Array) -> tuple[Array, Array]:
    values, ids = jax.lax.top_k(x, m)
    return values, ids

  def top_on_cpu(x: Array) -> tuple[Array, Array]:
    # In the order of `top_k`, XLA fails on a mesh: it takes the two for the result of `top_k`.
    values, ids = top(x)
    ids, values = jax.lax.optimization_barrier((ids, values))
    return values, ids

  return by_rows(lambda x: jax.lax.platform_dependent(x, cpu=top_on_cpu, default=top))(x)


def is_among(tokens: Int[Array, '*b'], ids: tuple[int, ...]) -> Bool[Array, '*b']:
  """True where a token is one of these."""
  is_one = jnp.zeros(tokens.shape, bool)
  for one in ids:
    is_one |= tokens == one
  return is_one


def require_keys(keys: Array | None) -> Array:
  """Returns the keys; raises UserError if there are none."""
  if keys is None:
    raise UserError(
      'sampling needs a random key, and none was given: give key=jax.random.key(0), for example'
    )
  return keys


def fold_keys(keys: Array | None, use: int | Int[Array, '']) -> Array:
  """Returns keys [b] for the draw with the number `use`; raises UserError without keys."""
  return jax.vmap(jax.random.fold_in, (0, None))(require_keys(keys), use)


def draw(keys: Array | None, log_p: Float[Array, 'b *n v']) -> Int[Array, 'b *n']:
  """Draws a token from each distribution, with the key of its row."""
  return jax.vmap(jax.random.categorical)(require_keys(keys), log_p).astype(jnp.int32)


def warp(
  logits: Float[Array, '*b v'],
  temperature: Float[Array, '*r'],
  top_k: Int[Array, '*k'],
  top_p: Float[Array, '*p'],
  min_p: Float[Array, '*m'],
) -> Float[Array, '*b v']:
  """Returns log-probabilities to sample from: temperature, top-k, top-p, then min-p.

  The settings are arrays, each one number or one for each row: one compiled program serves a sweep,
  and ranks tokens only if top_k or top_p needs it.

  Args:
    logits: rows first; minus infinity for tokens that are ruled out.
    temperature: above 0. A row's own may be 0, which leaves only the most likely token.
    top_k: keeps the k most likely tokens and those that are as likely as the last (0: all).
    top_p: keeps the fewest most likely tokens that have at least this probability together (1:
      all), among those that top_k leaves. Among equally likely tokens the lower id comes first.
    min_p: keeps the tokens at least this fraction as likely as the most likely one (0: all).
  """

  # Settings of rows get axes of length 1 for the other axes of the logits.
  def expand(setting: Array) -> Array:
    return setting.reshape(*setting.shape, *(1,) * (logits.ndim - 1)) if setting.ndim else setting

  temperature, top_k, top_p, min_p = map(expand, (temperature, top_k, top_p, min_p))
  is_cold = temperature == 0
  if temperature.ndim:
    temperature = jnp.where(is_cold, 1, temperature)
  scaled = scale(logits, temperature)

  # Conditions on the device: a setting that is off in all rows costs nothing.
  def cut_min_p(x: Array) -> Array:
    least = x.max(axis=-1, keepdims=True) + jnp.log(min_p).astype(x.dtype)
    return jnp.where(x >= least, x, -jnp.inf)

  # On a mesh of GPUs, XLA would gather the logits that a condition returns.
  by_parts = ('data', *[None] * (logits.ndim - 2), 'model')
  cuts = (top_k > 0).any() | (top_p < 1).any()
  scaled = jax.lax.cond(cuts, lambda x: _cut(x, top_k, top_p), lambda x: x, scaled)
  scaled = constrain(scaled, *by_parts)
  scaled = jax.lax.cond((min_p > 0).any(), cut_min_p, lambda x: x, scaled)
  scaled = constrain(scaled, *by_parts)
  log_p = jax.nn.log_softmax(scaled, axis=-1)
  if not temperature.ndim:
    return log_p
  is_best = _places(logits) == argmax(logits)[..., None]
  return jnp.where(is_cold, jnp.where(is_best, 0, -jnp.inf).astype(log_p.dtype), log_p)


def scale(logits: Float[Array, '*b v'], temperature: Float[Array, '...']) -> Float[Array, '*b v']:
  """Returns logits / temperature in float32 or wider, at most the largest number of the type.

  XLA multiplies by the reciprocal of a temperature that is a constant. If a subtraction follows, as
  in `log_softmax`, LLVM may fuse the two, with one rounding: then the largest logit minus itself is
  not 0, but may be millions. The minimum prevents that, and an overflow to infinity.
  """
  wide = logits.astype(np.promote_types(logits.dtype, np.float32))
  return jnp.minimum(wide / temperature.astype(wide.dtype), jnp.finfo(wide.dtype).max)


def _cut(
  scaled: Float[Array, '*b v'], top_k: Int[Array, '*k'], top_p: Float[Array, '*p']
) -> Float[Array, '*b v']:
  """Sets tokens to minus infinity that top-k or top-p leave out.

  Sorting a vocabulary takes a hundred times as long as finding its best few, which nearly always
  contain the kept tokens. If they do not, as in a flat distribution, `_keep_of_all` finds the kept
  tokens by halving.
  """
  v = scaled.shape[-1]
  x = jnp.where(scaled == 0, 0, scaled)  # -0 ties with 0
  most = x.max(axis=-1, keepdims=True)
  weight = jnp.exp(x - most)
  top_p = top_p.astype(x.dtype)

  # The best few, the last that top-k keeps, and the probability that top-p wants of what is left.
  best, ids = by_words(jax.lax.top_k)(x, min(FEW, v))  # ties: lowest id
  few = best.shape[-1]
  is_last = _places(best) == jnp.minimum(top_k, few) - 1
  kth = jnp.where(is_last, best, -jnp.inf).max(axis=-1, keepdims=True)  # -inf: top_k is 0
  best_weight = jnp.where(best >= kth, jnp.exp(best - most), 0)
  sums = jnp.cumsum(best_weight, axis=-1)
  is_all = (best[..., -1:] < kth) | (few == v)  # top-k cuts all tokens beyond the best few
  rest = jnp.where(x >= kth, weight, 0).sum(axis=-1, keepdims=True)
  goal = top_p * jnp.where(is_all, sums[..., -1:], rest)

  def keep_of_few() -> Bool[Array, '*b v']:
    kept = (best >= kth) & (sums - best_weight < goal)
    last = kept.sum(axis=-1, keepdims=True, dtype=jnp.int32).clip(1) - 1
    lowest = jnp.take_along_axis(best, last, axis=-1)
    last_id = jnp.take_along_axis(ids, last, axis=-1)
    by_p = (x > lowest) | ((x == lowest) & (_places(x) <= last_id))
    return jnp.where(top_p < 1, by_p, x >= kth)

  if few == v:
    return jnp.where(keep_of_few(), x, -jnp.inf)
  suffices = (top_k <= few) & (is_all | (top_p >= 1) | (sums[..., -1:] >= goal))
  kept = jax.lax.cond(suffices.all(), keep_of_few, lambda: _keep_of_all(x, weight, top_k, top_p))
  return jnp.where(kept, x, -jnp.inf)


def _keep_of_all(
  x: Float[Array, '*b v'],
  weight: Float[Array, '*b v'],
  top_k: Int[Array, '*k'],
  top_p: Float[Array, '*p'],
) -> Bool[Array, '*b v']:
  """Returns the mask of the tokens that top-k and top-p keep; `weight` is p before it sums to 1."""
  # Integers in the order of the floats
  bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f'uint{8 * x.dtype.itemsize}'))
  sign = jnp.ones_like(bits) << (8 * x.dtype.itemsize - 1)
  key = jnp.where(bits >= sign, ~bits, bits | sign)

  def keep_k() -> Bool[Array, '*b v']:
    wanted = jnp.broadcast_to(top_k, x[..., :1].shape).astype(x.dtype)
    return (key >= _find_least(key, jnp.ones_like(x), wanted)) | (top_k == 0)

  by_k = jax.lax.cond((top_k > 0).any(), keep_k, lambda: jnp.ones_like(x, bool))
  rest = jnp.where(by_k, weight, 0)

  def keep_p() -> Bool[Array, '*b v']:
    return _keep_fewest(key, rest, top_p * rest.sum(axis=-1, keepdims=True)) | (top_p >= 1)

  return by_k & jax.lax.cond((top_p < 1).any(), keep_p, lambda: by_k)


def _find_least(
  key: UInt[Array, '*b v'], weight: Float[Array, '*b v'], goal: Float[Array, '*b 1']
) -> UInt[Array, '*b 1']:
  """Returns the largest key whose weight, together with those of larger keys, reaches the goal.

  Halving takes a pass over the vocabulary for each bit in which keys differ.
  """

  def reaches(at: UInt[Array, '*b 1']) -> Bool[Array, '*b 1']:
    return jnp.where(key >= at, weight, 0).sum(axis=-1, keepdims=True) >= goal

  return _find_largest(reaches, key.min(axis=-1, keepdims=True), key.max(axis=-1, keepdims=True))


def _keep_fewest(
  key: UInt[Array, '*b v'], weight: Float[Array, '*b v'], goal: Float[Array, '*b 1']
) -> Bool[Array, '*b v']:
  """Returns the mask of the fewest tokens whose weights sum to the goal.

  They have the largest keys and, among equal keys, the lowest ids. If only some of equal keys are
  kept, it takes one more pass for each bit of an id.
  """
  lowest = _find_least(key, weight, goal)
  above, tied = key > lowest, key == lowest
  v = key.shape[-1]
  back = v - _places(key)  # the lowest id has the largest number
  first = jnp.where(tied, back, v).min(-1, keepdims=True)
  last = jnp.where(tied, back, 0).max(-1, keepdims=True)

  def reaches(at: Int[Array, '*b 1']) -> Bool[Array, '*b 1']:
    kept = above | (tied & (back >= at))
    return jnp.where(kept, weight, 0).sum(axis=-1, keepdims=True) >= goal

  return above | (tied & (back >= _find_largest(reaches, first, last)))


def _find_largest(holds: Callable[[Array], Array], least: Array, most: Array) -> Array:
  """Returns the largest number from `least` to `most` for which `holds` is true.

  `holds` is true up to some number. If it is true for none, the result is `least`.
  """

  def halve(span: tuple[Array, Array]) -> tuple[Array, Array]:
    low, high = span  # the result is at least low, and below high
    middle = low + (high - low) // 2
    is_reached = holds(middle)
    return jnp.where(is_reached, middle, low), jnp.where(is_reached, high, middle)

  return jax.lax.while_loop(lambda span: (span[1] - span[0] > 1).any(), halve, (least, most + 1))[0]


def _places(x: Array) -> Int[Array, '*b v']:
  """Returns 0, 1, 2, ... along the last axis."""
  return jax.lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
