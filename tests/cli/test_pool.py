"""A pool of n-grams from files, and text that is drafted from it."""

import json

import numpy as np
import pytest

import fastdec as fd

LINES = ['a dog runs', 'the cat sits on the dog', 'a dog runs on']
OUTPUTS = ['the dog sits on the cat']


@pytest.fixture
def texts(tmp_path):
  (tmp_path / 'corpus.txt').write_text('\n'.join(LINES) + '\n')
  (tmp_path / 'out.jsonl').write_text(
    ''.join(json.dumps({'index': 0, 'text': text}) + '\n' for text in OUTPUTS)
  )
  return f'{tmp_path}/corpus.txt,{tmp_path}/out.jsonl'


@pytest.fixture
def file(translator, fastdec, texts, tmp_path):
  path = tmp_path / 'pool.safetensors'
  ended = fastdec(
    'pool', f'--model={translator}', f'--texts={texts}', f'--output={path}', '--ngram=3',
    '--guesses=2',
  )  # fmt: skip
  assert ended.code == 0 and 'n-grams of 3 tokens from 4 texts' in ended.out, ended.err
  return path


def test_lines_and_outputs_are_counted_in_the_models_ids(translator, file):
  tokenizer, (model, _) = fd.load_tokenizer(translator), fd.load(translator)
  wanted = fd.build_pool([tokenizer.encode(text) for text in LINES + OUTPUTS], model, 3, 2)
  pool = fd.load_pool(file)
  np.testing.assert_array_equal(pool.values, wanted.values)
  np.testing.assert_array_equal(pool.starts, wanted.starts)
  assert pool.vocab_size == model.vocab_size and len(pool.values) > 5


def test_chats_are_counted_in_their_template(talker, fastdec, tmp_path):
  asked = {'role': 'user', 'content': 'Who?'}
  chat = [asked, {'role': 'assistant', 'content': 'I.'}]
  (tmp_path / 'chats').write_text(json.dumps({'messages': chat}) + '\n{"question": "Who?"}\n')
  path = tmp_path / 'pool.safetensors'
  words = (f'--model={talker}', f'--texts={tmp_path}/chats', f'--output={path}', '--system=Short!')
  ended = fastdec('pool', *words)
  assert ended.code == 0 and 'from 2 texts' in ended.out, ended.err
  tokenizer, system = fd.load_tokenizer(talker), {'role': 'system', 'content': 'Short!'}
  rows = []
  for messages in ([system, *chat], [system, asked]):
    rows.append(tokenizer.encode_chat(messages, add_generation_prompt=False))
  wanted = fd.build_pool(rows, fd.load(talker)[0], 5, 15)
  np.testing.assert_array_equal(fd.load_pool(path).values, wanted.values)


@pytest.mark.parametrize('drafter', ['lookahead', 'prompt_lookup'])
@pytest.mark.wide('lookahead')
def test_a_pool_changes_the_calls_and_not_the_text(translator, fastdec, file, tmp_path, drafter):
  (tmp_path / 'prompts').write_text('a dog sits\nthe cat runs\n')
  rows = {}
  for name, words in (('greedy', []), ('pool', [f'--strategy={drafter}', f'--pool={file}'])):
    output = tmp_path / f'{name}.jsonl'
    command = (
      'generate', f'--model={translator}', f'--prompts={tmp_path}/prompts', f'--output={output}',
      '--max-len=12',
    )  # fmt: skip
    assert fastdec(*command, *words).code == 0
    rows[name] = [json.loads(line)['text'] for line in output.read_text().splitlines()]
  assert rows['pool'] == rows['greedy']
  changed = tmp_path / 'other.safetensors'
  fd.save_pool(fd.build_pool([[3, 4, 5, 6]], fd.load(translator)[0], 3), changed)
  ended = fastdec(*command, f'--strategy={drafter}', f'--pool={changed}')
  assert 'was made with other settings (pool)' in ended.mistake
