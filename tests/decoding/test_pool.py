"""A pool decodes a data set as one batch would: by every strategy, in few programs, in fewer
calls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding import run
from fastdec.decoding.pool import decode_all, decode_each, groups_of
from fastdec.models.transformer import Transformer, TransformerConfig
from tests.decoding.fakes import HashLM
from tests.decoding.methods_table import GROWN, METHODS, OTHERS, hash_kit

MODEL, MAX_LEN = HashLM(), 20
TRANSLATOR = Transformer(
  TransformerConfig(
    vocab_size=13, d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0,
    attention_dropout=0.0, activation_dropout=0.0, dtype='float64',
  )
)  # fmt: skip


STRATEGIES = {name: make(hash_kit()) for name, make in (METHODS | GROWN | OTHERS).items()}
STRATEGIES['adaptive'] = fd.Speculative(hash_kit().draft, 3, adaptive=True)

WITH_SOURCES = {'sampling': fd.Sample(), 'beam': fd.Beam(size=2, max_len=(1, 3))}


def prompts(count, longest=6, seed=0):
  """Ragged prompts of ids 2..12."""
  rng = np.random.default_rng(seed)
  return [rng.integers(2, 13, rng.integers(1, longest + 1)).astype(np.int32) for _ in range(count)]


def padded(sources):
  width = max(map(len, sources))
  return np.stack([np.pad(source, (0, width - len(source))) for source in sources])


def same(one, other):
  """Whether all fields of two results are equal."""
  return jax.tree.all(
    jax.tree.map(lambda x, y: np.array_equal(np.asarray(x), np.asarray(y)), one, other)
  )


@pytest.mark.parametrize('name', STRATEGIES)
@pytest.mark.wide('greedy', 'eagle')
def test_a_pool_writes_what_one_batch_writes(name):
  sources, key = prompts(23), jax.random.key(3)
  strategy = STRATEGIES[name]
  batch = fd.decode(
    MODEL, {}, padded(sources), strategy, [len(s) for s in sources], max_len=MAX_LEN, key=key
  )
  assert len(set(np.asarray(batch.lengths).tolist())) > 4  # rows leave at different times
  # of 9 rows two leave at a time, and eight are left
  for rows in (1, 9) if name in ('greedy', 'tree') else (9,):
    assert same(decode_all(MODEL, {}, sources, strategy, MAX_LEN, rows, key), batch)


@pytest.mark.parametrize('strategy', WITH_SOURCES.values(), ids=WITH_SOURCES)
@pytest.mark.slow
def test_a_translator_s_sources_of_many_widths(strategy):
  """The memory moves with its rows. An empty source ends at once."""
  with jax.enable_x64(True):
    fresh = TRANSLATOR.init(jax.random.key(0))
    params = jax.tree.map(lambda x: jnp.asarray(3 * np.asarray(x, float)), fresh)
    sources = [
      np.append(s, 1).astype(np.int32) for s in [*prompts(17, 5), *prompts(9, 30), np.zeros(0, int)]
    ]
    batch = fd.decode(
      TRANSLATOR, params, padded(sources), strategy, max_len=MAX_LEN, key=jax.random.key(1)
    )
    pool = decode_all(TRANSLATOR, params, sources, strategy, MAX_LEN, 1, jax.random.key(1))
  assert np.array_equal(pool.tokens, batch.tokens) and np.array_equal(pool.calls, batch.calls)
  assert np.array_equal(pool.block_sizes, batch.block_sizes)
  assert pool.tokens[-1, 0] == 1 and pool.lengths[-1] == 1 and len(set(pool.lengths.tolist())) > 2


def test_every_source_comes_once_the_longest_first():
  sources = prompts(23)
  parts = list(fd.decode_each(MODEL, {}, sources, fd.Greedy(), 9, rows=8))
  indices = np.concatenate([part.indices for part in parts])
  assert sorted(indices) == list(range(23)) and len(parts) > 5
  assert min(len(sources[i]) for i in parts[0].indices) >= max(
    len(sources[i]) for i in parts[-1].indices
  )


def test_rows_that_end_early_make_room():
  """Batch by batch, sorted, every row pays for the longest of its batch."""
  sources = prompts(200)
  decoded = decode_all(MODEL, {}, sources, fd.Greedy(), 40, 16)
  needed = int(decoded.calls.sum())
  order = np.argsort([len(source) for source in sources], kind='stable')
  batches = sum(16 * int(decoded.calls[order[i : i + 16]].max()) for i in range(0, 200, 16))
  pool = sum(part.row_calls for part in decode_each(MODEL, {}, sources, fd.Greedy(), 40, 16))
  assert needed <= pool < 1.5 * needed < batches


@pytest.mark.parametrize('strategy', [fd.Greedy(), fd.Beam(2)], ids=['greedy', 'beam'])
@pytest.mark.wide('beam')
def test_fillers_cost_no_calls_of_a_model_without_ends(strategy):
  """Seven inputs in eight rows start and end together: each takes 19 calls after its first token.
  The filler takes none."""
  (part,) = decode_each(HashLM(eos_ids=()), {}, prompts(7), strategy, 20, rows=8)
  assert part.row_calls == 8 * 19 and sorted(part.indices) == list(range(7))
  assert (part.decoded.lengths == 20).all()


def test_lists_and_arrays_of_any_lengths_are_inputs():
  rows = [[3, 4, 5], np.array([6]), (7, 8), jnp.array([9, 2, 3, 4])]
  decode = lambda inputs: decode_all(MODEL, {}, inputs, fd.Greedy(), 9, rows=8)
  expected = decode([np.array(row, np.int32) for row in rows])
  assert same(decode(rows), expected)
  assert same(decode(np.array([[3, 4, 5]])), jax.tree.map(lambda x: x[:1], expected))


@pytest.mark.parametrize('lengths, least, groups', [
  ((9, 40, 3, 20), 1, [[1], [3], [0, 2]]),
  ((9, 40, 3, 20), 2, [[1, 3], [0, 2]]), ((9, 40, 3, 20), 3, [[1, 3, 0, 2]]),
  ((16, 17, 16, 1), 1, [[1], [0, 2, 3]]), ((5, 5, 5), 8, [[0, 1, 2]]),
])  # fmt: skip
def test_groups(lengths, least, groups):
  assert [group.tolist() for group in groups_of(np.array(lengths), least)] == groups


@pytest.mark.parametrize('change, words', [
  ({'rows': 0}, 'rows=0 is not possible'),
  ({'rows': 2.5}, 'rows=2.5 is not possible'),
  ({'inputs': []}, 'nothing to decode'),
  ({'inputs': [np.array([3, 14])]}, 'the model knows 0 to 13'),
  ({'inputs': [np.array([0.5])]}, 'integer ids'),
  ({'inputs': [[3, 4], 5]}, 'integer ids'),
  ({'inputs': 3}, 'integer ids'),
  ({'inputs': ['once upon']}, 'not str: use the tokenizer'),
  ({'max_len': 0}, 'max_len=0'),
  ({'inputs': [np.array([3]), np.array([], np.int32)]}, 'prompt 1 is empty'),
  ({'key': 0}, 'key=0 is no random key'),
])  # fmt: skip
def test_mistakes_are_answered_before_anything_is_decoded(monkeypatch, change, words):
  monkeypatch.setattr(run, 'make_calls', None)
  arguments = {
    'model': MODEL,
    'params': {},
    'inputs': prompts(3),
    'strategy': fd.Greedy(),
    'max_len': 5,
  } | change
  with pytest.raises(fd.UserError, match=words):
    decode_all(**arguments)


def test_an_output_of_any_source_must_fit_before_anything_is_decoded():
  """A source and its output share no positions: the longest output is another source's than the
  longest text is."""
  model = HashLM(start_id=0, max_positions=24)
  assert decode_all(model, {}, [[3] * 24, [4]], fd.Greedy(), [1, 24]).lengths.max() <= 24
  with pytest.raises(fd.UserError, match=r'max_len=25 exceeds .* 24 positions'):
    decode_each(model, {}, [[3] * 20, [4] * 3], fd.Greedy(), [10, 25])
