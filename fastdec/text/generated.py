"""Text that a model wrote, with the calls that wrote it."""

import dataclasses
import html
from typing import Any

from fastdec.text.reader import Reader

COLOURS = '#d7ebff', '#ffe3b3'  # of blocks in a notebook, in turn


@dataclasses.dataclass(frozen=True)
class Generated:
  """A text that a model wrote. A notebook shows it with its blocks coloured.

  Attributes:
    text: without the prompt, special tokens, and the stop string and all after it.
    tokens: their ids, with the end token; up to the token that completes a stop string.
    blocks: the tokens, by the call that emitted them. The first block came with the prompt.
    calls: number of calls of the model.
    finish_reason: 'end', 'stop' or 'length'.
    seconds: from the request to this text, including compiling if it is the first of a size.
    logprobs: of each token, by the model's own distribution; None unless the call set `logprobs`.
    top_logprobs: {token: log-probability} of the likeliest tokens at each place.
  """

  text: str
  tokens: list[int]
  blocks: list[list[int]]
  calls: int
  finish_reason: str
  seconds: float
  logprobs: list[float] | None = None
  # The tokenizer, and the ids before the text: the arguments of `Reader`.
  _read_by: Any = dataclasses.field(default=None, repr=False, compare=False)
  top_logprobs: list[dict[int, float]] | None = dataclasses.field(default=None, repr=False)

  @property
  def tokens_per_call(self) -> float:
    """Tokens that a call emitted; nan without a call."""
    if not self.calls:
      return float('nan')
    return (len(self.tokens) - 1) / self.calls

  @property
  def tokens_per_second(self) -> float:
    """Speed of this text; texts of a list share their time."""
    return len(self.tokens) / self.seconds

  @property
  def pieces(self) -> list[str]:
    """The text of each block; joined, they are the text."""
    reader = Reader(*self._read_by)
    pieces, left = [], len(self.text)
    for i, block in enumerate(self.blocks):
      piece = reader.add(block)
      if i + 1 == len(self.blocks):
        piece += reader.finish()
      piece = piece[:left]  # a stop string has cut the text
      pieces.append(piece)
      left -= len(piece)
    return pieces

  def __str__(self) -> str:
    return self.text

  def _repr_html_(self) -> str:
    spans = []
    for i, (block, piece) in enumerate(zip(self.blocks, self.pieces, strict=True)):
      title = f'call {i}: {len(block)} tokens'
      if i == 0:
        title = 'with the prompt'
      style = f'background:{COLOURS[i % 2]};color:#111;border-radius:3px'
      spans.append(f'<span title="{title}" style="{style}">{html.escape(piece)}</span>')
    speed = f'{self.tokens_per_second:.0f} a second'
    if self.calls:
      speed = f'{self.tokens_per_call:.2f} a call, {speed}'
    summary = f'{len(self.tokens)} tokens, {self.calls} calls: {speed} ({self.finish_reason})'
    return f'<div style="white-space:pre-wrap">{"".join(spans)}</div><small>{summary}</small>'
