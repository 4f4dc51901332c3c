"""Parallel text: from files or from the embedded corpus to pairs of lines, by way of a TFDS set on disk.

Every kind of text is a TFDS builder that prepares its splits `train`, `dev` and `test` once, as array records
under a cache folder, and is read back by random access, without TensorFlow. The prepared set lies in a folder
named after the *content* it was made from, so changed files are a new set. Preparation is safe to kill, and
safe to run twice at once.
"""

import contextlib
import dataclasses
import fcntl
import functools
import gzip
import hashlib
import io
import os
import pathlib
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import tensorflow_datasets as tfds
from google.protobuf import json_format

from fastdec.errors import UserError

Pair = tuple[str, str]
ReadPairs = Callable[[], Iterable[Pair]]
PathLike = str | os.PathLike[str]
SPLITS = ('train', 'dev', 'test')


@dataclasses.dataclass(frozen=True)
class TextData:
  """Where parallel text comes from.

  Fields:
    kind: 'embedded', the English-German corpus of `fastdec.data.embedded`, or 'files'.
    train, dev, test: of kind 'files', the paths of source and target: line i of one translates line i of the
      other; plain, or gzipped where the name ends in .gz; () for a split that there is not.
    max_train: reads at most so many training pairs (None: all).
  """
  kind: Literal['embedded', 'files'] = 'embedded'
  train: tuple[str, ...] = ()
  dev: tuple[str, ...] = ()
  test: tuple[str, ...] = ()
  max_train: int | None = None


class PairBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Writes pairs of lines, in order. One subclass for each kind of text, so that each has a name on disk.

  Args:
    splits: for each split, what yields its pairs.
  """

  VERSION = tfds.core.Version('1.0.0')
  code_path = None  # else TFDS looks beside it for checksums of downloads, by a package it does not require

  def __init__(self, splits: Mapping[str, ReadPairs], data_dir: PathLike):
    self._splits = splits
    super().__init__(data_dir=data_dir)

  def _info(self) -> tfds.core.DatasetInfo:
    features = tfds.features.FeaturesDict({'source': tfds.features.Text(), 'target': tfds.features.Text()})
    return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

  def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
    return {split: self._generate_examples(read) for split, read in self._splits.items()}

  def _generate_examples(self, read: ReadPairs) -> Iterator[tuple[int, dict[str, str]]]:
    for index, (source, target) in enumerate(read()):
      yield index, {'source': source, 'target': target}


class FileText(PairBuilder, skip_registration=True):
  """Pairs from text files."""


class EmbeddedText(PairBuilder, skip_registration=True):
  """The corpus that comes with the package."""


class _Text(NamedTuple):
  """A kind of text, ready to be prepared: its builder, a hash of its content, and what reads each split."""
  builder: type[PairBuilder]
  key: str
  splits: Mapping[str, ReadPairs]


def load_pairs(data: TextData, split: str, cache_dir: PathLike) -> list[Pair]:
  """The (source, target) lines of a split; the first call checks the text and prepares it under `cache_dir`.

  Lines are as in the files, without their ends. Pairs with an empty side stay in dev and test (an empty line
  is a sentence to translate) and are left out of train.

  Raises:
    UserError: an unknown split, a missing or empty file, files of different lengths, text that is not UTF-8;
      a cache folder that cannot be written, or is damaged.
  """
  text = {'files': _file_text, 'embedded': _embedded_text}[data.kind](data)
  if split not in text.splits:
    raise UserError(f"the text has no split '{split}': it has {', '.join(text.splits)}")
  folder = pathlib.Path(cache_dir) / text.key[:16]
  try:
    source = _prepared(text, folder).as_data_source(split)
    count = len(source)
    if split == 'train' and data.max_train is not None:
      count = min(count, data.max_train)
    return [(row['source'].decode(), row['target'].decode()) for row in source.__getitems__(range(count))]
  except (RuntimeError, json_format.ParseError) as error:  # what array_record and TFDS say of damaged files
    raise UserError(f'the prepared text {folder} is damaged: remove the folder, it will be made again') from error


def _prepared(text: _Text, folder: pathlib.Path) -> PairBuilder:
  """The builder with its set on disk; TFDS writes to a folder named incomplete, and renames it at the end."""
  builder = text.builder(text.splits, folder)
  if builder.data_path.exists():
    return builder
  try:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'lock').touch()
  except OSError as error:
    raise UserError(f'cannot keep prepared text in {folder} ({error.strerror}): give another folder') from None
  with open(folder / 'lock', 'w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)  # the system lets go of it when a process is killed
    for leftover in folder.glob('*/incomplete.*'):
      shutil.rmtree(leftover)
    builder = text.builder(text.splits, folder)
    if not builder.data_path.exists():
      tfds.disable_progress_bar()
      with contextlib.redirect_stdout(io.StringIO()):  # TFDS announces a download
        builder.download_and_prepare(file_format='array_record')
  return builder


def _embedded_text(data: TextData) -> _Text:
  if data.train or data.dev or data.test:
    raise UserError("text of kind 'embedded' was given files: set kind to 'files', or leave the paths out")
  from fastdec.data import embedded  # Babel's data takes a second to load

  splits = {split: functools.partial(embedded.generate, split) for split in SPLITS}
  return _Text(EmbeddedText, embedded.content_key(), splits)


def _file_text(data: TextData) -> _Text:
  """Checks all files before anything is prepared."""
  digest = hashlib.sha256()
  splits = {}
  for split in SPLITS:
    paths = getattr(data, split)
    if not paths:
      continue
    if len(paths) != 2:
      raise UserError(f'{split} names {len(paths)} files ({", ".join(paths)}): give two, source and target')
    scans = [_scan(path) for path in paths]
    if scans[0].lines != scans[1].lines:
      counts = ' and '.join(f'{path} has {scan.lines} lines' for path, scan in zip(paths, scans, strict=True))
      raise UserError(f'{counts}: give files whose lines translate each other, one by one')
    digest.update(f'{split} {scans[0].digest} {scans[1].digest}\n'.encode())
    splits[split] = functools.partial(_read, *paths, keep_empty=split != 'train')
  if not splits:
    raise UserError("text of kind 'files' names no files: set train, dev and test to two paths each")
  return _Text(FileText, digest.hexdigest(), splits)


@dataclasses.dataclass(frozen=True)
class _Scan:
  """What one pass over a file finds: number of lines, sha256 of its text."""
  lines: int
  digest: str


def _scan(path: str) -> _Scan:
  """Reads a whole file once, so that what is wrong with it shows before any work."""
  digest, lines, content = hashlib.sha256(), 0, False
  try:
    for line in _lines(path):
      lines += 1
      line.decode()
      digest.update(line + b'\n')
      content = content or bool(line.strip())
  except UnicodeDecodeError as error:
    raise UserError(f'line {lines} of {path} is not UTF-8 ({error.reason}): convert the file') from error
  except (OSError, EOFError, zlib.error) as error:
    reason = getattr(error, 'strerror', None) or error
    raise UserError(f'cannot read {path} ({reason}): give a text file, or a gzipped one named .gz') from error
  if not content:
    raise UserError(f'the text file {path} is empty: give a file with a sentence on each line')
  return _Scan(lines, digest.hexdigest())


def _lines(path: str) -> Iterator[bytes]:
  """Lines without their ends; only a newline ends a line, as in the tools that counted them."""
  opener = gzip.open if path.endswith('.gz') else open
  with opener(path, 'rb') as file:
    for line in file:
      yield line.removesuffix(b'\n').removesuffix(b'\r')


def _read(source_path: str, target_path: str, keep_empty: bool) -> Iterator[Pair]:
  for source, target in zip(_lines(source_path), _lines(target_path), strict=True):
    if keep_empty or (source.strip() and target.strip()):
      yield source.decode(), target.decode()
