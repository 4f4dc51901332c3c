"""The inputs of decode: rows of any lengths, and a message for every mistake."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.inputs import make_prompt
from fastdec.decoding.pool import decode_each
from fastdec.decoding.request import Settings, prepare
from fastdec.models.image_transformer import ImageTransformer, ImageTransformerConfig
from fastdec.models.lm import LM, LMConfig
from fastdec.models.transformer import Transformer, TransformerConfig
from tests.decoding.fakes import HashHeads, HashLM, Silent

MODEL = HashLM()
SIZES = dict(d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1)
ENDLESS = Transformer(
  TransformerConfig(vocab_size=13, eos_ids=(), pad_id=2, max_positions=32, **SIZES)
)
IMAGES = ImageTransformer(ImageTransformerConfig(source_size=2, size=4, block_length=6, **SIZES))
TINY = dict(d_model=8, d_ff=8, heads=2, layers=1, key_heads=2)
PICTURES = np.zeros((2, 2, 2, 3), np.uint8)


@pytest.fixture(autouse=True)
def _types_are_not_checked():
  """Turns off the type checks of the tests, which users do not have."""
  jaxtyping.config.update('jaxtyping_disable', True)
  yield
  jaxtyping.config.update('jaxtyping_disable', False)


def lists(prompt):
  """Inputs, tokens, lengths and empty rows of a prompt, as lists."""
  inputs = None if prompt.inputs is None else prompt.inputs.tolist()
  return inputs, prompt.tokens.tolist(), prompt.length.tolist(), prompt.empty.tolist()


@pytest.mark.parametrize('rows', [
  [[3, 4], [5], [6, 7, 8]], ([3, 4], (5,), [6, 7, 8]),
  [np.array([3, 4]), np.array([5], np.uint8), jnp.array([6, 7, 8])],
], ids=['lists', 'tuples', 'arrays'])  # fmt: skip
def test_rows_of_several_lengths_are_padded(rows):
  tokens, lengths = [[3, 4, 0], [5, 0, 0], [6, 7, 8]], [2, 1, 3]
  assert lists(make_prompt(MODEL, rows, None, None)) == (None, tokens, lengths, [False] * 3)
  assert lists(make_prompt(MODEL, rows, [1, 1, 2], None)) == (None, tokens, [1, 1, 2], [False] * 3)
  sources = [[3, 4, 2], [5, 2, 2], [6, 7, 8]]  # with the model's own pad id
  assert lists(make_prompt(ENDLESS, rows, None, None)) == (sources, [[0]] * 3, [1] * 3, [False] * 3)


def test_prefixes_of_several_lengths_are_padded():
  """They follow the start token, 0. A prefix may be empty, and so may a source."""
  prompt = make_prompt(ENDLESS, [[3, 4], [5, 6], []], None, [[7], [], [8, 9]])
  assert lists(prompt) == (
    [[3, 4], [5, 6], [2, 2]],
    [[0, 7, 2], [0, 2, 2], [0, 8, 9]],
    [2, 1, 3],
    [False, False, True],
  )
  cut = make_prompt(ENDLESS, [[3, 4], [5, 6]], [0, 1], [[7, 8], [9]])
  assert cut.length.tolist() == [1, 2]


def test_a_ragged_list_is_decoded_as_its_rows_alone():
  rows = [[3, 4, 5], [6], [7, 8, 9, 2]]
  out = fd.decode(MODEL, {}, rows, fd.Greedy(), max_len=9)
  for row, tokens in zip(rows, out.tokens.tolist(), strict=True):
    assert fd.decode(MODEL, {}, [row] * 3, fd.Greedy(), max_len=9).tokens.tolist() == [tokens] * 3
  cut = [tokens[:length] for tokens, length in zip(out.tokens.tolist(), [9, 4, 6], strict=True)]
  scores = fd.score(MODEL, {}, rows, cut)
  np.testing.assert_array_equal(
    scores.total, fd.score(MODEL, {}, rows, out.tokens, [9, 4, 6]).total
  )


# Its pad id, 2, is also its end.
SAME = Transformer(TransformerConfig(vocab_size=13, eos_ids=(2,), pad_id=2, **SIZES))


@pytest.mark.parametrize(
  ('sources', 'read'),
  [
    ([[3, 4, 2], [5], [6, 7, 8, 9, 2]], [[3, 4, 2, -1, -1], [5, -1, -1, -1, -1], [6, 7, 8, 9, 2]]),
    (
      np.array([[3, 4, 2, 2], [5, 2, 6, 2], [2, 2, 2, 2]]),
      [[3, 4, 2, -1], [5, 2, 6, 2], [2, -1, -1, -1]],
    ),
    ([[3, 4]], [[3, 4]]),
  ],
)
def test_a_pad_that_ends_texts_too_is_an_end_once(sources, read):
  """In a list all ids of a row count. In an array the ids after a row's end are padding."""
  prompt = make_prompt(SAME, sources, None, None)
  assert prompt.inputs.tolist() == read
  assert prompt.empty.tolist() == [max(row) <= 2 for row in read]
  assert prompt.source_length(SAME).tolist() == [sum(id >= 0 for id in row) for row in read]


@pytest.mark.parametrize('strategy', [fd.Greedy(), fd.Beam(2), 'draft', 'ensemble'])
@pytest.mark.wide('strategy0')
def test_sources_whose_pad_is_their_end_decode_as_alone(strategy):
  """In a list, in an array, in a pool and each by itself. Texts stop at the end."""
  model, params = SAME, jax.tree.map(lambda x: 3 * np.asarray(x), SAME.init(jax.random.key(2)))
  if strategy == 'draft':
    strategy = fd.Speculative((SAME, SAME.init(jax.random.key(5))), gamma=2)
  if strategy == 'ensemble':
    model, params, strategy = fd.Ensemble((model, model)), (params, params), fd.Greedy()
  sources = [[3, 4, 2], [5, 8, 2], [6, 7, 8, 9, 2], [10, 2], [11, 12, 5, 2]]
  alone = [
    fd.decode(model, params, [source] * 5, strategy, max_len=9).tokens[0].tolist()
    for source in sources
  ]
  lengths = [row.index(2) + 1 if 2 in row else 9 for row in alone]
  assert min(lengths) < 9 == max(lengths)
  padded = np.array([source + [2] * (6 - len(source)) for source in sources])
  for out in (
    fd.decode(model, params, sources, strategy, max_len=9),
    fd.decode(model, params, padded, strategy, max_len=9),
    fd.decode_all(model, params, sources, strategy, max_len=9, rows=2),
  ):
    assert out.tokens.tolist() == alone and out.lengths.tolist() == lengths
  if isinstance(strategy, fd.Greedy):
    cut = [row[:n] for row, n in zip(alone, lengths, strict=True)]
    totals = fd.score(model, params, sources, cut).total
    np.testing.assert_allclose(totals, fd.score(model, params, padded, alone).total, rtol=1e-5)


def test_a_pad_within_a_source_is_a_token_like_others():
  model = Transformer(TransformerConfig(vocab_size=13, eos_ids=(1,), pad_id=0, **SIZES))
  source = [7, 9, 0, 12, 0, 0, 3, 1]
  prompt = make_prompt(model, [source, [5, 1]], None, None)
  _, mask = model.unpadded(jnp.asarray(prompt.inputs))
  assert mask.tolist() == [[True] * 8, [True] * 2 + [False] * 6]
  assert prompt.source_length(model).tolist() == [8, 2]


@pytest.mark.slow
def test_a_pad_within_a_source_is_read_as_by_transformers(shared):
  model, params = fd.load(shared / 'reference/hf/t5_tiny')
  out = fd.decode(model, params, [[7, 9, 0, 12, 30, 1], [7, 1]], fd.Greedy(), max_len=5)
  assert out.tokens[0].tolist() == [58, 24, 86, 34, 1]


def prepared(model, inputs, strategy, processors):
  return prepare(model, {}, inputs, strategy, Settings(max_len=4, processors=processors))


def test_other_ends_change_when_a_text_ends_and_not_how_inputs_are_read():
  ends = fd.Processors(ends=[3])
  # Two vocabularies of one tokenizer, padded differently, have an end in common.
  draft = fd.Speculative((HashLM(201), {}), 3)
  request = prepared(HashLM(200), [[4, 5]], draft, ends)
  assert request.target.module.eos_ids == (3,) and request.model.eos_ids == (1,)
  with pytest.raises(fd.UserError, match='the draft model has 201 tokens and the target 200'):
    prepared(HashLM(200, eos_ids=(3,)), [[4, 5]], draft, None)

  # A source is text up to the model's own end. The new one may be a word of it.
  for sources in ([[3], [2], [5, 2]], np.array([[3, 2], [2, 2], [5, 2]])):
    request = prepared(SAME, sources, fd.Greedy(), ends)
    plain = prepared(SAME, sources, fd.Greedy(), None)
    np.testing.assert_array_equal(request.prompt.inputs, plain.prompt.inputs)
    assert request.prompt.empty.tolist() == [False, True, False]
    ended = request.target.module
    assert ended.source_pad_id == SAME.source_pad_id and ended.eos_ids == (3,)
  with pytest.raises(fd.UserError, match='Ensemble keeps the ends that it has: leave ends out'):
    prepared(fd.Ensemble((SAME,)), [[3]], fd.Greedy(), ends)


# It begins texts with a token of its own, so no text contains the pad.
LM_WITH_BOS = LM(LMConfig(vocab_size=14, pad_id=0, bos_id=1, eos_ids=(2,), **TINY))
LEFT = [[5, 6, 7, 8], [0, 0, 9, 10], [0, 11, 12, 4]]


@pytest.mark.parametrize('kind', [list, np.array])
def test_rows_padded_on_the_left_are_read_without_padding(kind):
  rows = ([[5, 6, 7, 8], [9, 10, 0, 0], [11, 12, 4, 0]], [4, 2, 3])
  assert lists(make_prompt(LM_WITH_BOS, kind(LEFT), None, None))[1:3] == rows
  assert lists(make_prompt(ENDLESS, np.where(np.array(LEFT) == 0, 2, LEFT), None, None))[0] == [
    [5, 6, 7, 8], [9, 10, 2, 2], [11, 12, 4, 2],
  ]  # fmt: skip
  _, tokens, lengths, _ = lists(make_prompt(ENDLESS, [[3]] * 2, None, kind([[5, 6], [2, 7]])))
  assert (tokens, lengths) == ([[0, 5, 6], [0, 7, 2]], [3, 2])
  # where prompt_lengths are passed, zeros are text
  rows = [[5, 6, 7, 8], [0, 0, 9, 0], [0, 11, 12, 4]]
  assert lists(make_prompt(LM_WITH_BOS, kind(rows), [4, 3, 4], None))[1:3] == (rows, [4, 3, 4])


def test_a_pad_that_may_be_text_is_read_where_it_is_one_and_refused_where_it_is_many():
  assert lists(make_prompt(MODEL, [[5, 6], [0, 7]], None, None))[1:3] == ([[5, 6], [0, 7]], [2, 2])
  for model, pad in ((MODEL, 0), (SAME, 2)):
    for rows in ([[5, 6, 7], [pad, pad, 7]], [[5, 6], [pad, pad, 7]]):
      with pytest.raises(fd.UserError, match=f'1 begins with 2 pad ids .{pad}., which may be text'):
        make_prompt(model, rows, None, None)
      with pytest.raises(fd.UserError, match='1 begins with 2 pad ids'):
        decode_each(model, {}, rows, fd.Greedy(), 4)
  with pytest.raises(fd.UserError, match='prompt 1 is padded on the left by 2 ids'):
    make_prompt(LM_WITH_BOS, LEFT, [4, 2, 3], None)
  assert make_prompt(MODEL, [[5, 6], [0, 7]], [2, 1], None).length.tolist() == [2, 1]


def test_a_pool_reads_rows_padded_on_the_left_as_a_batch_does():
  class WithBos(HashLM):
    bos_id = 3  # so that no text contains the pad

  out = fd.decode(MODEL, {}, [[5, 6, 7, 8], [9, 10], [11, 12, 4]], fd.Greedy(), max_len=5)
  pooled = fd.decode_all(WithBos(), {}, LEFT, fd.Greedy(), max_len=5)
  assert pooled.tokens.tolist() == out.tokens.tolist()


@pytest.mark.parametrize('kind', ['rbg', 'unsafe_rbg'])
@pytest.mark.wide('unsafe_rbg')
def test_rows_draw_alone_as_together_with_keys_of_any_kind(kind):
  keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0, impl=kind), jnp.arange(4))
  prompts = np.array([[3, 4], [5, 6], [7, 8], [3, 9]])
  decode = lambda rows, key: fd.decode(
    MODEL, {}, prompts[rows], fd.Sample(2.0), max_len=10, key=key
  ).tokens.tolist()
  together = decode([0, 1, 2, 3], keys)
  for i in range(4):
    assert decode([i] * 4, keys[np.array([i] * 4)]) == [together[i]] * 4
  assert len(set(map(tuple, decode([0] * 4, jax.random.key(0, impl=kind))))) > 1


def decode(inputs=((3, 4),), strategy=fd.Greedy(), model=MODEL, **more):  # noqa: B008  it is frozen
  return fd.decode(
    model, {}, list(inputs) if isinstance(inputs, tuple) else inputs, strategy, **more
  )


@pytest.mark.parametrize(('call', 'words'), [
  (lambda: decode([[3, 4], [5], []]), 'prompt 2 is empty'),
  (lambda: decode([[3, 4], [[5]]]), 'must be integer ids'),
  (lambda: decode([[3, 4], [99]]), 'ids from 3 to 99, and the model knows 0 to 13'),
  (lambda: decode('once upon a time'), 'not str: use the tokenizer'),
  (lambda: decode([['once'], [3]]), 'not list: use the tokenizer'),
  (lambda: decode([[2**70]]), 'must be integer ids'),
  (lambda: decode([[True, False]]), 'must be integer ids'),
  (lambda: decode([3, 4, 5]), r'shape \[rows, tokens\], not int64\[3\]: give one row as \[ids\]'),
  (lambda: fd.decode_all(MODEL, {}, [3, 4], fd.Greedy()), r'give one row as \[ids\]'),
  (lambda: fd.score(MODEL, {}, [[3]], [3, 4]), r'targets must be .* give one row as \[ids\]'),
  (lambda: fd.decode({}, MODEL, [[3]], fd.Greedy()), 'of its parameters: give model, params'),
  (lambda: fd.decode_each({}, MODEL, [[3]], fd.Greedy()), 'give model, params'),
  (lambda: fd.score({}, MODEL, [[3]], [[3]]), 'give model, params'),
  (lambda: fd.tune({}, MODEL, [[3]], []), 'give model, params'),
  (lambda: fd.quantize({}, ENDLESS), 'give module, params'),
  (lambda: fd.decode((MODEL, {}), None, [[3]], fd.Greedy()), 'of type tuple is not a model: give'),
  (lambda: decode([[3, 4], [5]], prompt_lengths=[2, 2]),
    "from 1 to their prompt's own length, not \\[2, 2\\]"),
  (lambda: decode([[3, 4], [5, 6]], prompt_lengths=[2, 3]), 'numbers from 1 to 2, not \\[2, 3\\]'),
  (lambda: decode([[3, 4], [5, 6]], prompt_lengths=[1.5, 2]), 'not \\[1.5, 2.0\\]'),
  (lambda: decode([[3, 4], [5, 6]], prompt_lengths='ab'),
    'prompt_lengths must be 2 numbers, not str'),
  (lambda: decode(max_len=2.0), 'max_len=2.0 is not possible: give at least 1'),
  (lambda: decode(max_len=True), 'max_len=True is not possible'),
  (lambda: decode(max_len=[[4]]), 'is not possible: give at least 1'),
  (lambda: decode(max_len=2**40), 'is not possible: give at least 1'),
  (lambda: decode(key=0), r'key=0 is no random key: give jax.random.key\(0\)'),
  (lambda: decode(key=np.zeros(3)), 'is no random key'),
  (lambda: decode(key=jax.random.split(jax.random.key(0), 3)), 'one for each of the 1 rows'),
  (lambda: decode(strategy=fd.PromptLookup(sampling=fd.Sampling(1.0))),
    'needs .*key=jax.random.key'),
  (lambda: decode(strategy=fd.Greedy), 'is not a strategy: give'),
  (lambda: decode(strategy='greed'), "'greed' is not a strategy: known are"),
  (lambda: decode_each(MODEL, {}, [[3]], 'greed'), "'greed' is not a strategy"),
  (lambda: decode(strategy=fd.Exact()), 'is not a strategy: give'),
  (lambda: fd.stream(MODEL, {}, [[3]], fd.Beam(2)), 'Beam cannot stream'),
  (lambda: decode(model=ENDLESS, prompt_lengths=[2]), 'of prefixes, and there are none'),
  (lambda: decode(PICTURES, model=ENDLESS), 'must be integer ids'),
  (lambda: decode('picture', model=IMAGES), 'must be pictures'),
  (lambda: decode([[[1]], [2]], model=IMAGES), 'must be pictures'),
  (lambda: decode(PICTURES, fd.Beam(2, max_len=(0, 2)), IMAGES),
    'counts tokens of a source, and pictures have none'),
])  # fmt: skip
def test_mistakes_of_a_call(call, words):
  with pytest.raises(fd.UserError, match=words):
    call()


BOUND = (MODEL, {})


@pytest.mark.parametrize(('make', 'words'), [
  (lambda: fd.Sample(temperature=0), 'decode by Greedy'),
  (lambda: fd.Sample(0.5, sampling=fd.Sampling(0.8)), 'both are given: give one'),
  (lambda: fd.Greedy().with_sampling(0.8).sampling, 'sampling=0.8 is not possible'),
  (lambda: fd.Sample(temperature=float('inf')), '1e-6 to 1e6'),
  (lambda: fd.Sample(top_k=-1), 'top_k=-1 is not possible'),
  (lambda: fd.Sample(top_p=0), 'more than 0 and at most 1'),
  (lambda: fd.PromptLookup(ngram=0), 'ngram=0 is not possible'),
  (lambda: fd.PromptLookup(k=1), 'k=1 is not possible'),
  (lambda: fd.Jacobi(1), 'give a block size from 2, or decode by Greedy'),
  (lambda: fd.Lookahead(ngram=2), 'ngram=2 is not possible: give 3 or more, or decode by Jacobi'),
  (lambda: fd.Lookahead(window=0), 'window=0 is not possible'),
  (lambda: fd.Lookahead(guesses=0), 'guesses=0 is not possible: give how many'),
  (lambda: fd.Lookahead(sampling=fd.Sampling(-1)), 'temperature=-1 is not possible: give 0'),
  (lambda: fd.Speculative(BOUND, gamma=0), 'gamma=0 is not possible'),
  (lambda: fd.Sample(temperature=[[1.0, 2.0]]), 'temperature=.* is not possible'),
  (lambda: fd.Sample(temperature=True), 'temperature=True is not possible'),
  (lambda: fd.Sample(temperature='warm'), 'temperature=.warm. is not possible'),
  (lambda: fd.Sample(top_k=2.7), 'top_k=2.7 is not possible: give a whole number from 0'),
  (lambda: fd.Sample(top_k=float('nan')), 'top_k=nan is not possible'),
  (lambda: fd.Sample(top_p=None), 'top_p=None is not possible'),
  (lambda: fd.PromptLookup(k=2.5), 'k=2.5 is not possible: give a whole number, a block size'),
  (lambda: fd.PromptLookup(ngram=1.5), 'ngram=1.5 is not possible: give a whole number, a length'),
  (lambda: fd.Blockwise((HashHeads(), {}), 2.5), 'k=2.5 is out of range'),
  (lambda: fd.Speculative(BOUND, gamma=2.5), 'gamma=2.5 is not possible'),
  (lambda: fd.TopN(1.9), 'TopN takes n >= 1, a whole number, not 1.9'),
  (lambda: fd.Distance(0.5), 'Distance takes tau >= 0, a whole number, not 0.5'),
  (lambda: fd.MinBlock(fd.Exact(), 1.5), 'MinBlock takes size >= 1'),
  (lambda: fd.Typical(epsilon='0.1'), 'epsilon=0.1 is not possible'),
  (lambda: fd.Rejection('loose'), 'lenience=loose is not possible'),
  (lambda: fd.Beam(2.5), 'size=2.5 is not possible'),
  (lambda: fd.Beam(4, n_best=1.5), 'n_best=1.5 is not possible'),
  (lambda: fd.Beam(4, groups='2'), "groups='2' is not possible"),
  (lambda: fd.Beam(no_repeat_ngram=2.5), 'no_repeat_ngram=2.5 is not possible'),
  (lambda: fd.Beam(min_len=1.5), 'min_len=1.5 is not possible'),
  (lambda: fd.Beam(length_penalty=[0.6, 1.0]), 'a length penalty of .* is not possible'),
  (lambda: fd.Beam(unknown_id=3, unknown_penalty='1'), "unknown_penalty='1' is not possible"),
  (lambda: fd.Beam(unknown_id=-1), 'unknown_id=-1 is not possible'),
  (lambda: fd.Beam(max_len=('1', 2)), 'max_len=.* is not possible'),
  (lambda: fd.PromptLookup(ngram=10**7), 'ngram=10000000 is more than a call can hold'),
  (lambda: fd.PromptLookup(k=10**6), 'k=1000000 is more than a call can hold: give at most 1024'),
  (lambda: fd.LinearForecast(2000), 'k=2000 is more than a call can hold'),
  (lambda: fd.Speculative(BOUND, gamma=10**6), 'gamma=1000000 is more than a call can hold'),
  (lambda: fd.Lookahead(512, 5, 512), r'\(ngram - 1\)=4096 is more than a call can hold'),
  (lambda: fd.Lookahead(10**30), 'window=1000000000000000000000000000000 is not possible'),
  (lambda: fd.Medusa((HashHeads(), {}), [[i] for i in range(4500)]), 'nodes=.*call can hold'),
  (lambda: fd.Medusa((HashHeads(), {}), [[0] * 10_000]), r'choice \[0, .{,90} has no parent'),
  (lambda: fd.Medusa((HashHeads(), {}), [[0.5] * 10_000]), '^.{,200}$'),
  (lambda: fd.Topology.from_parents([-1] + [0] * 4499), 'nodes=4500 is more than a call can hold'),
  (lambda: LMConfig(eos_ids=[1]), r'eos_ids=\[1\] must be a tuple'),
])  # fmt: skip
def test_mistakes_of_a_setting(make, words):
  with pytest.raises(fd.UserError, match=words):
    make()


def test_whole_numbers_of_any_kind_are_taken():
  for two in (2, 2.0, np.int64(2), np.float32(2), jnp.int32(2)):
    assert int(fd.TopN(two).n) == int(fd.Sample(top_k=two).sampling.top_k) == 2
  for two in (2, np.int64(2), np.array(2)):
    assert fd.PromptLookup(k=two).k == fd.Beam(two).size == fd.Speculative(BOUND, two).gamma == 2
  assert fd.decode(MODEL, {}, [[3]], fd.Greedy(), max_len=np.int64(2)).tokens.shape == (1, 2)


def test_a_model_that_writes_nothing_has_its_ends_and_no_figures():
  """In a batch and in a pool no call is made, so there is neither a block nor a speed-up."""
  model, rows, ends = Silent(), [[3, 4], [5, 6, 7]], [[1, 0, 0], [1, 0, 0]]
  for strategy, decode in ((fd.PromptLookup(), fd.decode_all), (fd.Beam(2), fd.decode)):
    out = decode(model, {}, rows, strategy, max_len=3)
    assert out.tokens.tolist() == ends and out.lengths.tolist() == [1, 1]
    assert not out.block_sizes.any() and not out.mean_block_size > 0
  assert list(fd.stream(model, {}, rows, fd.PromptLookup(), max_len=3)) == [[[1], [1]]]
  np.testing.assert_allclose(fd.score(model, {}, rows, [[], [1]]).total, 0, atol=1e-6)


@pytest.mark.slow
def test_a_model_that_writes_nothing_is_tuned_without_figures():
  model, rows = Silent(), [[3, 4], [5, 6, 7]]
  tuned = fd.tune(model, {}, [fd.PromptLookup()], rows, max_len=3)
  assert {one.tokens_per_call for one in tuned.table} == {None} and ' - ' in str(tuned)
