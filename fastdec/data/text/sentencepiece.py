"""A SentencePiece BPE tokenizer for both languages (Kudo and Richardson 2018).

Ids: 0 pads, 1 ends a sentence, 2 is any character that was not in the training text. A start token
is not needed, because models shift their targets themselves. Output is compared with raw
references, so text is normalised little: NFC, and any run of whitespace becomes one space.
SentencePiece's own NFKC, which makes three dots of '…', is off.
"""

import io
import pathlib
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from fastdec import extras
from fastdec.errors import UserError
from fastdec.files import PathLike, check_text, damaged, read_bytes, whole_file

with extras.explained():
  import sentencepiece

PAD_ID, EOS_ID, UNK_ID = 0, 1, 2
SIGN = '\x1f'  # stands for '▁', which is a space to SentencePiece
LONGEST = 4192  # bytes of a line that SentencePiece learns from


# SentencePiece uses these characters for itself. Separators, whitespace to us, stand for them.
OURS = str.maketrans({'▁': SIGN, '▅': '\x1e', '\0': '\x1d'})
THEIRS = {new: chr(old) for old, new in OURS.items()}


def normalise(text: str) -> str:
  """Returns a line for the tokenizer: NFC, any whitespace a single space, none at the ends."""
  return ' '.join(unicodedata.normalize('NFC', text).split())


def processor_of(model_proto: bytes) -> sentencepiece.SentencePieceProcessor:
  """Reads a SentencePiece model from a file's content.

  Raises:
    RuntimeError, ValueError: it is no model, or has a piece that is not UTF-8.
  """
  if not model_proto:
    raise ValueError('the file is empty')
  processor = sentencepiece.SentencePieceProcessor(model_proto=model_proto)
  processor.id_to_piece(list(range(processor.vocab_size())))  # raises for damaged pieces
  return processor


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
      path: the file to write (by way of a temporary one); makes its folder.
      vocab_size: number of pieces, including the three special ones and that of '▁'.
      character_coverage: share of characters that become pieces; the rarest become the unknown one.

    Raises:
      UserError: more pieces than the text has (the message gives the number), fewer than it has
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
    except OSError as error:
      raise UserError(
        f'cannot read the tokenizer {path} ({error.strerror}): give one of fastdec'
      ) from error
    except (ValueError, RuntimeError):
      raise damaged(
        pathlib.Path(path), 'is corrupt, or no SentencePiece model', 'give one of fastdec'
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
    return self._processor.encode(_escaped(text))

  def encode_lines(self, lines: Iterable[str]) -> list[list[int]]:
    """Returns the ids of many lines, each with an end; on all cores, far faster than one by one."""
    return self._processor.encode([_escaped(line) for line in lines], add_eos=True)

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of ids up to the first end of sentence, without padding and ids beyond."""
    ids = [int(token) for token in ids]
    end = ids.index(EOS_ID) if EOS_ID in ids else len(ids)
    known = [token for token in ids[:end] if token != PAD_ID and token < self.vocab_size]
    return _unescaped(self._processor.decode(known))

  def pieces(self, ids: Sequence[int]) -> list[str]:
    """Returns the piece of each id, specials included; '▁' is the space before a word.

    Ids beyond the pieces are '<unk>'.
    """
    pieces = []
    for token in map(int, ids):
      known = token if token < self.vocab_size else UNK_ID
      pieces.append(_unescaped(self._processor.id_to_piece(known)))
    return pieces

  def token_bytes(self) -> list[bytes]:
    """Returns the bytes that each id writes; b'' for special ones."""
    written = []
    for token, piece in enumerate(self._processor.id_to_piece(list(range(self.vocab_size)))):
      is_special = token in (PAD_ID, EOS_ID, UNK_ID)
      written.append(b'' if is_special else _unescaped(piece.replace('▁', ' ')).encode())
    return written


def _training_error(message: str, vocab_size: int) -> UserError:
  """Turns SentencePiece's message into a UserError."""
  mistake = f'vocab_size={vocab_size} is not possible'
  if most := re.search(r'value <= (\d+)', message):
    return UserError(f'{mistake}: the training text has {most[1]} pieces, set it to that or less')
  if least := re.search(r'required_chars\. \d+ vs (\d+)', message):
    return UserError(
      f'{mistake}: the training text needs {least[1]} for its characters alone, set it to more'
    )
  if 'sentences_.empty()' in message:
    return UserError(
      'there is no line of text to train a tokenizer on: give text files that are not empty'
    )
  return UserError(f'{mistake}: give a whole number such as 4000 (SentencePiece says: {message})')
