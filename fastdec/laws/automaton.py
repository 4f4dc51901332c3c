"""Automata over tokens: the texts of a regular expression as a table for one vocabulary.

outlines-core compiles the expression into an automaton over bytes. Here all tokens walk through it:
the state after a token is the one after its last byte. Tokens that lead to the same states from
everywhere are one kind, so the table is small for any vocabulary.
"""

import dataclasses
import importlib
import itertools
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Int

from fastdec import extras
from fastdec.errors import UserError
from fastdec.laws.syntax import reason_of, unanchored

NOWHERE = -1  # after a byte or a token that is not allowed
NEVER, END = 0, 1  # kinds: of tokens that are never allowed, and of the model's ends
BYTES = 256
MOST_STATES = 4096
MOST_ENTRIES = 2**25  # of the table
TOGETHER = 64  # states from which all tokens walk in one pass
SECONDS = (
  60.0  # that the process of `expression` may take; on an idle machine its own bound is less
)


@dataclasses.dataclass(frozen=True)
class Automaton:
  """States of the texts that can still become a match.

  Attributes:
    after: the state after a token of each kind, or NOWHERE; after an END, where the text is a
      match, the same state.
    kind: of each token.
    forced: a token of the only text that can follow, as long as possible; NOWHERE if several texts
      can follow, or the text may end.
    begins: the state of no text, behind a prompt and without one; NOWHERE if no text of these
      tokens becomes a match from there.
  """

  after: Int[np.ndarray, 'states kinds']
  kind: Int[np.ndarray, ' words']
  forced: Int[np.ndarray, ' states']
  begins: Int[np.ndarray, ' 2']


def automaton_of(
  name: str, pattern: str, words: Sequence[bytes], drops: tuple[bool, bool] = (False, False)
) -> Automaton:
  """Compiles an expression for the tokens of a vocabulary.

  Args:
    name: of the expression, for messages.
    pattern: in the syntax of Rust's crate regex; it matches texts as a whole.
    words: the bytes of each token; tokens without any are never allowed.
    drops: whether the tokenizer shows no space that begins a text, and none that ends it.

  Raises:
    UserError: an expression that does not compile, that no text of these tokens matches, or whose
      automaton is too large.
  """
  after, accepting = of_bytes(name, pattern)
  begins = np.array([0, 0])
  if drops[1]:
    after, accepting = _with_spaces(after, accepting)
  if drops[0]:
    after, accepting = _with_start(after, accepting)
    begins[1] = len(after) - 1
  is_forced = ((after >= 0).sum(1) == 1) & ~accepting
  forcing = np.where(is_forced[:, None], after, NOWHERE)
  first_byte, letter = np.unique(after, axis=1, return_index=True, return_inverse=True)[1:]
  after, forcing, letter = after[:, first_byte], forcing[:, first_byte], letter.reshape(-1)
  walk = _Walk.of(words, letter)
  kind, examples = _kinds(walk, after)
  if len(after) * (2 + len(examples)) > MOST_ENTRIES:
    raise _too_large(name)
  table = np.full((len(after), 2 + len(examples)), NOWHERE, np.int32)
  table[accepting, END] = accepting.nonzero()[0]
  forced, few = np.full(len(after), NOWHERE), _Walk.of([words[i] for i in examples], letter)
  for states in _blocks(np.arange(len(after))):
    table[states, 2:] = few.states_after(after, states).T
  for states in _blocks(is_forced.nonzero()[0]):
    sizes = np.where(walk.states_after(forcing, states) >= 0, walk.sizes[:, None], 0)
    forced[states] = np.where(sizes.any(0), sizes.argmax(0), NOWHERE)
  return trimmed(name, Automaton(table, kind, forced, begins))


def of_bytes(
  name: str, pattern: str
) -> tuple[Int[np.ndarray, 'states bytes'], Bool[np.ndarray, ' states']]:
  """Returns the state after each byte in each state, and the states of matches; 0 is the first.

  Raises:
    UserError: as `automaton_of`.
  """
  expression = unanchored(name, pattern)
  with extras.explained():
    importlib.import_module('outlines_core')  # which the process below needs
  script = pathlib.Path(__file__).with_name('expression.py')
  try:
    ended = subprocess.run(
      [sys.executable, '-P', script],
      input=expression.encode(),
      capture_output=True,
      timeout=SECONDS,
      check=False,
    )
    answer = json.loads(ended.stdout)
  except (subprocess.TimeoutExpired, ValueError):  # it was killed before its line was whole
    raise _too_large(name) from None
  if 'refused' in answer:
    raise UserError(f'{name} does not compile: {reason_of(pattern)}')
  if 'steps' not in answer:
    raise _too_large(name)
  number = {state: i for i, state in enumerate(answer['states'])}
  after = np.full((len(number), BYTES), NOWHERE, np.int32)
  for state, byte, next_state in answer['steps']:
    after[number[state], byte] = number[next_state]
  matches = np.isin(answer['states'], answer['matches'])
  kept = _reached(_adjacent(after).T, matches)
  if kept.sum() > MOST_STATES:
    raise _too_large(name)
  return np.where((after >= 0) & kept[after], after, NOWHERE), matches


def _with_start(
  after: Int[np.ndarray, 'states bytes'], accepting: Bool[np.ndarray, ' states']
) -> tuple[Int[np.ndarray, 'more bytes'], Bool[np.ndarray, ' more']]:
  """Adds two states: of a space that is not shown, and last of no text before such a space.

  A second space may not follow: some tokenizers drop all that begin a text, others the first.
  """
  space = np.arange(BYTES) == ord(' ')
  dropped = np.where(space, NOWHERE, after[0])
  begun = np.where(space, len(after), after[0])
  return np.vstack([after, dropped, begun]), np.append(accepting, accepting[[0, 0]])


def _with_spaces(
  after: Int[np.ndarray, 'states bytes'], accepting: Bool[np.ndarray, ' states']
) -> tuple[Int[np.ndarray, 'more bytes'], Bool[np.ndarray, ' more']]:
  """Adds, for each state behind a space, one where no text may end."""
  behind = np.unique(after[:, ord(' ')])
  behind = behind[behind >= 0]
  after = np.vstack([after, after[behind]])
  number = np.append(np.full(len(accepting), NOWHERE), NOWHERE)  # of NOWHERE too
  number[behind] = len(accepting) + np.arange(len(behind))
  after[:, ord(' ')] = number[after[:, ord(' ')]]
  return after, np.append(accepting, np.zeros(len(behind), bool))


@dataclasses.dataclass(frozen=True)
class _Level:
  """Beginnings of tokens of one length, as nodes in the order of their letters.

  A letter is a class of bytes that lead to the same states from everywhere.
  """

  parents: Int[np.ndarray, ' nodes']  # among the nodes of the level before
  bounds: Int[np.ndarray, ' bounds']  # letter i is the last one of nodes bounds[i] to [i + 1]
  tokens: Int[np.ndarray, ' some']  # that end here
  nodes: Int[np.ndarray, ' some']  # of these


@dataclasses.dataclass(frozen=True)
class _Walk:
  """Tokens that walk through an automaton all at once, each beginning but once."""

  levels: Sequence[_Level]
  sizes: Int[np.ndarray, ' words']

  @classmethod
  def of(cls, words: Sequence[bytes], letter: Int[np.ndarray, ' bytes']) -> '_Walk':
    sizes = np.array([len(word) for word in words], int)
    text, begins = letter[np.frombuffer(b''.join(words), np.uint8)], np.cumsum(sizes) - sizes
    levels, left, node, count = [], np.flatnonzero(sizes), np.zeros(len(words), int), 1
    for place in itertools.count():
      if not left.size:
        return cls(levels, sizes)
      of_left = text[begins[left] + place] * count + node[left]
      nodes, node[left] = np.unique(of_left, return_inverse=True)
      letters, parents = np.divmod(nodes, count)
      ends = left[sizes[left] == place + 1]
      bounds = np.searchsorted(letters, np.arange(letter.max() + 2))
      levels.append(_Level(parents, bounds, ends, node[ends]))
      left, count = left[sizes[left] > place + 1], len(nodes)
    raise AssertionError  # every token ends

  def states_after(
    self, after: Int[np.ndarray, 'states letters'], states: Int[np.ndarray, ' some']
  ) -> Int[np.ndarray, 'words some']:
    """Returns the state after each token from each of some states, or NOWHERE."""
    columns = np.vstack([after, np.full(after.shape[1], NOWHERE)]).T.astype(np.int16, order='C')
    reached = np.full((len(self.sizes), len(states)), NOWHERE, np.int16)
    now = states[None].astype(np.int16)
    for level in self.levels:
      before, now = now, np.empty((len(level.parents), len(states)), np.int16)
      for column, begin, end in zip(columns, level.bounds[:-1], level.bounds[1:], strict=True):
        now[begin:end] = column[before[level.parents[begin:end]]]  # the last row is NOWHERE's
      reached[level.tokens] = now[level.nodes]
    return reached


def _blocks(states: Int[np.ndarray, ' many']) -> Iterator[Int[np.ndarray, ' some']]:
  for begin in range(0, len(states), TOGETHER):
    yield states[begin : begin + TOGETHER]


def _kinds(
  walk: _Walk, after: Int[np.ndarray, 'states letters']
) -> tuple[Int[np.ndarray, ' words'], Int[np.ndarray, ' kinds']]:
  """Returns each token's kind, and a token of each kind from 2 on.

  A random sum of 64 bits over a token's states tells its kind: two kinds have the same sum once in
  10^9 vocabularies. The sum of tokens that are never allowed is 0.
  """
  rng, sums = np.random.default_rng(0), np.zeros(len(walk.sizes), np.uint64)
  for states in _blocks(np.arange(len(after))):
    weights = rng.integers(1, 2**64, len(states), np.uint64)
    sums += (walk.states_after(after, states) - NOWHERE).astype(np.uint64) @ weights
  different, examples, kind = np.unique(sums, return_index=True, return_inverse=True)
  never = int(different[0] == 0)  # the sums are in order
  return np.where(sums == 0, NEVER, kind + 2 - never).astype(np.int32), examples[never:]


def trimmed(name: str, whole: Automaton) -> Automaton:
  """Leaves out states that no text of tokens leads to, or that none leads to a match from.

  Raises:
    UserError: all of them.
  """
  after, adjacent = whole.after, _adjacent(whole.after)
  begins = np.isin(np.arange(len(after)), whole.begins)
  kept = _reached(adjacent.T, after[:, END] >= 0) & _reached(adjacent, begins)
  if not kept[begins].any():
    raise UserError(
      f'{name} is met by no text of this tokenizer: allow something that it can write'
    )
  number = np.append(np.where(kept, np.cumsum(kept) - 1, NOWHERE), NOWHERE)  # of NOWHERE too
  after = number[after][kept].astype(np.int32)
  forced = whole.forced[kept]
  is_allowed = np.take_along_axis(after, whole.kind[forced][:, None], axis=1)[:, 0] >= 0
  forced = np.where((forced >= 0) & is_allowed, forced, NOWHERE).astype(np.int32)
  return Automaton(after, whole.kind, forced, number[whole.begins].astype(np.int32))


def _adjacent(after: Int[np.ndarray, 'states _']) -> Bool[np.ndarray, 'states states']:
  """Returns [i, j]: a step leads from state i to state j."""
  adjacent = np.zeros((len(after), len(after)), bool)
  state, step = (after >= 0).nonzero()
  adjacent[state, after[state, step]] = True
  return adjacent


def _reached(
  adjacent: Bool[np.ndarray, 'states states'], begins: Bool[np.ndarray, ' states']
) -> Bool[np.ndarray, ' states']:
  """Returns the states that lie on a path from some, and these."""
  reached = newest = begins
  while newest.any():
    newest = adjacent[newest].any(0) & ~reached
    reached = reached | newest
  return reached


def _too_large(name: str) -> UserError:
  return UserError(
    f'{name} needs an automaton of more than {MOST_STATES} states, or much time: give the texts and'
    ' lists in it lower highest lengths'
  )
