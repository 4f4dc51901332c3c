"""Tokenizers in GGUF files, built from their metadata: byte-level BPE, and SentencePiece's BPE.

The metadata of byte-level ones name how text is cut before pieces are joined (tokenizer.ggml.pre);
`CUTS` has the expressions. SentencePiece's have a score for each piece: the best are joined first.
"""

import pathlib
from typing import Any

import numpy as np

from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.files import damage, write_json
from fastdec.hub.gguf.config import find_ends
from fastdec.hub.gguf.header import Header
from fastdec.hub.tokenizers.chat import SETTINGS, name_templates
from fastdec.hub.tokenizers.growth import check_vocabulary, find_joins
from fastdec.hub.tokenizers.huggingface import JSON, JsonTokenizer, explain_errors

KEY = 'tokenizer.ggml.'
NORMAL, CONTROL, OF_USERS = 1, 3, 4  # types of tokens
SPECIAL = {'bos': 'bos', 'eos': 'eos', 'unk': 'unknown', 'pad': 'padding'}  # names in the file
NAMED = tuple(  # all tokens with a role
  f'{KEY}{role}_token_id'
  for role in (*SPECIAL.values(), 'eot', 'eom', 'seperator', 'mask', 'cls', 'prefix', 'suffix',
  'middle', 'fim_pre', 'fim_suf', 'fim_mid', 'fim_pad', 'fim_rep', 'fim_sep')
)  # fmt: skip
SPACE = '▁'
BYTE = '<0x00>'  # the first of SentencePiece's bytes
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE = r'[^\r\n\p{L}\p{N}]?'
_SPACES = r'\s*[\r\n]+|\s+(?!\S)|\s+'
_LLAMA = rf'{_SHORT}|{_BEFORE}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}'
_QWEN = _LLAMA.replace('{1,3}', '')
_LOWER = r'[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+'
_UPPER = r'[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*'
_MARKS = rf' ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}'
_TEKKEN = rf'{_BEFORE}{_LOWER}|{_BEFORE}{_UPPER}|\p{{N}}|{_MARKS}'
_O200K = rf'{_BEFORE}{_LOWER}{_SHORT}?|{_BEFORE}{_UPPER}{_SHORT}?|\p{{N}}{{1,3}}|{_MARKS}'
DIGITS = 'digits'  # each digit is cut off, then as in GPT-2
CUTS = {  # by tokenizer.ggml.pre; None: as in GPT-2
  'gpt-2': None,
  'smollm': DIGITS, 'starcoder': DIGITS, 'refact': DIGITS,
  'llama-bpe': _LLAMA, 'llama3': _LLAMA, 'llama-v3': _LLAMA, 'dbrx': _LLAMA, 'smaug-bpe': _LLAMA,
  'qwen2': _QWEN, 'deepseek-r1-qwen': _QWEN,
  'tekken': _TEKKEN, 'gpt-4o': _O200K,
}  # fmt: skip
# These do not split a cut that is a piece, and begin a text with its start token by default.
WHOLE_CUTS = ('llama-bpe', 'llama3', 'llama-v3', 'tekken')
COMPOSED = ('qwen2', 'deepseek-r1-qwen')  # these first join accents with their letters
STRIPPED_AFTER = 'phi3'  # its special tokens swallow the spaces after them
NOT_STRIPPED = ('<unk>', '<s>', '<|endoftext|>')


def load_gguf(header: Header) -> 'GgufTokenizer':
  """Builds the tokenizer of a GGUF file.

  Raises:
    UserError: the file has no tokenizer, one of an unknown kind, or inconsistent metadata.
  """
  kind = header.text(f'{KEY}model')
  pieces = header.entries(f'{KEY}tokens')
  if kind is None or not pieces:
    raise UserError(f'{header.path} has no tokenizer: give a file that was converted with one')
  builders = {'gpt2': _byte_level, 'llama': _sentencepiece}
  if kind not in builders:
    raise UserError(
      f'{header.path} has a tokenizer of the kind {quote(kind)}, which is not supported: known are'
      f' {", ".join(builders)}'
    )

  # Number the pieces. llama.cpp writes spaces where SentencePiece writes marks.
  pieces = list(map(str, pieces))
  there, ids = set(pieces), {}
  for i, piece in enumerate(pieces):
    if not piece:
      pieces[i] = f'[EMPTY_{i}]'
    elif kind == 'llama' and not piece.strip(' ') and SPACE * len(piece) not in there:
      pieces[i] = SPACE * len(piece)
    if pieces[i] in ids:
      raise damage(header.path, f'has the token {quote(pieces[i])} twice')
    ids[pieces[i]] = i

  # Read the special tokens.
  special, settings = {}, {}
  for name, theirs in SPECIAL.items():
    token = header.number(f'{KEY}{theirs}_token_id')
    if token is None:
      continue
    if not 0 <= token < len(pieces):
      raise damage(header.path, f'says {KEY}{theirs}_token_id={token}, of {len(pieces):,} tokens')
    special[name] = token
    settings[f'{name}_token'] = pieces[token]
  settings['chat_template'] = _read_template(header)

  # Find the ids before and after a text.
  begins = header.flag(f'{KEY}add_bos_token')
  if begins is None:
    begins = 'bos' in special and (kind == 'llama' or header.text(f'{KEY}pre') in WHOLE_CUTS)
  before, after = [], []
  for name, is_wanted, ids_there in (
    ('bos', begins, before),
    ('eos', header.flag(f'{KEY}add_eos_token'), after),
  ):
    if is_wanted and name not in special:
      raise damage(header.path, f'puts a token around texts, and lacks {KEY}{name}_token_id')
    if is_wanted:
      ids_there.append(special[name])

  # Tokens that the file names are control tokens, whatever their types are.
  types = list(_read_array(header, 'token_type', len(pieces)) or [NORMAL] * len(pieces))
  for token in (*find_ends(header), *map(header.number, NAMED)):
    if token is not None and 0 <= token < len(pieces):
      types[token] = CONTROL
  added = {piece for piece, type_ in zip(pieces, types, strict=True) if type_ != NORMAL}

  # Build the tokenizer, and add the tokens that are found in a text before it is cut.
  with explain_errors(header.path):
    tokenizer = builders[kind](header, ids, special.get('unk'), added)
    _add_tokens(tokenizer, pieces, types, header.architecture)
  return GgufTokenizer(tokenizer, header.path, (before, after), settings)


def _read_array(header: Header, name: str, count: int) -> list[Any] | None:
  """Returns an array with an entry for each token."""
  values = header.entries(KEY + name)
  if values is not None and len(values) != count:
    raise damage(header.path, f'has {count:,} tokens, and {len(values):,} in {KEY}{name}')
  return values


def _read_template(header: Header) -> str | list[dict[str, str]] | None:
  """Returns the chat template in tokenizer_config.json's form: one, or a list of named ones."""
  key = 'tokenizer.chat_template'
  default = header.text(key)
  named = []
  for name in header.entries(f'{key}s') or []:
    text = header.text(f'{key}.{name}')
    if text is not None:
      named.append({'name': str(name), 'template': text})
  if not named:
    return default
  if default is not None:
    named.append({'name': 'default', 'template': default})
  return named


def _byte_level(header: Header, ids: dict[str, int], unknown: int | None, added: set[str]) -> Any:
  """Builds a byte-level tokenizer, as in GPT-2."""
  from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

  pre = header.text(f'{KEY}pre')
  if pre not in CUTS:
    raise UserError(
      f'{header.path} needs the unknown pre-tokenizer {quote(pre)}: known are {", ".join(CUTS)}'
    )
  merges = []
  for merge in header.entries(f'{KEY}merges') or []:
    left, _, right = str(merge).partition(' ')
    merges.append((left, right))
  check_vocabulary({'vocab': ids, 'merges': merges}, added, header.path)
  cut = CUTS[pre]
  tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=pre in WHOLE_CUTS))
  if pre in COMPOSED:
    tokenizer.normalizer = normalizers.NFC()
  if cut is None or cut == DIGITS:
    parts: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if cut == DIGITS:
      parts.insert(0, pre_tokenizers.Digits(individual_digits=True))
  else:
    parts = [
      pre_tokenizers.Split(Regex(cut), behavior='isolated'),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
  tokenizer.decoder = decoders.ByteLevel()
  return tokenizer


def _sentencepiece(
  header: Header, ids: dict[str, int], unknown: int | None, added: set[str]
) -> Any:
  """Builds a tokenizer of SentencePiece's BPE."""
  from tokenizers import Tokenizer, decoders, models, normalizers

  scores = _read_array(header, 'scores', len(ids))
  if header.architecture.startswith('gemma'):
    scores = [-i for i in range(len(ids))]  # Gemma's scores are not in the order of its merges
  if scores is None or (len(ids) > 1 and len({*scores}) == 1):
    raise damage(header.path, 'has a tokenizer without scores, or all alike', 'convert it again')
  if unknown is None and BYTE not in ids:
    raise damage(header.path, f'has a tokenizer without bytes and {KEY}unknown_token_id')
  unknown_piece = None
  if unknown is not None:
    unknown_piece = list(ids)[unknown]

  # Find the pairs of pieces that make a piece, the best first, and for a piece the longest first.
  pieces = list(ids)
  joins, lengths = find_joins(pieces, header.path), np.array(list(map(len, pieces)))
  first, second, whole = joins.T
  order = np.lexsort((-lengths[second], -lengths[first], -np.array(scores, np.float64)[whole]))
  merges = [(pieces[left], pieces[right]) for left, right, _ in joins[order].tolist()]
  tokenizer = Tokenizer(
    models.BPE(ids, merges, unk_token=unknown_piece, fuse_unk=True, byte_fallback=True)
  )

  # Write spaces as marks, most often with one before the text, and decode them.
  normalize: list[Any] = [normalizers.Replace(' ', SPACE)]
  decode: list[Any] = [decoders.Replace(SPACE, ' '), decoders.ByteFallback(), decoders.Fuse()]
  if header.flag(f'{KEY}add_space_prefix') is not False:
    normalize.insert(0, normalizers.Prepend(SPACE))
    decode.append(decoders.Strip(' ', 1, 0))
  tokenizer.normalizer = normalizers.Sequence(normalize)
  tokenizer.decoder = decoders.Sequence(decode)
  return tokenizer


def _add_tokens(tokenizer: Any, pieces: list[str], types: list[Any], architecture: str) -> None:
  """Marks tokens that are found in a text before it is cut: special ones, and users' own."""
  from tokenizers import AddedToken

  added = {CONTROL: [], OF_USERS: []}
  for piece, kind in zip(pieces, types, strict=True):
    if kind in added:
      strips = architecture == STRIPPED_AFTER and kind == CONTROL and piece not in NOT_STRIPPED
      added[kind].append(AddedToken(piece, normalized=False, rstrip=strips))
  tokenizer.add_special_tokens(added[CONTROL])
  tokenizer.add_tokens(added[OF_USERS])


class GgufTokenizer(JsonTokenizer):
  """A tokenizer in a GGUF file; `settings` is the content of its tokenizer_config.json."""

  def __init__(
    self,
    tokenizer: Any,
    source: pathlib.Path,
    around: tuple[list[int], list[int]],
    settings: dict[str, Any],
  ):
    super().__init__(tokenizer, source, '', around)
    self.folder, self._settings = None, settings

  def templates(self) -> dict[str, str]:
    return name_templates(self._settings.get('chat_template'))

  def special_names(self) -> dict[str, str]:
    return {name: text for name, text in self._settings.items() if name.endswith('_token')}

  def save(self, folder: pathlib.Path) -> None:
    """Writes tokenizer.json, which puts the same ids around a text, and tokenizer_config.json."""
    from tokenizers import Tokenizer, processors

    copy = Tokenizer.from_str(self._tokenizer.to_str())
    before, after = self._around or ([], [])
    special = {copy.id_to_token(token): token for token in (*before, *after)}
    names = list(map(copy.id_to_token, (*before, *after)))
    copy.post_processor = processors.TemplateProcessing(
      single=[*names[: len(before)], '$A', *names[len(before) :]],
      special_tokens=list(special.items()),
    )
    copy.save(str(folder / JSON))
    write_json(folder / SETTINGS, self._settings)
