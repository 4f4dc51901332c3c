"""Measures one trained model: BLEU, block sizes, wall clock and head accuracy, as cells of Table 1."""

import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import fastdec as fd
from experiments import cli
from experiments.decoding import Output, check_sources, padded_width, rule_of, translate
from experiments.show import blocks_of
from experiments.translation import Experiment, Text
from fastdec import folders
from fastdec.data.packing import tokenise
from fastdec.errors import UserError
from fastdec.evaluation.bleu import corpus_bleu
from fastdec.evaluation.blocks import count_blocks
from fastdec.evaluation.cells import Cell
from fastdec.evaluation.wallclock import measure
from fastdec.heads.blockwise import Transformed
from fastdec.training.losses import head_accuracy

TUNES = {'freeze': 'regular', 'finetune': 'finetune'}  # the config's words, and the table's


class Measuring:
  """Measures models on one split of an experiment's text.

  Args:
    experiment: whose `table` says what.
    text: its text.
  """

  def __init__(self, experiment: Experiment, text: Text) -> None:
    table = experiment.table
    pairs = text.pairs(table.split)[: table.sentences or None]
    self.experiment, self.text = experiment, text
    conditions = cli.conditions(cli.config_string(), experiment.model.dtype, table.rows, experiment.seed)
    timing = {'timing_batch': 1, 'timing_sentences': table.timed, 'timing_rounds': table.repeats}
    self.conditions = conditions | {'max_len': table.max_len} | timing
    self.tokens = tokenise(pairs, text.tokenizer)
    self.references = [target for _, target in pairs]
    limit = experiment.model.max_positions
    check_sources(self.tokens, limit, f'of the {table.split} set')
    width = padded_width(self.tokens, limit)
    chosen = np.linspace(0, len(pairs) - 1, min(table.timed, len(pairs))).round().astype(int)
    self.timed = [(np.pad(x, (0, width - len(x)))[None],) for x in (self.tokens.source[i] for i in chosen)]

  def check(self, done: Iterable[Cell], path: pathlib.Path) -> None:
    """Raises UserError where a finished cell, read from `path`, was measured on other sentences."""
    here = len(self.references), self.experiment.table.split, self.experiment.table.max_len
    for cell in done:
      measured = cell.sentences, cell.split, cell.conditions.get('max_len', here[2])
      if cell.error is None and measured != here:
        there = f'{measured[0]} sentences of the {measured[1]} set at max_len={measured[2]}'
        asked = f'this config means {here[0]} of the {here[1]} set at max_len={here[2]}'
        raise UserError(f'{path} was measured on {there}, and {asked}: choose another workdir, or that config')

  def missing(self, workdir: pathlib.Path, k: int, tune: str, done: Iterable[Cell]) -> Iterator[Cell]:
    """Measures the cells of a run that are not among the finished ones."""
    finished = {cell.key for cell in done if cell.error is None}
    rules = [rule for rule in self.experiment.table.rules if (k, TUNES[tune], rule) not in finished]
    if k == 1:
      yield from [self.base(workdir)] if 'exact' in rules else []
    elif rules:
      yield from self.heads(workdir, tune, rules)

  def examples(self, workdir: pathlib.Path, count: int = 3) -> Iterator[tuple[str, list[str]]]:
    """A few sources of the split, and their exact translation block by block."""
    model, params = folders.load(workdir)
    out = self._translate(model, params, fd.Blockwise(folders.load_heads(workdir), rule=rule_of('exact')))
    for i in np.linspace(0, len(out.lines) - 1, count + 2).round().astype(int)[1:-1]:
      source = self.text.tokenizer.decode(self.tokens.source[i].tolist())
      yield source, blocks_of(self.text.tokenizer, out.tokens[i], out.block_sizes[i])

  def base(self, workdir: pathlib.Path) -> Cell:
    """Greedy decoding: the cell k = 1."""
    model, params = folders.load(workdir)
    out = self._translate(model, params, fd.Greedy())
    timing = measure({'greedy': self._timed(model, params, fd.Greedy())}, self.experiment.table.repeats, self.timed)
    ms = timing['greedy'].milliseconds
    return self._cell(out, 'regular', 'exact', ms, ms, timing['greedy'].compile_seconds, k=1, same_as_greedy=1.0)

  def heads(self, workdir: pathlib.Path, tune: str, rules: Sequence[str]) -> Iterator[Cell]:
    """One cell a rule; all rules run in the same compiled programs, timed in turn with the same model's greedy."""
    model, params = folders.load(workdir)
    heads = folders.load_heads(workdir)
    trunk, trunk_params = (model.model, params['model']) if isinstance(model, Transformed) else (model, params)
    accuracy = head_accuracy(trunk, heads[0], trunk_params, heads[1], self.text.dev_batches())
    greedy = self._translate(model, params, fd.Greedy())
    strategies = {rule: fd.Blockwise(heads, rule=rule_of(rule)) for rule in rules}
    functions = {name: self._timed(model, params, s) for name, s in {'greedy': fd.Greedy(), **strategies}.items()}
    timings = measure(functions, self.experiment.table.repeats, self.timed)
    for rule, strategy in strategies.items():
      out = self._translate(model, params, strategy)
      same = float((out.tokens == greedy.tokens).all(axis=1).mean())
      timing, slow = timings[rule], timings['greedy'].milliseconds
      yield self._cell(
        out, TUNES[tune], rule, timing.milliseconds, slow, timing.compile_seconds,
        k=heads[0].k, same_as_greedy=same, head_accuracy=accuracy,
      )

  def _translate(self, model: Any, params: Any, strategy: Any) -> Output:
    table = self.experiment.table
    return translate(model, params, self.text.tokenizer, self.tokens, strategy, table.max_len, table.rows)

  def _timed(self, model: Any, params: Any, strategy: Any) -> Any:
    max_len = self.experiment.table.max_len
    return lambda source: fd.decode(model, params, source, strategy, max_len=max_len)

  def _cell(
    self, out: Output, tune: str, rule: str, ms: float, greedy_ms: float, compile_seconds: float, **rest: Any
  ) -> Cell:
    bleu, blocks = corpus_bleu(out.lines, self.references), count_blocks(out.lengths, out.block_sizes)
    return Cell(
      tune=tune,
      rule=rule,
      bleu=bleu.score,
      bleu_signature=bleu.signature,
      mean_block_size=blocks.mean_block_size,
      calls_per_sentence=blocks.calls_per_sentence,
      ms_per_sentence=ms,
      greedy_ms_per_sentence=greedy_ms,
      compile_seconds=compile_seconds,
      sentences=blocks.sentences,
      split=self.experiment.table.split,
      conditions=self.conditions,
      **rest,
    )


def summary(cell: Cell) -> str:
  """A cell in one line."""
  return (
    f'k={cell.k} {cell.tune} {cell.rule}: BLEU {cell.bleu:.2f}, mean block {cell.mean_block_size:.2f}, '
    f'{cell.ms_per_sentence:.1f} ms a sentence (greedy {cell.greedy_ms_per_sentence:.1f})'
  )
