"""Languages of translation models: a code finds the token, which is put at the right place."""

import dataclasses

import pytest

import fastdec as fd
from fastdec.hub.tokenizers.languages import Languages, find_languages
from fastdec.models.transformer import Transformer, TransformerConfig

M2M = ['__en__', '__de__']
NLLB = ['eng_Latn', 'deu_Latn', 'zho_Hans', 'zho_Hant']
MBART = ['en_XX', 'de_DE']
ENDED = Transformer(TransformerConfig(vocab_size=99, eos_ids=(2,), start_id=2))
OPEN = Transformer(TransformerConfig(vocab_size=99, eos_ids=(2,), start_id=0))


@dataclasses.dataclass
class Words:
  """Each word is an id, languages begin at 10, and the tokenizer's own end is 2."""

  languages: list[str]
  vocab_size = 20

  def pieces(self, ids):
    named = {10 + i: name for i, name in enumerate(self.languages)}
    return [named.get(i, f'w{i}') for i in ids]

  def encode(self, text, special=True):
    ids = {piece: i for i, piece in enumerate(self.pieces(range(self.vocab_size)))}
    return [ids[word] for word in text.split()] + [2] * special


@pytest.mark.parametrize(('languages', 'model', 'codes', 'ids', 'start', 'begin'), [
  (M2M, ENDED, ('en', 'de'), [10, 5, 2], None, 11),
  (M2M, ENDED, ('__en__', '__de__'), [10, 5, 2], None, 11),
  (NLLB, ENDED, ('eng_Latn', 'deu_Latn'), [10, 5, 2], None, 11),
  (NLLB, ENDED, ('en', 'deu'), [10, 5, 2], None, 11),
  (NLLB, ENDED, ('zho_Hant', None), [13, 5, 2], None, None),
  (MBART, ENDED, ('en', 'de'), [10, 5, 2], None, 11),  # mBART-50
  (MBART, OPEN, ('en', 'de'), [5, 2, 10], 11, None),
  (MBART, OPEN, (None, 'de_DE'), [5, 2], 11, None),
  (['<2de>', '<2fr>'], OPEN, (None, 'fr'), [11, 5, 2], None, None),
  (['<2de>', '<2fr>'], OPEN, ('de', 'fr'), [11, 5, 2], None, None),
  (['>>deu<<'], OPEN, (None, 'deu'), [10, 5, 2], None, None),
])  # fmt: skip
def test_languages_are_where_the_model_expects_them(languages, model, codes, ids, start, begin):
  tokenizer = Words(languages)
  found = find_languages(tokenizer, model, *codes)
  assert found.encode(tokenizer, 'w5') == ids
  assert (found.start, found.begin) == (start, begin)


def test_without_languages_a_text_is_read_as_the_tokenizer_reads_it():
  assert Languages().encode(Words(M2M), 'w5 w6') == [5, 6, 2]


@pytest.mark.parametrize(('languages', 'code', 'message'), [
  (M2M, 'xx', "the tokenizer knows no language 'xx': it knows __en__, __de__$"),
  ([f'__a{x}__' for x in 'bcdefghi'], 'de', r'__ab__, .*'),
  (NLLB, 'zh', "language 'zh' may be zho_Hans or zho_Hant: give one of them"),
  ([], 'de', "has no tokens of languages, such as 'de': leave out source and target"),
])  # fmt: skip
def test_an_unknown_language_is_one_sentence(languages, code, message):
  with pytest.raises(fd.UserError, match=message):
    find_languages(Words(languages), ENDED, code, None)
