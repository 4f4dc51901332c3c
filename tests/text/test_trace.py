"""A trace has the guesses and the accepted tokens of every call, and can be replayed with other
strategies."""

import dataclasses
import unittest.mock
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fastdec as fd
from tests.decoding import test_deep
from tests.decoding.methods_table import DEEP, DRAWN

LONG = test_deep.MAX_LEN
PROMPTS = [[*map(int, ids)] for ids in test_deep.prompts(0, 6)]


@pytest.fixture(scope='module')
def recorded():
  return fd.trace(*test_deep.target(), PROMPTS, fd.PromptLookup(k=4), LONG)


def test_it_is_the_decode_call_by_call(recorded):
  model, params = test_deep.target()
  out = jax.device_get(fd.decode(model, params, PROMPTS, fd.PromptLookup(k=4), max_len=LONG))
  assert recorded.texts == [out.written(row) for row in range(len(PROMPTS))]
  begin = 0
  for row, end in enumerate(recorded.call_ends):
    calls = {name: x[begin:end] for name, x in recorded.calls.items()}
    assert calls['emitted'].tolist() == out.block_sizes[row, : end - begin].tolist()
    at = 0
    for i in range(end - begin):
      guesses, parents = calls['guesses'][i], calls['parents'][i]
      path, node = [], calls['accepted'][i]
      while node >= 0:
        path.insert(0, node)
        node = parents[node]
      size = calls['emitted'][i]
      assert guesses[path].tolist()[:size] == recorded.texts[row][at : at + len(path)][:size]
      at += size
      best = calls['top_ids'][i][path, 0].tolist()  # the tokens after the path
      assert best[:size] == recorded.texts[row][at - size + 1 : at + 1]
    assert at == len(recorded.texts[row]) - 1
    begin = end
  assert (recorded.calls['top_logprobs'] <= 0).all()


class Letters:
  """A tokenizer whose tokens are letters."""

  def token_bytes(self):
    return [b'', b'', *(bytes([97 + i]) for i in range(test_deep.WORDS))]

  def encode(self, text):
    return [2 + ord(letter) - 97 for letter in text]

  def decode(self, ids):
    return b''.join(self.token_bytes()[i] for i in ids).decode()


def regex(pattern):
  pytest.importorskip('outlines_core')
  return fd.Constraint.regex(pattern, Letters())


LOOKUP = fd.PromptLookup(ngram=1, k=4)
KEY = {'key': jax.random.key(3)}
# a strategy, or one of the tables', and settings of the decode
SETTINGS = {
  'ends within texts': (LOOKUP, lambda: {'processors': fd.Processors(
    ends=[7], bias={test_deep.END: 8.0})}),
  'no end': (LOOKUP, lambda: {'processors': fd.Processors(ends=[], bias={test_deep.END: 8.0})}),
  'processors': (DEEP['eagle, a growing tree'], lambda: {'processors': fd.Processors(
    repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.1, no_repeat_ngram=5,
    min_length=9, bad_words=[[5, 6]], suppress=[9], begin_suppress=[3], forced_end=8,
    encoder_repetition_penalty=1.1, encoder_no_repeat_ngram=4, length_decay=(9, 1.1))}),
  'a number for each row': (LOOKUP, lambda: {
    'max_len': [3, 30, 1, 12], 'processors': fd.Processors(
      repetition_penalty=[1, 1.5, 1, 2.0], min_new_tokens=[2, 20, 0, 5])}),
  'samples': (fd.PromptLookup(1, 4, fd.Sampling([0.5, 1.0, 0.2, 2.0], top_k=4, min_p=0.1)),
    lambda: KEY),
  'samples of heads': (DRAWN['medusa'], lambda: KEY),
  'samples with processors': (DRAWN['union'], lambda: KEY | {
    'processors': fd.Processors(ends=[5], no_repeat_ngram=4)}),
  'a constraint': (LOOKUP, lambda: {'constraint': regex('[a-r]{2}(fghi|[a-e]+klmno)+')}),
  'a constraint that drafts': (fd.Forced(4), lambda: {
    'constraint': regex('[a-r]{2}(fghi|[a-e]+klmno)+')}),
  'a constraint that drafts after a forced token': (fd.Forced(4), lambda: {
    'processors': fd.Processors(forced_begin=3),
    'constraint': regex('[a-r]{2}(fghi|[a-e]+klmno)+')}),
  'int8': (LOOKUP, lambda: {'dtype': 'int8'}),
  'a draft model': (DEEP['speculative, adaptive'], lambda: {
    'processors': fd.Processors(ends=[5], bias={test_deep.END: 8.0})}),
  'blocks': (DEEP['block, a growing tree'], lambda: {'max_len': 9}),
  'a pool': (DEEP['lookup in a pool'], lambda: {}),
}  # fmt: skip


@pytest.mark.parametrize('name', SETTINGS)
@pytest.mark.wide('ends within texts', 'a number for each row')
def test_a_trace_has_the_calls_of_the_decode_and_replays_them(name, tmp_path):
  """By its own strategy, whatever else decided the texts. Prompts have different lengths."""
  model, params = test_deep.target()
  strategy, settings = SETTINGS[name]
  if callable(strategy):
    strategy = strategy(test_deep.kit())
  settings = {'max_len': LONG} | settings()
  if 'dtype' in settings:
    params = fd.quantize(model, params, settings.pop('dtype'))
  prompts = [PROMPTS[0], PROMPTS[1] * 3, PROMPTS[2][:1], PROMPTS[3] * 2]
  out = fd.decode_all(model, params, prompts, strategy, **settings)
  trace = fd.trace(model, params, prompts, strategy, **settings)
  assert trace.texts == [out.written(row) for row in range(len(prompts))]
  calls = np.diff(trace.call_ends, prepend=0)
  np.testing.assert_array_equal(calls, out.calls)

  trace.save(tmp_path / 'trace')
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    laws = {name: settings.get(name) for name in ('constraint', 'processors')}
    replayed = fd.replay(tmp_path / 'trace', strategy, model, params, **laws)
  np.testing.assert_array_equal(replayed.calls, calls)
  np.testing.assert_array_equal(replayed.lengths, out.lengths)
  sizes = [replayed.block_sizes[row, :n] for row, n in enumerate(calls)]
  np.testing.assert_array_equal(np.concatenate(sizes), trace.calls['emitted'])


def test_a_trace_stops_at_stop_strings_as_a_generator_does():
  """Within a block, at its end, at the first token, across calls, and not at all."""
  model, params = test_deep.target()
  g = fd.Generator(model, params, Letters(), LOOKUP, processors=fd.Processors(ends=[]))
  texts = [Letters().decode(prompt) for prompt in PROMPTS]
  whole = g(texts, max_new_tokens=LONG)
  stops = [one.text[n : n + size] for one, n, size in zip(
    whole, (9, 20, 0, 5, 7), (2, 1, 1, 3, 4), strict=False)]  # fmt: skip
  written = g(texts, max_new_tokens=LONG, stop=stops)
  assert {one.finish_reason for one in written} >= {'stop'}
  trace = fd.trace(
    model, params, PROMPTS, LOOKUP, LONG, processors=g.processors, stop=stops, tokenizer=Letters()
  )
  assert trace.texts == [one.tokens for one in written]
  calls = np.diff(trace.call_ends, prepend=0).tolist()
  assert calls == [one.calls for one in written] != [one.calls for one in whole]
  assert fd.replay(trace, LOOKUP, model, params).calls.tolist() == calls
  assert trace.settings == f'max_len={LONG}, stop={stops!r}, ends=()'


def test_a_replay_that_differs_from_its_trace_says_so(recorded):
  """The words are the same, and the draft is a different one."""
  model, params = test_deep.target()
  draft, own = test_deep.kit().draft
  strategy = fd.Speculative((draft, own), 3)
  trace = fd.trace(model, params, PROMPTS, strategy, LONG)
  other = fd.Speculative((draft, jax.tree.map(jnp.zeros_like, own)), 3)
  with pytest.warns(fd.UserNote, match='are not those of the trace'):
    replayed = fd.replay(trace, other, model, params)
  assert (replayed.calls > np.diff(trace.call_ends, prepend=0)).any()


@pytest.mark.parametrize('name', ['blockwise', 'eagle, a growing tree', 'union'])
@pytest.mark.wide('blockwise')
def test_a_file_replays_as_a_different_strategy_decodes(recorded, tmp_path, name):
  recorded.save(tmp_path / 'trace')
  model, params = test_deep.target()
  strategy = DEEP[name](test_deep.kit())
  out = fd.decode(model, params, PROMPTS, strategy, max_len=LONG)
  replayed = fd.replay(tmp_path / 'trace', strategy, model, params)
  assert replayed.mean_block_size == out.mean_block_size > 1.5
  np.testing.assert_array_equal(replayed.calls, out.calls)
  assert replayed.milliseconds is None
  again = fd.replay(recorded, strategy, model, params, timed=True)
  each = again.milliseconds / out.calls
  assert (each > 0).all() and np.ptp(each) < 1e-6


def test_a_file_is_read_as_it_was_written(recorded, tmp_path):
  recorded.save(tmp_path / 'trace')
  again = fd.Trace.load(tmp_path / 'trace')
  assert (again.prompts, again.texts, again.strategy) == (
    recorded.prompts, recorded.texts, 'PromptLookup(ngram=3, k=4)',
  )  # fmt: skip
  for name, x in recorded.calls.items():
    np.testing.assert_array_equal(again.calls[name], x)
  fd.Trace(PROMPTS, recorded.texts).save(tmp_path / 'texts')  # without calls
  assert fd.Trace.load(tmp_path / 'texts').texts == recorded.texts


def test_only_the_folder_of_the_user_is_read_and_only_if_it_has_not_changed(tmp_path):
  model, params = test_deep.target()
  params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
  model = dataclasses.replace(model, config=dataclasses.replace(model.config, dtype='float32'))
  fd.save(model, params, tmp_path / 'model')
  trace = fd.trace(
    model, params, PROMPTS, fd.PromptLookup(k=4), LONG, folder=tmp_path / 'model', dtype='float32'
  )
  expected = fd.replay(trace, fd.PromptLookup(k=4), model, params)
  np.testing.assert_array_equal(fd.replay(trace, fd.PromptLookup(k=4)).calls, expected.calls)

  # A file is perhaps someone else's, so it is neither opened nor downloaded what it names.
  for name in (trace.model, 'Qwen/Qwen3-0.6B', '/dev/zero', 'https://example.org/model'):
    dataclasses.replace(trace, model=name).save(tmp_path / 'trace')
    with (
      unittest.mock.patch('fastdec.text.trace.open_fast') as opened,
      unittest.mock.patch('fastdec.folders.content') as hashed,
      unittest.mock.patch('huggingface_hub.snapshot_download') as downloaded,
      pytest.raises(fd.UserError, match=f'trace names the model .{name}.: give model and params'),
    ):
      fd.replay(tmp_path / 'trace', fd.PromptLookup(k=4))
    assert not opened.called and not hashed.called and not downloaded.called
  fd.save(model, jax.tree.map(lambda x: x + 1, params), tmp_path / 'model')
  with pytest.raises(fd.UserError, match='is not the model that wrote this trace'):
    fd.replay(trace, fd.PromptLookup(k=4))


def test_mistakes_are_one_sentence(recorded, tmp_path):
  def fails(match, action):
    with pytest.raises(fd.UserError, match=match):
      action()

  fails('none does not exist', lambda: fd.Trace.load(tmp_path / 'none'))
  (tmp_path / 'text').write_text('hello')
  fails('text is damaged', lambda: fd.Trace.load(tmp_path / 'text'))
  save_file({'a': np.zeros(1)}, tmp_path / 'other')
  fails('other is not a trace: give a file of', lambda: fd.Trace.load(tmp_path / 'other'))
  recorded.save(tmp_path / 'trace')
  tensors = load_file(tmp_path / 'trace')
  for change in (
    {'ends': tensors['ends'] + 1}, {'texts': tensors['texts'][None]},
    {'call_ends': tensors['call_ends'][:-1]}, {'emitted': tensors['emitted'][1:]},
  ):  # fmt: skip
    save_file(tensors | change, tmp_path / 'wrong', {'format': 'fastdec-trace'})
    fails('wrong is damaged', lambda: fd.Trace.load(tmp_path / 'wrong'))
  fails('this trace names no model', lambda: fd.replay(recorded, fd.PromptLookup()))
  model = test_deep.target()
  fails('Beam cannot stream', lambda: fd.trace(*model, PROMPTS, fd.Beam(2), 4))
  fails('top=0 is not possible', lambda: fd.trace(*model, PROMPTS, fd.Greedy(), 4, top=0))
