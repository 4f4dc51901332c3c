"""What a model rewrites: the sources of a split, or lines of the source language from files of
their own."""

import functools
import hashlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence

from fastdec.data.text.corpus import Corpus, TextData, open_text

# a line, and the translation that it keeps where the model has none
Source = tuple[str, str | None]


class Sources:
  """Lines by their places, a few in memory at a time: reading goes on from where the last ones
  were.

  Attributes:
    key: a hash of them all, and of how long a line may be.
    count: how many there are.
  """

  def __init__(self, lines: Callable[[], Iterator[Source]], row_length: int) -> None:
    self._lines, self._rest, self._at = lines, iter(()), sys.maxsize
    digest, self.count = hashlib.sha256(str(row_length).encode()), 0
    for source in lines():
      digest.update(repr(source).encode())
      self.count += 1
    self.key = digest.hexdigest()[:16]

  def at(self, span: range) -> list[Source]:
    """Those at these places."""
    if span.start < self._at:
      self._rest, self._at = self._lines(), 0
    chosen = itertools.islice(self._rest, span.start - self._at, span.stop - self._at)
    self._at = span.stop
    return list(chosen)


def of_training(text: Corpus, row_length: int) -> Sources:
  """The training sources, each with its translation."""
  return Sources(functools.partial(text.pairs, 'train'), row_length)


def of_dev(text: Corpus, row_length: int) -> Sources | None:
  """The sources of the dev set, without their translations; None where there is no such set."""
  return (
    Sources(functools.partial(alone, (text,), 'dev'), row_length) if 'dev' in text.counts else None
  )


def of_files(paths: Sequence[str], cache: str, row_length: int) -> Sources:
  """The lines of text files, one file behind the other, without blank ones; see `texts_of`."""
  return Sources(functools.partial(alone, texts_of(paths, cache), 'train'), row_length)


def texts_of(paths: Sequence[str], cache: str) -> list[Corpus]:
  """Files of one language, as texts whose training pairs are each a line and itself.

  Raises:
    UserError: a file that is missing, damaged, empty or not UTF-8.
  """
  return [open_text(TextData('files', train=(path, path)), cache) for path in paths]


def alone(texts: Sequence[Corpus], split: str) -> Iterator[Source]:
  """The sources of a split of all texts, without translations; blank ones are left out."""
  for text in texts:
    for source, _ in text.pairs(split):
      if source.strip():
        yield source, None
