"""Inputs of a decode, checked before anything is compiled, and made into a `Prompt`.

The sizes that they are padded to are chosen later (`sizes`)."""

import dataclasses
import functools
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


def check_inputs(
  model: Model, inputs: Any, lengths: Any, prefix: Any, max_len: Any, key: Any
) -> tuple[int, Prompt, Array | None]:
  """Returns max_len, the prompt and one key a row; see `decode` for the arguments and errors.

  If rows have their own max_len, the largest is returned."""
  if max_len is None:
    max_len = model.fixed_length or DEFAULT_MAX_LEN
  allowed = 'at least 1, a whole number of tokens that a row may emit'
  if np.ndim(max_len) != 1 or not np.size(max_len):
    limit = np.asarray(size('max_len', max_len, 1, allowed, MOST_TOKENS))
  else:
    limit = np.array([size('max_len', one, 1, allowed, MOST_TOKENS) for one in max_len])
  prompt = make_prompt(model, inputs, lengths, prefix)
  rows = len(prompt.tokens)
  check_one_per_row('max_len', limit, rows)
  prompt = dataclasses.replace(prompt, limit=np.full(rows, limit, np.int32))
  check_prompt_positions(model, prompt, int(limit.max()))
  keys = None if key is None else make_row_keys(key, rows)
  return int(limit.max()), prompt, keys


def make_prompt(model: Model, inputs: Any, lengths: Any, prefix: Any) -> Prompt:
  """Returns the encoder's inputs and the decoder's first tokens; see `decode` for the arguments.

  It calls NumPy as rarely as it can: between two texts of a few milliseconds, all its data leaves
  the processor's caches.
  """
  has_source = model.start_id is not None
  is_text = not has_source or model.fixed_length is None  # pictures have another shape
  own_lengths = None

  # Read the source, or the prompt of a decoder-only model.
  if is_text:
    inputs, own_lengths = pad_ids('inputs', inputs, source_words(model), source_pad(model))
    if has_source:
      inputs, _ = _move_left_pads(model, 'source', inputs, own_lengths)
      inputs = _mark_padding(model, inputs)
    elif lengths is None:
      inputs, own_lengths = _move_left_pads(model, 'prompt', inputs, own_lengths)
    else:
      _check_pads(model, inputs, lengths)
  else:
    inputs = read_numbers('inputs', inputs, PICTURES)
  if not inputs.ndim or not inputs.size:
    raise UserError(
      f'inputs of shape {list(inputs.shape)} hold nothing to decode: give at least'
      ' one row and column'
    )

  # After a source the decoder begins with its start token, and perhaps with a prefix.
  b, source, tokens = inputs.shape[0], None, inputs
  if not has_source and prefix is not None:
    raise UserError('a decoder-only model takes no prefix: put it at the end of the prompt')
  if has_source:
    source, own_lengths = inputs, None
    tokens = np.full((b, 1), model.start_id, np.int32)
  if prefix is not None:
    prefix, own_lengths = pad_ids('prefix', prefix, model.vocab_size, model.pad_id)
    if lengths is None:
      prefix, own_lengths = _move_left_pads(model, 'prefix', prefix, own_lengths)
    if len(prefix) != b:
      raise UserError(f'prefix has {len(prefix)} rows, and inputs have {b}: give one for each')
    tokens = np.concatenate([tokens, prefix], axis=1)
  elif has_source and lengths is not None:
    raise UserError(
      'prompt_lengths count the tokens of prefixes, and there are none: pad sources with the pad'
      ' id, or give lists'
    )

  # A source of padding and ends only has nothing to decode.
  empty, nothing = np.zeros(b, bool), (model.pad_id, source_pad(model), *model.eos_ids)
  if has_source and is_text and any(first in nothing for first in inputs[:, 0].tolist()):
    empty = np.isin(inputs, nothing).all(1)
  width, least = tokens.shape[1] - has_source, 1 - has_source
  length = _check_lengths(lengths, own_lengths, b, width, least) + has_source
  return Prompt(source, tokens.astype(np.int32, copy=False), length, empty)


def pad_ids(
  name: str, values: Any, words: int, pad_id: int
) -> tuple[Int[np.ndarray, 'b t'], Int[np.ndarray, ' b'] | None]:
  """Returns ids as one array, shorter rows padded, and the lengths if rows have different ones.

  Raises:
    UserError: values that are not rows of ids, or ids outside the vocabulary.
  """
  rows, lengths = [], None
  if isinstance(values, list | tuple):
    rows = [read_numbers(name, row, IDS) for row in values]
  if all(row.ndim == 1 for row in rows) and len({len(row) for row in rows}) > 1:
    check_ids(name, np.concatenate(rows)[None], words)
    lengths = np.array([len(row) for row in rows], int)
    values = np.full((len(rows), lengths.max()), pad_id, np.int32)
    for row, own in zip(values, rows, strict=True):
      row[: len(own)] = own
  ids = read_numbers(name, values, IDS)
  check_ids(name, ids, words, min(pad_id, 0))
  return ids.astype(np.int32, copy=False), lengths


def _move_left_pads(
  model: Model, name: str, ids: Int[np.ndarray, 'b t'], lengths: Int[np.ndarray, ' b'] | None
) -> tuple[Int[np.ndarray, 'b t'], Int[np.ndarray, ' b'] | None]:
  """Moves rows that are padded on the left, as other tools write them; returns ids and lengths.

  A pad may begin a text if the model also uses it as an end or a start, or if its start is unknown.
  Then one pad is text.

  Raises:
    UserError: several may be text or padding.
  """
  if not ids.size or not (ids[:, 0] == model.pad_id).any():
    return ids, lengths
  own = np.full(len(ids), ids.shape[1]) if lengths is None else lengths
  is_text = (ids != model.pad_id) & (np.arange(ids.shape[1])[None] < own[:, None])
  leading = is_text.argmax(1)  # 0 in rows of only pads
  if _pad_may_begin(model, name):
    if leading.max() > 1:
      i = int((leading > 1).argmax())
      raise UserError(
        f'{name} {i} begins with {leading[i]} pad ids ({model.pad_id}), which may be text here:'
        ' give lists without padding, or pad on the right'
      )
    return ids, lengths
  if not leading.any():
    return ids, lengths
  rows = [row[first:end] for row, first, end in zip(ids, leading, own, strict=True)]
  words = source_words(model) if name == 'source' else model.vocab_size
  return pad_ids(name, rows, words, model.pad_id)


def _pad_may_begin(model: Model, name: str) -> bool:
  """True if the pad id may begin a text: it is an end, a start, or the start is not known."""
  bos_id = getattr(model, 'bos_id', model.pad_id)
  first = {'source': None, 'prompt': bos_id, 'prefix': model.start_id}[name]
  return model.pad_id in (*model.eos_ids, first)


def _check_pads(model: Model, ids: Int[np.ndarray, 'b t'], lengths: Any) -> None:
  """Raises UserError for prompts whose `prompt_lengths` leave out only the pads on their left."""
  leading = (ids != model.pad_id).argmax(1)
  is_left = (leading > _pad_may_begin(model, 'prompt')) & (ids[:, -1] != model.pad_id)
  if np.shape(lengths) != leading.shape:
    lengths = leading
  wrong = np.flatnonzero(is_left & (leading + np.asarray(lengths) == ids.shape[1]))
  if wrong.size:
    i = wrong[0]
    raise UserError(
      f'prompt {i} is padded on the left by {leading[i]} ids, and prompt_lengths count from there:'
      ' leave prompt_lengths out, pad on the right, or give lists without padding'
    )


def _mark_padding(model: Model, inputs: Int[np.ndarray, 'b s']) -> Int[np.ndarray, 'b s']:
  """Marks padding if the pad id is also an end: the first one after a row's text is its end."""
  if source_pad(model) == model.pad_id:
    return inputs
  places = np.arange(inputs.shape[1])[None]
  last = np.where(np.isin(inputs, (model.pad_id, NO_TOKEN)), 0, places + 1).max(1, keepdims=True)
  return np.where(places <= last, inputs, NO_TOKEN)


def read_rows(model: Model, prompt: Prompt) -> list[Int[np.ndarray, ' _']]:
  """Returns the tokens of each row's source or, without one, of its prompt, unpadded."""
  ids, lengths, inputs = prompt.tokens, prompt.length, prompt.inputs
  if inputs is not None and inputs.ndim == 2:
    places = np.arange(1, inputs.shape[1] + 1)[None]
    ids, lengths = inputs, np.where(inputs == source_pad(model), 0, places).max(1)
  return [np.asarray(row[:n]) for row, n in zip(ids, lengths.tolist(), strict=True)]


def read_numbers(name: str, values: Any, wanted: str) -> np.ndarray:
  """Returns the argument as an array; an empty one is of integers."""
  try:
    array = np.asarray(values)
  except (TypeError, ValueError):  # rows within rows, or no array at all
    array = np.asarray(None)
  if array.dtype.kind not in 'biuf':
    advice = ': use the tokenizer' if wanted == IDS else ''
    raise UserError(f'{name} must be {wanted}, not {type(values).__name__}{advice}')
  return array if array.size else array.astype(np.int32)


def _check_lengths(
  values: Any, own: Int[np.ndarray, ' b'] | None, rows: int, width: int, least: int
) -> Int[np.ndarray, ' b']:
  """Returns the number of tokens in each row: the caller's, else the row's own length."""
  if own is None:
    own = np.full(rows, width, np.int32)
  if values is None:
    if (own < least).any():
      raise UserError(f'prompt {int(own.argmin())} is empty: give at least one token')
    return own.astype(np.int32)

  lengths = read_numbers('prompt_lengths', values, f'{rows} numbers')
  is_one_each = lengths.shape == (rows,) and lengths.dtype.kind in 'iu'
  if not is_one_each or (lengths < least).any() or (lengths > own).any():
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
  limit, inputs = model.max_positions, prompt.inputs
  if limit is None:
    return
  if inputs is not None and inputs.ndim == 2 and inputs.shape[1] > limit:
    raise UserError(
      f"a source of {inputs.shape[1]} tokens exceeds the model's {limit} positions: shorten or"
      ' split it'
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
    if tokens > 1:  # more than a start token
      excess = f'{name} of {tokens} tokens and {setting}={max_len} exceed'
    raise UserError(f'{excess} {whose} {limit} positions: lower {setting} to {most} or less{other}')


def make_row_keys(key: Any, rows: int) -> Array:
  """Returns one key a row, so that a row draws the same in any batch if its key is the same."""
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
  if key.ndim:
    return key
  return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(rows))


def _threefry(key: Array) -> Array:
  """Converts keys to JAX's default kind, by all words of each.

  Under `vmap` other kinds, such as 'rbg', draw for all rows by the first key."""
  plain = jax.random.key(0, impl='threefry2x32')
  if key.dtype == plain.dtype:
    return key
  words = jax.random.key_data(key).reshape(*key.shape, -1)

  def fold_words(words: UInt[Array, ' n']) -> Array:
    return functools.reduce(jax.random.fold_in, words, plain)

  return jax.vmap(fold_words)(words) if key.ndim else fold_words(words)


def find_shared(model: Model, prompt: Prompt) -> Prompt:
  """Finds what all rows share: the source, or the beginning of prompts.

  The beginning does not contain any row's last token. Its length is rounded down to 32, 48, 64, 96,
  128, 192, ..., or to 0."""
  tokens, inputs, lengths = prompt.tokens, prompt.inputs, prompt.length
  if len(tokens) == 1:
    return prompt
  if inputs is not None and inputs.ndim != 2:  # pictures: the model itself checks them
    return prompt
  if inputs is not None:
    return dataclasses.replace(prompt, one_source=bool((inputs == inputs[:1]).all()))
  if getattr(model, 'reads_length', True) and (lengths != lengths[0]).any():
    return prompt
  same = int(lengths.min()) - 1
  differs = (tokens[:, :same] != tokens[:1, :same]).any(0)
  if differs.any():
    same = int(differs.argmax())
  if same < LEAST_SHARED:
    return prompt
  octave = 2 ** (same.bit_length() - 1)
  shared = octave * 3 // 2 if same >= octave * 3 // 2 else octave
  return dataclasses.replace(prompt, shared=shared)
