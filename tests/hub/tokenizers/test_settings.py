"""Settings in the files next to tokenizer.json: special tokens, and tokens around a text."""

import json

import pytest
import tokenizers

import fastdec as fd

WORDS = ['<s>', '</s>', '<pad>', 'the', 'dog', 'eng_Latn', 'fra_Latn', 'en_XX', 'fr_XX']
DOG, ENGLISH, FRENCH = 4, 5, 6


@pytest.fixture
def written(tmp_path):
  """Writes a folder with a tokenizer.json of words and added tokens, and with settings."""

  def write(settings, special_tokens_map=None, **tokens):
    made = tokenizers.Tokenizer(
      tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token='<pad>')
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_tokens([tokenizers.AddedToken(f'<{name}>', **of) for name, of in tokens.items()])
    made.save(str(tmp_path / 'tokenizer.json'))
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(settings))
    if special_tokens_map is not None:
      (tmp_path / 'special_tokens_map.json').write_text(json.dumps(special_tokens_map))
    return fd.load_tokenizer(tmp_path)

  return write


TOKEN = {'content': '<a>', 'special': True}
NAMED = [  # settings of both files, and the text of 'dog <a>' where tokenizer.json has <a> as plain
  ({}, None, 'dog <a>'),
  ({'eos_token': '<a>'}, None, 'dog'),
  ({'pad_token': {'content': '<a>', '__type': 'AddedToken'}}, None, 'dog'),
  ({'image_token': '<a>'}, None, 'dog'),
  ({'extra_special_tokens': {'image_token': '<a>'}}, None, 'dog'),
  ({'added_tokens_decoder': {'9': TOKEN}}, None, 'dog'),
  ({}, {'bos_token': '<a>'}, 'dog'),
  ({'added_tokens_decoder': {}}, {'bos_token': '<a>'}, 'dog <a>'),
  ({'additional_special_tokens': ['<b>']}, None, 'dog <a>'),
]


@pytest.mark.parametrize(('said', 'special_tokens_map', 'text'), NAMED)
def test_tokens_that_the_settings_name_are_special(said, special_tokens_map, text, written):
  """As `transformers` decodes without special tokens."""
  tokenizer = written(said, special_tokens_map, a={'special': False})
  assert tokenizer.encode('dog <a>') == [DOG, 9] and tokenizer.decode([DOG, 9]) == text
  assert (9 in tokenizer.special) == (text == 'dog') == (tokenizer.decode([9]) == '')


def test_tokens_that_tokenizer_json_lacks_follow_its_own(written):
  numbered = {'9': {'content': '<b>', 'special': False}, '10': {'content': '<c>', 'special': True}}
  said = {'added_tokens_decoder': numbered, 'mask_token': '<mask>', 'extra_special_tokens': ['<x>']}
  tokenizer = written(said)
  assert tokenizer.encode('<b><c><mask><x>') == [9, 10, 11, 12]
  assert tokenizer.decode([9, 10, DOG, 11, 12]) == '<b> dog'


def test_special_tokens_are_spelt_in_letters_if_the_settings_ask_for_it(written):
  assert written({}, a={'special': True}).encode('<a>dog') == [9, DOG]
  assert written({'split_special_tokens': True}, a={'special': True}).encode('dog<a>') == [2]


LANGUAGES = [  # settings, and what is before and after the text
  ({'tokenizer_class': 'NllbTokenizer'}, [ENGLISH], [1]),
  ({'tokenizer_class': 'NllbTokenizerFast', 'src_lang': 'fra_Latn'}, [FRENCH], [1]),
  ({'tokenizer_class': 'NllbTokenizer', 'legacy_behaviour': True}, [], [1, ENGLISH]),
  ({'tokenizer_class': 'MBartTokenizer'}, [], [1, 7]),
  ({'tokenizer_class': 'MBartTokenizer', 'src_lang': 'fr_XX'}, [], [1, 8]),
  ({'tokenizer_class': 'MBart50TokenizerFast'}, [7], [1]),
  ({'tokenizer_class': 'MBart50Tokenizer', 'src_lang': 'fr_XX', 'tgt_lang': 'en_XX'}, [8], [1]),
  ({'tokenizer_class': 'T5Tokenizer', 'src_lang': 'fr_XX'}, [], []),
]


@pytest.mark.parametrize(('said', 'before', 'after'), LANGUAGES)
def test_the_source_s_language_is_put_where_the_class_has_it(said, before, after, written):
  tokenizer = written(said)
  assert tokenizer.encode('the dog') == [*before, 3, DOG, *after]
  assert tokenizer.encode('the dog', special=False) == [3, DOG]


def test_the_class_may_be_in_config_json(written, tmp_path):
  (tmp_path / 'config.json').write_text('{"model_type": "mbart"}')
  assert written({}).encode('dog') == [DOG, 1, 7]
  (tmp_path / 'config.json').write_text(
    '{"model_type": "mbart", "tokenizer_class": "MBart50Tokenizer"}'
  )
  assert written({}).encode('dog') == [7, DOG, 1]


@pytest.mark.parametrize(
  ('said', 'message'),
  [
    ({'tokenizer_class': 'NllbTokenizer', 'src_lang': 'fr'}, "src_lang='fr', which the tokenizer"),
    ({'added_tokens_decoder': {'a': TOKEN}}, r'tokenizer_config\.json cannot be read'),
    ({'added_tokens_decoder': {'9': {'text': 'a'}}}, r'tokenizer_config\.json cannot be read'),
    ({'extra_special_tokens': 'a'}, "extra_special_tokens='a' is not possible"),
    ({'additional_special_tokens': [3]}, r'additional_special_tokens\[0\]=3 is not possible'),
  ],
)
def test_settings_that_cannot_be_are_named(said, message, written):
  with pytest.raises(fd.UserError, match=message):
    written(said)


@pytest.mark.parametrize('kind', ['GPT2Tokenizer', 'Qwen2TokenizerFast'])
def test_a_space_is_put_before_a_text_if_the_settings_ask_for_it(kind, tmp_path):
  letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
  model = tokenizers.models.BPE({letter: i for i, letter in enumerate(sorted(letters))}, [])
  made = tokenizers.Tokenizer(model)
  of_bytes = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  if kind.startswith('Qwen2'):
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r'\d'), 'isolated')
    of_bytes = tokenizers.pre_tokenizers.Sequence([split, of_bytes])
  made.pre_tokenizer = of_bytes
  made.save(str(tmp_path / 'tokenizer.json'))
  for is_set in (False, True):
    said = {'tokenizer_class': kind, 'add_prefix_space': is_set}
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(said))
    tokenizer = fd.load_tokenizer(tmp_path)
    assert tokenizer.pieces(tokenizer.encode('a')) == ['Ġ'] * is_set + ['a']


@pytest.mark.parametrize('is_bpe', [False, True])
def test_texts_are_without_spaces_before_punctuation_if_the_settings_ask_for_it(is_bpe, tmp_path):
  """Like `transformers`, which does not change BPE."""
  pieces = ['a', ' ', '.', "'", 's']
  model = tokenizers.models.Unigram([(piece, 0.0) for piece in pieces], 0)
  if is_bpe:
    model = tokenizers.models.BPE({piece: i for i, piece in enumerate(pieces)}, [])
  made = tokenizers.Tokenizer(model)
  made.decoder = tokenizers.decoders.Fuse()
  made.save(str(tmp_path / 'tokenizer.json'))
  for is_set, text in ((False, "a 's ."), (True, "a 's ." if is_bpe else "a's.")):
    said = {'clean_up_tokenization_spaces': is_set}
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(said))
    assert fd.load_tokenizer(tmp_path).decode([0, 1, 3, 4, 1, 2]) == text
