"""BLEU counted by hand, and Moses's tokenisation on real text."""

import gzip
import unicodedata
from pathlib import Path

import pytest
import sacremoses

from fastdec.errors import UserError
from fastdec.evaluation import bleu
from fastdec.evaluation.bleu import corpus_bleu, split_compound_bleu
from fastdec.evaluation.languages import code_of


def test_a_perfect_corpus_has_bleu_100_and_the_signature_names_the_tokeniser():
  lines = ['The cat sat on the mat.', 'It was the best of times.']
  bleu = corpus_bleu(lines, lines)
  assert (
    bleu.score == pytest.approx(100)
    and 'tok:13a' in bleu.signature
    and 'version:' in bleu.signature
  )


def test_bleu_is_of_the_corpus_and_not_a_mean_of_sentences():
  # 'a b c d e f g h' right, 'a b c d' wrong: 8 of 12 words, 7 of 10 pairs, 6 of 8 triples, 5 of 6
  # quadruples
  score = corpus_bleu(['a b c d e f g h', 'w x y z'], ['a b c d e f g h', 'a b c d']).score
  assert score == pytest.approx(100 * (8 / 12 * 7 / 10 * 6 / 8 * 5 / 6) ** 0.25)


def test_split_compounds_are_three_words():
  # das ist ein Text ##AT##-##AT## Datei hier, against ... Format hier: 6 of 7, 4 of 6, 3 of 5, 2 of
  # 4 n-grams
  score = split_compound_bleu(
    ['das ist ein Text-Datei hier'], ['das ist ein Text-Format hier']
  ).score
  assert score == pytest.approx(100 * (6 / 7 * 4 / 6 * 3 / 5 * 2 / 4) ** 0.25)


def test_punctuation_is_tokenised_and_abbreviations_are_not():
  # a b Dr. c rot . against a b Dr. c blau .: 5 of 6, 3 of 5, 2 of 4, 1 of 3 n-grams
  score = split_compound_bleu(['a b Dr. c rot.'], ['a b Dr. c blau.']).score
  assert score == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)


def test_short_output_is_punished_once_for_the_corpus():
  # 4 of 5 and 6 of 7 words, with every n-gram right: only the brevity penalty exp(1 - 12 / 10)
  score = split_compound_bleu(['a b c d', 'e f g h i j'], ['a b c d x', 'e f g h i j y']).score
  assert score == pytest.approx(100 * 2.718281828**-0.2)


def test_without_a_common_four_gram_it_is_nought_and_sacrebleu_is_not():
  pair = ['der Hund schläft dort'], ['der Hund schläft hier']
  assert split_compound_bleu(*pair).score == 0 and corpus_bleu(*pair).score > 0


def test_accents_count_alike_however_they_are_stored():
  """Files of macOS have letters and accents apart (NFD); the tokenizer writes one character."""
  line = 'Tôi yêu tiếng nước tôi từ khi mới ra đời'
  apart = unicodedata.normalize('NFD', line)
  assert apart != line
  for measure in (corpus_bleu, split_compound_bleu):
    there, back = measure([line], [apart]).score, measure([apart], [line]).score
    assert there == back == pytest.approx(100)


def test_of_adjoining_hyphens_the_script_splits_every_other_one(monkeypatch):
  scored = []
  monkeypatch.setattr(bleu, '_score', lambda metric, *sides: scored.extend(sides) or (0.0, '|'))
  line = 'A-B-C Nord-Süd-Achse -x'
  split_compound_bleu([line], [line])
  split = 'A ##AT##-##AT## B-C Nord ##AT##-##AT## Süd ##AT##-##AT## Achse -x'
  assert scored == [[split], [split]]


def test_signatures_tell_the_two_apart():
  pair = ['ein Hund'], ['ein Hund']
  ours, usual = split_compound_bleu(*pair).signature, corpus_bleu(*pair).signature
  assert f'|tok:moses-de-split-compounds|sacremoses:{sacremoses.__version__}|smooth:none|' in ours
  assert '|tok:13a|smooth:exp|' in usual


@pytest.mark.parametrize(('pair', 'message'), [
  ((['a'], ['a', 'b']), '1 hypotheses and 2 references'), (([], []), 'at least one'),
])  # fmt: skip
def test_what_cannot_be_scored_is_refused(pair, message: str):
  with pytest.raises(UserError, match=message):
    split_compound_bleu(*pair)


def test_real_text_is_tokenised_as_moses_did(shared: Path):
  """The stored tokenised file leaves ( ) : ; % attached to words; where it does not, all lines are
  the same."""
  read = lambda kind: gzip.decompress(
    (shared / f'data/wmt_en_de/newstest2014.{kind}.de.gz').read_bytes()
  ).decode()
  tokenizer = sacremoses.MosesTokenizer('de')
  detokenised, tokenised = (read(kind).split('\n')[:-1] for kind in ('detok', 'tok'))
  ours = [tokenizer.tokenize(line, return_str=True, escape=False) for line in detokenised]
  same = [our == line for our, line in zip(ours, tokenised, strict=True)]
  assert (len(same), sum(same)) == (2737, 2506)
  others = [line for line, is_same in zip(tokenised, same, strict=True) if not is_same]
  assert all(set(line) & set('():;%') for line in others)
  assert ours == [tokenizer.tokenize(line, return_str=True, escape=False) for line in tokenised]


def test_languages_without_spaces_are_not_one_word_a_sentence():
  """By 13a, a sentence that differs in one character has no word in common with its reference."""
  for language, tokenizer, reference in (
    ('zh', 'zh', '今天的火车晚点了十分钟。'),
    ('ja', 'char', '電車は十分遅れています。'),
  ):
    hypothesis = [reference[:-2] + reference[-1]]
    result = corpus_bleu(hypothesis, [reference], language)
    assert result.score > 70 and f'tok:{tokenizer}' in result.signature
    assert corpus_bleu(hypothesis, [reference], 'en').score < 30


@pytest.mark.parametrize('names, code', [
  ('zh zh-CN zh_TW ZH-Hans-CN zho zho_Hans chi cmn yue_Hant', 'zh'), ('ja ja-JP ja_XX jpn', 'ja'),
  ('th th-TH tha_Thai', 'th'), ('km km_KH khm_Khmr', 'km'), ('my mya bur', 'my'),
  ('ko ko-KR', 'ko'), ('de de-AT deu_Latn ger', 'de'), ('ceb ceb_Latn', 'ceb'),
])  # fmt: skip
def test_other_names_of_a_language_are_the_language(names: str, code: str):
  reference = '今天的火车晚点了十分钟。'
  pair = [reference[:-2] + reference[-1]], [reference]
  assert {code_of(name) for name in names.split()} == {code}
  assert len({corpus_bleu(*pair, name) for name in names.split()}) == 1


@pytest.mark.parametrize('name', ['jp', 'cn', 'chinese', 'zh CN', '日本語', '-', 'zh' * 5000])
def test_a_name_of_no_language_is_a_sentence(name: str):
  with pytest.raises(UserError, match='is not a language: give a code of ISO 639'):
    corpus_bleu(['a'], ['a'], name)
