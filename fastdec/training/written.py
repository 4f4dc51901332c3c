"""Texts that a model writes for prompts: kept in parts, and held out by their prompts' content.

A part is a file with a line for each of its prompts: the tokens of the outputs. The file is named
by the content of these prompts, and its folder, a stage, by the model and the settings. Rounding
depends on which prompts are decoded together, so a part is decoded as a whole or not at all. So a
command that was stopped writes what it would have written. The seconds that a part took are kept
next to it. A budget counts these, so its plan is the same whichever command wrote the part.
"""

import collections
import dataclasses
import hashlib
import itertools
import json
import pathlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fastdec.decoding.pool import decode_list
from fastdec.decoding.request import Settings
from fastdec.decoding.sizes import LISTED
from fastdec.evaluation import wallclock
from fastdec.files import parse_json, to_json, whole_file, write_text
from fastdec.struct import Bound
from fastdec.training.processes import count, everywhere, is_first, wait
from fastdec.training.stage import check_budget

T = TypeVar('T')
Outputs = list[list[int]]  # of a prompt: the tokens of each


@dataclasses.dataclass(frozen=True)
class Writing:
  """How a model writes.

  Attributes:
    target: the model and its parameters.
    strategy: one that searches gives all outputs of a prompt, the best first.
    max_len: the most tokens of an output.
    rows: prompts decoded at once.
    key: draws the outputs, each by the place of its prompt; None: nothing is drawn.
    draws: outputs that are drawn for each prompt.
    processors: as in `fd.decode`.
  """

  target: Bound
  strategy: Any
  max_len: int
  rows: int
  key: Any = None
  draws: int = 1
  processors: Any = None


def write_part(
  folder: pathlib.Path, writing: Writing, prompts: Sequence[Sequence[int]], first: int
) -> list[Outputs]:
  """Returns the outputs of some prompts. They are written once, and then read from the folder.

  Args:
    folder: holds the parts of one model and of one way to write.
    writing: how the model writes.
    prompts: their tokens.
    first: the place of the first prompt in the whole list.

  Raises:
    OutOfTime: the budget ended first.
    UserError: the part cannot be written to the disk.
  """
  ((_, outputs),) = write_parts(folder, writing, [(first, prompts)])
  return outputs


def write_parts(
  folder: pathlib.Path, writing: Writing, parts: Iterable[tuple[Any, ...]]
) -> Iterator[tuple[tuple[Any, ...], list[Outputs]]]:
  """Yields each part with the outputs of its prompts, see `write_part`.

  Several processes write different parts at the same time. Only the first process gets outputs.

  Args:
    folder, writing: see `write_part`.
    parts: the place of the first prompt, and the prompts' tokens. Further entries are yielded too.
  """

  def file_of(part: tuple[Any, ...]) -> pathlib.Path:
    return _file(folder, part[1], part[0])

  def write(part: tuple[Any, ...], file: pathlib.Path) -> None:
    first, prompts = part[:2]
    begin = wallclock.now()
    written: list[Outputs] = [[] for _ in prompts]
    for draw in range(writing.draws):
      for place, outputs in _decode(writing, prompts, first, draw):
        written[place] += outputs
    # The seconds are there before the part: a command may be killed between the two.
    write_text(file.with_suffix('.seconds'), f'{wallclock.now() - begin}')
    with whole_file(file) as out:
      for outputs in written:
        out.write(to_json(outputs).encode() + b'\n')

  for part, file in in_turns(parts, file_of, write):
    outputs: list[Outputs] = [[] for _ in part[1]]
    if is_first():
      outputs = [parse_json(line) for line in file.read_bytes().splitlines()]
    yield part, outputs


def in_turns(
  parts: Iterable[T], file_of: Callable[[T], pathlib.Path], write: Callable[[T, pathlib.Path], None]
) -> Iterator[tuple[T, pathlib.Path]]:
  """Yields each part with its file, once that is written. If n processes compute together, each
  writes every n-th part, all at the same time.

  Raises:
    OutOfTime: the budget ended first.
  """
  rest = ((part, file_of(part)) for part in parts)
  while group := list(itertools.islice(rest, count())):
    mine = group[jax.process_index() :][:1]  # the last group may have too few
    missing = [each for each in mine if not each[1].is_file()]
    if not everywhere(not missing):
      check_budget()
    for part, file in missing:
      write(part, file)
    wait('parts are written')
    yield from group


def read_seconds(folder: pathlib.Path, prompts: Sequence[Sequence[int]], first: int) -> float:
  """Returns the seconds that a part took which `write_part` has written; 0.0 if it did not say."""
  file = _file(folder, prompts, first).with_suffix('.seconds')
  return float(file.read_text()) if file.is_file() else 0.0


def _file(folder: pathlib.Path, prompts: Sequence[Sequence[int]], first: int) -> pathlib.Path:
  """Returns the file of a part."""
  content = hashlib.sha256(json.dumps([first, *map(list, prompts)]).encode()).hexdigest()[:10]
  return folder / f'{first:07}-{content}.jsonl'


def _decode(
  writing: Writing, prompts: Sequence[Sequence[int]], first: int, draw: int
) -> Iterator[tuple[int, Outputs]]:
  """Yields the place and the outputs of each prompt, as it ends."""
  keys = None
  if writing.key is not None:
    places = jnp.arange(first, first + len(prompts))
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(writing.key, draw), places)
  settings = Settings(writing.max_len, key=keys, processors=writing.processors)
  inputs = [np.array(prompt, np.int32) for prompt in prompts]
  model, params = writing.target
  parts = decode_list(model, params, inputs, writing.strategy, writing.rows, settings, LISTED)
  for finished in parts:
    decoded = finished.decoded.checked()
    for row, place in enumerate(finished.indices.tolist()):
      outputs = [list(map(int, decoded.written(row)))]
      if decoded.nbest_tokens is not None and decoded.nbest_scores is not None:
        # A search may have fewer outputs than were asked for.
        is_found = decoded.nbest_scores[row] > -np.inf
        outputs = decoded.nbest_tokens[row][is_found].tolist()
      yield place, outputs


def read_content(prompt: Any) -> str:
  """Returns the words by which a prompt is held out: of a chat those of its first question.

  Chats that begin alike are parts of one conversation. White space does not count.

  >>> read_content([{'role': 'system', 'content': 'Yes?'}, {'role': 'user', 'content': 'Who  is'}])
  'Who is'
  """
  if not isinstance(prompt, str):
    questions = [message for message in prompt if message.get('role') == 'user'] or prompt
    prompt = questions[0].get('content')
    if not isinstance(prompt, str):
      prompt = json.dumps(prompt)
  return ' '.join(prompt.split())


def choose_held_out(contents: Sequence[Hashable], share: int) -> set[Any]:
  """Returns the contents that are held out: those of one text in `share`, or of the fewest.

  All texts of a content are held out, or none.

  Args:
    contents: of each text, in a mixed order; two or more are different.
    share: 20: a twentieth of the texts is held out.

  >>> sorted(choose_held_out(['a', 'b', 'b', 'c', 'b', 'd'], 2))
  ['a', 'c', 'd']
  """
  sizes = collections.Counter(contents)
  left, chosen = len(contents) // share, set()
  for content, size in sizes.items():
    if size <= left:
      chosen.add(content)
      left -= size
  return chosen or {min(sizes, key=lambda content: sizes[content])}
