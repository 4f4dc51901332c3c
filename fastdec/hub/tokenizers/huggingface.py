"""Tokenizers of Hugging Face folders.

The library `tokenizers` reads tokenizer.json. For older files (vocab.json and merges.txt, models of
SentencePiece and tiktoken), `transformers`, of the extra 'hf', makes the same content.

.encode(str) -> list[int]     with the special ids that the folder's models expect around a text,
                              or without them: special=False
.encode_lines(lines)          the ids of many texts
.decode(ids) -> str           without special ids
.pieces(ids) -> list[str]     the text of each id, special ones included
.token_bytes() -> list[bytes] the bytes that each id of the vocabulary writes; none for special ones
"""

import abc
import contextlib
import functools
import json
import os
import pathlib
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fastdec import extras
from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.files import MARK, check_text, damage, parse_json, read_bytes, read_json, write_json
from fastdec.folders.folder import TOKENIZER_FILES
from fastdec.hub.tokenizers.chat import (
  SETTINGS,
  Chats,
  copy_templates,
  read_if_there,
  special_tokens,
)
from fastdec.hub.tokenizers.growth import check_growth, check_vocabulary, find_joins
from fastdec.hub.tokenizers.settings import (
  LLAMAS,
  OF_LANGUAGES,
  apply_settings,
  around_text,
  find_class,
  read_config,
)
from fastdec.hub.tokenizers.spelling import choose_speller, clean_up, spell_spaces

JSON = 'tokenizer.json'
# Files of other tokenizers, and the class that reads each where neither file of settings names one.
OTHERS = {
  'tokenizer.model': 'LlamaTokenizer',
  'spiece.model': 'T5Tokenizer',
  'sentencepiece.bpe.model': 'M2M100Tokenizer',
  'source.spm': 'MarianTokenizer',
  'vocab.json': 'GPT2Tokenizer',
}
NUMBERED = ('vocab.json', 'added_tokens.json')  # files of pieces and their ids
MOST_IDS = 2**24
UNREAD = ('tekken.json', 'tiktoken.model', 'vocab.txt')  # files of kinds that are not supported
OF_TIKTOKEN = re.compile(rb'[A-Za-z0-9+/]+=* \d+\r?\n')  # the first line of such a file


def load(folder: pathlib.Path, model_type: str | None = None) -> Any:
  """Reads the tokenizer of a folder.

  Args:
    folder: the folder of its files.
    model_type: of config.json; it decides the kind of tokenizer if tokenizer_config.json exists and
      does not name one.

  Raises:
    UserError: the tokenizer is unknown, a file cannot be read, or a library is not installed.
  """
  if (folder / JSON).is_file():
    return _from_json(folder, model_type)
  for name, default_class in OTHERS.items():
    if (folder / name).is_file():
      return _by_transformers(folder, model_type, default_class)
  for name in UNREAD:
    if (folder / name).is_file():
      raise UserError(
        f'{folder} has its tokenizer as {name}, which is not supported: add the {JSON} of the same'
        ' model'
      )
  raise UserError(
    f'{folder} has no tokenizer (looked for {JSON}, {", ".join(OTHERS)}): copy it there from where'
    ' the model came'
  )


def _from_json(folder: pathlib.Path, model_type: str | None) -> 'JsonTokenizer':
  import tokenizers  # not above: most decoding needs no text

  file = folder / JSON
  with explain_errors(file):
    content = read_bytes(file).removeprefix(MARK)
    parsed = parse_json(content)
    check_growth(parsed, file)
    tokenizer = tokenizers.Tokenizer.from_buffer(content)
  check_vocabulary(parsed['model'], _texts_of_added(tokenizer), file)
  kind = ''
  if (folder / SETTINGS).is_file():
    kind = find_class(folder, model_type)
  around = around_text(folder, kind, tokenizer)
  with explain_errors(folder / SETTINGS):
    apply_settings(tokenizer, folder, kind)
  return JsonTokenizer(tokenizer, file, kind, around)


def _by_transformers(folder: pathlib.Path, model_type: str | None, default_class: str) -> Any:
  """Reads the files of a tokenizer without tokenizer.json; runs no code of the folder."""
  _check_files(folder)
  os.environ.setdefault('TRANSFORMERS_VERBOSITY', 'error')  # it would advise to install PyTorch
  with extras.explained():
    import transformers
  has_vocabulary = default_class != 'M2M100Tokenizer' or (folder / 'vocab.json').is_file()
  if not has_vocabulary and not find_class(folder, model_type):
    raise UserError(
      f'{folder} has a sentencepiece.bpe.model of an unknown class: name the class in {SETTINGS},'
      ' such as {"tokenizer_class": "NllbTokenizer"}'
    )
  reader: Any = transformers.AutoTokenizer
  # For a Llama without a class, AutoTokenizer drops the space that belongs before a text.
  if read_config(folder).tokenizer_class is None and model_type in (None, *LLAMAS):
    reader = getattr(transformers, default_class)
  with explain_errors(folder):
    made = reader.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
  kind = type(made).__name__
  if not isinstance(made, transformers.PreTrainedTokenizerFast):
    return PythonTokenizer(made, folder, kind)
  tokenizer = made.backend_tokenizer
  check_vocabulary(json.loads(tokenizer.to_str())['model'], _texts_of_added(tokenizer), folder)
  around = None
  if kind not in OF_LANGUAGES:  # the library's own template has the language
    around = around_text(folder, kind, tokenizer)
  return JsonTokenizer(tokenizer, folder, kind, around)


def _check_files(folder: pathlib.Path) -> None:
  """Refuses damaged files, some of which `transformers` would mistake for other kinds."""
  for name in TOKENIZER_FILES:
    file = folder / name
    if not file.is_file():
      continue
    if name.endswith('.json'):
      for piece, token in read_json(file).items():
        if name in NUMBERED and (type(token) is not int or not 0 <= token < MOST_IDS):
          raise UserError(
            f'{file} gives {quote(piece)} the id {quote(token)}, which must be a whole number from'
            ' 0: copy it again'
          )
    if name.endswith(('.model', '.spm')):
      from fastdec.data.text.sentencepiece import make_processor  # of an extra

      try:
        processor = make_processor(read_bytes(file))
      except (OSError, ValueError, RuntimeError):
        with contextlib.suppress(OSError):
          if OF_TIKTOKEN.match(read_bytes(file)):
            raise UserError(
              f"{file} is tiktoken's, which is not supported: add the {JSON} of the same model"
            ) from None
        raise damage(file, 'is not a SentencePiece model') from None
      if name == 'tokenizer.model':  # `transformers` finds the pairs of its pieces
        find_joins(processor.id_to_piece(list(range(processor.vocab_size()))), file)


def _texts_of_added(tokenizer: Any) -> set[str]:
  """Returns the tokens that are found in a text before it is cut."""
  return {token.content for token in tokenizer.get_added_tokens_decoder().values()}


@contextlib.contextmanager
def explain_errors(file: pathlib.Path) -> Iterator[None]:
  """Turns any exception of a library about a file or a folder into a UserError."""
  try:
    yield
  except (KeyboardInterrupt, SystemExit, UserError):
    raise
  except BaseException as error:  # Rust's panics are not even of the class Exception
    lines = str(error).strip().splitlines() or [type(error).__name__]
    reason, advice = f'cannot be read ({quote(lines[0])})', 'copy it again'
    if file.is_dir():
      reason = f'has a tokenizer that {reason}'
      advice = f'add its {JSON}, or fix tokenizer_class in {SETTINGS}'
    with contextlib.suppress(OSError, ValueError):
      content = parse_json(read_bytes(file))
      if isinstance(content, dict) and 'model' in content:
        reason = f'is complete, but the installed library tokenizers cannot read it ({error})'
        advice = 'it may need a newer one, run pip install -U tokenizers'
    raise damage(file, reason, advice) from None


class _Tokenizer(Chats, abc.ABC):
  """What both kinds of tokenizers share.

  `source` is the file or the folder that was read, `kind` its class in `transformers`, if known.
  `cleans` is true if spaces before punctuation are removed from texts (`spelling.clean_up`).
  """

  def __init__(self, tokenizer: Any, source: pathlib.Path, kind: str):
    self._tokenizer, self._source, self._kind = tokenizer, source, kind
    self.folder = source if source.is_dir() else source.parent
    self.cleans = bool(read_config(self.folder).clean_up_tokenization_spaces)

  @property
  @abc.abstractmethod
  def special(self) -> dict[int, str]:
    """The tokens that texts do not show, by their ids; it may be changed."""

  def hide(self, ids: Iterable[int]) -> None:
    """Counts ids that end texts as special, even if the tokenizer's own files do not."""
    for token in ids:
      if token >= 0:
        self.special.setdefault(token, *self.pieces([token]))

  def special_names(self) -> dict[str, str]:
    return special_tokens(self.folder, self._kind) if self.folder else {}

  @abc.abstractmethod
  def pieces(self, ids: Sequence[int]) -> list[str]:
    """Returns the piece of each id; '<unk>' for ids without one."""

  @abc.abstractmethod
  def encode(self, text: str, special: bool = True) -> list[int]:
    """Returns the ids of a text; with special ones around it, if `special`."""

  def encode_lines(self, lines: Iterable[str]) -> list[list[int]]:
    """Encodes many texts; see `encode`."""
    return [self.encode(line) for line in lines]

  def save(self, folder: pathlib.Path) -> None:
    """Copies the tokenizer's files; tokenizer_config.json then names the class if it is known."""
    assert self.folder is not None
    for name in TOKENIZER_FILES:
      if (self.folder / name).is_file():
        shutil.copy(self.folder / name, folder / name)
    copy_templates(self.folder, folder)
    content = read_if_there(folder / SETTINGS)
    if self._kind:
      content['tokenizer_class'] = self._kind
    write_json(folder / SETTINGS, content)


class JsonTokenizer(_Tokenizer):
  """A tokenizer of the library `tokenizers`."""

  def __init__(
    self,
    tokenizer: Any,
    source: pathlib.Path,
    kind: str,
    around: tuple[list[int], list[int]] | None = None,
  ):
    super().__init__(tokenizer, source, kind)
    self._around = around
    self.cleans &= type(tokenizer.model).__name__ != 'BPE'  # as in `transformers`
    with explain_errors(source):
      tokenizer.no_truncation()  # the file may contain settings of its training
      tokenizer.no_padding()
      tokenizer.encode('')  # a template with unknown tokens fails only here

  @property
  def vocab_size(self) -> int:
    """Number of ids, the added ones included."""
    return self._tokenizer.get_vocab_size()

  @functools.cached_property
  def special(self) -> dict[int, str]:
    added = self._tokenizer.get_added_tokens_decoder()
    return {token: one.content for token, one in added.items() if one.special}

  def encode(self, text: str, special: bool = True) -> list[int]:
    check_text(text)
    with explain_errors(self._source):
      ids = self._tokenizer.encode(text, add_special_tokens=special and self._around is None).ids
    if special and self._around is not None:
      before, after = self._around
      ids = [*before, *ids, *after]
    return ids

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of ids, special ones left out."""
    shown_ids = [int(token) for token in ids if int(token) not in self.special]
    text = self._tokenizer.decode(shown_ids, skip_special_tokens=True)
    return clean_up(text) if self.cleans else text

  def pieces(self, ids: Sequence[int]) -> list[str]:
    """Returns the piece of each id; '<unk>' for ids without one."""
    return [self._tokenizer.id_to_token(int(token)) or '<unk>' for token in ids]

  def token_bytes(self) -> list[bytes]:
    """Returns the bytes that each id writes; b'' for special ones and ids without a piece.

    Raises:
      UserError: the text of a token depends on its neighbours.
    """
    decoder = self._tokenizer.decoder
    spell = decoder and choose_speller(json.loads(decoder.__getstate__()))
    if not spell:
      raise UserError(
        f'a constraint needs a tokenizer of bytes, as in GPT-2, or of pieces in which ▁ is a space:'
        f' in {self._source} the text of a token depends on its neighbours'
      )
    ids = self._tokenizer.get_vocab()
    words = [b''] * (1 + max(ids.values(), default=-1))
    for piece, token in ids.items():
      words[token] = spell(piece)
    for token, added in self._tokenizer.get_added_tokens_decoder().items():
      words[token] = added.content.encode()
    for token in self.special.keys() & ids.values():
      words[token] = b''
    unknown = getattr(self._tokenizer.model, 'unk_token', None)
    if unknown in ids:
      words[ids[unknown]] = b''
    return words

  def save(self, folder: pathlib.Path) -> None:
    """Also writes tokenizer.json, so that reading the folder does not need `transformers`."""
    super().save(folder)
    if not (folder / JSON).is_file():
      self._tokenizer.save(str(folder / JSON))


class PythonTokenizer(_Tokenizer):
  """A tokenizer that `transformers` has in Python only: Marian's, and M2M-100's."""

  def __init__(self, tokenizer: Any, source: pathlib.Path, kind: str):
    super().__init__(tokenizer, source, kind)
    languages = getattr(tokenizer, 'lang_token_to_id', {})  # M2M-100's vocabulary lacks them
    self._names = {token: piece for piece, token in (tokenizer.get_vocab() | languages).items()}
    special = {*tokenizer.all_special_ids, *languages.values()}
    self._special = {token: self._names[token] for token in special & self._names.keys()}
    self.encode('')  # a vocabulary without '<unk>' fails only here

  @property
  def vocab_size(self) -> int:
    """Number of ids, those without a piece included."""
    return 1 + max(self._names)

  @property
  def special(self) -> dict[int, str]:
    return self._special

  def encode(self, text: str, special: bool = True) -> list[int]:
    check_text(text)
    with explain_errors(self._source):
      return self._tokenizer.encode(text, add_special_tokens=special)

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of ids; special ones and ids without a piece are left out."""
    words = self._names.keys() - self._special.keys()
    return self._tokenizer.decode([int(token) for token in ids if int(token) in words])

  def pieces(self, ids: Sequence[int]) -> list[str]:
    """Returns the piece of each id; '<unk>' for ids without one."""
    return [self._names.get(int(token), '<unk>') for token in ids]

  def token_bytes(self) -> list[bytes]:
    """Returns the bytes that each id writes; b'' for special ones and ids without a piece."""
    words = [b''] * self.vocab_size
    for token, piece in self._names.items():
      if token not in self._special:
        words[token] = spell_spaces(piece)
    return words
