"""Parallel text: from files or from the embedded corpus to pairs of lines, by way of a TFDS set on disk.

Every kind of text is a TFDS builder that prepares its splits `train`, `dev` and `test` once, as array records under a
cache folder, and is read back by random access, without TensorFlow. The prepared set is named after the *content* it
was made from, so changed files are a new set. Preparation is safe to kill and safe to run twice at once.
"""

import dataclasses
import fcntl
import gzip
import hashlib
import importlib.metadata
import os
import pathlib
import shutil
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import tensorflow_datasets as tfds

from fastdec.errors import UserError

Pair = tuple[str, str]
PathLike = str | os.PathLike[str]
SPLITS = ('train', 'dev', 'test')


@dataclasses.dataclass(frozen=True)
class TextData:
  """Where parallel text comes from.

  Fields:
    kind: 'embedded', the English-German corpus of `fastdec.data.embedded`, or 'files'.
    train, dev, test: of kind 'files', the paths of source and target, line i of one the translation of line i of the
      other; plain, or gzipped where they end in .gz; () for a split that there is not.
    max_train: reads at most so many training pairs (None: all).
  """
  kind: Literal['embedded', 'files'] = 'embedded'
  train: tuple[str, ...] = ()
  dev: tuple[str, ...] = ()
  test: tuple[str, ...] = ()
  max_train: int | None = None


class _PairBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Writes the pairs that its config names, in order. One subclass a kind, so that each has a name on disk."""

  VERSION = tfds.core.Version('1.0.0')

  def _info(self) -> tfds.core.DatasetInfo:
    features = tfds.features.FeaturesDict({'source': tfds.features.Text(), 'target': tfds.features.Text()})
    return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

  def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, str]]]]:
    return {split: self._generate_examples(read) for split, read in self.builder_config.splits.items()}

  def _generate_examples(self, read: Callable[[], Iterator[Pair]]) -> Iterator[tuple[int, dict[str, str]]]:
    for index, (source, target) in enumerate(read()):
      yield index, {'source': source, 'target': target}


class FileText(_PairBuilder, skip_registration=True):
  """Pairs of text files."""


class EmbeddedText(_PairBuilder, skip_registration=True):
  """The corpus that comes with the package."""


@dataclasses.dataclass(kw_only=True)
class _PairConfig(tfds.core.BuilderConfig):
  """Named after a hash of the content; `splits` says how to read each split."""
  splits: dict[str, Callable[[], Iterator[Pair]]]


def load_pairs(data: TextData, split: str, cache_dir: PathLike) -> list[Pair]:
  """The (source, target) lines of a split; the first call for a text checks it and prepares it under `cache_dir`.

  Lines are as in the files, without their ends. Pairs with an empty side stay in dev and test (an empty line is a
  sentence to translate) and are left out of train.

  Raises:
    UserError: an unknown split, a missing or empty file, files of different lengths, or text that is not UTF-8.
  """
  builder_class, config = {'files': _file_text, 'embedded': _embedded_text}[data.kind](data)
  if split not in config.splits:
    raise UserError(f"the text has no split '{split}': it has {', '.join(config.splits)}")
  source = _prepared(builder_class, config, cache_dir).as_data_source(split)
  count = len(source)
  if split == 'train' and data.max_train is not None:
    count = min(count, data.max_train)
  return [(row['source'].decode(), row['target'].decode()) for row in source.__getitems__(range(count))]


def _prepared(builder_class: Any, config: _PairConfig, cache_dir: PathLike) -> tfds.core.DatasetBuilder:
  """The builder with its set on disk. TFDS writes to a folder named incomplete and renames it at the end."""
  make = lambda: builder_class(data_dir=cache_dir, config=config)
  builder = make()
  if builder.data_path.exists():
    return builder
  folder = pathlib.Path(builder.data_path).parent
  folder.mkdir(parents=True, exist_ok=True)
  with open(folder.with_suffix('.lock'), 'w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)   # the system lets go of it when a process is killed
    for leftover in folder.glob('incomplete.*'):
      shutil.rmtree(leftover)
    builder = make()
    if not builder.data_path.exists():
      tfds.disable_progress_bar()
      builder.download_and_prepare(file_format='array_record')
  return builder


def _embedded_text(data: TextData) -> tuple[type[_PairBuilder], _PairConfig]:
  from fastdec.data import embedded  # Babel's data takes a second to load

  digest = hashlib.sha256(pathlib.Path(embedded.__file__).read_bytes())
  for package in ('Babel', 'num2words'):
    digest.update(importlib.metadata.version(package).encode())
  splits = {split: (lambda split=split: embedded.generate(split)) for split in SPLITS}
  return EmbeddedText, _PairConfig(name=digest.hexdigest()[:16], splits=splits)


def _file_text(data: TextData) -> tuple[type[_PairBuilder], _PairConfig]:
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
      raise UserError(f'{counts}: line i of one must be the translation of line i of the other')
    digest.update(f'{split} {scans[0].digest} {scans[1].digest}\n'.encode())
    splits[split] = lambda paths=paths, split=split: _read(*paths, keep_empty=split != 'train')
  if not splits:
    raise UserError("text of kind 'files' names no files: set train, dev and test, each to a source and a target path")
  return FileText, _PairConfig(name=digest.hexdigest()[:16], splits=splits)


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
    raise UserError(f'line {lines} of {path} is not UTF-8 ({error.reason}): convert the file to UTF-8') from error
  except (OSError, EOFError, zlib.error) as error:
    reason = getattr(error, 'strerror', None) or error
    raise UserError(f'cannot read the text file {path} ({reason}): give a text file, or a gzipped one as .gz') from error
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
