"""Programs: how large one is, and how many are compiled for inputs of many lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding import pool
from fastdec.decoding.decode import stream_blocks
from fastdec.decoding.inputs import check_inputs, make_prompt
from fastdec.decoding.request import Settings
from fastdec.decoding.run import Coming, Limits, make_calls, start
from fastdec.decoding.sizes import (
  BATCH,
  LISTED,
  OUTPUTS,
  PROMPTS,
  SINGLE,
  Sizes,
  choose_width,
  choose_widths,
)
from fastdec.models.api import Nodes, causal
from fastdec.models.attention import local_mask, node_mask
from fastdec.models.image_transformer import ImageTransformer, ImageTransformerConfig
from fastdec.models.lm import LM, LMConfig
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.struct import Bound
from tests.decoding.fakes import HashLM, oracle
from tests.decoding.methods_table import METHODS, hash_kit

TINY = LM(LMConfig(
  vocab_size=17, d_model=8, d_ff=8, layers=1, heads=2, windows=(0,), norm_epsilon=1e-5,
  max_positions=40000,
))  # fmt: skip
TRANSLATOR = Transformer(TransformerConfig(
  vocab_size=13, d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1, max_positions=40,
  dtype='float32',
))  # fmt: skip
IMAGES = ImageTransformer(ImageTransformerConfig(
  d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1, source_size=2, size=4,
  block_length=6,
))  # fmt: skip
MODEL = HashLM()


class FlatLM(HashLM):
  """Has states that do not depend on the length of the prompt that they are a part of."""

  reads_length = False


LENGTHS, MAX_LENS = (3, 30, 5, 16, 17, 4, 9, 25, 32, 1), (17, 20, 22, 23, 24, 25, 27, 28, 31, 32)


def prompts():
  rng = np.random.default_rng(0)
  return [rng.integers(2, 13, length).tolist() for length in LENGTHS]


def lowered(tokens):
  """The program for a prompt of `tokens` tokens."""
  params = jax.eval_shape(TINY.init, jax.random.key(0))
  max_len, prompt, _ = check_inputs(TINY, np.full((1, tokens), 2), None, None, 4, None)
  target, coming = Bound(TINY, params), Coming(prompt, None)
  return make_calls.lower(target, fd.Greedy(), None, coming, Limits(), max_len)


def begin_single(model, params, inputs, strategy, **settings):
  return start(model, params, inputs, strategy, Settings(**settings), ladders=SINGLE)


def decode_single(*args, **settings):
  run = begin_single(*args, **settings)
  run.advance()
  return run.finish(jax.device_get(run.decoded), run.prompt)


def decode_listed(model, params, inputs, strategy, rows, **settings):
  settings = Settings(**settings)
  return pool.in_order(pool.decode_list(model, params, inputs, strategy, rows, settings, LISTED))


def test_a_long_prompt_s_mask_is_not_in_the_program():
  """A constant of 32,768 x 32,768 entries would take one GiB, and its text two."""
  assert len(lowered(32768).as_text()) < 2**20


def test_a_long_prompt_takes_memory_linear_in_its_length():
  short, long = (
    lowered(tokens).compile().memory_analysis().temp_size_in_bytes for tokens in (1024, 8192)
  )
  assert long < 9 * short


@pytest.mark.parametrize('slots', [9, 12])
@pytest.mark.wide('12')
def test_a_chain_s_mask_is_compared_as_it_would_be_stored(slots):
  chain, length = causal(5), jnp.array([0, 3, 4], jnp.int32)
  stored = Nodes(chain.parents, chain.depths, np.tri(5, dtype=bool))
  assert chain.is_chain and not stored.is_chain
  np.testing.assert_array_equal(chain.mask, stored.mask)
  masks = lambda nodes: (node_mask(nodes, length, slots), local_mask(nodes, length, slots, 2))
  compared, read = jax.jit(lambda: (masks(chain), masks(stored)))()
  jax.tree.map(np.testing.assert_array_equal, compared, read)


# These read the prompt in different ways.
@pytest.mark.parametrize('name', ['greedy', 'speculative', 'lookup', 'lookahead'])
@pytest.mark.wide('greedy', 'speculative')
def test_prompts_of_ten_lengths_and_limits_compile_two_programs(name):
  strategy, before = METHODS[name](hash_kit()), make_calls._cache_size()
  for prompt, max_len in zip(prompts(), MAX_LENS, strict=True):
    out = fd.decode(MODEL, {}, [prompt], strategy, max_len=max_len)
    expected = oracle(MODEL, prompt, max_len)
    assert out.tokens.shape == out.block_sizes.shape == (1, max_len)
    assert out.tokens[0].tolist() == expected + [0] * (max_len - len(expected))
    assert out.lengths[0] == len(expected) == 1 + out.block_sizes.sum()
  assert make_calls._cache_size() == before + 2  # of prompts of up to 16 tokens, and up to 32


HEADS, DRAFT = hash_kit().heads('separate'), hash_kit().draft
SWEEPS = {
  'the best n, least blocks': [fd.Blockwise(HEADS, 5, fd.MinBlock(fd.TopN(n), size)) for n,
    size in ((1, 1), (2, 1), (1, 3))],
  'typical': [
    fd.Medusa(HEADS, [[0], [1], [2]], fd.Typical(epsilon, temperature=temperature)) for epsilon,
    temperature in ((0.09, 1.0), (0.2, 0.7), (0.2, 0.0))],
  'speculative': [
    fd.Speculative(DRAFT, 2, fd.Sampling(temperature, top_k=3), fd.Rejection(lenience))
    for temperature, lenience in ((1.0, 1.0), (2, 0.5), (0.5, 0.1))],
  'sampling': [fd.Sample(0.5), fd.Sample(2, top_p=0.5), fd.Sample(top_k=3)],
  'lookup': [
    fd.PromptLookup(sampling=fd.Sampling(1)),
    fd.PromptLookup(sampling=fd.Sampling(0.5, top_k=3, top_p=0.9))],
  'suffix': [fd.Suffix(), fd.Suffix(factor=2, least=0.5)],
  'beams': [fd.Beam(2), *(fd.Beam(2, length_penalty=alpha, min_len=2) for alpha in (0.0, 1.0, 2))],
}  # fmt: skip


@pytest.mark.parametrize('name', SWEEPS)
@pytest.mark.wide('speculative', 'beams')
def test_a_sweep_over_settings_is_one_program(name):
  before = make_calls._cache_size()
  for strategy in SWEEPS[name]:
    fd.decode(MODEL, {}, [[3, 4]], strategy, max_len=4, key=jax.random.key(0))
  assert make_calls._cache_size() == before + 1


def test_beams_of_ten_limits_compile_one_program():
  before = make_calls._cache_size()
  for prompt, max_len in zip(prompts(), MAX_LENS, strict=True):
    out = fd.decode(MODEL, {}, [prompt[:16]], fd.Beam(2, n_best=2), max_len=max_len)
    assert out.nbest_tokens.shape == (
      1,
      2,
      max_len,
    ) and out.tokens.shape == out.block_sizes.shape == (1, max_len)
    assert int(out.lengths[0]) <= max_len
  assert make_calls._cache_size() == before + 1


def test_streams_of_ten_lengths_and_limits_compile_two_programs_each_way():
  before = make_calls._cache_size()
  for prompt, max_len in zip(prompts(), MAX_LENS, strict=True):
    blocks = fd.stream(MODEL, {}, [prompt], fd.Greedy(), max_len=max_len)
    assert [token for (block,) in blocks for token in block] == oracle(MODEL, prompt, max_len)
  assert make_calls._cache_size() == before + 4


@pytest.fixture
def compiled():
  """Names of the programs that are compiled during a test, the smallest ones included."""
  names = []

  def note(event, _, fun_name=None, **kwargs):
    if event == '/jax/core/compile/backend_compile_duration':
      names.append(fun_name)

  jax.monitoring.register_event_duration_secs_listener(note)
  yield names
  jax.monitoring.unregister_event_duration_listener(note)


CHAT = ((3, 5), (30, 64), (200, 150), (257, 17), (1000, 40), (1024, 300), (2000, 9), (4000, 96),
        (250, 400), (12, 350))  # fmt: skip


@pytest.mark.parametrize('name', ['greedy', 'speculative', 'lookup', 'lookahead'])
@pytest.mark.wide('greedy')
def test_a_chat_of_any_lengths_and_limits_compiles_six_programs_whole_and_streamed(name, compiled):
  """Two for each size: texts of up to 320, 1,280 and 5,120 tokens."""
  model, strategy = FlatLM(), METHODS[name](hash_kit())
  rng = np.random.default_rng(1)
  for length, max_len in CHAT:
    prompt = rng.integers(2, 13, length).tolist()
    compiled_before = len(compiled)
    out = decode_single(model, {}, [prompt], strategy, max_len=max_len)
    run = begin_single(model, {}, [prompt], strategy, max_len=max_len)
    blocks = [block for (block,) in stream_blocks(run)]
    expected = oracle(model, prompt, max_len)
    assert out.tokens.shape == out.block_sizes.shape == (1, max_len)
    assert out.tokens[0].tolist() == expected + [0] * (max_len - len(expected))
    assert [token for block in blocks for token in block] == expected
    assert [len(block) for block in blocks[1:]] == [size for size in out.block_sizes[0] if size]
    assert len(compiled) - compiled_before <= 3  # a text that grows once
  assert len(compiled) <= 6, compiled


# Lengths of the prompts of a list, the most tokens of each, and the programs that nothing before it
# has compiled.
LISTS = (((3, 60, 9, 30, 7), 9, 1), ((5,) * 16, 30, 0), ((1, 64) * 10, 9, 0), ((9, 4), 40, 1),
         ((60, 2, 3, 1), 100, 1), ((200, 30, 9), 20, 0), ((500, 3, 9, 8, 4), 9, 1),
         ((400, 300) * 9, 9, 0))  # fmt: skip


@pytest.mark.parametrize('name', ['greedy', 'speculative', 'lookup', 'lookahead'])
@pytest.mark.wide('greedy')
def test_lists_of_any_lengths_limits_and_numbers_share_programs(name, compiled):
  """One for each size of texts, of 4 rows, and of 16."""
  model, strategy = FlatLM(eos_ids=()), METHODS[name](hash_kit())
  rng = np.random.default_rng(1)
  for lengths, max_len, programs in LISTS:
    prompts, before = [rng.integers(2, 13, n).tolist() for n in lengths], len(compiled)
    out = decode_listed(model, {}, prompts, strategy, 16, max_len=max_len)
    assert out.tokens.tolist() == [oracle(model, prompt, max_len, ()) for prompt in prompts]
    assert compiled[before:] == ['jit(make_calls)'] * programs


def test_a_long_list_and_a_long_beginning_have_programs_of_their_own():
  """A text of their widths is cheaper, and a beginning is read once."""
  before = make_calls._cache_size()
  long = [3] * 300
  for prompts in ([[3, 4]] * 7, [[3, 4]] * 8, [long, [4] * 300], [long, [*long[1:], 4]]):
    out = decode_listed(FlatLM(), {}, prompts, fd.Greedy(), 1, max_len=3)
    assert out.tokens[0, : out.lengths[0]].tolist() == oracle(FlatLM(), prompts[0], 3)
  assert make_calls._cache_size() == before + 4


FEW = {name: METHODS[name] for name in ('tree', 'speculative', 'lookup', 'jacobi', 'lookahead')} | {
  'sampling': lambda kit: fd.Sample(2.0)
}


@pytest.mark.parametrize('name', FEW)
@pytest.mark.wide('lookup', 'sampling')
def test_few_programs_write_what_many_write(name):
  """Keys, laws and log-probabilities too, of rows whose texts outgrow a size."""
  model, strategy = FlatLM(eos_ids=()), FEW[name](hash_kit())
  rows = [np.random.default_rng(i).integers(2, 13, n).tolist() for i, n in enumerate((250, 90))]
  arguments = {
    'max_len': [90, 40],
    'key': jax.random.key(3),
    'processors': fd.Processors(no_repeat_ngram=4, frequency_penalty=0.1),
    'logprobs': 2,
  }
  expected = jax.device_get(fd.decode(model, {}, rows, strategy, **arguments))
  made = decode_single(model, {}, rows, strategy, **arguments)
  jax.tree.map(np.testing.assert_array_equal, made, expected)
  listed = decode_listed(model, {}, rows, strategy, 16, **arguments)
  jax.tree.map(np.testing.assert_array_equal, listed, expected)


@pytest.mark.parametrize('changes', [
  {'windows': (0, 20)}, {'rope': 'dynamic', 'rope_original': 200, 'rope_factor': 2.0},
  {'rope': 'longrope', 'rope_original': 300, 'rope_short': (1.0, 2.0), 'rope_long': (3.0, 5.0)},
], ids=lambda changes: changes.get('rope', 'window'))  # fmt: skip
@pytest.mark.wide('window')
def test_few_programs_see_the_true_length_of_a_text(changes, in_float64):
  """Rings keep their size where a cache grows, and rotations follow the text, not its slots."""
  sizes = dict(vocab_size=17, d_model=8, d_ff=8, layers=2, heads=2, max_positions=2000)
  model = LM(LMConfig(**sizes, dtype='float64', eos_ids=(), **changes))
  params = jax.tree.map(lambda x: 4 * x.astype(float), model.init(jax.random.key(1)))
  for length, max_len in ((250, 100), (290, 40)):
    prompt = [np.random.default_rng(length).integers(2, 17, length).tolist()]
    arguments = {'max_len': max_len, 'logprobs': 1}
    made = decode_single(model, params, prompt, fd.Greedy(), **arguments)
    expected = fd.decode(model, params, prompt, fd.Greedy(), **arguments)
    np.testing.assert_array_equal(made.tokens, expected.tokens)
    np.testing.assert_allclose(made.logprobs, expected.logprobs, rtol=1e-9)
    assert len({*made.logprobs[0].round(6).tolist()}) > 3


def test_pools_of_ten_lengths_and_limits_compile_two_programs():
  before = make_calls._cache_size()
  for prompt, max_len in zip(prompts(), MAX_LENS, strict=True):
    out = pool.decode_all(MODEL, {}, [np.array(prompt)] * 4, fd.Greedy(), max_len, rows=4)
    assert out.tokens.shape == (4, max_len)
    assert out.tokens[3, : out.lengths[3]].tolist() == oracle(MODEL, prompt, max_len)
  assert make_calls._cache_size() == before + 2


def test_lists_of_several_lengths_share_a_pool():
  before = make_calls._cache_size()
  for count in (5, 6, 8):
    out = pool.decode_all(MODEL, {}, prompts()[:count], fd.Greedy(), max_new_tokens=9)
    for prompt, tokens, length in zip(prompts(), out.tokens, out.lengths, strict=False):
      assert tokens[:length].tolist() == oracle(MODEL, prompt, 9)
  assert make_calls._cache_size() == before + 1
  with pytest.raises(fd.UserError, match='two names of one number'):
    fd.decode(MODEL, {}, [[3]], fd.Greedy(), max_len=3, max_new_tokens=3)


def test_the_pool_s_widths_are_not_the_longest_source_s():
  """The model has no positions, like T5."""
  before = make_calls._cache_size()
  for length in (17, 19, 31):
    pool.decode_all(MODEL, {}, [np.full(length, 3)] * 4, fd.Greedy(), 5, rows=4)
  assert make_calls._cache_size() == before + 1


def test_sources_of_ten_lengths_compile_two_programs():
  """A single row is decoded as in a batch of longer rows, where it is padded."""
  params = jax.tree.map(lambda x: 3 * np.asarray(x), TRANSLATOR.init(jax.random.key(1)))
  sources = [[*prompt[:31], 1] for prompt in prompts()]
  together = fd.decode(TRANSLATOR, params, sources, fd.Greedy(), max_len=8)
  assert len({tuple(row) for row in together.tokens.tolist()}) > 3
  before = make_calls._cache_size()
  for source, expected in zip(sources, together.tokens.tolist(), strict=True):
    assert (
      fd.decode(TRANSLATOR, params, [source], fd.Greedy(), max_len=8).tokens[0].tolist() == expected
    )
  assert make_calls._cache_size() <= before + 2


def begun(model, prompt):
  return Sizes(BATCH, model, fd.Greedy(), 8, 28).begin(prompt)


def test_padding_stays_within_the_model_s_positions():
  wide = begun(TRANSLATOR, make_prompt(TRANSLATOR, np.full((1, 33), 3), None, np.full((1, 20), 3)))
  assert wide.inputs.shape == (1, 40) and wide.tokens.shape == (1, 32)
  assert (wide.inputs[0, 33:] == 0).all() and wide.length.tolist() == [21]
  start_alone = begun(TRANSLATOR, make_prompt(TRANSLATOR, np.full((1, 3), 3), None, None))
  assert start_alone.tokens.shape == (1, 1)


def test_pictures_keep_their_shape_and_length():
  prompt = make_prompt(IMAGES, np.zeros((2, 2, 2, 3), np.uint8), None, None)
  assert begun(IMAGES, prompt) is prompt and IMAGES.fixed_length == 48
  for max_len in (48, 17):
    assert Sizes(BATCH, IMAGES, fd.Greedy(), max_len, 1).most_tokens(prompt) == max_len


def test_widths_and_buckets():
  """Slots cost time at every call. So a bucket is at most a quarter larger than its length, unless
  it is small."""
  some = np.arange(1, 5000)
  buckets = np.array([choose_width(OUTPUTS, n) for n in some.tolist()])
  assert sorted(set(buckets.tolist()))[:12] == [
    16,
    32,
    48,
    64,
    80,
    96,
    112,
    128,
    160,
    192,
    224,
    256,
  ]
  assert (buckets >= some).all() and (buckets - some < np.maximum(16, some / 4)).all()
  widths = choose_widths(PROMPTS, some)
  assert sorted(set(widths.tolist()))[:9] == [16, 32, 64, 128, 256, 512, 640, 768, 896]
  assert (widths >= some).all() and (widths[512:] == buckets[512:]).all()
