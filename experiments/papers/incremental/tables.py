"""Tables of what incremental decoding saves, what FasterTransformer 2.0 publishes beside, before
they are drawn."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from experiments.lab.cells import latest
from experiments.lab.report import MISSING, Column, Drawn, Table, between, text
from experiments.papers.incremental import published
from experiments.papers.incremental.cells import SavingCell

PRECISIONS = {'float32': 'FP32', 'bfloat16': 'FP16'}  # what of theirs stands beside ours
TITLES = {'transformer': 'Transformer', 'fconv': 'FConv'}
CONDITIONS = ('config', 'seed', 'device', 'processor', 'cpus', 'xla_flags', 'jax', 'commit')
LETTERS = {'uncached': '(a)', 'host': '(b)', 'device': '(c)'}  # of the ways to decode
Cells = Iterable[SavingCell]


def tables(cells: Cells) -> list[Drawn]:
  """All that there are cells for."""
  found = list(latest(cells).values())
  parts = {
    part: [cell for cell in found if cell.part == part]
    for part in ('growth', 'layout', 'launches', 'encoder')
  }
  batches = sorted({cell.batch for cell in parts['growth']})
  drawn = [growth_table(parts['growth'], batch) for batch in batches]
  more = (('layout', layout_table), ('launches', launches_table), ('encoder', encoder_table))
  return drawn + [make(parts[part]) for part, make in more if parts[part]]


def growth_table(cells: Sequence[SavingCell], batch: int) -> Drawn:
  """Milliseconds for a token of every row, by length; the last line is the longest over the
  shortest."""
  found = {(cell.model, cell.length): cell for cell in cells if cell.batch == batch}
  lengths = sorted({length for _, length in found})
  columns = [Column('Tokens', str, names_row=True)]
  grown = {'Tokens': f'{lengths[-1]} / {lengths[0]}'}
  for model in sorted({model for model, _ in found}, key=list(TITLES).index):
    own = {length: cell for (name, length), cell in found.items() if name == model}
    columns += _growth_columns(TITLES[model], own)
    longest = own.get(lengths[-1])
    ratios = (longest and longest.to_shortest) or {}
    grown |= {
      f'{TITLES[model]} {LETTERS[way]}': text(ratio, '.2f', '×') for way, ratio in ratios.items()
    }
  title = f'Milliseconds a token against length, batch {batch}'
  table = Table(title, columns, _growth_notes(cells, batch), ('source', *CONDITIONS))
  return table.of(lengths, cells=cells, below=[grown])


def _growth_columns(model: str, own: Mapping[int, SavingCell]) -> list[Column]:
  """The columns of one model, whose cells are found by length."""
  device = LETTERS['device']
  times = [_time(f'{model} {letter}', way, own.get) for way, letter in LETTERS.items()]
  ratios = [
    _ratio(f'{model} {LETTERS[way]}/{device}', way, own.get) for way in ('uncached', 'host')
  ]
  return [*times, *ratios]


def _itself(cell: Any) -> Any:
  return cell


def _time(heading: str, way: str, cell: Callable[[Any], SavingCell | None] = _itself) -> Column:
  """Milliseconds of a way."""
  return Column(heading, lambda found: found.milliseconds[way], '.2f', cell=cell)


def _ratio(heading: str, way: str, cell: Callable[[Any], SavingCell | None] = _itself) -> Column:
  """How many times longer a way takes than the fastest, between the least and the largest ratio of
  rounds."""

  def rounds(row: Any) -> str:
    found = cell(row)
    return '' if found is None or found.spread is None else between(found.spread[way])

  return Column(heading, lambda found: found.to_fastest[way], '.2f', '×', cell=cell, beside=rounds)


def _growth_notes(cells: Sequence[SavingCell], batch: int) -> list[str]:
  done = [cell for cell in cells if cell.batch == batch and cell.error is None]
  if not done:
    return []
  steps = max((cell.steps or 0 for cell in done), default=0)
  parted = sum(cell.parted or 0 for cell in done)
  gap = max((cell.largest_gap or 0 for cell in done), default=0)
  ties = f'except {parted} rows that part at near ties, by at most {gap:.1e} in logits'
  same = ties if parted else 'token for token'
  return [
    '(a) no cache: one program a length, a loop on the device that runs all positions of that'
    ' length for every token;'
    ' (b) the cache, one compiled step at a time from the host, which looks at each whether all'
    ' rows are done; (c) the'
    ' whole loop on the device, `fd.decode`. A token of every row; medians of rounds in turn. (b)'
    ' and (c) are whole'
    f' outputs, encoder included, over their tokens. Of (a) at most {steps} tokens of each length'
    ' are timed, evenly'
    ' spread over its positions, which all cost the same; the source is the same for all, so its'
    ' encoder is'
    " no part of that loop where the compiler takes it out, as XLA's for CPUs does.",
    f'Random weights, no end token. The three write the same {same}; of (a) that is known of the'
    ' timed tokens.',
  ]


def _published(heading: str, table: Mapping[published.Key, published.Times]) -> Column:
  """A column that has only published figures: those beside our numbers, batch and length."""

  def theirs(cell: SavingCell) -> str:
    times = table.get((PRECISIONS[cell.dtype], cell.batch, cell.length))
    return (
      MISSING
      if times is None
      else (f'{times.framework:.2f} / {times.op:.2f} = {times.speedup:.2f}×')
    )

  return Column(heading, lambda cell: '', beside=theirs, names_row=True)


LAYOUT = Table(
  "FasterTransformer's tables",
  (
    Column('Numbers', 'dtype', names_row=True),
    Column('Batch, tokens', lambda cell: f'{cell.batch}, {cell.length}', names_row=True),
    _time('Decoder (b), ms', 'host'),
    _time('Decoding (c), ms', 'device'),
    _ratio('(b)/(c)', 'host'),
    _published('T4 Decoder, beam 1, ms', published.DECODER_T4),
    _published('T4 Decoding, beam 4, ms', published.DECODING_T4),
    _published('V100 Decoding, beam 4, ms', published.DECODING_V100),
  ),
  (
    'Ours: beam search, from the host a step at a time, as their Decoder op has it, and in one'
    ' program, as their'
    ' Decoding op; whole outputs, encoder included, sources as long as the output. Published,'
    ' FasterTransformer 2.0:'
    ' TensorFlow / op = how many times faster (8 heads of 64, 6 layers, 30,000 words; the Decoder'
    ' with beam 1; there'
    ' is no V100 table of it). Beside our bfloat16 stands their FP16; V100 FP16 at 1, 128 repeats'
    ' the figure of FP32'
    ' there too, and two ratios are printed otherwise (T4 Decoder: 3.41 in FP16 at 1, 128, and 2.01'
    ' in FP32 at 256,'
    ' 32): these are of the times.',
  ),
  ('beams', *CONDITIONS),
  sort=lambda cell: (list(PRECISIONS).index(cell.dtype), cell.batch, cell.length),
)


def layout_table(cells: Sequence[SavingCell]) -> Drawn:
  """Whole outputs of beam search, ours and the published ones."""
  parted = [cell for cell in cells if cell.parted]
  differ = ', '.join(
    f'{cell.parted} of {cell.batch} in {cell.dtype} at {cell.batch}, {cell.length}'
    for cell in parted
  )
  return LAYOUT.of(
    cells, notes=[f'Sentences that (b) and (c) write differently: {differ or "none"}.']
  )


LAUNCHES_NOTE = (
  'A greedy step at batch 1; of a layer: what one decoder layer more adds. Compiled: instructions'
  ' of the optimised'
  ' program that run by themselves (on a GPU kernels and library calls, on a CPU fusions, products,'
  ' copies).'
  ' Primitives: operations of the traced program, what op-by-op execution would launch.'
)


def launches_table(cells: Sequence[SavingCell]) -> Drawn:
  """What a step and a layer of it launch, compiled and not."""
  platforms = {cell.conditions.get('platform') for cell in cells if cell.error is None}
  unit = 'Fused operations' if platforms <= {'cpu'} else 'Kernels'
  columns = (
    Column('Model', lambda cell: TITLES[cell.model], names_row=True),
    Column(f'{unit} a step', lambda cell: cell.counts['step']),
    Column(f'{unit} a layer', lambda cell: cell.counts['layer']),
    Column('Primitives a step', lambda cell: cell.counts['eager_step']),
    Column('Primitives a layer', lambda cell: cell.counts['eager_layer']),
  )
  before, after = published.LAUNCHES
  talk = {'Model': 'FasterTransformer (talk)', f'{unit} a layer': str(after)}
  talk |= {'Primitives a layer': f'{before} (TensorFlow)'}
  return Table('What a step launches', columns, (LAUNCHES_NOTE,), CONDITIONS).of(
    cells, below=[talk]
  )


ENCODER = Table(
  'The encoder alone',
  (
    Column('Model', lambda cell: TITLES[cell.model], names_row=True),
    Column('Batch', 'batch', names_row=True),
    Column('Source', 'length', names_row=True),
    _time('Compiled, ms', 'jitted'),
    _time('Op by op, ms', 'eager'),
    _ratio('Ratio', 'eager'),
  ),
  (
    'Op by op: one primitive at a time (`jax.disable_jit`), started from Python; its time, and'
    " linen's, is in it.",
  ),
  CONDITIONS,
  sort=lambda cell: (list(TITLES).index(cell.model), cell.batch),
)


def encoder_table(cells: Sequence[SavingCell]) -> Drawn:
  """The encoder alone."""
  return ENCODER.of(cells)
