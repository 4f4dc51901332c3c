"""Calibration of prediction heads on text that their model writes: accuracy, best tree, cost."""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from fastdec.decoding.decode import decode
from fastdec.decoding.inputs import pad_ids
from fastdec.decoding.methods.greedy import Greedy
from fastdec.decoding.methods.heads import Medusa
from fastdec.decoding.protocol import Decoded
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.evaluation.calls import Calls
from fastdec.evaluation.tree_growth import (
  Ranks,
  Tree,
  accuracy,
  choose_nodes,
  grow,
  rank_guesses,
  tokens_per_call,
)
from fastdec.evaluation.wallclock import measure
from fastdec.fields import Token, read, value_of
from fastdec.files import read_json, to_json, write_text
from fastdec.models.api import source_pad, source_words
from fastdec.struct import Bound

WIDTHS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # numbers of nodes to time
CALLS = 16  # in a round
TOPS = (1, 5)


@dataclasses.dataclass(frozen=True)
class _Stored:
  """The content of a file that `Calibration.save` writes."""

  choices: tuple[tuple[Token, ...], ...]
  rates: tuple[float, ...]
  top_1: tuple[float | None, ...]  # None, in JSON null, for a head without a token
  top_5: tuple[float | None, ...]
  positions: int
  tokens_per_call: dict
  milliseconds: dict


@dataclasses.dataclass(frozen=True)
class Calibration:
  """Figures of heads on their model's texts, and the tree to use."""

  tree: Tree  # the largest allowed
  # by n: the share of tokens that are among each head's first n choices
  right: Mapping[int, tuple[float, ...]]
  positions: int  # number of tokens that heads could guess from
  tokens: Mapping[int, float]  # by number of nodes: tokens per call when these texts are decoded
  milliseconds: Mapping[int, float]  # by number of nodes: time of a call; {} if not timed

  @classmethod
  def load(cls, path: pathlib.Path) -> 'Calibration':
    """Reads a file that `save` wrote.

    Raises:
      UserError: the file does not exist or is damaged.
    """
    try:
      stored = read(_Stored, read_json(path), path.name, mark=': ', ignores=True)
      tokens, milliseconds = {}, {}
      # JSON has made strings of the numbers of nodes.
      for nodes, figure in stored.tokens_per_call.items():
        tokens[int(nodes)] = value_of(float, figure, 'tokens_per_call')
      for nodes, figure in stored.milliseconds.items():
        milliseconds[int(nodes)] = value_of(float, figure, 'milliseconds')
      right = {}
      for top, shares in ((1, stored.top_1), (5, stored.top_5)):
        right[top] = tuple(math.nan if share is None else share for share in shares)
      tree = Tree(stored.choices, stored.rates)
      return cls(tree, right, stored.positions, tokens, milliseconds)
    except ValueError as error:
      reason = ' '.join(str(error).split())
      raise UserError(
        f'{path} is not a calibrated tree ({reason}): remove it, and it will be made again'
      ) from None

  def save(self, path: pathlib.Path, **more: str) -> None:
    """Writes a JSON file; decoding takes its "choices".

    Args:
      more: further entries.
    """
    record = {
      'choices': self.tree.choices,
      'rates': self.tree.rates,
      'tokens_per_call': self.tokens,
    }
    for top, shares in self.right.items():
      record[f'top_{top}'] = shares
    record |= {'positions': self.positions, 'milliseconds': self.milliseconds, **more}
    write_text(path, to_json(record, indent=1) + '\n')

  @property
  def nodes(self) -> int:
    """Number of nodes of the tree to use: the one with the most tokens a second; untimed: all."""
    if not self.milliseconds:
      return len(self.tree.choices) + 1
    return choose_nodes(self.tokens, self.milliseconds)

  @property
  def chosen(self) -> Tree:
    """The tree to use."""
    return self.tree.cut(self.nodes)


def calibrate(
  target: Bound,
  heads: Bound,
  prompts: Sequence[Sequence[int]],
  nodes: int,
  max_len: int,
  rows: int,
  progress: Callable[[int], None] = lambda count: None,
) -> Calibration:
  """Decodes the prompts greedily and grows a tree for the heads along the texts, without timing.

  Args:
    target, heads: the model, and heads on it.
    prompts: ids, of sources if the model has an encoder.
    nodes: the most nodes of the tree, the root included.
    max_len: the most tokens of a text.
    rows: number of prompts decoded at once.
    progress: called with the number of prompts that each batch adds.

  Raises:
    UserError: no text has a token to guess.
  """
  ranks = rank_written_texts(target, heads, prompts, max_len, rows, progress)
  positions = sum(map(len, ranks))
  if not positions:
    raise UserError(
      'the model ends every text after one token, so there is nothing to guess: give other prompts'
    )
  right = {top: accuracy(ranks, top) for top in TOPS}
  tree = grow(ranks, nodes)
  tokens = {n: tokens_per_call(ranks, tree.cut(n)) for n in list_widths(tree)}
  return Calibration(tree, right, positions, tokens, {})


def rank_written_texts(
  target: Bound,
  heads: Bound,
  prompts: Sequence[Sequence[int]],
  max_len: int,
  rows: int,
  progress: Callable[[int], None] = lambda count: None,
) -> list[Ranks]:
  """Returns the heads' ranks (`rank_guesses`) along the model's greedy texts.

  Arguments as in `calibrate`.
  """
  ranks = []
  for inputs, lengths, texts in _texts(target, prompts, max_len, rows):
    ranks += rank_guesses(tuple(target), tuple(heads), inputs, texts, lengths)
    progress(int((texts.lengths > 0).sum()))
  return ranks


def list_widths(tree: Tree) -> list[int]:
  """Lists numbers of nodes to try: those of `WIDTHS` that the tree has, and all its nodes."""
  most = len(tree.choices) + 1
  return [n for n in WIDTHS if n < most] + [most]


def time_sizes(
  calibration: Calibration,
  target: Bound,
  heads: Bound,
  prompt: Sequence[int],
  max_len: int,
  rounds: int,
) -> Calibration:
  """Adds the time of a call at batch 1, for each number of nodes of `list_widths`."""
  inputs = np.array([prompt], np.int32)
  calls = {}
  for nodes in list_widths(calibration.tree):
    topology = Topology.from_choices(calibration.tree.cut(nodes).choices)
    drafter = Medusa(heads, topology).drafter
    calls[nodes] = Calls.after_prompt(target, drafter, inputs, max_len, CALLS)
  timings = measure(calls, rounds)
  milliseconds = {nodes: timing.milliseconds / CALLS for nodes, timing in timings.items()}
  return dataclasses.replace(calibration, milliseconds=milliseconds)


def _texts(
  target: Bound, prompts: Sequence[Sequence[int]], max_len: int, rows: int
) -> Iterator[tuple[np.ndarray, np.ndarray | None, Decoded]]:
  """Yields inputs, prompt lengths and greedy texts, `rows` at once, all of one shape.

  The last batch repeats its last prompt to be full; its texts there have length 0.
  """
  model, params = target
  padded, _ = pad_ids('prompts', prompts, source_words(model), source_pad(model))
  all_lengths = np.array([len(prompt) for prompt in prompts], np.int32)
  rows = min(rows, len(prompts))
  for start in range(0, len(prompts), rows):
    places = start + np.arange(rows)
    batch = places.clip(max=len(prompts) - 1)
    lengths = None if model.start_id is not None else all_lengths[batch]
    texts = decode(model, params, padded[batch], Greedy(), lengths, max_len=max_len).checked()
    kept = jnp.where(places < len(prompts), texts.lengths, 0)
    yield padded[batch], lengths, dataclasses.replace(texts, lengths=kept)
