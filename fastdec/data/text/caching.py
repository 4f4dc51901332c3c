"""The tokenizer of a corpus and the ids of its splits, made once and kept.

The files are named after all that decides their content. So a launch neither reads nor hashes the
text, and maps the ids into memory. Several runs share the files.
"""

import contextlib
import hashlib
import os
import pathlib
from collections.abc import Callable, Sequence

from fastdec.data.text.corpus import Corpus
from fastdec.data.text.packing import tokenise
from fastdec.data.text.sentencepiece import Tokenizer
from fastdec.data.text.tokens import TokenPairs
from fastdec.errors import UserError

PathLike = str | os.PathLike[str]
SAMPLE = 1_000_000  # pairs that a tokenizer is learnt from; more teach it nothing, and take an hour
# of characters, where there are more: text from the web has thousands that occur a few times
COVERAGE = 0.9999


def tokenizer_of(
  corpus: Corpus, vocab_size: int, cache_dir: PathLike
) -> tuple[Tokenizer, pathlib.Path]:
  """Learns a tokenizer from the training pairs, and names its file; see `Tokenizer.train`."""
  path = pathlib.Path(cache_dir) / f'tokenizer-{_digest(corpus.key, vocab_size)}.model'
  # missing or damaged: the same lines give the same file again
  with contextlib.suppress(UserError):
    return Tokenizer.load(path), path
  lines = (line for pair in corpus.pairs('train', SAMPLE) for line in pair)
  coverage = COVERAGE if corpus.counts['train'] > SAMPLE else 1.0
  return Tokenizer.train(lines, path, vocab_size, coverage), path


def tokens_of(
  corpus: Corpus, split: str, tokenizer: Tokenizer, max_length: int | None, cache_dir: PathLike
) -> TokenPairs:
  """Tokenises a split; see `tokenise`. A missing or damaged file is made again."""
  model = hashlib.sha256(tokenizer.model_proto).hexdigest()
  path = (
    pathlib.Path(cache_dir) / f'tokens-{_digest(corpus.key, split, model, max_length)}-{split}.npy'
  )
  return _kept(path, lambda: tokenise(corpus.pairs(split), tokenizer, max_length))


def union_of(
  parts: Sequence[TokenPairs], *decisive: str | int | None, cache_dir: PathLike
) -> TokenPairs:
  """Joins ids by `TokenPairs.union`; `decisive` identifies them."""
  path = pathlib.Path(cache_dir) / f'tokens-{_digest(*decisive)}-union.npy'
  return _kept(path, lambda: TokenPairs.union(parts))


def _kept(path: pathlib.Path, make: Callable[[], TokenPairs]) -> TokenPairs:
  """Loads the pairs in a file, which is made if need be."""
  if (stored := TokenPairs.load(path)) is not None:
    return stored
  fresh = make()
  fresh.save(path)
  # a file's pages come as they are read, and leave when memory is short
  return TokenPairs.load(path) or fresh


def _digest(*decisive: str | int | None) -> str:
  return hashlib.sha256(repr(decisive).encode()).hexdigest()[:16]
