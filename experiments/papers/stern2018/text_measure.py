"""Measures one trained model: BLEU, block sizes, wall clock and head accuracy, as cells of the
tables."""

import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import fastdec as fd
from experiments.lab.conditions import Conditions
from experiments.lab.decoding import Output, check_sources, rule_of, translate, tree_nodes
from experiments.lab.model_text import without_heads
from experiments.lab.packing import packed
from experiments.lab.settings import DISTILLED
from experiments.lab.text import Text
from experiments.papers.stern2018 import trees
from experiments.papers.stern2018.cells import BlockwiseCell
from experiments.papers.stern2018.text_settings import TranslationExperiment
from fastdec import folders
from fastdec.data.text.packing import tokenise
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.errors import UserError
from fastdec.evaluation.bleu import corpus_bleu, split_compound_bleu
from fastdec.evaluation.blocks import count_blocks
from fastdec.evaluation.wallclock import Timing, measure
from fastdec.struct import Bound
from fastdec.training.losses import head_accuracy

BEAM = 'beam-4'  # Vaswani et al. 2017: 4 beams, alpha 0.6


class TranslationMeasuring:
  """Measures models on one split of an experiment's text.

  Args:
    experiment: whose `table` says what.
    text: its text.
    split: 'dev' or 'test'.
    conditions: what the figures depend on beside these, see `experiments.lab.conditions`.
  """

  def __init__(
    self, experiment: TranslationExperiment, text: Text, split: str, conditions: Conditions
  ) -> None:
    table = experiment.table
    pairs = text.pairs(split)[: table.sentences or None]
    self.experiment, self.text, self.split = experiment, text, split
    own = {
      'dtype': experiment.model.dtype,
      'batch': table.rows,
      'seed': experiment.seed,
      'max_len': table.max_len,
    }
    timing = {'timing_batch': 1, 'timing_sentences': table.timed, 'timing_rounds': table.repeats}
    self.conditions = conditions | own | timing
    self.tokens = tokenise(pairs, text.tokenizer)
    self.references = [target for _, target in pairs]
    limit = experiment.model.max_positions
    check_sources(self.tokens, limit, f'of the {split} set')
    other = trees.other_split(split)
    self.tree_sources = trees.sources_of(text, other) if any(map(tree_nodes, table.rules)) else []
    self.tree_conditions = {'tree_split': other, 'tree_sentences': len(self.tree_sources)}
    chosen = np.linspace(0, len(pairs) - 1, min(table.timed, len(pairs))).round().astype(int)
    self.timed = [(self.tokens.source[i][None],) for i in chosen]

  def check(self, done: Iterable[BlockwiseCell], path: pathlib.Path) -> None:
    """Raises UserError where a finished cell of this split, read from `path`, was measured on other
    sentences."""
    here = len(self.references), self.experiment.table.max_len
    for cell in done:
      measured = cell.outputs, cell.conditions.get('max_len', here[1])
      if cell.error is None and cell.split == self.split and measured != here:
        there = f'{measured[0]} sentences of the {self.split} set at max_len={measured[1]}'
        asked = f'this config means {here[0]} at max_len={here[1]}'
        raise UserError(
          f'{path} was measured on {there}, and {asked}: choose another workdir, or that config'
        )

  def cells(
    self, workdir: pathlib.Path, k: int, regime: str, rules: Sequence[str]
  ) -> Iterator[BlockwiseCell]:
    """One cell a rule, of a run's model with its first k heads; k = 1 decodes greedily ('exact') or
    by beam search.

    All acceptance rules of chains run in the same compiled programs, trees each in their own, and
    all are timed in turn with the same model's greedy.
    """
    self.text.check_base(workdir)
    model, params = packed(*folders.load(workdir))
    trees = self._trees(Bound(model, params), workdir, k, rules)
    strategies = {
      rule: trees[rule] if rule in trees else self._strategy(workdir, k, rule) for rule in rules
    }
    decode = {
      'greedy': fd.Greedy(),
      **{rule: s for rule, s in strategies.items() if (k, rule) != (1, 'exact')},
    }
    functions = {name: self._timed(model, params, strategy) for name, strategy in decode.items()}
    timings = measure(functions, self.experiment.table.repeats, self.timed)
    greedy = self._translate(model, params, fd.Greedy())
    accuracy, own_accuracy = (
      ((), ()) if k == 1 else self._accuracy(model, params, workdir, k, greedy)
    )
    content = folders.content(workdir)
    for rule, strategy in strategies.items():
      out = greedy if rule not in decode else self._translate(model, params, strategy)
      more = (
        {'tree_nodes': trees[rule].drafter.nodes, **self.tree_conditions} if rule in trees else {}
      )
      if k > 1 and regime not in DISTILLED and self.experiment.data.own:
        more |= {'heads_text': 'own'}
      if k > 1:
        more |= self.experiment.heads.conditions
      yield BlockwiseCell(
        k, regime, rule, **self._quality(out), **clock(timings.get(rule, timings['greedy']), timings['greedy']),
        same_as_greedy=float((out.tokens == greedy.tokens).all(axis=1).mean()), head_accuracy=accuracy,
        own_accuracy=own_accuracy,         split=self.split, models=content, conditions=self.conditions | more,
      )  # fmt: skip

  def summary(self, cell: BlockwiseCell) -> str:
    """A cell in one line."""
    return (
      f'k={cell.k} {cell.regime} {cell.rule}: BLEU {cell.bleu:.2f}, mean block'
      f' {cell.mean_block_size:.2f}, '
      f'{cell.ms_per_output:.1f} ms a sentence (greedy {cell.greedy_ms_per_output:.1f})'
    )

  def translate(self, workdir: pathlib.Path, k: int, sentence: str | None = None) -> Output:
    """Every sentence of the split, or the one given, with exact acceptance."""
    tokens = self.tokens if sentence is None else tokenise([(sentence, '')], self.text.tokenizer)
    return self._translate(
      *packed(*folders.load(workdir)), self._strategy(workdir, k, 'exact'), tokens
    )

  def _strategy(self, workdir: pathlib.Path, k: int, rule: str) -> Any:
    if rule == BEAM:
      return fd.Beam(size=4, length_penalty=0.6)
    return fd.Greedy() if k == 1 else fd.Blockwise(self._heads(workdir), k=k, rule=rule_of(rule))

  def _heads(self, workdir: pathlib.Path) -> Bound:
    return Bound(*packed(*folders.load_heads(workdir)))

  def _trees(
    self, target: Bound, workdir: pathlib.Path, k: int, rules: Sequence[str]
  ) -> dict[str, fd.Medusa]:
    """How the rules decode that name trees."""
    nodes = {rule: count for rule in rules if (count := tree_nodes(rule))}
    if not nodes:
      return {}
    table, heads = self.experiment.table, self._heads(workdir)
    counts = nodes.values()
    found = trees.grown(target, heads, k - 1, self.tree_sources, counts, table.max_len, table.rows)
    return {rule: fd.Medusa(heads, found[count].choices) for rule, count in nodes.items()}

  def _accuracy(
    self, model: Any, params: Any, workdir: pathlib.Path, k: int, greedy: Output
  ) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """How often the first k heads are right: about people's references, and about what the model
    writes itself."""
    heads = folders.load_heads(workdir)
    if heads[0].k > k:
      heads = heads[0].drafting(heads[1], k - 1)
    model, params = without_heads(model, params)
    rows = zip(greedy.tokens, greedy.lengths, strict=True)
    written = Ragged.of([tokens[:length].tolist() for tokens, length in rows])
    own = self.text.batches_of(TokenPairs(self.tokens.source, written))
    return (
      head_accuracy(model, heads[0], params, heads[1], self.text.dev_batches()),
      head_accuracy(model, heads[0], params, heads[1], own) if own else (),
    )

  def _translate(
    self, model: Any, params: Any, strategy: Any, tokens: TokenPairs | None = None
  ) -> Output:
    table, tokens = self.experiment.table, self.tokens if tokens is None else tokens
    rows = min(table.rows, len(tokens))
    return translate(model, params, self.text.tokenizer, tokens, strategy, table.max_len, rows)

  def _timed(self, model: Any, params: Any, strategy: Any) -> Any:
    max_len = self.experiment.table.max_len
    return lambda source: fd.decode(model, params, source, strategy, max_len=max_len)

  def _quality(self, out: Output) -> dict[str, Any]:
    """BLEU and block sizes."""
    language = self.experiment.data.target
    bleu = corpus_bleu(out.lines, self.references, language)
    blocks, compound = count_blocks(out.lengths, out.block_sizes), {}
    if language == 'de':  # Tensor2Tensor's script is about German
      score, signature = split_compound_bleu(out.lines, self.references)
      compound = {'compound_bleu': score, 'compound_bleu_signature': signature}
    return {
      'bleu': bleu.score,
      'bleu_signature': bleu.signature,
      **compound,
      'mean_block_size': blocks.mean_block_size,
      'calls_per_output': blocks.calls_per_output,
      'outputs': blocks.outputs,
    }


def clock(timing: Timing, greedy: Timing) -> dict[str, Any]:
  """The fields of a cell about time."""
  return {
    'ms_per_output': timing.milliseconds,
    'greedy_ms_per_output': greedy.milliseconds,
    'speedup': timing.speedup_over(greedy),
    'spread': timing.speedups_over(greedy),
    'compile_seconds': timing.compile_seconds,
  }
