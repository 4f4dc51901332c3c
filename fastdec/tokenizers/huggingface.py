"""Tokenizers of Hugging Face folders: tokenizer.json, a SentencePiece model, or Marian's pair of them.

Each has .encode(str) -> list[int], with the special ids that the folder's models expect around a text, .decode(ids) ->
str, without any, and .pieces(ids) -> list[str], what each id stands for, special ones included.
"""

import pathlib
import re
from collections.abc import Sequence
from typing import Any

from fastdec import extras
from fastdec.errors import UserError
from fastdec.files import read_json

MARIAN = ('source.spm', 'target.spm', 'vocab.json')
PIECES = ('tokenizer.model', 'spiece.model')


def load(folder: pathlib.Path) -> Any:
  """The tokenizer of a folder.

  Raises:
    UserError: no tokenizer that we know, a file that cannot be read, or a library that is not installed.
  """
  if (folder / 'tokenizer.json').is_file():
    return JsonTokenizer(folder / 'tokenizer.json')
  if all((folder / name).is_file() for name in MARIAN):
    return MarianTokenizer(folder)
  for name in PIECES:
    if (folder / name).is_file():
      return PieceTokenizer(folder / name)
  looked = ', '.join(('tokenizer.json', *PIECES, ' + '.join(MARIAN)))
  raise UserError(f'{folder} has no tokenizer (looked for {looked}): copy it there from where the model came')


class JsonTokenizer:
  """tokenizer.json, by the `tokenizers` library."""

  def __init__(self, file: pathlib.Path):
    import tokenizers  # not above: most decoding needs no text

    try:
      self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # what the library raises is a bare Exception
      raise UserError(f'{file} cannot be read ({error}): copy it again') from None
    self._tokenizer.no_truncation()  # the file may have kept what somebody once trained with
    self._tokenizer.no_padding()

  @property
  def vocab_size(self) -> int:
    """Number of ids, the added ones included."""
    return self._tokenizer.get_vocab_size()

  def encode(self, text: str) -> list[int]:
    """The ids of a text."""
    return self._tokenizer.encode(text).ids

  def decode(self, ids: Sequence[int]) -> str:
    """The text of ids, special ones left out."""
    return self._tokenizer.decode([int(token) for token in ids], skip_special_tokens=True)

  def pieces(self, ids: Sequence[int]) -> list[str]:
    """The piece of each id; '<unk>' for those that have none."""
    return [self._tokenizer.id_to_token(int(token)) or '<unk>' for token in ids]


class PieceTokenizer:
  """A SentencePiece model whose piece numbers are the ids. Llama's puts its start before a text, T5's its end after."""

  def __init__(self, file: pathlib.Path):
    self._pieces = _sentencepiece(file)
    settings = file.parent / 'tokenizer_config.json'
    config = read_json(settings) if settings.is_file() else {}
    is_t5 = file.name == 'spiece.model'
    self._add_bos = config.get('add_bos_token', not is_t5) and self._pieces.bos_id() >= 0
    self._add_eos = config.get('add_eos_token', is_t5)

  @property
  def vocab_size(self) -> int:
    """Number of pieces."""
    return self._pieces.vocab_size()

  def encode(self, text: str) -> list[int]:
    """The ids of a text."""
    return self._pieces.encode(text, add_bos=self._add_bos, add_eos=self._add_eos)

  def decode(self, ids: Sequence[int]) -> str:
    """The text of ids; control pieces, the unknown one, and ids beyond the pieces, are left out."""
    ids = [int(token) for token in ids]
    return self._pieces.decode([token for token in ids if token < self.vocab_size and token != self._pieces.unk_id()])

  def pieces(self, ids: Sequence[int]) -> list[str]:
    """The piece of each id; '<unk>' for those beyond the pieces."""
    return [self._pieces.id_to_piece(int(token)) if token < self.vocab_size else '<unk>' for token in ids]


class MarianTokenizer:
  """Marian's: pieces of the source's model, numbered by vocab.json, and an end; decodes by the target's model."""

  def __init__(self, folder: pathlib.Path):
    self._source, self._target = (_sentencepiece(folder / name) for name in MARIAN[:2])
    self._ids = read_json(folder / 'vocab.json')
    self._names = {token: piece for piece, token in self._ids.items()}
    if absent := [name for name in ('</s>', '<unk>') if name not in self._ids]:
      raise UserError(f'{folder}/vocab.json has no {" and no ".join(absent)}: copy it again')

  @property
  def vocab_size(self) -> int:
    """Number of ids."""
    return len(self._ids)

  def encode(self, text: str) -> list[int]:
    """The ids of a source sentence, its end included; it may begin with the target's language, as '>>fra<<'."""
    found = re.match('>>[^<]+<<', text)
    language = [found[0]] if found else []
    rest = text[found.end() :] if found else text
    pieces = language + self._source.encode(rest, out_type=str) + ['</s>']
    return [self._ids.get(piece, self._ids['<unk>']) for piece in pieces]

  def decode(self, ids: Sequence[int]) -> str:
    """The text of target ids, special ones left out."""
    return self._target.decode([piece for piece in self.pieces(ids) if piece not in ('</s>', '<pad>', '<unk>')])

  def pieces(self, ids: Sequence[int]) -> list[str]:
    """The piece of each id; '<unk>' for those that vocab.json does not number."""
    return [self._names.get(int(token), '<unk>') for token in ids]


def _sentencepiece(file: pathlib.Path) -> Any:
  with extras.explained():
    import sentencepiece
  try:
    return sentencepiece.SentencePieceProcessor(model_proto=file.read_bytes())
  except (OSError, RuntimeError):
    raise UserError(f'{file} is no SentencePiece model: copy it again') from None
