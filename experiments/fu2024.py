"""Lookahead decoding (Fu et al. 2024), from the top: its sizes swept, its pool taken apart.

`lookahead` is the page: it trains a small model (or takes `base`), measures the rows that are
missing, and writes the table. A row (`figures`) is lookahead with one size and one pool, timed in
turn with plain greedy decoding. Jacobi decoding and prompt lookup, which need no training either,
have rows too. Results: results.jsonl, lookahead.md, lookahead.png. A command that was killed, or
whose `--budget` ended, is continued by running it again: the training continues from its last
checkpoint, and rows that are in results.jsonl are not measured again. The table is drawn from the
rows there are.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import fastdec as fd
from experiments.lab import report, train
from experiments.lab.bench import ROWS, Bench, Texts
from experiments.lab.compare import join_texts
from experiments.lab.report import Column, Drawn, Table, text, write
from experiments.lab.rows import Row
from experiments.lab.text import TextConfig
from experiments.lab.train import WIDEST, Rows, Seed, Tokens, check_lengths, each_once
from experiments.lab.workdir import Workdir
from fastdec import folders, struct
from fastdec.decoding.methods.lookahead import LookaheadDrafter
from fastdec.decoding.protocol import Drafter
from fastdec.errors import UserError
from fastdec.evaluation import drawing
from fastdec.fields import Between
from fastdec.kernels.sharding import MeshConfig
from fastdec.models.lm import LMConfig
from fastdec.models.transformer import TransformerConfig
from fastdec.training.run import RunConfig

# Fields that name a row. A call of lookahead drafts `window` columns and verifies `guesses` n-grams
# of `ngram` tokens, from a pool of those seen so far. Jacobi: ngram is the block. Lookup: ngram is
# the longest suffix, guesses are the tokens copied.
PLAN = 'method', 'window', 'ngram', 'guesses', 'pool', 'batch'
METHODS = {'lookahead': 'lookahead', 'jacobi': 'Jacobi', 'lookup': 'prompt lookup'}
POOLS = {  # sources of n-grams; those of the window are always learnt
  'all': 'window, prompt, output',
  'window': 'window alone',
  'prompt': 'window, prompt',
  'output': 'window, output',
  'written': 'window, prompt, output, earlier outputs',
  'corpus': 'window, prompt, output, corpus',
}
# Pools that learn less: (learns n-grams of the prompt?, of the output?). All others learn both.
LEARNT = {'window': (False, False), 'prompt': (True, False), 'output': (False, True)}
OF_TEXTS = 'written', 'corpus'  # pools that are built before decoding
JACOBI = 8  # tokens of a block
LOOKUP = 3, 9  # the longest suffix, and tokens copied


# --- settings

NGram = Annotated[int, Between(3, 99)]


@dataclasses.dataclass(frozen=True)
class Measure(Texts):
  """What to measure, and on which texts."""

  # columns; the first entry of this list, and of the next two, is the usual size
  windows: tuple[Tokens, ...] = (15, 2, 5, 10)
  ngrams: tuple[NGram, ...] = (5, 3, 4, 7)  # tokens, the one looked up by included
  guesses: tuple[Tokens, ...] = (15, 2, 5, 10)  # n-grams verified a call
  batches: tuple[Rows, ...] = (1, 8)  # texts at once; the sweep is at the first

  def __post_init__(self) -> None:
    sizes = {'windows': self.windows, 'ngrams': self.ngrams, 'guesses': self.guesses}
    each_once('measure', **sizes, batches=self.batches)
    tokens = 1 + (max(self.windows) + max(self.guesses)) * (max(self.ngrams) - 1)
    if tokens > WIDEST:
      raise UserError(
        f'config.measure.windows, guesses and ngrams make calls of {tokens} tokens: give smaller'
        f' ones, which make {WIDEST} or fewer'
      )


@dataclasses.dataclass(frozen=True)
class Lookahead:
  """Settings of the page; presets are in configs/lookahead.py."""

  data: TextConfig
  model: LMConfig | TransformerConfig  # without its vocabulary, which the text gives
  train: RunConfig
  measure: Measure = Measure()
  task: Literal['lm', 'translation', 'code'] = 'lm'
  scale: str = ''
  base: str = ''  # a finished run on the same text, taken as it is; '': a model is trained
  seed: Seed = 0
  mesh: MeshConfig = MeshConfig()

  def __post_init__(self) -> None:
    train.check(self.train, self.model, self.data.rows, self.mesh, 'train')
    lengths = {'data.row_length': self.data.row_length, 'measure.max_len': self.measure.max_len}
    check_lengths(lengths, self.model)


# --- the page


def lookahead(c: Lookahead, work: Workdir) -> None:
  """Makes the page: a model, its rows, the table and the picture."""
  if c.task == 'code' and not c.data.folder:
    passages = work.stage('code', write_passages)
    c = dataclasses.replace(c, data=dataclasses.replace(c.data, folder=str(passages)))

  # Train the model, if it is missing.
  if c.base:
    model = pathlib.Path(c.base)
    folders.open(model)  # a mistake shows before any work
  else:
    model = work.stage(
      'model', train.base, model=c.model, run=c.train, data=c.data, seed=c.seed, mesh=c.mesh
    )

  # Measure the rows that are missing.
  bench = Bench(model, c.data, c.measure)
  rows = work.fill(keys(c, bench), functools.partial(figures, bench), summary)

  if rows:
    picture(rows, c.measure.batches[0], work.root / 'lookahead.png')
    write(work, 'lookahead', [speeds(rows)], 'lookahead.png')


def plans(measure: Measure) -> list[Row]:
  """Returns the fields of `PLAN` of each row: the usual size, Jacobi and prompt lookup at
  all batch sizes; then, at the first batch size, every pool and the other sizes."""
  window, ngram, guesses = usual = measure.windows[0], measure.ngrams[0], measure.guesses[0]
  batch = measure.batches[0]
  entries = []
  for size in measure.batches:
    entries.append(('lookahead', *usual, 'all', size))
    entries.append(('jacobi', 0, JACOBI, 0, 'all', size))
    entries.append(('lookup', 0, *LOOKUP, 'all', size))
  for pool in POOLS:
    if pool != 'all':
      entries.append(('lookahead', *usual, pool, batch))
    if pool in OF_TEXTS:
      entries.append(('lookup', 0, *LOOKUP, pool, batch))
  for other in measure.windows[1:]:
    entries.append(('lookahead', other, ngram, guesses, 'all', batch))
  for other in measure.ngrams[1:]:
    entries.append(('lookahead', window, other, guesses, 'all', batch))
  for other in measure.guesses[1:]:
    entries.append(('lookahead', window, ngram, other, 'all', batch))
  return [dict(zip(PLAN, entry, strict=True)) for entry in entries]


def keys(c: Lookahead, bench: Bench) -> list[Row]:
  """Returns the keys of the rows: all that decides their figures."""
  same = {'task': c.task, 'seed': c.seed, **bench.key()}
  every = []
  for plan in plans(c.measure):
    key = {**plan, **same}
    if plan['pool'] in OF_TEXTS:
      key['pool_sizes'] = c.measure.ngrams[0], c.measure.guesses[0]
    every.append(key)
  return every


# --- one row


def figures(bench: Bench, key: Row) -> Row:
  """Measures a row: tokens a call and agreement over all texts; times, in turn with greedy
  decoding, over some of them."""
  plan = {name: key[name] for name in PLAN if name != 'batch'}
  return count_texts(bench, **plan) | bench.clock(make_strategy(bench, **plan), key['batch'])


@functools.cache
def count_texts(bench: Bench, **plan: Any) -> Row:
  """Counts the figures that are the same at every batch size: once for all rows of a plan."""
  return bench.count(make_strategy(bench, **plan))


def make_strategy(
  bench: Bench, method: str, window: int, ngram: int, guesses: int, pool: str
) -> Any:
  """Returns the strategy of a row."""
  ngrams = build_pool(bench, pool) if pool in OF_TEXTS else None
  if method == 'jacobi':
    return fd.Jacobi(ngram)
  if method == 'lookup':
    return fd.PromptLookup(ngram, guesses + 1, pool=ngrams)  # k counts the root
  if pool in LEARNT:
    reads_prompt, reads_text = LEARNT[pool]
    return Ablated(window, ngram, guesses, reads_prompt=reads_prompt, reads_text=reads_text)
  return fd.Lookahead(window, ngram, guesses, pool=ngrams)


@functools.cache
def build_pool(bench: Bench, name: str) -> fd.NGramPool:
  """Builds the pool of n-grams of the training text, or of what the model itself writes for prompts
  of the dev set: once, because building it takes long."""
  if name == 'corpus':
    texts: Any = list(bench.text.tokens('train').target)
  else:
    prompts = bench.prompts_of('dev')
    written = join_texts(bench.comparison(fd.Greedy(), prompts, min(ROWS, len(prompts))).ours)
    texts = [written.written(i) for i in range(len(written.lengths))]
  measure: Any = bench.texts
  return fd.build_pool(texts, bench.target.module, measure.ngrams[0], measure.guesses[0])


def summary(row: Row) -> str:
  """Returns a row in one line."""
  name = f'{METHODS[row["method"]]} {row["window"]}/{row["ngram"]}/{row["guesses"]} {row["pool"]}'
  speed = f', {row["speedup"]:.2f}x' if row.get('speedup') else ''
  return f'{name}, batch {row["batch"]}: {row["tokens"]:.2f} tokens a call{speed}'


@struct.pytree
class Ablated(fd.Lookahead):
  """Lookahead that learns less: no n-grams of the prompt, or none of what is emitted."""

  reads_prompt: bool = struct.static(default=True)
  reads_text: bool = struct.static(default=True)

  @property
  def drafter(self) -> Drafter:
    sizes = self.window, self.ngram, self.guesses
    return LookaheadDrafter(*sizes, self.reads_prompt, self.reads_text, self.pool)


# --- text that repeats itself: the source files of this repository

LANGUAGE = 'code'  # the files' ending
HERE = pathlib.Path(__file__).parents[1]
SOURCES = ('fastdec', 'experiments', 'configs', 'tests')
BREAK = ' ⏎ '  # the end of a line
LINES = 20  # of a passage
HELD_OUT = {'dev': (4,), 'test': (9,), 'train': (0, 1, 2, 3, 5, 6, 7, 8)}  # files, modulo 10


def write_passages(folder: pathlib.Path) -> None:
  """Writes train.code, dev.code and test.code, a passage on each line."""
  files: list[pathlib.Path] = []
  for name in SOURCES:
    files += sorted((HERE / name).rglob('*.py'))
  if len(files) < 10:
    raise UserError(f'{HERE} has {len(files)} source files, too few: use the whole repository')
  for name, places in HELD_OUT.items():
    passages = []
    for i, file in enumerate(files):
      if i % 10 not in places:
        continue
      lines = [line.strip() for line in file.read_text().splitlines() if line.strip()]
      # A last passage of one line is left out: it may be a bracket, the same in many files.
      for start in range(0, len(lines) - 1, LINES):
        passages.append(BREAK.join(lines[start : start + LINES]))
    (folder / f'{name}.{LANGUAGE}').write_text('\n'.join(passages) + '\n')


# --- the table, the picture, and what the paper publishes (an A100)


# the method; window, n-gram and guesses; speed-up; tokens a call. None: not published
ABLATION: tuple[tuple[str, tuple[int, int, int] | None, float, float | None], ...] = (
  ('prompt lookup', None, 1.44, 1.55),
  ('lookahead, one guess', (30, 5, 1), 1.61, 1.79),
  ('lookahead', (15, 5, 15), 1.78, 1.96),
  ('lookahead, pool from the prompt too', (15, 5, 15), 1.88, 2.05),
  ('lookahead, narrow window', (1, 5, 30), 1.04, None),
)
SPEEDUPS = {
  'MT-Bench': '1.45 to 1.64',
  'GSM8K': '1.70 to 1.89',
  'HumanEval, completion': 'up to 2.25',
}
NOTES = (
  'W, N, G: columns of the window, tokens of an n-gram, guesses verified a call. Jacobi: N is the'
  ' block size. Prompt lookup: N is the longest suffix, G the tokens copied. Nodes: tokens of a'
  ' call, (W + G)(N - 1) for lookahead. Tokens: per call of a row, over all texts; speeds are over'
  ' some of them. Speed-up: compared with plain greedy decoding in turn, over whole texts, with the'
  ' slowest and fastest round in brackets; calls only: without the prompt.',
  'Pool: the source of the n-grams. Earlier outputs: texts that the model wrote for the dev set;'
  ' corpus: its training text.',
  report.SAME_NOTE,
  'The paper emits at most N - 1 tokens a call and verifies nothing in the first N - 2 calls; here'
  ' it is up to N, from the first call on. Its figures are for Llama models on an A100, where wide'
  ' calls cost little.',
)


def speeds(rows: Sequence[Row]) -> Drawn:
  """Makes the table: every row, then the published figures."""
  below = []
  for method, sizes, speedup, tokens in ABLATION:
    row = {'Method': f'{method} (paper)', 'Batch': '1', 'Speed-up': f'{speedup:.2f}×'}
    row |= dict(zip('WNG', map(str, sizes or ()), strict=False))
    below.append(row | {'Tokens': text(tokens, '.2f')})
  for where, speedup in SPEEDUPS.items():
    row = {'Method': f'lookahead on {where} (paper)', 'Batch': '1', 'Speed-up': f'{speedup}×'}
    below.append(row)
  return SPEEDS.of(rows, below=below, notes=report.repetition_note(rows))


def _order(row: Row) -> tuple[Any, ...]:
  """Returns what the rows of the table are sorted by."""
  places = list(METHODS).index(row['method']), row['batch'], list(POOLS).index(row['pool'])
  return *places, row['window'], row['ngram'], row['guesses']


def _pool_name(row: Row) -> str:
  """Returns the sources of a row's n-grams; '' for Jacobi, prompt lookup has no window."""
  if row['method'] == 'jacobi':
    return ''
  return POOLS[row['pool']].removeprefix('' if row['method'] == 'lookahead' else 'window, ')


SPEEDS = Table(
  'Lookahead decoding',
  (
    Column('Method', lambda row: METHODS[row['method']], names_row=True),
    Column('W', 'window', names_row=True),
    Column('N', 'ngram', names_row=True),
    Column('G', 'guesses', names_row=True),
    Column('Pool of', _pool_name, names_row=True),
    Column('Batch', 'batch', names_row=True),
    Column('Nodes', 'nodes'),
    Column('Tokens', 'tokens', '.2f'),
    dataclasses.replace(report.SPEED_UP, missing='not measured'),
    report.CALLS_ONLY,
    report.SAME,
  ),
  NOTES,
  ('task', 'split', 'sentences', 'timed', 'max_len', 'repeats', 'prompt', *report.MACHINE),
  sort=_order,
)
STYLES = {
  'lookahead': drawing.Style(drawing.BLUE, 'o', ''),
  'jacobi': drawing.Style(drawing.GREEN, 's', ''),
  'lookup': drawing.Style(drawing.ORANGE, 'P', ''),
}


def picture(rows: Sequence[Row], batch: int, path: pathlib.Path) -> None:
  """Draws tokens a call against nodes, at the batch size of the sweep. Filled: the pool of window,
  prompt and output; open: another."""
  figure, (panel,) = drawing.panels(1)
  drawing.dress(panel, 'What wider calls bring', 'tokens a call', 'nodes of a call')
  for row in rows:
    if row['batch'] == batch and row.get('tokens'):
      hollow = {} if row['pool'] == 'all' else {'markerfacecolor': 'none'}
      point = float(row['nodes']), row['tokens']
      drawing.curve(panel, [point], STYLES[row['method']], **hollow)
  theirs = []
  for _, sizes, _, tokens in ABLATION:
    if sizes is not None and tokens is not None:
      window, ngram, guesses = sizes
      theirs.append((float((window + guesses) * (ngram - 1)), tokens))
  drawing.curve(panel, theirs, drawing.Style(drawing.PUBLISHED, 'x', ''), 'Fu et al. 2024')
  for method in dict.fromkeys(row['method'] for row in rows):
    drawing.curve(panel, [], STYLES[method], METHODS[method])
  drawing.legend(figure, 4)
  drawing.save(figure, path)
