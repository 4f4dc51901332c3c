"""Decodes lines of text with a trained translation model."""

import dataclasses
import re
from typing import Any

import numpy as np

import fastdec as fd
from experiments.lab.text import check_sources
from fastdec.data.text.tokens import TokenPairs
from fastdec.decoding.pool import decode_each, in_order
from fastdec.errors import UserError
from fastdec.models.api import source_pad


@dataclasses.dataclass(frozen=True)
class Output:
  """Decoded sentences, in the order given."""

  lines: list[str]
  tokens: np.ndarray
  lengths: np.ndarray
  block_sizes: np.ndarray
  # of beam search: scores and lines, best first
  hypotheses: list[list[tuple[float, str]]] | None = None


def rule_of(name: str) -> fd.MinBlock:
  """'exact', 'top-2', 'min-3': all of one structure, so that a sweep over them is one compiled
  program."""
  match = re.fullmatch(r'exact|(top|min)-([1-9]\d{0,8})', name)
  if match is None:
    raise UserError(
      f'the rule {name} is unknown: give exact, top-N or min-N, such as top-2 (in'
      ' tables also tree-N)'
    )
  top, size = {'top': (int(match[2] or 1), 1), 'min': (1, int(match[2] or 1)), None: (1, 1)}[
    match[1]
  ]
  return fd.MinBlock(fd.TopN(top), size)


def tree_nodes(name: str) -> int | None:
  """The nodes of the tree that a rule such as 'tree-32' names, the root included; None for the
  rules of `rule_of`."""
  if not name.startswith('tree'):
    return None
  match = re.fullmatch(r'tree-([1-9]\d{0,2})', name)
  if match is None or match[1] == '1':
    raise UserError(
      f'the rule {name} names no tree: give tree-N of 2 to 999 nodes, the root'
      ' included, such as tree-32'
    )
  return int(match[1])


def strategy_of(heads: Any, rule: str) -> fd.Blockwise | fd.Greedy:
  """Blockwise decoding with all the heads there are; without any (None), greedy."""
  if heads is None:
    if rule != 'exact':
      raise UserError(
        f'the rule {rule} needs heads, and this is a base model: give exact, or a run with k >= 2'
      )
    return fd.Greedy()
  return fd.Blockwise(heads, rule=rule_of(rule))


def translate(
  model: Any,
  params: Any,
  tokenizer: Any,
  tokens: TokenPairs,
  strategy: Any,
  max_len: int,
  rows: int,
) -> Output:
  """Decodes all sources, `rows` at once.

  Raises:
    UserError: a source is longer than the model's positions; nothing is decoded then. Or logits are
      not finite.
  """
  check_sources(tokens, model.max_positions)
  sources = [tokens.source[i] for i in range(len(tokens))]
  out = in_order(decode_each(model, params, sources, strategy, max_len, rows)).checked()
  lines = [tokenizer.decode(row.tolist()) for row in out.tokens]
  hypotheses = None
  if out.nbest_tokens is not None and out.nbest_scores is not None:
    hypotheses = [
      [(float(score), tokenizer.decode(ids.tolist())) for score, ids in zip(*row, strict=True)]
      for row in zip(out.nbest_scores, out.nbest_tokens, strict=True)
    ]
  ids, lengths, block_sizes = map(np.asarray, (out.tokens, out.lengths, out.block_sizes))
  return Output(lines, ids, lengths, block_sizes, hypotheses)
