"""`decode`: check what was given, compile once per shape, run the loop on the device."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fastdec import struct
from fastdec.decoding import loop
from fastdec.decoding.protocol import Prompt
from fastdec.decoding.strategies import Strategy
from fastdec.errors import UserError
from fastdec.models.api import Model, Params
from fastdec.struct import Bound

DEFAULT_MAX_LEN = 64


@struct.pytree
class Decoded:
  """What was generated. lengths == 1 + block_sizes.sum(1): the first token comes from the prompt, not from a call."""

  tokens: Int[Array, 'b t']  # end token included, pad id after; neither prompt nor start token
  lengths: Int[Array, ' b']
  block_sizes: Int[Array, 'b t']  # tokens emitted by each call of the target
  calls: Int[Array, ' b']
  draft_calls: Int[Array, ' b']  # of the drafter's own model

  @property
  def mean_block_size(self) -> float:
    """Tokens emitted per call, over all rows; nan where no row needed a call."""
    calls = int(np.sum(self.calls))
    return float(np.sum(np.asarray(self.lengths) - 1) / calls) if calls else float('nan')


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
  max_len = max_len if max_len is not None else model.fixed_length or DEFAULT_MAX_LEN
  prompt = _prompt(model, np.asarray(inputs), prompt_lengths, prefix)
  _check_positions(model, prompt, max_len)
  keys = None if key is None else _row_keys(key, prompt.tokens.shape[0])
  return _decode(model, strategy, params, prompt, keys, max_len)


@functools.partial(jax.jit, static_argnames=('model', 'max_len'))
def _decode(
  model: Model, strategy: Strategy, params: Params, prompt: Prompt, keys: Array | None, max_len: int
) -> Decoded:
  state = loop.run(Bound(model, params), strategy.drafter, strategy.rule, prompt, max_len, keys)
  return Decoded(state.tokens, state.length, state.block_sizes, state.calls, state.draft_calls)


def _prompt(model: Model, inputs: np.ndarray, lengths: Any, prefix: Any) -> Prompt:
  b = inputs.shape[0]
  if model.start_id is None:
    if prefix is not None:
      raise UserError('a decoder-only model takes no prefix: put it at the end of the prompt')
    tokens, source, empty = inputs, None, np.zeros(b, bool)
  else:
    start = np.full((b, 1), model.start_id, np.int32)
    tokens = start if prefix is None else np.concatenate([start, np.asarray(prefix, np.int32)], axis=1)
    source, empty = inputs, np.zeros(b, bool)
    if model.eos_ids:
      empty = np.isin(inputs, (model.pad_id, *model.eos_ids)).all(1)
  if tokens.ndim != 2 or not np.issubdtype(tokens.dtype, np.integer):
    raise UserError(f'prompts must be integer ids of shape [rows, tokens], not {tokens.dtype}{list(tokens.shape)}')
  forced = model.start_id is not None
  lengths = np.full(b, tokens.shape[1]) if lengths is None else np.asarray(lengths) + forced
  if lengths.shape != (b,) or (lengths < 1).any() or (lengths > tokens.shape[1]).any():
    allowed = f'{b} numbers from {1 - forced} to {tokens.shape[1] - forced}'
    raise UserError(f'prompt_lengths must be {allowed}, not {(lengths - forced).tolist()}')
  source = None if source is None else jnp.asarray(source)
  return Prompt(source, jnp.asarray(tokens, jnp.int32), jnp.asarray(lengths, jnp.int32), jnp.asarray(empty))


def _check_positions(model: Model, prompt: Prompt, max_len: int) -> None:
  if max_len < 1:
    raise UserError(f'max_len={max_len} leaves nothing to decode: give at least 1')
  limit = model.max_positions
  if limit is None:
    return
  s = 0 if prompt.inputs is None or prompt.inputs.ndim != 2 else prompt.inputs.shape[1]
  if s > limit:
    raise UserError(f"a source of {s} tokens exceeds the model's {limit} positions: shorten or split it")
  t = prompt.tokens.shape[1]
  if t + max_len > limit:
    raise UserError(f"a prompt of {t} tokens and max_len={max_len} exceed the model's {limit} positions: lower max_len")


def _row_keys(key: Array, rows: int) -> Array:
  """One key a row, so that a batch draws what its rows would draw alone with the same row keys."""
  return key if key.ndim else jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(rows))
