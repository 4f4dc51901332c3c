"""Tokenizers of Hugging Face folders: tokenizer.json, vocab.json and merges.txt, or SentencePiece.

.encode(str) -> list[int]     with the special ids that the folder's models expect around a text,
                              or without them: special=False
.encode_lines(lines)          the same of many
.decode(ids) -> str           without special ids
.pieces(ids) -> list[str]     the text of each id, special ones included
.token_bytes() -> list[bytes] the bytes that each id of the vocabulary writes; none for special ones
"""

import abc
import contextlib
import dataclasses
import json
import pathlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from fastdec.errors import UserError
from fastdec.fields import Between, read, shown
from fastdec.files import (
  POINTER,
  check_text,
  damaged,
  parse_json,
  read_bytes,
  read_json,
  text_of,
  write_json,
)
from fastdec.folders.folder import TOKENIZER_FILES
from fastdec.hub.tokenizers.chat import SETTINGS, SPECIAL, Chats
from fastdec.hub.tokenizers.spelling import of_spaces, speller

MARIAN = ('source.spm', 'target.spm', 'vocab.json')
PIECES = ('tokenizer.model', 'spiece.model')
FAIRSEQ = 'sentencepiece.bpe.model'
MERGES = ('vocab.json', 'merges.txt')
ADDED = 'added_tokens.json'


@dataclasses.dataclass(frozen=True)
class Said:
  """Fields of tokenizer_config.json, by its names; null counts as absent."""

  tokenizer_class: str | None = None
  add_bos_token: bool | None = None
  add_eos_token: bool | None = None
  bos_token: str | dict | None = None
  eos_token: str | dict | None = None
  added_tokens_decoder: dict | None = None
  add_prefix_space: bool | None = None
  legacy: bool | None = None
  extra_ids: Annotated[int, Between(0, 9999)] | None = None
  additional_special_tokens: tuple[str | dict, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Added:
  """A token beside the model's pieces, by the names of `added_tokens_decoder`."""

  content: str
  lstrip: bool = False  # takes the spaces before it
  rstrip: bool = False
  special: bool = False  # left out of decoded text
  normalized: bool = False
  single_word: bool = False


# Classes for which `transformers` 4 puts start and end around a text by the two flags of
# tokenizer_config.json, whatever tokenizer.json says: the start by default, the end on request.
# These tokens are the defaults.
AROUND = {
  'LlamaTokenizer': ('<s>', '</s>'),
  'CodeLlamaTokenizer': ('<s>', '</s>'),
  'GemmaTokenizer': ('<bos>', '<eos>'),
}
OF_MODELS = {'llama': 'LlamaTokenizer', 'mistral': 'LlamaTokenizer'}  # without a class

# Where words end, by the classes that have vocab.json and merges.txt; None: as in GPT-2.
WORDS = {
  'GPT2Tokenizer': None,
  'CodeGenTokenizer': None,
  'Qwen2Tokenizer': (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r'|\s*[\r\n]+|\s+(?!\S)|\s+'
  ),
}


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
  if (folder / FAIRSEQ).is_file():
    return FairseqTokenizer(folder)
  if all((folder / name).is_file() for name in MERGES):
    return MergesTokenizer(folder / 'vocab.json', model_type)
  looked = ', '.join(('tokenizer.json', *PIECES, FAIRSEQ, ' + '.join(MARIAN), ' + '.join(MERGES)))
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
    reason, advice = f'cannot be read ({error})', 'copy it again'
    with contextlib.suppress(OSError, ValueError):
      content = parse_json(read_bytes(file))
      if isinstance(content, dict) and 'model' in content:
        reason = f'is whole, but the installed library tokenizers cannot read it ({error})'
        advice = 'it may be of a newer one, run pip install -U tokenizers'
    raise damaged(file, reason, advice) from None


class Spelt:
  """Tokens that a text may spell out, by their names; the longest goes first, as in `transformers`.

  >>> Spelt({2: Added('</s>'), 9: Added('<mask>', lstrip=True)}).split('a <mask> b</s>')
  ['a', 9, ' b', 2]
  """

  def __init__(self, tokens: Mapping[int, Added]):
    self.tokens = tokens
    self._ids = {token.content: i for i, token in tokens.items()}
    names = sorted(filter(None, self._ids), key=len, reverse=True)
    self._any = re.compile(f'({"|".join(map(re.escape, names))})') if names else None

  def split(self, text: str) -> list[str | int]:
    """Returns the texts between the tokens, and the tokens' ids."""
    if self._any is None:
      return [text]
    parts, found = self._any.split(text), []
    for i in range(1, len(parts), 2):
      token = self.tokens[self._ids[parts[i]]]
      if token.lstrip:
        parts[i - 1] = parts[i - 1].rstrip()
      if token.rstrip:
        parts[i + 1] = parts[i + 1].lstrip()
    for i, part in enumerate(parts):
      if part:
        found.append(self._ids[part] if i % 2 else part)
    return found


class _Tokenizer(Chats, abc.ABC):
  """The part that all kinds share."""

  model_type: str | None = None  # of config.json

  @abc.abstractmethod
  def encode(self, text: str, special: bool = True) -> list[int]:
    """Returns the ids of a text; with special ones around it, if `special`."""

  def save(self, folder: pathlib.Path) -> None:
    """Copies the tokenizer's files; tokenizer_config.json tells what config.json told."""
    assert self.folder is not None
    for name in TOKENIZER_FILES:
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
    self._file, self.folder, self.model_type = file, file.parent, model_type
    with _explained(file):
      self._tokenizer = self._opened(model_type)
      self._tokenizer.no_truncation()  # the file may keep settings of its training
      self._tokenizer.no_padding()
      self._tokenizer.encode('')  # a template with unknown tokens fails only in use
    self._around = self._said_around(file.parent, model_type)

  def _opened(self, model_type: str | None) -> Any:
    import tokenizers  # not above: most decoding needs no text

    return tokenizers.Tokenizer.from_buffer(read_bytes(self._file))

  @property
  def vocab_size(self) -> int:
    """Number of ids, the added ones included."""
    return self._tokenizer.get_vocab_size()

  def encode(self, text: str, special: bool = True) -> list[int]:
    """Returns the ids of a text; with special ones around it, if `special`."""
    before, after = (self._around if special else None) or ([], [])
    check_text(text)
    with _explained(self._file):
      ids = self._tokenizer.encode(text, add_special_tokens=special and self._around is None).ids
    return [*before, *ids, *after]

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of ids, special ones left out."""
    return self._tokenizer.decode([int(token) for token in ids], skip_special_tokens=True)

  def pieces(self, ids: Sequence[int]) -> list[str]:
    """Returns the piece of each id; '<unk>' for ids without one."""
    return [self._tokenizer.id_to_token(int(token)) or '<unk>' for token in ids]

  def token_bytes(self) -> list[bytes]:
    """Returns the bytes that each id writes; b'' for special ones and ids without a piece.

    Raises:
      UserError: a decoder that makes the text of a token depend on its neighbours.
    """
    decoder = self._tokenizer.decoder
    spell = speller(None if decoder is None else json.loads(decoder.__getstate__()))
    if spell is None:
      raise UserError(
        f'{self._file} decodes tokens by more than their own bytes: constraints need a tokenizer of'
        ' bytes, as of GPT-2, or of pieces in which ▁ is a space'
      )
    ids = self._tokenizer.get_vocab()
    found = [b''] * (1 + max(ids.values(), default=-1))
    for piece, token in ids.items():
      found[token] = spell(piece)
    for token, added in self._tokenizer.get_added_tokens_decoder().items():
      found[token] = b'' if added.special else added.content.encode()
    unknown = getattr(self._tokenizer.model, 'unk_token', None)
    if unknown in ids:
      found[ids[unknown]] = b''
    return found

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


class MergesTokenizer(JsonTokenizer):
  """vocab.json and merges.txt of bytes, as GPT-2 and Qwen2 have them."""

  def _opened(self, model_type: str | None) -> Any:
    import tokenizers
    from tokenizers import decoders, normalizers, pre_tokenizers

    folder = self._file.parent
    said = _settings(folder)
    kind = (said.tokenizer_class or '').removesuffix('Fast')
    if not kind:
      kind = 'Qwen2Tokenizer' if str(model_type).startswith('qwen') else 'GPT2Tokenizer'
    if kind not in WORDS:
      raise UserError(
        f'{folder} has vocab.json and merges.txt of a {kind}, which are read of'
        f' {", ".join(WORDS)} alone: make a tokenizer.json of them (`transformers`:'
        ' AutoTokenizer.from_pretrained, then save_pretrained)'
      )
    words = WORDS[kind]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(_numbered(self._file), self._merges()))
    made.decoder = decoders.ByteLevel()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(said.add_prefix_space))
    if words is not None:
      made.normalizer = normalizers.NFC()
      split = pre_tokenizers.Split(tokenizers.Regex(words), 'isolated')
      level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
      made.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    added = _added(folder, said)
    if not added and made.token_to_id('<|endoftext|>') is not None:
      made.add_special_tokens(['<|endoftext|>'])  # of both classes
    for token, one in sorted(added.items()):
      fields = dataclasses.asdict(one)
      made.add_tokens([tokenizers.AddedToken(**fields)])
      if made.token_to_id(one.content) != token:
        raise UserError(
          f'{folder} numbers the added token {shown(one.content)} as {token}, which is not the'
          f' next free id, {made.token_to_id(one.content)}: copy the folder again'
        )
    return made

  def _merges(self) -> list[tuple[str, str]]:
    """Reads merges.txt: two pieces on each line."""
    file = self._file.with_name('merges.txt')
    try:
      lines = text_of(read_bytes(file), file).split('\n')
    except OSError as error:
      raise UserError(f'cannot read {file} ({error.strerror}): copy it again') from None
    if lines[0].startswith(POINTER.decode()):
      raise damaged(file, 'holds no merges')
    found = []
    for number, line in enumerate(lines, 1):
      pair = line.split()
      if not pair or (number == 1 and line.startswith('#version')):
        continue
      if len(pair) != 2:
        raise damaged(file, f'has {len(pair)} pieces on line {number} and not two')
      found.append((pair[0], pair[1]))
    return found

  def _said_around(
    self, folder: pathlib.Path, model_type: str | None
  ) -> tuple[list[int], list[int]] | None:
    """Returns the ids around a text: a start, if tokenizer_config.json asks for it."""
    said = _settings(folder)
    has_start = said.add_bos_token and said.tokenizer_class != 'Qwen2Tokenizer'
    return (self._ids_of(said.bos_token, '<|endoftext|>', folder) if has_start else [], [])


class PieceTokenizer(_Tokenizer):
  """A SentencePiece model whose piece numbers are the ids: Llama's with start, T5's with end.

  Texts may spell its control pieces, added tokens, and T5's sentinels, '<extra_id_0>'."""

  def __init__(self, file: pathlib.Path):
    self._pieces, self.folder = _sentencepiece(file), file.parent
    said, is_t5 = _settings(file.parent), file.name == 'spiece.model'
    # behind a token that a text spells out no space is put, but in T5
    self._later = self._pieces if is_t5 or said.legacy else _sentencepiece(file, NO_SPACE_BEFORE)
    count, spelt = self._pieces.vocab_size(), {}
    for i in range(count):
      if self._pieces.is_control(i) or self._pieces.is_unknown(i):
        spelt[i] = Added(self._pieces.id_to_piece(i), special=True)
    extra = (100 if said.extra_ids is None else said.extra_ids) if is_t5 else 0
    for i in range(extra):
      spelt[count + extra - 1 - i] = Added(f'<extra_id_{i}>', True, True, special=True)
    self._spelt = Spelt(spelt | _added(file.parent, said))
    self._add_bos = (
      not is_t5 if said.add_bos_token is None else said.add_bos_token
    ) and self._pieces.bos_id() >= 0
    self._add_eos = is_t5 if said.add_eos_token is None else said.add_eos_token

  @property
  def vocab_size(self) -> int:
    """Number of ids: of pieces, and of added tokens."""
    return max(self._pieces.vocab_size(), *(i + 1 for i in self._spelt.tokens))

  def encode(self, text: str, special: bool = True) -> list[int]:
    """Returns the ids of a text; with special ones around it, if `special`."""
    ids = [self._pieces.bos_id()] * (special and self._add_bos)
    for i, part in enumerate(self._spelt.split(check_text(text))):
      if isinstance(part, int):
        ids.append(part)
      elif i and part[0] == ' ' and part.strip():  # some models would strip its space
        ids += self._pieces.encode(part[1:])
      else:
        ids += (self._later if i else self._pieces).encode(part)
    return ids + [self._pieces.eos_id()] * (special and self._add_eos)

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of ids, without special ones, the unknown piece, and ids beyond."""
    text, run = '', []
    for token in map(int, ids):
      added = self._spelt.tokens.get(token)
      if added is None and token < self._pieces.vocab_size():
        run.append(token)
      elif added is not None and not added.special:
        text += self._written(run, bool(text)) + added.content
        run = []
    return text + self._written(run, bool(text))

  def _written(self, run: list[int], is_behind: bool) -> str:
    """Returns the text of pieces; behind an added token with the space that begins it."""
    begins = run and self._pieces.id_to_piece(run[0]).startswith('▁')
    return ' ' * bool(is_behind and begins) + self._pieces.decode(run)

  def pieces(self, ids: Sequence[int]) -> list[str]:
    """Returns the piece of each id; '<unk>' for ids beyond the pieces."""
    found = []
    for token in map(int, ids):
      added = self._spelt.tokens.get(token)
      is_piece = token < self._pieces.vocab_size()
      piece = self._pieces.id_to_piece(token) if is_piece else '<unk>'
      found.append(piece if added is None else added.content)
    return found

  def token_bytes(self) -> list[bytes]:
    """Returns the bytes that each id writes; b'' for special ones."""
    ids = range(self.vocab_size)
    found = [of_spaces(piece) for piece in self.pieces(ids)]
    for token in ids:
      added = self._spelt.tokens.get(token)
      if added is not None:
        found[token] = b'' if added.special else added.content.encode()
    return found


class MarianTokenizer(_Tokenizer):
  """Marian's tokenizer: it encodes by the source's model and decodes by the target's.

  vocab.json numbers the pieces; an end follows each text."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self._source, self._target = (_sentencepiece(folder / name) for name in MARIAN[:2])
    self._number(_numbered(folder / 'vocab.json'), ('</s>', '<unk>', '<pad>'))

  def _number(self, ids: dict[str, int], special: Sequence[str]) -> None:
    self._ids, self._names = ids, {token: piece for piece, token in ids.items()}
    if absent := [name for name in ('</s>', '<unk>') if name not in ids]:
      raise UserError(f'{self.folder}/vocab.json has no {" and no ".join(absent)}: copy it again')
    self._spelt = Spelt({ids[name]: Added(name, special=True) for name in special if name in ids})

  @property
  def vocab_size(self) -> int:
    """Number of ids, those without a piece included."""
    return 1 + max(self._names)

  def encode(self, text: str, special: bool = True) -> list[int]:
    """Returns the ids of a source sentence, and an end if `special`.

    The sentence may begin with a language, '>>fra<<'."""
    found = re.match('>>[^<]+<<', check_text(text))
    pieces = [found[0]] if found else []
    for part in self._spelt.split(text[found.end() :] if found else text):
      is_special = isinstance(part, int)
      pieces += [self._names[part]] if is_special else self._source.encode(part, out_type=str)
    pieces += ['</s>'] * special
    return [self._ids.get(piece, self._ids['<unk>']) for piece in pieces]

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of target ids, special ones left out."""
    special = {token.content for token in self._spelt.tokens.values()}
    return self._target.decode([piece for piece in self.pieces(ids) if piece not in special])

  def pieces(self, ids: Sequence[int]) -> list[str]:
    """Returns the piece of each id; '<unk>' for ids that are not in vocab.json."""
    return [self._names.get(int(token), '<unk>') for token in ids]

  def token_bytes(self) -> list[bytes]:
    """Returns the bytes that each id writes; b'' for special ones."""
    special = self._spelt.tokens
    pieces = enumerate(self.pieces(range(self.vocab_size)))
    return [b'' if token in special else of_spaces(piece) for token, piece in pieces]


class FairseqTokenizer(MarianTokenizer):
  """The tokenizer of M2M-100, NLLB and mBART: one model of pieces, and behind them languages.

  vocab.json numbers the pieces. Without it they follow four special ones, as in fairseq."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self._source = self._target = pieces = _sentencepiece(folder / FAIRSEQ)
    special, ids = ['<s>', '<pad>', '</s>', '<unk>'], {}
    if (folder / 'vocab.json').is_file():
      ids = _numbered(folder / 'vocab.json')
    else:
      names = [*special, *(pieces.id_to_piece(i) for i in range(3, pieces.vocab_size()))]
      ids = {name: i for i, name in enumerate(names)}
    said = _settings(folder)
    for token, one in _added(folder, said).items():
      ids[one.content] = token
      special.append(one.content)
    listed = said.additional_special_tokens or _settings(folder, SPECIAL).additional_special_tokens
    for one in listed or ():
      name = str(one.get('content') if isinstance(one, dict) else one)
      ids.setdefault(name, len(ids))
      special.append(name)
    self._number(ids, special)


def _settings(folder: pathlib.Path, name: str = SETTINGS) -> Said:
  """Reads tokenizer_config.json, or a file with some of its fields, if there is one."""
  given = read_json(folder / name) if (folder / name).is_file() else {}
  return read(Said, given, f'{folder / name}', ': ', ignores=True)


def _added(folder: pathlib.Path, said: Said) -> dict[int, Added]:
  """Reads the added tokens of a folder, by their ids."""
  found = {}
  if (folder / ADDED).is_file():
    numbered = _numbered(folder / ADDED)
    found = {token: Added(name, special=True) for name, token in numbered.items()}
  for token, one in (said.added_tokens_decoder or {}).items():
    where = f'{folder / SETTINGS}: added_tokens_decoder.{token}'
    if not re.fullmatch(r'\d{1,9}', token) or not isinstance(one, dict):
      raise UserError(f'{where} is not possible: give an id and its fields')
    found[int(token)] = read(Added, one, where, ignores=True)
  return found


def _numbered(file: pathlib.Path) -> dict[str, int]:
  """Reads a file of pieces and their ids."""
  ids = read_json(file)
  for piece, token in ids.items():
    if type(token) is not int or not 0 <= token < 2**31:
      raise UserError(f'{file} numbers {shown(piece)} by no whole number from 0: copy it again')
  return ids


NO_SPACE_BEFORE = b'\x1a\x02\x18\x00'  # behind a model: normalizer_spec.add_dummy_prefix = false


def _sentencepiece(file: pathlib.Path, more: bytes = b'') -> Any:
  from fastdec.data.text.sentencepiece import processor_of  # most folders have tokenizer.json

  try:
    content = read_bytes(file)
    return processor_of(content + more if content else content)
  except (OSError, ValueError, RuntimeError):
    raise damaged(file, 'is no SentencePiece model') from None
