"""Incremental decoding, from the top: what a cache saves, and what a loop on the device saves.

fairseq and FasterTransformer claim it; models here have random weights and never end a text, so
nothing is trained. `incremental` is the page: it measures the rows that are missing and writes the
tables. Rows of 'growth' are time a token against length (`measure_growth`), those of 'layout' are
FasterTransformer's tables (`measure_search`). Results: results.jsonl, incremental.md and .png.
"""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from matplotlib.ticker import NullLocator

import fastdec as fd
from experiments.lab.report import MISSING, Column, Drawn, Table, between, text, write
from experiments.lab.rows import Row, is_failure, latest
from experiments.lab.train import Count, Counts, Rows, Seed, Tokens, check_lengths, each_once
from experiments.lab.workdir import Workdir
from fastdec import folders
from fastdec.decoding.protocol import Decoded
from fastdec.decoding.request import Settings
from fastdec.decoding.run import start
from fastdec.decoding.sampling import argmax
from fastdec.decoding.strategy import Strategy
from fastdec.evaluation import drawing, wallclock
from fastdec.evaluation.agreement import check_gaps, find_gaps
from fastdec.evaluation.calls import random_params
from fastdec.evaluation.wallclock import Timing
from fastdec.models.api import suppress
from fastdec.models.fconv import FConvConfig
from fastdec.models.transformer import TransformerConfig
from fastdec.struct import Bound
from fastdec.training.stage import digest

KEY = 'part', 'model', 'dtype', 'batch', 'length'  # fields that name a row
TITLES = {'transformer': 'Transformer', 'fconv': 'FConv'}
WAYS = {'uncached': 'no cache', 'host': 'cache, step by step', 'device': 'cache, whole loop'}
PRECISIONS = 'float32', 'bfloat16'  # compared with FasterTransformer's FP32 and FP16


# --- settings


@dataclasses.dataclass(frozen=True)
class Models:
  """Model sizes. The experiment sets EOS and dtype."""

  transformer: TransformerConfig
  fconv: FConvConfig


@dataclasses.dataclass(frozen=True)
class Growth:
  """Time a token against length."""

  models: tuple[Literal['transformer', 'fconv'], ...] = ('transformer', 'fconv')
  lengths: Counts = (32, 64, 128, 256, 512)  # tokens; each its own program
  batches: tuple[Rows, ...] = (1, 32)
  source: Count = 16  # tokens
  steps: Count = 4  # the most tokens of each length that are timed without a cache
  rounds: Count = 3

  def __post_init__(self) -> None:
    each_once('growth', models=self.models, lengths=self.lengths, batches=self.batches)


Sizes = tuple[tuple[Rows, Count], ...]  # sentences, and tokens of each


@dataclasses.dataclass(frozen=True)
class Layout:
  """FasterTransformer's tables: rows by type of numbers; a source has as many tokens."""

  model: TransformerConfig
  beams: Tokens = 4
  float32: Sizes = ((1, 32), (1, 64), (1, 128), (32, 32))
  bfloat16: Sizes = ((1, 32),)
  rounds: Count = 3


@dataclasses.dataclass(frozen=True)
class Incremental:
  """Settings of the page; presets are in configs/incremental.py."""

  models: Models
  layout: Layout
  growth: Growth = Growth()
  scale: str = ''
  seed: Seed = 0

  def __post_init__(self) -> None:
    for dtype in PRECISIONS:
      for _, tokens in getattr(self.layout, dtype):
        check_lengths({f'layout.{dtype}': tokens}, self.layout.model, 'layout.model')
    lengths = {'growth.lengths': max(self.growth.lengths), 'growth.source': self.growth.source}
    for name in self.growth.models:
      check_lengths(lengths, getattr(self.models, name), f'models.{name}')


# --- the page


def incremental(c: Incremental, work: Workdir) -> None:
  """The page from the top: its rows, the tables and the picture."""
  rows = work.fill(keys(c), functools.partial(figures, c), summary)
  if rows:
    drawn, measured = '', [*itertools.filterfalse(is_failure, rows)]
    if by_batch(measured):
      drawn = 'incremental.png'
      picture(measured, work.root / drawn)
    write(work, 'incremental', tables(rows), drawn)


def keys(c: Incremental) -> list[Any]:
  """The keys of the rows, quick ones first. All lengths of a model and batch are timed in turn,
  because their times are compared: each row names them all."""
  growth, layout = c.growth, c.layout
  plans: list[Row] = []
  settings = {'source': growth.source, 'steps_at_most': growth.steps, 'rounds': growth.rounds}
  for batch in sorted(growth.batches):
    for model in growth.models:
      plan = {'part': 'growth', 'model': model, 'dtype': 'float32', 'batch': batch}
      plans.append({**plan, 'lengths': tuple(sorted(growth.lengths)), **settings})
  settings = {'beams': layout.beams, 'rounds': layout.rounds}
  for dtype in PRECISIONS:
    for batch, tokens in getattr(layout, dtype):
      plan = {'part': 'layout', 'model': 'transformer', 'dtype': dtype, 'batch': batch}
      plans.append({**plan, 'lengths': (tokens,), **settings})

  # Sizes and the seed are all that random weights depend on.
  groups = []
  for plan in plans:
    models = digest({'model': make_model(c, plan).config, 'seed': c.seed})
    same = {**plan, 'seed': c.seed, 'models': models}
    groups.append([{'length': length, **same} for length in plan['lengths']])
  return groups


# --- rows


def figures(c: Incremental, missing: list[Row]) -> Iterator[Row]:
  """Measures the rows of a model and batch, one for each length.

  Times of 'growth' are for a token of all rows, those of 'layout' for an output.
    milliseconds: medians by way (`WAYS`).
    to_fastest: ratios to 'device', of rounds side by side; spread: the least and the largest.
    to_shortest: ratios to the shortest length.
    steps: tokens that were timed without a cache.
    parted: rows that the ways do not write alike; largest_gap: of logits where such a row parts.
  """
  measure = measure_growth if missing[0]['part'] == 'growth' else measure_search
  rows = dict(zip(missing[0]['lengths'], measure(c, missing[0]), strict=True))
  for key in missing:
    yield rows[key['length']]


def summary(row: Row) -> str:
  """A row in one line."""
  times = []
  for way, time in row['milliseconds'].items():
    times.append(f'{way} {time:.2f} ms')
  name = f'{row["part"]} of {TITLES[row["model"]]}, {row["dtype"]}, batch {row["batch"]}'
  return f'{name}, {row["length"]} tokens: {", ".join(times)}'


def measure_growth(c: Incremental, key: Row) -> list[Row]:
  """Times a token against length: three ways, all lengths in turn.

  Raises:
    UserError: the ways write different texts, and rounding does not explain it.
  """
  target, source = make_target(c, key, key['source'])
  functions, tokens, agreed = {}, {}, {}
  for length in key['lengths']:
    steps = min(key['steps_at_most'], length)
    whole = functools.partial(fd.decode, *target, source, fd.Greedy(), max_len=length)
    by_host = functools.partial(step_by_step, target, fd.Greedy(), source, length)
    text = whole().checked()
    uncached = functools.partial(rewrite, target, source, text.tokens, steps)
    others = [dataclasses.replace(text, tokens=uncached()), by_host()]
    agreed[length] = {'steps': steps, **compare_texts(target, source, text, others)}
    ways = {'uncached': (uncached, steps), 'host': (by_host, length), 'device': (whole, length)}
    for way, (function, count) in ways.items():
      functions[way, length], tokens[way, length] = function, count

  a_token = {}
  for name, timing in wallclock.measure(functions, key['rounds']).items():
    seconds = tuple(second / tokens[name] for second in timing.seconds)
    a_token[name] = Timing(seconds, timing.compile_seconds)
  rows, shortest = [], min(key['lengths'])
  for length in key['lengths']:
    times, growth = {}, {}
    for way in WAYS:
      times[way] = a_token[way, length]
      growth[way] = 1 / times[way].speedup_over(a_token[way, shortest])
    rows.append({**compare_ways(times), 'to_shortest': growth, **agreed[length]})
  return rows


def measure_search(c: Incremental, key: Row) -> list[Row]:
  """Times a row of FasterTransformer's tables: whole outputs of beam search, from the host and on
  the device."""
  (length,), search = key['lengths'], fd.Beam(key['beams'])
  target, source = make_target(c, key, length)
  functions = {
    'host': functools.partial(step_by_step, target, search, source, length),
    'device': functools.partial(fd.decode, *target, source, search, max_len=length),
  }
  by_host, whole = functions['host']().checked(), functions['device']().checked()
  times = compare_ways(wallclock.measure(functions, key['rounds']))
  return [{**times, 'parted': int((by_host.tokens != whole.tokens).any(1).sum())}]


def make_model(c: Incremental, key: Row) -> Any:
  """Makes the model of a row, which never ends a text."""
  config = c.layout.model if key['part'] == 'layout' else getattr(c.models, key['model'])
  return folders.model_of(dataclasses.replace(config, dtype=key['dtype'], eos_ids=()))


def make_target(c: Incremental, key: Row, tokens: int) -> tuple[Bound, Int[np.ndarray, 'b s']]:
  """Makes the model of a row with random weights, and random words of this length as its source."""
  model = make_model(c, key)
  generator, shape = np.random.default_rng(c.seed), (key['batch'], tokens)
  source = generator.integers(2, model.vocab_size, shape, np.int32)
  return Bound(model, random_params(model, c.seed, key['dtype'])), source


def compare_texts(
  target: Bound, source: np.ndarray, text: Decoded, others: Sequence[Decoded]
) -> Row:
  """Counts rows of the others that are not the text's, and finds the largest difference of logits
  where they part.

  Raises:
    UserError: rows part at a place that is not a near tie.
  """
  gaps = []
  for other in others:
    gaps.append(find_gaps(tuple(target), source, other, text))
    check_gaps(gaps[-1], len(source), target.module.config.dtype)
  largest = max(np.concatenate(gaps).tolist(), default=None)
  return {'parted': max(map(len, gaps)), 'largest_gap': largest}


def compare_ways(timings: Mapping[str, Timing]) -> Row:
  """Milliseconds by way, and how many times as long the others take as the whole loop."""
  times, ratios, spread = {}, {}, {}
  for way, time in timings.items():
    times[way] = time.milliseconds
    if way != 'device':
      ratios[way] = timings['device'].speedup_over(time)
      spread[way] = timings['device'].speedups_over(time)
  return {'milliseconds': times, 'to_fastest': ratios, 'spread': spread}


# --- ways to write the same text; the third is `fd.decode`


@jax.jit
def rewrite(
  target: Bound, source: Int[Array, 'b s'], tokens: Int[Array, 'b t'], steps: int | Array
) -> Int[Array, 'b t']:
  """Greedy decoding without a cache: for each token all t positions run again, as in training, and
  one is read.

  Args:
    target: an encoder-decoder.
    source: without padding.
    tokens: an existing output. `steps` evenly spaced positions are computed again, each from the
      tokens before it; steps=t computes all of them. A step takes equally long at every position.
    steps: an array, so that one compiled program serves every number of steps.
  """
  model, params = target
  t = tokens.shape[1]

  def one_more(i: Array, tokens: Int[Array, 'b t']) -> Int[Array, 'b t']:
    place = i * t // steps
    hidden = model.hidden(params, _pack('source', source) | _pack('target', tokens))
    logits = suppress(model.unembed(params, hidden[:, place]), model.suppressed_ids)
    return tokens.at[:, place].set(argmax(logits))

  return jax.lax.fori_loop(0, steps, one_more, tokens)


def _pack(side: str, tokens: Int[Array, 'b t']) -> dict[str, Int[Array, 'b t']]:
  """Rows of one sentence each, without padding, as `EncoderDecoder.hidden` takes them."""
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  return {side: tokens, f'{side}_segment': jnp.ones_like(tokens), f'{side}_position': positions}


def step_by_step(target: Bound, strategy: Strategy, inputs: Any, max_len: int) -> Decoded:
  """Decodes as `fd.decode`, but in a loop on the host, which reads after each step whether all rows
  are done. fairseq and FasterTransformer's Decoder op have theirs there."""
  model, params = target
  run = start(model, params, inputs, strategy, Settings(max_len=max_len))
  run.advance(0)
  while not run.is_over:
    run.advance(1)
  return run.finish(run.decoded, run.prompt)


# --- figures that FasterTransformer 2.0 publishes (its guide, NVIDIA DeepLearningExamples)
#
# Its Decoder op is one step of all layers, the loop being TensorFlow's; its Decoding op is the
# whole loop, beam search included. 8 heads of 64, 6 layers, 30,000 words; TensorFlow 1.x without
# XLA; means of 50 iterations. It has no V100 table of the Decoder op.

# Sentences and tokens; then milliseconds of a whole output by TensorFlow and by the op, in FP32 and
# in FP16, of each of `COLUMNS`. FP16 on V100 at 1, 128 is the figure of FP32 in the original too,
# most likely by mistake.
COLUMNS = 'T4 Decoder, beam 1, ms', 'T4 Decoding, beam 4, ms', 'V100 Decoding, beam 4, ms'
PUBLISHED = """
1 32    441.68 111.14 508.81 165.88    430.39 64.16 537.95 49.07      440.46 58.70 531.70 46.18
1 64    872.39 207.37 1038.71 326.69   876.24 135.42 1056.78 97.45    888.19 122.50 1065.76 93.84
1 128   1714.01 457.62 2082.92 661.00  1799.16 318.65 2145.74 240.85  1821.76 293.21 2076.63 293.21
32 32   470.93 119.87 568.83 167.42    597.42 217.61 646.07 128.39    543.27 101.35 630.55 73.37
64 32   503.57 153.62 579.21 183.74    789.22 395.85 769.17 246.89    648.27 157.54 793.83 106.77
128 32  614.59 245.94 641.98 238.27    1223.72 726.43 996.03 424.53   838.43 277.77 867.71 169.04
256 32  802.18 439.33 735.67 348.74    2188.00 1385.60 1599.58 781.38 1221.30 493.85 1101.36 290.44
"""


def read_published() -> dict[tuple[str, str, int, int], tuple[float, float]]:
  """Times of TensorFlow and of the op, by column, type of numbers, sentences and tokens."""
  figures = {}
  for line in PUBLISHED.strip().splitlines():
    batch, tokens, *times = line.split()
    for i, (column, dtype) in enumerate(itertools.product(COLUMNS, PRECISIONS)):
      pair = float(times[2 * i]), float(times[2 * i + 1])
      figures[column, dtype, int(batch), int(tokens)] = pair
  return figures


# --- the tables and the picture

CONDITIONS = 'config', 'seed', 'device', 'processor', 'cpus', 'xla_flags', 'jax', 'commit'
LETTERS = {'uncached': '(a)', 'host': '(b)', 'device': '(c)'}  # of the ways
GROWTH_NOTES = (
  '(a) no cache: one program a length, a loop on the device that runs all positions of that length'
  ' for every token; (b) the cache, one compiled step at a time from the host, which checks after'
  ' each step whether all rows are done; (c) the whole loop on the device, `fd.decode`. Times are'
  ' for a token of every row; medians of rounds in turn. (b) and (c) divide the time of whole'
  ' outputs, encoder included, by their tokens. For (a) a few steps are timed, without the encoder,'
  ' spread over positions that all cost the same.',
  'Random weights, no end token. All three write the same tokens, except at near ties.',
)
LAYOUT_NOTE = (
  'Ours: beam search, from the host a step at a time, as their Decoder op has it, and in one'
  ' program, as their Decoding op; whole outputs, encoder included, sources as long as the output.'
  ' Apart: sentences that the two write differently. Published, FasterTransformer 2.0: TensorFlow /'
  ' op = how many times faster (8 heads of 64, 6 layers, 30,000 words; the Decoder has no V100'
  ' table). Their FP16 is compared with our bfloat16; V100 FP16 at 1, 128 repeats the figure of'
  ' FP32 there too. The ratios are of the times; two are printed otherwise (T4 Decoder: 3.41 in'
  ' FP16 at 1, 128, and 2.01 in FP32 at 256, 32).'
)


def tables(rows: Sequence[Row]) -> list[Drawn]:
  """A table of 'growth' for each batch, and that of 'layout'; those that there are rows of."""
  newest, drawn = latest(rows, *KEY), []
  for batch, growth in by_batch(newest).items():
    drawn.append(growth_table(growth, batch))
  layout = [row for row in newest if row['part'] == 'layout']
  if layout:
    drawn.append(LAYOUT.of(layout))
  return drawn


def _time(heading: str, way: str, cell: Any = lambda row: row) -> Column:
  """The column of a way's milliseconds."""
  return Column(heading, lambda row: row['milliseconds'][way], '.2f', cell=cell)


def _ratio(heading: str, way: str, cell: Any = lambda row: row) -> Column:
  """The column of ratios to the fastest way, between the least and the largest of rounds."""

  def rounds(line: Any) -> str:
    row = cell(line) or {}
    return between(row['spread'][way]) if row.get('spread') else ''

  return Column(heading, lambda row: row['to_fastest'][way], '.2f', '×', cell=cell, beside=rounds)


def growth_table(rows: Sequence[Row], batch: int) -> Drawn:
  """The table of milliseconds for a token of every row, by length; the last line is the longest
  over the shortest."""
  lengths = sorted({row['length'] for row in rows})
  columns = [Column('Tokens', str, names_row=True)]
  last = {'Tokens': f'{lengths[-1]} / {lengths[0]}'}
  for model, title in TITLES.items():
    cells = {row['length']: row for row in rows if row['model'] == model}
    if not cells:
      continue
    for way, letter in LETTERS.items():
      columns.append(_time(f'{title} {letter}', way, cells.get))
    for way in ('uncached', 'host'):
      columns.append(_ratio(f'{title} {LETTERS[way]}/{LETTERS["device"]}', way, cells.get))
    growth = cells.get(lengths[-1], {}).get('to_shortest') or {}
    for way, ratio in growth.items():
      last[f'{title} {LETTERS[way]}'] = text(ratio, '.2f', '×')
  title = f'Milliseconds a token against length, batch {batch}'
  table = Table(title, columns, GROWTH_NOTES, ('source', 'steps', *CONDITIONS))
  return table.of(lengths, cells=rows, below=[last])


def _theirs(heading: str) -> Column:
  """A column of published figures, for the type, batch and length of our row."""

  def theirs(row: Row) -> str:
    times = read_published().get((heading, row['dtype'], row['batch'], row['length']))
    if times is None:
      return MISSING
    framework, op = times
    return f'{framework:.2f} / {op:.2f} = {framework / op:.2f}×'

  return Column(heading, lambda row: '', beside=theirs, names_row=True)


LAYOUT = Table(
  "FasterTransformer's tables",
  (
    Column('Numbers', 'dtype', names_row=True),
    Column('Batch, tokens', lambda row: f'{row["batch"]}, {row["length"]}', names_row=True),
    _time('Decoder (b), ms', 'host'),
    _time('Decoding (c), ms', 'device'),
    _ratio('(b)/(c)', 'host'),
    Column('Apart', 'parted'),
    *map(_theirs, COLUMNS),
  ),
  (LAYOUT_NOTE,),
  ('beams', *CONDITIONS),
  sort=lambda row: (PRECISIONS.index(row['dtype']), row['batch'], row['length']),
)


COLOURS = {'transformer': drawing.BLUE, 'fconv': drawing.VERMILION}
LINES = {'uncached': ('o', ':'), 'host': ('s', '--'), 'device': ('^', '-')}  # marker and line


def by_batch(rows: Sequence[Row]) -> dict[int, list[Row]]:
  """Returns the rows of the growth by their batch sizes, smallest first."""
  growth: dict[int, list[Row]] = {}
  for row in rows:
    if row['part'] == 'growth':
      growth.setdefault(row['batch'], []).append(row)
  return dict(sorted(growth.items()))


def picture(rows: Sequence[Row], path: pathlib.Path) -> None:
  """Draws time against length of finished rows, a panel a batch: a colour is a model, a line's
  style a way."""
  growth = by_batch(rows)
  figure, panels = drawing.panels(len(growth))
  for panel, (batch, at_batch) in zip(panels, growth.items(), strict=True):
    drawing.dress(
      panel, f'batch {batch}', 'milliseconds a token of every row', 'tokens of the output'
    )
    for model, title in TITLES.items():
      for way, line in LINES.items():
        points = []
        for row in at_batch:
          if row['model'] == model:
            points.append((row['length'], row['milliseconds'][way]))
        if points:
          style = drawing.Style(COLOURS[model], *line)
          drawing.curve(panel, sorted(points), style, f'{title}, {WAYS[way]}')
    panel.set_xscale('log')
    panel.set_yscale('log')
    lengths = sorted({row['length'] for row in at_batch})
    panel.set_xticks(lengths, map(str, lengths))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter('{x:g}')
  drawing.legend(figure, 2)
  drawing.save(figure, path)
