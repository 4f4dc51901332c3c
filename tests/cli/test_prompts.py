"""Files of prompts: lines and JSON are read, packed or not; an error names any other content."""

import bz2
import gzip
import json
import lzma

import pytest

from fastdec.cli import opening
from fastdec.cli.flags import Parser
from fastdec.cli.prompts import Question, hash_prompts, read_prompts, read_texts, wrap_in_chats
from fastdec.errors import UserError, UserNote
from fastdec.files import read_json, read_unpacked

USER, ANSWER = {'role': 'user', 'content': 'Who?'}, {'role': 'assistant', 'content': 'I.'}
SYSTEM = {'role': 'system', 'content': 'Be brief.'}
RECORDS = {  # and their prompts
  '{"prompt": "A man", "id": 3}': 'A man',
  '{"prompt": [{"role": "user", "content": "Who?"}]}': [USER],
  '{"messages": [{"role": "user", "content": "Who?"}]}': [USER],
  json.dumps({'prompt': 'Who?', 'messages': [SYSTEM, USER, ANSWER, USER, ANSWER]}): [
    SYSTEM, USER, ANSWER, USER,
  ],
  '{"question_id": 81, "turns": ["Who?", "And then?"]}': Question('Who?'),
  '{"question": "Who?", "answer": "I."}': Question('Who?'),
  '{"conversations": [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "I."}]}': [USER],
  '"A man"': 'A man',
}  # fmt: skip
JSON_LINE = r'line 2 of .*some.jsonl has no prompt.*: give {"prompt": "..."} on each line'


def test_prompts_of_several_lines_are_in_json_lines(tmp_path):
  prompts = ['<|user|>\nA man\n<|assistant|>\n', 'one line', '\u2028 is no end of a line']
  for name, lines in (
    ('all.jsonl', [json.dumps({'prompt': one, 'id': 3}) for one in prompts]),
    ('all.txt', prompts[1:]),
  ):
    (tmp_path / name).write_text(''.join(f'{line}\n' for line in lines))
  assert read_prompts(tmp_path / 'all.jsonl') == prompts
  assert read_prompts(tmp_path / 'all.txt') == prompts[1:]


@pytest.mark.parametrize(
  ('line', 'reason'),
  [
    ('A man', 'not JSON: Expecting value'),
    ('{"prompt": "a\\ud800"}', 'not JSON: it has half a character'),
    ('{"prompt": "a", "\\udc00": 1}', 'not JSON: it has half a character'),
    ('[' * 10**5, 'not JSON: it is nested too deep'),
    *((line, '') for line in ('{"text": "a"}', '{"prompt": 3}', '{"prompt": " "}', '["prompt"]')),
  ],
)
def test_a_line_without_a_prompt_is_a_mistake(tmp_path, line, reason):
  (tmp_path / 'some.jsonl').write_text('{"prompt": "A dog"}\n' + line)
  with pytest.raises(UserError, match=JSON_LINE) as caught:
    read_prompts(tmp_path / 'some.jsonl')
  assert reason in str(caught.value)


@pytest.mark.parametrize('name', ['lines.txt', 'lines.jsonl'])
def test_a_byte_order_mark_and_empty_last_lines_do_not_count(tmp_path, name):
  lines = 'A man in\r\nA dog\r\n'
  if name.endswith('.jsonl'):
    lines = '{"prompt": "A man in"}\n{"prompt": "A dog"}\n'
  (tmp_path / name).write_bytes(b'\xef\xbb\xbf' + lines.encode() + b'\n \r\n\n')
  assert read_prompts(tmp_path / name) == ['A man in', 'A dog']
  (tmp_path / 'config.json').write_bytes(b'\xef\xbb\xbf{"a": 1}')
  assert read_json(tmp_path / 'config.json') == {'a': 1}


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (b'', 'is empty: give a prompt on each line'),
    (b'a\n\nb\n', 'line 2 of .*lines.txt is empty'),
    (b'a\n\xff\n', 'line 2 of .*lines.txt is not UTF-8'),
  ],
)
def test_lines_that_are_none_are_named(tmp_path, content, message):
  (tmp_path / 'lines.txt').write_bytes(content)
  with pytest.raises(UserError, match=message):
    read_prompts(tmp_path / 'lines.txt')


@pytest.mark.parametrize('name', ['some.jsonl', 'some.ndjson', 'some.json', 'some.txt', 'some'])
@pytest.mark.parametrize('form', ['lines', 'array', 'indented'])
def test_records_are_read_under_any_name(tmp_path, name, form):
  records, prompts = [*RECORDS], [*RECORDS.values()]
  text = '\r\n'.join(records) + '\n'
  if form != 'lines':
    indent = 2 if form == 'indented' else None
    text = json.dumps([json.loads(record) for record in records], indent=indent)
  (tmp_path / name).write_bytes(b'\xef\xbb\xbf' + text.encode())
  read = read_prompts(tmp_path / name)
  assert read == prompts and [*map(type, read)] == [*map(type, prompts)]


def test_a_record_of_several_lines_is_one(tmp_path):
  (tmp_path / 'one').write_text(json.dumps({'prompt': 'A man'}, indent=2))
  assert read_prompts(tmp_path / 'one') == ['A man']


@pytest.mark.parametrize('text', ['[1] A man\n{a dog\n', 'A man\n{"prompt": "A dog"}\n', '42\n'])
def test_a_text_may_look_like_json(tmp_path, text):
  (tmp_path / 'lines').write_text(text)
  assert read_prompts(tmp_path / 'lines') == text.splitlines()


@pytest.mark.parametrize('name, text, message', [
  ('table.csv', 'prompt,answer\na,b\n', 'table.csv is a table by its name: give a .txt file'),
  ('some.txt', '[{"prompt": "a"},\n 3]', 'record 2 of .*some.txt has no prompt: give'),
  ('some.txt', '[\n{"prompt": "a"},\n', r'begins as JSON, but cannot be parsed \(Expecting'),
  ('some.json', '{\n"prompt": "a",\n', r'begins as JSON, but cannot be parsed \(Expecting'),
  ('some', '{"data": ["a"]}\n', 'line 1 of .*some has no prompt: give {"prompt": "..."} on each'),
  ('some', '{"messages": [{"from": "a"}]}', r'\("messages" must be a list of {"role": "user",'),
  ('some', '{"messages": [{"role": "assistant", "content": "a"}]}', 'line 1 of .* only an answer'),
  ('some', '{"messages": [{"role": "user", "content": "a"}], "tools": [1]}', 'has "tools", which'),
  ('some', '{"conversations": [{"from": []}]}', '"conversations" must be a list'),
])  # fmt: skip
def test_what_is_neither_text_nor_a_prompt_of_json_is_named(tmp_path, name, text, message):
  (tmp_path / name).write_text(text)
  with pytest.raises(UserError, match=message):
    read_prompts(tmp_path / name)


def test_texts_are_outputs_and_whole_chats(tmp_path):
  records = {'prompt': 'a', 'text': 'b'}, {'messages': [USER, ANSWER]}, {'question': 'Who?'}
  (tmp_path / 'out.jsonl').write_text('\n'.join(map(json.dumps, records)))
  assert read_texts(tmp_path / 'out.jsonl') == ['b', [USER, ANSWER], 'Who?']


@pytest.mark.parametrize('pack', [gzip.compress, bz2.compress, lzma.compress])
def test_packed_files_are_unpacked_whatever_their_name(tmp_path, pack):
  file = tmp_path / 'lines.txt'
  file.write_bytes(pack(b'A man\nA dog\n'))
  assert read_prompts(file) == ['A man', 'A dog']
  assert read_unpacked(file, 100) == b'A man\nA dog\n'
  file.write_bytes(pack(bytes(1000)))
  assert len(read_unpacked(file, 1000)) == 1000
  with pytest.raises(OSError, match='it has more than 999 bytes when unpacked'):
    read_unpacked(file, 999)
  file.write_bytes(pack(b'A man\n')[:-9])
  with pytest.raises(UserError, match=r'cannot read .*lines.txt \(it is cut short or damaged'):
    read_prompts(file)


@pytest.mark.parametrize('data, reason', [
  (b'\x28\xb5\x2f\xfd\x04\x20', 'it is packed by zstd: unpack it by zstd -d'),
  (b'PK\x03\x04', 'it is a zip archive'),
  (b'PAR1\x15', 'it is a table of Parquet'),
])  # fmt: skip
def test_what_is_not_unpacked_is_named(tmp_path, data, reason):
  (tmp_path / 'lines.txt').write_bytes(data)
  with pytest.raises(UserError, match=rf'cannot read .*lines.txt \({reason}'):
    read_prompts(tmp_path / 'lines.txt')
  (tmp_path / 'lines.gz').write_bytes(b'A man\n')
  with pytest.raises(UserError, match=r'cannot read .*lines.gz \(Not a gzipped file'):
    read_prompts(tmp_path / 'lines.gz')


@pytest.mark.parametrize('name, number, kind', [
  ('mt_bench_question.jsonl', 80, Question),
  ('HumanEval.jsonl.gz', 164, str),
  ('gsm8k_test_first200.jsonl', 200, Question),
  ('spec_bench_math_reasoning.jsonl', 80, Question),
  ('spec_bench_qa.jsonl', 80, Question),
  ('spec_bench_rag.jsonl', 80, Question),
])  # fmt: skip
def test_published_question_files(shared, name, number, kind):
  prompts = read_prompts(shared / 'specbench' / name)
  assert len(prompts) == number and {*map(type, prompts)} == {kind}


def test_prompts_are_known_by_their_places_and_kinds():
  keys = ['x', 'y\nz'], ['x\ny', 'z'], ['x', Question('y\nz')], ['x', [USER]], ['x']
  assert len({hash_prompts(prompts) for prompts in keys}) == 5


def test_the_chat_template_is_used_if_flags_or_questions_say_so():
  prompts = ['A man', Question('Who?'), [USER], [SYSTEM, USER]]
  said = {'role': 'user', 'content': 'A man'}
  brief = {'role': 'system', 'content': 'Short!'}
  assert [*wrap_in_chats(prompts, False, None, False)] == ['A man', 'Who?', [USER], [SYSTEM, USER]]
  assert [*wrap_in_chats(prompts, False, None, True)] == ['A man', [USER], [USER], [SYSTEM, USER]]
  assert [*wrap_in_chats(prompts, True, 'Short!', True)] == [
    [brief, said], [brief, USER], [brief, USER], [SYSTEM, USER],
  ]  # fmt: skip


def flags(*words):
  parser = Parser('generate', None)
  opening.add_model(parser)
  opening.add_chat(parser)
  return parser.read([f'--{word}' for word in words])


def test_a_note_says_what_may_be_a_mistake(talker, translator):
  with pytest.warns(UserNote, match='has a chat template, and texts are continued without it'):
    assert opening.apply_chat_flags(flags(f'model={talker}'), ['A man']) == ['A man']
  with pytest.warns(UserNote, match='has no chat template: it continues the questions as texts'):
    assert opening.apply_chat_flags(flags(f'model={translator}'), [Question('Who?')]) == ['Who?']


@pytest.mark.filterwarnings('error')
def test_no_note_if_the_template_is_always_used(talker, translator):
  said = [{'role': 'user', 'content': 'A man'}]
  assert opening.apply_chat_flags(flags(f'model={talker}', 'chat'), ['A man']) == [said]
  questions = [[USER], Question('Who?')]
  assert opening.apply_chat_flags(flags(f'model={talker}'), questions) == [[USER], [USER]]
  assert opening.apply_chat_flags(flags(f'model={talker}'), ['A man'], are_texts=True) == ['A man']
  assert opening.apply_chat_flags(flags(f'model={translator}'), ['A man']) == ['A man']


def test_variables_of_a_chat_template(talker, translator):
  words = ['template=enable_thinking=false', 'template=tools=[{"a": 1}]']
  wanted = {'enable_thinking': False, 'tools': [{'a': 1}]}
  assert opening.read_template(flags(f'model={talker}', *words)) == wanted
  python = flags(f'model={talker}', 'template=enable_thinking=False')
  assert opening.read_template(python) == {'enable_thinking': False}
  text = flags(f'model={talker}', 'template=enable_thinking=maybe=not')
  assert opening.read_template(text) == {'enable_thinking': 'maybe=not'}
  for one, message in (
    (f'model={talker} template=warmth=3', "the chat template has no variable 'warmth'"),
    (f'model={translator} template=tools=3', 'has no chat template'),
    (f'model={talker} template=tools', '--template=tools is not possible: give a name and a value'),
    (f'model={talker} enable-thinking=false', 'variable is --template=enable_thinking=VALUE, and'),
    (f'model={translator} chat', 'has no chat template: leave out --chat, --system and --template'),
    (f'model={talker} system= ', '--system is empty'),
  ):
    with pytest.raises(UserError, match=message):
      args = flags(*one.split(maxsplit=1))
      opening.apply_chat_flags(args, ['A man'])
      opening.read_template(args)
