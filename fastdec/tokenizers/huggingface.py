"""Tokenizers of Hugging Face folders: tokenizer.json, a SentencePiece model, or Marian's two.

.encode(str) -> list[int]     with the special ids that the folder's models expect around a text,
                              or without them: special=False
.encode_lines(lines)          the same of many
.decode(ids) -> str           without special ids
.pieces(ids) -> list[str]     the text of each id, special ones included
"""

import abc
import contextlib
import dataclasses
import pathlib
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import read, shown
from fastdec.files import read_bytes, read_json, write_json
from fastdec.tokenizers.chat import SETTINGS, SPECIAL, TEMPLATE, Chats

MARIAN = ('source.spm', 'target.spm', 'vocab.json')
PIECES = ('tokenizer.model', 'spiece.model')
FILES = ('tokenizer.json', SETTINGS, SPECIAL, TEMPLATE, *PIECES, *MARIAN)


@dataclasses.dataclass(frozen=True)
class Said:
  """Fields of tokenizer_config.json, by its names; null counts as absent."""

  tokenizer_class: str | None = None
  add_bos_token: bool | None = None
  add_eos_token: bool | None = None
  bos_token: str | dict | None = None
  eos_token: str | dict | None = None


# Classes for which `transformers` 4 puts start and end around a text by the two flags of
# tokenizer_config.json, whatever tokenizer.json says: the start by default, the end on request.
# These tokens are the defaults.
AROUND = {
  'LlamaTokenizer': ('<s>', '</s>'),
  'CodeLlamaTokenizer': ('<s>', '</s>'),
  'GemmaTokenizer': ('<bos>', '<eos>'),
}
OF_MODELS = {'llama': 'LlamaTokenizer', 'mistral': 'LlamaTokenizer'}  # without a class


def load(folder: pathlib.Path, model_type: str | None = None) -> Any:
  """Reads the tokenizer of a folder.

  Args:
    folder: of its files.
    model_type: of its config.json; it tells the kind of tokenizer if nothing else does.

  Raises:
    UserError: an unknown tokenizer, an unreadable file, or a library that is not installed.
  """
  if (folder / 'tokenizer.json').is_file():
    return JsonTokenizer(folder / 'tokenizer.json', model_type)
  if all((folder / name).is_file() for name in MARIAN):
    return MarianTokenizer(folder)
  for name in PIECES:
    if (folder / name).is_file():
      return PieceTokenizer(folder / name)
  looked = ', '.join(('tokenizer.json', *PIECES, ' + '.join(MARIAN)))
  raise UserError(
    f'{folder} has no tokenizer (looked for {looked}): copy it there from where the model came'
  )


@contextlib.contextmanager
def _explained(file: pathlib.Path) -> Iterator[None]:
  """Turns any exception of the `tokenizers` library about a file into a UserError."""
  try:
    yield
  except (KeyboardInterrupt, SystemExit):
    raise
  except BaseException as error:  # it raises a bare Exception, and in Rust's panics not even that
    raise UserError(f'{file} cannot be read ({error}): copy it again') from None


class _Tokenizer(Chats, abc.ABC):
  """The part that all kinds share."""

  model_type: str | None = None  # of config.json

  @abc.abstractmethod
  def encode(self, text: str, special: bool = True) -> list[int]:
    """Returns the ids of a text; with special ones around it, if `special`."""

  def save(self, folder: pathlib.Path) -> None:
    """Copies the tokenizer's files; tokenizer_config.json tells what config.json told."""
    assert self.folder is not None
    for name in FILES:
      if (self.folder / name).is_file():
        shutil.copy(self.folder / name, folder / name)
    said = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    kind = said.get('tokenizer_class') or OF_MODELS.get(str(self.model_type))
    write_json(folder / SETTINGS, said | ({'tokenizer_class': kind} if kind else {}))

  def encode_lines(self, lines: Iterable[str]) -> list[list[int]]:
    """Encodes many texts; see `encode`."""
    return [self.encode(line) for line in lines]


class JsonTokenizer(_Tokenizer):
  """tokenizer.json, by the `tokenizers` library.

  For some classes tokenizer_config.json gives start and end."""

  def __init__(self, file: pathlib.Path, model_type: str | None = None):
    import tokenizers  # not above: most decoding needs no text

    self._file, self.folder, self.model_type = file, file.parent, model_type
    with _explained(file):
      self._tokenizer = tokenizers.Tokenizer.from_buffer(read_bytes(file))
      self._tokenizer.no_truncation()  # the file may keep settings of its training
      self._tokenizer.no_padding()
      self._tokenizer.encode('')  # a template with unknown tokens fails only in use
    self._around = self._said_around(file.parent, model_type)

  @property
  def vocab_size(self) -> int:
    """Number of ids, the added ones included."""
    return self._tokenizer.get_vocab_size()

  def encode(self, text: str, special: bool = True) -> list[int]:
    """Returns the ids of a text; with special ones around it, if `special`."""
    before, after = (self._around if special else None) or ([], [])
    with _explained(self._file):
      ids = self._tokenizer.encode(text, add_special_tokens=special and self._around is None).ids
    return [*before, *ids, *after]

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of ids, special ones left out."""
    return self._tokenizer.decode([int(token) for token in ids], skip_special_tokens=True)

  def pieces(self, ids: Sequence[int]) -> list[str]:
    """Returns the piece of each id; '<unk>' for ids without one."""
    return [self._tokenizer.id_to_token(int(token)) or '<unk>' for token in ids]

  def _said_around(
    self, folder: pathlib.Path, model_type: str | None
  ) -> tuple[list[int], list[int]] | None:
    """Returns the ids around a text by tokenizer_config.json; None: tokenizer.json has them."""
    if not (folder / SETTINGS).is_file():
      return None
    said = _settings(folder)
    kind = said.tokenizer_class or OF_MODELS.get(str(model_type), '')
    if kind.removesuffix('Fast') not in AROUND:
      return None
    start, end = AROUND[kind.removesuffix('Fast')]
    before = self._ids_of(said.bos_token, start, folder) if said.add_bos_token is not False else []
    after = self._ids_of(said.eos_token, end, folder) if said.add_eos_token else []
    return before, after

  def _ids_of(self, said: str | dict | None, default: str, folder: pathlib.Path) -> list[int]:
    """Returns the id of a token, given by its text or an object with the text as `content`."""
    text = said.get('content') if isinstance(said, dict) else said or default
    token = self._tokenizer.token_to_id(text) if isinstance(text, str) else None
    if token is None:
      reason = f'puts {shown(text)} around texts, which tokenizer.json does not have'
      raise UserError(
        f'{folder / SETTINGS} {reason}: mend bos_token, eos_token, add_bos_token or add_eos_token'
      )
    return [token]


class PieceTokenizer(_Tokenizer):
  """A SentencePiece model whose piece numbers are the ids: Llama's with start, T5's with end."""

  def __init__(self, file: pathlib.Path):
    self._pieces, self.folder = _sentencepiece(file), file.parent
    said, is_t5 = _settings(file.parent), file.name == 'spiece.model'
    self._add_bos = (
      not is_t5 if said.add_bos_token is None else said.add_bos_token
    ) and self._pieces.bos_id() >= 0
    self._add_eos = is_t5 if said.add_eos_token is None else said.add_eos_token

  @property
  def vocab_size(self) -> int:
    """Number of pieces."""
    return self._pieces.vocab_size()

  def encode(self, text: str, special: bool = True) -> list[int]:
    """Returns the ids of a text; with special ones around it, if `special`."""
    add_bos, add_eos = special and self._add_bos, special and self._add_eos
    return self._pieces.encode(text, add_bos=add_bos, add_eos=add_eos)

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of ids, without control pieces, the unknown piece, and ids beyond."""
    ids = [int(token) for token in ids]
    return self._pieces.decode(
      [token for token in ids if token < self.vocab_size and token != self._pieces.unk_id()]
    )

  def pieces(self, ids: Sequence[int]) -> list[str]:
    """Returns the piece of each id; '<unk>' for ids beyond the pieces."""
    return [
      self._pieces.id_to_piece(int(token)) if token < self.vocab_size else '<unk>' for token in ids
    ]


class MarianTokenizer(_Tokenizer):
  """Marian's tokenizer: it encodes by the source's model and decodes by the target's.

  vocab.json numbers the pieces; an end follows each text."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self._source, self._target = (_sentencepiece(folder / name) for name in MARIAN[:2])
    self._ids = read_json(folder / 'vocab.json')
    if wrong := [
      piece for piece, token in self._ids.items() if type(token) is not int or token < 0
    ]:
      raise UserError(
        f'{folder}/vocab.json numbers {shown(wrong[0])} by no whole number from 0: copy it again'
      )
    self._names = {token: piece for piece, token in self._ids.items()}
    if absent := [name for name in ('</s>', '<unk>') if name not in self._ids]:
      raise UserError(f'{folder}/vocab.json has no {" and no ".join(absent)}: copy it again')

  @property
  def vocab_size(self) -> int:
    """Number of ids."""
    return len(self._ids)

  def encode(self, text: str, special: bool = True) -> list[int]:
    """Returns the ids of a source sentence, and an end if `special`.

    The sentence may begin with a language, '>>fra<<'."""
    found = re.match('>>[^<]+<<', text)
    language = [found[0]] if found else []
    rest = text[found.end() :] if found else text
    pieces = language + self._source.encode(rest, out_type=str) + ['</s>'] * special
    return [self._ids.get(piece, self._ids['<unk>']) for piece in pieces]

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of target ids, special ones left out."""
    return self._target.decode(
      [piece for piece in self.pieces(ids) if piece not in ('</s>', '<pad>', '<unk>')]
    )

  def pieces(self, ids: Sequence[int]) -> list[str]:
    """Returns the piece of each id; '<unk>' for ids that are not in vocab.json."""
    return [self._names.get(int(token), '<unk>') for token in ids]


def _settings(folder: pathlib.Path) -> Said:
  """Reads tokenizer_config.json, if there is one."""
  given = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
  return read(Said, given, f'{folder / SETTINGS}', ': ', ignores=True)


def _sentencepiece(file: pathlib.Path) -> Any:
  from fastdec.tokenizers.sentencepiece import processor_of  # most folders have tokenizer.json

  try:
    return processor_of(read_bytes(file))
  except (OSError, ValueError, RuntimeError):
    raise UserError(f'{file} is no SentencePiece model: copy it again') from None
