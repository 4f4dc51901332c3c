"""`decode` and `stream`: check the arguments, compile once for many lengths, run the loop."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool

from fastdec.cache.loops import while_loop
from fastdec.decoding.inputs import most_of
from fastdec.decoding.law import LawMaker, logprobs_of
from fastdec.decoding.prefill import has_slots, with_more_slots, with_slots
from fastdec.decoding.protocol import FINE, STUCK, Decoded, Prompt, check_finite, listed
from fastdec.decoding.request import Request, prepare
from fastdec.decoding.score import add_logprobs
from fastdec.decoding.settings import Whole
from fastdec.decoding.strategy import Strategy, check_streams, nodes_of
from fastdec.kernels.sharding import using
from fastdec.models.api import Model, Params
from fastdec.struct import Bound


def decode(
  model: Model,
  params: Params,
  inputs: Any,
  strategy: Strategy,
  prompt_lengths: Any = None,
  prefix: Any = None,
  max_len: Whole | Sequence[Whole] | None = None,
  key: Any = None,
  max_new_tokens: Whole | Sequence[Whole] | None = None,
  processors: LawMaker | None = None,
  constraint: LawMaker | None = None,
  logprobs: Whole = 0,
) -> Decoded:
  """Decodes a batch, on the devices that the parameters lie on.

  Args:
    model: the target (protocol: `fastdec.models.api`).
    params: its parameters. If `kernels.sharding.place` put them on a mesh, rows are decoded along
      its 'data'.
    inputs: encoder-decoder: source ids int[b, s], padded with the pad id. A row of padding and end
      tokens only is empty, and decodes to an end token. Decoder-only: prompt ids int[b, t],
      right-padded. Unpadded lists of rows of different lengths are allowed too. Where the pad id
      ends texts too, a row's pads count as one end. Pads before a text are no part of it, unless
      `prompt_lengths` are given; if they may be text (the pad is an end or a start), one of them
      is, and more are refused.
    strategy: `Greedy()`, `Blockwise(heads)`, ...
    prompt_lengths: int[b], if padded prompts (or prefixes) differ in length; None: whole rows.
    prefix: encoder-decoder: target tokens int[b, t] to begin with, or lists; not repeated in the
      output.
    max_len: most tokens that a row may emit, the end included (None: the model's fixed length, else
      64); or a list, one number for each row.
    key: for strategies that sample: one key, split by row, or one key a row [b]. Keys of other
      kinds are converted to JAX's default.
    max_new_tokens: another name of max_len.
    processors: penalties, bias, forbidden and forced tokens. They change the law that the strategy
      decodes by.
    constraint: the texts that may be written, as `fd.Constraint.regex` makes it.
    logprobs: n > 0 also returns each token's log-probability and the n likeliest tokens of its
      place. They are of the model's own law, before processors and temperature, as in `fd.score`.
      The text of a beam search is read again for them.

  Raises:
    UserError: inputs of another shape, prompts beyond the model's positions, max_len < 1, rows that
      cannot be divided over the mesh.
  """
  # Check the arguments, and lay the rows out on the devices.
  request, prompt = prepare(
    model, params, inputs, strategy, prompt_lengths=prompt_lengths, prefix=prefix,
    max_len=most_of(max_len, max_new_tokens), key=key, processors=processors, constraint=constraint,
    logprobs=logprobs,
  )  # fmt: skip
  target, keys, bucket = request.target, request.keys, request.bucket
  with using(request.mesh):
    # Run the loop. It stops early when a row has filled its slots, and continues with more.
    decoded, state, is_over = _decode(target, strategy, prompt, keys, bucket)
    while state is not None and not is_over:
      prompt = with_more_slots(prompt, bucket)
      decoded, state, is_over = _decode(target, strategy, prompt, keys, bucket, state)

    # The model reads the texts of a search again for their log-probabilities.
    if request.logprobs and decoded.logprobs is None:
      decoded = add_logprobs(target, prompt, decoded, request.logprobs)
    if bucket != request.max_len:
      decoded = _resized(decoded, request.max_len, target.module.pad_id)
    return dataclasses.replace(decoded, ruled_by=request.ruled_by)


def stream(
  model: Model,
  params: Params,
  inputs: Any,
  strategy: Strategy,
  prompt_lengths: Any = None,
  prefix: Any = None,
  max_len: Whole | Sequence[Whole] | None = None,
  key: Any = None,
  max_new_tokens: Whole | Sequence[Whole] | None = None,
  processors: LawMaker | None = None,
  constraint: LawMaker | None = None,
  logprobs: Whole = 0,
) -> Iterator[list[list[int]]]:
  """Decodes as `decode`, and yields each row's new tokens after the prompt and after every call.

  Arguments and errors are those of `decode`. A row's lists, joined, are its tokens; a finished row
  yields []. With `logprobs=n` each token is an `fd.Noted`: an int that has `logprob` and
  `top_logprobs`.

  Raises:
    UserError: as `decode`; a strategy that ranks whole outputs, such as `Beam`; logits of a row
      that are NaN or infinite, or a row in which nothing is left to write (`decode` reports both
      in `Decoded.finite`): their tokens are not yielded.
  """
  check_streams(strategy)
  request, prompt = prepare(
    model, params, inputs, strategy, prompt_lengths=prompt_lengths, prefix=prefix,
    max_len=most_of(max_len, max_new_tokens), key=key, processors=processors, constraint=constraint,
    logprobs=logprobs,
  )  # fmt: skip
  return blocks_of(request, states_of(request, prompt))


def blocks_of(request: Request, states: Iterable[Any]) -> Iterator[list[list[int]]]:
  """Yields the tokens that each row has gained from one state to the next."""
  yielded = None
  for state in states:
    tokens, length, fault, logprobs = jax.device_get(
      (state.tokens, state.length, state.fault, logprobs_of(state.laws))
    )
    check_finite(fault == FINE, fault == STUCK, request.ruled_by)
    yielded = np.zeros_like(length) if yielded is None else yielded
    blocks = []
    for i, (begin, end) in enumerate(zip(yielded.tolist(), length.tolist(), strict=True)):
      blocks.append(listed(tokens[i], begin, end, {name: x[i] for name, x in logprobs.items()}))
    yield blocks
    yielded = length


def states_of(request: Request, prompt: Prompt) -> Iterator[Any]:
  """Yields the state after the prompt and after every call, which overwrites the one before."""
  target, strategy, bucket = request.target, request.strategy, request.bucket
  with using(request.mesh):
    state, _ = start(target, strategy, prompt, request.keys, bucket)
  while True:
    yield state
    length, done = jax.device_get((state.length, state.done))
    if done.all():
      return
    # Make one more call, with more slots if a running row has filled its own.
    with using(request.mesh):
      if prompt.slots is not None and length[~done].max() >= prompt.slots:
        prompt = with_more_slots(prompt, bucket)
        state, _ = start(target, strategy, prompt, request.keys, bucket, state)
      state, _ = step(target, strategy, state)


@functools.partial(jax.jit, static_argnames=('max_len', 'pad_id'))
def _resized(decoded: Decoded, max_len: int, pad_id: int) -> Decoded:
  return decoded.resized(max_len, pad_id)


@functools.partial(jax.jit, static_argnames='bucket')
def _decode(
  target: Bound,
  strategy: Strategy,
  prompt: Prompt,
  keys: Array | None,
  bucket: int,
  state: Any = None,
) -> tuple[Decoded, Any, Bool[Array, '']]:
  """Decodes from the prompt, or on from a state, until all rows have ended or one fills its slots.

  Returns the result, the state if it can grow, and true if all rows are done."""
  if state is None:
    state = strategy.init(target, prompt, bucket, keys)
  else:
    state = with_slots(target, strategy, prompt, keys, bucket, state)
  state = while_loop(
    lambda s: ~strategy.done(s).all() & has_slots(strategy, s, prompt.slots),
    lambda s: strategy.step(target, s),
    state,
    nodes_of(strategy),
  )
  can_grow = prompt.slots is not None
  return strategy.result(state), state if can_grow else None, strategy.done(state).all()


@functools.partial(jax.jit, static_argnames='bucket')
def start(
  target: Bound,
  strategy: Strategy,
  prompt: Prompt,
  keys: Array | None,
  bucket: int,
  state: Any = None,
) -> tuple[Any, Bool[Array, '']]:
  """Runs the prompt, or gives a state more slots.

  Returns the strategy's state, and true if all rows are done."""
  if state is None:
    state = strategy.init(target, prompt, bucket, keys)
  else:
    state = with_slots(target, strategy, prompt, keys, bucket, state)
  return state, strategy.done(state).all()


@functools.partial(jax.jit, donate_argnames='state')
def step(target: Bound, strategy: Strategy, state: Any) -> tuple[Any, Bool[Array, '']]:
  """Makes one more call, overwriting `state`; returns the new one, and true if all are done."""
  state = strategy.step(target, state)
  return state, strategy.done(state).all()
