"""A trace has the guesses and the accepted tokens of every call, and can be replayed with other
strategies."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fastdec as fd
from tests.decoding import test_deep
from tests.decoding.methods_table import DEEP

LONG = test_deep.MAX_LEN
PROMPTS = [[*map(int, ids)] for ids in test_deep.prompts(0, 6)]


@pytest.fixture(scope='module')
def recorded():
  return fd.trace(*test_deep.target(), PROMPTS, fd.PromptLookup(k=4), LONG)


def test_it_is_the_decode_call_by_call(recorded):
  model, params = test_deep.target()
  out = fd.decode(model, params, PROMPTS, fd.PromptLookup(k=4), max_len=LONG)
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


def test_texts_are_drawn_as_together():
  model, key = test_deep.target(), jax.random.key(3)
  out = fd.decode(*model, PROMPTS, fd.Sample(1.0), max_len=LONG, key=key)
  trace = fd.trace(*model, PROMPTS, fd.Sample(1.0), LONG, key)
  assert trace.texts == [out.written(row) for row in range(len(PROMPTS))]


@pytest.mark.parametrize('name', ['eagle, a growing tree', 'union'])
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


def test_the_folder_that_it_names_is_read_unless_it_has_changed(tmp_path):
  model, params = test_deep.target()
  params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
  model = dataclasses.replace(model, config=dataclasses.replace(model.config, dtype='float32'))
  fd.save(model, params, tmp_path / 'model')
  trace = fd.trace(
    model, params, PROMPTS[:2], fd.Greedy(), LONG, folder=tmp_path / 'model', dtype='float32'
  )
  expected = fd.replay(trace, fd.PromptLookup(k=4), model, params)
  np.testing.assert_array_equal(fd.replay(trace, fd.PromptLookup(k=4)).calls, expected.calls)
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
  for change in ({'ends': tensors['ends'] + 1}, {'texts': tensors['texts'][None]}):
    save_file(tensors | change, tmp_path / 'wrong', {'format': 'fastdec-trace'})
    fails('wrong is damaged', lambda: fd.Trace.load(tmp_path / 'wrong'))
  fails('this trace names no model', lambda: fd.replay(recorded, fd.PromptLookup()))
  model = test_deep.target()
  fails('Beam cannot stream', lambda: fd.trace(*model, PROMPTS, fd.Beam(2), 4))
  fails('top=0 is not possible', lambda: fd.trace(*model, PROMPTS, fd.Greedy(), 4, top=0))
