"""What was given to decode, checked before anything is compiled, and made into a `Prompt`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fastdec.decoding.protocol import Prompt
from fastdec.errors import UserError
from fastdec.models.api import Model, source_words

DEFAULT_MAX_LEN = 64


def checked(
  model: Model, inputs: Any, lengths: Any, prefix: Any, max_len: int | None, key: Array | None
) -> tuple[int, Prompt, Array | None]:
  """max_len, the prompt and one key a row; see `decode` for the arguments and errors."""
  max_len = max_len if max_len is not None else model.fixed_length or DEFAULT_MAX_LEN
  if max_len < 1:
    raise UserError(f'max_len={max_len} leaves nothing to decode: give at least 1')
  prompt = prompt_of(model, np.asarray(inputs), lengths, prefix)
  check_positions(model, prompt, max_len)
  return max_len, prompt, None if key is None else row_keys(key, prompt.tokens.shape[0])


def prompt_of(model: Model, inputs: np.ndarray, lengths: Any, prefix: Any) -> Prompt:
  """The encoder's inputs and the decoder's first tokens; see `decode` for the arguments and errors."""
  is_text = model.start_id is None or bool(model.eos_ids)  # images have their own shape, and no end
  if is_text:
    check_ids('inputs', inputs, source_words(model))
  if not inputs.size:
    raise UserError(f'inputs of shape {list(inputs.shape)} hold nothing to decode: give at least one row and column')
  b = inputs.shape[0]
  forced = model.start_id is not None
  if not forced and prefix is not None:
    raise UserError('a decoder-only model takes no prefix: put it at the end of the prompt')
  if prefix is not None:
    prefix = np.asarray(prefix)
    check_ids('prefix', prefix, model.vocab_size)
    if len(prefix) != b:
      raise UserError(f'prefix has {len(prefix)} rows, and inputs have {b}: give one for each')
  start = np.full((b, 1), model.start_id if forced else 0, np.int32)
  tokens = inputs if not forced else start if prefix is None else np.concatenate([start, prefix], axis=1)
  lengths = np.full(b, tokens.shape[1]) if lengths is None else np.asarray(lengths) + forced
  if lengths.shape != (b,) or (lengths < 1).any() or (lengths > tokens.shape[1]).any():
    allowed = f'{b} numbers from {1 - forced} to {tokens.shape[1] - forced}'
    raise UserError(f'prompt_lengths must be {allowed}, not {(lengths - forced).tolist()}')
  empty = np.zeros(b, bool)
  if forced and is_text:
    empty = np.isin(inputs, (model.pad_id, *model.eos_ids)).all(1)
  source = jnp.asarray(inputs) if forced else None
  return Prompt(source, jnp.asarray(tokens, jnp.int32), jnp.asarray(lengths, jnp.int32), jnp.asarray(empty))


def check_ids(name: str, ids: np.ndarray, words: int) -> None:
  """Ids that the vocabulary does not have would be clamped in silence, and decode to plausible text."""
  if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
    raise UserError(f'{name} must be integer ids of shape [rows, tokens], not {ids.dtype}{list(ids.shape)}')
  if ids.size and not 0 <= ids.min() <= ids.max() < words:
    span = f'{ids.min()} to {ids.max()}'
    raise UserError(f'{name} have ids from {span}, and the model knows 0 to {words - 1}: use its tokenizer')


def check_positions(model: Model, prompt: Prompt, max_len: int) -> None:
  """Raises UserError where source or prompt and output exceed the model's positions."""
  limit = model.max_positions
  if limit is None:
    return
  s = 0 if prompt.inputs is None or prompt.inputs.ndim != 2 else prompt.inputs.shape[1]
  if s > limit:
    raise UserError(f"a source of {s} tokens exceeds the model's {limit} positions: shorten or split it")
  t = int(prompt.length.max())
  if t + max_len - 1 > limit:  # the last token is never fed back
    raise UserError(f"a prompt of {t} tokens and max_len={max_len} exceed the model's {limit} positions: lower max_len")


def row_keys(key: Array, rows: int) -> Array:
  """One key a row, so that a batch draws what its rows would draw alone with the same row keys."""
  if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
    key = jax.random.wrap_key_data(key)
  if key.shape not in ((), (rows,)):
    raise UserError(f'key has shape {list(key.shape)}: give one key, or one for each of the {rows} rows')
  return key if key.ndim else jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(rows))
