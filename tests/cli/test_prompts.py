"""Files of prompts: lines and JSON lines are read, what is none is named."""

import json

import pytest

from fastdec.cli.prompts import read_prompts
from fastdec.errors import UserError
from fastdec.files import read_json

JSON_LINE = r'line 2 of .*some.jsonl has no prompt.*: give {"prompt": "..."} on each line'


def test_prompts_of_several_lines_stand_in_json_lines(tmp_path):
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
    ('A man', 'no JSON: Expecting value'),
    ('{"prompt": "a\\ud800"}', 'no JSON: it has half a character'),
    ('{"prompt": "a", "\\udc00": 1}', 'no JSON: it has half a character'),
    ('[' * 10**5, 'no JSON: it is nested too deep'),
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
    (b'\xef\xbb\xbf\n', 'is empty: give a prompt on each line'),
    (b'a\n\nb\n', 'line 2 of .*lines.txt is empty'),
    (b'a\n\xff\n', 'line 2 of .*lines.txt is not UTF-8'),
    ('a\n'.encode('utf-16'), 'line 1 of .*lines.txt is not UTF-8'),
  ],
)
def test_lines_that_are_none_are_named(tmp_path, content, message):
  (tmp_path / 'lines.txt').write_bytes(content)
  with pytest.raises(UserError, match=message):
    read_prompts(tmp_path / 'lines.txt')
