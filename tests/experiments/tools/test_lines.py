"""Files of prompts: a line each, or JSON lines where prompts have several lines."""

import json

import pytest

from experiments.tools.lines import read_prompts
from fastdec.errors import UserError


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
  'line', ['A man', '{"text": "A man"}', '{"prompt": 3}', '{"prompt": " "}', '["prompt"]']
)
def test_a_line_without_a_prompt_is_a_mistake(tmp_path, line):
  (tmp_path / 'some.jsonl').write_text('{"prompt": "A dog"}\n' + line)
  with pytest.raises(
    UserError,
    match=r'line 2 of .*some.jsonl has no prompt: give {"prompt":'
    r' "..."} on each line',
  ):
    read_prompts(tmp_path / 'some.jsonl')
