"""A SentencePiece BPE tokenizer for both languages (Kudo and Richardson 2018).

Ids: 0 pads, 1 ends a sentence, 2 stands for a character never seen in training. A start token is
not needed, as models shift their targets themselves. Output must compare with raw references, so
text is normalised little: NFC, and any run of whitespace becomes one space. SentencePiece's own
NFKC, which makes three dots of '…', is off.
"""

import io
import os
import pathlib
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from fastdec import extras
from fastdec.errors import UserError
from fastdec.files import check_text, damaged, read_bytes, whole_file

with extras.explained():
  import sentencepiece

PAD_ID, EOS_ID, UNK_ID = 0, 1, 2
SIGN = '\x1f'  # in the place of '▁', by which SentencePiece writes a space
LONGEST = 4192  # bytes of a line that SentencePiece learns from
PathLike = str | os.PathLike[str]


# Characters that SentencePiece has a use of its own for, by separators, which are whitespace to us.
OURS = str.maketrans({'▁': SIGN, '▅': '\x1e', '\0': '\x1d'})
THEIRS = {new: chr(old) for old, new in OURS.items()}


def normalise(text: str) -> str:
  """Returns a line for the tokenizer: NFC, any whitespace a single space, none at the ends."""
  return ' '.join(unicodedata.normalize('NFC', text).split())


def processor_of(model_proto: bytes) -> sentencepiece.SentencePieceProcessor:
  """Returns the model of a file's content.

  Raises:
    RuntimeError, ValueError: it is none, or has a piece that is not UTF-8.
  """
  if not model_proto:
    raise ValueError('the file is empty')
  found = sentencepiece.SentencePieceProcessor(model_proto=model_proto)
  found.id_to_piece(list(range(found.vocab_size())))
  return found


def _escaped(text: str) -> str:
  """Returns a normalised line in which all characters stand for themselves."""
  return normalise(check_text(text)).translate(OURS)


def _unescaped(text: str) -> str:
  for new, old in THEIRS.items():
    text = text.replace(new, old)
  return text


def _sentences(lines: Iterable[str]) -> Iterator[str]:
  """Yields lines for training: SentencePiece leaves long ones out, and splits at special names."""
  for line in map(_escaped, lines):
    line = re.sub('<(?=pad>|unk>|/s>)', '< ', line)
    is_short = len(line) <= LONGEST // 4  # four bytes a character at most
    yield from [line] if is_short else textwrap.wrap(line, LONGEST // 4, break_on_hyphens=False)


class Tokenizer:
  """A trained SentencePiece model; `Tokenizer.load` or `Tokenizer.train` make one."""

  pad_id = PAD_ID
  eos_id = EOS_ID

  def __init__(self, model_proto: bytes):
    self.model_proto = model_proto
    self._processor = processor_of(model_proto)

  @classmethod
  def train(
    cls, lines: Iterable[str], path: PathLike, vocab_size: int, character_coverage: float = 1.0
  ) -> 'Tokenizer':
    """Learns pieces from lines of both languages and writes the model file, deterministically.

    Args:
      lines: text of source and target, in any order; empty lines are ignored.
      path: the file to write (by way of a temporary one); its folder is made if need be.
      vocab_size: pieces in all, the three special ones and that of '▁' included.
      character_coverage: share of characters that become pieces; the rarest become the unknown one.

    Raises:
      UserError: more pieces than the text has (the message gives its number), fewer than it has
        characters, or no text at all; a file that cannot be written.
    """
    model = io.BytesIO()
    try:
      sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for line in _sentences(lines) if line),
        model_writer=model,
        model_type='bpe',
        vocab_size=vocab_size,
        character_coverage=character_coverage,
        normalization_rule_name='identity',
        pad_id=PAD_ID,
        eos_id=EOS_ID,
        unk_id=UNK_ID,
        bos_id=-1,
        user_defined_symbols=[SIGN],
        num_threads=1,
        minloglevel=2,
      )
    except RuntimeError as error:
      raise _training_error(str(error), vocab_size) from error
    with whole_file(pathlib.Path(path)) as file:
      file.write(model.getvalue())
    return cls(model.getvalue())

  @classmethod
  def load(cls, path: PathLike) -> 'Tokenizer':
    """Reads the tokenizer of a model file.

    Raises:
      UserError: no such file, no SentencePiece model, or one with other special ids than ours.
    """
    try:
      tokenizer = cls(read_bytes(path))
      ids = (
        tokenizer._processor.pad_id(),
        tokenizer._processor.eos_id(),
        tokenizer._processor.unk_id(),
      )
    except OSError as error:
      raise UserError(
        f'cannot read the tokenizer {path} ({error.strerror}): give one of fastdec'
      ) from error
    except (ValueError, RuntimeError):
      raise damaged(
        pathlib.Path(path), 'is corrupt, or no SentencePiece model', 'give one of fastdec'
      ) from None
    if ids != (PAD_ID, EOS_ID, UNK_ID):
      special = f'has pad, eos, unk = {ids}, not {(PAD_ID, EOS_ID, UNK_ID)}'
      raise UserError(f'the tokenizer {path} {special}: give one that fastdec trained')
    return tokenizer

  def save(self, folder: pathlib.Path) -> None:
    """Writes the model's file into a folder."""
    (folder / 'tokenizer.model').write_bytes(self.model_proto)

  @property
  def vocab_size(self) -> int:
    """Number of ids, the special ones included."""
    return self._processor.vocab_size()

  def encode(self, text: str, special: bool = True) -> list[int]:
    """Returns the ids of a line, without an end in any case; an empty line has none."""
    return self._processor.encode(_escaped(text))

  def encode_lines(self, lines: Iterable[str]) -> list[list[int]]:
    """Returns the ids of many lines, each with an end; on all cores, far faster than one by one."""
    return self._processor.encode([_escaped(line) for line in lines], add_eos=True)

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of ids up to the first end of sentence, without padding and ids beyond."""
    known = [one for one in _content(ids) if one < self.vocab_size]
    return _unescaped(self._processor.decode(known))

  def pieces(self, ids: Sequence[int]) -> list[str]:
    """Returns the piece of each id, specials included; '▁' is the space before a word.

    Ids beyond the pieces are '<unk>'.
    """
    known = (int(token) if int(token) < self.vocab_size else UNK_ID for token in ids)
    return [_unescaped(self._processor.id_to_piece(token)) for token in known]

  def token_bytes(self) -> list[bytes]:
    """Returns the bytes that each id writes; b'' for special ones."""
    pieces = self._processor.id_to_piece(list(range(self.vocab_size)))
    found = [_unescaped(piece.replace('▁', ' ')).encode() for piece in pieces]
    return [b'' if token in (PAD_ID, EOS_ID, UNK_ID) else x for token, x in enumerate(found)]


def _content(ids: Sequence[int]) -> list[int]:
  ids = [int(token) for token in ids]
  end = ids.index(EOS_ID) if EOS_ID in ids else len(ids)
  return [token for token in ids[:end] if token != PAD_ID]


def _training_error(message: str, vocab_size: int) -> UserError:
  """Returns SentencePiece's complaint in our words."""
  given = f'vocab_size={vocab_size} is not possible'
  if found := re.search(r'value <= (\d+)', message):
    return UserError(f'{given}: the training text has {found[1]} pieces, set it to that or less')
  if found := re.search(r'required_chars\. \d+ vs (\d+)', message):
    return UserError(
      f'{given}: the training text needs {found[1]} for its characters alone, set it to more'
    )
  if 'sentences_.empty()' in message:
    return UserError(
      'there is no line of text to train a tokenizer on: give text files that are not empty'
    )
  return UserError(f'{given}: give a whole number such as 4000 (SentencePiece says: {message})')
