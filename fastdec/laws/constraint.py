"""Constraints on texts: a regular expression or a JSON schema that the output must meet.

  fd.decode(model, params, inputs, strategy, constraint=fd.Constraint.regex('yes|no', tokenizer))

A constraint is a law (`decoding.law`): its state is a row's place in an automaton over tokens, and
tokens that lead nowhere get minus infinity. It follows the text to each node of a draft, so drafts
meet it just as plain decoding does. A text may end only where it is a match. A text that max_len
cuts may not be a match yet. A row is `Decoded.stuck` where processors rule out all that is allowed,
such as an end before min_new_tokens.

The output is the text after the prompt, including its first space. An encoder-decoder's output
begins a text, and some tokenizers (SentencePiece's) do not show a space there: then one space may
come before the match, and the match itself must not begin with one. Tokens that processors force,
such as a language first or an end at the row's limit, do not belong to the text.
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
from fastdec.fields import quote
from fastdec.files import check_text
from fastdec.laws.automaton import END, NEVER, NOWHERE, Automaton, make_automaton, trim
from fastdec.laws.json_schema import write_expression
from fastdec.models.api import Model

LEAST = 64  # states and kinds of a table, which is padded: few sizes make few programs
PADDING = 0.05  # share of a vocabulary that a model may add or lack, to reach a round number
WAITING = -2  # WAITING - s: state s, after one more token that does not belong to the text


@struct.pytree
class Constraint:
  """Texts that may be written; `Constraint.regex` and `Constraint.json_schema` make one.

  Attributes:
    after, kind, forced, begins: see `automaton.Automaton`; `after` and `forced` are padded.
    spelling: checksum of the tokenizer (`compute_spelling`).
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
      pattern: in the syntax of Rust's crate regex, without look-around and back-references.
      tokenizer: of the model, as `fd.load_tokenizer` returns it.

    Raises:
      UserError: the pattern does not compile, no text of these tokens matches it, or its automaton
        is too large; or the tokenizer does not know the bytes of its tokens.
    """
    if not isinstance(pattern, str):
      raise UserError(f'pattern must be a regular expression, not {quote(pattern)}: give a string')
    check_text(pattern)
    return cls._make(f'the pattern {quote(pattern)}', pattern, tokenizer)

  @classmethod
  def json_schema(cls, schema: Any, tokenizer: Any) -> 'Constraint':
    """Allows JSON of values that a JSON schema allows, written as `json.dumps` writes it.

    Objects have only the properties that the schema names, in its order.

    Args:
      schema: a dict, or its text.
      tokenizer: as in `regex`.

    Raises:
      UserError: as in `regex`; or no value meets the schema, or it has a keyword that no regular
        expression can express (`laws.json_schema`).
    """
    return cls._make('the JSON schema', write_expression(schema), tokenizer)

  @classmethod
  def _make(cls, name: str, pattern: str, tokenizer: Any) -> 'Constraint':
    if not callable(getattr(tokenizer, 'token_bytes', None)):
      raise UserError(
        f'a constraint needs the bytes of all tokens, which {type(tokenizer).__name__} does not'
        ' know: give a tokenizer of pieces or bytes'
      )
    words = tokenizer.token_bytes()
    automaton = make_automaton(name, pattern, words, _find_dropped_spaces(tokenizer, words))
    return cls(**_pad(automaton), spelling=jnp.asarray(compute_spelling(words), jnp.uint32))

  def laws(self, model: Model, rows: int, waits: bool = False) -> tuple['Constraint']:
    """Returns the constraint for a model: over all of the model's ids, with its ends.

    Args:
      model: the target.
      rows: any number.
      waits: true if the first token after a start is forced.

    Raises:
      UserError: the model has another vocabulary than the constraint, or never ends a text.
    """
    # One of model and tokenizer may have some more tokens than the other.
    words, wanted = len(self.kind), model.vocab_size
    few = min(words, wanted)
    if max(words, wanted) > max(int(few * (1 + PADDING)), -(-few // 64) * 64):
      raise UserError(
        f'the constraint was made for a tokenizer of {words} tokens, and the model has {wanted}:'
        " make it with the model's own tokenizer"
      )
    if not model.eos_ids:
      raise UserError('a constraint needs an end token, and the model has none: give another model')

    # Leave out the tokens that the model does not have.
    law = self
    if words > wanted:
      kind, forced = np.asarray(self.kind[:wanted]), np.asarray(self.forced)
      after = np.asarray(self.after).copy()
      after[:, np.setdiff1d(np.arange(END + 1, after.shape[1]), kind)] = NOWHERE
      forced = np.where(forced < wanted, forced, NOWHERE)
      automaton = trim('the constraint', Automaton(after, kind, forced, np.asarray(self.begins)))
      law = dataclasses.replace(self, **_pad(automaton))
    if model.start_id is None:
      law._check_begin(0)

    # Add the model's ends, and the tokens that the tokenizer does not have.
    kind = jnp.pad(law.kind, (0, wanted - len(law.kind)), constant_values=NEVER)
    kind = kind.at[jnp.array(model.eos_ids)].set(END)
    return (dataclasses.replace(law, kind=kind, waits=waits),)

  def _check_begin(self, begin: int) -> None:
    if not self.reaches[begin]:
      raise UserError(
        'no text of this tokenizer meets the constraint here: after a prompt the output may need'
        ' to begin with a space, which the pattern must include; a translation begins without one'
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

    Logits do not change where the next token does not belong to the text, and after a node that is
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

  def next_state(self, state: Int[Array, '*b'], token: Int[Array, '*b']) -> Int[Array, '*b']:
    """Returns the state after one more token."""
    after = jnp.where(state < 0, NOWHERE, self.after[state, self.kind[token]])
    return jnp.where(state <= WAITING, WAITING - state, after)

  def follow(
    self, state: Int[Array, ' b'], tokens: Int[Array, 'b m'], count: Int[Array, ' b']
  ) -> Int[Array, ' b']:
    """Returns the state after the first `count` tokens of each row."""

    def one(i: Int[Array, ''], state: Int[Array, ' b']) -> Int[Array, ' b']:
      return jnp.where(i < count, self.next_state(state, tokens[:, i]), state)

    return jax.lax.fori_loop(0, tokens.shape[1], one, state)

  def _at_nodes(self, state: Int[Array, ' b'], draft: Draft) -> Int[Array, 'b n']:
    """Returns the state of the text up to each node; each round adds a level of the tree."""
    topology = draft.topology
    parents = jnp.broadcast_to(with_rows(topology.parents, 2), draft.tokens.shape)

    def deeper(_: Any, states: Int[Array, 'b n']) -> Int[Array, 'b n']:
      before = jnp.take_along_axis(states, parents.clip(0), axis=1)
      return jnp.where(parents < 0, states, self.next_state(before, draft.tokens))

    states = jnp.broadcast_to(state[:, None], draft.tokens.shape)
    return jax.lax.fori_loop(0, topology.max_depth, deeper, states)


def _pad(automaton: Automaton) -> dict[str, Any]:
  """Returns the fields of a constraint; states and kinds are padded to powers of two."""
  padding = []
  for size in automaton.after.shape:
    padding.append((0, max(LEAST, 2 ** (size - 1).bit_length()) - size))
  return {
    'after': jnp.asarray(np.pad(automaton.after, padding, constant_values=NOWHERE)),
    'kind': jnp.asarray(automaton.kind),
    'forced': jnp.asarray(np.pad(automaton.forced, padding[0], constant_values=NOWHERE)),
    'begins': jnp.asarray(automaton.begins, jnp.int32),
    'reaches': tuple((automaton.begins >= 0).tolist()),
  }


def _find_dropped_spaces(tokenizer: Any, words: Sequence[bytes]) -> tuple[bool, bool]:
  """Returns whether the tokenizer drops a space that begins a text, and one that ends it."""
  # Find the first token of each form, then decode texts of two.
  first = {}
  for form in (b'[!-~]+$', b' [!-~]', b' $', b'[!-~]* $'):
    first[form] = []
    for token, word in enumerate(words):
      if re.match(form, word):
        first[form] = [token]
        break
  letter, begin, space, end = first.values()
  begin = begin or space
  return (
    bool(begin) and not tokenizer.decode([*begin, *letter]).startswith(' '),
    bool(end) and not tokenizer.decode([*letter, *end]).endswith(' '),
  )


def compute_spelling(words: Sequence[bytes]) -> int:
  """Returns a checksum of the bytes of a tokenizer's tokens, which differs between tokenizers."""
  return zlib.crc32(repr(list(words)).encode())
