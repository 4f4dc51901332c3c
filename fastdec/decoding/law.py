"""Changes of the target's law of the next token, the third exchangeable part of the loop.

A law applies at every node of a draft, to the text that ends there: prompt, emitted tokens, and the
node's ancestors in the tree. So each token is chosen by the law that plain decoding would have
at its place, and lossless methods stay lossless. `fd.Processors` and `fd.Constraint` make such
laws. A target has any number of them, one after the other; without any it is only the model.
"""

import dataclasses
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Float, Int

from fastdec.decoding.protocol import Draft, Prompt
from fastdec.models.api import Model
from fastdec.struct import Bound


@dataclasses.dataclass(frozen=True)
class Emitted:
  """Tokens that a call has emitted, and the logits that it chose them by."""

  tokens: Int[Array, 'b m']
  count: Int[Array, ' b']  # number of valid tokens in each row; 0: the row had finished before
  path: Int[Array, 'b m']  # the node before each token
  logits: Float[Array, 'b n v']  # the model's own, of all nodes


@runtime_checkable
class Law(Protocol):
  """A change of the target's law: a frozen pytree, with settings and shared tables as leaves.

  Its memory of each row is its state, another pytree, whose arrays have the rows first: rows may
  leave a batch, and others take their places. The functions are traced inside jit.
  """

  def init(self, model: Model, prompt: Prompt, max_len: int) -> Any:
    """Returns the state after the prompt, before the first token.

    Settings of rows go into the state. `prompt.limit` has the most tokens that each row may emit
    (None: max_len).
    """
    ...

  def __call__(self, state: Any, draft: Draft, logits: Float[Array, 'b n v']) -> Array:
    """Returns the logits of the token that follows each node, changed.

    The state knows the text up to node 0, the root. The text of any other node continues with its
    ancestors below the root and itself (`draft.topology.mask`). After the prompt, the draft
    consists only of its last token. Minus infinity rules a token out.
    """
    ...

  def observe(self, state: Any, emitted: Emitted) -> Any:
    """Returns the state with these tokens in the text; rows with count 0 stay as they are."""
    ...

  def take(self, rows: Any) -> 'Law':
    """Returns the law with the settings of these rows only, in this order."""
    ...


@runtime_checkable
class LawMaker(Protocol):
  """Settings that make laws for a model, such as `fd.Processors` and `fd.Constraint`.

  It may have `ends`, ids that end a text instead of the model's own; `forced_begin`, the first
  token of a text; and `rules_out`, the names of the settings that rule out tokens, for a message.
  """

  def laws(self, model: Model, rows: int, waits: bool = False) -> tuple[Law, ...]:
    """Returns the laws for a model and a number of rows; waits: the first token is forced.

    Raises:
      UserError: settings that do not fit the model or the rows.
    """
    ...


@runtime_checkable
class ForcingLaw(Law, Protocol):
  """A law that leaves one token in some states, as a constraint does; `methods.forced` drafts it.

  Its state is a number for each row, int32[b], below 0 where nothing is forced.
  """

  forced: Int[Array, ' states']  # the token that must follow in each state, or -1

  def next_state(self, state: Int[Array, '*b'], token: Int[Array, '*b']) -> Int[Array, '*b']:
    """Returns the state after one more token."""
    ...

  def follow(
    self, state: Int[Array, ' b'], tokens: Int[Array, 'b m'], count: Int[Array, ' b']
  ) -> Int[Array, ' b']:
    """Returns the state after the first `count` tokens of each row."""
    ...


def begin(target: Bound, prompt: Prompt, max_len: int) -> tuple[Any, ...]:
  """Returns the states of the target's laws after the prompt."""
  return tuple(law.init(target.module, prompt, max_len) for law in target.laws)


def change(
  target: Bound, states: tuple[Any, ...], draft: Draft, logits: Float[Array, 'b n v']
) -> Float[Array, 'b n v']:
  """Returns the logits, or log-probabilities, of each node as the target's laws change them."""
  for law, state in zip(target.laws, states, strict=True):
    logits = law(state, draft, logits)
  return logits


def observe(target: Bound, states: tuple[Any, ...], emitted: Emitted) -> tuple[Any, ...]:
  """Returns the states of the target's laws after these tokens."""
  return tuple(law.observe(state, emitted) for law, state in zip(target.laws, states, strict=True))
