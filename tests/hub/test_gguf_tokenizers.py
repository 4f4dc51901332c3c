"""Tokenizers in GGUF files against the libraries that they were made with."""

import io
import json

import pytest
import tokenizers
from gguf import GGUFWriter
from tokenizers import decoders, models, pre_tokenizers, trainers

import fastdec as fd
from fastdec.hub.gguf.header import read_header
from fastdec.hub.tokenizers import load, load_gguf

CORPUS = [
  'the man in the boat  rows 1234 and 56',
  "it's théâtre\n\n  x = x + 1",
  'the theatre\t',
] * 9
TEXTS = [
  'the boat', ' the  the ', 'x  12\n\n 3', "it's théâtre", '日本 ok', 'a<end>b <tool>the', '', '\n',
  'é', 'the man\t12345', '<end>', '  ',
]  # fmt: skip
NORMAL, UNKNOWN, CONTROL, OF_USERS, BYTE = 1, 2, 3, 4, 6


def write_tokenizer(file, kind, tokens, types, **settings):
  """Writes a file that holds only a tokenizer; settings have names without 'tokenizer.ggml.'."""
  writer = GGUFWriter(file, settings.pop('architecture', 'llama'))
  writer.add_tokenizer_model(kind)
  writer.add_token_list(tokens)
  writer.add_token_types(types)
  template = settings.pop('template', None)
  if template is not None:
    writer.add_chat_template(template)
  for name, value in settings.items():
    write = {int: writer.add_uint32, str: writer.add_string, bool: writer.add_bool}
    write.get(type(value), writer.add_array)(f'tokenizer.ggml.{name}', value)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.close()
  return file


def byte_level(cuts):
  """A tokenizer of bytes that the library trains, with one special token and one of users."""
  tokenizer = tokenizers.Tokenizer(models.BPE())
  tokenizer.pre_tokenizer, tokenizer.decoder = cuts, decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
  )
  tokenizer.train_from_iterator(CORPUS, trainer)
  tokenizer.add_special_tokens([tokenizers.AddedToken('<end>', normalized=False)])
  tokenizer.add_tokens([tokenizers.AddedToken('<tool>', normalized=False)])
  return tokenizer


def write_byte_level(file, tokenizer, pre, **settings):
  vocabulary = tokenizer.get_vocab()
  tokens = sorted(vocabulary, key=vocabulary.get)
  types = [{'<end>': CONTROL, '<tool>': OF_USERS}.get(token, NORMAL) for token in tokens]
  merges = [' '.join(pair) for pair in json.loads(tokenizer.to_str())['model']['merges']]
  if pre is not None:
    settings['pre'] = pre
  return write_tokenizer(file, 'gpt2', tokens, types, merges=merges, **settings)


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES])


@pytest.mark.parametrize(
  ('pre', 'cuts'), [('gpt-2', BYTES), ('smollm', DIGITS), ('refact', DIGITS)]
)
def test_ids_of_bytes_are_those_of_the_library(pre, cuts, tmp_path):
  theirs = byte_level(cuts)
  end = theirs.token_to_id('<end>')
  file = write_byte_level(tmp_path / 'x.gguf', theirs, pre, eos_token_id=end)
  ours = load_gguf(read_header(file))
  for text in TEXTS:
    ids = theirs.encode(text).ids
    assert ours.encode(text) == ids
    assert ours.decode(ids) == theirs.decode(ids)
  assert ours.vocab_size == theirs.get_vocab_size()
  assert ours.token_bytes()[theirs.token_to_id('<tool>')] == b'<tool>'


LLAMA = [
  'I',
  "'ve",
  ' ',
  '123',
  '4',
  ' dejaX',
  '  \n\n',
  ' ',
  ' x',
  '=',
  '7',
  ' BigWORD',
  "'s",
  ' /*\n',
]
CUT = {  # of CUT_TEXT
  'llama-bpe': LLAMA, 'dbrx': LLAMA, 'smaug-bpe': LLAMA,
  'qwen2': [*LLAMA[:3], '1', '2', '3', '4', *LLAMA[5:]],
  'tekken': [
    *LLAMA[:3], '1', '2', '3', '4', ' deja', 'X', *LLAMA[6:11], ' Big', 'WORD', *LLAMA[12:],
  ],
  'gpt-4o': ["I've", *LLAMA[2:5], ' deja', 'X', *LLAMA[6:11], ' Big', "WORD's", LLAMA[-1]],
}  # fmt: skip
CUT_TEXT = "I've 1234 dejaX  \n\n  x=7 BigWORD's /*\n"


@pytest.mark.parametrize('pre', CUT)
def test_text_is_cut_as_the_name_says(pre, tmp_path):
  file = write_byte_level(tmp_path / 'x.gguf', byte_level(BYTES), pre, bos_token_id=1)
  ours = load_gguf(read_header(file))._tokenizer
  assert ''.join(CUT[pre]) == CUT_TEXT
  cut = [piece for piece, _ in ours.pre_tokenizer.pre_tokenize_str(CUT_TEXT)]
  assert cut == [piece.replace(' ', 'Ġ').replace('\n', 'Ċ') for piece in CUT[pre]]
  assert ours.model.ignore_merges == (pre in ('llama-bpe', 'tekken'))


def test_accents_are_joined_with_letters_where_the_model_was_trained_so(tmp_path):
  trained = byte_level(BYTES)
  ids = {}
  for pre in ('gpt-2', 'qwen2'):
    tokenizer = load_gguf(read_header(write_byte_level(tmp_path / f'{pre}.gguf', trained, pre)))
    ids[pre] = [tokenizer.encode(text) for text in ('e\u0301', 'é')]
  assert ids['gpt-2'][0] != ids['gpt-2'][1] == ids['qwen2'][0] == ids['qwen2'][1]


@pytest.fixture(scope='module')
def sentencepiece():
  """A model of SentencePiece's BPE with a byte for what it does not know."""
  from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

  model = io.BytesIO()
  SentencePieceTrainer.train(
    sentence_iterator=iter(CORPUS), model_writer=model, model_type='bpe', vocab_size=330,
    byte_fallback=True, normalization_rule_name='identity', remove_extra_whitespaces=False,
    control_symbols=['<end>'], user_defined_symbols=['<tool>'], minloglevel=2,
  )  # fmt: skip
  return SentencePieceProcessor(model_proto=model.getvalue())


def write_sentencepiece(file, processor, **settings):
  count = processor.get_piece_size()
  types = []
  for i in range(count):
    kind = NORMAL
    if processor.is_unknown(i):
      kind = UNKNOWN
    elif processor.is_control(i):
      kind = CONTROL
    elif processor.is_byte(i):
      kind = BYTE
    elif processor.id_to_piece(i) == '<tool>':
      kind = OF_USERS
    types.append(kind)
  tokens = [processor.id_to_piece(i) for i in range(count)]
  scores = [processor.get_score(i) for i in range(count)]
  ids = {'bos_token_id': 1, 'eos_token_id': 2, 'unknown_token_id': 0}
  return write_tokenizer(file, 'llama', tokens, types, scores=scores, **ids, **settings)


def test_ids_of_pieces_are_those_of_sentencepiece(sentencepiece, tmp_path):
  ours = load_gguf(read_header(write_sentencepiece(tmp_path / 'x.gguf', sentencepiece)))
  for text in TEXTS:
    if '<' in text:
      continue  # a special token in a text counts here, and not there
    ids = sentencepiece.encode(text)
    assert ours.encode(text, special=False) == ids, text
    assert ours.encode(text) == [1, *ids]
    assert ours.decode([1, *ids]) == text
  end, tool = sentencepiece.piece_to_id('<end>'), sentencepiece.piece_to_id('<tool>')
  assert ours.encode('<end><tool>', special=False) == [end, tool]
  assert ours.decode([end, tool]) == '<tool>'


def test_spaces_around_and_before_are_as_the_file_says(sentencepiece, tmp_path):
  plain = load_gguf(
    read_header(write_sentencepiece(tmp_path / 'a.gguf', sentencepiece, add_space_prefix=False))
  )
  begun = sentencepiece.encode('the')
  assert plain.encode(' the', special=False) == begun != plain.encode('the', special=False)
  assert plain.decode(begun) == ' the'
  ended = load_gguf(
    read_header(
      write_sentencepiece(
        tmp_path / 'b.gguf', sentencepiece, add_bos_token=False, add_eos_token=True
      )
    )
  )
  assert ended.encode('the') == [*begun, 2]
  phi = load_gguf(
    read_header(write_sentencepiece(tmp_path / 'c.gguf', sentencepiece, architecture='phi3'))
  )
  end = sentencepiece.piece_to_id('<end>')
  assert phi.encode('<end>\n the', special=False) == [end, *begun]


def test_pieces_of_spaces_are_those_of_sentencepiece(tmp_path):
  tokens = ['<unk>', 'a', '▁', '  ', '▁▁▁', '   ']
  types = [UNKNOWN, NORMAL, NORMAL, OF_USERS, NORMAL, OF_USERS]
  settings = {'scores': [0.0, -1.0, -2.0, -3.0, -4.0, -5.0], 'add_space_prefix': False}
  file = write_tokenizer(
    tmp_path / 'x.gguf', 'llama', tokens, types, unknown_token_id=0, **settings
  )
  tokenizer = load_gguf(read_header(file))
  assert tokenizer.encode('a  a a') == [1, 3, 1, 2, 1]
  assert tokenizer.decode([1, 3, 1, 4, 1]) == 'a  a   a'


TEMPLATE = '{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}<end>'


def test_conversations_are_written_by_the_template_of_the_file(sentencepiece, tmp_path):
  file = write_sentencepiece(tmp_path / 'x.gguf', sentencepiece, template=TEMPLATE)
  tokenizer = load_gguf(read_header(file))
  messages = [{'role': 'user', 'content': 'the boat'}]
  assert tokenizer.render(messages) == '<s>user: the boat<end>'
  assert tokenizer.encode_chat(messages)[0] == 1
  (tmp_path / 'saved').mkdir()
  tokenizer.save(tmp_path / 'saved')
  saved = load(tmp_path / 'saved')
  assert saved.render(messages) == tokenizer.render(messages)
  for text in TEXTS:
    assert saved.encode(text) == tokenizer.encode(text)
    assert saved.encode(text, special=False) == tokenizer.encode(text, special=False)

  several = [{'name': 'default', 'template': TEMPLATE}, {'name': 'tool_use', 'template': 'tools'}]
  named = load_gguf(
    read_header(write_sentencepiece(tmp_path / 'y.gguf', sentencepiece, template=several))
  )
  assert named.render(messages) == '<s>user: the boat<end>'
  assert named.render(messages, tools=[{'name': 'f'}]) == 'tools'
  none = load_gguf(read_header(write_sentencepiece(tmp_path / 'z.gguf', sentencepiece)))
  with pytest.raises(fd.UserError, match=r'z\.gguf has no chat template: give texts'):
    none.render(messages)


MISTAKES = {  # settings of a tokenizer, and words of the sentence
  'pre': ({'pre': 'falcon9'}, "unknown pre-tokenizer 'falcon9': known are gpt-2"),
  'no id': ({'add_bos_token': True}, r'puts a token around texts, and lacks .*bos_token_id'),
  'kind of id': ({'eos_token_id': 'two'}, r"eos_token_id='two', which must be int"),
  'merge': ({'merges': ['zz yy'] * 30}, r'x\.gguf cannot be read \(.*zz'),
  'no merges': ({'merges': None}, r'x\.gguf has 0 merges for 41 pieces of several letters'),
  'few merges': ({'merges': ['t h'] * 20}, 'has 20 merges for 41 pieces'),
  'kind': ({'model': 'rwkv'}, "a tokenizer of the kind 'rwkv', which is not supported"),
  'none': ({'tokens': []}, 'has no tokenizer'),
}  # fmt: skip


@pytest.mark.parametrize('mistake', MISTAKES)
def test_a_mistake_is_a_sentence(mistake, tmp_path):
  settings, words = MISTAKES[mistake]
  file = write_byte_level(tmp_path / 'x.gguf', byte_level(BYTES), 'gpt-2')
  header = read_header(file)
  changed = {f'tokenizer.ggml.{name}': value for name, value in settings.items()}
  header.metadata.update(changed)
  with pytest.raises(fd.UserError, match=words):
    load_gguf(header)
