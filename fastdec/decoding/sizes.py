"""The sizes of programs: how wide prompts are padded, and how many slots follow them.

Each shape needs a compiled program, so there are few of them: a width is one of a ladder, and the
most tokens that a row may emit are data. A call reads all slots of a cache, so there are few at
first (`Prompt.slots`), and a text that fills them continues in the next size.

    BATCH    a batch or a data set     prompts of 16, 32, 64, ..., 512, 640, 768, ... tokens;
                                       slots for 64 tokens or an eighth of the prompt, then
                                       about twice as many
    SINGLE   one text after another    prompts of 256, 1,024, 4,096, 8,192, ... tokens
    LISTED   a list of texts           prompts of 64, 256, 512, 1,024, ... tokens

In the last two a width holds the prompt, and a quarter more of it the output. A text that fills
both moves to the next width, so a program serves all texts of that length, whatever part of them is
the prompt. Each row of a list reads all slots at every call, so lists have more widths.
"""

import bisect
import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from fastdec.decoding.prefill import CHUNK, SUMMED
from fastdec.decoding.protocol import Prompt
from fastdec.decoding.settings import MOST_TOKENS
from fastdec.decoding.strategy import Strategy, nodes_of
from fastdec.models.api import Model, source_pad

FIRST = 64  # tokens after a prompt that there are slots for at first
SHARE = 8  # after a long prompt of a batch: an eighth of its length
ROOM = 4  # of a width that text shares: a quarter more
LONGEST = 2 * MOST_TOKENS  # the last width
SHORT = 256  # a CPU reads prompts of this width or less ...
SHORT_CHUNK = 32  # ... in chunks of 32 tokens, and longer ones ...
LONG_CHUNK = 128  # ... in longer chunks
ANY = 2**30  # slots, for a cache whose kind does not depend on their number


def make_ladder(*first: int, four_an_octave: bool = False) -> tuple[int, ...]:
  """Returns rising widths: the first ones, then twice the last, or four steps up to that.

  >>> make_ladder(256, 1024, 4096)[:5]
  (256, 1024, 4096, 8192, 16384)
  >>> make_ladder(64, four_an_octave=True)[:6]
  (64, 80, 96, 112, 128, 160)
  """
  widths = [*first]
  while widths[-1] < LONGEST:
    octave = widths[-1]
    if four_an_octave:
      widths += [octave * quarters // 4 for quarters in (5, 6, 7)]
    widths.append(2 * octave)
  return tuple(widths)


def choose_width(ladder: tuple[int, ...], length: int, limit: int | None = None) -> int:
  """Returns the smallest width of the ladder, or the limit, that holds the length.

  >>> [choose_width(TEXTS, length) for length in (3, 256, 257, 4096, 4097)]
  [256, 256, 1024, 4096, 8192]
  >>> choose_width(PROMPTS, 33, limit=40)
  40
  """
  if length > ladder[-1]:
    return length
  width = ladder[bisect.bisect_left(ladder, length)]
  return width if limit is None else max(min(width, limit), length)


def choose_widths(ladder: tuple[int, ...], lengths: Int[np.ndarray, ' n']) -> Int[np.ndarray, ' n']:
  """Returns the smallest width of the ladder that holds each length.

  >>> choose_widths(PROMPTS, np.array([3, 16, 17, 40, 513])).tolist()
  [16, 16, 32, 64, 640]
  """
  return np.array([choose_width(ladder, length) for length in lengths.tolist()])


@dataclasses.dataclass(frozen=True)
class Ladders:
  """A policy for sizes.

  Attributes:
    prompts: widths of prompts, and of sources.
    outputs: numbers of tokens that a row may emit.
    joint: a width of `prompts` holds prompt and output together.
  """

  prompts: tuple[int, ...]
  outputs: tuple[int, ...]
  joint: bool = False


# Widths double where padding is cheap. A wider prompt, and each slot, costs time at every call.
PROMPTS = make_ladder(16, 32, 64, 128, 256, 512, four_an_octave=True)
OUTPUTS = make_ladder(16, 32, 48, 64, four_an_octave=True)
TEXTS = make_ladder(256, 1024, 4096)

BATCH = Ladders(PROMPTS, OUTPUTS)
SINGLE = Ladders(TEXTS, TEXTS, joint=True)
LISTED = Ladders(make_ladder(64, 256), TEXTS, joint=True)


@dataclasses.dataclass(frozen=True)
class Sizes:
  """The sizes of the rows of one request.

  Attributes:
    ladders: the policy.
    model, strategy: that decode the rows.
    max_len: the largest limit of a row.
    longest: most tokens of a row, prompt and output together.
  """

  ladders: Ladders
  model: Model
  strategy: Strategy
  max_len: int
  longest: int

  def begin(self, prompt: Prompt) -> Prompt:
    """Pads a prompt to its first width, and gives it slots for the first tokens that follow.

    Widths stay within the model's positions. A start token and pictures keep their shapes."""
    model = self.model
    if model.fixed_length is not None:
      return prompt
    inputs, tokens = prompt.inputs, prompt.tokens
    if inputs is not None:
      inputs = self._pad(inputs, source_pad(model))
    if model.start_id is None or tokens.shape[1] > 1:
      tokens = self._pad(tokens, model.pad_id)
    prompt = dataclasses.replace(prompt, inputs=inputs, tokens=tokens)
    if self.ladders.joint:
      return self._share_width(prompt)
    return self._with_slots(prompt, max(FIRST, tokens.shape[1] // SHARE))

  def bound(self, length: int) -> 'Sizes':
    """Returns the sizes for sources or prompts of up to `length` tokens: they may bound outputs."""
    if self.ladders.joint or self.model.fixed_length is not None:
      return self
    width = choose_width(self.ladders.prompts, length, self.model.max_positions)
    most = self.strategy.most_tokens(width, choose_width(self.ladders.outputs, self.max_len))
    ladders = dataclasses.replace(self.ladders, outputs=(most,))
    return dataclasses.replace(self, ladders=ladders, max_len=min(self.max_len, most))

  def grow(self, prompt: Prompt, length: int) -> Prompt:
    """Returns the prompt in the next size, when the longest row has `length` tokens."""
    width = prompt.tokens.shape[1]
    if not self.ladders.joint:
      assert prompt.slots is not None  # there are more
      return self._with_slots(prompt, 2 * prompt.slots + width)
    wider = choose_width(self.ladders.prompts, max(width + 1, length), self.model.max_positions)
    tokens = np.pad(np.asarray(prompt.tokens), ((0, 0), (0, wider - width)))
    return self._share_width(dataclasses.replace(prompt, tokens=tokens))

  def most_tokens(self, prompt: Prompt) -> int:
    """Returns how many tokens of a row its state has room for."""
    if self.ladders.joint:
      assert prompt.slots is not None
      return prompt.tokens.shape[1] + prompt.slots + nodes_of(self.strategy)
    if self.model.fixed_length is not None:  # all outputs have one length
      return self.max_len
    return choose_width(self.ladders.outputs, self.max_len)

  def count_room(
    self, prompt: Prompt, lengths: Int[np.ndarray, ' b']
  ) -> Int[np.ndarray, ' b'] | None:
    """Returns how many tokens rows may emit before they need the next size; None: any number.

    Args:
      prompt: in the size that the state has.
      lengths: of the prompts of all rows.
    """
    if prompt.slots is None:
      return None
    if self.ladders.joint:
      return prompt.tokens.shape[1] + prompt.slots - lengths
    return np.full_like(lengths, prompt.slots)

  def _pad(self, ids: Any, pad_id: int) -> Int[np.ndarray, 'b w']:
    b, t = ids.shape
    width = choose_width(self.ladders.prompts, t, self.model.max_positions)
    padded = np.full((b, width), pad_id, ids.dtype)
    padded[:, :t] = ids
    return padded

  def _with_slots(self, prompt: Prompt, slots: int) -> Prompt:
    """Returns the prompt with about these slots, or with all (None) if they are enough."""
    is_enough = not self.ladders.joint and slots >= self.most_tokens(prompt)
    # A cache has a multiple of SUMMED slots: a few tokens fewer may need one part less.
    over = (prompt.tokens.shape[1] + slots + nodes_of(self.strategy)) % SUMMED
    if over <= FIRST // SHARE:
      slots -= over
    return dataclasses.replace(prompt, slots=None if is_enough else slots)

  def _share_width(self, prompt: Prompt) -> Prompt:
    """Gives a prompt of a width the slots and the chunks that all prompts of that width have."""
    width = prompt.tokens.shape[1]
    chunk, most = CHUNK, ANY
    if jax.default_backend() == 'cpu':  # whose time grows with the tokens, padding included
      chunk = SHORT_CHUNK if width <= SHORT else LONG_CHUNK
    if getattr(self.model, 'reads_length', True):  # its caches may depend on the longest text
      last = choose_width(self.ladders.prompts, self.longest, self.model.max_positions)
      most = last + max(last // ROOM, FIRST)
    prompt = dataclasses.replace(prompt, chunk=chunk, most=most)
    return self._with_slots(prompt, max(width // ROOM, FIRST))


def exact_widths(prompt: Prompt, max_len: int) -> Ladders:
  """Returns the policy that pads nothing, for timings of a prompt."""
  widths = {prompt.tokens.shape[1]}
  if prompt.inputs is not None:
    widths.add(prompt.inputs.shape[1])
  return Ladders(tuple(sorted(widths)), (max_len,))
