"""fairseq's dictionaries: a file of words for the source, and one for the target.

A line is a word, a space and its count in the training text. The words' ids are 4, 5, ... in the
order of the lines, after the special <s>, <pad>, </s> and <unk>. Texts are in the form that the
model's own preprocessing makes (mostly Moses's tokenizer, then subword-nmt's BPE). Whitespace
separates words.
"""

import io
import os
import pathlib
import re
from collections.abc import Iterable, Sequence

from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.files import read_bytes, text_of
from fastdec.folders.folder import DICTIONARIES

BOS_ID, PAD_ID, EOS_ID, UNK_ID = range(4)
SPECIAL = ('<s>', '<pad>', '</s>', '<unk>')
OVERWRITE = ' #fairseq:overwrite'  # marks a word that is repeated on purpose
PathLike = str | os.PathLike[str]


class Dictionary:
  """The words of one file; words[i] has id i."""

  def __init__(self, words: Sequence[str]):
    self.words = (*SPECIAL, *words)
    self._ids = {word: i for i, word in enumerate(self.words) if i >= len(SPECIAL)}

  @classmethod
  def load(cls, path: PathLike) -> 'Dictionary':
    """Reads the dictionary of a file.

    Raises:
      UserError: the file does not exist, is not UTF-8, or has a line without a word and its count.
    """
    try:
      text = text_of(read_bytes(path), f'the dictionary {path}')
    except OSError as error:
      raise UserError(
        f'cannot read the dictionary {path} ({error.strerror}): give the dict.txt of a model'
      ) from None
    words = []
    for number, line in enumerate(io.StringIO(text, newline=None), start=1):
      line = line.rstrip().removesuffix(OVERWRITE)
      if not re.search(r' -?\d+$', line):
        raise UserError(
          f'line {number} of the dictionary {path} is {quote(line)}: give lines of a word and its'
          ' count'
        )
      words.append(line.rpartition(' ')[0])
    return cls(words)

  def __len__(self) -> int:
    """Number of ids, the four special ones included."""
    return len(self.words)

  def encode(self, text: str) -> list[int]:
    """Returns the ids of a sentence's words, and an end."""
    return [*(self._ids.get(word, UNK_ID) for word in text.split()), EOS_ID]

  def encode_lines(self, lines: Iterable[str]) -> list[list[int]]:
    """Encodes many sentences; see `encode`."""
    return [self.encode(line) for line in lines]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the words of ids, pieces joined ('Hun@@ d' is Hund); special ids are left out."""
    words = []
    for token in map(int, ids):
      if len(SPECIAL) <= token < len(self):
        words.append(self.words[token])
    return re.sub(r'@@( |$)', '', ' '.join(words))

  def pieces(self, ids: Iterable[int]) -> list[str]:
    """Returns the word of each id, special ones included; '<unk>' for ids beyond the words."""
    unknown = SPECIAL[UNK_ID]
    return [self.words[token] if token < len(self) else unknown for token in map(int, ids)]


class DictionaryPair:
  """A tokenizer that encodes sources and decodes targets."""

  def __init__(self, source: Dictionary, target: Dictionary):
    self.source, self.target = source, target
    self.special = dict(enumerate(SPECIAL))  # tokens that texts do not show

  @classmethod
  def load(cls, source: PathLike, target: PathLike) -> 'DictionaryPair':
    """Reads the two dictionaries; see `Dictionary.load`."""
    return cls(Dictionary.load(source), Dictionary.load(target))

  def save(self, folder: pathlib.Path) -> None:
    """Writes both files into a folder; the words' counts are no longer known."""
    for side, name in zip((self.source, self.target), DICTIONARIES, strict=True):
      lines = [f'{word} 1\n' for word in side.words[len(SPECIAL) :]]
      (folder / name).write_text(''.join(lines), encoding='utf-8')

  @property
  def vocab_size(self) -> int:
    """Number of the target's ids."""
    return len(self.target)

  def encode(self, text: str, special: bool = True) -> list[int]:
    """Returns the ids of a source sentence, with its end if `special`."""
    ids = self.source.encode(text)
    if not special:
      ids.pop()
    return ids

  def encode_lines(self, lines: Iterable[str]) -> list[list[int]]:
    """Encodes many source sentences; see `encode`."""
    return self.source.encode_lines(lines)

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of target ids, special ones left out."""
    return self.target.decode(ids)

  def pieces(self, ids: Iterable[int]) -> list[str]:
    """Returns the word of each target id, special ones included."""
    return self.target.pieces(ids)

  def source_pieces(self, ids: Iterable[int]) -> list[str]:
    """Returns the word of each source id, special ones included."""
    return self.source.pieces(ids)
