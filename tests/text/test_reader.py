"""Text that is read while it is written is the text read at the end, and a long text is not decoded
again and again."""

import random

import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from fastdec.hub.tokenizers.spelling import clean_up
from fastdec.text.reader import FORGETS, Reader, StopReader

LINES = [
  'A man rides a bike .',
  'ein Hund rennt über die Straße',
  '語の語 das ist 語',
  'naïve café — déjà vu',
  'a a a b',
]


class Pieces:
  """SentencePiece with bytes for characters that it does not know, as Llama's."""

  def __init__(self, folder):
    path = folder / 'lines'
    path.write_text('\n'.join(LINES[:2]))
    sentencepiece.SentencePieceTrainer.train(
      input=str(path), model_prefix=str(folder / 'm'), vocab_size=300, byte_fallback=True,
      model_type='bpe', character_coverage=1.0, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / 'm.model'))
    self.encode, self.decode = model.encode, model.decode


class ByteLevel:
  """Byte-level BPE, as GPT-2's and Llama 3's."""

  def __init__(self, folder):
    model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer, model.decoder = (
      pre_tokenizers.ByteLevel(add_prefix_space=False),
      decoders.ByteLevel(),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    model.train_from_iterator(
      LINES[:2], trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet)
    )
    self.encode, self.decode = lambda text: model.encode(text).ids, model.decode


class Counted:
  """Returns how many ids have been decoded."""

  def __init__(self, tokenizer):
    self.tokenizer, self.ids = tokenizer, 0

  def decode(self, ids):
    self.ids += len(ids)
    return self.tokenizer.decode(ids)


@pytest.mark.parametrize('kind', [Pieces, ByteLevel])
@pytest.mark.parametrize('seed', range(8))
def test_a_long_stream_is_the_text_that_one_reading_yields(kind, seed, tmp_path):
  """Blocks of 1 to 5 tokens cut words and characters. The reader forgets finished text many
  times."""
  tokenizer, chance = kind(tmp_path), random.Random(seed)
  context = tokenizer.encode(' '.join(LINES))
  rest = [token for _ in range(60) for token in tokenizer.encode(' ' + chance.choice(LINES))]
  ids, counted = context + rest, Counted(tokenizer)
  reader, pieces = Reader(counted, context), []
  while rest:
    size = chance.randint(1, 5)
    pieces.append(reader.add(rest[:size]))
    rest = rest[size:]
  assert tokenizer.decode(context) + ''.join(pieces) + reader.finish() == tokenizer.decode(ids)
  assert len(ids) > 10 * FORGETS and counted.ids < 2 * FORGETS * len(pieces)


class FallingBack:
  """BPE that falls back to bytes: one wrong byte makes its neighbours wrong too."""

  def __init__(self):
    words = [f'<0x{byte:02X}>' for byte in range(256)] + ['a', 'b']
    vocab = {word: i for i, word in enumerate(words)}
    self.model = tokenizers.Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    self.model.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    self.model.add_special_tokens(['<end>'])
    self.decode = lambda ids: self.model.decode(list(ids), skip_special_tokens=True)
    self.pieces = lambda ids: [self.model.id_to_token(i) for i in ids]


def test_bytes_that_become_wrong_are_never_shown_right():
  tokenizer, random_ids = FallingBack(), random.Random(0)
  assert tokenizer.decode([0x6C]) == 'l' and tokenizer.decode([0x6C, 258, 0xFF]) == '\ufffd' * 2
  for _ in range(50):
    ids = random_ids.choices([0x6C, 0xC3, 0xA9, 0xFF, 256, 257, 258], k=12)
    reader = Reader(tokenizer, [])
    pieces = [reader.add(ids[at : at + 2]) for at in range(0, 12, 2)]
    assert ''.join([*pieces, reader.finish()]) == tokenizer.decode(ids)


class Chatting(FallingBack):
  """The same with its special tokens by name."""

  def __init__(self):
    super().__init__()
    self.special = {258: '<end>'}


A, B, END = 256, 257, 258
STOPS = [  # stop strings, ids, the text, the string that ended it, and how many ids were read
  (['<end>'], [A, END, B], 'a', '<end>', 2),
  (['<end>'], [0x41, END, B], 'A', '<end>', 2),  # a byte that waits
  (['<end>b'], [A, END, A, END, B, A], 'aa', '<end>b', 5),
  (['a<end>'], [B, A, A, END, A], 'ba', 'a<end>', 4),
  (['a<end>b'], [A, END, A, B], 'aab', None, 4),
  (['<end><end>'], [A, END, B, END, END, B], 'ab', '<end><end>', 5),
  (['<end>', 'ab'], [A, A, B, END], 'a', 'ab', 3),
  (['end>'], [A, END, B], 'ab', None, 3),  # a part of a token does not count
  (['a' * 99_999 + 'b'], [A] * 9, 'a' * 9, None, 9),
  ([], [A, END, B], 'ab', None, 3),
]


@pytest.mark.parametrize('size', [1, 2, 9])
@pytest.mark.parametrize(('stops', 'ids', 'text', 'stop', 'count'), STOPS)
def test_special_tokens_in_stop_strings(stops, ids, text, stop, count, size):
  reader = StopReader(Chatting(), [], stops)
  shown = ''
  for at in range(0, len(ids), size):
    shown += reader.add(ids[at : at + size])
    assert text.startswith(shown)
  assert (shown + reader.finish(), reader.stop, reader.count) == (text, stop, count)


class Cleaning:
  """Words with a space before each, and texts without the spaces before punctuation."""

  cleans = True
  words = ('a', '.', ',', "'", "n't", "'s", "'ve", 'n', '?')

  def decode(self, ids):
    return clean_up(''.join(f' {self.words[i]}' for i in ids))


@pytest.mark.parametrize('size', [1, 3])
def test_spaces_that_are_cleaned_are_not_shown_before(size):
  tokenizer, random_ids = Cleaning(), random.Random(1)
  assert tokenizer.decode([0, 4, 1, 0, 3, 0, 5]) == " an't. a'a's"
  for _ in range(50):
    ids = random_ids.choices(range(len(Cleaning.words)), k=12)
    reader, shown = Reader(tokenizer, []), ''
    for at in range(0, 12, size):
      shown += reader.add(ids[at : at + size])
      assert tokenizer.decode(ids).startswith(shown)
    assert shown + reader.finish() == tokenizer.decode(ids)
