"""Blockwise parallel decoding of translations (Stern et al. 2018): Tables 1 and 4, Figure 4, the
worked example.

A page such as `table1` lists its cells, and `runs.make_rows` trains and measures what is missing of
them. `Sentences` is the task: the split on which models are measured. Its bases are stages too:

  base
  teacher (another seed) -> its translations of the training text (distilled)
  base, distilled -> base-distil
"""

import dataclasses
import functools
import itertools
import math
import pathlib
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

import fastdec as fd
from experiments.lab import costs, own, train
from experiments.lab.own import DistillConfig
from experiments.lab.report import text, write
from experiments.lab.rows import Row
from experiments.lab.text import Text, TextConfig, check_sources, record_of
from experiments.lab.train import (
  DISTILLED,
  TUNED,
  WIDEST,
  Count,
  HeadsConfig,
  Regime,
  Seed,
  Several,
  Tokens,
  Zero,
  check_lengths,
  each_once,
  seed_of,
  spaced,
)
from experiments.lab.workdir import Workdir
from experiments.stern2018 import runs, tables
from experiments.stern2018.runs import Base, Cell, Task
from experiments.stern2018.tables import REGIMES
from fastdec import folders
from fastdec.data.text.lines import Pair
from fastdec.data.text.packing import tokenise
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.decoding.pool import decode_each, in_order
from fastdec.decoding.protocol import Decoded
from fastdec.errors import UserError
from fastdec.evaluation.bleu import corpus_bleu, split_compound_bleu
from fastdec.evaluation.languages import check_language, code_of
from fastdec.evaluation.tree_calibration import rank_written_texts
from fastdec.evaluation.tree_growth import grow
from fastdec.files import write_text
from fastdec.kernels.packing import pack_if_faster
from fastdec.kernels.sharding import MeshConfig, mesh_of
from fastdec.models.fconv import FConvConfig
from fastdec.models.transformer import TransformerConfig
from fastdec.struct import Bound
from fastdec.training.processes import is_first
from fastdec.training.run import RunConfig

RULES = ('exact', 'top-2', 'top-3', 'min-2', 'min-3')
TREES = ('tree-8', 'tree-16', 'tree-32', 'tree-64')  # exact acceptance on a tree of N nodes
BEAM = 'beam-4'  # Vaswani et al. 2017: 4 beams, alpha 0.6
GROWN_ON = 400  # the most sentences of the other split that trees are grown on
TOYS = 'The text is a generated corpus of simple sentences: its BLEU compares with no other text.'


# --- settings


@dataclasses.dataclass(frozen=True)
class TableConfig:
  """What to measure, and on which sentences."""

  ks: tuple[Several, ...]  # block sizes; k = 1 is always there
  max_len: Count  # tokens of a translation
  timed: Count  # sentences timed one by one, evenly spaced
  regimes: tuple[Regime, ...] = ('regular', 'distil', 'finetune', 'both')
  rules: tuple[str, ...] = RULES  # of acceptance; tree-N: exact, on a tree of N nodes
  split: Literal['dev', 'test'] = 'dev'  # of Table 1; Table 4 and Figure 4 are about the test set
  sentences: Zero = 0  # of the split; 0: all
  rows: Count = 64  # sentences decoded at once, for BLEU and block sizes
  repeats: Count = 3  # of timing
  one_run: bool = False  # one run for the largest k serves all; the paper trains one for each

  def __post_init__(self) -> None:
    each_once('table', ks=self.ks, regimes=self.regimes, rules=self.rules)


@dataclasses.dataclass(frozen=True)
class Translation:
  """Settings of the paper's pages about translation; presets are in configs/wmt14.py."""

  data: TextConfig
  model: TransformerConfig | FConvConfig  # without its vocabulary, which the text gives
  train: RunConfig  # of the base, and of the teacher
  retrain: RunConfig  # of the base, on distilled text
  freeze: RunConfig  # of heads on a frozen base
  finetune: RunConfig  # of heads and base together
  heads: HeadsConfig
  table: TableConfig
  distill: DistillConfig = dataclasses.field(default_factory=DistillConfig)
  task: Literal['translation'] = 'translation'
  scale: str = ''
  k: Tokens = 1  # k, regime and base: the one run of experiments.train and experiments.evaluate
  regime: Regime = 'regular'
  base: str = ''
  seed: Seed = 0
  mesh: MeshConfig = MeshConfig()

  def __post_init__(self) -> None:
    check_language(self.data.target, 'config.data.target=')  # BLEU depends on it
    for name in ('train', 'retrain', 'freeze', 'finetune'):
      train.check(getattr(self, name), self.model, self.data.rows, self.mesh, name)
    self.heads.module(folders.model_of(self.model), 2)  # a mistake shows
    train.check_decoding(self.mesh, {'table': self.table.rows, 'distill': self.distill.rows})
    for rule in self.table.rules:
      if tree_nodes(rule) is None:
        parse_rule(rule, self.data.vocab_size)
    lengths = {'data.row_length': self.data.row_length, 'table.max_len': self.table.max_len}
    check_lengths(lengths, self.model)


# --- the pages


def table1(c: Translation, work: Workdir) -> None:
  """Makes Table 1: every k and regime with every rule, and the base."""
  cells: list[Cell] = []
  for regime in dict.fromkeys(('regular', *c.table.regimes)):
    if regime not in TUNED:
      cells.append((1, regime, ('exact',)))
    if regime in c.table.regimes:
      for k in c.table.ks:
        cells.append((k, regime, c.table.rules))

  rows = runs.make_rows(Sentences(c, c.table.split), work, cells)
  if rows and is_first():
    drawn = [tables.table1(rows, notes(c)), *(make(rows) for make in tables.TABLES[1:])]
    tables.scatter(rows, work.root / 'table1.png')
    write(work, 'table1', drawn, 'table1.png')
    if best := fastest(rows):
      work.console.print(best)


def table4(c: Translation, work: Workdir) -> None:
  """Makes Table 4: the test set, everything distilled; Figure 4 shows the same rows."""
  base: Cell = (1, 'distil', ('exact', BEAM))
  rows = runs.make_rows(Sentences(c, 'test'), work, [base, *list_tuned(c)])
  if rows and is_first():
    tables.figure4(rows, work.root / 'figure4.png')
    write(work, 'table4', [tables.table4(rows, notes(c))], 'figure4.png')


def list_tuned(c: Translation) -> list[Cell]:
  """Returns the cells of heads that learnt with the base from distilled text."""
  return [(k, 'both', ('exact',)) for k in c.table.ks]


def figure4(c: Translation, work: Workdir) -> None:
  """Makes Figure 4: speed-up against block size, on the test set."""
  rows = runs.make_rows(Sentences(c, 'test'), work, list_tuned(c))
  if rows and is_first():
    tables.figure4(rows, work.root / 'figure4.png')
    work.console.print(f'The picture is {work.root}/figure4.png, its points are in {work.path}')


def example(c: Translation, work: Workdir, sentence: str | None = None) -> None:
  """Makes the worked example (section 7.4): what each call accepted, of a sentence or of the one in
  the test set that takes the fewest calls for its length."""
  ks, regimes = c.table.ks, c.table.regimes
  k, regime = max(ks), regimes[-1]
  if c.k > 1:
    k, regime = c.k, c.regime
  if k not in ks or regime not in regimes:
    raise UserError(
      f'the table has no cell k={k}, regime={regime}: give k in {ks} and regime in {regimes}, or'
      ' change the table by --config.table'
    )

  sentences = Sentences(c, 'test')
  work.do(sentences.check)
  folder = runs.train_model(sentences, work, k, regime)
  work.do(lambda: write_example(sentences, work, folder, k, regime, sentence))


def write_example(
  sentences: 'Sentences', work: Workdir, folder: pathlib.Path, k: int, regime: str,
  sentence: str | None,
) -> None:  # fmt: skip
  """Writes the example of a model."""
  # Decode the sentence, or all of the test set.
  tokenizer, tokens = sentences.text.tokenizer, sentences.tokens
  if sentence is not None:
    tokens = tokenise([(sentence, '')], tokenizer)
  target = Bound(*pack_if_faster(*folders.load(folder)))
  strategy = sentences.strategies(target, folder, k, regime, ['exact'])['exact']
  out = sentences.decode(target, strategy, tokens)

  # Among the longer half, choose the one with the most tokens a call.
  calls = np.maximum((out.block_sizes > 0).sum(axis=1), 1)
  is_long = out.lengths >= np.median(out.lengths)
  chosen = int(np.where(is_long, out.lengths / calls, 0).argmax())
  if sentence is None:
    sentence = tokenizer.decode(tokens.source[chosen].tolist())

  # The first token comes with the prompt; then each call writes a block.
  ids, sizes = out.tokens[chosen][: out.lengths[chosen]].tolist(), out.block_sizes[chosen]
  pieces, blocks = iter(tokenizer.pieces(ids)), []
  for size in (1, *sizes[sizes > 0].tolist()):
    blocks.append([piece.replace('▁', ' ') for piece in itertools.islice(pieces, size)])
  drawn = tables.example_text(sentence, blocks)
  write_text(work.root / 'example.txt', drawn)
  tables.example_picture(sentence, blocks, work.root / 'example.png')
  work.console.print(
    f'{drawn}\nIt is in {work.root}/example.txt, as a picture in {work.root}/example.png'
  )


# --- the task


class Sentences(Task):
  """The sentences of a split, on which models are measured; opened on first use."""

  blocks = tables.PAPERS_BLOCKS

  def __init__(self, c: Translation, split: str) -> None:
    super().__init__(c, dataclasses.replace(c.data, distilled=''), split, max_len=c.table.max_len)

  def __reduce__(self) -> Any:
    """A job opens them itself."""
    return Sentences, (self.c, self.split)

  @functools.cached_property
  def text(self) -> Text:
    """The text that the sentences belong to."""
    return self.c.data.open()

  @functools.cached_property
  def pairs(self) -> list[Pair]:
    """The sentences, with their translations by people."""
    return self.text.pairs(self.split)[: self.c.table.sentences or None]

  @functools.cached_property
  def tokens(self) -> TokenPairs:
    """Their ids."""
    return tokenise(self.pairs, self.text.tokenizer)

  @functools.cached_property
  def tree_sources(self) -> list[list[int]]:
    """Sources of the other split, evenly spaced: trees are grown there and measured here."""
    pairs, limit = self.text.pairs(other_split(self.split)), self.c.model.max_positions
    some = [pairs[i] for i in spaced(len(pairs), GROWN_ON)]
    tokens = tokenise(some, self.text.tokenizer, limit)
    return [source.tolist() for source in tokens.source]

  def check(self) -> None:
    check_sources(self.tokens, self.c.model.max_positions, f'of the {self.split} set')
    if not len(self.text.tokens('train', self.c.data.row_length)):
      raise UserError('there are no pairs to train on: give text, or longer rows')

  def base(self, work: Workdir, regime: str) -> Base:
    """Returns the base, trained on text as people wrote it, and people's or its own text; in the
    distilled regimes the base that is trained further on distilled text, and that text."""
    c = self.c
    base = work.stage('base', train.base, **runs.base_inputs(c))
    if regime not in DISTILLED:
      return Base(base, self.data, 'regular')

    # The text is `data.distilled`, or the translations of a teacher that is trained here.
    distilled = c.data.distilled
    if not distilled:
      teacher = work.stage('teacher', train.base, **runs.base_inputs(c, seed_of(c.seed, 'teacher')))
      same: Any = {'data': c.data.originals, 'distill': c.distill, 'mesh': c.mesh}
      translated = work.stage('distilled', own.translations, model=teacher, **same)
      distilled = str(translated)
    data = dataclasses.replace(c.data, distilled=distilled, own='')
    retrained = work.stage('base-distil', train.base, **runs.retraining_inputs(c, base, data))
    return Base(retrained, data, 'distil')

  def key(self, folder: pathlib.Path, k: int, regime: str, rule: str) -> Row:
    table, key = self.c.table, super().key(folder, k, regime, rule)
    key |= {'outputs': len(self.pairs), 'content': self.text.content}
    return key | {'max_len': table.max_len, 'timing_sentences': table.timed}

  def shape(self, k: int, rule: str) -> tuple[int, int]:
    return tree_nodes(rule) or k, 4 if rule == BEAM else 1

  def strategies(
    self, target: Bound, folder: pathlib.Path, k: int, regime: str, rules: Sequence[str]
  ) -> dict[str, Any]:
    """Returns the strategy of each rule, in order. Those of `parse_rule` share one program.
    Each tree is the best of its size for the first k heads, on what the model itself writes for
    sources of the other split."""
    if k == 1:
      plain: dict[str, Any] = dict.fromkeys(rules, fd.Greedy())
      if BEAM in plain:
        plain[BEAM] = fd.Beam(size=4, length_penalty=0.6)
      return plain
    heads, table = runs.prepare(*folders.load_heads(folder), mesh_of(target.params)), self.c.table
    if any(map(tree_nodes, rules)):
      drafting = Bound(*heads.module.drafting(heads.params, k - 1))
      both = runs.on_one_device(target), runs.on_one_device(drafting)
      ranks = rank_written_texts(*both, self.tree_sources, table.max_len, table.rows)
    by_rule: dict[str, Any] = {}
    for rule in rules:
      if nodes := tree_nodes(rule):
        # If no text was written, there are no ranks: fall back to a tree of one guess.
        by_rule[rule] = fd.Medusa(heads, grow(ranks, nodes).choices or ((0,),))
      else:
        by_rule[rule] = fd.Blockwise(heads, k=k, rule=parse_rule(rule))
    return by_rule

  def timed_inputs(self) -> list[tuple[Any]]:
    some = spaced(len(self.pairs), self.c.table.timed)
    return [(self.tokens.source[i][None],) for i in some]

  def decode(self, target: Bound, strategy: Any, tokens: TokenPairs | None = None) -> Decoded:
    """Translates every sentence of the split, or `tokens`."""
    table, (model, params) = self.c.table, target
    if tokens is None:
      tokens = self.tokens
    check_sources(tokens, model.max_positions)
    sources, rows = list(tokens.source), runs.choose_rows(table.rows, len(tokens), target)
    return in_order(decode_each(model, params, sources, strategy, table.max_len, rows)).checked()

  def batches(self, greedy: Decoded) -> tuple[list[Any], list[Any]]:
    written = [greedy.written(i) for i in range(len(greedy.lengths))]
    pairs = TokenPairs(self.tokens.source, Ragged.of(written)).at_most(self.c.data.row_length)
    dev, own_batches = self.text.dev_batches(), []
    if len(pairs):
      own_batches = self.text.dev_batches(pairs)
    return dev, own_batches

  def bleu(self, out: Decoded) -> Row:
    """Returns BLEU of the sentences' translations, and of German ones Tensor2Tensor's BLEU too."""
    language = self.c.data.target
    lines = [self.text.tokenizer.decode(row.tolist()) for row in out.tokens]
    references = [target for _, target in self.pairs]
    bleu = corpus_bleu(lines, references, language)
    row: Row = {'bleu': bleu.score, 'bleu_signature': bleu.signature}
    if code_of(language) == 'de':
      score, signature = split_compound_bleu(lines, references)
      row |= {'compound_bleu': score, 'compound_bleu_signature': signature}
    return row

  def quality(self, key: Row, target: Bound, strategy: Any, out: Decoded, greedy: Decoded) -> Row:
    """Returns BLEU and block sizes, and of a tree its nodes and what it was grown on."""
    row = self.bleu(out)
    row['mean_block_size'] = out.mean_block_size
    row['calls_per_output'] = float(np.mean(out.calls))
    row['same_as_greedy'] = float((out.tokens == greedy.tokens).all(axis=1).mean())
    if tree_nodes(key['rule']):
      row['tree_nodes'] = strategy.drafter.nodes
      row['tree_split'] = other_split(self.split)
      row['tree_sentences'] = len(self.tree_sources)
    return row

  def summary(self, row: Row) -> str:
    block, bleu = text(row['mean_block_size'], '.2f'), text(row['bleu'], '.2f')
    times = f'{row["ms_per_output"]:.1f} ms a sentence (greedy {row["greedy_ms_per_output"]:.1f})'
    name = f'k={row["k"]} {row["regime"]} {row["rule"]}'
    return f'{name}: BLEU {bleu}, mean block {block}, {times}'


def other_split(split: str) -> str:
  """Returns the other split: trees are grown there and measured here."""
  return 'dev' if split == 'test' else 'test'


# --- one run: experiments.train, experiments.distill and experiments.evaluate


def train_run(c: Translation, workdir: pathlib.Path) -> bool:
  """Trains the one run that k, regime and base mean, see `runs.train_run`."""
  distils = c.regime in DISTILLED
  if distils != bool(c.data.distilled):
    wanted = 'name it by' if distils else 'leave out'
    raise UserError(
      f'regime={c.regime} with distilled text {c.data.distilled!r}: {wanted}'
      ' --config.data.distilled=...'
    )
  return runs.train_run(c, workdir)


def distil(c: Translation, teacher: pathlib.Path, workdir: pathlib.Path) -> str:
  """Has a teacher translate the training text; returns a sentence about the finished folder."""
  inputs = {'model': teacher, 'data': c.data.originals, 'distill': c.distill, 'mesh': c.mesh}
  costs.make_in_place(workdir, own.translations, **inputs)
  counts = record_of(workdir)['counts']
  outcome = 'keep their translation'
  if c.distill.sources:
    outcome = 'are left out'
  others = f'{counts["empty"]:,} without an output and {counts["long"]:,} too long {outcome}'
  return f'{workdir} holds {counts["lines"]:,} lines for {counts["sources"]:,} sources ({others})'


def evaluate(c: Translation, work: Workdir) -> None:
  """Measures every rule of one finished run, which the workdir holds.

  Raises:
    UserError: the folder holds no model, or not the one that k and regime mean.
  """
  folder = work.root
  if not (folder / 'model' / 'config.json').is_file():
    raise UserError(
      f'{folder} holds no finished run: train it first, by experiments.train with the same config'
    )
  sentences = Sentences(c, c.table.split)
  sentences.text.check_base(folder)
  runs.evaluate_run(sentences, work, c.table.rules, tables.TABLES)


# --- rules of acceptance, by name


def parse_rule(name: str, words: float = math.inf) -> fd.MinBlock:
  """Returns the rule of a name: 'exact', 'top-2', 'min-3', for a vocabulary of `words`. All are of
  one structure, so that a sweep over them is one compiled program."""
  match = re.fullmatch(r'exact|(top|min)-([1-9]\d{0,8})', name)
  if match is None:
    raise UserError(
      f'the rule {name} is unknown: give exact, top-N or min-N, such as top-2 (in tables also'
      ' tree-N)'
    )
  kind, n = match[1], int(match[2] or 1)
  top, size, most = {'top': (n, 1, words), 'min': (1, n, WIDEST), None: (1, 1, 1)}[kind]
  if n > most:
    raise UserError(f'the rule {name} is not possible: {kind}-{most} is the most')
  return fd.MinBlock(fd.TopN(top), size)


def tree_nodes(name: str) -> int | None:
  """Returns the nodes of the tree that a rule such as 'tree-32' names, the root included; None for
  the rules of `parse_rule`."""
  if not name.startswith('tree'):
    return None
  match = re.fullmatch(r'tree-([1-9]\d{0,2})', name)
  if match is None or match[1] == '1':
    raise UserError(
      f'the rule {name} names no tree: give tree-N of 2 to 999 nodes, the root included, such as'
      ' tree-32'
    )
  return int(match[1])


# --- in words


def notes(c: Translation) -> list[str]:
  """Returns the notes below every table."""
  return [TOYS] if c.data.kind == 'embedded' else []


def fastest(rows: Sequence[Row]) -> str | None:
  """Says which exact decoding was the fastest in its slowest round, and what all its rounds say;
  None where none was timed, or nothing was written."""
  timed = []
  for row in tables.select_finished(rows):
    is_exact = row['k'] > 1 and (row['rule'] == 'exact' or tree_nodes(row['rule']))
    if is_exact and row.get('speedup') and row.get('mean_block_size'):
      least, most = row.get('spread') or (row['speedup'],) * 2
      timed.append((least, most, row))
  if not timed:
    return None
  least, most, best = max(timed, key=lambda each: each[0])
  ratio = f'{best["speedup"]:.2f} times as fast'
  if least <= 1 <= most:
    ratio = f'{least:.2f} to {most:.2f} times as fast (the rounds do not agree)'
  elif least < most:
    ratio += f' ({least:.2f} to {most:.2f} by rounds)'
  return (
    f'The fastest exact decoding here: {best["mean_block_size"]:.1f} tokens a call, {ratio} as'
    f' greedy decoding of the same model, {best["same_as_greedy"]:.0%} of the outputs the same'
    f' (k = {best["k"]}, {REGIMES[best["regime"]].lower()}, {best["rule"]})'
  )
