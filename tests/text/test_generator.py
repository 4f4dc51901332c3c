"""Text in, text out: `fd.Generator` writes what `fd.decode` decodes."""

import argparse
import contextlib
import dataclasses
import itertools
import re
import types
import warnings

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import fastdec as fd
from fastdec import folders
from fastdec.cli.flags import whole
from fastdec.data.text.sentencepiece import Tokenizer
from fastdec.decoding.run import make_calls
from fastdec.decoding.strategy import with_settings
from fastdec.errors import UserNote
from fastdec.evaluation import machine
from fastdec.fields import LAST_SEED, Seed, value_of
from fastdec.folders.native import NativeFolder
from fastdec.heads.block import BlockNetwork
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.medusa import MedusaHeads
from fastdec.kernels.quantized import is_quantized
from fastdec.models.lm import LM, LMConfig
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.text import programs
from fastdec.text.generator import key_of
from fastdec.text.load import open_folder
from fastdec.text.reader import StopReader

LINES = ['a dog runs', 'ein Hund rennt', 'the cat sits', 'die Katze sitzt']
SIZES = dict(vocab_size=30, d_model=8, d_ff=12, heads=2)
LANGUAGE = LMConfig(**SIZES, layers=1, windows=(0,), norm_epsilon=1e-5, max_positions=60)
PROMPTS = ['the dog', 'a', 'ein Hund sitzt', 'die Katze runs', 'cat']


def lively(params):
  """Parameters large enough for texts that differ."""
  return jax.tree.map(lambda x: 4 * x, params)


def zeros(module):
  shapes = jax.eval_shape(module.init, jax.random.key(0))
  return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  """Folders: of a model, a smaller one, heads of two kinds, draft networks of two, a translator."""
  place = tmp_path_factory.mktemp('text')
  Tokenizer.train(LINES, place / 'pieces', vocab_size=30)
  model, keys = LM(LANGUAGE), jax.random.split(jax.random.key(7), 8)
  init = jax.jit(model.init)
  params = lively(init(keys[0]))
  folders.save(model, params, place / 'model', tokenizer=place / 'pieces')
  folders.save(model, lively(init(keys[1])), place / 'smaller', tokenizer=place / 'pieces')
  heads = BlockwiseHeads(k=3, d_model=8, d_ff=6)
  heads = heads, jax.jit(heads.init)(keys[2])
  folders.save(model, params, place / 'heads', heads, tokenizer=place / 'pieces')
  medusa = MedusaHeads(2, d_model=8, vocab_size=30)
  fd.save_heads(place / 'medusa', (medusa, jax.jit(medusa.init)(keys[3])), 'model')
  wide = MedusaHeads(2, d_model=9, vocab_size=30)
  fd.save_heads(place / 'wide', (wide, zeros(wide)), 'model')
  layers = dataclasses.replace(LANGUAGE, max_positions=None)
  for name, network in (
    ('eagle', EagleNetwork(layers=layers, vocab_size=30, d_target=8)),
    ('block', BlockNetwork(layers=layers, vocab_size=30, d_target=8, k=4)),
  ):
    fd.save_draft(place / name, (network, zeros(network)))
  translator = Transformer(
    TransformerConfig(**SIZES, encoder_layers=1, decoder_layers=1, max_positions=60)
  )
  params = lively(jax.jit(translator.init)(keys[5]))
  folders.save(translator, params, place / 'translator', tokenizer=place / 'pieces')
  Tokenizer.train(['zu viel', 'quer', 'hin'], place / 'others', vocab_size=18)
  other = LM(dataclasses.replace(LANGUAGE, vocab_size=18))
  folders.save(other, zeros(other), place / 'other', tokenizer=place / 'others')
  return place


@pytest.fixture(scope='module')
def g(place):
  return fd.Generator.load(place / 'model')


def decoded(g, prompt, strategy=None, **settings):
  ids = g.tokenizer.encode(prompt)
  ids += [1] if g.model.start_id is not None else []
  out = fd.decode(g.model, g.params, [ids], strategy or g.strategy, **settings)
  return out.tokens[0, : out.lengths[0]].tolist()


def test_a_text_is_what_decode_decodes(g):
  out = g('the dog', max_new_tokens=12)
  assert out.tokens == decoded(g, 'the dog', max_len=12)
  whole = g.tokenizer.decode(g.tokenizer.encode('the dog') + out.tokens)
  assert out.text == str(out) == whole.removeprefix('the dog')
  assert [len(block) for block in out.blocks] == [1] * len(out.tokens)
  assert out.calls == len(out.tokens) - 1 and out.tokens_per_call == 1
  assert out.finish_reason == ('end' if out.tokens[-1] == 1 else 'length')
  assert out.logprobs is None and out.tokens_per_second > 0


def test_a_list_is_decoded_like_each_of_its_prompts(g):
  together = g(PROMPTS, max_new_tokens=12)
  for prompt, out in zip(PROMPTS, together, strict=True):
    alone = g(prompt, max_new_tokens=12)
    assert (out.text, out.tokens, out.blocks) == (alone.text, alone.tokens, alone.blocks)
  assert len({out.text for out in together}) > 2 and g([]) == []


def test_seeds_and_laws(g):
  law = {'max_new_tokens': 12, 'temperature': 1.5}
  first, again, other = (g('the dog', seed=seed, **law).text for seed in (3, 3, 4))
  assert first == again != other
  assert g(['the dog', 'the dog'], seed=3, **law)[0].text == first
  assert ''.join(g.stream('the dog', seed=3, **law)) == first


def test_the_bound_of_a_seed_is_the_one_that_is_said():
  for seed in (0, 2**31, 2**32 - 1, np.uint32(2**32 - 1), [1, 2**32 - 1]):
    assert key_of(fd.Sample(), seed) is not None
  for seed in (-1, 2**32, 2**63, 2**80, 1.0, True, 'a', [1, 2**32]):
    with pytest.raises(fd.UserError, match=r'give a whole number from 0 to 4294967295$'):
      key_of(fd.Sample(), seed)
  with pytest.raises(fd.UserError, match=r'seed=4294967296 .* from 0 to 4294967295$'):
    value_of(Seed, 2**32, 'seed')
  with pytest.raises(argparse.ArgumentTypeError, match='0 to 4294967295'):
    whole(0, LAST_SEED)('4294967296')


def test_each_prompt_of_a_list_may_have_its_own_settings(g):
  own = {
    'max_new_tokens': [12, 5], 'temperature': [0.0, 1.5], 'seed': [1, 2],
    'repetition_penalty': [1.0, 3.0],
  }  # fmt: skip
  for i, out in enumerate(g(['the dog', 'a cat'], **own)):
    alone = g(['the dog', 'a cat'][i], **{name: each[i] for name, each in own.items()})
    assert out.tokens == alone.tokens


def test_a_folder_brings_its_processors(shared):
  place = shared / 'reference' / 'hf' / 'marian2_tiny'  # which forces an end
  processors = fd.Processors.of(place)
  assert processors.forced_end == (0,)
  model, params = fd.load(place)
  source = [[26, 41, 51, 24, 61, 25, 0]]
  short = fd.decode(model, params, source, fd.Greedy(), max_len=3, processors=processors)
  assert short.tokens[0, short.lengths[0] - 1] == 0
  assert open_folder(place).generation['forced_eos_token_id'] == 0


@pytest.mark.parametrize(
  ('strategy', 'expected'),
  [
    (fd.Greedy(), fd.Sample(0.5)),
    (fd.Sample(2.0, top_k=3), fd.Sample(0.5, top_k=3)),
    (fd.PromptLookup(k=4), fd.PromptLookup(k=4, sampling=fd.Sampling(0.5))),
  ],
)
def test_a_call_has_its_own_law(strategy, expected):
  assert with_settings(strategy, {'temperature': 0.5}) == expected
  assert with_settings(strategy, {}) is strategy
  assert with_settings(fd.Sample(), {'temperature': 0}) == fd.Greedy()


@pytest.mark.parametrize(
  ('arguments', 'kind'),
  [
    ({}, fd.Greedy),
    ({'draft': 'smaller'}, fd.Speculative),
    ({'draft': 'eagle'}, fd.Eagle),
    ({'draft': 'block'}, fd.BlockDraft),
    ({'heads': 'heads'}, fd.Blockwise),
    ({'heads': 'medusa'}, fd.Medusa),
    ({'draft': 'smaller', 'strategy': 'speculative(gamma=2)'}, fd.Speculative),
    ({'strategy': 'prompt_lookup(k=3)'}, fd.PromptLookup),
    ({'strategy': fd.Jacobi(3)}, fd.Jacobi),
    ({'draft': 'eagle', 'strategy': 'union(prompt_lookup, eagle(depth=2))'}, fd.Union),
  ],
)
def test_strategies_by_arguments(place, g, arguments, kind):
  paths = {name: place / one for name, one in arguments.items() if name != 'strategy'}
  other = fd.Generator.load(place / 'model', **arguments | paths)
  assert type(other.strategy) is kind
  if kind in (fd.Greedy, fd.Blockwise, fd.PromptLookup):  # other tests decode with all kinds
    out, plain = (one('ein Hund', max_new_tokens=12) for one in (other, g))
    assert out.tokens == plain.tokens
    assert list(itertools.chain(*out.blocks)) == out.tokens and len(out.blocks) == out.calls + 1


def test_heads_next_to_the_model_serve_a_strategy_in_words(place):
  g = fd.Generator.load(place / 'heads', strategy='blockwise(k=2)')
  assert g.strategy.k == 2


def test_a_source_gets_its_end(place):
  g = fd.Generator.load(place / 'translator')
  for prompt, out in zip(PROMPTS[:2], g(PROMPTS[:2], max_new_tokens=12), strict=True):
    assert out.tokens == decoded(g, prompt, max_len=12)
    assert out.text == g.tokenizer.decode(out.tokens)


@pytest.mark.parametrize('strategy', [fd.Greedy(), fd.PromptLookup(k=4)])
@pytest.mark.wide('strategy1')
def test_stop_strings(g, strategy):
  g = dataclasses.replace(g, strategy=strategy)
  whole = g('die Katze runs', max_new_tokens=24)
  middle = len(whole.text) // 2
  stop = whole.text[middle : middle + 2]
  at = whole.text.index(stop)
  out = g('die Katze runs', max_new_tokens=24, stop=['never there', stop])
  (listed, _) = g(['die Katze runs', 'a'], max_new_tokens=24, stop=stop)
  assert out.finish_reason == 'stop' and out.text == whole.text[:at] == listed.text
  assert out.tokens == listed.tokens == whole.tokens[: len(out.tokens)]
  assert out.blocks == listed.blocks and out.calls == listed.calls == len(out.blocks) - 1
  before = g.tokenizer.encode('die Katze runs')
  texts = [g.tokenizer.decode(before + out.tokens[:n]) for n in range(len(out.tokens) + 1)]
  first, last = texts[-2].removeprefix(texts[0]), texts[-1].removeprefix(texts[0])
  assert stop in last and stop not in first
  pieces = list(g.stream('die Katze runs', max_new_tokens=24, stop=stop))
  assert ''.join(pieces) == out.text == ''.join(out.pieces)


def test_a_stream_is_the_text(g):
  whole = g('a dog', max_new_tokens=12)
  assert ''.join(g.stream('a dog', max_new_tokens=12)) == whole.text == ''.join(whole.pieces)


def test_prompts_of_a_bucket_share_their_programs(g):
  def run(*words):
    for word in words:
      g(word, max_new_tokens=12)
      list(g.stream(word, max_new_tokens=12))
      g(word, max_new_tokens=12, logprobs=1)
    g([*words, 'a', 'ein'][:4], max_new_tokens=len(words[0]))
    return make_calls._cache_size()

  assert run('cat', 'the dog') == run('the dog sits', 'a cat')


UNSET = dict.fromkeys(('FASTDEC_CACHE', 'XDG_CACHE_HOME', 'JAX_COMPILATION_CACHE_DIR'))


@pytest.fixture
def no_programs_kept(monkeypatch):
  """JAX's settings as if the user had set nothing; changes by `programs.keep` are undone."""
  names = (
    'jax_compilation_cache_dir', 'jax_compilation_cache_max_size', 'jax_enable_compilation_cache',
    'jax_persistent_cache_min_compile_time_secs',
  )  # fmt: skip
  before = {name: getattr(jax.config, name) for name in names}
  jax.config.update('jax_compilation_cache_dir', None)
  for name in UNSET:
    monkeypatch.delenv(name, raising=False)
  with warnings.catch_warnings():
    yield monkeypatch
  for name, value in before.items():
    jax.config.update(name, value)
  compilation_cache.reset_cache()


@pytest.mark.parametrize('name, inside', [
  ('HOME', '.cache/fastdec/jax'), ('XDG_CACHE_HOME', 'fastdec/jax'), ('FASTDEC_CACHE', '.'),
])  # fmt: skip
def test_programs_are_kept_in_a_folder_of_the_user(no_programs_kept, tmp_path, name, inside):
  no_programs_kept.setenv(name, str(tmp_path / 'a home'))
  programs.keep()
  kept = programs.folder()
  assert kept is not None and kept.parent == tmp_path / 'a home' / inside
  assert jax.config.jax_compilation_cache_dir == str(kept)
  assert jax.config.jax_compilation_cache_max_size == programs.MOST_BYTES
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  jax.jit(lambda x: x * 31 + 7)(np.arange(3))
  assert list(kept.glob('*-cache'))


def test_programs_are_not_kept_where_the_user_has_decided(no_programs_kept, tmp_path):
  no_programs_kept.setenv('FASTDEC_CACHE', '')
  programs.keep()
  assert jax.config.jax_compilation_cache_dir is None
  no_programs_kept.setenv('FASTDEC_CACHE', str(tmp_path / 'kept'))
  jax.config.update('jax_compilation_cache_dir', str(tmp_path / 'own'))
  programs.keep()
  assert jax.config.jax_compilation_cache_dir == str(tmp_path / 'own')
  assert not (tmp_path / 'kept').exists()


@pytest.mark.parametrize('free', [None, programs.LEAST_FREE - 1])
def test_a_home_without_room_is_one_note(no_programs_kept, tmp_path, free):
  """There is a file at the folder's place, or the disk is full."""
  if free is None:
    (tmp_path / 'home').write_text('')
  no_programs_kept.setattr(
    programs.shutil, 'disk_usage', lambda _: types.SimpleNamespace(free=free)
  )
  no_programs_kept.setenv('XDG_CACHE_HOME', str(tmp_path / 'home'))
  with pytest.warns(fd.UserNote, match='compiled programs are not kept, since .*FASTDEC_CACHE'):
    programs.keep()
  with warnings.catch_warnings(action='error'):
    programs.keep()
  assert jax.config.jax_compilation_cache_dir is None


def test_a_disk_with_just_enough_room_keeps_programs(no_programs_kept, tmp_path):
  free = types.SimpleNamespace(free=programs.LEAST_FREE)
  no_programs_kept.setattr(programs.shutil, 'disk_usage', lambda _: free)
  no_programs_kept.setenv('FASTDEC_CACHE', str(tmp_path))
  programs.keep()
  assert jax.config.jax_compilation_cache_dir == str(programs.folder())


@pytest.mark.parametrize('style', ['chatml', 'mistral', 'gemma'])
@pytest.mark.wide('chatml')
def test_a_chat_continues_from_its_template(shared, tmp_path, style):
  tokenizer = fd.load_tokenizer(shared / 'reference' / 'chat' / f'{style}_tiny')
  model = LM(dataclasses.replace(LANGUAGE, vocab_size=tokenizer.vocab_size, max_positions=None))
  fd.save(model, lively(model.init(jax.random.key(2))), tmp_path / 'model', tokenizer=tokenizer)
  noted = contextlib.nullcontext()
  if style == 'chatml':  # whose turns end by a token that ends no text of this model
    noted = pytest.warns(fd.UserNote, match=r"ends turns by '<\|im_end\|>', .* give stop=")
  with noted:
    g, messages = (
      fd.Generator.load(tmp_path / 'model'),
      [{'role': 'user', 'content': 'Count: 1, 2'}],
    )
  end = fd.Processors(bias={tokenizer.encode('<|im_end|>')[0]: 1e4}) if style == 'chatml' else None
  if end is not None:
    stopped = g.chat(messages, max_new_tokens=12, stop='<|im_end|>', processors=end)
    assert (stopped.text, len(stopped.tokens), stopped.finish_reason) == ('', 1, 'stop')
  out, ids = g.chat(messages, max_new_tokens=12), g.tokenizer.encode_chat(messages)
  expected = fd.decode(g.model, g.params, [ids], fd.Greedy(), max_len=12)
  assert out.tokens == expected.tokens[0, : expected.lengths[0]].tolist()
  assert out.text == g.tokenizer.decode(out.tokens) == g([messages, 'a'], max_new_tokens=12)[0].text
  assert ''.join(g.stream(messages, max_new_tokens=12)) == out.text == ''.join(out.pieces)


def test_other_settings_of_a_chat_are_variables_of_its_template(talker, monkeypatch):
  g, asked = fd.Generator.load(talker), [{'role': 'user', 'content': 'Count!'}]
  tools = [{'type': 'function', 'function': {'name': 'get', 'parameters': {}}}]
  variables = {'enable_thinking': False, 'tools': tools}
  wanted = g.tokenizer.render(asked, **variables)
  assert '<quick>' in wanted and 'Tools: ' in wanted
  half = dataclasses.replace(g, template={'tools': tools})
  answered = [*asked, {'role': 'assistant', 'content': 'One'}]
  whole = g.tokenizer.render(answered, False).partition('One')[0] + 'One'
  texts = []

  def encode(text, special=True):
    texts.append((text, special))
    raise fd.UserError('that is enough')

  monkeypatch.setattr(g.tokenizer, 'encode', encode)
  for ask, text in (
    (lambda: g.chat(asked, max_new_tokens=3, **variables), wanted),
    (lambda: g.chat([asked, asked], seed=2, **variables), wanted),
    (lambda: g(asked, **variables), wanted),
    (lambda: g([asked], stop='a', **variables), wanted),
    (lambda: g.stream(asked, **variables), wanted),
    (lambda: g.read(asked, **variables), wanted),
    (lambda: half(asked, enable_thinking=False), wanted),
    (lambda: g.chat(answered, continue_final_message=True), whole),
  ):
    with pytest.raises(fd.UserError, match='that is enough'):
      ask()
    assert texts[-1] == (text, False)  # no token is put before those of the template


@pytest.mark.parametrize('ask, message', [
  (lambda g, chat: g.chat(chat, warmth=1), "the chat template has no variable 'warmth', and"),
  (lambda g, chat: g.stream(chat, warmth=1), "the chat template has no variable 'warmth'"),
  (lambda g, asked: dataclasses.replace(g, template={'warmth': 1}), 'has no variable .warmth'),
  (lambda g, asked: g('a', enable_thinking=False), "a call has no argument 'enable_thinking'"),
  (lambda g, asked: g.chat('Count!'), 'messages are a list of'),
  (lambda g, asked: g.chat([asked, 'Count!']), 'messages are a list of'),
  (lambda g, asked: g.chat([]), 'messages are a list of'),
])  # fmt: skip
def test_mistakes_of_chats(talker, ask, message):
  with pytest.raises(fd.UserError, match=message):
    ask(fd.Generator.load(talker), [{'role': 'user', 'content': 'Count!'}])


def test_logprobs_are_the_model_s(g):
  out = g('a dog', max_new_tokens=9, logprobs=1)
  scores = fd.score(g.model, g.params, [g.tokenizer.encode('a dog')], [out.tokens])
  np.testing.assert_allclose(out.logprobs, scores.tokens[0], atol=1e-5)
  assert out.top_logprobs == [{i: x} for i, x in zip(out.tokens, out.logprobs, strict=True)]


def test_a_long_stop_string_costs_a_token_as_little_as_a_short_one():
  class Counted(str):
    looks = 0

    def startswith(self, prefix, *args):
      Counted.looks += 1
      return super().startswith(prefix, *args)

  class Letters:
    decode = staticmethod(lambda ids: ''.join('ab'[i] for i in ids))

  text = [0, 1, 0, 0] * 500
  for stop, looks in (('x', 0), ('x' * 100_000, 1), ('a' * 100_000, 2), ('abaa' * 25_000, 2)):
    Counted.looks = 0
    reader = StopReader(Letters, [], [Counted(stop)])
    shown = ''.join(reader.add([token]) for token in text) + reader.finish()
    assert shown == Letters.decode(text) and Counted.looks <= looks * len(text)


def test_a_notebook_shows_blocks():
  class Words:
    decode = staticmethod(lambda ids: ''.join(['<b>', ' upon', ' a', ' time'][i] for i in ids))

  out = fd.Generated(
    '<b> upon a time', [0, 1, 2, 3], [[0], [1, 2], [3]], 2, 'length', 1.0, None, (Words, [])
  )
  shown = out._repr_html_()
  assert out.pieces == ['<b>', ' upon a', ' time']
  assert '&lt;b&gt;</span>' in shown and '> upon a</span>' in shown and '4 tokens' in shown
  one = fd.Generated('<b>', [0], [[0]], 0, 'length', 1.0, None, (Words, []))
  assert '1 tokens, 0 calls: 1 a second (length)' in one._repr_html_()


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'draft': 'smaller', 'heads': 'heads'}, 'draft and heads each say how to draft'),
    ({'draft': 'smaller', 'strategy': fd.Greedy()}, 'draft and strategy each say'),
    ({'draft': 'smaller', 'strategy': 'greedy'}, 'drafts without a folder'),
    ({'draft': 'other'}, r'have different vocabularies, of 18 and 30 tokens \(number .*\): give a'),
    ({'heads': 'wide'}, 'for hidden states of 9'),
    ({'strategy': 'speculative'}, 'give their folder too'),
    ({'strategy': 'tuned'}, 'tuned.json does not exist'),
    ({'strategy': 'tuned', 'dtype': 'int8'}, 'leave out dtype'),
    ({'strategy': 3}, 'is not a strategy'),
  ],
)
def test_mistakes_of_loading_show_before_the_models_weights_are_read(
  place, monkeypatch, arguments, message
):
  params = NativeFolder.params

  def read(self, *args, **settings):
    assert self.path.name != 'model'
    return params(self, *args, **settings)

  monkeypatch.setattr(NativeFolder, 'params', read)
  paths = {name: place / one for name, one in arguments.items() if name in ('draft', 'heads')}
  with pytest.raises(fd.UserError, match=message):
    fd.Generator.load(place / 'model', **arguments | paths)


@pytest.mark.parametrize(
  ('prompt', 'settings', 'message'),
  [
    ('', {}, 'the prompt is empty'),
    ('cut \ud83d', {}, 'the prompt has half a character'),
    ([{'role': 'user', 'content': 'cut \ud83d'}], {}, 'the prompt has half a character'),
    (3, {}, 'not a value of the kind int'),
    ([3], {}, 'not a value of kind int'),
    ('a', {'stop': ''}, 'strings that are not empty'),
    ('a', {'max_new_tokens': 0}, 'max_new_tokens=0'),
    ('a', {'max_new_tokens': 99}, "exceed the model's 60 positions"),
    ('a', {'max_new_tokens': 2.5}, '=2.5 is not possible: give a whole number, 1 or more'),
    ('a', {'max_new_tokens': [3, 2.5]}, 'give a whole number'),
    ('a', {'warmth': 1}, "no argument 'warmth': known are max_new_tokens, stop, .* forced_end"),
    ('a', {'max_tokens': 4}, "no argument 'max_tokens': did you mean max_new_tokens"),
    ('a', {'max_len': 4}, 'did you mean max_new_tokens'),
    ('a', {'stop_strings': 'x'}, 'did you mean stop'),
    ('a', {'sed': 1}, 'did you mean seed'),
    ('a', {'tempreture': 1}, 'did you mean temperature'),
    ('a', {'repeat_penalty': 1}, 'did you mean repetition_penalty'),
    ('a', {'strategy': 'greedy'}, r'did you mean dataclasses.replace\(g, strategy='),
    ('a', {'top_k': 3}, 'give a temperature above 0 too'),
    ('a', {'seed': -1}, 'seed=-1'),
    ([{'role': 'user', 'content': 'a'}], {}, 'no chat template'),
  ],
)
def test_mistakes_of_calls(g, prompt, settings, message):
  with pytest.raises(fd.UserError, match=message):
    g(prompt, **settings)


@pytest.mark.parametrize('use', [
  lambda g, one: dataclasses.replace(g, strategy=one)('a', max_new_tokens=6).tokens,
  lambda g, one: fd.decode(g.model, g.params, [[3, 4]], one, max_len=6).tokens.tolist(),
  lambda g, one: [*fd.stream(g.model, g.params, [[3, 4]], one, max_len=6)],
  lambda g, one: next(fd.decode_each(g.model, g.params, [[3]], one, max_len=6)).decoded.tokens,
  lambda g, one: fd.trace(g.model, g.params, [[3, 4]], one, max_len=6).texts,
  lambda g, one: fd.replay(
    fd.trace(g.model, g.params, [[3, 4]], 'greedy', 6), one, g.model, g.params
  ).calls.tolist(),
  lambda g, one: fd.Union(one, fd.PromptLookup(k=3)),
], ids=['Generator', 'decode', 'stream', 'decode_each', 'trace', 'replay', 'Union'])  # fmt: skip
def test_words_of_a_strategy_are_taken_wherever_a_strategy_is(g, use):
  np.testing.assert_equal(use(g, 'prompt_lookup(k=4)'), use(g, fd.PromptLookup(k=4)))
  with pytest.raises(fd.UserError, match='PromptLookup has no setting'):
    use(g, 'prompt_lookup(kk=4)')


def test_mistakes_of_a_stream_are_raised_at_once(g):
  with pytest.raises(fd.UserError, match='max_new_tokens=0 is not possible'):
    g.stream('a', max_new_tokens=0)


def test_a_constraint_holds_the_text_to_a_form(g, place):
  pytest.importorskip('outlines_core')
  form = ' (cat|dog)( sits){1,2}'
  made = fd.Constraint.regex(form, g.tokenizer)
  texts = [out.text for out in g(['the', 'a'], max_new_tokens=24, constraint=made)]
  assert all(re.fullmatch(form, text) for text in texts)
  forced = dataclasses.replace(g, strategy=fd.Forced(k=4), constraint=made)
  out = forced('the', max_new_tokens=24)
  assert (
    out.text == texts[0] == ''.join(forced.stream('the', max_new_tokens=24))
    and out.tokens_per_call > 1.2
  )
  words = g.tokenizer.token_bytes()  # as many others
  other = types.SimpleNamespace(token_bytes=lambda: words[::-1], decode=g.tokenizer.decode)
  with pytest.raises(fd.UserError, match='was made with a different tokenizer'):
    g('the', constraint=fd.Constraint.regex(form, other))
  translator = fd.Generator.load(place / 'translator')
  of_source = fd.Constraint.regex(form[1:], translator.tokenizer)  # the first space does not count
  out = translator('ein Hund', max_new_tokens=24, constraint=of_source)
  assert re.fullmatch(form[1:], out.text)
  words = translator.tokenizer.token_bytes()
  assert b''.join(words[token] for token in out.tokens).decode().strip() == out.text


@pytest.mark.parametrize('draft', ['eagle', 'smaller'])
def test_a_draft_is_in_int8_where_the_cpu_has_units_for_it(place, monkeypatch, draft):
  """It only guesses: the text stays that of the model in its own type."""
  has_units = False
  monkeypatch.setattr(machine, 'computes_bytes', lambda: has_units)
  texts, parts = [fd.Generator.load(place / 'model')('the dog', 40).text], []
  for dtype in (None, None, 'float32'):
    generator = fd.Generator.load(place / 'model', draft=place / draft, dtype=dtype)
    assert not is_quantized(generator.params)
    parts.append(is_quantized(generator.strategy.draft.params))
    texts.append(generator('the dog', 40).text)
    has_units = True
  assert parts == [False, True, False]
  assert len(set(texts)) == 1


def test_types_that_are_slow_on_a_cpu_give_way_to_float32(place, tmp_path, monkeypatch, recwarn):
  model, params = fd.load(place / 'model', 'bfloat16')
  half = tmp_path / 'half'
  folders.save(model, params, half, tokenizer=place / 'pieces')
  has_units, free = True, 1e9
  monkeypatch.setattr(machine, 'computes_bfloat16', lambda: has_units)
  monkeypatch.setattr(machine, 'free_memory', lambda: free)
  assert fd.Generator.load(half).model.config.dtype == 'bfloat16'
  small = fd.Generator.load(half, dtype='int8')
  assert small.model.config.dtype == small.params['norm']['scale'].dtype == 'float32'
  assert fd.load(half, 'int8')[0].config.dtype == 'float32'  # its calls add in one order
  assert fd.load(half, 'int8w')[0].config.dtype == 'bfloat16'
  has_units = False
  assert fd.Generator.load(half, dtype='bfloat16').model.config.dtype == 'bfloat16'
  assert not recwarn
  with pytest.warns(UserNote, match='half is in bfloat16, which this CPU has no units for: it'):
    generator = fd.Generator.load(half, draft=half)
  for part in (generator, generator.strategy.draft.module):
    assert getattr(part, 'model', part).config.dtype == 'float32'
  assert generator.params['norm']['scale'].dtype == 'float32'
  free = 1
  with pytest.warns(UserNote, match="too large for float32 here: dtype='int8' is faster"):
    assert fd.Generator.load(half).model.config.dtype == 'bfloat16'
