"""Reading a file takes memory in proportion to its size, whatever is in it: some names, many small
things, or things that are packed. A reader reads it or raises a UserError."""

import bz2
import contextlib
import gzip
import lzma
import struct
import tracemalloc
import warnings

import numpy as np
import pytest

import fastdec as fd
from fastdec.cli.prompts import read_prompts
from fastdec.hub.gguf.header import read_header
from fastdec.hub.tokenizers import load_gguf
from tests.hub.test_gguf_damage import file_of, tensor, text

SIZE = 2**17  # bytes of a file, about
TIMES, LEAST = 20, 3 * 10**7  # of its size, and what any file may take, imports included
PACKED = 2 * 10**8  # what a small packed file may take
CONFIG = (
  '{"model_type": "llama", "vocab_size": 7, "hidden_size": 4, "intermediate_size": 6,'
  ' "num_hidden_layers": 1, "num_attention_heads": 2}'
)


def repeat(part, end):
  """An array of JSON with as many equal parts as the file has room for."""
  return f'[{part * (SIZE // len(part))}{end}]'


def numbered(rest, size):
  """An object of JSON with as many names as the file has room for."""
  return '{' + ','.join(f'"{i:x}":{rest}' for i in range(SIZE // size)) + '}'


def value(name, kind, data):
  return text(name) + struct.pack('<I', kind) + data


def values(name, kind, count, data):
  return value(name, 9, struct.pack('<IQ', kind, count) + data)


def texts(name, several):
  return values(name, 8, len(several), b''.join(map(text, several)))


def pieces(model, several, merges=()):
  key, scores = 'tokenizer.ggml.', np.arange(len(several), dtype='<f4')
  found = [
    value('general.architecture', 8, text('llama')), value(f'{key}model', 8, text(model)),
    value(f'{key}pre', 8, text('gpt-2')), texts(f'{key}tokens', ['?', *several[1:]]),
    value(f'{key}unknown_token_id', 4, bytes(4)), texts(f'{key}merges', merges),
    values(f'{key}scores', 6, len(several), (-scores).tobytes()),
  ]  # fmt: skip
  return file_of(b''.join(found), counts=(0, len(found)))


def safetensors(header):
  return struct.pack('<Q', len(header)) + header.encode()


HEX = [f'{i:x}' for i in range(SIZE // 17)]
RUNS = [chr(300 + i) * n for i in range(SIZE // 3000) for n in range(1, 48)]
OTHERS = b''.join(tensor(f'{i:x}', (1,), offset=32 * i) for i in range(SIZE // 72))
GGUF = {
  'tensors': lambda: file_of(b'', OTHERS, (SIZE // 72, 0), tail=bytes(SIZE)),
  'bytes': lambda: file_of(values('llama.block_count', 0, SIZE, bytes(SIZE)), counts=(0, 1)),
  'numbers': lambda: file_of(
    values('llama.block_count', 10, SIZE // 8, np.arange(SIZE // 8).tobytes()), counts=(0, 1)
  ),
  'short numbers': lambda: file_of(
    values('x', 2, SIZE // 2, np.arange(SIZE // 2, dtype='<u2').tobytes()), counts=(0, 1)
  ),
  'empty texts': lambda: file_of(texts('x', [''] * (SIZE // 8)), counts=(0, 1)),
}
TOKENIZERS = {
  'empty tokens': lambda: pieces('llama', [''] * (SIZE // 12)),
  'empty tokens of bytes': lambda: pieces('gpt2', [''] * (SIZE // 12)),
  'short tokens': lambda: pieces('llama', HEX),
  'runs': lambda: pieces('llama', RUNS),
  'long runs': lambda: pieces('llama', ['x' * n for n in range(512)]),
  'merges': lambda: pieces('gpt2', ['?', 'a', 'b', 'ab'], ['a b'] * (SIZE // 11)),
}
SAFETENSORS = {
  'tensors': lambda: numbered('{"dtype":"F32","shape":[0],"data_offsets":[0,0]}', 58),
  'metadata': lambda: '{"__metadata__":' + numbered('""', 10) + '}',
  'axes': lambda: f'{{"a":{{"dtype":"F32","shape":{repeat("1,", 0)},"data_offsets":[0,0]}}}}',
}
JSON = {
  'lists': lambda: repeat('[],', '[]'),
  'lists in lists': lambda: repeat('[[[[[[[[]]]]]]]],', '[]'),
  'deep lists': lambda: repeat('[' * 300 + ']' * 300 + ',', '[]'),
  'objects': lambda: repeat('{"a":0},', '{}'),
  'numbers': lambda: repeat('300,', '3'),
  'names': lambda: numbered('0', 10),
}
FILES = ('config.json', 'generation_config.json', 'model.safetensors.index.json', 'tokenizer.json')
LINES = {
  'lines': lambda: 'a\n' * (SIZE // 2), 'empty objects': lambda: '{}\n' * (SIZE // 3),
  'records': lambda: '{"prompt":"a"}\n' * (SIZE // 15), 'texts': lambda: repeat('"a",', '"a"'),
  'lists': lambda: repeat('[],', '[]'), 'turns': lambda: repeat('{"turns":["a"]},', '"a"'),
}  # fmt: skip
BOMBS = {
  'lists': lambda: b'{"prompt": "a", "x": [' + b'[],' * 14_000_000 + b'[]]}',
  'fewer lists': lambda: b'{"prompt": "a", "x": [' + b'[],' * 2_700_000 + b'[]]}',
  'numbers': lambda: b'{"prompt": "a", "x": [' + b'300,' * 2_000_000 + b'3]}',
  'lines': lambda: b'a\n' * 4_000_000,
  'spaces': lambda: b' ' * 2**26,
}


def check_memory(read, most):
  """Reads, or is refused in a sentence, with at most so much memory at a time."""
  tracemalloc.start()
  try:
    with contextlib.suppress(fd.UserError), warnings.catch_warnings():
      warnings.simplefilter('ignore', fd.UserNote)
      read()
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert peak <= most, f'{peak:,} bytes'


@pytest.mark.parametrize('name', [*GGUF, *TOKENIZERS])
@pytest.mark.wide('short numbers', 'runs', 'long runs')
def test_gguf(name, tmp_path):
  data, file = {**GGUF, **TOKENIZERS}[name](), tmp_path / 'x.gguf'
  file.write_bytes(data)
  read = fd.load
  if name in TOKENIZERS:
    read = lambda file: load_gguf(read_header(file)).encode('ab')
  check_memory(lambda: read(file), TIMES * len(data) + LEAST)


@pytest.mark.parametrize('name', SAFETENSORS)
def test_safetensors(name, tmp_path):
  data = safetensors(SAFETENSORS[name]())
  (tmp_path / 'config.json').write_text(CONFIG)
  (tmp_path / 'model.safetensors').write_bytes(data)
  check_memory(lambda: fd.load(tmp_path), TIMES * len(data) + LEAST)


@pytest.mark.parametrize('name', JSON)
@pytest.mark.parametrize('file', FILES)
@pytest.mark.wide('config.json-objects', 'tokenizer.json-lists')
def test_json(file, name, tmp_path):
  (tmp_path / 'config.json').write_text(CONFIG)
  data = JSON[name]()
  if not data.startswith('{'):
    data = f'{{"a": {data}, "model_type": "llama", "weight_map": {{}}}}'
  (tmp_path / file).write_text(data)
  read = fd.load_tokenizer if file == 'tokenizer.json' else fd.load
  check_memory(lambda: read(tmp_path), TIMES * len(data) + LEAST)


@pytest.mark.parametrize('ending', ['txt', 'jsonl', 'json'])
@pytest.mark.parametrize('name', LINES)
@pytest.mark.wide('lines-txt', 'empty objects-jsonl')
def test_prompts(name, ending, tmp_path):
  data, file = LINES[name](), tmp_path / f'x.{ending}'
  file.write_text(data)
  check_memory(lambda: read_prompts(file), TIMES * len(data) + LEAST)


@pytest.mark.parametrize('packer', [gzip, bz2, lzma], ids=['gzip', 'bz2', 'lzma'])
@pytest.mark.parametrize('name', BOMBS)
@pytest.mark.wide('lists-gzip', 'fewer lists-gzip')
def test_packed_prompts(name, packer, tmp_path):
  file = tmp_path / 'x.jsonl'
  data = packer.compress(BOMBS[name]())
  file.write_bytes(data)
  check_memory(lambda: read_prompts(file), TIMES * len(data) + PACKED)
