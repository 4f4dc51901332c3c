"""Tokenizers of Hugging Face folders, on models trained here."""

import io
import json
import socket
import sys

import pytest

import fastdec as fd
from fastdec.hub.tokenizers import load_ours

pytest.importorskip('transformers')
LINES = [
  'a small dog runs',
  'the cat sat on the mat',
  'two men run on grass',
  'a dog and a cat',
] * 4
TEXT = 'the dog sat'


def pieces(**ids):
  import sentencepiece

  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(LINES),
    model_writer=model,
    vocab_size=40,
    minloglevel=2,
    **{'model_type': 'bpe', **ids},
  )
  return model.getvalue()


def of_type(folder, model_type):
  (folder / 'config.json').write_text(json.dumps({'model_type': model_type}))


def test_llamas_pieces_follow_a_start(folder):
  (folder / 'tokenizer.model').write_bytes(pieces())
  tokenizer = fd.load_tokenizer(folder)
  ids = tokenizer.encode(TEXT)
  assert ids[0] == 1 and 2 not in ids and tokenizer.decode([*ids, 2]) == TEXT
  (folder / 'tokenizer_config.json').write_text('{"add_bos_token": false, "add_eos_token": true}')
  assert fd.load_tokenizer(folder).encode(TEXT) == [*ids[1:], 2]


def test_t5s_pieces_end(folder):
  (folder / 'spiece.model').write_bytes(pieces(pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
  tokenizer = fd.load_tokenizer(folder)
  ids = tokenizer.encode(TEXT)
  assert ids[-1] == 1 and tokenizer.decode([*ids, 99, 140]) == TEXT
  shown = tokenizer.pieces([*ids, 140])
  assert shown[-2:] == ['</s>', '<unk>'] and ''.join(shown[:-2]).replace('▁', ' ').strip() == TEXT
  assert 2 in tokenizer.encode('Ж') and tokenizer.decode([2, *ids]) == TEXT


def test_marian_numbers_pieces_by_its_own_vocabulary(folder):
  import sentencepiece

  proto = pieces()
  names = sentencepiece.SentencePieceProcessor(model_proto=proto)
  vocab = ['</s>', '<unk>', '>>fra<<', *(names.id_to_piece(i) for i in range(3, 40)), '<pad>']
  for name in ('source.spm', 'target.spm'):
    (folder / name).write_bytes(proto)
  (folder / 'vocab.json').write_text(json.dumps({piece: i for i, piece in enumerate(vocab)}))
  tokenizer = fd.load_tokenizer(folder)
  ids = tokenizer.encode(f'>>fra<<{TEXT}')
  assert ids[0] == 2 and ids[-1] == 0 and tokenizer.decode([*ids[1:], 40, 40]) == TEXT
  shown = tokenizer.pieces([*ids, 99])
  assert (
    shown[0] == '>>fra<<'
    and shown[-2:] == ['</s>', '<unk>']
    and ''.join(shown[1:-2]) == '▁the▁dog▁sat'
  )
  assert 1 in tokenizer.encode('Ж')


@pytest.mark.parametrize('kind', ['M2M100Tokenizer', 'NllbTokenizer', 'MBartTokenizer'])
def test_languages_are_numbered_after_the_pieces(kind, folder):
  """Numbers are in vocab.json, or are fairseq's. The source's language is put next to the text."""
  import sentencepiece

  model_type = 'bpe' if kind == 'NllbTokenizer' else 'unigram'
  proto = pieces(model_type=model_type, character_coverage=1.0, hard_vocab_limit=False)
  (folder / 'sentencepiece.bpe.model').write_bytes(proto)
  names = sentencepiece.SentencePieceProcessor(model_proto=proto)
  words = ['<s>', '<pad>', '</s>', '<unk>', *map(names.id_to_piece, range(3, names.vocab_size()))]
  english, german = {
    'M2M100Tokenizer': ('__en__', '__de__'),
    'NllbTokenizer': ('eng_Latn', 'deu_Latn'),
    'MBartTokenizer': ('en_XX', 'de_DE'),
  }[kind]
  config = {'tokenizer_class': kind, 'src_lang': english.strip('_')}
  if kind == 'M2M100Tokenizer':
    (folder / 'vocab.json').write_text(json.dumps({piece: i for i, piece in enumerate(words)}))
  if kind == 'NllbTokenizer':
    config['additional_special_tokens'] = [english, german]
  of_type(folder, 'mbart' if kind == 'MBartTokenizer' else 'm2m_100')
  settings(folder, **config)
  tokenizer = fd.load_tokenizer(folder)
  shown = [words[names.piece_to_id(piece) + 1] for piece in names.encode(TEXT, out_type=str)]
  ids = tokenizer.encode(TEXT)
  around = [[], ['</s>', english]] if kind == 'MBartTokenizer' else [[english], ['</s>']]
  assert tokenizer.pieces(ids) == [*around[0], *shown, *around[1]]
  assert [words.index(piece) for piece in shown] == tokenizer.encode(TEXT, special=False)
  language = tokenizer.pieces(range(tokenizer.vocab_size)).index(german)
  assert language >= len(words) and tokenizer.decode([language, *ids]) == TEXT
  assert '<unk>' not in tokenizer.pieces(tokenizer.encode('the >dog< sat'))[:3]
  text = '>>a man<< runs'  # only Marian has such marks
  known = {piece: i for i, piece in enumerate(words)}
  spelt = [known.get(piece, 3) for piece in names.encode(text, out_type=str)]
  assert tokenizer.encode(text, special=False) == spelt and len(spelt) > 6
  settings(folder, **{name: value for name, value in config.items() if name != 'src_lang'})
  assert fd.load_tokenizer(folder).encode(TEXT) == ids  # the class's own language is English


def test_special_tokens_count_where_a_text_spells_them(folder):
  """No space is put after a special token, as it is before a text, unless `legacy` asks for it."""
  (folder / 'tokenizer.model').write_bytes(pieces(character_coverage=1.0))
  added = {
    '40': {'content': '<|user|>', 'special': False},
    '41': {'content': '<mask>', 'lstrip': True},
  }
  (folder / 'tokenizer_config.json').write_text(json.dumps({'added_tokens_decoder': added}))
  tokenizer = fd.load_tokenizer(folder)
  assert tokenizer.vocab_size == 42
  ids = tokenizer.encode('a</s><s>dog<|user|> dog <mask> dog')
  assert [i for i in ids if i in (1, 2, 40, 41)] == [1, 2, 1, 40, 41]
  spelt = ''.join(tokenizer.pieces(ids))
  assert spelt == '<s>▁a</s><s>dog<|user|>▁dog<mask>▁dog'
  assert tokenizer.decode(ids) == 'adog<|user|> dog<mask> dog'
  assert tokenizer.pieces([40, 2, 0, 42]) == ['<|user|>', '</s>', '<unk>', '<unk>']
  (folder / 'tokenizer_config.json').write_text('{"legacy": true}')
  legacy = fd.load_tokenizer(folder)
  assert ''.join(legacy.pieces(legacy.encode('a</s>dog'))) == '<s>▁a</s>▁dog'


def test_sentinels_and_ends_of_t5_and_marian_count_where_they_are_spelt(folder):
  (folder / 'spiece.model').write_bytes(pieces(pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
  tokenizer = fd.load_tokenizer(folder)
  dog = tokenizer.encode('dog', special=False)
  assert tokenizer.encode('dog <extra_id_0> dog</s><extra_id_99>') == [*dog, 139, *dog, 1, 40, 1]
  assert tokenizer.vocab_size == 140
  (folder / 'spiece.model').unlink()
  for name in ('source.spm', 'target.spm'):
    (folder / name).write_bytes(pieces())
  names = ['</s>', '<unk>', '▁dog', '<pad>']
  (folder / 'vocab.json').write_text(json.dumps({piece: i for i, piece in enumerate(names)}))
  assert fd.load_tokenizer(folder).encode('</s><pad>')[:2] == [0, 3]


@pytest.mark.parametrize('kind', ['GPT2Tokenizer', 'Qwen2TokenizerFast', None])
def test_vocabulary_and_merges_are_read_as_their_class_reads_them(kind, folder):
  """Merges join bytes. Qwen2 composes characters, and each digit is a token."""
  tokenizers = pytest.importorskip('tokenizers')
  letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
  words = [*letters, 'do', 'dog', 'Ġa', '12', '<|endoftext|>']
  (folder / 'vocab.json').write_text(json.dumps({word: i for i, word in enumerate(words)}))
  (folder / 'merges.txt').write_text('#version: 0.2\nd o\ndo g\nĠ a\n1 2\n')
  added = {str(len(words)): {'content': '<|im_start|>', 'special': True}}
  if kind:
    said = {'tokenizer_class': kind, 'added_tokens_decoder': added}
    (folder / 'tokenizer_config.json').write_text(json.dumps(said))
  tokenizer, is_qwen = fd.load_tokenizer(folder), kind == 'Qwen2TokenizerFast'
  text = 'dog a 12 é ▁'
  ids = tokenizer.encode(text)
  assert tokenizer.decode(ids) == text and ids[:2] == [words.index('dog'), words.index('Ġa')]
  assert (words.index('12') in ids) == (not is_qwen)
  assert (tokenizer.encode('e\u0301') == tokenizer.encode('é')) == is_qwen
  if kind:
    assert tokenizer.encode('<|im_start|>dog') == [len(words), words.index('dog')]
    assert tokenizer.decode([len(words), words.index('dog')]) == 'dog'
  (folder / 'tokenizer_config.json').unlink(missing_ok=True)
  (folder / 'merges.txt').write_text('d o g\n')
  with pytest.raises(fd.UserError, match=r'cannot be read .*Merges text file invalid at line 1'):
    fd.load_tokenizer(folder)


def test_a_saved_tokenizer_needs_transformers_no_more(folder, tmp_path, monkeypatch):
  (folder / 'tokenizer.model').write_bytes(pieces())
  settings(folder, add_bos_token=True, add_eos_token=True, chat_template='a')
  tokenizer = fd.load_tokenizer(folder)
  (saved := tmp_path / 'saved').mkdir()
  tokenizer.save(saved)
  monkeypatch.setitem(sys.modules, 'transformers', None)
  again = fd.load_tokenizer(saved)
  for text in (TEXT, ' the  dog', 'a</s>dog', ''):
    assert again.encode(text) == tokenizer.encode(text)
    assert again.decode(again.encode(text)) == tokenizer.decode(tokenizer.encode(text))
  assert again.token_bytes() == tokenizer.token_bytes()
  with pytest.raises(fd.UserError, match=r'transformers is not installed: run .*fastdec\[hf\]'):
    fd.load_tokenizer(folder)


def test_a_saved_marian_is_read_from_our_own_folder(folder, tmp_path):
  for name in ('source.spm', 'target.spm'):
    (folder / name).write_bytes(pieces())
  names = ['</s>', '<unk>', '▁dog', '▁the', '<pad>']
  (folder / 'vocab.json').write_text(json.dumps({piece: i for i, piece in enumerate(names)}))
  of_type(folder, 'marian')
  tokenizer = fd.load_tokenizer(folder)
  (saved := tmp_path / 'saved').mkdir()
  tokenizer.save(saved)
  (saved / 'config.json').write_text('{"format": "fastdec", "model": {}}')
  assert load_ours(saved).encode(TEXT) == tokenizer.encode(TEXT) == [3, 2, 1, 1, 0]


def test_added_tokens_are_special_where_the_settings_name_them(folder):
  (folder / 'tokenizer.model').write_bytes(pieces())
  (folder / 'added_tokens.json').write_text('{"<think>": 40, "[PAD]": 41}')
  (folder / 'special_tokens_map.json').write_text('{"pad_token": "[PAD]"}')
  tokenizer = fd.load_tokenizer(folder)
  dog = tokenizer.encode('dog', special=False)
  assert tokenizer.decode([40, *dog, 41, 40]) == '<think> dog<think>'


def test_added_tokens_of_t5_keep_their_text(folder):
  (folder / 'spiece.model').write_bytes(pieces(pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
  (folder / 'added_tokens.json').write_text(json.dumps({'<tab>': 140, '\n': 141}))
  tokenizer = fd.load_tokenizer(folder)
  dog = tokenizer.encode('dog', special=False)
  assert tokenizer.decode([*dog, 140, 141, *dog, 1]).split() == ['dog<tab>', 'dog']


def of_bytes(folder, special, **said):
  """Writes vocab.json, which has special tokens and then bytes, and merges.txt."""
  tokenizers = pytest.importorskip('tokenizers')
  words = [*special, *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())]
  (folder / 'vocab.json').write_text(json.dumps({word: i for i, word in enumerate(words)}))
  (folder / 'merges.txt').write_text('#version: 0.2\n')
  if said:
    settings(folder, **said)


@pytest.mark.parametrize('said', [{}, {'tokenizer_class': 'BartTokenizer'}])
def test_barts_text_has_a_start_and_an_end_whether_settings_name_its_class_or_not(said, folder):
  of_bytes(folder, ['<s>', '<pad>', '</s>', '<unk>', '<mask>'], **said)
  of_type(folder, 'bart')
  tokenizer = fd.load_tokenizer(folder)
  ids = tokenizer.encode('a man')
  assert (ids[0], ids[-1], len(ids)) == (0, 2, 7) and tokenizer.decode(ids) == 'a man'
  assert 4 in tokenizer.encode('yes <mask> no')


def test_what_transformers_cannot_read_says_what_to_fix(folder):
  of_bytes(folder, ['<s>'], tokenizer_class='PreTrainedTokenizerFast')
  remedy = r'add its tokenizer\.json, or fix tokenizer_class'
  with pytest.raises(fd.UserError, match=rf'a tokenizer that cannot be read .*: {remedy}') as error:
    fd.load_tokenizer(folder)
  assert '\n' not in str(error.value)
  (folder / 'vocab.json').unlink()
  settings(folder)
  of_type(folder, 'm2m_100')
  (folder / 'sentencepiece.bpe.model').write_bytes(pieces())
  with pytest.raises(fd.UserError, match='name the class in tokenizer_config'):
    fd.load_tokenizer(folder)


@pytest.mark.parametrize('has_config', [False, True])
@pytest.mark.parametrize('name', ['tokenizer.model', 'tekken.json', 'tiktoken.model'])
def test_other_peoples_tokenizers_are_named(name, has_config, folder):
  (folder / name).write_text('IQ== 0\nIg== 1\n' if name.endswith('.model') else '{"vocab": []}')
  if not has_config:
    (folder / 'config.json').unlink()
  with pytest.raises(fd.UserError, match=r'not supported: add the tokenizer\.json of the same'):
    fd.load_tokenizer(folder)


@pytest.mark.parametrize('kind', ['LlamaTokenizer', 'OwnTokenizer'])
def test_no_code_of_a_folder_runs_and_nothing_is_downloaded(kind, folder, monkeypatch):
  (folder / 'tokenizer.model').write_bytes(pieces())
  (folder / 'own.py').write_text('raise SystemExit("ran")')
  settings(folder, tokenizer_class=kind, auto_map={'AutoTokenizer': ['own.OwnTokenizer', None]})

  def refuse(*_):
    raise AssertionError('nothing should be downloaded')

  monkeypatch.setattr(socket.socket, 'connect', refuse)
  monkeypatch.setattr(socket, 'getaddrinfo', refuse)
  try:
    fd.load_tokenizer(folder)
  except fd.UserError as error:
    assert 'ran' not in str(error).split() and 'downloaded' not in str(error)


POINTER = b'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 493443\n'


def test_half_a_character_is_refused_by_every_tokenizer(folder):
  (folder / 'tokenizer.model').write_bytes(pieces())
  with pytest.raises(fd.UserError, match=r"half a character, '\\ud83d' at place 4: fix it"):
    fd.load_tokenizer(folder).encode('cut \ud83d here')
  write_words(folder)
  with pytest.raises(fd.UserError, match='half a character'):
    fd.load_tokenizer(folder).encode('cut \ud83d here')


def test_tokenizer_json(folder):
  tokenizers = pytest.importorskip('tokenizers')
  words = {word: i for i, word in enumerate(('<s>', *sorted(set(TEXT.split()))))}
  made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token='<s>'))
  made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  made.add_special_tokens(['<s>'])
  made.post_processor = tokenizers.processors.TemplateProcessing(
    single='<s> $A', special_tokens=[('<s>', 0)]
  )
  made.save(str(folder / 'tokenizer.json'))
  tokenizer = fd.load_tokenizer(folder)
  assert tokenizer.encode(TEXT)[0] == 0 and tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
  made.enable_truncation(2)
  made.enable_padding(length=9)
  made.save(str(folder / 'tokenizer.json'))
  assert fd.load_tokenizer(folder).encode(TEXT) == tokenizer.encode(TEXT)
  marked = b'\xef\xbb\xbf' + (folder / 'tokenizer.json').read_bytes()  # a byte order mark
  (folder / 'tokenizer.json').write_bytes(marked)
  assert fd.load_tokenizer(folder).encode(TEXT) == tokenizer.encode(TEXT)
  (folder / 'tokenizer.json').write_text('{}')
  with pytest.raises(fd.UserError, match=r'tokenizer\.json cannot be read'):
    fd.load_tokenizer(folder)
  newer = {**json.loads(made.to_str()), 'model': {'type': 'SuperBPE', 'vocab': {}}}
  (folder / 'tokenizer.json').write_text(json.dumps(newer))
  with pytest.raises(fd.UserError, match=r'is complete, but .* pip install -U tokenizers'):
    fd.load_tokenizer(folder)


def write_words(folder, template=None):
  """tokenizer.json of words, with <s> and </s> around a text where the template says so; then the
  ids of TEXT."""
  tokenizers = pytest.importorskip('tokenizers')
  words = ['<s>', '</s>', '<bos>', *TEXT.split()]
  made = tokenizers.Tokenizer(
    tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token='<s>')
  )
  made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  made.add_special_tokens(words[:3])
  if template:
    special = [(word, i) for i, word in enumerate(words[:3])]
    made.post_processor = tokenizers.processors.TemplateProcessing(
      single=template, special_tokens=special
    )
  made.save(str(folder / 'tokenizer.json'))
  return [3, 4, 5]


def settings(folder, **said):
  (folder / 'tokenizer_config.json').write_text(json.dumps(said))


LLAMA, START_END = 'LlamaTokenizerFast', '<s> $A </s>'
# tokenizer.json's template, what tokenizer_config.json says, the ids before and after a text
AROUND = [
  (None, {'tokenizer_class': LLAMA, 'add_bos_token': True}, [0], []),
  (None, {'tokenizer_class': LLAMA, 'add_bos_token': True, 'add_eos_token': True}, [0], [1]),
  (START_END, {'tokenizer_class': LLAMA, 'add_bos_token': False, 'add_eos_token': False}, [], []),
  (START_END, {'tokenizer_class': LLAMA, 'add_bos_token': False, 'add_eos_token': True}, [], [1]),
  (START_END, {'tokenizer_class': LLAMA}, [0], []),  # the class's own defaults
  (START_END, {'tokenizer_class': LLAMA, 'add_bos_token': None, 'add_eos_token': None}, [0], []),
  (None, {'add_bos_token': True}, [0], []),  # a Llama, according to its config.json
  (None, {'tokenizer_class': 'LlamaTokenizer', 'bos_token': '<bos>'}, [2], []),
  (None, {'tokenizer_class': 'CodeLlamaTokenizerFast', 'bos_token': {'content': '</s>'}}, [1], []),
  (None, {'tokenizer_class': 'GemmaTokenizerFast'}, [2], []),
  # Others keep what tokenizer.json says, whatever the flags are.
  (None, {'tokenizer_class': 'PreTrainedTokenizerFast', 'add_bos_token': True}, [], []),
  (START_END, {'tokenizer_class': 'PreTrainedTokenizerFast', 'add_bos_token': False}, [0], [1]),
  (START_END, {'tokenizer_class': 'Qwen2Tokenizer', 'add_bos_token': False}, [0], [1]),
]


@pytest.mark.parametrize(('template', 'said', 'before', 'after'), AROUND)
def test_start_and_end_are_put_around_as_the_class_and_its_flags_have_it(
  template, said, before, after, folder
):
  ids = write_words(folder, template)
  settings(folder, **said)
  tokenizer = fd.load_tokenizer(folder)
  assert (
    tokenizer.encode(TEXT) == [*before, *ids, *after]
    and tokenizer.decode([*before, *ids, *after]) == TEXT
  )


def test_only_tokenizer_json_counts_without_a_class_unless_the_model_is_a_llama(folder):
  ids = write_words(folder, START_END)
  assert fd.load_tokenizer(folder).encode(TEXT) == [0, *ids, 1]  # no tokenizer_config.json at all
  (folder / 'config.json').write_text('{"model_type": "qwen2"}')
  settings(folder, add_bos_token=False)
  assert fd.load_tokenizer(folder).encode(TEXT) == [0, *ids, 1]


@pytest.mark.parametrize(
  ('said', 'message'),
  [
    (
      {'tokenizer_class': 5},
      r'tokenizer_config\.json: tokenizer_class=5 is not possible: give a'
      r' word',
    ),
    ({'add_bos_token': 'yes'}, "add_bos_token='yes' is not possible: give true or false"),
    (
      {'bos_token': '<start>'},
      "puts '<start>' around texts, which the tokenizer does not have: fix bos_token",
    ),
    ({'bos_token': {'text': '<s>'}}, 'which needs a text as "content"'),
    ({'bos_token': []}, r'bos_token=\[\] is not possible'),
  ],
)
def test_settings_of_a_wrong_kind_are_named(said, message, folder):
  write_words(folder)
  settings(folder, **said)
  with pytest.raises(fd.UserError, match=message):
    fd.load_tokenizer(folder)
