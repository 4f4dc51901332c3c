"""Strategies report rows whose logits are NaN or infinite, and rows in which no law leaves a token.
They report neither the other rows nor drafts that were not accepted."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.cache.kv import KVCache
from fastdec.decoding.pool import decode_all
from fastdec.decoding.protocol import check_finite
from fastdec.decoding.request import ruled_by
from fastdec.models.attention import node_mask
from tests.decoding.fakes import HashLM
from tests.decoding.methods_table import METHODS, OTHERS, hash_kit

POISON, STUCK, MAX_LEN = 13, 2, 9
NOTHING_LEFT = fd.Processors(bad_words=[(STUCK, token) for token in range(14)])
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
  """Marks rows with a token after the poison or after the last allowed token, in the prompt or the
  output. The second mask marks rows in which the last allowed token came first."""
  broken, stuck = [], []
  for prompt, row, length in zip(PROMPTS.tolist(), out.tokens, out.lengths, strict=True):
    # A search that finds nothing has length 0: its prompt is the text that leaves no token.
    text = [*prompt, *row[: max(length - 1, 0)].tolist()]
    poisoned = text.index(POISON) if POISON in text else MAX_LEN + 9
    last = text.index(STUCK, len(prompt) - 1) if STUCK in text[len(prompt) - 1 :] else MAX_LEN + 9
    broken.append(min(poisoned, last) <= MAX_LEN + 8)
    stuck.append(broken[-1] and last < poisoned)
  return np.array(broken), np.array(stuck)


@pytest.mark.parametrize(
  ('name', 'how'),
  [(name, 'nan') for name in STRATEGIES] + [('greedy', how) for how in list(BROKEN)[1:]],
)
@pytest.mark.wide('speculative-nan', 'beam-nan')
def test_a_row_is_finite_where_its_own_tokens_were_chosen_by_numbers(name, how):
  """Also midway: a row that writes 13 is finite up to there, and a last token of 13 does no
  harm. The same holds for a row that writes 2, after which the processors leave no token."""
  # beams that do not win count too
  model = Fragile(suppressed_ids=(0, POISON)) if name == 'beam' else Fragile(how=how)
  how = {'max_len': MAX_LEN, 'key': jax.random.key(5), 'processors': NOTHING_LEFT}
  out = jax.device_get(fd.decode(model, {}, PROMPTS, STRATEGIES[name], **how))
  broken, stuck = chosen_by_nothing(out)
  assert out.finite.dtype == bool and out.finite.tolist() == (~broken).tolist()
  assert out.stuck.tolist() == stuck.tolist()
  assert broken[[1, 3]].all() and stuck[[4, 5]].all() and not broken.all()
  if name in ('greedy', 'sampling speculatively', 'beam'):
    pool = decode_all(model, {}, list(PROMPTS), STRATEGIES[name], rows=4, **how)
    assert pool.finite.tolist() == (~broken).tolist() and pool.stuck.tolist() == stuck.tolist()


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


class Numbers:
  """A tokenizer whose tokens are numbers."""

  def encode(self, text):
    return [int(word) for word in text.split()]

  def decode(self, ids):
    return ' '.join(map(str, ids))


def test_a_dead_end_is_one_sentence_wherever_texts_come_from():
  g = fd.Generator(HashLM(), {}, Numbers(), fd.Beam(2), processors=NOTHING_LEFT)
  greedy = fd.Generator(HashLM(), {}, Numbers(), processors=NOTHING_LEFT)
  dead = f'5 {STUCK}'
  for call in (
    lambda: g(dead, max_new_tokens=4),
    lambda: greedy(['3 4', dead], max_new_tokens=4),
    lambda: list(greedy.stream(dead, max_new_tokens=4)),
  ):
    message = 'nothing is left to write in 1 of . rows, because bad_words rules out every token'
    with pytest.raises(fd.UserError, match=message):
      call()


def test_a_dead_end_names_what_rules_tokens_out():
  law = fd.Processors(min_new_tokens=[0, 9], suppress=[3], bias={4: -9.0}, forced_end=1)
  names = ruled_by(fd.Beam(2, min_len=3), None, law)
  assert names == ('suppress', 'min_new_tokens', 'min_len')
  assert ruled_by(fd.Greedy(), object(), fd.Processors()) == ('object',)
  one, none = np.array([False, True, True]), np.zeros(3, bool)
  with pytest.raises(
    fd.UserError, match='in 1 of 3 rows, because suppress, min_new_tokens and min'
  ):
    check_finite(one, ~one, names)
  with pytest.raises(fd.UserError, match='logits of 1 of 3 rows were NaN'):
    check_finite(none, one, names)
  check_finite(~none, none, names)
