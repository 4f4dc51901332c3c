"""Long texts: in float64, a text read in parts gives the states of a text read at once.

Models and methods are those of the tables. A few run by default, and all of them as slow tests.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding import inputs, pool, prefill, sizes
from fastdec.decoding.protocol import Prompt
from fastdec.decoding.request import Settings
from fastdec.decoding.run import make_calls, start
from fastdec.decoding.sizes import BATCH, LISTED, SINGLE, Ladders, Sizes, make_ladder
from fastdec.models.api import Nodes
from fastdec.models.lm import LM, LMConfig
from fastdec.struct import Bound
from tests.decoding.fakes import HashLM, oracle
from tests.decoding.methods_table import LOSSLESS, OTHERS, fresh_kit, hash_kit
from tests.decoding.models_table import DYNAMIC, MODELS, SMALL, TEXT, made, random_params

T = 11  # tokens of prompts
SEES = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], bool)
TREE = Nodes(np.array([-1, 0, 0, 1], np.int32), np.array([0, 1, 1, 2], np.int32), SEES)


@pytest.mark.usefixtures('in_float64')
@pytest.mark.parametrize('name', MODELS)
@pytest.mark.wide('lm with windows')
def test_a_text_read_in_chunks_is_read_as_at_once(name):
  """Rows have different lengths. Then a tree of nodes sees the same memory, in rings too."""
  case, length = made(name), jnp.array([T, 6, 1], jnp.int32)
  words = case.model.vocab_size
  tokens = jnp.asarray(np.random.default_rng(1).integers(1, words, (3, T + 4)), jnp.int32)
  text, nodes = tokens[:, :T], tokens[:, T:]
  sources = None if case.model.start_id is None else jnp.asarray(case.rows()['inputs'])

  def read(width):
    @jax.jit
    def states(params):
      prompt = Prompt(sources, text, length, length < 1, chunk=width)
      target = Bound(case.model, params)
      capacity = prefill.capacity_of(prompt, 4, TREE.n)
      if width > T:  # a number of slots: no layer is a ring
        capacity = capacity.total
      cache = case.model.init_cache(params, prefill.memory_of(target, prompt), 3, capacity)
      hidden, _, cache = prefill.read_text(target, prompt, cache)
      return hidden, case.model.apply(params, nodes, TREE, cache)[0], cache.length

    return states(case.params)

  (whole, behind, lengths), parts = read(64), read(4)
  is_text = np.arange(T)[None] < np.asarray(length)[:, None]
  np.testing.assert_allclose(parts[0][is_text], whole[is_text], atol=1e-9)
  np.testing.assert_allclose(parts[1], behind, atol=1e-9)
  assert lengths.tolist() == parts[2].tolist() == length.tolist()


@pytest.mark.parametrize('name', LOSSLESS | OTHERS)
@pytest.mark.wide('two-calls')
def test_methods_write_the_same_in_as_many_calls(name):
  """Drafters that read the prompt read it in chunks too."""
  strategy = (LOSSLESS | OTHERS)[name](hash_kit())
  rng = np.random.default_rng(0)
  tokens, length = rng.integers(2, 14, (3, T)).astype(np.int32), np.array([T, 7, 2], np.int32)
  prompt = jax.device_put(Prompt(None, tokens, length, np.zeros(3, bool)))
  keys = jax.random.split(jax.random.key(0), 3)

  def write(width):
    @jax.jit
    def decoded():
      target = Bound(HashLM(), {})
      state = strategy.init(target, dataclasses.replace(prompt, chunk=width), 12, keys)
      go_on = lambda state: ~state.done.all()
      return strategy.result(
        jax.lax.while_loop(go_on, functools.partial(strategy.step, target), state)
      )

    return decoded()

  jax.tree.map(np.testing.assert_array_equal, write(64), write(4))


@pytest.mark.usefixtures('in_float64')
@pytest.mark.parametrize('name', MODELS)
@pytest.mark.slow
def test_scores_are_of_the_text_as_it_is_written(name):
  """Longrope and dynamic rope rotate by the prompt's length, then by the length of the text so
  far."""
  case = made(name)
  out = case.decode(fd.Greedy(), 12)
  scores = fd.score(case.model, case.params, **case.rows(), targets=out.tokens)
  assert scores.best.all()


def long_prompts():
  """Three prompts that `HashLM` continues for more than 40 tokens."""
  rng, prompts = np.random.default_rng(0), []
  for length in itertools.cycle((5, 16, 2)):
    prompt = rng.integers(2, 14, length).tolist()
    if len(oracle(HashLM(), prompt, 48)) > 40:
      prompts.append(prompt)
    if len(prompts) == 3:
      return prompts


@pytest.mark.parametrize('name', LOSSLESS | OTHERS)
@pytest.mark.wide('speculative')
def test_caches_that_grow_hold_what_full_ones_hold(name, monkeypatch):
  strategy, key = (LOSSLESS | OTHERS)[name](hash_kit()), jax.random.key(0)
  model = anew([])
  decode = lambda: fd.decode(model, {}, long_prompts(), strategy, max_len=48, key=key)
  full = decode()
  monkeypatch.setattr(sizes, 'FIRST', 4)
  programs = make_calls._cache_size()
  jax.tree.map(np.testing.assert_array_equal, full, decode())
  # of 4, 24 and 48 tokens; the beams end before
  assert make_calls._cache_size() == programs + (2 if name == 'beam' else 3)


@pytest.mark.parametrize('ladders', [BATCH, SINGLE, LISTED], ids=['batch', 'single', 'listed'])
@pytest.mark.parametrize('windows', [(0, 3, 128), (255, 256, 257), (1024, 4096, 4200)])
def test_no_size_of_a_cache_changes_what_its_layers_are(ladders, windows):
  """Layers of a larger size are those of the first one with more slots."""
  config = LMConfig(**SMALL | {'layers': 3}, windows=windows, max_positions=9001)
  lengths, limits, widths = (1, 5, 250, 1000), (65, 70, 195, 900, 3500, 8000), (2, 17, 60)
  for length, max_len, nodes in itertools.product(lengths, limits, widths):
    run = Sizes(ladders, LM(config), fd.PromptLookup(k=nodes), max_len, length + max_len)
    rows, starts = np.ones((1, length), np.int32), np.array([length], np.int32)
    prompt, kinds, slots = run.begin(Prompt(None, rows, starts, starts < 1)), set(), []
    while True:
      capacity = prefill.capacity_of(prompt, run.most_tokens(prompt), nodes)
      for back in (0, 5):
        made_for = dataclasses.replace(capacity, back=back)
        layers = jax.eval_shape(lambda of=made_for: config.empty_cache(1, of)).layers
        kinds.add((back, *map(type, layers)))
        slots.append([layer.slots for layer in layers])
      room = run.count_room(prompt, starts)
      if room is None or room[0] >= max_len:
        break
      prompt = run.grow(prompt, length + int(room[0]))
    assert len(kinds) == 2, (length, max_len, nodes)
    assert (np.diff(slots[::2], axis=0) >= 0).all() and (np.diff(slots[1::2], axis=0) >= 0).all()


WINDOWED = LM(LMConfig(
  **TEXT, d_model=8, d_ff=8, layers=4, heads=1, sinks=True, windows=(0, 12, 34, 60),
))  # fmt: skip
JOINT = Ladders(make_ladder(8, 16), make_ladder(8, 16), joint=True)


def decode_joint(model, params, inputs, strategy, **settings):
  """Decodes with prompt and output in one width, as `Generator` and traces do."""
  run = start(model, params, inputs, strategy, Settings(**settings), ladders=JOINT)
  run.advance()
  return run.finish(run.decoded, run.prompt)


def list_joint(model, params, inputs, strategy, **settings):
  settings = Settings(**settings)
  return pool.in_order(pool.decode_list(model, params, inputs, strategy, 2, settings, JOINT))


def join_stream(*args, **settings):
  blocks = fd.stream(*args, **settings)
  return np.array([[*itertools.chain(*row)] for row in zip(*blocks, strict=True)])


WAYS = {
  'decode': fd.decode, 'stream': join_stream, 'pool': functools.partial(fd.decode_all, rows=2),
  'joint': decode_joint, 'list': list_joint,
}  # fmt: skip


@pytest.mark.usefixtures('in_float64')
@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('method', ['greedy', 'speculative', 'eagle', 'beam', 'lookup'])
@pytest.mark.wide('greedy-joint')
def test_windows_of_caches_that_grow_are_those_of_full_ones(method, way, monkeypatch):
  """Layers have windows below, at and above the sizes that the caches grow through. The target is
  its own draft model."""
  params = random_params(WINDOWED, 0)
  strategy = (LOSSLESS | OTHERS)[method](fresh_kit(WINDOWED, params))
  rows, settings = [[1, 2, 3, 4, 5], [3], [5, 4, 1]], {'max_len': 48}
  full = fd.decode(WINDOWED, params, rows, strategy, **settings)
  for module, name, value in (
    (sizes, 'FIRST', 4), (sizes, 'SHORT_CHUNK', 4), (sizes, 'LONG_CHUNK', 8), (prefill, 'CHUNK', 8),
  ):  # fmt: skip
    monkeypatch.setattr(module, name, value)
  grown = WAYS[way](WINDOWED, params, rows, strategy, **settings)
  np.testing.assert_array_equal(getattr(grown, 'tokens', grown), full.tokens)


@pytest.mark.parametrize('name', MODELS)
@pytest.mark.wide('lm with windows')
@pytest.mark.usefixtures('in_float64')
def test_every_model_s_cache_grows(name, monkeypatch):
  case = made(name)
  full = case.decode(fd.Greedy(), 24)
  monkeypatch.setattr(sizes, 'FIRST', 3)
  jax.tree.map(np.testing.assert_array_equal, full, case.decode(fd.Greedy(), 24))


def test_slots_are_doubled_and_fill_the_cache():
  prompt = Prompt(None, np.ones((1, 32), np.int32), np.array([32], np.int32), np.zeros(1, bool))
  of_batch = lambda max_len: Sizes(BATCH, HashLM(), fd.Greedy(), max_len, 32 + max_len)
  prompt, slots = of_batch(640).begin(prompt), []
  while prompt.slots is not None:
    slots.append(prompt.slots)
    prompt = of_batch(640).grow(prompt, 32 + slots[-1])
  assert slots == [63, 158, 348]  # in caches of 96, 192 and 384 slots
  assert of_batch(64).begin(prompt).slots is None


@pytest.mark.parametrize('name', LOSSLESS | OTHERS)
@pytest.mark.wide('sampling')
def test_a_beginning_that_all_rows_share_is_read_once(name):
  """Each row writes the same as when it is decoded by itself, in as many calls."""
  strategy, rng = (LOSSLESS | OTHERS)[name](hash_kit()), np.random.default_rng(0)
  begun, keys = rng.integers(2, 14, 40).tolist(), jax.random.split(jax.random.key(0), 3)
  prompts = [begun + rng.integers(2, 14, 3).tolist() for _ in keys]
  calls = []
  model = anew(calls)
  together = fd.decode(model, {}, prompts, strategy, max_len=8, key=keys)
  assert (1, 32) in calls and (3, 32) in calls
  pooled = fd.decode_all(model, {}, prompts, strategy, 8, rows=2, key=keys)
  jax.tree.map(np.testing.assert_array_equal, together, pooled)
  alone = [
    fd.decode(model, {}, [row], strategy, max_len=8, key=keys[i : i + 1])
    for i, row in enumerate(prompts)
  ]
  jax.tree.map(
    lambda x, *rows: np.testing.assert_array_equal(x, np.concatenate(rows)), together, *alone
  )


def anew(shapes):
  """A `HashLM` of a new class, so that no compiled program is shared. It notes the shapes of its
  calls."""

  class Anew(HashLM):
    def apply(self, params, tokens, nodes, cache):
      shapes.append(tokens.shape)
      return super().apply(params, tokens, nodes, cache)

  return Anew()


@dataclasses.dataclass(frozen=True)
class Careless(LM):
  """A wrong model: its states depend on the length of the prompt, and it does not say so."""

  reads_length = False


@pytest.mark.slow
@pytest.mark.usefixtures('in_float64')
def test_a_draft_that_reads_the_length_of_the_prompt_reads_each_row_whole():
  """The target's rows, of two lengths, share their beginning. The draft's keys are the same as for
  a single row. (A cache of longrope holds the keys of both lengths.)"""
  params, config = made('lm of dynamic rope').params, LMConfig(**TEXT, **SMALL, **DYNAMIC)
  target, rng = Bound(LM(LMConfig(**TEXT, **SMALL)), params), np.random.default_rng(0)
  rows, length, nothing = (
    rng.integers(1, 6, (2, 64)),
    np.array([43, 63], np.int32),
    np.zeros(2, bool),
  )
  rows[1, :40] = rows[0, :40]
  prompt = Prompt(None, rows.astype(np.int32), length, nothing, shared=32)
  alone = Prompt(None, rows[1:].astype(np.int32), length[1:], nothing[1:])

  def keys_of(draft, prompt):
    init = fd.Speculative((draft, params), 3).init
    state = jax.jit(lambda prompt: init(target, prompt, 8, None))(prompt)
    return [np.asarray(layer.k)[-1, ..., :63] for layer in state.drafter.cache.layers]

  expected = keys_of(LM(config), alone)
  for draft, tolerance in ((LM(config), 1e-5), (Careless(config), None)):
    far = max(abs(x - y).max() for x, y in zip(keys_of(draft, prompt), expected, strict=True))
    assert far > 0.1 if tolerance is None else far < tolerance


@pytest.mark.parametrize('reads_length', [False, True])
def test_a_draft_shares_a_beginning_if_it_does_not_read_the_length_of_the_prompt(reads_length):
  calls, rows, drafted = [], np.full((2, 48), 3, np.int32), []
  target, draft = anew(calls), anew(drafted)
  for model in (target, draft):
    object.__setattr__(model, 'reads_length', reads_length and model is draft)
  prompt = Prompt(None, rows, np.array([43, 45], np.int32), np.zeros(2, bool), shared=32)
  strategy = fd.Speculative((draft, {}), 3)
  init = functools.partial(strategy.init, Bound(target, {}), max_len=8, keys=None)
  jax.eval_shape(init, prompt)
  assert (1, 32) in calls and (2, 16) in calls
  assert drafted[:2] == ([(2, 48)] if reads_length else [(1, 32), (2, 16)])


@pytest.mark.parametrize('name', [name for name in MODELS if name.startswith('lm')])
@pytest.mark.slow
@pytest.mark.usefixtures('in_float64')
def test_scores_and_beams_of_shared_beginnings_are_those_of_rows_alone(name):
  case, rng = made(name), np.random.default_rng(3)
  rows = rng.integers(1, 6, (3, 44)).astype(np.int32)
  rows[:, :35] = rows[0, :35]
  targets = rng.integers(1, 6, (3, 5))
  ways = (
    lambda rows, targets: fd.score(case.model, case.params, rows, targets).tokens,
    lambda rows, _: fd.decode(case.model, case.params, rows, fd.Beam(2), max_len=5).scores,
  )
  for way in ways:
    alone = [way(rows[i : i + 1], targets[i : i + 1]) for i in range(3)]
    np.testing.assert_allclose(way(rows, targets), np.concatenate(alone), atol=1e-9)


@pytest.mark.parametrize('lengths, same, shared', [
  ((60, 60), 59, 48), ((60, 60), 33, 32), ((60, 60), 31, 0), ((60, 34), 40, 0), ((90, 90), 90, 64),
])  # fmt: skip
def test_beginnings_are_cut_to_few_lengths(lengths, same, shared):
  tokens = np.zeros((2, max(lengths)), np.int32)
  tokens[1, same:] = 1
  prompt = Prompt(None, tokens, np.array(lengths, np.int32), np.zeros(2, bool))
  assert inputs.find_shared(HashLM(), prompt).shared == shared


@pytest.mark.usefixtures('in_float64')
def test_samples_of_one_source_encode_it_once():
  """They write the same as in a batch with a different source."""
  case = made('transformer')
  row, other = case.rows()['inputs'][:1], case.rows()['inputs'][1:2]
  same, mixed = np.repeat(row, 3, axis=0), np.concatenate([row, row, other])
  of = lambda rows: inputs.find_shared(case.model, inputs.make_prompt(case.model, rows, None, None))
  assert of(same).one_source and not of(mixed).one_source
  decode = lambda rows: fd.decode(case.model, case.params, rows, fd.Greedy(), max_len=9).tokens
  np.testing.assert_array_equal(decode(same)[:2], decode(mixed)[:2])
