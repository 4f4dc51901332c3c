"""Tables of what incremental decoding saves, what FasterTransformer 2.0 publishes beside, before they are drawn."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

from experiments.lab.cells import conditions_note, latest
from experiments.lab.report import MISSING, Entry, Table, text
from experiments.papers.incremental import published
from experiments.papers.incremental.cells import WAYS, SavingCell

PRECISIONS = {'float32': 'FP32', 'bfloat16': 'FP16'}  # what of theirs stands beside ours
TITLES = {'transformer': 'Transformer', 'fconv': 'FConv'}
CONDITIONS = ('config', 'seed', 'device', 'processor', 'cpus', 'xla_flags', 'jax', 'commit')
Cells = Iterable[SavingCell]


def tables(cells: Cells) -> list[Table]:
  """All that there are cells for."""
  found = list(latest(cells).values())
  parts = {part: [cell for cell in found if cell.part == part] for part in ('growth', 'layout', 'launches', 'encoder')}
  batches = sorted({cell.batch for cell in parts['growth']})
  drawn = [growth_table(parts['growth'], batch) for batch in batches]
  more = (('layout', layout_table), ('launches', launches_table), ('encoder', encoder_table))
  return drawn + [make(parts[part]) for part, make in more if parts[part]]


def growth_table(cells: Sequence[SavingCell], batch: int) -> Table:
  """Milliseconds for a token of every row, by length; the last line is the longest over the shortest."""
  found = {(cell.model, cell.length): cell for cell in cells if cell.batch == batch}
  models, lengths = (list(dict.fromkeys(key[i] for key in sorted(found))) for i in (0, 1))
  models.sort(key=list(TITLES).index)
  lengths.sort()
  rows = []
  for length in lengths:
    cells_of = [found.get((model, length)) for model in models]
    figures = [_figures(cell, tuple(WAYS)) if cell else [MISSING] * 5 for cell in cells_of]
    rows.append(tuple(map(Entry, (str(length), *itertools.chain(*figures)))))
  last = [found.get((model, lengths[-1])) for model in models]
  ratios = [(cell and cell.to_shortest) or {} for cell in last]
  grown = [text(one.get(way), '.2f', '×') for one in ratios for way in (*WAYS, None, None)]
  rows.append((Entry(f'{lengths[-1]} / {lengths[0]}'), *map(Entry, grown)))
  columns = ('(a)', '(b)', '(c)', '(a)/(c)', '(b)/(c)')
  header = ('Tokens', *(f'{TITLES[model]} {column}' for model in models for column in columns))
  title = f'Milliseconds a token against length, batch {batch}'
  return Table(
    title, header, tuple(rows), (*_growth_notes(cells, batch), *conditions_note(cells, ('source', *CONDITIONS)))
  )


def _growth_notes(cells: Sequence[SavingCell], batch: int) -> list[str]:
  done = [cell for cell in cells if cell.batch == batch and cell.error is None]
  if not done:
    return []
  steps = max((cell.steps for cell in done), default=0)
  parted = sum(cell.parted for cell in done)
  gap = max((cell.largest_gap or 0 for cell in done), default=0)
  ties = f'but for {parted} rows that part at near ties, by at most {gap:.1e} in logits'
  same = ties if parted else 'token for token'
  return [
    '(a) no cache: one program a length, a loop on the device that runs all positions of that length for every token;'
    ' (b) the cache, one compiled step at a time from the host, which looks at each whether all rows are done; (c) the'
    ' whole loop on the device, `fd.decode`. A token of every row; medians of rounds in turn. (b) and (c) are whole'
    f' outputs, encoder included, over their tokens. Of (a) at most {steps} tokens of each length are timed, evenly'
    ' spread over its positions, which all cost the same; the source is the same for all, so its encoder is'
    " no part of that loop where the compiler takes it out, as XLA's for CPUs does.",
    f'Random weights, no end token. The three write the same {same}; of (a) that is known of the timed tokens.',
  ]


def layout_table(cells: Sequence[SavingCell]) -> Table:
  """Whole outputs of beam search, ours and the published ones."""
  order = lambda cell: (list(PRECISIONS).index(cell.dtype), cell.batch, cell.length)
  header = (
    'Numbers', 'Batch, tokens', 'Decoder (b), ms', 'Decoding (c), ms', '(b)/(c)', 'T4 Decoder, beam 1, ms',
    'T4 Decoding, beam 4, ms', 'V100 Decoding, beam 4, ms',
  )  # fmt: skip
  notes = (
    'Ours: beam search, from the host a step at a time, as their Decoder op has it, and in one program, as their'
    ' Decoding op; whole outputs, encoder included, sources as long as the output. Published, FasterTransformer 2.0:'
    ' TensorFlow / op = how many times faster (8 heads of 64, 6 layers, 30,000 words; the Decoder with beam 1; there'
    ' is no V100 table of it). Beside our bfloat16 stands their FP16; V100 FP16 at 1, 128 repeats the figure of FP32'
    ' there too, and two ratios are printed otherwise (T4 Decoder: 3.41 in FP16 at 1, 128, and 2.01 in FP32 at 256,'
    ' 32): these are of the times.',
  )
  parted = [cell for cell in cells if cell.parted]
  differ = ', '.join(f'{cell.parted} of {cell.batch} in {cell.dtype} at {cell.batch}, {cell.length}' for cell in parted)
  same = f'Sentences that (b) and (c) write differently: {differ or "none"}.'
  rows = tuple(_layout_row(cell) for cell in sorted(cells, key=order))
  return Table(
    "FasterTransformer's tables", header, rows, (*notes, same, *conditions_note(cells, ('beams', *CONDITIONS)))
  )


def _layout_row(cell: SavingCell) -> tuple[Entry, ...]:
  key = PRECISIONS[cell.dtype], cell.batch, cell.length
  theirs = [_times(table.get(key)) for table in (published.DECODER_T4, published.DECODING_T4, published.DECODING_V100)]
  start = (cell.dtype, f'{cell.batch}, {cell.length}', *_figures(cell, ('host', 'device')))
  return (*map(Entry, start), *(Entry('', one) for one in theirs))


def _times(times: published.Times | None) -> str:
  return MISSING if times is None else f'{times.framework:.2f} / {times.op:.2f} = {times.speedup:.2f}×'


def launches_table(cells: Sequence[SavingCell]) -> Table:
  """What a step and a layer of it launch, compiled and not."""
  platforms = {cell.conditions.get('platform') for cell in cells if cell.error is None}
  unit = 'Fused operations' if platforms <= {'cpu'} else 'Kernels'
  header = ('Model', f'{unit} a step', f'{unit} a layer', 'Primitives a step', 'Primitives a layer')
  rows = [_launches_row(cell) for cell in cells]
  before, after = published.LAUNCHES
  rows.append(tuple(map(Entry, ('FasterTransformer (talk)', MISSING, str(after), MISSING, f'{before} (TensorFlow)'))))
  notes = (
    'A greedy step at batch 1; of a layer: what one decoder layer more adds. Compiled: instructions of the optimised'
    ' program that run by themselves (on a GPU kernels and library calls, on a CPU fusions, products, copies).'
    ' Primitives: operations of the traced program, what op-by-op execution would launch.',
  )
  return Table('What a step launches', header, tuple(rows), (*notes, *conditions_note(cells, CONDITIONS)))


def _launches_row(cell: SavingCell) -> tuple[Entry, ...]:
  counts: Mapping[str, int] = cell.counts or {}
  figures = [text(counts.get(name), 'd') for name in ('step', 'layer', 'eager_step', 'eager_layer')]
  return tuple(map(Entry, (TITLES[cell.model], *(figures if cell.counts else (_failed(cell), *figures[1:])))))


def encoder_table(cells: Sequence[SavingCell]) -> Table:
  """The encoder alone."""
  rows = []
  for cell in sorted(cells, key=lambda cell: (list(TITLES).index(cell.model), cell.batch)):
    figures = _figures(cell, ('jitted', 'eager'))
    rows.append(tuple(map(Entry, (TITLES[cell.model], str(cell.batch), str(cell.length), *figures))))
  header = ('Model', 'Batch', 'Source', 'Compiled, ms', 'Op by op, ms', 'Ratio')
  note = "Op by op: one primitive at a time (`jax.disable_jit`), started from Python; its time, and linen's, is in it."
  return Table('The encoder alone', header, tuple(rows), (note, *conditions_note(cells, CONDITIONS)))


def _figures(cell: SavingCell, ways: Sequence[str]) -> list[str]:
  """Milliseconds by way, and ratios to one of them, in the same order; or why there are none."""
  compared = [way for way in ways if way in ('uncached', 'host', 'eager')]
  if cell.milliseconds is None:
    return [_failed(cell), *[MISSING] * (len(ways) + len(compared) - 1)]
  times = [text(cell.milliseconds[way], '.2f') for way in ways]
  return [*times, *(text(cell.to_fastest[way], '.2f', '×') for way in compared)]


def _failed(cell: SavingCell) -> str:
  return f'failed: {" ".join(cell.error.split())}'
