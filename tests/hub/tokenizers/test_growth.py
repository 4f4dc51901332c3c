"""A tokenizer.json that could fill the memory is refused before the library reads it."""

import base64
import json
import pathlib

import pytest
import tokenizers

import fastdec as fd
from fastdec.hub.tokenizers.growth import MOST, MOST_AROUND, check_growth
from tests.hub.tokenizers.test_huggingface import pieces


def table(longest):
  """A table of characters as SentencePiece has it: a tree, and the texts of its leaves."""
  content = (4).to_bytes(4, 'little') + bytes(4) + b'ab\0' + b'a' * longest + b'\0'
  return {'type': 'Precompiled', 'precompiled_charsmap': base64.b64encode(content).decode()}


def replace(content, pattern='a'):
  return {'type': 'Replace', 'pattern': {'String': pattern}, 'content': content}


def template(texts, ids):
  text = {'Sequence': {'id': 'A', 'type_id': 0}}
  special = {'SpecialToken': {'id': '<s>', 'type_id': 0}}
  return {
    'type': 'TemplateProcessing',
    'single': [text] * texts + [special],
    'pair': [text, {'Sequence': {'id': 'B', 'type_id': 0}}],
    'special_tokens': {'<s>': {'id': '<s>', 'ids': [0] * ids, 'tokens': ['<s>'] * ids}},
  }


THOUSANDS = [replace('a' * 1000)] * 6
CASES = [  # the most that is read, and one more
  ('normalizer', replace('a' * MOST), replace('a' * (MOST + 1))),
  ('normalizer', replace('a' * MOST, 'é'), replace('a' * (2 * MOST + 1), 'é')),
  ('normalizer', replace('a' * (MOST - 1), ''), replace('a' * MOST, '')),
  ('normalizer', {'type': 'Prepend', 'prepend': 'a' * (MOST - 1)},
   {'type': 'Prepend', 'prepend': 'a' * MOST}),
  ('normalizer', {'type': 'Sequence', 'normalizers': [replace('a' * 16)] * 2},
   {'type': 'Sequence', 'normalizers': THOUSANDS}),
  ('normalizer', None, table(MOST + 1)),
  ('decoder', replace('a' * MOST), {'type': 'Sequence', 'decoders': THOUSANDS}),
  ('post_processor', template(1, MOST_AROUND), template(1, MOST_AROUND + 1)),
  ('post_processor', template(MOST, 1), template(MOST + 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize(('name', 'read', 'refused'), CASES)
def test_what_may_grow_too_much_is_refused(name, read, refused, folder):
  model = tokenizers.models.WordLevel({'<s>': 0, 'a': 1}, unk_token='<s>')
  content = json.loads(tokenizers.Tokenizer(model).to_str())
  file = folder / 'tokenizer.json'
  file.write_text(json.dumps(content | {name: read}))
  fd.load_tokenizer(folder).encode('a man')
  file.write_text(json.dumps(content | {name: refused}))
  with pytest.raises(fd.UserError, match=rf'the {name} of .*tokenizer\.json .* give the file that'):
    fd.load_tokenizer(folder)


def test_sentencepieces_own_table_of_characters_is_read():
  """T5's files have such a table, and one more step after it."""
  model_pb2 = pytest.importorskip('sentencepiece.sentencepiece_model_pb2')
  spec = model_pb2.ModelProto.FromString(pieces()).normalizer_spec
  charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
  published = {'type': 'Precompiled', 'precompiled_charsmap': charsmap}
  spaces = {'type': 'Replace', 'pattern': {'Regex': ' {2,}'}, 'content': '▁'}
  parts = {'type': 'Sequence', 'normalizers': [published, spaces]}
  check_growth({'normalizer': parts}, pathlib.Path('tokenizer.json'))
