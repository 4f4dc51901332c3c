"""The tokenizer of a corpus and the ids of its splits, made once and kept in files.

A file's name is a hash of everything that decides its content. So a new run neither reads nor
hashes the text, and maps the ids into memory. Several runs share the files.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import pathlib
from collections.abc import Callable, Sequence

from fastdec.data.text.corpus import Corpus
from fastdec.data.text.packing import tokenise
from fastdec.data.text.sentencepiece import Tokenizer
from fastdec.data.text.tokens import TokenPairs
from fastdec.errors import UserError
from fastdec.files import PathLike

SAMPLE = 1_000_000  # pairs that a tokenizer learns from: more take an hour and improve nothing
# Share of characters that become pieces in a larger text: the web has thousands of rare ones.
COVERAGE = 0.9999


def make_tokenizer(
  corpus: Corpus, vocab_size: int, cache_dir: PathLike
) -> tuple[Tokenizer, pathlib.Path]:
  """Returns a tokenizer of the training pairs, and its file; learns it once (`Tokenizer.train`)."""
  path = pathlib.Path(cache_dir) / f'tokenizer-{_digest(corpus.key, vocab_size)}.model'
  # A missing or damaged file is made again: the same lines give the same file.
  with contextlib.suppress(UserError):
    return Tokenizer.load(path), path
  lines = itertools.chain.from_iterable(corpus.pairs('train', SAMPLE))
  coverage = COVERAGE if corpus.counts['train'] > SAMPLE else 1.0
  return Tokenizer.train(lines, path, vocab_size, coverage), path


def make_tokens(
  corpus: Corpus, split: str, tokenizer: Tokenizer, max_length: int | None, cache_dir: PathLike
) -> TokenPairs:
  """Tokenises a split; see `tokenise`. A missing or damaged file is made again."""
  model = hashlib.sha256(tokenizer.model_proto).hexdigest()
  digest = _digest(corpus.key, split, model, max_length)
  path = pathlib.Path(cache_dir) / f'tokens-{digest}-{split}.npy'

  def make() -> TokenPairs:
    pairs = tokenise(corpus.pairs(split), tokenizer, max_length)
    # `Corpus.pairs` leaves out pairs with an empty side, which count too.
    return dataclasses.replace(pairs, dropped=corpus.counts[split] - len(pairs))

  return _load_or_make(path, make)


def make_union(
  parts: Sequence[TokenPairs], *decisive: str | int | None, cache_dir: PathLike
) -> TokenPairs:
  """Joins ids by `TokenPairs.union`; `decisive` values identify them."""
  path = pathlib.Path(cache_dir) / f'tokens-{_digest(*decisive)}-union.npy'
  return _load_or_make(path, lambda: TokenPairs.union(parts))


def _load_or_make(path: pathlib.Path, make: Callable[[], TokenPairs]) -> TokenPairs:
  """Loads the pairs in a file, or makes and saves them."""
  stored = TokenPairs.load(path)
  if stored is not None:
    return stored
  fresh = make()
  fresh.save(path)
  # Load it again, because the system reads a mapped file page by page, and can drop pages.
  return TokenPairs.load(path) or fresh


def _digest(*decisive: str | int | None) -> str:
  return hashlib.sha256(repr(decisive).encode()).hexdigest()[:16]
