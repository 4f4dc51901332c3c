"""A SentencePiece BPE tokenizer for both languages (Kudo and Richardson 2018).

Ids: 0 pads, 1 ends a sentence, 2 is any character that was not in the training text. No start token
is needed, because models shift their targets themselves. Output is compared with raw references, so
text is normalised little: NFC, and any run of whitespace becomes one space. SentencePiece's own
NFKC, which changes '…' into three dots, is off.
"""

import io
import pathlib
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from fastdec import extras
from fastdec.errors import UserError
from fastdec.files import PathLike, check_text, damage, read_bytes, whole_file

with extras.explained():
  import sentencepiece

PAD_ID, EOS_ID, UNK_ID = 0, 1, 2
SIGN = '\x1f'  # replaces '▁', which means a space to SentencePiece
PARTS = {1, 2, 3}  # fields of a model's file: pieces, settings of the training and of normalising
LONGEST = 4192  # bytes of a line that SentencePiece learns from


# SentencePiece uses these characters for itself. Separators, which are whitespace, replace them.
OURS = str.maketrans({'▁': SIGN, '▅': '\x1e', '\0': '\x1d'})
THEIRS = {new: chr(old) for old, new in OURS.items()}


def normalise(text: str) -> str:
  """Returns a line for the tokenizer: NFC, any whitespace a single space, none at the ends."""
  return ' '.join(unicodedata.normalize('NFC', text).split())


def make_processor(model_proto: bytes) -> sentencepiece.SentencePieceProcessor:
  """Reads a SentencePiece model from a file's content.

  Raises:
    RuntimeError, ValueError: it is not a model, or has a piece that is not UTF-8.
  """
  if not model_proto:
    raise ValueError('the file is empty')
  processor = sentencepiece.SentencePieceProcessor(model_proto=model_proto)
  processor.id_to_piece(list(range(processor.vocab_size())))  # raises for damaged pieces
  if PARTS - _read_fields(model_proto):
    raise ValueError('the file ends before the settings, which follow the pieces')
  return processor


def _read_fields(message: bytes) -> set[int]:
  """Returns the numbers of the fields of a valid protobuf message, each of which is a message."""
  numbers, at = set(), 0
  while at < len(message):
    entry = []  # the field's number, and its length
    for _ in range(2):
      value, shift = 0, 0
      while at < len(message):
        value |= (message[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if message[at - 1] < 0x80:
          break
      entry.append(value)
    numbers.add(entry[0] >> 3)
    at += entry[1]
  return numbers


def _escape(text: str) -> str:
  """Returns a normalised line without the characters that SentencePiece uses for itself."""
  return normalise(check_text(text)).translate(OURS)


def _unescape(text: str) -> str:
  for new, old in THEIRS.items():
    text = text.replace(new, old)
  return text


def _split_lines(lines: Iterable[str]) -> Iterator[str]:
  """Yields lines for training: SentencePiece ignores long ones, and splits at special names."""
  most = LONGEST // 4  # a character has at most four bytes
  for line in map(_escape, lines):
    line = re.sub('<(?=pad>|unk>|/s>)', '< ', line)
    if len(line) > most:
      yield from textwrap.wrap(line, most, break_on_hyphens=False)
    elif line:
      yield line


class Tokenizer:
  """A trained SentencePiece model; `Tokenizer.load` or `Tokenizer.train` make one."""

  pad_id = PAD_ID
  eos_id = EOS_ID

  def __init__(self, model_proto: bytes):
    self.model_proto = model_proto
    self._processor = make_processor(model_proto)

  @classmethod
  def train(
    cls, lines: Iterable[str], path: PathLike, vocab_size: int, character_coverage: float = 1.0
  ) -> 'Tokenizer':
    """Learns pieces from lines of both languages and writes the model file, deterministically.

    Args:
      lines: text of source and target, in any order; empty lines are ignored.
      path: the file to write; its folder is made.
      vocab_size: number of pieces, including the three special ones and '▁'.
      character_coverage: share of characters that become pieces; the rarest become the unknown one.

    Raises:
      UserError: the text has fewer pieces (the message gives the number) or more characters than
        vocab_size, or is empty; or the file cannot be written.
    """
    model = io.BytesIO()
    try:
      sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_split_lines(lines),
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
      UserError: the file does not exist, is not a SentencePiece model, or has other special ids.
    """
    try:
      tokenizer = cls(read_bytes(path))
    except OSError as error:
      raise UserError(
        f'cannot read the tokenizer {path} ({error.strerror}): give one of fastdec'
      ) from error
    except (ValueError, RuntimeError):
      raise damage(
        pathlib.Path(path), 'is corrupt, or not a SentencePiece model', 'give one of fastdec'
      ) from None
    processor = tokenizer._processor
    ids = processor.pad_id(), processor.eos_id(), processor.unk_id()
    if ids != (PAD_ID, EOS_ID, UNK_ID):
      raise UserError(
        f'the tokenizer {path} has pad, eos, unk = {ids}, not {(PAD_ID, EOS_ID, UNK_ID)}: give one'
        ' that fastdec trained'
      )
    return tokenizer

  def save(self, folder: pathlib.Path) -> None:
    """Writes the model's file into a folder."""
    (folder / 'tokenizer.model').write_bytes(self.model_proto)

  @property
  def vocab_size(self) -> int:
    """Number of ids, the special ones included."""
    return self._processor.vocab_size()

  def encode(self, text: str, special: bool = True) -> list[int]:
    """Returns the ids of a line, always without an end; an empty line has none."""
    return self._processor.encode(_escape(text))

  def encode_lines(self, lines: Iterable[str]) -> list[list[int]]:
    """Returns the ids of many lines, each with an end; on all cores, far faster than one by one."""
    return self._processor.encode(list(map(_escape, lines)), add_eos=True)

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of ids up to the first end of sentence, without padding and ids beyond."""
    known = []
    for token in map(int, ids):
      if token == EOS_ID:
        break
      if token != PAD_ID and token < self.vocab_size:
        known.append(token)
    return _unescape(self._processor.decode(known))

  def pieces(self, ids: Sequence[int]) -> list[str]:
    """Returns the piece of each id, specials included; '▁' is the space before a word.

    Ids beyond the pieces are '<unk>'.
    """
    pieces = []
    for token in map(int, ids):
      if token >= self.vocab_size:
        token = UNK_ID
      pieces.append(_unescape(self._processor.id_to_piece(token)))
    return pieces

  def token_bytes(self) -> list[bytes]:
    """Returns the bytes that each id writes; b'' for special ones."""
    written = []
    for piece in self._processor.id_to_piece(list(range(self.vocab_size))):
      written.append(_unescape(piece.replace('▁', ' ')).encode())
    for token in (PAD_ID, EOS_ID, UNK_ID):
      written[token] = b''
    return written


def _training_error(message: str, vocab_size: int) -> UserError:
  """Turns SentencePiece's message into a UserError."""
  mistake = f'vocab_size={vocab_size} is not possible'
  if most := re.search(r'value <= (\d+)', message):
    return UserError(f'{mistake}: the training text has {most[1]} pieces, set it to that or less')
  if least := re.search(r'required_chars\. \d+ vs (\d+)', message):
    return UserError(
      f'{mistake}: the characters of the training text need {least[1]}, set it to more'
    )
  if 'sentences_.empty()' in message:
    return UserError(
      'a tokenizer needs at least one line of text to learn from: give files that are not empty'
    )
  return UserError(f'{mistake}: give a whole number such as 4000 (SentencePiece says: {message})')
