"""Parallel text: from files, archives or the embedded corpus to pairs of lines, by way of a TFDS set on disk.

Every kind of text is a TFDS builder that prepares its splits `train`, `dev` and `test` once, as array records
under a cache folder, and is read back by random access, without TensorFlow. The prepared set lies in a folder
named after the *content* it was made from, so changed files are a new set.
"""

import dataclasses
import functools
import hashlib
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from fastdec.data import builders
from fastdec.data.text import wmt14
from fastdec.data.text.lines import LinePair, Lines, Pair, content_key, read_pairs
from fastdec.errors import UserError

PathLike = str | os.PathLike[str]
SPLITS = ('train', 'dev', 'test')
CHUNK = 10_000  # pairs read at once


@dataclasses.dataclass(frozen=True)
class TextData:
  """Where parallel text comes from.

  Fields:
    kind: 'embedded', the English-German corpus of `fastdec.data.text.embedded`; 'files'; or WMT14 English-German (see
      `fastdec.data.text.wmt14`), from the original 'archives' or as prepared by 'tfds'.
    train, dev, test: of kind 'files', the paths of source and target: line i of one translates line i of the
      other; gzipped where the name ends in .gz, segments where it ends in .sgm; () for a split that there is not.
    folder: of kind 'archives', where they are; of kind 'tfds', its data_dir ('': TFDS's default).
    source, target: of WMT14, the languages: 'en' and 'de', or the other way round.
    max_train: reads at most so many training pairs (None: all).
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
  """Parallel text on disk, read by index; `open_text` makes one.

  Fields:
    key: a hash of the content, and of max_train.
    folder: where it is, for messages.
    rows: of each split, a TFDS data source.
    counts: of each split, how many of its rows are read.
    sides: the names that source and target have in a row.
  """

  key: str
  folder: pathlib.Path
  rows: Mapping[str, Any]
  counts: Mapping[str, int]
  sides: tuple[str, str]

  def pairs(self, split: str, sample: int | None = None) -> Iterator[Pair]:
    """The (source, target) lines of a split, in order, a few thousand in memory at a time.

    Args:
      sample: reads only so many rows where there are more, always the same ones.

    Raises:
      UserError: there is no such split, or the prepared text is damaged.
    """
    if split not in self.counts:
      raise UserError(f"the text has no split '{split}': it has {', '.join(self.counts)}")
    count = self.counts[split]
    chosen = range(count)
    if sample is not None and sample < count:
      chosen = np.sort(np.random.default_rng(0).choice(count, sample, replace=False)).tolist()
    for start in range(0, len(chosen), CHUNK):
      with builders.damage(self.folder, 'text'):
        rows = _read(self.rows[split], chosen[start : start + CHUNK])
      for row in rows:
        source, target = (_text(row[side]) for side in self.sides)
        if split != 'train' or (source.strip() and target.strip()):
          yield source, target


def open_text(data: TextData, cache_dir: PathLike) -> Corpus:
  """The text, checked, and prepared under `cache_dir` where that has not been done; else no more than opened.

  Lines are as in the files, without their ends. Pairs with an empty side stay in dev and test (an empty line
  is a sentence to translate) and are left out of train.

  Raises:
    UserError: a missing or empty file, files of different lengths, text that is not UTF-8; a cache folder that
      cannot be written, or is damaged; a set that TFDS has not prepared.
  """
  cache = pathlib.Path(cache_dir)
  if data.kind == 'tfds':
    key, folder, rows = wmt14.from_tfds(data.folder, data.source, data.target)
    sides = data.source, data.target
  else:
    builder, key, splits = {'files': _files, 'archives': _archives, 'embedded': _embedded}[data.kind](data, cache)
    folder, sides = cache / key[:16], ('source', 'target')
    with builders.damage(folder, 'text'):
      prepared = builders.prepared(builder, splits, folder)
      rows = {split: prepared.as_data_source(split) for split in splits}
  with builders.damage(folder, 'text'):
    counts = {split: len(source) for split, source in rows.items()}
    for split, count in counts.items():
      _read(rows[split], range(min(count, 1)))  # files are opened when they are read: damage shows now, not in hours
  if 'train' in counts and data.max_train is not None:
    counts['train'] = min(counts['train'], data.max_train)
  return Corpus(hashlib.sha256(f'{key} {data.max_train}'.encode()).hexdigest(), folder, rows, counts, sides)


def load_pairs(data: TextData, split: str, cache_dir: PathLike) -> list[Pair]:
  """All (source, target) lines of a split, in memory; see `open_text` and `Corpus.pairs`."""
  return list(open_text(data, cache_dir).pairs(split))


def _read(rows: Any, indices: Sequence[int]) -> Sequence[Any]:
  try:
    return rows.__getitems__(indices)
  except TypeError:  # the data sources of tfds.testing.mock_data can only be read one by one
    return [rows[i] for i in indices]


def _text(value: str | bytes) -> str:
  return value if isinstance(value, str) else value.decode()


_Kind = tuple[type[builders.PairBuilder], str, Mapping[str, builders.ReadRows]]  # with a hash of its content


def _embedded(data: TextData, cache: pathlib.Path) -> _Kind:
  if data.train or data.dev or data.test:
    raise UserError("text of kind 'embedded' was given files: set kind to 'files', or leave the paths out")
  from fastdec.data.text import embedded  # Babel's data takes a second to load

  splits = {split: functools.partial(embedded.generate, split) for split in SPLITS}
  return builders.EmbeddedText, embedded.content_key(), splits


def _archives(data: TextData, cache: pathlib.Path) -> _Kind:
  return _parallel(builders.ArchiveText, wmt14.in_archives(data.folder, data.source, data.target), cache)


def _files(data: TextData, cache: pathlib.Path) -> _Kind:
  splits = {}
  for split in SPLITS:
    if paths := getattr(data, split):
      if len(paths) != 2:
        raise UserError(f'{split} names {len(paths)} files ({", ".join(paths)}): give two, source and target')
      splits[split] = [(Lines(paths[0]), Lines(paths[1]))]
  if not splits:
    raise UserError("text of kind 'files' names no files: set train, dev and test to two paths each")
  return _parallel(builders.FileText, splits, cache)


def _parallel(
  builder: type[builders.PairBuilder], splits: Mapping[str, Sequence[LinePair]], cache: pathlib.Path
) -> _Kind:
  """Checks all files before anything is prepared."""
  key = content_key(splits, cache / 'scans')
  read = {split: functools.partial(read_pairs, files, split != 'train') for split, files in splits.items()}
  return builder, key, read
