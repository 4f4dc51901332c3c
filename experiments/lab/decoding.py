"""Decodes lines of text with a trained translation model."""

import dataclasses
import re
from typing import Any

import numpy as np
from jaxtyping import Int

import fastdec as fd
from fastdec.data.text.tokens import TokenPairs
from fastdec.decoding.pool import decode_each, in_order
from fastdec.errors import UserError
from fastdec.tokenizers.sentencepiece import Tokenizer


@dataclasses.dataclass(frozen=True)
class Output:
  """What was decoded, sentence by sentence in the order given."""

  lines: list[str]
  tokens: np.ndarray
  lengths: np.ndarray
  block_sizes: np.ndarray
  # of beam search: scores and lines, best first
  hypotheses: list[list[tuple[float, str]]] | None = None


@dataclasses.dataclass(frozen=True)
class DistillConfig:
  """What a model rewrites, and how; fields as in `configs/wmt14.py`."""

  beam: int
  length_penalty: float
  max_len: tuple[float, ...]
  n_best: int
  shard_size: int
  rows: int
  min_len: int = 1
  sources: str = ''
  samples: int = 0
  temperature: float = 1.0
  seed: int = 0

  def __post_init__(self) -> None:
    for name in ('beam', 'n_best', 'min_len', 'shard_size', 'rows'):
      if getattr(self, name) < 1:
        raise UserError(
          f'config.distill.{name}={getattr(self, name)} is not possible: give 1 or more'
        )
    if self.samples < 0 or (self.samples and self.beam > 1):
      given = f'config.distill.samples={self.samples} with beam={self.beam} is not possible'
      raise UserError(
        f'{given}: give 0 to search, or 1 or more with beam=1 to draw as many outputs'
      )
    if not 0 <= self.seed < 2**32:
      raise UserError(
        f'config.distill.seed={self.seed} is not possible: give a whole number from 0'
        f' to {2**32 - 1}'
      )
    if self.samples:
      fd.Sample(self.temperature)
    if self.n_best > self.beam:
      raise UserError(
        f'config.distill.n_best={self.n_best} is not possible: beam={self.beam} is the most'
      )
    if len(self.max_len) != 2 or min(self.max_len) < 0 or self.max_len == (0, 0):
      raise UserError(
        f'config.distill.max_len={self.max_len} is not possible: give (a, b), for a *'
        ' source + b tokens'
      )

  @property
  def strategy(self) -> fd.Beam | fd.Greedy | fd.Sample:
    """The search that this describes; with one beam, what the model writes itself, at its best or
    at random."""
    if self.samples:
      return fd.Sample(self.temperature)
    if self.beam == 1:
      return fd.Greedy()
    return fd.Beam(
      self.beam, self.length_penalty, n_best=self.n_best, min_len=self.min_len, max_len=self.max_len
    )


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
  tokenizer: Tokenizer,
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


def check_sources(tokens: TokenPairs, limit: int | None, which: str = '') -> None:
  """Raises UserError, naming the first, where sources are longer than the model's positions."""
  too_long = np.flatnonzero(tokens.source.lengths > (limit or np.inf))
  if too_long.size:
    first = int(too_long[0])
    sentence = ' '.join(filter(None, ('sentence', str(first + 1), which)))
    others = f' (the first of {too_long.size} that are too long)' if too_long.size > 1 else ''
    given = f'{sentence} has {int(tokens.source.lengths[first])} tokens with its end{others}'
    raise UserError(f'{given}, and the model has {limit} positions: shorten or split it')


def padded_width(tokens: TokenPairs, limit: int | None) -> int:
  """The longest source, rounded up to a multiple of 16, within the model's positions."""
  width = -(-int(tokens.source.lengths.max()) // 16) * 16
  return min(width, limit or width)


def padded_sources(tokens: TokenPairs, model: Any, which: str) -> Int[np.ndarray, 'n s']:
  """Sources as the inputs of one `fd.decode`; a UserError, which names them (`which`), where one is
  too long."""
  check_sources(tokens, model.max_positions, which)
  found = np.full((len(tokens), padded_width(tokens, model.max_positions)), model.pad_id, np.int32)
  for i in range(len(tokens)):
    found[i, : tokens.source.lengths[i]] = tokens.source[i]
  return found
