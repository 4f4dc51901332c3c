"""`decode` and `stream`: a batch of prompts in, their texts out, at once or call by call."""

from collections.abc import Iterator, Sequence
from typing import Any

from fastdec.decoding.law import LawMaker
from fastdec.decoding.protocol import Decoded
from fastdec.decoding.request import Settings
from fastdec.decoding.run import Run, start
from fastdec.decoding.settings import Whole
from fastdec.decoding.strategy import Strategy, read_streaming
from fastdec.models.api import Model, Params


def decode(
  model: Model,
  params: Params,
  inputs: Any,
  strategy: Strategy | str,
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
      ends texts too, a row's pads count as one end. Pads before a text do not belong to it, unless
      `prompt_lengths` are given; if they may be text (the pad is an end or a start), one of them
      is, and more are refused.
    strategy: `Greedy()`, `Blockwise(heads)`, ...; or words, such as 'prompt_lookup(k=4)'.
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
      place. They are of the model's own distribution, before processors and temperature, as in
      `fd.score`. The text of a beam search is read again for them.

  Raises:
    UserError: inputs of the wrong shape, prompts beyond the model's positions, max_len < 1, rows
      that cannot be divided over the mesh.
  """
  settings = Settings(max_len, max_new_tokens, key, processors, constraint, logprobs)
  run = start(model, params, inputs, strategy, settings, prompt_lengths, prefix)
  run.advance()
  return run.finish(run.decoded, run.prompt)


def stream(
  model: Model,
  params: Params,
  inputs: Any,
  strategy: Strategy | str,
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
  strategy = read_streaming(strategy)
  settings = Settings(max_len, max_new_tokens, key, processors, constraint, logprobs)
  return stream_blocks(start(model, params, inputs, strategy, settings, prompt_lengths, prefix))


def stream_blocks(run: Run) -> Iterator[list[list[int]]]:
  """Yields the new tokens of each row after the prompt and after every call."""
  run.advance(0)
  yield run.read_new()
  while not run.is_over:
    run.advance(1)
    yield run.read_new()
