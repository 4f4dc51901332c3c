"""Blockwise parallel decoding of translations (Stern et al. 2018), from the top: Tables 1 and 4,
Figure 4, the worked example.

  base -> heads on it (regular) -> heads and base together (finetune)
  teacher (another seed) -> its translations of the training text (distilled)
  base, distilled -> base-distil -> heads on it (distil) -> heads and base together (both)

Each is a stage in the workdir: base/, k8-finetune/ and so on. From every model come its rows, one a
rule, in results.jsonl. Where heads are nested (none sees the others), one run for the largest k
serves all that are trained on a frozen base; with `table.one_run` it does so in every regime.

A page (`table1`) asks for rows: k, regime and rules of each model. `runs.filled` makes the `model`,
if it is missing, and has `Bench` measure it. `conditions` (config, machine, commit) stand in every
row.
"""

import dataclasses
import functools
import itertools
import math
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import numpy as np

import fastdec as fd
from experiments.lab import own, train
from experiments.lab.own import DistillConfig
from experiments.lab.report import text
from experiments.lab.rows import Row, Rows, beside_greedy
from experiments.lab.stage import in_place, stage
from experiments.lab.text import TextConfig, check_sources, record_of
from experiments.lab.train import (
  DISTILLED,
  TUNED,
  Count,
  HeadsConfig,
  Regime,
  RunConfig,
  Seed,
  Zero,
  each_once,
  seed_of,
  spaced,
)
from experiments.stern2018 import runs, tables
from experiments.stern2018.tables import REGIMES
from fastdec import folders
from fastdec.data.text.packing import tokenise
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.decoding.pool import decode_each, in_order
from fastdec.decoding.protocol import Decoded
from fastdec.errors import UserError
from fastdec.evaluation.bleu import corpus_bleu, split_compound_bleu
from fastdec.evaluation.blocks import count_blocks
from fastdec.evaluation.tree_calibration import written_ranks
from fastdec.evaluation.tree_growth import grow
from fastdec.evaluation.wallclock import measure
from fastdec.fields import Between
from fastdec.files import write_text
from fastdec.kernels.packing import pack_if_faster
from fastdec.kernels.sharding import MeshConfig
from fastdec.models.fconv import FConvConfig
from fastdec.models.transformer import TransformerConfig
from fastdec.struct import Bound

RULES = ('exact', 'top-2', 'top-3', 'min-2', 'min-3')
TREES = ('tree-8', 'tree-16', 'tree-32', 'tree-64')  # exact acceptance on a tree of this many nodes
BEAM = 'beam-4'  # Vaswani et al. 2017: 4 beams, alpha 0.6
GROWN_ON = 400  # sentences of another split, at most, that trees are grown on
TOYS = 'The text is a generated corpus of simple sentences: its BLEU compares with no other text.'


# --- settings


@dataclasses.dataclass(frozen=True)
class TableConfig:
  """Measurements, and the sentences that they are of."""

  ks: tuple[Annotated[int, Between(2, math.inf)], ...]  # block sizes; k = 1 is always there
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
    for rule in self.rules:
      if tree_nodes(rule) is None:
        rule_of(rule)


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
  k: Count = 1  # k, regime and base: the one run of experiments.train and experiments.evaluate
  regime: Regime = 'regular'
  base: str = ''
  seed: Seed = 0
  mesh: MeshConfig = MeshConfig()

  def __post_init__(self) -> None:
    for name in ('train', 'retrain', 'freeze', 'finetune'):
      train.check(getattr(self, name), self.model, self.data.rows, self.mesh, name)
    self.heads.module(folders.model_of(self.model), 2)  # any k says what cannot be
    lengths = {'data.row_length': self.data.row_length, 'table.max_len': self.table.max_len}
    for name, length in lengths.items():
      if length > (limit := self.model.max_positions):
        most = f'model.max_positions={limit} is the most'
        raise UserError(f'config.{name}={length} is not possible: {most}')

  @property
  def people(self) -> TextConfig:
    """The text as people wrote it."""
    return dataclasses.replace(self.data, distilled='', own='')


# --- the pages


def table1(c: Translation, root: pathlib.Path, conditions: dict[str, Any]) -> Rows:
  """Table 1: every k and regime with every rule, beside the base."""
  asked: list[runs.Asked] = []
  for regime in dict.fromkeys(('regular', *c.table.regimes)):
    if regime not in TUNED:
      asked.append((1, regime, ('exact',)))
    if regime in c.table.regimes:
      asked += [(k, regime, c.table.rules) for k in c.table.ks]
  rows, bench = Rows(root / 'results.jsonl', conditions), Bench(c, c.table.split)
  if found := runs.filled(rows, bench, asked, functools.partial(model, c, root)):
    drawn = [tables.table1(found, notes(c)), *(make(found) for make in tables.TABLES[1:])]
    tables.scatter(found, root / 'table1.png')
    runs.write(root / 'table1', rows, drawn, 'table1.png')
    if said := fastest(found):
      rows.console.print(said)
  return rows


def table4(c: Translation, root: pathlib.Path, conditions: dict[str, Any]) -> Rows:
  """Table 4: the test set, everything distilled; Figure 4 shows the same rows."""
  rows, bench = Rows(root / 'results.jsonl', conditions), Bench(c, 'test')
  asked = [(1, 'distil', ('exact', BEAM)), *of_figure4(c)]
  if found := runs.filled(rows, bench, asked, functools.partial(model, c, root)):
    tables.figure4(found, root / 'figure4.png')
    runs.write(root / 'table4', rows, [tables.table4(found, notes(c))], 'figure4.png')
  return rows


def figure4(c: Translation, root: pathlib.Path, conditions: dict[str, Any]) -> Rows:
  """Figure 4: speed-up against block size, on the test set."""
  rows, bench = Rows(root / 'results.jsonl', conditions), Bench(c, 'test')
  if found := runs.filled(rows, bench, of_figure4(c), functools.partial(model, c, root)):
    tables.figure4(found, root / 'figure4.png')
    rows.console.print(f'The picture is {root}/figure4.png, its points are in {rows.path}')
  return rows


def of_figure4(c: Translation) -> list[runs.Asked]:
  """The rows of Figure 4: every k."""
  return [(k, 'both', ('exact',)) for k in c.table.ks]


def example(
  c: Translation, root: pathlib.Path, conditions: dict[str, Any], sentence: str | None = None
) -> Rows:
  """The worked example (section 7.4): what each call accepted, of a sentence or of the one in the
  test set that takes the fewest calls for its length."""
  ks, regimes = c.table.ks, c.table.regimes
  k, regime = (c.k, c.regime) if c.k > 1 else (max(ks), regimes[-1])
  if k not in ks or regime not in regimes:
    raise UserError(
      f'the table has no cell k={k}, regime={regime}: give k in {ks} and regime in {regimes}, or'
      ' change the table by --config.table'
    )
  rows, bench = Rows(root / 'results.jsonl', conditions), Bench(c, 'test')
  tokenizer, tokens = bench.text.tokenizer, bench.tokens
  if sentence is not None:
    tokens = tokenise([(sentence, '')], tokenizer)
  folder = model(c, root, k, regime)
  target = Bound(*pack_if_faster(*folders.load(folder)))
  out = bench.translate(target, bench.strategies(target, folder, k, ['exact'])['exact'], tokens)
  calls = np.maximum((out.block_sizes > 0).sum(axis=1), 1)
  is_long = out.lengths >= np.median(out.lengths)
  chosen = int(np.where(is_long, out.lengths / calls, 0).argmax())
  source = tokenizer.decode(tokens.source[chosen].tolist()) if sentence is None else sentence
  ids, sizes = out.tokens[chosen][: out.lengths[chosen]].tolist(), out.block_sizes[chosen]
  pieces = iter([piece.replace('▁', ' ') for piece in tokenizer.pieces(ids)])
  # the first token comes with the prompt
  blocks = [list(itertools.islice(pieces, size)) for size in (1, *sizes[sizes > 0].tolist())]
  drawn = tables.example_text(source, blocks)
  write_text(root / 'example.txt', drawn)
  tables.example_picture(source, blocks, root / 'example.png')
  rows.console.print(f'{drawn}\nIt is in {root}/example.txt, as a picture in {root}/example.png')
  return rows


# --- the models, each a stage


def model(c: Translation, root: pathlib.Path, k: int, regime: str) -> pathlib.Path:
  """The model of a k and a regime, made if it is not there; k = 1 is a base."""
  base, data = stage(root, 'base', **runs.base_run(c, c.people, c.seed)), text_of(c, root, regime)
  if k == 1:
    return stage(root, 'base-distil', **retrained_run(c, base, data)) if data.distilled else base
  is_tuned = regime in TUNED
  are_nested = c.heads.module(folders.model_of(c.model), 2).are_nested
  if c.table.one_run or (are_nested and not is_tuned):
    k = max(c.table.ks)
  start = model(c, root, k if is_tuned else 1, 'distil' if data.distilled else 'regular')
  return stage(root, f'k{k}-{regime}', **runs.heads_run(c, start, k, regime, data))


def text_of(c: Translation, root: pathlib.Path, regime: str) -> TextConfig:
  """The text of a regime: a teacher's translations, or people's; heads on the base may have its
  own."""
  if regime not in DISTILLED:
    return dataclasses.replace(c.data, distilled='')
  distilled = c.data.distilled
  if not distilled:
    teacher = stage(root, 'teacher', **runs.base_run(c, c.people, seed_of(c.seed, 'teacher')))
    distilled = str(stage(root, 'distilled', **translation_run(c, teacher)))
  return dataclasses.replace(c.data, distilled=distilled, own='')


def retrained_run(c: Translation, base: pathlib.Path, data: TextConfig) -> dict[str, Any]:
  """A base trained on, on distilled text."""
  same = {'model': c.model, 'run': c.retrain, 'data': data, 'seed': c.seed, 'mesh': c.mesh}
  return {'make': train.base, 'start': base, 'order': seed_of(c.seed, 'k1-distil'), **same}


def translation_run(c: Translation, teacher: pathlib.Path) -> dict[str, Any]:
  """The training text as a model translates it."""
  return {'make': own.translations, 'model': teacher, 'data': c.people, 'distill': c.distill}


# --- measurement


class Bench:
  """The sentences of a split, and how models are measured on them.

  Attributes:
    tokens: their ids.
    timed: inputs of `fd.decode`, one sentence each: those that are timed.
    greedy: its greedy translations, by the model; {} until something is measured.
  """

  def __init__(self, c: Translation, split: str) -> None:
    self.c, self.split, self.text = c, split, c.data.open()
    pairs = self.text.pairs(split)[: c.table.sentences or None]
    self.tokens = tokenise(pairs, self.text.tokenizer)
    self.references = [target for _, target in pairs]
    check_sources(self.tokens, c.model.max_positions, f'of the {split} set')
    if not len(self.text.tokens('train', c.data.row_length)):
      raise UserError('there are no pairs to train on: give text, or longer rows')
    chosen = spaced(len(pairs), c.table.timed)
    self.timed = [(self.tokens.source[i][None],) for i in chosen]
    self.greedy: dict[str, Decoded] = {}

  def key(self, folder: pathlib.Path | None, k: int, regime: str, rule: str) -> Row:
    """Fields that a row is found by: what is measured, on which model (None: it could not be
    trained) and which sentences."""
    table = self.c.table
    key: Row = {'k': k, 'regime': regime, 'rule': rule, 'split': self.split}
    key |= {'outputs': len(self.references), 'max_len': table.max_len, 'batch': table.rows}
    key |= {'timing_sentences': table.timed, 'timing_rounds': table.repeats}
    models = None if folder is None else folders.content(folder)
    return key | {'models': models, 'content': self.text.content}

  def rows(self, folder: pathlib.Path, k: int, regime: str, rules: Sequence[str]) -> Iterator[Row]:
    """A row for each rule, of a model with its first k heads; k = 1 decodes greedily ('exact') or
    by beam search.

    Rules of chains run in the same compiled programs, trees each in their own. All are timed in
    turn with the same model's greedy decoding.
    """
    c = self.c
    target = Bound(*pack_if_faster(*folders.load(folder)))
    strategies = self.strategies(target, folder, k, rules)
    decoded = {'greedy': fd.Greedy(), **strategies}
    if k == 1:
      decoded.pop('exact', None)  # which is greedy
    functions = {}
    for name, strategy in decoded.items():
      how = {'strategy': strategy, 'max_len': c.table.max_len}
      functions[name] = functools.partial(fd.decode, *target, **how)
    times = measure(functions, c.table.repeats, self.timed)
    models = folders.content(folder)
    if models not in self.greedy:
      self.greedy[models] = self.translate(target, fd.Greedy())
    greedy = self.greedy[models]
    same: Row = {'dtype': c.model.dtype, 'seed': c.seed, 'timing_batch': 1}
    if k > 1:
      dev, own = self.text.dev_batches(), self.own_batches(greedy)
      same |= runs.accuracy(folder, k, dev, own) | c.heads.conditions
      if regime not in DISTILLED and c.data.own:
        same['heads_text'] = 'own'
    for rule, strategy in strategies.items():
      out = self.translate(target, strategy) if rule in decoded else greedy
      row = {**self.key(folder, k, regime, rule), **self._quality(out), **same}
      row |= beside_greedy(times.get(rule, times['greedy']), times['greedy'])
      row['same_as_greedy'] = float((out.tokens == greedy.tokens).all(axis=1).mean())
      if tree_nodes(rule):
        sources = {'tree_split': other_split(self.split), 'tree_sentences': len(self.tree_sources)}
        row |= {'tree_nodes': strategy.drafter.nodes, **sources}
      yield row

  def strategies(
    self, target: Bound, folder: pathlib.Path, k: int, rules: Sequence[str]
  ) -> dict[str, Any]:
    """The strategy of each rule. Trees are the best of their size for the first k heads, counted on
    what the model itself writes for sources of another split."""
    table = self.c.table
    if k == 1:
      search = fd.Beam(size=4, length_penalty=0.6)
      return {rule: search if rule == BEAM else fd.Greedy() for rule in rules}
    heads, found = Bound(*pack_if_faster(*folders.load_heads(folder))), {}
    if any(map(tree_nodes, rules)):
      drafting = Bound(*heads.module.drafting(heads.params, k - 1))
      ranks = written_ranks(target, drafting, self.tree_sources, table.max_len, table.rows)
    for rule in rules:
      if nodes := tree_nodes(rule):
        # a model that writes nothing has shown no guess to be right
        found[rule] = fd.Medusa(heads, grow(ranks, nodes).choices or ((0,),))
      else:
        found[rule] = fd.Blockwise(heads, k=k, rule=rule_of(rule))
    return found

  @functools.cached_property
  def tree_sources(self) -> list[list[int]]:
    """Sources of another split, evenly spaced, that trees are grown on."""
    pairs, limit = self.text.pairs(other_split(self.split)), self.c.model.max_positions
    some = [pairs[i] for i in spaced(len(pairs), GROWN_ON)]
    tokens = tokenise(some, self.text.tokenizer, limit)
    return [tokens.source[i].tolist() for i in range(len(tokens))]

  def translate(self, target: Bound, strategy: Any, tokens: TokenPairs | None = None) -> Decoded:
    """Translates every sentence of the split, or the ones given."""
    table, tokens = self.c.table, self.tokens if tokens is None else tokens
    model, params = target.module, target.params
    check_sources(tokens, model.max_positions)
    sources, rows = [tokens.source[i] for i in range(len(tokens))], min(table.rows, len(tokens))
    return in_order(decode_each(model, params, sources, strategy, table.max_len, rows)).checked()

  def summary(self, row: Row) -> str:
    """A row in one line."""
    block, bleu = text(row['mean_block_size'], '.2f'), text(row['bleu'], '.2f')
    times = f'{row["ms_per_output"]:.1f} ms a sentence (greedy {row["greedy_ms_per_output"]:.1f})'
    name = f'k={row["k"]} {row["regime"]} {row["rule"]}'
    return f'{name}: BLEU {bleu}, mean block {block}, {times}'

  def own_batches(self, greedy: Decoded) -> list[Any]:
    """Batches of the sentences as the model itself translates them."""
    lines = zip(greedy.tokens, greedy.lengths, strict=True)
    written = Ragged.of([tokens[:length].tolist() for tokens, length in lines])
    own = TokenPairs(self.tokens.source, written).at_most(self.c.data.row_length)
    return self.text.dev_batches(own) if len(own) else []

  def _quality(self, out: Decoded) -> Row:
    """BLEU and block sizes."""
    language = self.c.data.target
    lines = [self.text.tokenizer.decode(row.tolist()) for row in out.tokens]
    bleu = corpus_bleu(lines, self.references, language)
    blocks = count_blocks(out.lengths, out.block_sizes)
    found: Row = {'bleu': bleu.score, 'bleu_signature': bleu.signature}
    if language == 'de':  # Tensor2Tensor's script is about German
      score, signature = split_compound_bleu(lines, self.references)
      found |= {'compound_bleu': score, 'compound_bleu_signature': signature}
    found['mean_block_size'] = blocks.mean_block_size
    found['calls_per_output'] = blocks.calls_per_output
    return found


def other_split(split: str) -> str:
  """The split that trees are grown on which are measured on this one."""
  return 'dev' if split == 'test' else 'test'


# --- one run: experiments.train, experiments.distill and experiments.evaluate


def train_run(c: Translation, workdir: pathlib.Path) -> bool:
  """Trains the one run that k, regime and base say, or goes on; False if it was finished.

  Raises:
    UserError: they do not fit each other, or the text.
  """
  distils = c.regime in DISTILLED
  if distils != bool(c.data.distilled):
    wanted = 'name it by' if distils else 'leave out'
    raise UserError(
      f'regime={c.regime} with distilled text {c.data.distilled!r}: {wanted}'
      ' --config.data.distilled=...'
    )
  runs.check_alone(c)
  if c.k == 1 and not distils:
    return in_place(workdir, **runs.base_run(c, c.people, c.seed))
  base, material = pathlib.Path(c.base), c.data.open()
  material.check_base(base)
  runs.check_model(base, material.model_of(c.model))
  if c.k == 1:
    return in_place(workdir, **retrained_run(c, base, c.data))
  return in_place(workdir, **runs.heads_run(c, base, c.k, c.regime, c.data))


def distil(c: Translation, teacher: pathlib.Path, workdir: pathlib.Path) -> str:
  """Has a teacher translate the training text; says what there is then."""
  in_place(workdir, **translation_run(c, teacher))
  counts = record_of(workdir)['counts']
  kept = f'{counts["empty"]:,} without an output and {counts["long"]:,} too long'
  kept += ' are left out' if c.distill.sources else ' keep their translation'
  return f'{workdir} holds {counts["lines"]:,} lines for {counts["sources"]:,} sources ({kept})'


def evaluate(c: Translation, workdir: pathlib.Path, conditions: dict[str, Any]) -> Rows:
  """Measures every rule of one finished run.

  Raises:
    UserError: the folder holds no model, or not the one that k and regime mean.
  """
  if not (workdir / 'model' / 'config.json').is_file():
    raise UserError(
      f'{workdir} holds no finished run: train it first, by experiments.train with the same config'
    )
  train.check_run(workdir, c.k, c.regime, c.seed)
  rows, bench = Rows(workdir / 'results.jsonl', conditions), Bench(c, c.table.split)
  bench.text.check_base(workdir)
  rules = c.table.rules if c.k > 1 else ('exact',)
  found = runs.filled(rows, bench, [(c.k, c.regime, rules)], lambda k, regime: workdir)
  runs.show(rows, [make(found) for make in tables.TABLES])
  return rows


# --- rules of acceptance, by name


def rule_of(name: str) -> fd.MinBlock:
  """'exact', 'top-2', 'min-3': all of one structure, so that a sweep over them is one compiled
  program."""
  match = re.fullmatch(r'exact|(top|min)-([1-9]\d{0,8})', name)
  if match is None:
    raise UserError(
      f'the rule {name} is unknown: give exact, top-N or min-N, such as top-2 (in tables also'
      ' tree-N)'
    )
  n = int(match[2] or 1)
  top, size = {'top': (n, 1), 'min': (1, n), None: (1, 1)}[match[1]]
  return fd.MinBlock(fd.TopN(top), size)


def tree_nodes(name: str) -> int | None:
  """The nodes of the tree that a rule such as 'tree-32' names, the root included; None for the
  rules of `rule_of`."""
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
  """Notes below every table."""
  return [TOYS] if c.data.kind == 'embedded' else []


def fastest(rows: Sequence[Row]) -> str | None:
  """Says which exact decoding was the fastest; None where none was timed, or nothing was
  written."""
  found = []
  for row in tables.finished(rows):
    is_exact = row['k'] > 1 and (row['rule'] == 'exact' or tree_nodes(row['rule']))
    if is_exact and row.get('speedup') and row.get('mean_block_size'):
      found.append(row)
  if not found:
    return None
  best = max(found, key=lambda row: row['speedup'])
  ratio, same = f'{best["speedup"]:.2f} times as fast', f'{best["same_as_greedy"]:.0%}'
  return (
    f'The fastest exact decoding here: {best["mean_block_size"]:.1f} tokens a call, {ratio} as'
    f' greedy decoding of the same model, {same} of the outputs the same (k = {best["k"]},'
    f' {REGIMES[best["regime"]].lower()}, {best["rule"]})'
  )
