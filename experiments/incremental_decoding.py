"""Incremental decoding, from the top: what a cache saves, and what a loop on the device saves.

fairseq and FasterTransformer 2.0 claim it; models here have random weights and never end a text.
Two parts: time a token against length, and FasterTransformer's tables. Results: results.jsonl,
incremental.md, incremental.png.
"""

import dataclasses
import functools
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
from experiments.lab.rows import Row, latest
from experiments.lab.stage import digest
from experiments.lab.train import Count, Counts, Seed, each_once
from experiments.lab.workdir import Workdir
from fastdec import folders
from fastdec.decoding.decode import start, step
from fastdec.decoding.inputs import bucket_of, checked, padded
from fastdec.decoding.protocol import Decoded
from fastdec.decoding.sampling import argmax
from fastdec.decoding.strategy import Strategy
from fastdec.errors import UserError
from fastdec.evaluation import drawing, wallclock
from fastdec.evaluation.agreement import check_partings, partings
from fastdec.evaluation.calls import random_params
from fastdec.evaluation.wallclock import Timing
from fastdec.models.api import suppress
from fastdec.models.fconv import FConvConfig
from fastdec.models.transformer import TransformerConfig
from fastdec.struct import Bound

KEY = 'part', 'model', 'dtype', 'batch', 'length'  # fields that name a row
PLAN = 'part', 'model', 'dtype', 'batch', 'lengths'  # of a plan, which is a row for each length
TITLES = {'transformer': 'Transformer', 'fconv': 'FConv'}
WAYS = {'uncached': 'no cache', 'host': 'cache, step by step', 'device': 'cache, whole loop'}
PRECISIONS = {'float32': 'FP32', 'bfloat16': 'FP16'}  # theirs that stands beside ours


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
  batches: Counts = (1, 32)
  source: Count = 16  # tokens
  steps: Count = 4  # without a cache, at most this many tokens of each length are timed
  rounds: Count = 3

  def __post_init__(self) -> None:
    each_once('growth', **{name: getattr(self, name) for name in ('models', 'lengths', 'batches')})


Sizes = tuple[tuple[Count, Count], ...]  # sentences, and tokens of each


@dataclasses.dataclass(frozen=True)
class Layout:
  """FasterTransformer's tables: rows by type of numbers; a source has as many tokens."""

  model: TransformerConfig
  beams: Count = 4
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
    layout, asked = self.layout, []
    for dtype in PRECISIONS:
      for _, tokens in getattr(layout, dtype):
        asked.append((f'layout.{dtype}', tokens, 'layout.model', layout.model))
    for name in self.growth.models:
      model = f'models.{name}', getattr(self.models, name)
      asked.append(('growth.lengths', max(self.growth.lengths), *model))
      asked.append(('growth.source', self.growth.source, *model))
    for setting, tokens, name, model in asked:
      if tokens > (most := model.max_positions):
        given = f'config.{setting} has {tokens} tokens, and config.{name}.max_positions={most}'
        raise UserError(f'{given}: give fewer tokens, or more positions')


# --- the page


def incremental(c: Incremental, work: Workdir) -> None:
  """The page from the top: its rows, the tables and the picture."""
  groups = [keys(c, plan) for plan in plans(c)]
  rows = work.fill(groups, functools.partial(figures, c), summary)
  if rows:
    has_growth = any(row['part'] == 'growth' and row.get('error') is None for row in rows)
    draw = functools.partial(picture, rows) if has_growth else None
    write(work.root / 'incremental', work.console, tables(rows), draw)


def plans(c: Incremental) -> list[Row]:
  """The measurements, quick ones first. All lengths of a model and batch are timed in turn, because
  their times are compared."""
  found = []

  def add(part: str, model: str, dtype: str, batch: int, *lengths: int) -> None:
    found.append(dict(zip(PLAN, (part, model, dtype, batch, lengths), strict=True)))

  for batch in sorted(c.growth.batches):
    for model in c.growth.models:
      add('growth', model, 'float32', batch, *sorted(c.growth.lengths))
  for dtype in PRECISIONS:
    for batch, tokens in getattr(c.layout, dtype):
      add('layout', 'transformer', dtype, batch, tokens)
  return found


def keys(c: Incremental, plan: Row) -> list[Row]:
  """Fields that the rows of a plan are found by. Random weights are nothing but sizes and seed."""
  asked: Row = {'beams': c.layout.beams, 'rounds': c.layout.rounds}
  if plan['part'] == 'growth':
    growth = c.growth
    asked = {'source': growth.source, 'steps_at_most': growth.steps, 'rounds': growth.rounds}
  asked['models'] = digest({'model': model_of(c, plan).config, 'seed': c.seed})
  # 'lengths': all are timed in turn, so that a figure depends on the others
  same = {name: plan[name] for name in PLAN} | {'seed': c.seed, **asked}
  return [{'length': length, **same} for length in plan['lengths']]


# --- measurement


def figures(c: Incremental, missing: list[Row]) -> Iterator[Row]:
  """Measures the rows of a plan, one for each of its lengths.

  Times of 'growth' are for a token of all rows, those of 'layout' for an output.
    milliseconds: medians by way (`WAYS`).
    to_fastest: ratios to 'device', of rounds side by side; spread: the least and the largest.
    to_shortest: ratios to the shortest length.
    steps: tokens that were timed without a cache.
    parted: rows that the ways do not write alike; largest_gap: of logits where such a row parts.
  """
  plan = {name: missing[0][name] for name in PLAN}
  measure = grown if plan['part'] == 'growth' else searched
  of_lengths = dict(zip(plan['lengths'], measure(c, plan), strict=True))
  for key in missing:
    yield of_lengths[key['length']]


def summary(row: Row) -> str:
  """A row in one line."""
  times = ', '.join(f'{way} {time:.2f} ms' for way, time in row['milliseconds'].items())
  name = f'{row["part"]} of {TITLES[row["model"]]}, {row["dtype"]}, batch {row["batch"]}'
  return f'{name}, {row["length"]} tokens: {times}'


def grown(c: Incremental, plan: Row) -> list[Row]:
  """Times a token against length: three ways, all lengths in turn.

  Raises:
    UserError: the ways write different texts, and rounding does not explain it.
  """
  target, lengths = target_of(c, plan), plan['lengths']
  source = source_of(c, plan, c.growth.source)
  steps = {length: min(c.growth.steps, length) for length in lengths}
  functions, agreed = {}, {}
  for length in lengths:
    whole = functools.partial(fd.decode, *target, source, fd.Greedy(), max_len=length)
    by_host = functools.partial(step_by_step, target, fd.Greedy(), source, length)
    written = whole().checked()
    anew = functools.partial(rewritten, target, source, written.tokens, steps[length])
    others = [dataclasses.replace(written, tokens=anew()), by_host()]
    agreed[length] = agreement(target, source, written, others)
    functions |= {('uncached', length): anew, ('host', length): by_host, ('device', length): whole}
  a_token = {}
  for (way, length), timing in wallclock.measure(functions, c.growth.rounds).items():
    tokens = steps[length] if way == 'uncached' else length
    seconds = tuple(second / tokens for second in timing.seconds)
    a_token[way, length] = Timing(seconds, timing.compile_seconds)
  rows = []
  for length in lengths:
    times = {way: a_token[way, length] for way in WAYS}
    growth = {way: 1 / one.speedup_over(a_token[way, min(lengths)]) for way, one in times.items()}
    figures = {'to_shortest': growth, 'steps': steps[length], **agreed[length]}
    rows.append({**compared(times), **figures})
  return rows


def searched(c: Incremental, plan: Row) -> list[Row]:
  """Times a row of FasterTransformer's tables: whole outputs of beam search, from the host and on
  the device."""
  target, (length,), search = target_of(c, plan), plan['lengths'], fd.Beam(c.layout.beams)
  source = source_of(c, plan, length)
  functions = {
    'host': functools.partial(step_by_step, target, search, source, length),
    'device': functools.partial(fd.decode, *target, source, search, max_len=length),
  }
  by_host, whole = (function().checked().tokens for function in functions.values())
  times = compared(wallclock.measure(functions, c.layout.rounds))
  return [{**times, 'parted': int((by_host != whole).any(1).sum())}]


def model_of(c: Incremental, plan: Row) -> Any:
  """The model of a plan, which never ends a text."""
  config = c.layout.model if plan['part'] == 'layout' else getattr(c.models, plan['model'])
  return folders.model_of(dataclasses.replace(config, dtype=plan['dtype'], eos_ids=()))


def target_of(c: Incremental, plan: Row) -> Bound:
  """The model of a plan with random weights."""
  model = model_of(c, plan)
  return Bound(model, random_params(model, c.seed, plan['dtype']))


def source_of(c: Incremental, plan: Row, tokens: int) -> Int[np.ndarray, 'b s']:
  """Random words."""
  words = model_of(c, plan).vocab_size
  return np.random.default_rng(c.seed).integers(2, words, (plan['batch'], tokens), np.int32)


def agreement(
  target: Bound, source: np.ndarray, text: Decoded, others: Sequence[Decoded]
) -> dict[str, Any]:
  """Counts rows of the others that are not the text's, and finds the largest difference of logits
  where they part.

  Raises:
    UserError: rows part where there is no near tie.
  """
  found = [partings(tuple(target), source, other, text) for other in others]
  for gaps in found:
    check_partings(gaps, len(source), target.module.config.dtype)
  gaps = np.concatenate(found)
  return {'parted': max(map(len, found)), 'largest_gap': float(gaps.max()) if gaps.size else None}


def compared(timings: Mapping[str, Timing]) -> Row:
  """Milliseconds by way, and how many times as long the others take as the whole loop."""
  times = {way: time.milliseconds for way, time in timings.items()}
  ratios, spread = {}, {}
  for way, time in timings.items():
    if way != 'device':
      ratios[way] = timings['device'].speedup_over(time)
      spread[way] = timings['device'].speedups_over(time)
  return {'milliseconds': times, 'to_fastest': ratios, 'spread': spread}


# --- ways to write the same text; the third is `fd.decode`


@jax.jit
def rewritten(
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
    hidden = model.hidden(params, _packed('source', source) | _packed('target', tokens))
    logits = suppress(model.unembed(params, hidden[:, place]), model.suppressed_ids)
    return tokens.at[:, place].set(argmax(logits))

  return jax.lax.fori_loop(0, steps, one_more, tokens)


def _packed(side: str, tokens: Int[Array, 'b t']) -> dict[str, Int[Array, 'b t']]:
  """Rows of one sentence each, without padding, as `EncoderDecoder.hidden` takes them."""
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  return {side: tokens, f'{side}_segment': jnp.ones_like(tokens), f'{side}_position': positions}


def step_by_step(target: Bound, strategy: Strategy, inputs: Any, max_len: int) -> Decoded:
  """Decodes as `fd.decode`, but in a loop on the host, which reads after each step whether all rows
  are done. fairseq and FasterTransformer's Decoder op have theirs there."""
  model = target.module
  _, prompt, _ = checked(model, inputs, None, None, max_len, None)
  state, is_over = start(target, strategy, padded(model, prompt), None, bucket_of(model, max_len))
  while not is_over:
    state, is_over = step(target, strategy, state)
  return _result(strategy, state).resized(max_len, model.pad_id)


@jax.jit
def _result(strategy: Strategy, state: Any) -> Decoded:
  return strategy.result(state)


# --- figures that FasterTransformer 2.0 publishes (its guide, NVIDIA DeepLearningExamples)
#
# Its Decoder op is one step of all layers, the loop being TensorFlow's; its Decoding op is the
# whole loop, beam search included. 8 heads of 64, 6 layers, 30,000 words; TensorFlow 1.x without
# XLA; means of 50 iterations. There is no V100 table of the Decoder op.

# Milliseconds of a whole output, TensorFlow's and the op's, by precision, sentences and tokens.
Published = dict[tuple[str, int, int], tuple[float, float]]


def _parse(table: str) -> Published:
  figures = {}
  for line in table.strip().splitlines():
    batch, tokens, *times = line.split()
    for precision, pair in (('FP32', times[:2]), ('FP16', times[2:])):
      figures[precision, int(batch), int(tokens)] = tuple(map(float, pair))
  return figures


# batch, tokens: TensorFlow FP32, op FP32, TensorFlow FP16, op FP16
DECODER_T4 = _parse("""
1    32   441.68   111.14   508.81   165.88
1    64   872.39   207.37   1038.71  326.69
1    128  1714.01  457.62   2082.92  661.00
32   32   470.93   119.87   568.83   167.42
64   32   503.57   153.62   579.21   183.74
128  32   614.59   245.94   641.98   238.27
256  32   802.18   439.33   735.67   348.74
""")  # beam 1
DECODING_T4 = _parse("""
1    32   430.39   64.16    537.95   49.07
1    64   876.24   135.42   1056.78  97.45
1    128  1799.16  318.65   2145.74  240.85
32   32   597.42   217.61   646.07   128.39
64   32   789.22   395.85   769.17   246.89
128  32   1223.72  726.43   996.03   424.53
256  32   2188.00  1385.60  1599.58  781.38
""")  # beam 4
DECODING_V100 = _parse("""
1    32   440.46   58.70    531.70   46.18
1    64   888.19   122.50   1065.76  93.84
1    128  1821.76  293.21   2076.63  293.21
32   32   543.27   101.35   630.55   73.37
64   32   648.27   157.54   793.83   106.77
128  32   838.43   277.77   867.71   169.04
256  32   1221.30  493.85   1101.36  290.44
""")  # beam 4; FP16 at 1, 128 is the figure of FP32 in the original too, most likely by mistake


# --- the tables and the picture

CONDITIONS = 'config', 'seed', 'device', 'processor', 'cpus', 'xla_flags', 'jax', 'commit'
LETTERS = {'uncached': '(a)', 'host': '(b)', 'device': '(c)'}  # of the ways
GROWTH_NOTES = (
  '(a) no cache: one program a length, a loop on the device that runs all positions of that length'
  ' for every token; (b) the cache, one compiled step at a time from the host, which looks at each'
  ' whether all rows are done; (c) the whole loop on the device, `fd.decode`. A token of every row;'
  ' medians of rounds in turn. (b) and (c) are whole outputs, encoder included, over their tokens.'
  ' Of (a) a few steps are timed, spread over positions that all cost the same, without encoder.',
  'Random weights, no end token. The three write the same token for token, but for near ties.',
)
LAYOUT_NOTE = (
  'Ours: beam search, from the host a step at a time, as their Decoder op has it, and in one'
  ' program, as their Decoding op; whole outputs, encoder included, sources as long as the output.'
  ' Apart: sentences that the two write differently. Published, FasterTransformer 2.0: TensorFlow /'
  ' op = how many times faster (8 heads of 64, 6 layers, 30,000 words; the Decoder has no V100'
  ' table). Their FP16 stands beside our bfloat16; V100 FP16 at 1, 128 repeats the figure of FP32'
  ' there too. The ratios are of the times; two are printed otherwise (T4 Decoder: 3.41 in FP16 at'
  ' 1, 128, and 2.01 in FP32 at 256, 32).'
)


def tables(rows: Sequence[Row]) -> list[Drawn]:
  """The tables of all parts that there are rows of."""
  found: list[Row] = []
  for row in rows:
    # A plan that failed is a row without a length: it stands for all lengths of its plan.
    lengths = [row['length']] if 'length' in row else row['lengths']
    found += [{**row, 'length': length} for length in lengths]
  found = latest(found, *KEY)
  growth = [row for row in found if row['part'] == 'growth']
  layout = [row for row in found if row['part'] == 'layout']
  drawn = []
  for batch in sorted({row['batch'] for row in growth}):
    drawn.append(growth_table([row for row in growth if row['batch'] == batch], batch))
  return [*drawn, LAYOUT.of(layout)] if layout else drawn


def _time(heading: str, way: str, **found: Any) -> Column:
  """The column of a way's milliseconds."""
  return Column(heading, lambda row: row['milliseconds'][way], '.2f', **found)


def _ratio(heading: str, way: str, cell: Any = lambda row: row) -> Column:
  """The column of ratios to the fastest way, between the least and the largest of rounds."""

  def rounds(given: Any) -> str:
    row = cell(given) or {}
    return between(row['spread'][way]) if row.get('spread') else ''

  return Column(heading, lambda row: row['to_fastest'][way], '.2f', '×', cell=cell, beside=rounds)


def growth_table(rows: Sequence[Row], batch: int) -> Drawn:
  """The table of milliseconds for a token of every row, by length; the last line is the longest
  over the shortest."""
  lengths = sorted({row['length'] for row in rows})
  columns = [Column('Tokens', str, names_row=True)]
  growths = {'Tokens': f'{lengths[-1]} / {lengths[0]}'}
  for model in _models(rows):
    own, title = {row['length']: row for row in rows if row['model'] == model}, TITLES[model]
    columns += [_time(f'{title} {letter}', way, cell=own.get) for way, letter in LETTERS.items()]
    for way in ('uncached', 'host'):
      columns.append(_ratio(f'{title} {LETTERS[way]}/{LETTERS["device"]}', way, own.get))
    ratios = own.get(lengths[-1], {}).get('to_shortest') or {}
    growths |= {f'{title} {LETTERS[way]}': text(ratio, '.2f', '×') for way, ratio in ratios.items()}
  title = f'Milliseconds a token against length, batch {batch}'
  table = Table(title, columns, GROWTH_NOTES, ('source', 'steps', *CONDITIONS))
  return table.of(lengths, cells=rows, below=[growths])


def _models(rows: Sequence[Row]) -> list[str]:
  return [model for model in TITLES if any(row['model'] == model for row in rows)]


def _theirs(heading: str, table: Published) -> Column:
  """A column that has only published figures: those beside our numbers, batch and length."""

  def theirs(row: Row) -> str:
    times = table.get((PRECISIONS[row['dtype']], row['batch'], row['length']))
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
    _theirs('T4 Decoder, beam 1, ms', DECODER_T4),
    _theirs('T4 Decoding, beam 4, ms', DECODING_T4),
    _theirs('V100 Decoding, beam 4, ms', DECODING_V100),
  ),
  (LAYOUT_NOTE,),
  ('beams', *CONDITIONS),
  sort=lambda row: (list(PRECISIONS).index(row['dtype']), row['batch'], row['length']),
)


COLOURS = {'transformer': drawing.BLUE, 'fconv': drawing.VERMILION}
LINES = {'uncached': ('o', ':'), 'host': ('s', '--'), 'device': ('^', '-')}  # marker and line


def picture(rows: Sequence[Row], path: pathlib.Path) -> None:
  """Draws time against length, a panel a batch: a colour is a model, a line's style a way."""
  found = [row for row in rows if row['part'] == 'growth' and row.get('error') is None]
  batches = sorted({row['batch'] for row in found})
  figure, panels = drawing.panels(len(batches))
  for panel, batch in zip(panels, batches, strict=True):
    at_batch = [row for row in found if row['batch'] == batch]
    drawing.dress(
      panel, f'batch {batch}', 'milliseconds a token of every row', 'tokens of the output'
    )
    for model in _models(at_batch):
      for way, line in LINES.items():
        own = [row for row in at_batch if row['model'] == model]
        points = sorted((row['length'], row['milliseconds'][way]) for row in own)
        style = drawing.Style(COLOURS[model], *line)
        drawing.curve(panel, points, style, f'{TITLES[model]}, {WAYS[way]}')
    panel.set_xscale('log')
    panel.set_yscale('log')
    lengths = sorted({row['length'] for row in at_batch})
    panel.set_xticks(lengths, map(str, lengths))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter('{x:g}')
  drawing.legend(figure, 2)
  drawing.save(figure, path)
