"""Chat templates are rendered as by `transformers`, and rendering always ends."""

import json
import pathlib
import threading

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer, models
from transformers.utils.chat_template_utils import get_json_schema

import fastdec as fd
from fastdec.hub.tokenizers import chat
from fastdec.models.lm import LM, LMConfig
from fastdec.text.reader import StopReader

STYLES = ('chatml', 'deepseek', 'gemma', 'llama3', 'mistral', 'zephyr')
HELLO = [{'role': 'user', 'content': 'Hello'}]


def cases(shared, style, *names):
  folder = shared / 'reference' / 'chat' / f'{style}_tiny'
  found = []
  for name in names:
    found += json.loads((folder / name).read_text()) if (folder / name).exists() else []
  return fd.load_tokenizer(folder), found


@pytest.mark.parametrize('style', STYLES)
def test_chats_are_those_of_transformers(shared, style):
  tokenizer, found = cases(shared, style, 'cases.json', 'cases_more.json')
  assert len(found) > 5
  for case in found:
    given = {name: case[name] for name in case if name == 'continue_final_message'}
    given |= {'add_generation_prompt': case.get('add_generation_prompt', False)}
    given |= case.get('template_arguments', {})
    if 'error' in case:
      with pytest.raises(fd.UserError) as refused:
        tokenizer.render(case['messages'], **given)
      assert str(refused.value).endswith(case['error'])
      continue
    assert tokenizer.render(case['messages'], **given) == case['rendered'], case['name']
    assert tokenizer.encode_chat(case['messages'], **given) == case['ids'], case['name']


@pytest.mark.parametrize('style', ['chatml', 'mistral', 'zephyr'])
@pytest.mark.parametrize('block', [1, 3, 8])
def test_stop_strings_are_found_as_by_the_whole_text(shared, style, block):
  tokenizer, found = cases(shared, style, 'stops.json')
  for case in found:
    with_special = not case.get('skip_special_tokens', True)
    reader = StopReader(tokenizer, [], case['stop'], with_special)
    ids, pieces = case['ids'], []
    for at in range(0, len(ids), block):
      pieces.append(reader.add(ids[at : at + block]))
      shown = ''.join(pieces)
      assert case['cut'].startswith(shown)
    assert ''.join([*pieces, reader.finish()]) == case['cut'], case['name']
    assert (reader.count, reader.stop) == (case['tokens'], case['found']), case['name']


@pytest.fixture
def folder(tmp_path):
  Tokenizer(models.WordLevel({'<s>': 0, 'a': 1}, unk_token='a')).save(
    str(tmp_path / 'tokenizer.json')
  )
  return tmp_path


def rendered(folder, template, messages=HELLO, /, **given):
  (folder / 'chat_template.jinja').write_text(template)
  return fd.load_tokenizer(folder).render(messages, **given)


@pytest.mark.parametrize(
  ('template', 'text'),
  [
    ('{{ messages | tojson }}', '[{"role": "user", "content": "Hello"}]'),
    ("{{ {'b': '<é>', 'a': 1} | tojson(indent=1) }}", '{\n "b": "<é>",\n "a": 1\n}'),
    ('{% for i in range(9) %}{% if i > 1 %}{% break %}{% endif %}{{ i }}{% endfor %}', '01'),
    ('a\n  {% if true %}\nb\n  {% endif %}\nc', 'a\nb\nc'),
    ('{% generation %}{{ messages[0].content }}{% endgeneration %}', 'Hello'),
    ("{{ strftime_now('%%') }}{{ bos_token }}{{ nothing }}", '%<s>'),
    ('{% if tools is none and documents is none %}none{% endif %}', 'none'),
    ('{{ messages[0].name is defined }}', 'False'),
  ],
)
def test_templates_have_what_those_of_transformers_have(folder, template, text):
  (folder / 'tokenizer_config.json').write_text('{"bos_token": {"content": "<s>"}}')
  assert rendered(folder, template, [{**HELLO[0], 'name': None}]) == text


@pytest.mark.parametrize(
  'template',
  [
    '{% for i in range(10**9) %}{% endfor %}',
    '{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}',
    "{{ 'a' * 10**11 }}",
    "{{ '%99999999999d' % 1 }}",
    "{{ 'a' | center(10**11) }}",
    "{{ '{:>99999999999}'.format(1) }}",
    '{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}',
    "{% set n = namespace(t='aa') %}{% for i in range(99) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
    '{{ 9 ** (9 ** 9) }}',
    '{{ lipsum(10**9) }}',
    "{{ ''.__class__.__mro__ }}",
    "{% include '/etc/passwd' %}",
    "{{ messages.append('more') }}",
    '{{ 1 + messages }}',
    '{% if %}',
    "{{ '\\x01' * (2**22 + 1) }}",
    "{% for i in range(10**9) %}{{ 'a' * 99999 }}{% endfor %}",
  ],
)
def test_a_template_without_end_or_measure_is_a_sentence(folder, template, monkeypatch):
  monkeypatch.setattr(chat, 'RENDER', 1.0)
  with pytest.raises(fd.UserError, match='the chat template'):
    rendered(folder, template)
  assert rendered(folder, 'still {{ messages[0].content }}') == 'still Hello'


def test_the_longest_text_is_written_whole(folder):
  assert len(rendered(folder, "{{ '\\x01' * 2**22 }}")) == 2**22


def weather(city: str, days: int = 1) -> str:
  """Forecasts the weather.

  Args:
    city: The name of the city.
    days: How many days ahead.
  """
  return f'{city} {days}'


class Station:
  def weather(self, city: str, days: int = 1) -> str:
    return weather(city, days)


Station.weather.__doc__ = weather.__doc__


@pytest.mark.parametrize('tool', [weather, Station().weather])
def test_a_function_is_a_tool_by_its_signature_and_docstring(folder, tool):
  text = rendered(folder, '{{ tools | tojson }}', tools=[tool, {'name': 'f'}])
  assert json.loads(text) == [get_json_schema(weather), {'name': 'f'}]


@pytest.mark.parametrize('tool', [lambda city: city, print, Station])
def test_a_function_that_does_not_describe_itself_is_a_sentence(folder, tool):
  with pytest.raises(fd.UserError, match=r'cannot be a tool .* or its JSON schema'):
    rendered(folder, '{{ tools | tojson }}', tools=[tool])


def test_templates_in_files_of_their_own(folder, tmp_path):
  """They are used instead of those in tokenizer_config.json, and are saved with the tokenizer."""
  named = folder / 'additional_chat_templates'
  named.mkdir()
  (named / 'tool_use.jinja').write_text('TOOLS{{ tools | length }}')
  settings = {'chat_template': 'no file'}
  (folder / 'tokenizer_config.json').write_text(json.dumps(settings))
  with pytest.raises(fd.UserError, match="templates tool_use, and none is called 'default'"):
    fd.load_tokenizer(folder).render(HELLO)
  assert rendered(folder, 'DEFAULT', tools=[{'name': 'f'}]) == 'TOOLS1'
  assert rendered(folder, 'DEFAULT', tools=[]) == 'TOOLS0'
  assert rendered(folder, 'DEFAULT') == 'DEFAULT'
  model = LM(LMConfig(vocab_size=2, d_model=2, d_ff=2, layers=1, heads=1))
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
  for _ in range(2):  # the second replaces the first
    fd.save(model, params, tmp_path / 'saved', tokenizer=fd.load_tokenizer(folder))
  assert fd.load_tokenizer(tmp_path / 'saved').render(HELLO, tools=[{}, {}]) == 'TOOLS2'


def test_the_token_that_ends_turns_is_known(folder):
  tokenizer = Tokenizer.from_file(str(folder / 'tokenizer.json'))
  tokenizer.add_special_tokens(['<end>'])
  tokenizer.save(str(folder / 'tokenizer.json'))
  assert fd.load_tokenizer(folder).turn_end() is None
  (folder / 'tokenizer_config.json').write_text('{"eos_token": "<end>"}')
  for template, end in (('a<end>', (2, '<end>')), ('{{ eos_token }}', (2, '<end>')), ('a', None)):
    (folder / 'chat_template.jinja').write_text(template)
    assert fd.load_tokenizer(folder).turn_end() == end


def test_threads_share_the_process(folder):
  found = {}

  def run(i):
    found[i] = fd.load_tokenizer(folder).render([{'role': 'user', 'content': str(i)}])

  (folder / 'chat_template.jinja').write_text('{{ messages[0].content }}')
  threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert found == {i: str(i) for i in range(8)}


@pytest.mark.parametrize(
  ('config', 'given', 'text'),
  [
    ({'chat_template': 'one'}, {}, 'one'),
    ({'chat_template': [{'name': 'a', 'template': 'A'}, {'name': 'default', 'template': 'D'}]},
     {}, 'D'),
    ({'chat_template': [{'name': 'tool_use', 'template': 'T'},
                        {'name': 'default', 'template': 'D'}]}, {'tools': [{'name': 'f'}]}, 'T'),
  ],
)  # fmt: skip
def test_the_template_of_a_folder(folder, config, given, text):
  (folder / 'tokenizer_config.json').write_text(json.dumps(config))
  assert fd.load_tokenizer(folder).render(HELLO, **given) == text


@pytest.mark.parametrize(
  ('messages', 'given', 'message'),
  [
    ([], {}, 'give at least one'),
    ('Hello', {}, 'give at least one'),
    (['Hello'], {}, "a message must be .* not 'Hello'"),
    (HELLO, {'when': pathlib.Path()}, 'must be texts and numbers'),
    (HELLO, {'messages': 1}, "a template argument cannot be called 'messages'"),
    (HELLO, {'chat_template': 'a'}, "cannot be called 'chat_template'"),
    (HELLO, {'tools': 1}, 'the chat template fails on these messages'),
    (
      [{'role': 'user', 'tool_calls': []}],
      {'continue_final_message': True},
      'final message has no',
    ),
    ([{'role': 'user', 'text': 'hi'}], {}, "must be {'role': 'user', 'content': ...}, not {'role'"),
    ([*HELLO, {'content': 'hi'}], {}, 'a message must be'),
    ([{'role': 1, 'content': 'hi'}], {}, 'a message must be'),
    ([{'role': 'user', 'content': None}], {}, 'a message must be'),
    ([{'role': 'bot', 'content': 'hi'}], {}, "must be system, .* names, not 'bot'"),
    ([{'role': 'User', 'content': 'hi'}], {}, "not 'User'"),
  ],
)
def test_mistakes_in_messages(folder, messages, given, message):
  with pytest.raises(fd.UserError, match=message):
    rendered(folder, 'text', messages, **given)


def test_a_role_may_be_one_that_the_template_names(folder):
  said = [{'role': 'ipython', 'content': 'hi'}, {'role': 'developer', 'content': '!'}]
  template = "{% for m in messages %}{{ m.role if m.role == 'ipython' }}{{ m.content }}{% endfor %}"
  assert rendered(folder, template, said) == 'ipythonhi!'


def test_a_final_message_is_continued(folder):
  parts = [{'role': 'user', 'content': [{'type': 'text', 'text': 'a b'}]}]
  template = "{% for part in messages[0].content %}{{ part.text | trim ~ '!' }}{% endfor %} end"
  assert rendered(folder, template, parts, continue_final_message=True) == 'a b'
  template, kept = "{{ messages[0].content ~ '!' }}", [{'role': 'user', 'content': 'a '}]
  assert rendered(folder, template, kept, continue_final_message=True) == 'a '
  assert (
    rendered(folder, '{{ messages[0].content | trim }}', kept, continue_final_message=True) == 'a'
  )
  with pytest.raises(fd.UserError, match='does not appear in the chat'):
    rendered(folder, 'no content', kept, continue_final_message=True)
