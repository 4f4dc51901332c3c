"""Inputs of a decode, checked before anything is compiled, and made into a `Prompt`.

Each shape needs a compiled program, so there are few. Padded prompts have one of few widths
(`width_of`), and the loop has room for one of few numbers of tokens (`room_of`). The most tokens
that a row may emit are data.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fastdec.decoding.protocol import Prompt
from fastdec.decoding.settings import MOST_TOKENS, size
from fastdec.errors import UserError
from fastdec.models.api import Model, source_words

DEFAULT_MAX_LEN = 64
IDS, PICTURES = (
  'integer ids of shape [rows, tokens]',
  ('pictures of shape [rows, height, width, channels]'),
)
LEAST_WIDTH = 16
# widths double up to here; beyond it, where padding costs more, there are four an octave
DOUBLED_TO = 512


def most_of(max_len: Any, max_new_tokens: Any) -> Any:
  """Returns the most tokens that a row may emit, which has two names; None: neither is given.

  Raises:
    UserError: both are given.
  """
  if max_len is not None and max_new_tokens is not None:
    raise UserError('max_len and max_new_tokens are two names of one number: give one of them')
  return max_new_tokens if max_len is None else max_len


def checked(
  model: Model, inputs: Any, lengths: Any, prefix: Any, max_len: Any, key: Any
) -> tuple[int, Prompt, Array | None]:
  """Returns max_len, the prompt and one key a row; see `decode` for the arguments and errors."""
  if max_len is None:
    max_len = model.fixed_length or DEFAULT_MAX_LEN
  allowed = 'at least 1, a whole number of tokens that a row may emit'
  max_len = size('max_len', max_len, 1, allowed, MOST_TOKENS)
  prompt = prompt_of(model, inputs, lengths, prefix, max_len)
  check_positions(model, prompt, max_len)
  return max_len, prompt, None if key is None else row_keys(key, prompt.tokens.shape[0])


def prompt_of(
  model: Model, inputs: Any, lengths: Any, prefix: Any, max_len: int | None = None
) -> Prompt:
  """Returns the encoder's inputs and the decoder's first tokens; see `decode` for the arguments.

  Calls of NumPy are few on purpose: between two texts of a few milliseconds, all their data leaves
  the processor's caches.
  """
  forced = model.start_id is not None
  is_text = not forced or model.fixed_length is None  # pictures have a shape of their own
  own_lengths = None
  if is_text:
    inputs, own_lengths = ids_of('inputs', inputs, source_words(model), model.pad_id)
  else:
    inputs = numbers_of('inputs', inputs, PICTURES)
  if not inputs.ndim or not inputs.size:
    raise UserError(
      f'inputs of shape {list(inputs.shape)} hold nothing to decode: give at least'
      ' one row and column'
    )
  b, tokens = inputs.shape[0], inputs
  if not forced and prefix is not None:
    raise UserError('a decoder-only model takes no prefix: put it at the end of the prompt')
  if forced:
    tokens = np.full((b, 1), model.start_id, np.int32)
    own_lengths = None
  if prefix is not None:
    prefix, own_lengths = ids_of('prefix', prefix, model.vocab_size, model.pad_id)
    if len(prefix) != b:
      raise UserError(f'prefix has {len(prefix)} rows, and inputs have {b}: give one for each')
    tokens = np.concatenate([tokens, prefix], axis=1)
  empty, nothing = np.zeros(b, bool), (model.pad_id, *model.eos_ids)
  if forced and is_text and any(first in nothing for first in inputs[:, 0].tolist()):
    empty = np.isin(inputs, nothing).all(1)
  if forced and prefix is None and lengths is not None:
    raise UserError(
      'prompt_lengths are of prefixes, and there are none: pad sources with the pad'
      ' id, or give lists'
    )
  source = inputs if forced else None
  length = _lengths_of(lengths, own_lengths, b, tokens.shape[1] - forced, least=1 - forced) + forced
  limit = None if max_len is None else np.full(b, max_len, np.int32)
  return Prompt(source, tokens.astype(np.int32, copy=False), length, empty, limit)


def ids_of(
  name: str, given: Any, words: int, pad_id: int
) -> tuple[Int[np.ndarray, 'b t'], Int[np.ndarray, ' b'] | None]:
  """Returns ids as one array, shorter rows padded, and the lengths if rows have different ones.

  Raises:
    UserError: something else than rows of ids, or ids outside the vocabulary.
  """
  rows = [numbers_of(name, row, IDS) for row in given] if isinstance(given, list | tuple) else []
  lengths = None
  if all(row.ndim == 1 for row in rows) and len({len(row) for row in rows}) > 1:
    check_ids(name, np.concatenate(rows)[None], words)
    lengths = np.array([len(row) for row in rows], int)
    given = np.full((len(rows), lengths.max()), pad_id, np.int32)
    for row, own in zip(given, rows, strict=True):
      row[: len(own)] = own
  ids = numbers_of(name, given, IDS)
  check_ids(name, ids, words)
  return ids.astype(np.int32, copy=False), lengths


def rows_of(name: str, given: Any, words: int) -> list[Int[np.ndarray, ' _']]:
  """Returns rows of ids, unpadded. Errors are those of `ids_of`."""
  if not isinstance(given, list | tuple):
    given = np.atleast_1d(numbers_of(name, given, IDS))
  rows = [numbers_of(name, row, IDS) for row in given]
  if rows:
    one = next((row for row in rows if row.ndim != 1), None)
    # a single id is of a row that stands alone
    check_ids(name, np.concatenate(rows)[None] if one is None else np.atleast_1d(one), words)
  return rows


def numbers_of(name: str, given: Any, wanted: str) -> np.ndarray:
  """Returns the argument as an array; an empty one is of integers."""
  try:
    array = np.asarray(given)
  except (TypeError, ValueError):  # rows within rows, or no array at all
    array = np.asarray(None)
  if array.dtype.kind not in 'biuf':
    kind = type(given).__name__
    raise UserError(
      f'{name} must be {wanted}, not {kind}' + (': use the tokenizer' if wanted == IDS else '')
    )
  return array if array.size else array.astype(np.int32)


def _lengths_of(
  given: Any, own: Int[np.ndarray, ' b'] | None, rows: int, width: int, least: int
) -> Int[np.ndarray, ' b']:
  """Returns the number of tokens that count in each row: as given, else the row's own length."""
  if given is None and own is None and width >= least:
    return np.full(rows, width, np.int32)
  own = np.full(rows, width) if own is None else own
  lengths = own if given is None else numbers_of('prompt_lengths', given, f'{rows} numbers')
  if (
    lengths.shape != (rows,)
    or lengths.dtype.kind not in 'iu'
    or (lengths < least).any()
    or (lengths > own).any()
  ):
    if given is None:
      raise UserError(f'prompt {int(own.argmin())} is empty: give at least one token')
    most = width if (own == width).all() else "their prompt's own length"
    raise UserError(
      f'prompt_lengths must be {rows} numbers from {least} to {most}, not {lengths.tolist()}'
    )
  return lengths.astype(np.int32)


def check_ids(name: str, ids: np.ndarray, words: int) -> None:
  """Raises UserError for ids outside the vocabulary.

  They would be clamped silently, and decode to plausible text."""
  if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
    one = ': give one row as [ids]' if ids.ndim == 1 else ''
    raise UserError(f'{name} must be {IDS}, not {ids.dtype}{list(ids.shape)}{one}')
  if ids.size and not 0 <= ids.min() <= ids.max() < words:
    span = f'{ids.min()} to {ids.max()}'
    raise UserError(
      f'{name} have ids from {span}, and the model knows 0 to {words - 1}: use its tokenizer'
    )


def check_positions(model: Model, prompt: Prompt, max_len: int) -> None:
  """Raises UserError if the source, or prompt and output, exceed the model's positions."""
  limit = model.max_positions
  if limit is None:
    return
  s = 0 if prompt.inputs is None or prompt.inputs.ndim != 2 else prompt.inputs.shape[1]
  if s > limit:
    raise UserError(
      f"a source of {s} tokens exceeds the model's {limit} positions: shorten or split it"
    )
  check_room(int(prompt.length.max()), max_len, limit)


def check_room(
  tokens: int,
  max_len: int,
  limit: int,
  name: str = 'a prompt',
  setting: str = 'max_len',
  whose: str = "the model's",
  other: str = '',
) -> None:
  """Raises UserError if a prompt of so many tokens, or it and its output, exceed the positions."""
  if tokens > limit:
    raise UserError(
      f'{name} of {tokens} tokens exceeds {whose} {limit} positions: shorten it{other}'
    )
  room = limit - tokens + 1  # the last token is never fed back
  if max_len > room:
    asked = f'{setting}={max_len} exceeds'
    if tokens > 1:  # not a start token alone
      asked = f'{name} of {tokens} tokens and {setting}={max_len} exceed'
    raise UserError(f'{asked} {whose} {limit} positions: lower {setting} to {room} or less{other}')


def row_keys(key: Any, rows: int) -> Array:
  """Returns one key a row, so that rows draw the same alone, with the same row keys, or batched."""
  try:
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
      key = jax.random.wrap_key_data(key)
  except (AttributeError, TypeError, ValueError):
    raise UserError(f'key={key!r} is no random key: give jax.random.key(0), for example') from None
  if key.shape not in ((), (rows,)):
    raise UserError(
      f'key has shape {list(key.shape)}: give one key, or one for each of the {rows} rows'
    )
  return key if key.ndim else jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(rows))


def padded(model: Model, prompt: Prompt) -> Prompt:
  """Pads the prompt and its source to one of few widths, within the model's positions.

  A start token alone stays alone, and pictures stay as they are."""
  if model.fixed_length is not None:
    return prompt
  inputs = None if prompt.inputs is None else _wide(model, prompt.inputs)
  is_start = model.start_id is not None and prompt.tokens.shape[1] == 1
  tokens = prompt.tokens if is_start else _wide(model, prompt.tokens)
  return Prompt(inputs, tokens, prompt.length, prompt.empty, prompt.limit)


def _wide(model: Model, ids: Int[np.ndarray, 'b t']) -> Int[np.ndarray, 'b wide']:
  b, t = ids.shape
  width, limit = _width_of(t), model.max_positions
  if limit is not None:
    width = max(min(width, limit), t)
  filled = np.full((b, width), model.pad_id, ids.dtype)
  filled[:, :t] = ids
  return filled


@functools.cache
def _width_of(length: int) -> int:
  return int(width_of(np.array(length)))


def width_of(lengths: Int[np.ndarray, '*n']) -> Int[np.ndarray, '*n']:
  """Returns the smallest of 16, 32, 64, ..., 512, then as in `room_of`, that holds each length.

  >>> width_of(np.array([3, 16, 17, 40, 513])).tolist()
  [16, 16, 32, 64, 640]
  """
  doubled = 2 ** np.ceil(np.log2(np.maximum(lengths, LEAST_WIDTH))).astype(int)
  return np.where(lengths <= DOUBLED_TO, doubled, _four_an_octave(lengths))


def room_of(model: Model, max_len: int) -> int:
  """Returns the tokens that a loop makes room for if a row may emit `max_len`.

  It is `max_len` if all outputs of the model have one length. Else it is rounded up to 16, 32, 48,
  ..., 128, 160, 192, 224, 256, 320, ...: each slot costs time at every call."""
  return max_len if model.fixed_length is not None else _room_of(max_len)


@functools.cache
def _room_of(max_len: int) -> int:
  return int(_four_an_octave(np.array(max_len)))


def _four_an_octave(n: Int[np.ndarray, '*n']) -> Int[np.ndarray, '*n']:
  """Rounds up to a multiple of a quarter of the power of two below, and of 16 at least."""
  octave = 2 ** np.floor(np.log2(np.maximum(n - 1, 1))).astype(int)
  step = np.maximum(LEAST_WIDTH, octave // 4)
  return np.asarray(-(-n // step) * step)
