"""The tokenizer and the ids of a corpus are made once for each text, vocabulary and length."""

from pathlib import Path

import pytest

from fastdec.data.text import caching
from fastdec.data.text.caching import make_tokenizer, make_tokens
from fastdec.data.text.corpus import Corpus, TextData, open_text
from fastdec.data.text.sentencepiece import Tokenizer

LINES = 40


@pytest.fixture
def data(tmp_path: Path) -> TextData:
  """Forty pairs of a few words; line i has the number i."""
  for name, words in {'train.en': 'one two three', 'train.de': 'eins zwei drei'}.items():
    (tmp_path / name).write_text(''.join(f'{words} {i}\n' for i in range(LINES)))
  paths = str(tmp_path / 'train.en'), str(tmp_path / 'train.de')
  return TextData('files', train=paths, dev=paths)


@pytest.fixture
def corpus(data: TextData, tmp_path: Path) -> Corpus:
  return open_text(data, tmp_path / 'cache')


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch):
  """After unread(), reading pairs is an error."""
  return lambda: monkeypatch.setattr(
    Corpus, 'pairs', lambda *_: pytest.fail('the text was read again')
  )


def test_a_second_launch_reads_no_text(corpus: Corpus, tmp_path: Path, unread):
  learnt, path = make_tokenizer(corpus, 40, tmp_path)
  made = make_tokens(corpus, 'train', learnt, 20, tmp_path)
  unread()
  tokenizer, same = make_tokenizer(corpus, 40, tmp_path)
  assert tokenizer.model_proto == learnt.model_proto == path.read_bytes() and same == path
  tokens = make_tokens(corpus, 'train', tokenizer, 20, tmp_path)
  assert tokens.source.tokens.tolist() == made.source.tokens.tolist()


def test_the_ids_are_those_of_the_lines(corpus: Corpus, tmp_path: Path):
  tokenizer, _ = make_tokenizer(corpus, 40, tmp_path)
  tokens = make_tokens(corpus, 'dev', tokenizer, None, tmp_path)
  assert [tokens.target[i].tolist() for i in range(LINES)] == [
    [*tokenizer.encode(f'eins zwei drei {i}'), 1] for i in range(LINES)
  ]


def test_other_text_vocabulary_limit_or_length_has_a_file_of_its_own(
  data: TextData, corpus: Corpus, tmp_path: Path
):
  first, path = make_tokenizer(corpus, 40, tmp_path)
  limited = open_text(TextData('files', train=data.train, max_train=30), tmp_path / 'cache')
  Path(data.train[0]).write_text('other\n' * LINES)
  changed = open_text(data, tmp_path / 'cache')
  others = (corpus, 41), (limited, 40), (changed, 40)
  assert len({path, *(make_tokenizer(text, size, tmp_path)[1] for text, size in others)}) == 4
  for split, length in (('train', 20), ('train', None), ('train', 2), ('dev', 20)):
    make_tokens(corpus, split, first, length, tmp_path)
  make_tokens(limited, 'train', first, 20, tmp_path)
  make_tokens(corpus, 'train', make_tokenizer(corpus, 41, tmp_path)[0], 20, tmp_path)
  assert (
    len(list(tmp_path.glob('tokens-*-train.npy'))) == 5
    and len(list(tmp_path.glob('tokens-*-dev.npy'))) == 1
  )
  assert len(make_tokens(limited, 'train', first, 20, tmp_path)) == 30


@pytest.mark.parametrize('kind', ['tokenizer', 'tokens'])
def test_a_damaged_file_is_made_again_with_the_same_content(
  corpus: Corpus, tmp_path: Path, kind: str
):
  tokens = lambda: make_tokens(
    corpus, 'train', make_tokenizer(corpus, 40, tmp_path)[0], None, tmp_path
  )
  before = tokens().source.tokens.tolist()
  (path,) = tmp_path.glob(f'{kind}-*')
  whole = path.read_bytes()
  path.write_bytes(whole[: len(whole) // 2])
  assert tokens().source.tokens.tolist() == before and path.read_bytes() == whole


def test_of_much_text_a_fixed_sample_trains_the_tokenizer(
  corpus: Corpus, tmp_path: Path, monkeypatch
):
  learnt_from, train = [], Tokenizer.train

  def spy(lines, *rest):
    learnt_from.append(list(lines))
    return train(learnt_from[-1], *rest)

  monkeypatch.setattr(Tokenizer, 'train', spy)
  monkeypatch.setattr(caching, 'SAMPLE', 25)
  models = [make_tokenizer(corpus, 30, tmp_path / name)[0].model_proto for name in 'ab']
  assert (
    models[0] == models[1] and learnt_from[0] == learnt_from[1] and len(learnt_from[0]) == 2 * 25
  )
  numbers = [int(line.split()[-1]) for line in learnt_from[0][::2]]
  assert numbers == sorted(set(numbers)) and numbers[-1] >= 25
