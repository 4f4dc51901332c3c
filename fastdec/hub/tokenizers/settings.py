"""What the settings beside tokenizer.json say of it, as the classes of `transformers` read them.

They name the special tokens, add tokens, and say what stands around a text.
"""

import dataclasses
import pathlib
from typing import Annotated, Any

from fastdec.errors import UserError
from fastdec.fields import Between, read, shown
from fastdec.files import read_json
from fastdec.hub.tokenizers.chat import SETTINGS, named_tokens, special_tokens


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
  """Fields of tokenizer_config.json, by its names; null counts as absent."""

  tokenizer_class: str | None = None
  add_bos_token: bool | None = None
  add_eos_token: bool | None = None
  bos_token: str | dict | None = None
  eos_token: str | dict | None = None
  extra_ids: Annotated[int, Between(0, 9999)] | None = None  # T5's sentinels
  added_tokens_decoder: dict | None = None
  additional_special_tokens: tuple[str | dict, ...] | None = None
  extra_special_tokens: tuple[str | dict, ...] | dict | None = None  # the newer name
  add_prefix_space: bool | None = None
  split_special_tokens: bool | None = None
  src_lang: str | None = None
  legacy_behaviour: bool | None = None  # NLLB's first order
  clean_up_tokenization_spaces: bool | None = None


# Classes for which `transformers` 4 puts start and end around a text by the two flags of
# tokenizer_config.json, whatever tokenizer.json says: the start by default, the end on request.
# These tokens are the defaults.
AROUND = {
  'LlamaTokenizer': ('<s>', '</s>'),
  'CodeLlamaTokenizer': ('<s>', '</s>'),
  'GemmaTokenizer': ('<bos>', '<eos>'),
}
LLAMAS = ('llama', 'mistral')  # of which a folder without a class has Llama's tokenizer
OF_MODELS = {**dict.fromkeys(LLAMAS, 'LlamaTokenizer'), 'mbart': 'MBartTokenizer'}
# Classes that put the source's language beside a text, and the language without src_lang.
OF_LANGUAGES = {'NllbTokenizer': 'eng_Latn', 'MBartTokenizer': 'en_XX', 'MBart50Tokenizer': 'en_XX'}
FLAGS = ('special', 'lstrip', 'rstrip', 'single_word', 'normalized')  # of an added token
PLAIN = ('', 'PreTrainedTokenizer', 'TokenizersBackend')  # classes without settings of their own


def config_of(folder: pathlib.Path) -> TokenizerConfig:
  """Reads tokenizer_config.json, if there is one."""
  content = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
  return read(TokenizerConfig, content, f'{folder / SETTINGS}', ': ', ignores=True)


def around_text(
  folder: pathlib.Path, kind: str, tokenizer: Any
) -> tuple[list[int], list[int]] | None:
  """Returns the ids around a text by tokenizer_config.json; None: the tokenizer adds its own."""
  kind, config = kind.removesuffix('Fast'), config_of(folder)
  if kind in OF_LANGUAGES:
    return _around_source(folder, kind, tokenizer)
  if kind not in AROUND:
    return None

  def id_of(token: str | dict | None, default: str) -> int:
    if isinstance(token, dict):
      text = token.get('content')
    else:
      text = token or default
    number = tokenizer.token_to_id(text) if isinstance(text, str) else None
    if number is None:
      raise UserError(
        f'{folder / SETTINGS} puts {shown(text)} around texts, which the tokenizer does not have:'
        ' mend bos_token, eos_token, add_bos_token or add_eos_token'
      )
    return number

  start, end = AROUND[kind]
  before = [] if config.add_bos_token is False else [id_of(config.bos_token, start)]
  after = [id_of(config.eos_token, end)] if config.add_eos_token else []
  return before, after


def _around_source(
  folder: pathlib.Path, kind: str, tokenizer: Any
) -> tuple[list[int], list[int]] | None:
  """Returns the ids around a source; None if the tokenizer lacks the language of the class."""
  config = config_of(folder)
  language = tokenizer.token_to_id(config.src_lang or OF_LANGUAGES[kind])
  end = tokenizer.token_to_id(special_tokens(folder).get('eos_token', '</s>'))
  if language is None and config.src_lang is not None:
    raise UserError(
      f'{folder / SETTINGS} has src_lang={shown(config.src_lang)}, which the tokenizer does not'
      ' have: mend it'
    )
  if language is None or end is None:
    return None
  is_behind = kind == 'MBartTokenizer' or (kind == 'NllbTokenizer' and config.legacy_behaviour)
  return ([], [end, language]) if is_behind else ([language], [end])


def class_of(folder: pathlib.Path, model_type: str | None) -> str:
  """Returns the class that the settings of tokenizer or model name; '' if none does."""
  kind = config_of(folder).tokenizer_class
  if kind is None and (folder / 'config.json').is_file():
    kind = read_json(folder / 'config.json').get('tokenizer_class')
  return kind if isinstance(kind, str) else OF_MODELS.get(str(model_type), '')


def heed_settings(tokenizer: Any, folder: pathlib.Path, kind: str) -> None:
  """Applies the settings beside a tokenizer.json, as the class of `transformers` does."""
  config = config_of(folder)
  if config.split_special_tokens:
    tokenizer.encode_special_tokens = True
  has_class = kind.removesuffix('Fast') not in PLAIN
  if config.add_prefix_space is not None and has_class:
    _set_prefix_space(tokenizer, config.add_prefix_space)

  # Add the tokens that tokenizer.json lacks. One with a name, such as eos_token, becomes special.
  numbered = sorted((config.added_tokens_decoder or {}).items(), key=lambda pair: int(pair[0]))
  extra = config.extra_special_tokens or config.additional_special_tokens or ()
  listed = () if isinstance(extra, dict) else extra
  tokens = [_added(token) for _, token in numbered]
  known = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
  known |= {token.content: token for token in tokens}
  for token in map(_added, named_tokens(folder).values()):
    token = known.get(token.content, token)
    token.special = True
    tokens.append(token)
  for token in map(_added, listed):
    token.special = True
    if token.content not in known:
      tokens.append(token)
  tokenizer.add_tokens([token for token in tokens if token.content])


def _set_prefix_space(tokenizer: Any, is_set: bool) -> None:
  """Lets a tokenizer of bytes put a space before a text, or not."""
  import tokenizers

  parts = tokenizer.pre_tokenizer
  for part in parts if isinstance(parts, tokenizers.pre_tokenizers.Sequence) else [parts]:
    if isinstance(part, tokenizers.pre_tokenizers.ByteLevel):
      part.add_prefix_space = is_set


def _added(token: str | dict[str, Any]) -> Any:
  """Returns an added token of a settings file as the library has it."""
  import tokenizers

  if isinstance(token, str):
    return tokenizers.AddedToken(token, special=True)
  flags = {name: token[name] for name in FLAGS if name in token}
  return tokenizers.AddedToken(token['content'], **flags)
