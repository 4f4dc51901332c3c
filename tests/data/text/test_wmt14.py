"""Reads small versions of WMT14: archives with the real names and layout, a set that TFDS prepared,
and TFDS's mocked data."""

import dataclasses
from pathlib import Path

import pytest
import tensorflow_datasets as tfds

from fastdec.data.text import wmt14
from fastdec.data.text.corpus import SPLITS, TextData, load_pairs, open_text
from fastdec.errors import UserError
from tests.data.text.test_lines import archive

EXPECTED = {
  'train': [('europarl 1', 'Europarl 1'), ('crawl 1', 'Netz 1'), ('crawl 3', 'Netz 3'),
    ('news 1', 'Nachricht 1')],
  'dev': [('dev 1', 'Entwicklung 1'), ('dev 2', 'Entwicklung 2')],
  'test': [('R&D 1', 'F&E 1'), ('test 2', 'Prüfung 2')],
}  # fmt: skip


def sgm(kind: str, *segments: str) -> bytes:
  numbered = ''.join(
    f'<seg id="{i}">{segment}</seg>\n' for i, segment in enumerate(segments, start=1)
  )
  text = f'<{kind} setid="newstest2014">\n<doc docid="1">\n<p>\n{numbered}</p>\n</doc>\n</{kind}>\n'
  return text.encode()


@pytest.fixture
def archives(tmp_path: Path) -> TextData:
  """The four archives, with other languages and other sets in them, as in the real ones."""
  folder = tmp_path / 'archives'
  folder.mkdir()
  europarl, news = 'training/europarl-v7', 'training/news-commentary-v9'
  archive(
    folder / 'training-parallel-europarl-v7.tgz',
    {
      f'{europarl}.cs-en.cs': b'x\n',
      f'{europarl}.cs-en.en': b'x\n',
      f'{europarl}.de-en.de': b'Europarl 1\n',
      f'{europarl}.de-en.en': b'europarl 1\n',
    },
  )
  archive(
    folder / 'training-parallel-commoncrawl.tgz',
    {
      'commoncrawl.cs-en.annotation': b'x\n',
      'commoncrawl.de-en.de': b'Netz 1\n\nNetz 3\n',
      'commoncrawl.de-en.en': b'crawl 1\ncrawl 2\ncrawl 3\n',
      'commoncrawl.fr-en.en': b'x\n',
    },
  )
  archive(
    folder / 'training-parallel-nc-v9.tgz',
    {f'{news}.de-en.de': b'Nachricht 1\r\n', f'{news}.de-en.en': b'news 1\r\n'},
  )
  archive(
    folder / 'dev.tgz',
    {
      'dev/newstest2012.de': b'x\n',
      'dev/newstest2013.de': b'Entwicklung 1\nEntwicklung 2\n',
      'dev/newstest2013.en': b'dev 1\ndev 2\n',
      'dev/newstest2014-deen-ref.en.sgm': sgm('refset', 'R&amp;D 1', ' test 2 '),
      'dev/newstest2014-deen-src.de.sgm': sgm('srcset', 'F&amp;E 1', 'Prüfung 2'),
    },
  )
  return TextData('archives', folder=str(folder))


def test_archives_give_all_their_pairs_in_order_english_first(archives: TextData, tmp_path: Path):
  assert {split: load_pairs(archives, split, tmp_path / 'cache') for split in SPLITS} == EXPECTED


def test_the_languages_may_be_the_other_way_round(archives: TextData, tmp_path: Path):
  turned = dataclasses.replace(archives, source='de', target='en')
  assert load_pairs(turned, 'test', tmp_path / 'cache') == [pair[::-1] for pair in EXPECTED['test']]
  with pytest.raises(UserError, match="from 'fr' to 'en': give source and target, en and de"):
    load_pairs(dataclasses.replace(archives, source='fr', target='en'), 'test', tmp_path / 'cache')


def test_missing_archives_are_named(archives: TextData, tmp_path: Path):
  for name in ('dev.tgz', 'training-parallel-nc-v9.tgz'):
    (Path(archives.folder) / name).unlink()
  with pytest.raises(
    UserError, match=r'lacks training-parallel-nc-v9.tgz, dev.tgz: put the archives'
  ):
    load_pairs(archives, 'dev', tmp_path / 'cache')


def test_an_archive_that_was_replaced_is_refused_before_any_work(
  archives: TextData, tmp_path: Path
):
  path = Path(archives.folder) / 'training-parallel-commoncrawl.tgz'
  path.write_bytes((Path(archives.folder) / 'dev.tgz').read_bytes())
  with pytest.raises(UserError, match=r'commoncrawl.tgz holds no file commoncrawl.de-en.en: give'):
    load_pairs(archives, 'dev', tmp_path / 'cache')


class Prepared(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Writes to disk what TFDS's own builder would, from the expected pairs."""

  name = 'wmt14_translate'
  VERSION = tfds.core.Version('1.0.0')
  BUILDER_CONFIGS = (tfds.core.BuilderConfig(name='de-en'),)
  code_path = None

  def _info(self):
    return tfds.core.DatasetInfo(builder=self, features=tfds.features.Translation(('de', 'en')))

  def _split_generators(self, dl_manager):
    return {
      wmt14.SPLITS[split]: self._generate_examples(pairs) for split, pairs in EXPECTED.items()
    }

  def _generate_examples(self, pairs):
    for i, (english, german) in enumerate([*pairs, (' ', 'leer')]):
      yield i, {'en': english, 'de': german}


@pytest.fixture
def prepared(tmp_path: Path) -> TextData:
  """A data_dir of TFDS with the set in it, an almost empty pair at the end of each split."""
  Prepared(data_dir=tmp_path / 'tfds').download_and_prepare(file_format='array_record')
  return TextData('tfds', folder=str(tmp_path / 'tfds'))


def test_a_set_that_tfds_prepared_is_read_where_it_is(prepared: TextData, tmp_path: Path):
  for split, pairs in EXPECTED.items():
    empty = [] if split == 'train' else [(' ', 'leer')]
    assert sorted(load_pairs(prepared, split, tmp_path / 'cache')) == sorted([*pairs, *empty])
  turned = dataclasses.replace(prepared, source='de', target='en')
  assert ('Europarl 1', 'europarl 1') in load_pairs(turned, 'train', tmp_path / 'cache')
  assert not (tmp_path / 'cache').exists()


def test_other_sets_of_tfds_have_other_keys(prepared: TextData, tmp_path: Path, monkeypatch):
  Prepared(data_dir=tmp_path / 'same').download_and_prepare(file_format='array_record')
  monkeypatch.setitem(EXPECTED, 'dev', [('dev 1', 'Entwicklung 1')])
  Prepared(data_dir=tmp_path / 'other').download_and_prepare(file_format='array_record')
  folders = prepared.folder, str(tmp_path / 'same'), str(tmp_path / 'other')
  keys = [open_text(TextData('tfds', folder=folder), tmp_path).key for folder in folders]
  assert keys[0] == keys[1] != keys[2]


def test_a_set_of_tfds_that_is_damaged_is_refused(prepared: TextData, tmp_path: Path):
  (path,) = Path(prepared.folder).rglob('*train.array_record*')
  path.write_bytes(path.read_bytes()[:-20])
  with pytest.raises(
    UserError, match=r'the prepared text .*de-en/1.0.0 is damaged: remove the folder'
  ):
    load_pairs(prepared, 'train', tmp_path / 'cache')


def test_mocked_data_comes_through(tmp_path: Path):
  with tfds.testing.mock_data(num_examples=5):
    pairs = {split: load_pairs(TextData('tfds'), split, tmp_path) for split in SPLITS}
  assert [len(pairs[split]) for split in SPLITS] == [5, 5, 5]
  assert all(isinstance(line, str) for pair in pairs['dev'] for line in pair)
