"""WMT14 English-German (Bojar et al. 2014), of Stern et al. 2018 and Vaswani et al. 2017.

  train  Europarl v7, Common Crawl, News Commentary v9   4.5 million pairs
  dev    newstest2013                                    3,000
  test   newstest2014                                    3,003

There are two ways to get it:

  prepared by TFDS, which needs TensorFlow, once:
    tfds build wmt14_translate/de-en --file_format=array_record
  the original archives, without TensorFlow:
    https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz
    https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz
    https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz
    https://data.statmt.org/wmt19/translation-task/dev.tgz

TFDS shuffles the training pairs, and does not decode entities (&amp;) in newstest2014. From the
archives, pairs come in order and without entities.
"""

import pathlib
from typing import Any

from fastdec import extras
from fastdec.data import prepared
from fastdec.data.text.lines import LinePair, Lines
from fastdec.errors import UserError

NAME = 'wmt14_translate/de-en'
COUNTS = {'train': 4_500_000, 'dev': 3000, 'test': 3003}  # pairs, those of train about
TOKENS = 30  # of a sentence: 116 million English words (Luong et al. 2015), each about 1.2 pieces
DOWNLOAD = 1_695_017_123  # bytes of the archives
SPLITS = {'train': 'train', 'dev': 'validation', 'test': 'test'}  # our names: those of TFDS
ARCHIVES = {  # for each split: archives, each with its German file and its English one
  'train': (
    (
      'training-parallel-europarl-v7.tgz',
      'training/europarl-v7.de-en.de',
      'training/europarl-v7.de-en.en',
    ),
    ('training-parallel-commoncrawl.tgz', 'commoncrawl.de-en.de', 'commoncrawl.de-en.en'),
    (
      'training-parallel-nc-v9.tgz',
      'training/news-commentary-v9.de-en.de',
      'training/news-commentary-v9.de-en.en',
    ),
  ),
  'dev': (('dev.tgz', 'dev/newstest2013.de', 'dev/newstest2013.en'),),
  'test': (('dev.tgz', 'dev/newstest2014-deen-src.de.sgm', 'dev/newstest2014-deen-ref.en.sgm'),),
}


def in_archives(folder: str, source: str, target: str) -> dict[str, list[LinePair]]:
  """Finds the lines of each split in the archives of a folder.

  Raises:
    UserError: an archive is missing, or the languages are not English and German.
  """
  _check_languages(source, target)
  names = dict.fromkeys(archive for parts in ARCHIVES.values() for archive, _, _ in parts)
  if missing := [name for name in names if not (pathlib.Path(folder) / name).is_file()]:
    raise UserError(
      f'the folder {folder} lacks {", ".join(missing)}: put the archives of WMT14'
      ' there, from statmt.org'
    )
  splits = {}
  for split, parts in ARCHIVES.items():
    splits[split] = []
    for archive, *members in parts:
      pair = [Lines(str(pathlib.Path(folder) / archive), member) for member in members]
      if source == 'en':
        pair.reverse()  # German comes first in the table
      splits[split].append(tuple(pair))
  return splits


def from_tfds(folder: str, source: str, target: str) -> tuple[str, pathlib.Path, dict[str, Any]]:
  """Opens the set that TFDS prepared under a folder ('': its own).

  Returns:
    A hash of the set, its folder, and the data source of each split; rows have 'de' and 'en'.

  Raises:
    UserError: it is not prepared there as array records, or the languages are not English and
      German.
  """
  with extras.explained():
    from tensorflow_datasets.translate import wmt14  # noqa: F401  registers the set
  _check_languages(source, target)
  return prepared.from_tfds(NAME, folder, SPLITS, ', or give the archives with kind=archives')


def _check_languages(source: str, target: str) -> None:
  if {source, target} != {'en', 'de'}:
    raise UserError(
      f"WMT14 is not available from '{source}' to '{target}': give source and target, en and de"
    )
