"""Inputs of a decode, checked before anything is compiled, and made into a `Prompt`.

The sizes that they are padded to are chosen later (`sizes`)."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt

from fastdec.decoding.protocol import Prompt
from fastdec.decoding.settings import MOST_TOKENS, check_one_per_row, size
from fastdec.errors import UserError
from fastdec.models.api import NO_TOKEN, Model, source_pad, source_words

DEFAULT_MAX_LEN = 64
IDS, PICTURES = (
  'integer ids of shape [rows, tokens]',
  ('pictures of shape [rows, height, width, channels]'),
)
LEAST_SHARED = 32  # tokens


def checked(
  model: Model, inputs: Any, lengths: Any, prefix: Any, max_len: Any, key: Any
) -> tuple[int, Prompt, Array | None]:
  """Returns max_len, the prompt and one key a row; see `decode` for the arguments and errors.

  If rows have their own max_len, the largest is returned."""
  limit = limit_of(model, max_len)
  prompt = prompt_of(model, inputs, lengths, prefix)
  rows = prompt.tokens.shape[0]
  check_one_per_row('max_len', limit, rows)
  prompt = dataclasses.replace(prompt, limit=np.full(rows, limit, np.int32))
  check_prompt_positions(model, prompt, int(limit.max()))
  return int(limit.max()), prompt, None if key is None else row_keys(key, rows)


def limit_of(model: Model, max_len: Any) -> Int[np.ndarray, '*r']:
  """Returns the most tokens that all rows, or each row, may emit."""
  if max_len is None:
    max_len = model.fixed_length or DEFAULT_MAX_LEN
  allowed = 'at least 1, a whole number of tokens that a row may emit'
  if np.ndim(max_len) != 1 or not np.size(max_len):
    return np.asarray(size('max_len', max_len, 1, allowed, MOST_TOKENS))
  return np.array([size('max_len', one, 1, allowed, MOST_TOKENS) for one in max_len])


def prompt_of(model: Model, inputs: Any, lengths: Any, prefix: Any) -> Prompt:
  """Returns the encoder's inputs and the decoder's first tokens; see `decode` for the arguments.

  Calls of NumPy are few on purpose: between two texts of a few milliseconds, all their data leaves
  the processor's caches.
  """
  forced = model.start_id is not None
  is_text = not forced or model.fixed_length is None  # pictures have a shape of their own
  own_lengths = None
  if is_text:
    inputs, own_lengths = ids_of('inputs', inputs, source_words(model), source_pad(model))
    if forced:
      inputs, _ = _right_padded(model, 'source', inputs, own_lengths)
      inputs = _ended_once(model, inputs)
    elif lengths is None:
      inputs, own_lengths = _right_padded(model, 'prompt', inputs, own_lengths)
    else:
      _check_pads(model, inputs, lengths)
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
    if lengths is None:
      prefix, own_lengths = _right_padded(model, 'prefix', prefix, own_lengths)
    if len(prefix) != b:
      raise UserError(f'prefix has {len(prefix)} rows, and inputs have {b}: give one for each')
    tokens = np.concatenate([tokens, prefix], axis=1)
  empty, nothing = np.zeros(b, bool), (model.pad_id, source_pad(model), *model.eos_ids)
  if forced and is_text and any(first in nothing for first in inputs[:, 0].tolist()):
    empty = np.isin(inputs, nothing).all(1)
  if forced and prefix is None and lengths is not None:
    raise UserError(
      'prompt_lengths are of prefixes, and there are none: pad sources with the pad'
      ' id, or give lists'
    )
  source = inputs if forced else None
  length = _lengths_of(lengths, own_lengths, b, tokens.shape[1] - forced, least=1 - forced) + forced
  return Prompt(source, tokens.astype(np.int32, copy=False), length, empty)


def ids_of(
  name: str, values: Any, words: int, pad_id: int
) -> tuple[Int[np.ndarray, 'b t'], Int[np.ndarray, ' b'] | None]:
  """Returns ids as one array, shorter rows padded, and the lengths if rows have different ones.

  Raises:
    UserError: something else than rows of ids, or ids outside the vocabulary.
  """
  rows = []
  if isinstance(values, list | tuple):
    rows = [numbers_of(name, row, IDS) for row in values]
  lengths = None
  if all(row.ndim == 1 for row in rows) and len({len(row) for row in rows}) > 1:
    check_ids(name, np.concatenate(rows)[None], words)
    lengths = np.array([len(row) for row in rows], int)
    values = np.full((len(rows), lengths.max()), pad_id, np.int32)
    for row, own in zip(values, rows, strict=True):
      row[: len(own)] = own
  ids = numbers_of(name, values, IDS)
  check_ids(name, ids, words, min(pad_id, 0))
  return ids.astype(np.int32, copy=False), lengths


def without_left_pads(
  model: Model, name: str, i: int, row: Int[np.ndarray, ' t']
) -> Int[np.ndarray, ' t']:
  """Returns a source, prompt or prefix without the pads before it, as other tools write them.

  A pad may begin a text where it is an end or a start too, or where the model does not say what
  its start is. There one pad is text.

  Raises:
    UserError: several may be text or padding.
  """
  if not row.size or row[0] != model.pad_id:
    return row
  leading = int((row != model.pad_id).argmax())  # 0: there are only pads
  if not _pad_may_begin(model, name):
    return row[leading:]
  if leading > 1:
    raise UserError(
      f'{name} {i} begins with {leading} pad ids ({model.pad_id}), which may be text here: give'
      ' lists without padding, or pad on the right'
    )
  return row


def _pad_may_begin(model: Model, name: str) -> bool:
  """True if the pad id may begin a text: it is an end, a start, or the start is not known."""
  bos_id = getattr(model, 'bos_id', model.pad_id)
  first = {'source': None, 'prompt': bos_id, 'prefix': model.start_id}[name]
  return model.pad_id in (*model.eos_ids, first)


def _right_padded(
  model: Model, name: str, ids: Int[np.ndarray, 'b t'], lengths: Int[np.ndarray, ' b'] | None
) -> tuple[Int[np.ndarray, 'b t'], Int[np.ndarray, ' b'] | None]:
  """Moves rows that are padded on the left; returns the ids and the rows' lengths."""
  if not ids.size or not (ids[:, 0] == model.pad_id).any():
    return ids, lengths
  own = np.full(len(ids), ids.shape[1]) if lengths is None else lengths
  rows = [
    without_left_pads(model, name, i, row[:n])
    for i, (row, n) in enumerate(zip(ids, own, strict=True))
  ]
  if all(len(row) == n for row, n in zip(rows, own, strict=True)):
    return ids, lengths
  words = source_words(model) if name == 'source' else model.vocab_size
  return ids_of(name, rows, words, model.pad_id)


def _check_pads(model: Model, ids: Int[np.ndarray, 'b t'], lengths: Any) -> None:
  """Raises UserError for prompts whose `prompt_lengths` leave out just the pads on their left."""
  leading = (ids != model.pad_id).argmax(1)
  is_left = (leading > _pad_may_begin(model, 'prompt')) & (ids[:, -1] != model.pad_id)
  counted = np.asarray(lengths) if np.shape(lengths) == leading.shape else leading
  wrong = np.flatnonzero(is_left & (leading + counted == ids.shape[1]))
  if wrong.size:
    i = wrong[0]
    raise UserError(
      f'prompt {i} is padded on the left by {leading[i]} ids, and prompt_lengths count from there:'
      ' leave prompt_lengths out, pad on the right, or give lists without padding'
    )


def _ended_once(model: Model, inputs: Int[np.ndarray, 'b s']) -> Int[np.ndarray, 'b s']:
  """Marks padding where the pad id is an end too: the first one behind a row's text is its end."""
  if source_pad(model) == model.pad_id:
    return inputs
  places = np.arange(inputs.shape[1])[None]
  last = np.where(np.isin(inputs, (model.pad_id, NO_TOKEN)), 0, places + 1).max(1, keepdims=True)
  return np.where(places <= last, inputs, NO_TOKEN)


def unpadded_rows(name: str, values: Any, words: int) -> list[Int[np.ndarray, ' _']]:
  """Returns rows of ids, unpadded. Errors are those of `ids_of`."""
  if not isinstance(values, list | tuple):
    values = np.atleast_1d(numbers_of(name, values, IDS))
  rows = [numbers_of(name, row, IDS) for row in values]
  if rows:
    one = next((row for row in rows if row.ndim != 1), None)
    # a single id is of a row that stands alone
    check_ids(name, np.concatenate(rows)[None] if one is None else np.atleast_1d(one), words)
  return rows


def numbers_of(name: str, values: Any, wanted: str) -> np.ndarray:
  """Returns the argument as an array; an empty one is of integers."""
  try:
    array = np.asarray(values)
  except (TypeError, ValueError):  # rows within rows, or no array at all
    array = np.asarray(None)
  if array.dtype.kind not in 'biuf':
    kind = type(values).__name__
    raise UserError(
      f'{name} must be {wanted}, not {kind}' + (': use the tokenizer' if wanted == IDS else '')
    )
  return array if array.size else array.astype(np.int32)


def _lengths_of(
  values: Any, own: Int[np.ndarray, ' b'] | None, rows: int, width: int, least: int
) -> Int[np.ndarray, ' b']:
  """Returns the number of tokens in each row: the caller's, else the row's own length."""
  if values is None and own is None and width >= least:
    return np.full(rows, width, np.int32)
  own = np.full(rows, width) if own is None else own
  lengths = own if values is None else numbers_of('prompt_lengths', values, f'{rows} numbers')
  if (
    lengths.shape != (rows,)
    or lengths.dtype.kind not in 'iu'
    or (lengths < least).any()
    or (lengths > own).any()
  ):
    if values is None:
      raise UserError(f'prompt {int(own.argmin())} is empty: give at least one token')
    most = width if (own == width).all() else "their prompt's own length"
    raise UserError(
      f'prompt_lengths must be {rows} numbers from {least} to {most}, not {lengths.tolist()}'
    )
  return lengths.astype(np.int32)


def check_ids(name: str, ids: np.ndarray, words: int, least: int = 0) -> None:
  """Raises UserError for ids outside the vocabulary.

  They would be clamped silently, and decode to plausible text."""
  if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
    one = ': give one row as [ids]' if ids.ndim == 1 else ''
    raise UserError(f'{name} must be {IDS}, not {ids.dtype}{list(ids.shape)}{one}')
  if ids.size and not least <= ids.min() <= ids.max() < words:
    span = f'{ids.min()} to {ids.max()}'
    raise UserError(
      f'{name} have ids from {span}, and the model knows 0 to {words - 1}: use its tokenizer'
    )


def check_prompt_positions(model: Model, prompt: Prompt, max_len: int) -> None:
  """Raises UserError if the source, or prompt and output, exceed the model's positions."""
  limit = model.max_positions
  if limit is None:
    return
  s = 0 if prompt.inputs is None or prompt.inputs.ndim != 2 else prompt.inputs.shape[1]
  if s > limit:
    raise UserError(
      f"a source of {s} tokens exceeds the model's {limit} positions: shorten or split it"
    )
  own = np.full(prompt.length.shape, max_len) if prompt.limit is None else prompt.limit
  longest = (prompt.length + own).argmax()
  check_positions(int(prompt.length[longest]), int(own[longest]), limit)


def check_positions(
  tokens: int,
  max_len: int,
  limit: int,
  name: str = 'a prompt',
  setting: str = 'max_len',
  whose: str = "the model's",
  other: str = '',
) -> None:
  """Raises UserError if a prompt of `tokens`, or it and its output, exceed the positions."""
  if tokens > limit:
    raise UserError(
      f'{name} of {tokens} tokens exceeds {whose} {limit} positions: shorten it{other}'
    )
  most = limit - tokens + 1  # the last token is never fed back
  if max_len > most:
    excess = f'{setting}={max_len} exceeds'
    if tokens > 1:  # not a start token alone
      excess = f'{name} of {tokens} tokens and {setting}={max_len} exceed'
    raise UserError(f'{excess} {whose} {limit} positions: lower {setting} to {most} or less{other}')


def row_keys(key: Any, rows: int) -> Array:
  """Returns one key a row, so that rows draw the same alone, with the same row keys, or batched."""
  try:
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
      key = jax.random.wrap_key_data(key)
    key = _threefry(key)
  except (AttributeError, TypeError, ValueError):
    raise UserError(f'key={key!r} is no random key: give jax.random.key(0), for example') from None
  if key.shape not in ((), (rows,)):
    raise UserError(
      f'key has shape {list(key.shape)}: give one key, or one for each of the {rows} rows'
    )
  return key if key.ndim else jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(rows))


def _threefry(key: Array) -> Array:
  """Returns keys of JAX's default kind, made of all words of others.

  Under `vmap` others, such as 'rbg', draw for all rows by the first key."""
  plain = jax.random.key(0, impl='threefry2x32')
  if key.dtype == plain.dtype:
    return key
  words = jax.random.key_data(key).reshape(*key.shape, -1)

  def made(words: UInt[Array, ' n']) -> Array:
    return functools.reduce(jax.random.fold_in, words, plain)

  return jax.vmap(made)(words) if key.ndim else made(words)


def shared(model: Model, prompt: Prompt) -> Prompt:
  """Finds what is the same in all rows: the beginning of prompts (`begun_alike`), or the source."""
  tokens, inputs = prompt.tokens, prompt.inputs
  if len(tokens) == 1:
    return prompt
  if inputs is not None and inputs.ndim != 2:  # pictures: the model itself checks them
    return prompt
  if inputs is not None:
    return dataclasses.replace(prompt, one_source=bool((inputs == inputs[:1]).all()))
  rows = [row[:n] for row, n in zip(tokens, prompt.length.tolist(), strict=True)]
  return dataclasses.replace(prompt, shared=begun_alike(model, rows))


def begun_alike(model: Model, rows: Sequence[Int[np.ndarray, ' _']]) -> int:
  """Returns the tokens that all rows begin with, fewer than any has: its last one is its own.

  The number is cut to one of few: 32, 48, 64, 96, 128, 192, ..., or to 0."""
  if getattr(model, 'reads_length', True) and len({len(row) for row in rows}) > 1:
    return 0
  same = len(rows[0]) - 1
  for row in rows:
    same = min(same, len(row) - 1)
    differs = row[:same] != rows[0][:same]
    same = int(differs.argmax()) if differs.any() else same
  octave = 2 ** (max(same, 1).bit_length() - 1)
  length = octave * 3 // 2 if same >= octave * 3 // 2 else octave
  return length if length >= LEAST_SHARED else 0
