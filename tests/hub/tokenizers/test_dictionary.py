"""fairseq's dictionaries: ids by line, and pieces that are joined."""

import pytest

from fastdec.data.text.packing import tokenise
from fastdec.hub.tokenizers.dictionary import Dictionary, DictionaryPair


@pytest.fixture
def pair(tmp_path):
  (tmp_path / 'en').write_text('the 9\nHun@@ 3\nd 2\nmadeupword0000 0\n', encoding='utf-8')
  (tmp_path / 'de').write_text('ein 7\nHun@@ 4\nd 2\nstraße 1\n\u2028 1\n', encoding='utf-8')
  return DictionaryPair.load(tmp_path / 'en', tmp_path / 'de')


def test_ids_follow_the_four_special_ones(pair):
  assert (len(pair.source), len(pair.target), pair.vocab_size) == (8, 9, 9)
  assert pair.encode(' the Hun@@ d\tbarks ') == [4, 5, 6, 3, 2]
  assert pair.encode('') == [2]
  assert pair.encode_lines(['the', 'd']) == [[4, 2], [6, 2]]


def test_special_words_in_a_text_do_not_become_special_ids(pair):
  assert pair.encode('<pad> </s> <s>') == [3, 3, 3, 2]


@pytest.mark.parametrize(
  ('ids', 'text'),
  [
    ([2, 4, 5, 6, 7, 2, 1, 1], 'ein Hund straße'),
    ([4, 3, 6], 'ein d'),
    ([4, 5], 'ein Hun'),  # as a block may end
    ([4, 400], 'ein'),
    ([], ''),
  ],
)
def test_decoding_leaves_special_ids_out_and_joins_pieces(pair, ids, text):
  assert pair.decode(ids) == text


def test_pieces_belong_to_the_requested_side(pair):
  assert pair.pieces([4, 2, 99]) == ['ein', '</s>', '<unk>']
  assert pair.source_pieces([4, 5, 1]) == ['the', 'Hun@@', '<pad>']


def test_pairs_are_tokenised_each_side_by_its_own_words(pair):
  tokens = tokenise([('the', 'ein'), ('the', '')], pair)
  assert tokens.source[0].tolist() == pair.source.encode('the') == pair.encode('the')
  assert [tokens.target[i].tolist() for i in range(2)] == [[4, 2], [2]]


def test_of_a_word_that_is_there_twice_the_last_counts(tmp_path):
  (tmp_path / 'twice').write_text('a 3\nb 2\na 1 #fairseq:overwrite\n')
  twice = Dictionary.load(tmp_path / 'twice')
  assert len(twice) == 7 and twice.encode('a b') == [6, 5, 2] and twice.decode([4, 6]) == 'a a'
