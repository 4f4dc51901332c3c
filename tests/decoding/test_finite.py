"""Strategies report rows whose logits are NaN or infinite. They do not report the rows beside them,
nor drafts that were not accepted."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.cache.kv import KVCache
from fastdec.decoding.pool import decode_all
from fastdec.models.attention import node_mask
from tests.decoding.fakes import HashLM
from tests.decoding.methods_table import METHODS, OTHERS, hash_kit

POISON, MAX_LEN = 13, 9
BROKEN = {
  'nan': np.full(14, np.nan),
  'one is infinite': np.where(np.arange(14) == 3, np.inf, 0.0),
  'none is possible': np.full(14, -np.inf),
}
PROMPTS = np.array(
  [[3, 4, 5], [6, POISON, 8], [2, 9, 9], [POISON, 3, 3], [7, 5, 2], [4, 11, 2]], np.int32
)
STRATEGIES = {name: make(hash_kit()) for name, make in (METHODS | OTHERS).items()}
STRATEGIES['sampling speculatively'] = fd.Speculative(
  hash_kit().draft, 3, sampling=fd.Sampling(1.0)
)


@dataclasses.dataclass(frozen=True)
class Fragile(HashLM):
  """`HashLM`, whose logits are broken after any prefix that holds the token 13."""

  how: str = 'nan'

  def apply(self, params, tokens, nodes, cache):
    hidden, _, after = super().apply(
      params, tokens, nodes, dataclasses.replace(cache, layers=cache.layers[:1])
    )
    poison = (tokens == POISON).astype(jnp.float32)[:, None, :, None]
    second = cache.layers[1].write(poison, poison, cache.length)
    sees = node_mask(nodes, cache.length, cache.slots)
    is_broken = jnp.where(sees, second.v[:, 0, None, :, 0], 0).sum(-1, keepdims=True) > 0
    return jnp.where(is_broken, jnp.nan, hidden), (), KVCache((*after.layers, second), cache.length)

  def init_cache(self, params, memory, rows, slots):
    return KVCache.empty(layers=2, rows=rows, heads=1, slots=slots, width=1, dtype=jnp.float32)

  def unembed(self, params, hidden):
    logits = super().unembed(params, jnp.where(jnp.isnan(hidden), 0, hidden))
    broken = jnp.broadcast_to(jnp.asarray(BROKEN[self.how], jnp.float32), logits.shape)
    return jnp.where(jnp.isnan(hidden), broken, logits)


def chosen_by_nothing(out):
  """Marks rows in which a token was written behind the poison, be it in the prompt or the
  output."""
  read = [
    [*prompt, *row[: length - 1]]
    for prompt, row, length in zip(PROMPTS, out.tokens, out.lengths, strict=True)
  ]
  return np.array([POISON in tokens for tokens in read])


@pytest.mark.parametrize(
  ('name', 'how'),
  [(name, 'nan') for name in STRATEGIES] + [('greedy', how) for how in list(BROKEN)[1:]],
)
@pytest.mark.wide('speculative-nan', 'beam-nan')
def test_a_row_is_finite_where_its_own_tokens_were_chosen_by_numbers(name, how):
  """Also midway: a row that writes 13 is finite up to there, and a last token of 13 does no
  harm."""
  # beams that do not win count too
  model = Fragile(suppressed_ids=(0, POISON)) if name == 'beam' else Fragile(how=how)
  out = fd.decode(model, {}, PROMPTS, STRATEGIES[name], max_len=MAX_LEN, key=jax.random.key(2))
  expected = ~chosen_by_nothing(jax.device_get(out))
  assert out.finite.dtype == bool and out.finite.tolist() == expected.tolist()
  assert expected[[1, 3]].tolist() == [False, False] and expected.any()
  if name in ('greedy', 'sampling speculatively'):
    pool = decode_all(model, {}, list(PROMPTS), STRATEGIES[name], MAX_LEN, 4, jax.random.key(2))
    assert pool.finite.tolist() == expected.tolist()


def test_a_row_breaks_midway():
  out = fd.decode(
    Fragile(), {}, np.arange(2, 12)[:, None].repeat(3, axis=1), fd.Sample(4.0), max_len=30,
    key=jax.random.key(0),
  )  # fmt: skip
  wrote = [
    (row[: length - 1] == POISON).any()
    for row, length in zip(np.asarray(out.tokens), out.lengths, strict=True)
  ]
  assert out.finite.tolist() == [not is_poisoned for is_poisoned in wrote] and 0 < sum(wrote) < 10


def test_what_is_written_down_is_checked_before():
  out = fd.decode(Fragile(), {}, PROMPTS, fd.Greedy(), max_len=MAX_LEN)
  message = r'logits of \d of 6 rows were NaN or infinite.*check the weights'
  with pytest.raises(fd.UserError, match=message):
    out.checked()


def test_what_is_fine_is_passed_on():
  fine = fd.decode(HashLM(), {}, PROMPTS, fd.Greedy(), max_len=3)
  assert fine.checked() is fine


def test_a_stream_ends_before_it_shows_what_nothing_chose():
  blocks = fd.stream(Fragile(), {}, PROMPTS[1:2], fd.Greedy(), max_len=3)
  with pytest.raises(fd.UserError, match='logits of 1 of 1 rows were NaN'):
    next(blocks)
  assert (
    sum(len(block) for (block,) in fd.stream(Fragile(), {}, PROMPTS[:1], fd.Greedy(), max_len=1))
    == 1
  )
