"""Parallel text as pairs of lines, from files, archives or a set that TFDS prepared.

Lines are read from their files, a few at a time, so that the text of WMT fits into memory. A text
is identified by a hash of its *content*: when a file has changed, `fastdec.data.text.caching` makes
its tokenizer and ids again.
"""

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from fastdec.data import prepared
from fastdec.data.text import embedded, wmt14
from fastdec.data.text.lines import LinePair, Lines, Pair, check_content, read_pairs
from fastdec.errors import UserError
from fastdec.files import PathLike

SPLITS = ('train', 'dev', 'test')
CHUNK = 10_000  # rows read at once from a set that TFDS prepared


@dataclasses.dataclass(frozen=True)
class TextData:
  """A source of parallel text.

  Fields:
    kind: 'embedded', the English-German corpus of `fastdec.data.text.embedded`; 'files'; or WMT14
      English-German (see `fastdec.data.text.wmt14`), from the original 'archives' or as prepared by
      'tfds'.
    train, dev, test: of kind 'files', the paths of source and target, () for a missing split. Line
      i of one translates line i of the other. Files that gzip, bzip2 or xz has packed are unpacked,
      and one in .sgm has segments.
    folder: of kind 'archives', their folder; of kind 'tfds', its data_dir ('': TFDS's default).
    source, target: the languages of WMT14: 'en' and 'de', or 'de' and 'en'.
    max_train: the most lines of training text to read (None: all).
  """

  kind: Literal['embedded', 'files', 'archives', 'tfds'] = 'embedded'
  train: tuple[str, ...] = ()
  dev: tuple[str, ...] = ()
  test: tuple[str, ...] = ()
  folder: str = ''
  source: str = 'en'
  target: str = 'de'
  max_train: int | None = None


class Corpus(NamedTuple):
  """Parallel text; `open_text` makes one.

  Fields:
    key: a hash of the content, and of max_train.
    counts: for each split, the number of pairs to read. `pairs` then leaves out those of train with
      an empty side.
    read: for each split, a function that reads the pairs with some indices, which ascend.
  """

  key: str
  counts: Mapping[str, int]
  read: Mapping[str, Callable[[Sequence[int]], Iterator[Pair]]]

  def pairs(self, split: str, sample: int | None = None) -> Iterator[Pair]:
    """Reads the (source, target) lines of a split in order, a few thousand at a time.

    Args:
      sample: the most pairs to read, always the same ones (None: all).

    Raises:
      UserError: the split does not exist, or the text is damaged.
    """
    if split not in self.counts:
      raise UserError(f"the text has no split '{split}': it has {', '.join(self.counts)}")
    count = self.counts[split]
    chosen = range(count)
    if sample is not None and sample < count:
      chosen = np.sort(np.random.default_rng(0).choice(count, sample, replace=False)).tolist()
    for source, target in self.read[split](chosen):
      if split != 'train' or (source.strip() and target.strip()):
        yield source, target


def open_text(data: TextData, cache_dir: PathLike) -> Corpus:
  """Opens a text and checks it; reads a file once after each change.

  Lines are as in the files, without their ends. Pairs with an empty side stay in dev and test (an
  empty line is a sentence to translate) and are left out of train.

  Args:
    cache_dir: the folder that keeps the number of lines and the hash of each file.

  Raises:
    UserError: a file is missing, empty or not UTF-8, or source and target differ in length; TFDS
      has not prepared the set, or it is damaged.
  """
  kind = {'files': _files, 'archives': _archives, 'embedded': _embedded, 'tfds': _tfds}[data.kind]
  key, counts, read = kind(data, pathlib.Path(cache_dir))
  if 'train' in counts and data.max_train is not None:
    counts = {**counts, 'train': min(counts['train'], data.max_train)}
  return Corpus(hashlib.sha256(f'{key} {data.max_train}'.encode()).hexdigest(), counts, read)


def load_pairs(data: TextData, split: str, cache_dir: PathLike) -> list[Pair]:
  """Reads all (source, target) lines of a split; see `open_text` and `Corpus.pairs`."""
  return list(open_text(data, cache_dir).pairs(split))


def _embedded(data: TextData, cache: pathlib.Path) -> Corpus:
  if data.train or data.dev or data.test:
    raise UserError(
      "text of kind 'embedded' was given files: set kind to 'files', or leave the paths out"
    )
  return _read_files({split: [embedded.in_archive(split)] for split in SPLITS}, cache)


def _archives(data: TextData, cache: pathlib.Path) -> Corpus:
  return _read_files(wmt14.in_archives(data.folder, data.source, data.target), cache)


def _files(data: TextData, cache: pathlib.Path) -> Corpus:
  splits = {}
  for split in SPLITS:
    if paths := getattr(data, split):
      if len(paths) != 2:
        raise UserError(
          f'{split} names {len(paths)} files ({", ".join(paths)}): give two, source and target'
        )
      splits[split] = [(Lines(paths[0]), Lines(paths[1]))]
  if not splits:
    raise UserError(
      "text of kind 'files' names no files: set train, dev and test to two paths each"
    )
  return _read_files(splits, cache)


def _read_files(splits: Mapping[str, Sequence[LinePair]], cache: pathlib.Path) -> Corpus:
  key, counts = check_content(splits, cache / 'scans')
  read = {split: functools.partial(_pick, files) for split, files in splits.items()}
  return Corpus(key, counts, read)


def _pick(files: Sequence[LinePair], indices: Sequence[int]) -> Iterator[Pair]:
  """Yields the pairs with these indices, which ascend; reads nothing after the last of them."""
  wanted = iter(indices)
  following = next(wanted, None)
  for index, pair in enumerate(read_pairs(files)):
    if index == following:
      yield pair
      following = next(wanted, None)
    if following is None:
      return


def _tfds(data: TextData, cache: pathlib.Path) -> Corpus:
  key, folder, rows = wmt14.from_tfds(data.folder, data.source, data.target)
  read, counts = {}, {}
  for split, source in rows.items():
    read[split] = functools.partial(_read_rows, source, folder, data)
    counts[split] = len(source)
    # Read a pair, so that damaged files are noticed now.
    next(read[split](range(min(len(source), 1))), None)
  return Corpus(key, counts, read)


def _read_rows(
  rows: Any, folder: pathlib.Path, data: TextData, indices: Sequence[int]
) -> Iterator[Pair]:
  """Reads the pairs with these indices from a data source of TFDS."""
  for start in range(0, len(indices), CHUNK):
    chunk = indices[start : start + CHUNK]
    with prepared.damage(folder, 'text'):
      try:
        read = rows.__getitems__(chunk)
      except TypeError:  # the data sources of tfds.testing.mock_data can only be read one by one
        read = [rows[i] for i in chunk]
    for row in read:
      source, target = row[data.source], row[data.target]
      if isinstance(source, bytes):
        source, target = source.decode(), target.decode()
      yield source, target
