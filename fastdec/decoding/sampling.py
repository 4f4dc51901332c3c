"""From logits to a token, or to the law it is drawn from."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt

from fastdec.errors import UserError

FEW = 256  # tokens that are ranked at first
BLOCK = 16  # tokens of which `best` ranks the largest at first
TIE = 1e-3  # of a window's middle, in `centred`


def argmax(x: Float[Array, '*b v']) -> Int[Array, '*b']:
  """The index of the largest entry, the lowest among equals.

  Two plain reductions, which XLA's CPU backend vectorises; `jnp.argmax` is one reduction over
  pairs, which it does not.
  """
  v = x.shape[-1]
  at_max = x == x.max(axis=-1, keepdims=True)
  return jnp.where(at_max, jnp.arange(v, dtype=jnp.int32), v - 1).min(axis=-1)


def best(x: Float[Array, '*b v'], m: int) -> tuple[Float[Array, '*b m'], Int[Array, '*b m']]:
  """The m largest entries and their indices, largest first; of equal ones the lowest index, but 0
  may come before -0.

  Ranking is what costs. The m largest stand in the m blocks with the largest maxima, and those are
  found by reductions.
  """
  v = x.shape[-1]
  if m == 1:
    return x.max(axis=-1, keepdims=True), argmax(x)[..., None]
  if v < 2 * m * BLOCK:
    return ranked(x, m)
  pad = [(0, 0)] * (x.ndim - 1) + [(0, -v % BLOCK)]
  blocks = jnp.pad(x, pad, constant_values=-jnp.inf).reshape(*x.shape[:-1], -1, BLOCK)
  # In the order of indices, so that of equal entries the first is the one of the lowest index.
  which = jnp.sort(ranked(blocks.max(axis=-1), m)[1], axis=-1)
  few = jnp.take_along_axis(blocks, which[..., None], axis=-2)
  values, places = ranked(few.reshape(*x.shape[:-1], -1), m)
  return values, jnp.take_along_axis(which, places // BLOCK, axis=-1) * BLOCK + places % BLOCK


def centred(logits: Float[Array, '*b v'], reach: int) -> Float[Array, '*b v']:
  """The logarithm of how likely a token at most `reach` ids away is; 0 leaves the logits as they
  are.

  What to guess by where ids are an order, and a guess within a distance of the right one is
  accepted (`Distance`). Of windows that are equally likely the one with the likelier middle counts
  more. What is never emitted stays so.
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


def ranked(x: Float[Array, '*b v'], m: int) -> tuple[Float[Array, '*b m'], Int[Array, '*b m']]:
  """`lax.top_k`, which XLA's CPU backend does not take apart: where a slice of what it found is all
  that is read, it would sort all entries in place of finding the largest, which takes ten times as
  long."""
  values, ids = jax.lax.optimization_barrier(tuple(jax.lax.top_k(x, m)))
  return values, ids


def given(keys: Array | None) -> Array:
  """The keys; without, a UserError."""
  if keys is None:
    raise UserError(
      'sampling needs randomness, and no key was given: give decode'
      ' key=jax.random.key(0), for example'
    )
  return keys


def folded(keys: Array | None, use: int | Int[Array, '']) -> Array:
  """A key for each row, [b], for the draw numbered `use`; a UserError where there are no keys."""
  return jax.vmap(jax.random.fold_in, (0, None))(given(keys), use)


def draw(keys: Array | None, log_law: Float[Array, 'b *n v']) -> Int[Array, 'b *n']:
  """A token from each law, with the key of its row."""
  return jax.vmap(jax.random.categorical)(given(keys), log_law).astype(jnp.int32)


def warp(
  logits: Float[Array, '*b v'],
  temperature: Float[Array, ''],
  top_k: Int[Array, ''],
  top_p: Float[Array, ''],
) -> Float[Array, '*b v']:
  """Log-probabilities of the law to sample from: temperature, then top-k, then top-p.

  Args:
    logits: minus infinity where a token is ruled out.
    temperature: above 0.
    top_k: keeps the k most likely tokens (0: all).
    top_p: keeps the fewest most likely tokens that have at least this probability together (1:
      all); what is cut by top_k does not count.
  Ties go to the lower id. The settings are arrays: one compiled program serves a sweep, and does
  not rank tokens where neither top_k nor top_p asks for it.
  """
  scaled = logits / temperature.astype(logits.dtype)

  def cut(x: Array) -> Array:
    return _cut(x, top_k, top_p)

  scaled = jax.lax.cond((top_k > 0) | (top_p < 1), cut, lambda x: x, scaled)
  return jax.nn.log_softmax(scaled, axis=-1)


def _cut(
  scaled: Float[Array, '*b v'], top_k: Int[Array, ''], top_p: Float[Array, '']
) -> Float[Array, '*b v']:
  """Minus infinity where top-k or top-p leave a token out.

  Sorting a vocabulary takes a hundred times as long as finding its best few, which nearly always
  hold what is kept. Where they do not, in a flat law say, what is kept is found by halving
  (`_fewest`).
  """
  v = scaled.shape[-1]
  x = jnp.where(scaled == 0, 0, scaled)  # -0 ties with 0
  most = x.max(axis=-1, keepdims=True)
  weight = jnp.exp(x - most)
  top_p = top_p.astype(x.dtype)

  best, ids = jax.lax.top_k(x, min(FEW, v))  # ties: lowest id
  few = best.shape[-1]
  among_k = _places(best) < jnp.where(top_k > 0, top_k, v)
  best_weight = jnp.where(among_k, jnp.exp(best - most), 0)
  sums = jnp.cumsum(best_weight, axis=-1)
  # tokens beyond the best few are cut by top_k, or there are none
  is_all = (few == v) | ((top_k > 0) & (top_k <= few))
  goal = top_p * jnp.where(is_all, sums[..., -1:], weight.sum(axis=-1, keepdims=True))

  def of_the_few() -> Bool[Array, '*b v']:
    kept = among_k & ((sums - best_weight < goal) | (top_p >= 1))
    last = kept.sum(axis=-1, keepdims=True, dtype=jnp.int32) - 1
    lowest, last_id = (jnp.take_along_axis(y, last, axis=-1) for y in (best, ids))
    return (x > lowest) | ((x == lowest) & (_places(x) <= last_id))

  if few == v:
    return jnp.where(of_the_few(), x, -jnp.inf)
  suffices = is_all | ((top_k == 0) & (sums[..., -1:] >= goal).all())
  kept = jax.lax.cond(suffices, of_the_few, lambda: _kept_of_all(x, weight, top_k, top_p))
  return jnp.where(kept, x, -jnp.inf)


def _kept_of_all(
  x: Float[Array, '*b v'],
  weight: Float[Array, '*b v'],
  top_k: Int[Array, ''],
  top_p: Float[Array, ''],
) -> Bool[Array, '*b v']:
  """What top-k and top-p keep, whatever the law; `weight` is in proportion to the probabilities."""
  key = _sortable(x)

  def first_k() -> Bool[Array, '*b v']:
    return _fewest(key, jnp.ones_like(x), jnp.full_like(x[..., :1], top_k.astype(x.dtype)))

  by_k = jax.lax.cond(top_k > 0, first_k, lambda: jnp.ones_like(x, bool))
  rest = jnp.where(by_k, weight, 0)

  def first_p() -> Bool[Array, '*b v']:
    return _fewest(key, rest, top_p * rest.sum(axis=-1, keepdims=True))

  return by_k & jax.lax.cond(top_p < 1, first_p, lambda: by_k)


def _fewest(
  key: UInt[Array, '*b v'], weight: Float[Array, '*b v'], goal: Float[Array, '*b 1']
) -> Bool[Array, '*b v']:
  """The fewest tokens whose weights sum to the goal: the largest keys, of equal keys the lowest
  ids.

  Found by halving: a pass over the vocabulary for each bit in which keys differ, and for each bit
  of an id where only some of several equal keys are kept.
  """

  def total(which: Bool[Array, '*b v']) -> Float[Array, '*b 1']:
    return jnp.where(which, weight, 0).sum(axis=-1, keepdims=True)

  least, most = key.min(axis=-1, keepdims=True), key.max(axis=-1, keepdims=True)
  lowest = _largest(lambda at: total(key >= at) >= goal, least, most)
  above, tied = key > lowest, key == lowest
  v = key.shape[-1]
  back = v - _places(key)  # the lowest id has the largest
  first, last = (
    jnp.where(tied, back, v).min(-1, keepdims=True),
    jnp.where(tied, back, 0).max(-1, keepdims=True),
  )
  end = _largest(lambda at: total(above | (tied & (back >= at))) >= goal, first, last)
  return above | (tied & (back >= end))


def _largest(holds: Callable[[Array], Array], least: Array, most: Array) -> Array:
  """The largest number from `least` to `most` of which `holds` is true, where it is true up to some
  number; `least` where it is of none."""

  def halve(span: tuple[Array, Array]) -> tuple[Array, Array]:
    low, high = span  # what is sought is from low to below high
    middle = low + (high - low) // 2
    found = holds(middle)
    return jnp.where(found, middle, low), jnp.where(found, high, middle)

  return jax.lax.while_loop(lambda span: (span[1] - span[0] > 1).any(), halve, (least, most + 1))[0]


def _places(x: Array) -> Int[Array, '*b v']:
  """0, 1, 2, ... along the last axis."""
  return jax.lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)


def _sortable(x: Float[Array, '*b v']) -> UInt[Array, '*b v']:
  """Integers in the order of the floats."""
  bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f'uint{8 * x.dtype.itemsize}'))
  sign = jnp.ones_like(bits) << (8 * x.dtype.itemsize - 1)
  return jnp.where(bits >= sign, ~bits, bits | sign)
