"""Automata over tokens: the texts of a regular expression as a table for one vocabulary.

outlines-core compiles the expression into an automaton over bytes. Here all tokens walk through it:
the state after a token is the state after its last byte. Tokens that lead from each state to the
same next state are one kind, so the table is small for any vocabulary.
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
from fastdec.laws.syntax import explain_mistake, remove_anchors

NOWHERE = -1  # after a byte or a token that is not allowed
NEVER, END = 0, 1  # the kinds of tokens that are never allowed, and of the model's ends
BYTES = 256
MOST_STATES = 4096
MOST_ENTRIES = 2**25  # of the table
TOGETHER = 64  # states from which all tokens walk in one pass
SECONDS = 60.0  # the process of `expression` may take; it stops itself earlier on an idle machine


@dataclasses.dataclass(frozen=True)
class Automaton:
  """States of the texts that can still become a match.

  Attributes:
    after: the state after a token of each kind, or NOWHERE; after an END, where the text is a
      match, the same state.
    kind: of each token.
    forced: a token of the only text that can follow, as long as possible; NOWHERE if several texts
      can follow, or the text may end.
    begins: the state before any text, after a prompt and without one; NOWHERE if no text of these
      tokens becomes a match from there.
  """

  after: Int[np.ndarray, 'states kinds']
  kind: Int[np.ndarray, ' words']
  forced: Int[np.ndarray, ' states']
  begins: Int[np.ndarray, ' 2']


def make_automaton(
  name: str, pattern: str, words: Sequence[bytes], drops: tuple[bool, bool] = (False, False)
) -> Automaton:
  """Compiles an expression for the tokens of a vocabulary.

  Args:
    name: of the expression, for messages.
    pattern: in the syntax of Rust's crate regex; it matches texts as a whole.
    words: the bytes of each token; tokens without any are never allowed.
    drops: whether the tokenizer drops a space that begins a text, and one that ends it.

  Raises:
    UserError: the expression does not compile, no text of these tokens matches it, or its automaton
      is too large.
  """
  after, accepting = compile_bytes(name, pattern)
  begins = np.array([0, 0])
  if drops[1]:
    # After a space no text may end: such states get copies that do not accept.
    spaced = np.unique(after[:, ord(' ')])
    spaced = spaced[spaced >= 0]
    number = np.full(len(after) + 1, NOWHERE)  # the last one is that of NOWHERE
    number[spaced] = len(after) + np.arange(len(spaced))
    after = np.vstack([after, after[spaced]])
    after[:, ord(' ')] = number[after[:, ord(' ')]]
    accepting = np.append(accepting, np.zeros(len(spaced), bool))
  if drops[0]:
    # Without a prompt the text begins in the last new state. A space leads to the state before it,
    # where no second one may follow: some tokenizers drop all that begin a text, others the first.
    space = np.arange(BYTES) == ord(' ')
    dropped = np.where(space, NOWHERE, after[0])
    begin = np.where(space, len(after), after[0])
    after, accepting = np.vstack([after, dropped, begin]), np.append(accepting, accepting[[0, 0]])
    begins[1] = len(after) - 1

  # Bytes that lead to the same states from everywhere are one letter.
  is_forced = ((after >= 0).sum(1) == 1) & ~accepting
  forcing = np.where(is_forced[:, None], after, NOWHERE)
  first_byte, letter = np.unique(after, axis=1, return_index=True, return_inverse=True)[1:]
  after, forcing, letter = after[:, first_byte], forcing[:, first_byte], letter.reshape(-1)

  # Find the kinds of tokens, and the states after each kind.
  walk = _Walk.make(words, letter)
  kind, examples = _find_kinds(walk, after)
  if len(after) * (2 + len(examples)) > MOST_ENTRIES:
    raise _too_large(name)
  table = np.full((len(after), 2 + len(examples)), NOWHERE, np.int32)
  table[accepting, END] = accepting.nonzero()[0]
  few = _Walk.make([words[i] for i in examples], letter)
  for states in _split(np.arange(len(after))):
    table[states, 2:] = few.states_after(after, states).T

  # Where only one byte can follow, force the longest token whose bytes are all forced.
  forced = np.full(len(after), NOWHERE)
  for states in _split(is_forced.nonzero()[0]):
    sizes = np.where(walk.states_after(forcing, states) >= 0, walk.sizes[:, None], 0)
    forced[states] = np.where(sizes.any(0), sizes.argmax(0), NOWHERE)
  return trim(name, Automaton(table, kind, forced, begins))


def compile_bytes(
  name: str, pattern: str
) -> tuple[Int[np.ndarray, 'states bytes'], Bool[np.ndarray, ' states']]:
  """Returns the state after each byte in each state, and which states match; the first is 0.

  Raises:
    UserError: as in `make_automaton`.
  """
  expression = remove_anchors(name, pattern)
  with extras.explained():
    importlib.import_module('outlines_core')  # which the process below needs
  script = pathlib.Path(__file__).with_name('expression.py')
  try:
    process = subprocess.run(
      [sys.executable, '-P', script],
      input=expression.encode(),
      capture_output=True,
      timeout=SECONDS,
      check=False,
    )
    answer = json.loads(process.stdout)
  except (subprocess.TimeoutExpired, ValueError):  # it was killed before its line was complete
    raise _too_large(name) from None
  if 'refused' in answer:
    raise UserError(f'{name} does not compile: {explain_mistake(pattern)}')
  if 'steps' not in answer:
    raise _too_large(name)

  # Make a table of the steps between states from which a match can be reached.
  number = {state: i for i, state in enumerate(answer['states'])}
  after = np.full((len(number), BYTES), NOWHERE, np.int32)
  for state, byte, next_state in answer['steps']:
    after[number[state], byte] = number[next_state]
  matches = np.isin(answer['states'], answer['matches'])
  kept = _reach(_adjacency(after).T, matches)
  if kept.sum() > MOST_STATES:
    raise _too_large(name)
  return np.where((after >= 0) & kept[after], after, NOWHERE), matches


@dataclasses.dataclass(frozen=True)
class _Level:
  """Beginnings of tokens, all of one length, as nodes in the order of their letters.

  A letter is a set of bytes that lead to the same states from everywhere.
  """

  parents: Int[np.ndarray, ' nodes']  # among the nodes of the level before
  bounds: Int[np.ndarray, ' bounds']  # letter i is the last one of nodes bounds[i] to [i + 1]
  tokens: Int[np.ndarray, ' some']  # that end here
  nodes: Int[np.ndarray, ' some']  # of these tokens


@dataclasses.dataclass(frozen=True)
class _Walk:
  """Tokens that walk through an automaton together, each common beginning only once."""

  levels: Sequence[_Level]
  sizes: Int[np.ndarray, ' words']

  @classmethod
  def make(cls, words: Sequence[bytes], letter: Int[np.ndarray, ' bytes']) -> '_Walk':
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


def _split(states: Int[np.ndarray, ' many']) -> Iterator[Int[np.ndarray, ' some']]:
  """Yields the states that walk in one pass."""
  for begin in range(0, len(states), TOGETHER):
    yield states[begin : begin + TOGETHER]


def _find_kinds(
  walk: _Walk, after: Int[np.ndarray, 'states letters']
) -> tuple[Int[np.ndarray, ' words'], Int[np.ndarray, ' kinds']]:
  """Returns each token's kind, and one token of each kind from kind 2 up.

  Tokens of a kind have the same random sum of 64 bits over their states. Two kinds have the same
  sum once in 10^9 vocabularies. Tokens that are never allowed have the sum 0.
  """
  rng, sums = np.random.default_rng(0), np.zeros(len(walk.sizes), np.uint64)
  for states in _split(np.arange(len(after))):
    weights = rng.integers(1, 2**64, len(states), np.uint64)
    sums += (walk.states_after(after, states) - NOWHERE).astype(np.uint64) @ weights
  different, examples, kind = np.unique(sums, return_index=True, return_inverse=True)
  never = int(different[0] == 0)  # the sums are sorted
  return np.where(sums == 0, NEVER, kind + 2 - never).astype(np.int32), examples[never:]


def trim(name: str, whole: Automaton) -> Automaton:
  """Leaves out states that no text leads to, and states from which no text leads to a match.

  Raises:
    UserError: no state remains.
  """
  after, adjacent = whole.after, _adjacency(whole.after)
  begins = np.isin(np.arange(len(after)), whole.begins)
  kept = _reach(adjacent.T, after[:, END] >= 0) & _reach(adjacent, begins)
  if not kept[begins].any():
    raise UserError(f'no text of this tokenizer meets {name}: allow something that it can write')
  number = np.append(np.where(kept, np.cumsum(kept) - 1, NOWHERE), NOWHERE)  # last: of NOWHERE
  after = number[after][kept].astype(np.int32)
  forced = whole.forced[kept]
  is_allowed = np.take_along_axis(after, whole.kind[forced][:, None], axis=1)[:, 0] >= 0
  forced = np.where((forced >= 0) & is_allowed, forced, NOWHERE).astype(np.int32)
  return Automaton(after, whole.kind, forced, number[whole.begins].astype(np.int32))


def _adjacency(after: Int[np.ndarray, 'states _']) -> Bool[np.ndarray, 'states states']:
  """Returns [i, j]: a step leads from state i to state j."""
  adjacent = np.zeros((len(after), len(after)), bool)
  state, step = (after >= 0).nonzero()
  adjacent[state, after[state, step]] = True
  return adjacent


def _reach(
  adjacent: Bool[np.ndarray, 'states states'], begins: Bool[np.ndarray, ' states']
) -> Bool[np.ndarray, ' states']:
  """Returns the states that can be reached from some, and these."""
  reached = newest = begins
  while newest.any():
    newest = adjacent[newest].any(0) & ~reached
    reached = reached | newest
  return reached


def _too_large(name: str) -> UserError:
  return UserError(
    f'{name} needs an automaton of more than {MOST_STATES} states, or much time: lower the maximum'
    ' lengths of its texts and lists'
  )
