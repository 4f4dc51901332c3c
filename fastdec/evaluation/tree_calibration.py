"""Calibration of prediction heads on text that their model writes: accuracies, best tree, cost."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from fastdec.decoding.decode import decode
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
  best_nodes,
  grow,
  head_ranks,
  tokens_per_call,
)
from fastdec.evaluation.wallclock import measure
from fastdec.fields import Token, read, value_of
from fastdec.files import read_json, whole_file
from fastdec.models.api import source_pad
from fastdec.struct import Bound

WIDTHS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # nodes that are timed
CALLS = 16  # of a round
TOPS = (1, 5)


@dataclasses.dataclass(frozen=True)
class _Stored:
  """The content of a file of `Calibration.save`."""

  choices: tuple[tuple[Token, ...], ...]
  rates: tuple[float, ...]
  top_1: tuple[float, ...]
  top_5: tuple[float, ...]
  positions: int
  tokens_per_call: dict
  milliseconds: dict


@dataclasses.dataclass(frozen=True)
class Calibration:
  """The findings, and the tree to use."""

  tree: Tree  # as large as was allowed
  # by n: how often each head has the token among its first n choices
  right: Mapping[int, tuple[float, ...]]
  positions: int  # tokens after which there was something to guess
  tokens: Mapping[int, float]  # by nodes: tokens per call, where decoding writes these texts
  milliseconds: Mapping[int, float]  # by nodes: the time of a call; {} if not timed

  @classmethod
  def load(cls, path: pathlib.Path) -> 'Calibration':
    """Reads a file that `save` wrote.

    Raises:
      UserError: there is no such file, or it is damaged.
    """
    try:
      there = read(_Stored, read_json(path), path.name, mark=': ', ignores=True)
      by_nodes = (
        {int(n): value_of(float, value, name) for n, value in getattr(there, name).items()}
        for name in ('tokens_per_call', 'milliseconds')
      )
      tree = Tree(there.choices, there.rates)
      return cls(tree, {1: there.top_1, 5: there.top_5}, there.positions, *by_nodes)
    except ValueError as error:
      reason = ' '.join(str(error).split())
      raise UserError(
        f'{path} is no calibrated tree ({reason}): remove it, and let it be made again'
      ) from None

  def save(self, path: pathlib.Path, **more: str) -> None:
    """Writes a JSON file, whose "choices" are what decoding takes.

    Args:
      more: what else it is to say.
    """
    right = {f'top_{top}': values for top, values in self.right.items()}
    record = {
      'choices': self.tree.choices,
      'rates': self.tree.rates,
      'tokens_per_call': self.tokens,
    }
    record |= {**right, 'positions': self.positions, 'milliseconds': self.milliseconds, **more}
    with whole_file(path) as file:
      file.write(json.dumps(record, indent=1).encode() + b'\n')

  @property
  def nodes(self) -> int:
    """The nodes of the tree to use: those with the most tokens a second; all, if none is timed."""
    return (
      best_nodes(self.tokens, self.milliseconds)
      if self.milliseconds
      else len(self.tree.choices) + 1
    )

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
  said: Callable[[int], None] = lambda count: None,
) -> Calibration:
  """Has the model write greedily, and grows a tree of at most `nodes` nodes; nothing is timed.

  Args:
    target, heads: the model, and heads on it.
    prompts: ids, of sources if the model has an encoder.
    nodes: the most nodes of the tree, the root included.
    max_len: the most tokens of a text.
    rows: how many prompts are decoded at once.
    said: called with how many more prompts are done.
  """
  ranks = written_ranks(target, heads, prompts, max_len, rows, said)
  positions = sum(map(len, ranks))
  if not positions:
    raise UserError(
      'the model ends every text after one token, so there is nothing to guess: give other prompts'
    )
  right = {top: accuracy(ranks, top) for top in TOPS}
  tree = grow(ranks, nodes)
  tokens = {n: tokens_per_call(ranks, tree.cut(n)) for n in widths_of(tree)}
  return Calibration(tree, right, positions, tokens, {})


def written_ranks(
  target: Bound,
  heads: Bound,
  prompts: Sequence[Sequence[int]],
  max_len: int,
  rows: int,
  said: Callable[[int], None] = lambda count: None,
) -> list[Ranks]:
  """Finds the heads' ranks (see `head_ranks`) along the model's greedy text.

  Arguments as of `calibrate`.
  """
  parts = []
  for inputs, lengths, texts in _texts(target, prompts, max_len, rows):
    parts += head_ranks(tuple(target), tuple(heads), inputs, texts, lengths)
    said(int((texts.lengths > 0).sum()))
  return parts


def widths_of(tree: Tree) -> list[int]:
  """Lists the numbers of nodes to consider: `WIDTHS`, and all."""
  most = len(tree.choices) + 1
  return [*(n for n in WIDTHS if n < most), most]


def timed(
  found: Calibration, target: Bound, heads: Bound, prompt: Sequence[int], max_len: int, rounds: int
) -> Calibration:
  """Adds the time of a call at batch 1, for each of `WIDTHS` and for all nodes."""
  widths = widths_of(found.tree)
  drafters = {
    n: Medusa(heads, Topology.from_choices(found.tree.cut(n).choices)).drafter for n in widths
  }
  inputs = np.array([prompt], np.int32)
  calls = {
    n: Calls.after_prompt(target, drafter, inputs, max_len, CALLS)
    for n, drafter in drafters.items()
  }
  timings = measure(calls, rounds)
  return dataclasses.replace(
    found, milliseconds={n: timings[n].milliseconds / CALLS for n in widths}
  )


def _texts(
  target: Bound, prompts: Sequence[Sequence[int]], max_len: int, rows: int
) -> Iterator[tuple[np.ndarray, np.ndarray | None, Decoded]]:
  """Yields inputs, prompt lengths and greedy texts, `rows` at once, all of one shape.

  Rows that only pad have length 0.
  """
  model, width = target.module, max(map(len, prompts))
  rows = min(rows, len(prompts))
  for start in range(0, len(prompts), rows):
    chosen = list(prompts[start : start + rows])
    missing = rows - len(chosen)
    chosen += chosen[-1:] * missing
    inputs = np.array(
      [[*ids, *[source_pad(model)] * (width - len(ids))] for ids in chosen], np.int32
    )
    lengths = None if model.start_id is not None else np.array(list(map(len, chosen)), np.int32)
    texts = decode(
      target.module, target.params, inputs, Greedy(), lengths, max_len=max_len
    ).checked()
    kept = jnp.where(jnp.arange(rows) < rows - missing, texts.lengths, 0)
    yield inputs, lengths, dataclasses.replace(texts, lengths=kept)
