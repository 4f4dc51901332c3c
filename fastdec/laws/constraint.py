"""Constraints on texts: a regular expression or a JSON schema that the output must meet.

  fd.decode(model, params, inputs, strategy, constraint=fd.Constraint.regex('yes|no', tokenizer))

A constraint is a law of the target (`decoding.law`): its state is a row's place in an automaton
over tokens, and tokens that lead nowhere get minus infinity. It follows the text to each node of a
draft, so a draft is held to it as plain decoding is. An end is allowed where the text is a match,
and nowhere else. A text that max_len cuts may be no match yet. Where processors rule out all that
is allowed, such as an end before min_new_tokens, a row is `Decoded.stuck`.

The output is what follows the prompt, its first space included. No text stands before an
encoder-decoder's output, and some tokenizers (SentencePiece's) do not show the space that begins a
text: there one space may precede the form, and the form itself begins with none. Tokens that
processors force, a language first or an end at the row's limit, are no part of the text.
"""

import dataclasses
import re
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt

from fastdec import struct
from fastdec.decoding.law import Emitted
from fastdec.decoding.protocol import Draft, Prompt
from fastdec.decoding.topology import with_rows
from fastdec.errors import UserError
from fastdec.fields import shown
from fastdec.files import check_text
from fastdec.laws.automaton import END, NEVER, NOWHERE, Automaton, automaton_of, trimmed
from fastdec.laws.json_schema import expression_of
from fastdec.models.api import Model

LEAST = 64  # states and kinds of a table, which is padded: few sizes make few programs
PADDING = 0.05  # share of a vocabulary that a model may add or lack, to reach a round number
WAITING = -2  # WAITING - s: state s, but one token that is no part of the text comes first


@struct.pytree
class Constraint:
  """Texts that may be written; `Constraint.regex` and `Constraint.json_schema` make one.

  Attributes:
    after: the state after a token of each kind (`automaton.Automaton`), or NOWHERE.
    kind: of each token.
    forced: for each state, a token of the only text that can follow; NOWHERE if several can.
    begins: the state before any text, after a prompt and without one; NOWHERE if none is met there.
    spelling: of the tokenizer (`spelling_of`).
    reaches: for each of `begins`, whether some text meets the constraint.
    waits: true if the first token after a start is forced.
  """

  after: Int[Array, 'states kinds']
  kind: Int[Array, ' words']
  forced: Int[Array, ' states']
  begins: Int[Array, ' 2']
  spelling: UInt[Array, '']
  reaches: tuple[bool, ...] = struct.static(default=(True, True))
  waits: bool = struct.static(default=False)
  rules_out = ('the constraint',)  # see `LawMaker`

  @classmethod
  def regex(cls, pattern: Any, tokenizer: Any) -> 'Constraint':
    """Allows the texts that match a regular expression as a whole.

    Args:
      pattern: in the syntax of Rust's crate regex, which has no look-around and no references back.
      tokenizer: of the model, as `fd.load_tokenizer` returns it.

    Raises:
      UserError: a pattern that does not compile, that no text of these tokens matches, or whose
        automaton is too large; a tokenizer whose tokens have no bytes of their own.
    """
    if not isinstance(pattern, str):
      raise UserError(f'pattern={shown(pattern)} is no regular expression: give a string')
    check_text(pattern)
    return cls._of(f'the pattern {shown(pattern)}', pattern, tokenizer)

  @classmethod
  def json_schema(cls, schema: Any, tokenizer: Any) -> 'Constraint':
    """Allows JSON, as `json.dumps` writes it, of values that a JSON schema allows.

    Objects have the properties that the schema names, in its order, and no others.

    Args:
      schema: a dict, or its text.
      tokenizer: as in `regex`.

    Raises:
      UserError: as `regex`; a schema that nothing meets, or one with a keyword that no regular
        expression can hold (`laws.json_schema`).
    """
    return cls._of('the JSON schema', expression_of(schema), tokenizer)

  @classmethod
  def _of(cls, name: str, pattern: str, tokenizer: Any) -> 'Constraint':
    if not callable(getattr(tokenizer, 'token_bytes', None)):
      kind = type(tokenizer).__name__
      raise UserError(
        f'{kind} does not tell the bytes of its tokens, which constraints are made of: give a'
        ' tokenizer of pieces or bytes'
      )
    words = tokenizer.token_bytes()
    made = automaton_of(name, pattern, words, _dropped(tokenizer, words))
    return cls(**_arrays(made), spelling=jnp.asarray(spelling_of(words), jnp.uint32))

  def laws(self, model: Model, rows: int, waits: bool = False) -> tuple['Constraint']:
    """Returns the law of a model: the constraint over all of its ids, its ends among them.

    Args:
      model: the target.
      rows: any number.
      waits: true if the first token after a start is forced.

    Raises:
      UserError: another vocabulary than the constraint's; a model that never ends a text.
    """
    words, wanted = len(self.kind), model.vocab_size
    if max(words, wanted) > _at_most(min(words, wanted)):
      raise UserError(
        f'the constraint is of a tokenizer of {words} tokens, and the model has {wanted}: make it'
        " with the model's own"
      )
    if not model.eos_ids:
      raise UserError('a constraint needs an end token, and the model has none: give another model')
    law = self if words <= wanted else self._of_first(wanted)
    if model.start_id is None:
      law._check_begin(0)
    kind = jnp.pad(law.kind, (0, wanted - len(law.kind)), constant_values=NEVER)
    kind = kind.at[jnp.array(model.eos_ids)].set(END)
    return (dataclasses.replace(law, kind=kind, waits=waits),)

  def _of_first(self, count: int) -> 'Constraint':
    """Returns the constraint without the tokens from `count` on, which the model does not have."""
    kind, forced = np.asarray(self.kind[:count]), np.asarray(self.forced)
    after = np.asarray(self.after).copy()
    lost = np.setdiff1d(np.arange(END + 1, after.shape[1]), kind)
    after[:, lost] = NOWHERE
    forced = np.where(forced < count, forced, NOWHERE)
    made = Automaton(after, kind, forced, np.asarray(self.begins))
    return dataclasses.replace(self, **_arrays(trimmed('the constraint', made)))

  def _check_begin(self, begin: int) -> None:
    if not self.reaches[begin]:
      raise UserError(
        'no text of this tokenizer meets the constraint at this place: behind a prompt a first'
        ' space counts, so write it into the form; a translation begins with none, so leave it out'
      )

  def init(self, model: Model, prompt: Prompt, max_len: int) -> Int[Array, ' b']:
    """Returns each row's state before its first token.

    Raises:
      UserError: no text can follow.
    """
    begin = int(model.start_id is not None and prompt.tokens.shape[1] == 1)
    self._check_begin(begin)
    state = jnp.broadcast_to(self.begins[begin], prompt.length.shape)
    return jnp.where(self.waits & (jnp.asarray(prompt.length) == 1), WAITING - state, state)

  def __call__(
    self, state: Int[Array, ' b'], draft: Draft, logits: Float[Array, 'b n v']
  ) -> Float[Array, 'b n v']:
    """Returns logits that are minus infinity for tokens that lead nowhere.

    Logits stay as they are where the next token is no part of the text, and after a node that is
    itself not allowed, since no draft is accepted there.
    """
    states = self._at_nodes(state, draft)
    allowed = (self.after[states] >= 0) | (states < 0)[..., None]
    return jnp.where(jnp.take(allowed, self.kind, axis=-1), logits, -jnp.inf)

  def observe(self, state: Int[Array, ' b'], emitted: Emitted) -> Int[Array, ' b']:
    """Returns the states after these tokens."""
    return self.follow(state, emitted.tokens, emitted.count)

  def take(self, rows: Any) -> 'Constraint':
    return self

  def behind(self, state: Int[Array, '*b'], token: Int[Array, '*b']) -> Int[Array, '*b']:
    """Returns the state after one more token."""
    after = jnp.where(state < 0, NOWHERE, self.after[state, self.kind[token]])
    return jnp.where(state <= WAITING, WAITING - state, after)

  def follow(
    self, state: Int[Array, ' b'], tokens: Int[Array, 'b m'], count: Int[Array, ' b']
  ) -> Int[Array, ' b']:
    """Returns the state after the first `count` tokens of each row."""

    def one(i: Int[Array, ''], state: Int[Array, ' b']) -> Int[Array, ' b']:
      return jnp.where(i < count, self.behind(state, tokens[:, i]), state)

    return jax.lax.fori_loop(0, tokens.shape[1], one, state)

  def _at_nodes(self, state: Int[Array, ' b'], draft: Draft) -> Int[Array, 'b n']:
    """Returns the state of the text up to each node: a level of the tree more in each round."""
    topology = draft.topology
    parents = jnp.broadcast_to(with_rows(topology.parents, 2), draft.tokens.shape)

    def deeper(_: Any, states: Int[Array, 'b n']) -> Int[Array, 'b n']:
      before = jnp.take_along_axis(states, parents.clip(0), axis=1)
      return jnp.where(parents < 0, states, self.behind(before, draft.tokens))

    states = jnp.broadcast_to(state[:, None], draft.tokens.shape)
    return jax.lax.fori_loop(0, topology.max_depth, deeper, states)


def _arrays(made: Automaton) -> dict[str, Any]:
  """Returns the fields of an automaton's constraint; states and kinds are padded."""
  padding = [(0, _padded(size) - size) for size in made.after.shape]
  return {
    'after': jnp.asarray(np.pad(made.after, padding, constant_values=NOWHERE)),
    'kind': jnp.asarray(made.kind),
    'forced': jnp.asarray(np.pad(made.forced, padding[0], constant_values=NOWHERE)),
    'begins': jnp.asarray(made.begins, jnp.int32),
    'reaches': tuple((made.begins >= 0).tolist()),
  }


def _dropped(tokenizer: Any, words: Sequence[bytes]) -> tuple[bool, bool]:
  """Returns whether the tokenizer shows no space that begins a text, and none that ends it."""
  letter = _first(b'[!-~]+$', words)
  begun = _first(b' [!-~]', words) or _first(b' $', words)
  ended = _first(b'[!-~]* $', words)
  return (
    bool(begun) and not tokenizer.decode([*begun, *letter]).startswith(' '),
    bool(ended) and not tokenizer.decode([*letter, *ended]).endswith(' '),
  )


def _first(form: bytes, words: Sequence[bytes]) -> list[int]:
  """Returns the first token of a form, or nothing."""
  return [token for token, word in enumerate(words) if re.match(form, word)][:1]


def _at_most(words: int) -> int:
  """Returns the tokens that one of model and tokenizer may have if the other has this many."""
  return max(int(words * (1 + PADDING)), -(-words // 64) * 64)


def _padded(size: int) -> int:
  """Returns the next power of two, from LEAST."""
  return max(LEAST, 2 ** (size - 1).bit_length())


def spelling_of(words: Sequence[bytes]) -> int:
  """Returns a checksum of the bytes of a tokenizer's tokens, which differs between tokenizers."""
  return zlib.crc32(repr(list(words)).encode())
