"""Blockwise parallel decoding of translations (Stern et al. 2018), from the top: Tables 1 and 4,
Figure 4, the worked example.

  base -> heads on it (regular) -> heads and base together (finetune)
  teacher (another seed) -> its translations of the training text (distilled)
  base, distilled -> base-distil -> heads on it (distil) -> heads and base together (both)

Each is a stage in the workdir: base/, k8-finetune/ and so on. From every model come its rows, one a
rule, in results.jsonl. Where heads are nested (none sees the others), one run for the largest k
serves all that are trained on a frozen base; with `table.one_run` it does so in every regime.

A page (`table1`) asks for rows (`of_table1`). `Page` has `Models` train what is missing, and
`Bench` measure it; `Missing` says beforehand what that will be.
"""

import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

import fastdec as fd
from experiments.lab import own, train
from experiments.lab.decoding import Output, check_sources, rule_of, translate, tree_nodes
from experiments.lab.model_text import record_of, without_heads
from experiments.lab.own import DistillConfig
from experiments.lab.report import terminal, text
from experiments.lab.rows import Row, Rows, each, find, read
from experiments.lab.settings import (
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
)
from experiments.lab.stage import (
  Busy,
  OutOfTime,
  exclusive,
  in_place,
  inputs_of,
  seconds_left,
  stage,
  whole,
)
from experiments.lab.text import TextConfig
from experiments.stern2018 import tables
from experiments.stern2018.tables import REGIMES
from fastdec import folders
from fastdec.cli.show import blocks_of, marked
from fastdec.data.text.packing import tokenise
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.errors import UserError
from fastdec.evaluation.bleu import corpus_bleu, split_compound_bleu
from fastdec.evaluation.blocks import count_blocks
from fastdec.evaluation.tree_calibration import written_ranks
from fastdec.evaluation.tree_growth import grow
from fastdec.evaluation.wallclock import Timing, measure
from fastdec.fields import Between
from fastdec.files import write_text
from fastdec.folders import packed
from fastdec.models.fconv import FConvConfig
from fastdec.models.transformer import TransformerConfig
from fastdec.sharding import MeshConfig
from fastdec.struct import Bound
from fastdec.training.losses import head_accuracy

RULES = ('exact', 'top-2', 'top-3', 'min-2', 'min-3')
TREES = ('tree-8', 'tree-16', 'tree-32', 'tree-64')  # exact acceptance on a tree of this many nodes
BEAM = 'beam-4'  # Vaswani et al. 2017: 4 beams, alpha 0.6
GROWN_ON = 400  # sentences of another split, at most, that trees are grown on
RUNS = 'train', 'retrain', 'freeze', 'finetune'
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
    for name in RUNS:
      train.check(getattr(self, name), self.model, self.data.rows, self.mesh, name)
    self.heads.module(folders.model_of(self.model), 2)  # says what cannot be
    limit, lengths = self.model.max_positions, (self.data.row_length, self.table.max_len)
    for name, length in zip(('data.row_length', 'table.max_len'), lengths, strict=True):
      if length > limit:
        raise UserError(
          f'config.{name}={length} is not possible: model.max_positions={limit} is the most'
        )

  @property
  def people(self) -> TextConfig:
    """The text as people wrote it."""
    return dataclasses.replace(self.data, distilled='', own='')


# --- the pages


class Asked(NamedTuple):
  """The rows of one model."""

  k: int
  regime: str
  rules: tuple[str, ...]


def table1(c: Translation, root: pathlib.Path, conditions: dict[str, Any]) -> Rows:
  """Table 1: every k and regime with every rule, beside the base."""
  page = Page(c, root, conditions, c.table.split, of_table1(c))
  found = page.fill()
  if not found:
    return page.rows
  drawn = [tables.table1(found, page.notes), *(make(found) for make in tables.TABLES[1:])]
  tables.scatter(found, root / 'table1.png')
  tables.write(root / 'table1', page.rows.console, drawn, found, 'table1.png')
  page.print_fastest(found)
  return page.rows


def table4(c: Translation, root: pathlib.Path, conditions: dict[str, Any]) -> Rows:
  """Table 4: the test set, everything distilled; Figure 4 shows the same rows."""
  page = Page(c, root, conditions, 'test', of_table4(c))
  if found := page.fill():
    tables.figure4(found, root / 'figure4.png')
    drawn = [tables.table4(found, page.notes)]
    tables.write(root / 'table4', page.rows.console, drawn, found, 'figure4.png')
  return page.rows


def figure4(c: Translation, root: pathlib.Path, conditions: dict[str, Any]) -> Rows:
  """Figure 4: speed-up against block size, on the test set."""
  page = Page(c, root, conditions, 'test', of_table4(c)[1:])
  if found := page.fill():
    tables.figure4(found, root / 'figure4.png')
    write_text(root / 'figure4.csv', tables.as_csv(found))
    page.rows.console.print(f'The picture is {root}/figure4.png, its points {root}/figure4.csv')
  return page.rows


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
  page = Page(c, root, conditions, 'test', [Asked(k, regime, ())])
  page.announce()
  source, ids, sizes = page.bench.example(page.models.of(k, regime), k, 'exact', sentence)
  pieces = iter([piece.replace('▁', ' ') for piece in page.bench.text.tokenizer.pieces(ids)])
  blocks = [list(itertools.islice(pieces, size)) for size in (1, *sizes)]  # 1 is the prompt's
  drawn = tables.example_text(source, blocks)
  write_text(root / 'example.txt', drawn)
  tables.example_picture(source, blocks, root / 'example.png')
  page.rows.console.print(
    f'{drawn}\nIt is in {root}/example.txt, as a picture in {root}/example.png'
  )
  return page.rows


def of_table1(c: Translation) -> list[Asked]:
  """The rows of Table 1."""
  asked = []
  for regime in dict.fromkeys(('regular', *c.table.regimes)):
    if regime not in TUNED:
      asked.append(Asked(1, regime, ('exact',)))
    if regime in c.table.regimes:
      asked += [Asked(k, regime, c.table.rules) for k in c.table.ks]
  return asked


def of_table4(c: Translation) -> list[Asked]:
  """The rows of Table 4: the distilled base, then every k."""
  tuned = [Asked(k, 'both', ('exact',)) for k in c.table.ks]
  return [Asked(1, 'distil', ('exact', BEAM)), *tuned]


class Page:
  """Models of a workdir and their rows, on one split.

  Args:
    c, root, conditions: as of the pages.
    split: the one that is measured.
    asked: rows of each model.
  """

  def __init__(
    self,
    c: Translation,
    root: pathlib.Path,
    conditions: dict[str, Any],
    split: str,
    asked: Sequence[Asked],
  ) -> None:
    self.rows = Rows(root / 'results.jsonl', conditions)
    self.bench, self.models, self.asked = Bench(c, split), Models(c, root), asked
    self.notes = [TOYS] if c.data.kind == 'embedded' else []

  def fill(self) -> list[Row]:
    """Trains and measures what is missing; the rows that there are then."""
    self.announce()
    self.models.of(1, 'regular')  # without the base there is nothing
    plans = [{'k': one.k, 'regime': one.regime, 'split': self.bench.split} for one in self.asked]
    each(self.rows, plans, self._measure)
    return self._found()

  def announce(self) -> None:
    """Says what is to be made, before it begins."""
    todo = Missing(self.models.c, self.models.root)
    count = 0
    for one in self.asked:
      folder = todo.of(one.k, one.regime)
      is_there = folder.name not in todo.steps
      for rule in one.rules:
        if not (is_there and self.rows.find(**self.bench.key(folder, one.k, one.regime, rule))):
          count += 1
    if todo.steps:
      self.rows.console.print(f'To be made first: {todo.said}')
    if count:
      self.rows.console.print(f'To be measured on the {self.bench.split} set: {count} rows')

  def print_fastest(self, found: Sequence[Row]) -> None:
    """Says which exact decoding is the fastest and shows a sentence of it, block by block."""
    best = fastest(found)
    if best is None:
      return
    console, (k, regime, rule) = self.rows.console, (best[name] for name in tables.KEY)
    console.print(f'The fastest exact decoding here: {in_short(best)}')
    if self.bench.has_measured and self.rows.is_complete:  # its programs are there
      source, ids, sizes = self.bench.example(self.models.of(k, regime), k, rule)
      console.print(f'\n{source}')
      console.print(marked(blocks_of(self.bench.text.tokenizer, ids, sizes)))

  def _measure(self, k: int, regime: str, split: str) -> None:
    """Measures the rules of one model that have no row yet; two processes do so in turn."""
    (rules,) = (one.rules for one in self.asked if one[:2] == (k, regime))
    folder, lock = self.models.of(k, regime), self.rows.path.parent / 'locks'
    if self._missing(folder, k, regime, rules):
      with exclusive(lock / f'rows-{folder.name}-{k}-{split}'):
        missing = self._missing(folder, k, regime, rules)
        for row in self.bench.rows(folder, k, regime, missing):
          self.rows.console.print(summary(self.rows.add(row)))
          seconds_left()

  def _missing(self, folder: pathlib.Path, k: int, regime: str, rules: Sequence[str]) -> list[str]:
    key = functools.partial(self.bench.key, folder, k, regime)
    return [rule for rule in rules if self.rows.find(**key(rule)) is None]

  def _found(self) -> list[Row]:
    """The rows of the models that there are, and the failures of the others."""
    every, found = read(self.rows.path), []
    for k, regime, rules in self.asked:
      missing = Missing(self.models.c, self.models.root)
      folder, split = missing.of(k, regime), self.bench.split
      new = every[self.rows.before :]
      failed = find(new, is_failed=True, k=k, regime=regime, split=split)
      for rule in rules:
        row = None
        if not missing.steps:
          row = find(every, **self.bench.key(folder, k, regime, rule))
        if row or failed:
          found.append(row or {**(failed or {}), 'rule': rule})
    self.rows.shown = found
    return found


# --- the models


class Models:
  """The models of a workdir, trained when they are asked for.

  What has failed is not tried again in this process.
  """

  def __init__(self, c: Translation, root: pathlib.Path) -> None:
    self.c, self.root = c, root
    self._failed: dict[str, str] = {}

  def of(self, k: int, regime: str) -> pathlib.Path:
    """The model of a k and a regime; k = 1 is a base."""
    c, table = self.c, self.c.table
    frozen = 'distil' if regime in DISTILLED else 'regular'
    if k == 1:
      base = self.base('base', c.seed)
      return self.again('base-distil', base, self.data(regime)) if frozen == 'distil' else base
    are_nested = self.heads_module.are_nested and regime not in TUNED
    if table.one_run or are_nested:
      k = max(table.ks)
    base = self.of(k if regime in TUNED else 1, frozen)
    return self.heads(f'k{k}-{regime}', base, k, regime, self.data(regime))

  def base(self, name: str, seed: int) -> pathlib.Path:
    """A base from the first step on."""
    c = self.c
    return self._made(name, train.base, model=c.model, run=c.train, data=c.people, seed=seed)

  def again(self, name: str, base: pathlib.Path, data: TextConfig) -> pathlib.Path:
    """A base trained on, on distilled text."""
    c, order = self.c, seed_of(self.c.seed, 'k1-distil')
    same = {'model': c.model, 'run': c.retrain, 'data': data, 'seed': c.seed}
    return self._made(name, train.base, start=base, order=order, **same)

  def heads(
    self, name: str, base: pathlib.Path, k: int, regime: str, data: TextConfig
  ) -> pathlib.Path:
    """Heads on a base, which learns along with them in the tuned regimes."""
    c, is_tuned = self.c, regime in TUNED
    run, order = c.finetune if is_tuned else c.freeze, seed_of(c.seed, f'k{k}-{regime}')
    same = {'run': run, 'data': data, 'seed': c.seed, 'order': order}
    return self._made(name, train.heads, base=base, heads=c.heads, k=k, together=is_tuned, **same)

  def data(self, regime: str) -> TextConfig:
    """The text of a regime: a teacher's translations, or people's; heads on the base may have its
    own."""
    data = self.c.data
    if regime not in DISTILLED:
      return dataclasses.replace(data, distilled='')
    distilled = data.distilled
    if not distilled:
      teacher = self.base('teacher', seed_of(self.c.seed, 'teacher'))
      distilled = str(self.translations('distilled', teacher))
    return dataclasses.replace(data, distilled=distilled, own='')

  def translations(self, name: str, teacher: pathlib.Path) -> pathlib.Path:
    """The training text as a model translates it."""
    c = self.c
    return self._made(name, own.translations, model=teacher, data=c.people, distill=c.distill)

  def on_mesh(self, make: Any) -> Any:
    """A training on the config's devices, which decide nothing but rounding."""
    return make if make is own.translations else functools.partial(make, mesh=self.c.mesh)

  @functools.cached_property
  def heads_module(self) -> Any:
    """The heads over any vocabulary."""
    return self.c.heads.module(folders.model_of(self.c.model), 2)

  def _made(self, name: str, make: Any, **inputs: Any) -> pathlib.Path:
    if name in self._failed:
      raise UserError(self._failed[name])
    try:
      return stage(self.root, name, self.on_mesh(make), **inputs)
    except (Busy, OutOfTime):
      raise
    except Exception as error:
      kind = '' if isinstance(error, UserError) else f'{type(error).__name__}: '
      self._failed[name] = f'{name}: {kind}{error}'
      raise


class Missing(Models):
  """The same models, of which none is made.

  Attributes:
    steps: what is not there, with its training steps; 0 where a text is to be written.
    seconds: a training step took that long here; 0: none was made.
  """

  def __init__(self, c: Translation, root: pathlib.Path) -> None:
    super().__init__(c, root)
    self.steps: dict[str, int] = {}
    self.seconds = 0.0

  @property
  def said(self) -> str:
    """Names the missing stages."""
    parts = []
    for name, steps in self.steps.items():
      parts.append(f'{name} ({steps:,} steps)' if steps else f'{name} (a model writes it)')
    minutes = self.seconds * sum(self.steps.values()) / 60
    pace = f'; about {math.ceil(minutes)} minutes of training, as fast as before' if minutes else ''
    return ', '.join(parts) + pace

  def _made(self, name: str, make: Any, **inputs: Any) -> pathlib.Path:
    # What is made from a missing stage is missing too: its inputs are not known yet.
    needs = {str(value) for value in inputs.values()} | {inputs['data'].distilled}
    steps = inputs['run'].steps if 'run' in inputs else 0
    is_possible = not needs & {str(self.root / other) for other in self.steps}
    folder = whole(self.root, name, **inputs) if is_possible else None
    if folder is None:
      self.steps[name] = steps
      return self.root / name
    if steps:
      began, ended = ((folder / file).stat().st_mtime for file in ('inputs.json', 'DONE'))
      self.seconds = max(self.seconds, (ended - began) / steps)
    return folder


class Here(Models):
  """The same models, of which one is made in the folder itself.

  Attributes:
    is_new: False if it was there.
  """

  is_new = True

  def _made(self, name: str, make: Any, **inputs: Any) -> pathlib.Path:
    self.is_new = in_place(self.root, self.on_mesh(make), **inputs)
    return self.root


def train_run(c: Translation, workdir: pathlib.Path) -> bool:
  """Trains the one run that k, regime and base say, or goes on; False if it was finished.

  Raises:
    UserError: they do not fit each other, or the text.
  """
  distils, models = c.regime in DISTILLED, Here(c, workdir)
  if c.k == 1 and c.regime in TUNED:
    raise UserError(
      f'k=1 has no heads to train with regime={c.regime}: give regime=regular or distil, or k >= 2'
    )
  if distils != bool(c.data.distilled):
    wanted = 'name it by' if distils else 'leave out'
    raise UserError(
      f'regime={c.regime} with distilled text {c.data.distilled!r}: {wanted}'
      ' --config.data.distilled=...'
    )
  if c.data.own and c.k == 1:
    raise UserError(
      f'data.own={c.data.own!r} is for heads: leave out --config.data.own=..., or give k >= 2'
    )
  if c.k == 1 and not distils:
    models.base('', c.seed)
    return models.is_new
  if not c.base:
    what = f'heads for k={c.k}' if c.k > 1 else f'regime={c.regime}'
    raise UserError(f'{what}: trained on a base model, name its workdir by --config.base=...')
  base, material = pathlib.Path(c.base), c.data.open()
  material.check_base(base)
  model = folders.open(base).model
  if getattr(model, 'model', model) != material.model_of(c.model):  # without heads that p1 has
    raise UserError(
      f'{base} holds another model than this config means: give the base run of the same config'
    )
  if c.k == 1:
    models.again('', base, c.data)
  else:
    models.heads('', base, c.k, c.regime, c.data)
  return models.is_new


def distil(c: Translation, teacher: pathlib.Path, workdir: pathlib.Path) -> str:
  """Has a teacher translate the training text; says what there is then."""
  counts = record_of(Here(c, workdir).translations('', teacher))['counts']
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
  opened = folders.open(workdir)
  most = opened.heads.k if opened.has_heads else 1
  if not (c.k == most or (1 < c.k < most and opened.heads.are_nested)):
    raise UserError(f'{workdir} holds a run for k={most}, and this config means k={c.k}: give that')
  made = inputs_of(workdir)
  order = None if (c.k, c.regime) == (1, 'regular') else seed_of(c.seed, f'k{most}-{c.regime}')
  if made and made.get('order') != order:
    raise UserError(f'{workdir} was trained with another regime or seed: give those of the run')
  rows, bench = Rows(workdir / 'results.jsonl', conditions), Bench(c, c.table.split)
  bench.text.check_base(workdir)
  rules = c.table.rules if c.k > 1 else ('exact',)

  def work(k: int, regime: str, split: str) -> None:
    missing = [rule for rule in rules if not rows.find(**bench.key(workdir, k, regime, rule))]
    for row in bench.rows(workdir, k, regime, missing):
      rows.add(row)

  each(rows, [{'k': c.k, 'regime': c.regime, 'split': bench.split}], work)
  found = rows.all([bench.key(workdir, c.k, c.regime, rule) for rule in rules])
  for table in [make([row for row in found if 'rule' in row]) for make in tables.TABLES]:
    if table.rows:
      rows.console.print(terminal(table))
  return rows


# --- measurement


class Bench:
  """The sentences of a split, and how models are measured on them.

  Attributes:
    tokens: their ids.
    timed: inputs of `fd.decode`, one sentence each: those that are timed.
    has_measured: True once there are rows from this process.
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
    self.has_measured = False

  def key(self, folder: pathlib.Path, k: int, regime: str, rule: str) -> Row:
    """Fields that a row is found by: what is measured, on which model and which sentences."""
    table = self.c.table
    return {
      'k': k,
      'regime': regime,
      'rule': rule,
      'split': self.split,
      'outputs': len(self.references),
      'max_len': table.max_len,
      'batch': table.rows,
      'timing_sentences': table.timed,
      'timing_rounds': table.repeats,
      'models': content(folder),
      'content': self.text.content,
    }

  def rows(self, folder: pathlib.Path, k: int, regime: str, rules: Sequence[str]) -> Iterator[Row]:
    """A row for each rule, of a model with its first k heads; k = 1 decodes greedily ('exact') or
    by beam search.

    Rules of chains run in the same compiled programs, trees each in their own. All are timed in
    turn with the same model's greedy decoding.
    """
    if not rules:
      return
    c, self.has_measured = self.c, True
    target = Bound(*packed(*folders.load(folder)))
    strategies = self.strategies(target, folder, k, rules)
    decoded = {'greedy': fd.Greedy(), **strategies}
    if k == 1:
      decoded.pop('exact', None)  # which is greedy
    functions = {}
    for name, strategy in decoded.items():
      functions[name] = functools.partial(self._decode, target, strategy)
    times = measure(functions, c.table.repeats, self.timed)
    greedy = self.translate(target, fd.Greedy())
    same: Row = {'dtype': c.model.dtype, 'seed': c.seed, 'timing_batch': 1}
    if k > 1:
      same |= self._accuracy(folder, k, greedy) | c.heads.conditions
      if regime not in DISTILLED and c.data.own:
        same['heads_text'] = 'own'
    for rule, strategy in strategies.items():
      out = self.translate(target, strategy) if rule in decoded else greedy
      row = {**self.key(folder, k, regime, rule), **self._quality(out), **same}
      row |= clock(times.get(rule, times['greedy']), times['greedy'])
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
    heads, found = Bound(*packed(*folders.load_heads(folder))), {}
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

  def translate(self, target: Bound, strategy: Any, tokens: TokenPairs | None = None) -> Output:
    """Translates every sentence of the split, or the ones given."""
    table, tokens = self.c.table, self.tokens if tokens is None else tokens
    rows = min(table.rows, len(tokens))
    model, params = target.module, target.params
    return translate(model, params, self.text.tokenizer, tokens, strategy, table.max_len, rows)

  def example(
    self, folder: pathlib.Path, k: int, rule: str, sentence: str | None = None
  ) -> tuple[str, list[int], list[int]]:
    """A source, the ids of its translation, and how many of them each call wrote.

    The source is the sentence given. Without one it is, of the longer half of the split's
    translations, that with the longest blocks.
    """
    tokenizer, tokens = self.text.tokenizer, self.tokens
    if sentence is not None:
      tokens = tokenise([(sentence, '')], tokenizer)
    target = Bound(*packed(*folders.load(folder)))
    out = self.translate(target, self.strategies(target, folder, k, [rule])[rule], tokens)
    calls = np.maximum((out.block_sizes > 0).sum(axis=1), 1)
    is_long = out.lengths >= np.median(out.lengths)
    chosen = int(np.where(is_long, out.lengths / calls, 0).argmax())
    source = tokenizer.decode(tokens.source[chosen].tolist()) if sentence is None else sentence
    ids = out.tokens[chosen][: out.lengths[chosen]].tolist()
    return source, ids, [int(size) for size in out.block_sizes[chosen] if size]

  def _accuracy(self, folder: pathlib.Path, k: int, greedy: Output) -> Row:
    """Accuracy of the first k heads: about people's references of the dev set, and about
    what the model writes itself."""
    heads = Bound(*folders.load_heads(folder))
    if heads.module.k > k:
      heads = Bound(*heads.module.drafting(heads.params, k - 1))
    model, params = without_heads(*folders.load(folder))
    lines = zip(greedy.tokens, greedy.lengths, strict=True)
    written = Ragged.of([tokens[:length].tolist() for tokens, length in lines])
    batches = {
      'head_accuracy': self.text.dev_batches(),
      'own_accuracy': self.text.batches_of(TokenPairs(self.tokens.source, written)),
    }
    found: Row = {}
    for name, several in batches.items():
      right = head_accuracy(model, heads.module, params, heads.params, several) if several else ()
      found[name] = right
    return found

  def _decode(self, target: Bound, strategy: Any, source: np.ndarray) -> Any:
    max_len = self.c.table.max_len
    return fd.decode(target.module, target.params, source, strategy, max_len=max_len)

  def _quality(self, out: Output) -> Row:
    """BLEU and block sizes."""
    language = self.c.data.target
    bleu = corpus_bleu(out.lines, self.references, language)
    blocks = count_blocks(out.lengths, out.block_sizes)
    found: Row = {'bleu': bleu.score, 'bleu_signature': bleu.signature}
    if language == 'de':  # Tensor2Tensor's script is about German
      score, signature = split_compound_bleu(out.lines, self.references)
      found |= {'compound_bleu': score, 'compound_bleu_signature': signature}
    found['mean_block_size'] = blocks.mean_block_size
    found['calls_per_output'] = blocks.calls_per_output
    return found


def clock(timing: Timing, greedy: Timing) -> Row:
  """The fields of a row about time."""
  return {
    'ms_per_output': timing.milliseconds,
    'greedy_ms_per_output': greedy.milliseconds,
    'speedup': timing.speedup_over(greedy),
    'spread': timing.speedups_over(greedy),
    'compile_seconds': timing.compile_seconds,
  }


@functools.cache
def content(folder: pathlib.Path) -> str:
  """The hash of a model and its heads, which do not change once they are trained."""
  return folders.content(folder)


def other_split(split: str) -> str:
  """The split that trees are grown on which are measured on this one."""
  return 'dev' if split == 'test' else 'test'


def spaced(total: int, most: int) -> list[int]:
  """At most so many evenly spaced places."""
  return np.linspace(0, total - 1, min(most, total)).round().astype(int).tolist()


# --- in words


def summary(row: Row) -> str:
  """A row in one line."""
  block, bleu = text(row['mean_block_size'], '.2f'), text(row['bleu'], '.2f')
  times = f'{row["ms_per_output"]:.1f} ms a sentence (greedy {row["greedy_ms_per_output"]:.1f})'
  name = f'k={row["k"]} {row["regime"]} {row["rule"]}'
  return f'{name}: BLEU {bleu}, mean block {block}, {times}'


def fastest(rows: Sequence[Row]) -> Row | None:
  """The fastest row whose output is greedy decoding's; None where none was timed, or nothing was
  written."""
  found = []
  for row in tables.finished(rows):
    is_exact = row['rule'] == 'exact' or row['rule'].startswith('tree-')
    is_timed = row.get('speedup') is not None and row.get('mean_block_size') is not None
    if is_exact and is_timed and row['k'] > 1:
      found.append(row)
  return max(found, key=lambda row: row['speedup'], default=None)


def in_short(row: Row) -> str:
  """A row with exact acceptance, in a sentence."""
  ratio, same = f'{row["speedup"]:.2f} times as fast', f'{row["same_as_greedy"]:.0%}'
  return (
    f'{row["mean_block_size"]:.1f} tokens a call, {ratio} as greedy decoding of the same model,'
    f' {same} of the outputs the same (k = {row["k"]}, {REGIMES[row["regime"]].lower()},'
    f' {row["rule"]})'
  )
