"""The tokenizer: round trips, ids, determinism, and errors for bad input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdec.data.text.sentencepiece import Tokenizer, normalise
from fastdec.errors import UserError

LINES = [
  'Zwei junge Männer sind im Freien.',
  'Two young men are outside.',
  'Ein Kind lacht; a child laughs …',
  '',
]


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
  return Tokenizer.train(
    LINES, tmp_path_factory.mktemp('tokenizer') / 'tokenizer.model', vocab_size=60
  )


@given(st.text(alphabet='Zweijung Männersid.Th…'))
def test_text_of_known_characters_survives(tokenizer: Tokenizer, text: str):
  assert tokenizer.decode(tokenizer.encode(text)) == normalise(text)


def test_characters_that_sentencepiece_uses_itself_survive(tokenizer: Tokenizer, tmp_path):
  """A '▁' survives even if training has not seen it. Lines with '▅', '<pad>' or NUL are used in
  training."""
  assert tokenizer.decode(tokenizer.encode('Two ▁ men▁')) == 'Two ▁ men▁'
  text = 'the ▅ block, <pad> </s> <unk>, a \0 and ▁▁ x▁y'
  own = Tokenizer.train([text], tmp_path / 'own.model', vocab_size=50)
  assert own.decode(own.encode(text)) == text and 2 not in own.encode(text)
  assert not {0, 1} & set(own.encode(text)) and '▅' in ''.join(own.pieces(own.encode(text)))
  with pytest.raises(UserError, match='half a character'):
    own.encode_lines(['cut \ud83d'])


def test_long_lines_are_learnt_from(tmp_path):
  """SentencePiece itself would leave out lines of more than 4,192 bytes."""
  long = ['zebra quagga ξένος ' * 600, '漢字' * 3000]
  own = Tokenizer.train([*LINES * 5, *long], tmp_path / 'own.model', vocab_size=120)
  text = 'zebra quagga ξένος 漢字'
  assert own.decode(own.encode(text)) == text and 2 not in own.encode(text)
  assert Tokenizer.train(long, tmp_path / 'long.model', vocab_size=60).vocab_size == 60


def test_only_whitespace_and_composition_are_normalised():
  assert normalise(' 12,5\xa0%  von\t½ Ma\u0308nnern…\n') == '12,5 % von ½ Männern…'


def test_the_special_ids_are_pad_0_eos_1_unk_2(tokenizer: Tokenizer):
  assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.vocab_size) == (0, 1, 60)
  assert tokenizer.pieces([0, 1, 2]) == ['<pad>', '</s>', '<unk>']
  assert 2 in tokenizer.encode('漢')


def test_encoding_adds_no_end_and_never_a_special_id_for_their_names(tokenizer: Tokenizer):
  assert tokenizer.encode('') == []
  assert not {0, 1} & set(tokenizer.encode('<pad> men </s>'))


def test_decoding_stops_at_the_first_end_and_skips_padding(tokenizer: Tokenizer):
  men, child = tokenizer.encode('men'), tokenizer.encode('child')
  assert tokenizer.decode([0, *men, 0, *child, 1, *men]) == 'men child'
  assert tokenizer.decode([1, *men]) == ''


def test_pieces_show_where_words_begin(tokenizer: Tokenizer):
  assert ''.join(tokenizer.pieces(tokenizer.encode('a child'))) == '▁a▁child'


def test_a_loaded_model_is_the_trained_one_and_training_is_deterministic(
  tokenizer: Tokenizer, tmp_path
):
  again = Tokenizer.train(iter(LINES), tmp_path / 'deep' / 'again.model', vocab_size=60)
  loaded = Tokenizer.load(tmp_path / 'deep' / 'again.model')
  assert tokenizer.model_proto == again.model_proto == loaded.model_proto
  assert [file.name for file in (tmp_path / 'deep').iterdir()] == ['again.model']


@pytest.mark.parametrize(
  ('lines', 'vocab_size', 'message'),
  [
    (LINES, 5000, r'vocab_size=5000 .* has \d+ pieces'),
    (LINES, 6, r'vocab_size=6 .* training text need \d+'),
    (LINES, 0, 'vocab_size=0 is not possible'),
    (['', ' '], 60, 'needs at least one line of text'),
  ],
)
def test_impossible_vocabularies_are_refused_and_nothing_written(
  tmp_path, lines, vocab_size, message
):
  with pytest.raises(UserError, match=message):
    Tokenizer.train(lines, tmp_path / 'tokenizer.model', vocab_size)
  assert not list(tmp_path.iterdir())
