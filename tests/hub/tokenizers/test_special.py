"""Special tokens by one rule, whatever file names them; tokenizers that lack what they need."""

import inspect
import json
import struct

import pytest
import tokenizers
import transformers
from sentencepiece import sentencepiece_model_pb2

import fastdec as fd
from fastdec.hub.gguf.header import read_header
from fastdec.hub.tokenizers import load_gguf
from fastdec.hub.tokenizers.chat import OF_CLASSES
from fastdec.hub.tokenizers.gguf import NAMED
from tests.hub.test_gguf_tokenizers import BYTES, byte_level, write_tokenizer
from tests.hub.tokenizers.test_huggingface import pieces, settings, write_words


@pytest.mark.parametrize('role', NAMED)
@pytest.mark.parametrize('kind', ['gpt2', 'llama'])
def test_a_token_with_a_role_in_a_gguf_file_is_special_whatever_its_type_is(kind, role, tmp_path):
  tokens = ['<unk>', '<0x00>', 'a', 'b', 'c', '<|im_end|>']
  roles = {'unknown_token_id': 0, role.removeprefix('tokenizer.ggml.'): 5}
  for type_ in (1, 4):
    types, scores = [2, 6, 1, 1, 1, type_], [-float(i) for i in range(6)]
    file = write_tokenizer(
      tmp_path / 'x.gguf', kind, tokens, types, pre='gpt-2', scores=scores,
      merges=['a b'] if kind == 'llama' else [], add_bos_token=False, add_space_prefix=False,
      **roles,
    )  # fmt: skip
    tokenizer = load_gguf(read_header(file))
    assert tokenizer.encode('a<|im_end|>b') == [2, 5, 3]
    assert tokenizer.decode([2, 5, 3]) == 'ab'
    assert tokenizer.token_bytes()[5] == b''
    assert tokenizer.special[5] == '<|im_end|>'


FILES = {  # of the ids that end texts
  'config.json': {'model_type': 'llama', 'eos_token_id': [1, 4]},
  'generation_config.json': {'eos_token_id': [1, 4, 99, -1]},
}


@pytest.mark.parametrize('name', FILES)
def test_a_token_that_ends_texts_is_never_shown(name, folder):
  ids = write_words(folder)
  tokenizer = fd.load_tokenizer(folder)
  text = tokenizer.decode(ids)
  (folder / name).write_text(json.dumps(FILES[name]))
  tokenizer = fd.load_tokenizer(folder)
  assert ids[1] == 4
  assert tokenizer.decode(ids).split() == [word for i, word in enumerate(text.split()) if i != 1]
  assert tokenizer.encode(text, special=False) == ids
  assert tokenizer.special[4] == text.split()[1]


@pytest.mark.parametrize('kind', OF_CLASSES)
def test_tokens_of_classes_are_those_of_transformers(kind):
  parameters = inspect.signature(getattr(transformers, kind).__init__).parameters
  for name, token in OF_CLASSES[kind].items():
    assert parameters[name].default == token
  for name in ('bos_token', 'eos_token'):
    assert OF_CLASSES[kind].get(name) == parameters[name].default


TEMPLATE = '{{ bos_token }}{% for m in messages %}[{{ m.content }}]{{ eos_token }}{% endfor %}'
SAID = [  # what tokenizer_config.json and special_tokens_map.json say, and the text
  ({}, None, '<s>[x]</s>'),
  ({'eos_token': '<end>'}, None, '<s>[x]<end>'),
  ({'eos_token': {'content': '<end>', '__type': 'AddedToken'}}, None, '<s>[x]<end>'),
  ({'bos_token': None}, None, '[x]</s>'),
  ({}, {'bos_token': {'content': '<b>'}}, '<b>[x]</s>'),
  ({'eos_token': '<end>'}, {'eos_token': '<map>'}, '<s>[x]<map>'),
  ({'added_tokens_decoder': {}}, {'eos_token': '<map>'}, '<s>[x]</s>'),
  ({'added_tokens_decoder': None}, {'eos_token': '<map>'}, '<s>[x]<map>'),
]


@pytest.mark.parametrize('made', ['tokenizer.model', 'tokenizer.json'])
@pytest.mark.parametrize(('said', 'named', 'text'), SAID)
def test_templates_see_the_tokens_of_the_class_unless_files_name_others(
  made, said, named, text, folder
):
  if made == 'tokenizer.model' and said.get('added_tokens_decoder', 0) is not None:
    (folder / made).write_bytes(pieces())
  else:
    write_words(folder)
  said = said | {'add_bos_token': False}  # around a text: the tokenizer may lack it
  settings(folder, tokenizer_class='LlamaTokenizer', chat_template=TEMPLATE, **said)
  if named:
    (folder / 'special_tokens_map.json').write_text(json.dumps(named))
  tokenizer = fd.load_tokenizer(folder)
  assert tokenizer.render([{'role': 'user', 'content': 'x'}]) == text


def test_a_class_without_tokens_of_its_own_has_none(folder):
  write_words(folder)
  settings(folder, tokenizer_class='PreTrainedTokenizerFast', chat_template=TEMPLATE)
  assert fd.load_tokenizer(folder).render([{'role': 'user', 'content': 'x'}]) == '[x]'


# --- tokenizers that lack something


@pytest.mark.parametrize('name', ['tokenizer.model', 'spiece.model', 'sentencepiece.bpe.model'])
def test_an_empty_model_is_refused(name, folder):
  (folder / name).write_bytes(b'')
  settings(folder, tokenizer_class='T5Tokenizer')
  with pytest.raises(fd.UserError, match=rf'{name} is not a SentencePiece model: copy it again'):
    fd.load_tokenizer(folder)


@pytest.mark.parametrize('name', ['tokenizer.model', 'spiece.model', 'sentencepiece.bpe.model'])
def test_a_model_that_is_cut_between_two_messages_is_refused(name, folder):
  """After a piece, after the last one, after the settings of the training; or without these."""
  whole = sentencepiece_model_pb2.ModelProto.FromString(pieces())
  settings(folder, tokenizer_class='T5Tokenizer' if name == 'spiece.model' else 'LlamaTokenizer')
  for lost in (('trainer_spec', 'normalizer_spec'), ('normalizer_spec',), ('trainer_spec',)):
    for kept in (None, 9):
      cut = sentencepiece_model_pb2.ModelProto()
      cut.CopyFrom(whole)
      del cut.pieces[kept or len(whole.pieces) :]
      for part in lost:
        cut.ClearField(part)
      (folder / name).write_bytes(cut.SerializeToString())
      with pytest.raises(fd.UserError, match=f'{name} is not a SentencePiece model: copy it again'):
        fd.load_tokenizer(folder)


def test_a_tokenizer_without_pieces_is_refused(folder):
  for model in (tokenizers.models.BPE(), tokenizers.models.WordLevel({}, unk_token='a')):
    tokenizers.Tokenizer(model).save(str(folder / 'tokenizer.json'))
    with pytest.raises(fd.UserError, match=r'tokenizer\.json has no pieces'):
      fd.load_tokenizer(folder)


@pytest.mark.parametrize('kept', [0, 9])
@pytest.mark.parametrize('form', ['tokenizer.json', 'vocab.json'])
def test_a_vocabulary_without_its_merges_is_refused(form, kept, folder):
  content = json.loads(byte_level(BYTES).to_str())
  merges = content['model']['merges'][:kept]
  content['model']['merges'] = merges
  if form == 'tokenizer.json':
    (folder / form).write_text(json.dumps(content))
  else:
    (folder / form).write_text(json.dumps(content['model']['vocab']))
    if kept:
      (folder / 'merges.txt').write_text('\n'.join(map(' '.join, merges)))
    settings(folder, tokenizer_class='GPT2Tokenizer')
  with pytest.raises(fd.UserError, match=f'has {kept} merges for 41 pieces|must be both'):
    fd.load_tokenizer(folder)


@pytest.mark.parametrize('scores', [None, [0.0] * 6, [-1000.0] * 6])
def test_pieces_without_scores_are_refused(scores, tmp_path):
  tokens, types = ['<unk>', 'a', 'b', 'c', 'ab', 'bc'], [2, 1, 1, 1, 1, 1]
  rest = {} if scores is None else {'scores': scores}
  file = write_tokenizer(tmp_path / 'x.gguf', 'llama', tokens, types, unknown_token_id=0, **rest)
  with pytest.raises(fd.UserError, match='without scores, or all alike: convert it again'):
    load_gguf(read_header(file))


def test_letters_without_a_piece_need_a_token(tmp_path):
  scores = [0.0, -1.0]
  file = write_tokenizer(tmp_path / 'x.gguf', 'llama', ['a', 'b'], [1, 1], scores=scores)
  with pytest.raises(fd.UserError, match=r'without bytes and tokenizer\.ggml\.unknown_token_id'):
    load_gguf(read_header(file))


def runs(letters, longest):
  return [letter * n for letter in letters for n in range(1, longest + 1)]


LONG = {  # pieces that take long to cut or to join
  'long': ['a' * 9000, 'b'], 'runs': runs('ab', 512), 'many runs': runs('abcdefghij', 200),
  'short runs': runs([chr(300 + i) for i in range(500)], 40),
}  # fmt: skip


@pytest.mark.parametrize('name', LONG)
def test_pieces_that_would_take_long_are_refused_in_both_forms(name, folder):
  tokens = ['<unk>', *LONG[name]]
  scores, types = [-float(i) for i in range(len(tokens))], [2] + [1] * (len(tokens) - 1)
  file = write_tokenizer(
    folder / 'x.gguf', 'llama', tokens, types, scores=scores, unknown_token_id=0
  )
  with pytest.raises(fd.UserError, match=r'x\.gguf has (too many pairs of|pieces that are)'):
    load_gguf(read_header(file))
  model = b''.join(piece(token, -score) for token, score in zip(tokens, scores, strict=True))
  (folder / 'tokenizer.model').write_bytes(model)
  with pytest.raises(fd.UserError, match=r'tokenizer\.model (has|is not) (too|pieces|a Sent)'):
    fd.load_tokenizer(folder)


def piece(text, score):
  """The bytes of a piece in the file of a SentencePiece model."""
  data = text.encode()
  kind = b'\x18\x02' if text == '<unk>' else b''
  content = b'\x0a' + length(data) + b'\x15' + struct.pack('<f', score) + kind
  return b'\x0a' + length(content)


def length(data):
  """Data after its length, seven bits a byte."""
  number, count = b'', len(data)
  while count > 127:
    number += bytes([count % 128 + 128])
    count //= 128
  return number + bytes([count]) + data
