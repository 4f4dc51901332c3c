"""Parallel text: what comes back is what the files say, prepared once for each content."""

import dataclasses
import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from fastdec.data.text import corpus, lines
from fastdec.data.text.corpus import SPLITS, TextData, load_pairs, open_text
from fastdec.errors import UserError

SOURCE, TARGET = 'one\n\n three \xa0three\r\nfour', 'eins\n\ndrei drei\n\n'


@pytest.fixture
def data(tmp_path: Path) -> TextData:
  """The same two files for every split, the target gzipped."""
  (tmp_path / 'source.txt').write_bytes(SOURCE.encode())
  (tmp_path / 'target.txt.gz').write_bytes(gzip.compress(TARGET.encode()))
  paths = str(tmp_path / 'source.txt'), str(tmp_path / 'target.txt.gz')
  return TextData(kind='files', train=paths, dev=paths, test=paths)


def prepared(cache: Path) -> list[Path]:
  return list(cache.glob('*/file_text/1.0.0/dataset_info.json'))


def test_lines_come_back_in_order_as_they_are_and_empty_ones_stay_in_dev(data: TextData, tmp_path: Path):
  pairs = [('one', 'eins'), ('', ''), (' three \xa0three', 'drei drei'), ('four', '')]
  assert load_pairs(data, 'dev', tmp_path / 'cache') == load_pairs(data, 'test', tmp_path / 'cache') == pairs


def test_pairs_with_an_empty_side_are_left_out_of_train(data: TextData, tmp_path: Path):
  pairs = [('one', 'eins'), (' three \xa0three', 'drei drei')]
  assert load_pairs(data, 'train', tmp_path / 'cache') == pairs
  limited = dataclasses.replace(data, max_train=1)
  assert load_pairs(limited, 'train', tmp_path / 'cache') == pairs[:1]
  assert len(load_pairs(limited, 'dev', tmp_path / 'cache')) == 4
  assert len(prepared(tmp_path / 'cache')) == 1


def test_changed_files_are_prepared_anew(data: TextData, tmp_path: Path):
  load_pairs(data, 'train', tmp_path / 'cache')
  (tmp_path / 'source.txt').write_text(SOURCE.replace('one', 'ONE'))
  assert load_pairs(data, 'train', tmp_path / 'cache')[0] == ('ONE', 'eins')
  assert len(prepared(tmp_path / 'cache')) == 2


def test_what_a_killed_preparation_left_is_removed(data: TextData, tmp_path: Path):
  load_pairs(data, 'train', tmp_path / 'cache')
  complete = prepared(tmp_path / 'cache')[0].parent
  complete.rename(complete.with_name('incomplete.ABCDEF_1.0.0'))
  assert len(load_pairs(data, 'train', tmp_path / 'cache')) == 2
  assert [folder.name for folder in complete.parent.iterdir()] == ['1.0.0']


@pytest.mark.slow
def test_processes_that_prepare_at_once_all_get_the_pairs(data: TextData, tmp_path: Path):
  call = f'load_pairs({data!r}, "dev", {str(tmp_path / "cache")!r})'
  command = sys.executable, '-c', f'from fastdec.data.text.corpus import *; print(len({call}))'
  runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
  assert [run.communicate()[0] for run in runs] == ['4\n'] * 3
  assert len(prepared(tmp_path / 'cache')) == 1


@pytest.mark.parametrize(
  ('source', 'message'),
  [
    (None, 'cannot read .*source.txt .No such file'),
    (b'', 'source.txt is empty'),
    (b'\n \n\n\n', 'source.txt is empty'),
    (b'one\ntwo\n', 'source.txt has 2 lines and .*target.txt.gz has 4 lines'),
    (b'one\ntwo\n\xff\n', 'line 3 of .*source.txt is not UTF-8'),
  ],
)
def test_bad_files_are_refused_before_anything_is_prepared(data: TextData, tmp_path: Path, source, message):
  (tmp_path / 'source.txt').unlink()
  if source is not None:
    (tmp_path / 'source.txt').write_bytes(source)
  with pytest.raises(UserError, match=message):
    load_pairs(data, 'train', tmp_path / 'cache')
  assert not (tmp_path / 'cache').exists()


@pytest.mark.parametrize('damage', [lambda packed: packed[:-9], lambda packed: b'plain text'])
def test_a_damaged_archive_is_refused(data: TextData, tmp_path: Path, damage):
  archive = tmp_path / 'target.txt.gz'
  archive.write_bytes(damage(archive.read_bytes()))
  with pytest.raises(UserError, match=r'cannot read .*target.txt.gz'):
    load_pairs(data, 'train', tmp_path / 'cache')


@pytest.mark.parametrize(
  ('data', 'split', 'message'),
  [
    (TextData(kind='files'), 'train', 'names no files'),
    (TextData(kind='files', train=('only.en',)), 'train', 'train names 1 files'),
    (TextData(kind='embedded', dev=('a', 'b')), 'dev', "'embedded' was given files"),
    (TextData(), 'valid', "no split 'valid': it has train, dev, test"),
  ],
)
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


def test_real_wmt_text_comes_back_whole(shared: Path, tmp_path: Path):
  path = lambda name, language: str(shared / 'data' / 'wmt_en_de' / f'{name}.{language}.gz')
  both = lambda name: (path(name, 'en'), path(name, 'de'))
  names = {'train': 'train10k.detok', 'dev': 'newstest2012.detok', 'test': 'newstest2014.detok'}
  data = TextData(kind='files', **{split: both(name) for split, name in names.items()})
  for split, count in (('train', 10_000), ('dev', 3_000), ('test', 2_737)):
    pairs = load_pairs(data, split, tmp_path)
    sides = (gzip.decompress(Path(path).read_bytes()).decode().split('\n')[:-1] for path in both(names[split]))
    assert len(pairs) == count and pairs == list(zip(*sides, strict=True))


def test_opening_prepared_text_reads_no_file_and_one_pair_of_a_split(data: TextData, tmp_path: Path, monkeypatch):
  monkeypatch.setattr(lines, 'RACY', -1.0)
  read, rows_read = corpus._read, []
  first = open_text(data, tmp_path / 'cache')
  monkeypatch.setattr(lines.Lines, '__iter__', lambda self: pytest.fail(f'{self} was read again'))
  monkeypatch.setattr(corpus, '_read', lambda rows, which: rows_read.append(len(which)) or read(rows, which))
  again = open_text(data, tmp_path / 'cache')
  assert (again.key, again.counts) == (first.key, first.counts) == (first.key, {'train': 2, 'dev': 4, 'test': 4})
  assert rows_read == [1, 1, 1]


def test_a_sample_is_in_order_and_always_the_same(data: TextData, tmp_path: Path):
  corpus = open_text(data, tmp_path / 'cache')
  every = list(corpus.pairs('dev'))
  sample = list(corpus.pairs('dev', 2))
  assert len(sample) == 2 and sample == list(corpus.pairs('dev', 2)) == [pair for pair in every if pair in sample]
  assert list(corpus.pairs('dev', 4)) == list(corpus.pairs('dev', 9)) == every
