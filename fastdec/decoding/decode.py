"""`decode` and `stream`: check what was given, compile once per shape, run the loop."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fastdec.decoding import loop
from fastdec.decoding.protocol import Decoded, Prompt
from fastdec.decoding.strategies import LoopStrategy, Strategy
from fastdec.errors import UserError
from fastdec.models.api import Model, Params
from fastdec.struct import Bound

DEFAULT_MAX_LEN = 64


def decode(
  model: Model,
  params: Params,
  inputs: Any,
  strategy: Strategy,
  prompt_lengths: Any = None,
  prefix: Any = None,
  max_len: int | None = None,
  key: Array | None = None,
) -> Decoded:
  """Decodes a batch.

  Args:
    model: the target (protocol: `fastdec.models.api`).
    params: its parameters.
    inputs: encoder-decoder: source ids int[b, s], padded with the pad id (a row of nothing but padding and end tokens
      is empty, and decodes to an end token); decoder-only: prompt ids int[b, t], right-padded.
    strategy: `Greedy()`, `Blockwise(heads)`, ...
    prompt_lengths: int[b], where prompts (or prefixes) differ in length.
    prefix: encoder-decoder: target tokens int[b, t] to begin with; not repeated in the output.
    max_len: at most so many tokens a row, the end included (None: the model's fixed length, else 64).
    key: for strategies that sample: one key, split by row, or one key a row [b].

  Raises:
    UserError: for inputs of another shape, prompts beyond the model's positions, max_len < 1.
  """
  max_len, prompt, keys = _checked(model, inputs, prompt_lengths, prefix, max_len, key)
  return _decode(model, strategy, params, prompt, keys, max_len)


def stream(
  model: Model,
  params: Params,
  inputs: Any,
  strategy: LoopStrategy,
  prompt_lengths: Any = None,
  prefix: Any = None,
  max_len: int | None = None,
  key: Array | None = None,
) -> Iterator[list[list[int]]]:
  """Decodes as `decode`, yielding after the prompt and after every call what each row has emitted since.

  Arguments and errors are those of `decode`. A row's lists, joined, are its tokens; a finished row yields [].
  """
  max_len, prompt, keys = _checked(model, inputs, prompt_lengths, prefix, max_len, key)
  state = _init(model, strategy, params, prompt, keys, max_len)
  seen = np.zeros(prompt.tokens.shape[0], int)
  while True:
    tokens, length, over = jax.device_get((state.tokens, state.length, state.done.all()))
    yield [row[start:end].tolist() for row, start, end in zip(tokens, seen, length, strict=True)]
    if over:
      return
    seen = length
    state = _step(model, strategy, params, state)


@functools.partial(jax.jit, static_argnames=('model', 'max_len'))
def _decode(
  model: Model, strategy: Strategy, params: Params, prompt: Prompt, keys: Array | None, max_len: int
) -> Decoded:
  target = Bound(model, params)
  state = strategy.init(target, prompt, max_len, keys)
  state = jax.lax.while_loop(lambda s: ~strategy.done(s).all(), lambda s: strategy.step(target, s), state)
  return strategy.result(state)


@functools.partial(jax.jit, static_argnames=('model', 'max_len'))
def _init(
  model: Model, strategy: LoopStrategy, params: Params, prompt: Prompt, keys: Array | None, max_len: int
) -> loop.DecodeState:
  return strategy.init(Bound(model, params), prompt, max_len, keys)


@functools.partial(jax.jit, static_argnames='model', donate_argnames='state')
def _step(model: Model, strategy: LoopStrategy, params: Params, state: loop.DecodeState) -> loop.DecodeState:
  return strategy.step(Bound(model, params), state)


def _checked(
  model: Model, inputs: Any, lengths: Any, prefix: Any, max_len: int | None, key: Array | None
) -> tuple[int, Prompt, Array | None]:
  max_len = max_len if max_len is not None else model.fixed_length or DEFAULT_MAX_LEN
  if max_len < 1:
    raise UserError(f'max_len={max_len} leaves nothing to decode: give at least 1')
  prompt = _prompt(model, np.asarray(inputs), lengths, prefix)
  _check_positions(model, prompt, max_len)
  return max_len, prompt, None if key is None else _row_keys(key, prompt.tokens.shape[0])


def _prompt(model: Model, inputs: np.ndarray, lengths: Any, prefix: Any) -> Prompt:
  is_text = model.start_id is None or bool(model.eos_ids)  # images have their own shape, and no end
  if is_text:
    _check_ids('inputs', inputs, model)
  if not inputs.size:
    raise UserError(f'inputs of shape {list(inputs.shape)} hold nothing to decode: give at least one row and column')
  b = inputs.shape[0]
  forced = model.start_id is not None
  if not forced and prefix is not None:
    raise UserError('a decoder-only model takes no prefix: put it at the end of the prompt')
  if prefix is not None:
    prefix = np.asarray(prefix)
    _check_ids('prefix', prefix, model)
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


def _check_ids(name: str, ids: np.ndarray, model: Model) -> None:
  """Ids that the vocabulary does not have would be clamped in silence, and decode to plausible text."""
  if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
    raise UserError(f'{name} must be integer ids of shape [rows, tokens], not {ids.dtype}{list(ids.shape)}')
  if ids.size and not 0 <= ids.min() <= ids.max() < model.vocab_size:
    span = f'{ids.min()} to {ids.max()}'
    raise UserError(f'{name} have ids from {span}, and the model knows 0 to {model.vocab_size - 1}: use its tokenizer')


def _check_positions(model: Model, prompt: Prompt, max_len: int) -> None:
  limit = model.max_positions
  if limit is None:
    return
  s = 0 if prompt.inputs is None or prompt.inputs.ndim != 2 else prompt.inputs.shape[1]
  if s > limit:
    raise UserError(f"a source of {s} tokens exceeds the model's {limit} positions: shorten or split it")
  t = int(prompt.length.max())
  if t + max_len - 1 > limit:  # the last token is never fed back
    raise UserError(f"a prompt of {t} tokens and max_len={max_len} exceed the model's {limit} positions: lower max_len")


def _row_keys(key: Array, rows: int) -> Array:
  """One key a row, so that a batch draws what its rows would draw alone with the same row keys."""
  if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
    key = jax.random.wrap_key_data(key)
  if key.shape not in ((), (rows,)):
    raise UserError(f'key has shape {list(key.shape)}: give one key, or one for each of the {rows} rows')
  return key if key.ndim else jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(rows))
