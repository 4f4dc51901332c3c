"""Parallel text is read exactly as it is in the files."""

import dataclasses
import gzip
from pathlib import Path

import pytest

from fastdec.data.text import lines
from fastdec.data.text.corpus import SPLITS, TextData, load_pairs, open_text
from fastdec.errors import UserError

SOURCE, TARGET = 'one\n\n three \xa0three\r\nfour', 'eins\n\ndrei drei\n\n'


@pytest.fixture
def data(tmp_path: Path) -> TextData:
  """Every split has the same two files; the target is gzipped."""
  (tmp_path / 'source.txt').write_bytes(SOURCE.encode())
  (tmp_path / 'target.txt.gz').write_bytes(gzip.compress(TARGET.encode()))
  paths = str(tmp_path / 'source.txt'), str(tmp_path / 'target.txt.gz')
  return TextData(kind='files', train=paths, dev=paths, test=paths)


def test_lines_come_back_in_order_as_they_are_and_empty_ones_stay_in_dev(
  data: TextData, tmp_path: Path
):
  pairs = [('one', 'eins'), ('', ''), (' three \xa0three', 'drei drei'), ('four', '')]
  assert (
    load_pairs(data, 'dev', tmp_path / 'cache')
    == load_pairs(data, 'test', tmp_path / 'cache')
    == pairs
  )


def test_pairs_with_an_empty_side_are_left_out_of_train(data: TextData, tmp_path: Path):
  pairs = [('one', 'eins'), (' three \xa0three', 'drei drei')]
  assert load_pairs(data, 'train', tmp_path / 'cache') == pairs
  limited = dataclasses.replace(data, max_train=1)
  assert load_pairs(limited, 'train', tmp_path / 'cache') == pairs[:1]
  assert len(load_pairs(limited, 'dev', tmp_path / 'cache')) == 4


def test_changed_files_are_a_different_text(data: TextData, tmp_path: Path):
  before = open_text(data, tmp_path / 'cache')
  assert open_text(data, tmp_path / 'elsewhere').key == before.key
  (tmp_path / 'source.txt').write_text(SOURCE.replace('one', 'first'))
  after = open_text(data, tmp_path / 'cache')
  assert after.key != before.key and next(after.pairs('train')) == ('first', 'eins')


def test_a_limit_reads_no_line_after_it(data: TextData, tmp_path: Path):
  limited = open_text(dataclasses.replace(data, max_train=1), tmp_path / 'cache')
  Path(data.train[0]).write_text('one\n')  # `zip` would find the files of different lengths
  assert list(limited.pairs('train')) == [('one', 'eins')]


@pytest.mark.parametrize(('source', 'message'), [
  (None, 'cannot read .*source.txt .No such file'),
  (b'one\ntwo\n', 'source.txt has 2 lines and .*target.txt.gz has 4 lines'),
  (b'one\ntwo\n\xff\n', 'line 3 of .*source.txt is not UTF-8'),
])  # fmt: skip
def test_bad_files_are_refused(data: TextData, tmp_path: Path, source, message):
  (tmp_path / 'source.txt').unlink()
  if source is not None:
    (tmp_path / 'source.txt').write_bytes(source)
  with pytest.raises(UserError, match=message):
    load_pairs(data, 'train', tmp_path / 'cache')


@pytest.mark.parametrize(('data', 'split', 'message'), [
  (TextData(kind='files'), 'train', 'names no files'),
  (TextData(kind='files', train=('only.en',)), 'train', 'train names 1 files'),
  (TextData(kind='embedded', dev=('a', 'b')), 'dev', "'embedded' was given files"),
  (TextData(), 'valid', "no split 'valid': it has train, dev, test"),
])  # fmt: skip
def test_descriptions_that_make_no_sense_are_refused(data, split, message, tmp_path: Path):
  with pytest.raises(UserError, match=message):
    load_pairs(data, split, tmp_path)


def test_multi30k_comes_back_whole(shared: Path, tmp_path: Path):
  path = lambda name, language: str(shared / 'data' / 'multi30k' / f'{name}.{language}.gz')
  both = lambda name: (path(name, 'en'), path(name, 'de'))
  data = TextData(kind='files', train=both('train'), dev=both('val'), test=both('test_2016_flickr'))
  assert [len(load_pairs(data, split, tmp_path)) for split in SPLITS] == [29_000, 1_014, 1_000]
  english = gzip.decompress(Path(data.test[0]).read_bytes()).decode().splitlines()
  assert [source for source, _ in load_pairs(data, 'test', tmp_path)] == english


def test_opening_text_again_reads_no_file(data: TextData, tmp_path: Path, monkeypatch):
  first = open_text(data, tmp_path / 'cache')
  monkeypatch.setattr(lines.Lines, '__iter__', lambda self: pytest.fail(f'{self} was read again'))
  again = open_text(data, tmp_path / 'cache')
  assert (
    (again.key, again.counts)
    == (first.key, first.counts)
    == (first.key, {'train': 4, 'dev': 4, 'test': 4})
  )


def test_a_sample_is_in_order_and_always_the_same(data: TextData, tmp_path: Path):
  corpus = open_text(data, tmp_path / 'cache')
  every = list(corpus.pairs('dev'))
  sample = list(corpus.pairs('dev', 2))
  assert len(sample) == 2 and sample == list(corpus.pairs('dev', 2)) == [
    pair for pair in every if pair in sample
  ]
  assert list(corpus.pairs('dev', 4)) == list(corpus.pairs('dev', 9)) == every
