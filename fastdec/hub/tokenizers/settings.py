"""The settings that come with tokenizer.json, read as the classes of `transformers` read them.

They name the special tokens, add tokens, and say which tokens begin and end a text.
"""

import dataclasses
import pathlib
from typing import Annotated, Any

from fastdec.errors import UserError
from fastdec.fields import Between, quote, read
from fastdec.hub.tokenizers.chat import (
  OF_CLASSES,
  SETTINGS,
  named_tokens,
  read_if_there,
  special_tokens,
)


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
# tokenizer_config.json, not by tokenizer.json: the start by default, the end on request.
AROUND = ('LlamaTokenizer', 'CodeLlamaTokenizer', 'GemmaTokenizer')
LLAMAS = ('llama', 'mistral')  # their folders have Llama's tokenizer if they name no class
OF_MODELS = {**dict.fromkeys(LLAMAS, 'LlamaTokenizer'), 'mbart': 'MBartTokenizer'}
# Classes that add the source's language to a text, and the language without src_lang.
OF_LANGUAGES = {'NllbTokenizer': 'eng_Latn', 'MBartTokenizer': 'en_XX', 'MBart50Tokenizer': 'en_XX'}
FLAGS = ('special', 'lstrip', 'rstrip', 'single_word', 'normalized')  # of an added token
PLAIN = ('', 'PreTrainedTokenizer', 'TokenizersBackend')  # classes without settings of their own


def read_config(folder: pathlib.Path) -> TokenizerConfig:
  """Reads tokenizer_config.json, if there is one."""
  return read(
    TokenizerConfig, read_if_there(folder / SETTINGS), f'{folder / SETTINGS}', ': ', ignores=True
  )


def around_text(
  folder: pathlib.Path, kind: str, tokenizer: Any
) -> tuple[list[int], list[int]] | None:
  """Returns the ids around a text by tokenizer_config.json; None: the tokenizer adds its own."""
  kind, config = kind.removesuffix('Fast'), read_config(folder)
  if kind in OF_LANGUAGES:
    # A source has its language at one of its ends, unless the tokenizer lacks that language.
    language = tokenizer.token_to_id(config.src_lang or OF_LANGUAGES[kind])
    end = tokenizer.token_to_id(special_tokens(folder).get('eos_token', '</s>'))
    if language is None and config.src_lang is not None:
      raise UserError(
        f'{folder / SETTINGS} has src_lang={quote(config.src_lang)}, which the tokenizer does not'
        ' have: fix it'
      )
    if language is None or end is None:
      return None
    if kind == 'MBartTokenizer' or (kind == 'NllbTokenizer' and config.legacy_behaviour):
      return [], [end, language]
    return [language], [end]
  if kind not in AROUND:
    return None

  # Other texts have a start and an end, if the settings want them.
  tokens = OF_CLASSES[kind] | special_tokens(folder, kind)
  before, after, wanted = [], [], []
  if config.add_bos_token is not False:
    wanted.append((before, tokens['bos_token']))
  if config.add_eos_token:
    wanted.append((after, tokens['eos_token']))
  for ids, text in wanted:
    number = tokenizer.token_to_id(text)
    if number is None:
      raise UserError(
        f'{folder / SETTINGS} puts {quote(text)} around texts, which the tokenizer does not have:'
        ' fix bos_token, eos_token, add_bos_token or add_eos_token'
      )
    ids.append(number)
  return before, after


def find_class(folder: pathlib.Path, model_type: str | None) -> str:
  """Returns the class that the settings of tokenizer or model name; '' if none does."""
  kind = read_config(folder).tokenizer_class
  if kind is None:
    kind = read_if_there(folder / 'config.json').get('tokenizer_class')
  if isinstance(kind, str):
    return kind
  return OF_MODELS.get(str(model_type), '')


def apply_settings(tokenizer: Any, folder: pathlib.Path, kind: str) -> None:
  """Applies the settings that come with a tokenizer.json, as the class of `transformers` does."""
  from tokenizers import pre_tokenizers

  config = read_config(folder)
  if config.split_special_tokens:
    tokenizer.encode_special_tokens = True

  # A tokenizer of bytes may put a space before a text.
  if config.add_prefix_space is not None and kind.removesuffix('Fast') not in PLAIN:
    parts = tokenizer.pre_tokenizer
    if not isinstance(parts, pre_tokenizers.Sequence):
      parts = [parts]
    for part in parts:
      if isinstance(part, pre_tokenizers.ByteLevel):
        part.add_prefix_space = config.add_prefix_space

  # Add the tokens that tokenizer.json lacks. One with a name, such as eos_token, becomes special.
  numbered = sorted((config.added_tokens_decoder or {}).items(), key=lambda pair: int(pair[0]))
  tokens = [_make_token(token) for _, token in numbered]
  known = {
    token.content: token for token in (*tokenizer.get_added_tokens_decoder().values(), *tokens)
  }
  named = named_tokens(folder)
  for name, named_token in named_tokens(folder, kind).items():
    token = _make_token(named_token)
    if name not in named and tokenizer.token_to_id(token.content) is None:
      continue  # a class's own token, which the tokenizer lacks
    token = known.get(token.content, token)
    token.special = True
    tokens.append(token)
  extra = config.extra_special_tokens or config.additional_special_tokens or ()
  if not isinstance(extra, dict):  # `named_tokens` has the tokens of a dict
    for token in map(_make_token, extra):
      token.special = True
      if token.content not in known:
        tokens.append(token)
  tokenizer.add_tokens([token for token in tokens if token.content])


def _make_token(token: str | dict[str, Any]) -> Any:
  """Makes an added token of the library from its form in a settings file."""
  import tokenizers

  if isinstance(token, str):
    return tokenizers.AddedToken(token, special=True)
  flags = {name: token[name] for name in FLAGS if name in token}
  return tokenizers.AddedToken(token['content'], **flags)
