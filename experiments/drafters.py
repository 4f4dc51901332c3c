"""Drafters side by side, from the top: heads, draft networks, a draft model and prompt lookup.

`drafters` is the page. It trains a base (or takes `base`), has it write the text that heads and
networks are trained on, trains each drafter, and measures it as a chain and as trees (`figures`),
in turn with plain decoding. Results: results.jsonl, drafts.md, drafts.png. experiments.train trains
a single drafter (lab/networks.py).
"""

import dataclasses
import functools
import itertools
import math
import pathlib
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args

import jax

import fastdec as fd
from experiments.lab import report, train
from experiments.lab.bench import FEW, Bench, Texts
from experiments.lab.compare import Counts, count_all, count_tokens, join_texts, regroup
from experiments.lab.networks import check_kind
from experiments.lab.own import DistillConfig, continuations, translations
from experiments.lab.report import Column, Drawn, Table, write
from experiments.lab.rows import Row, is_failure
from experiments.lab.text import Text, TextConfig, inputs_of
from experiments.lab.train import Count, HeadsConfig, Rows, Seed, Tokens, Zero, each_once
from experiments.lab.workdir import Workdir, train_each
from fastdec import folders
from fastdec.cli.own_text import OwnText
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.evaluation import drawing
from fastdec.evaluation.acceptance import accepted_by_place, repeated_share
from fastdec.evaluation.calls import wide_calls
from fastdec.evaluation.tree_calibration import rank_written_texts
from fastdec.evaluation.tree_growth import grow
from fastdec.evaluation.wallclock import Timing
from fastdec.fields import Between
from fastdec.folders.drafts import load_draft
from fastdec.kernels.packed import drop_panels
from fastdec.kernels.packing import pack_if_faster
from fastdec.kernels.sharding import MeshConfig
from fastdec.models.lm import LMConfig
from fastdec.models.transformer import TransformerConfig
from fastdec.struct import Bound
from fastdec.training.drafts.losses import DraftLoss
from fastdec.training.drafts.settings import BlockConfig, EagleConfig
from fastdec.training.drafts.tasks import FIXED
from fastdec.training.drafts.trainer import SAMPLE, train_heads, train_network
from fastdec.training.log import read_metrics
from fastdec.training.run import RunConfig

PLAN = 'drafter', 'tree', 'temperature', 'batch'  # fields that name a row; tree 0: a chain
Drafter = Literal['heads', 'rooted', 'markov', 'block', 'block-2', 'eagle', 'model', 'lookup']
Newer = Literal['eagle-kl', 'jetspec', 'domino', 'dflash-2', 'lilicorr']  # if they are named
DRAFTERS = {  # names in tables; some losses are only in published rows, and their code is gone
  'heads': 'heads',
  'rooted': 'rooted heads',
  'markov': 'rooted heads, Markov bias',
  'block': 'block',
  'block-2': 'block, 2 layers',
  'eagle': 'EAGLE',
  'model': 'draft model',
  'lookup': 'prompt lookup',
  'jetspec': 'JetSpec',
  'domino': 'Domino',
  'dflash-2': 'DFlash 2',
  'lilicorr': 'LiLiCorr',
  'eagle-kl': 'EAGLE, KL',
  'eagle-tv': 'EAGLE, 0.1 CE + 0.9 TV',
  'eagle-nla': 'EAGLE, NLA',
  'eagle-hybrid': 'EAGLE, hybrid',
  'eagle-pace': 'EAGLE, CE, weights of D-PACE',
  'eagle-flat': 'EAGLE, CE, equal weights',
}
# heads and networks: their changes to the settings of their kind
HEADS: dict[str, Any]
HEADS = {'heads': {}, 'rooted': {'rooted': True}, 'markov': {'rooted': True, 'markov': 64}}
NETWORKS: dict[str, Any]
NETWORKS = {
  'block': {},
  'block-2': {'layers': 2},
  'eagle': {},
  'eagle-kl': {},
  'jetspec': {'causal': True, 'edge': 'none'},
  'domino': {'edge': 'rnn'},
  'dflash-2': {'edge': 'selector', 'conv': 2},
  'lilicorr': {'edge': 'correlator'},
}
SIX = 'eagle', 'block', 'jetspec', 'domino', 'dflash-2', 'lilicorr'  # the networks of 2026
# networks with a different loss: their changes to `Drafters.loss`
LOSSES: dict[str, Any] = {'eagle-kl': {'ce': 0.0, 'kl': 1.0}}
CHAINS = 'model', 'lookup'  # that draft no trees
LOOKUP = 3  # the longest n-gram that prompt lookup looks for
ROWS = 100  # texts at once, where nothing is timed
TREES: dict[str, Any]  # trees of blocks that do not have just the likeliest nodes
TREES = {'jetspec': {'families': True, 'width': 7}}
WIDTH = 8  # of EAGLE's trees: children of each node, and nodes of each level that are expanded


# --- settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableConfig(Texts):
  """The base, the other drafters, and what is measured on which texts."""

  base: LMConfig | TransformerConfig  # where `base` names none; without its vocabulary
  base_run: RunConfig
  small: LMConfig | TransformerConfig  # the draft model
  small_run: RunConfig
  heads: HeadsConfig  # trained as the networks are, by `train`
  eagle: EagleConfig = EagleConfig()
  block: BlockConfig = BlockConfig()
  distill: DistillConfig = DistillConfig(beam=1, shard_size=1000)  # of own text
  rows: tuple[Drafter | Newer, ...] = get_args(Drafter)
  nodes: tuple[Tokens, ...] = (8, 16, 32)  # of the trees, the root included
  gamma: Tokens = 7  # tokens of a chain
  batches: tuple[Rows, ...] = (1, 8)  # texts at once
  temperatures: tuple[Annotated[float, Between(0, 1e6)], ...] = (0.0, 1.0)
  calibrated: Count = 400  # texts of the dev set: for the trees of heads
  sentences: Zero = 0
  max_len: Annotated[int, Between(2, math.inf)] = 80
  repeats: Zero = 5

  def __post_init__(self) -> None:
    each_once(
      'table', rows=self.rows, nodes=self.nodes, batches=self.batches,
      temperatures=self.temperatures,
    )  # fmt: skip
    for i, count in enumerate(self.nodes):
      if count <= self.gamma:
        raise UserError(
          f'config.table.nodes[{i}]={count} is not possible: give {self.gamma + 1} or more, as many'
          ' as a chain has'
        )
    if self.distill.beam != 1 or self.distill.samples:
      raise UserError(
        'config.table.distill writes what the base itself does: give beam=1, and samples=0'
      )
    for row in self.rows:
      if row not in NETWORKS:
        continue
      part = 'eagle' if row.startswith('eagle') else 'block'
      depth = getattr(self, part).depth
      if self.gamma > depth:
        raise UserError(
          f'config.table.gamma={self.gamma} is not possible: config.table.{part} makes {depth}'
          ' guesses, so give as many or fewer'
        )
    train.check_lengths({'table.max_len': self.max_len}, self.base, 'table.base')


@dataclasses.dataclass(frozen=True)
class Drafters:
  """Settings of the table; presets are in configs/drafts.py."""

  data: TextConfig  # its `own`: text that the base has written; '': it is written here
  train: RunConfig  # of heads and networks on the base, which stays as it is
  table: TableConfig
  loss: DraftLoss = DraftLoss(anchors=16)  # of networks
  kind: Literal['all'] = 'all'
  task: Literal['translation', 'lm'] = 'translation'
  scale: str = ''
  # A finished run on the same text, taken as it is; '': a base is trained. With texts of fastdec
  # train-draft as data.own: the language model that wrote them.
  base: str = ''
  seed: Seed = 0
  mesh: MeshConfig = MeshConfig()

  def __post_init__(self) -> None:
    table, rows = self.table, self.data.rows
    train.check(table.base_run, table.base, rows, self.mesh, 'table.base_run')
    train.check(table.small_run, table.small, rows, self.mesh, 'table.small_run')
    train.check(self.train, table.base, rows, self.mesh, 'train')


# --- the page


def drafters(c: Drafters, work: Workdir) -> None:
  """The page from the top: a base, its own text, drafters, rows, tables and the picture."""
  # A mistake shows before any work.
  if has_answers(c):
    if not c.base or set(c.table.rows) - set(NETWORKS) - {'lookup'}:
      raise UserError(
        f'config.data.own={c.data.own} has answers of a published model: give it as config.base,'
        ' and draft networks only, as config kind=six has them'
      )
  elif c.data.own:
    c.data.open()

  # Train the base, if it is missing.
  if c.base:
    base = pathlib.Path(c.base)
    check_kind(base, c.task)
  else:
    inputs: Any = {'model': c.table.base, 'run': c.table.base_run, 'data': c.data.originals}
    base = work.stage('base', train.base, seed=c.seed, mesh=c.mesh, **inputs)

  # Train the drafters that are missing. A training that fails is a row that says why.
  names = [name for name in c.table.rows if name != 'lookup']
  train_one = functools.partial(train_drafter, c, work, base)
  trained, failed = train_each(work, 'drafter', names, train_one)

  # Measure the rows that are missing.
  prompts: Any = c.data.originals
  if has_answers(c):
    prompts = read_answers(c.data.own, base, c.train.rows)
  bench = Bench(base, prompts, c.table)
  rows = work.fill(keys(c, bench, trained), functools.partial(figures, bench, trained), summary)
  rows += failed

  if rows:
    learning(learning_curves(trained), rows, work.root / 'drafts.png')
    tables = [speeds(rows), acceptance(rows)]
    if not c.table.repeats:
      tables[0] = fewer_calls(rows)  # nothing was timed
    if set(c.table.rows) & set(LOSSES):
      tables.insert(0, by_loss(rows))
    write(work, 'drafts', tables, 'drafts.png')


def plans(table: TableConfig) -> list[list[Row]]:
  """The rows: each drafter as a chain and as each tree. Batch sizes are measured together, for
  their texts are the same."""
  groups = []
  for drafter in table.rows:
    trees = [0]
    if drafter not in CHAINS:
      trees += table.nodes
    for tree, temperature in itertools.product(trees, table.temperatures):
      group: list[Row] = []
      for batch in table.batches:
        group.append(dict(zip(PLAN, (drafter, tree, temperature, batch), strict=True)))
      groups.append(group)
  return groups


def keys(c: Drafters, bench: Bench, trained: 'Mapping[str, Trained]') -> list[Any]:
  """The keys of the rows: all that decides their figures."""
  groups = []
  for group in plans(c.table):
    name = group[0]['drafter']
    if name not in trained and name != 'lookup':
      continue  # its training failed
    drafts = [trained[name].folder] if name in trained else []
    same = {'task': c.task, 'seed': c.seed}
    same |= bench.key('calibrated', 'gamma', models=drafts)
    groups.append([{**plan, **same} for plan in group])
  return groups


# --- the drafters, each a stage


class Trained(NamedTuple):
  """A trained drafter: its name, its folder, its steps, and the text that it was trained on."""

  name: str
  folder: pathlib.Path
  run: RunConfig
  data: TextConfig | OwnText


def train_drafter(c: Drafters, work: Workdir, base: pathlib.Path, name: str) -> Trained:
  """Trains a drafter, if it is missing: a small model, or heads or a network on the base, which
  stays as it is."""
  same: Any = {'seed': c.seed, 'mesh': c.mesh}
  if name == 'model':
    run = c.table.small_run
    folder = work.stage(
      name, train.base, model=c.table.small, run=run, data=c.data.originals, **same
    )
    return Trained(name, folder, run, c.data.originals)
  data = own_text(c, work, base)
  # all see the same batches
  same |= {'base': base, 'run': c.train, 'data': data, 'order': train.seed_of(c.seed, 'order')}
  if name in HEADS:
    heads, k = dataclasses.replace(c.table.heads, **HEADS[name]), c.table.gamma + 1
    folder = work.stage(name, train_heads, heads=heads, k=k, **same)
  else:
    settings: EagleConfig | BlockConfig = c.table.block
    if name.startswith('eagle'):
      settings = c.table.eagle
    draft = dataclasses.replace(settings, **NETWORKS[name])
    loss = dataclasses.replace(c.loss, **LOSSES.get(name, {}))
    folder = work.stage(name, train_network, draft=draft, loss=loss, **same)
  return Trained(name, folder, c.train, data)


def own_text(c: Drafters, work: Workdir, base: pathlib.Path) -> TextConfig | OwnText:
  """The text that the base writes itself: what heads and networks guess."""
  if has_answers(c):
    return read_answers(c.data.own, base, c.train.rows)
  own, same = c.data.own, {'model': base, 'data': c.data.originals, 'mesh': c.mesh}
  if not own and c.task == 'lm':
    sizes = {'prompt': c.table.prompt, 'max_len': c.table.max_len}
    own = str(work.stage('own', continuations, **same, **sizes))
  elif not own:
    own = str(work.stage('own', translations, distill=c.table.distill, **same))
  return dataclasses.replace(c.data, own=own)


def has_answers(c: Drafters) -> bool:
  """True if the own text is that of a `fastdec train-draft`, in OUT.training/texts."""
  return bool(c.data.own) and (pathlib.Path(c.data.own) / 'held-out.jsonl').is_file()


@functools.cache
def read_answers(own: str, base: pathlib.Path, rows: int) -> OwnText:
  """The texts that `fastdec train-draft` let the base write."""
  text = OwnText(pathlib.Path(own), Bound(*fd.load(base)), str(base), rows, 0)
  longest = [int(pairs.lengths.max()) for pairs in text.pairs.values()]
  return dataclasses.replace(text, length=max(longest))


# --- rows


def figures(bench: Bench, trained: Mapping[str, Trained], missing: list[Row]) -> Iterator[Row]:
  """Measures one drafter as a chain or a tree, at the batch sizes that are missing. Tokens,
  acceptance and agreement are of all texts; times are taken over some of them, or (`repeats` 0)
  over none."""
  first = missing[0]  # the others differ in nothing but their batch
  draft, temperature = trained.get(first['drafter']), first['temperature']
  strategy = strategy_of(bench, draft, first)
  plain = bench.plain(temperature, first['seed'])

  # Count tokens over all texts.
  whole = bench.comparison(strategy, bench.prompts, min(ROWS, len(bench.prompts)), *plain)
  nodes = strategy.drafter.nodes
  same: Row = {'parameters': 0}  # prompt lookup has none
  if draft is not None:
    same = training_cost(draft)
  same = same | {'nodes': nodes, 'accepted': None, 'dtype': bench.dtype}
  same |= count_all(whole, None if temperature else bench.dtype)
  same['repeated_4grams'] = repeated_share(join_texts(whole.theirs))
  if not first['tree']:
    same['accepted'] = accepted_by_place(join_texts(whole.ours), nodes - 1)

  # Without times, count the calls of batches of each size.
  if not bench.texts.repeats:
    jax.clear_caches()  # programs are rarely reused, as in `Comparison.clock`
    for key in missing:
      ours = Counts.of(regroup(whole.ours, key['batch']))
      theirs = Counts.of(regroup(whole.theirs, key['batch']))
      yield {**same, 'tokens_per_call': ours.per_step / theirs.per_step}
    return

  # Time whole texts, and only the target's calls, in turn with plain decoding.
  for key in missing:
    batch = key['batch']
    timed = bench.comparison(strategy, bench.timed, batch, *plain)
    ours, theirs = timed.counts
    alone = (
      wide_calls(bench.target, strategy, timed.state(strategy), Topology.chain(nodes)),
      ours.steps,
    )
    clock = timed.clock(bench.texts.repeats, {'alone': alone}, max(FEW // batch, 1))
    call = milliseconds(clock['ours calls'], ours.steps)
    target = milliseconds(clock['alone'], ours.steps)
    times = {'call_ms': call, 'draft_ms': None}
    if call is not None and target is not None:
      times['draft_ms'] = max(call - target, 0.0)
    times['plain_ms'] = milliseconds(clock['plain calls'], theirs.steps)
    yield {**same, **times, **timed.speed(clock)}


def milliseconds(calls: Timing, steps: int) -> float | None:
  """The time of a call; None where the timer cannot resolve it."""
  return calls.milliseconds / steps if calls.milliseconds > 0 else None


@functools.cache
def training_cost(draft: Trained) -> Row:
  """The size of a drafter, and the cost of its training."""
  # The log has the time of a step, except for the first ones, which compile.
  by_step, seconds = [], None
  for line in read_metrics(draft.folder):
    if 'seconds_per_step' in line.get('train', {}):
      by_step.append(line['train']['seconds_per_step'])
  if by_step:
    seconds = draft.run.steps * statistics.median(by_step)

  # Count what was trained, not the draft's words and temperatures.
  learnt = dict(loaded(draft).params)
  for name in FIXED:
    learnt.pop(name, None)
  return {
    'parameters': sum(leaf.size for leaf in jax.tree.leaves(drop_panels(learnt))),
    'training_tokens': round(draft.run.steps * tokens_per_step(draft)),
    'training_seconds': seconds,
  }


@functools.cache
def tokens_per_step(draft: Trained) -> float:
  """Tokens of the target's side in a step of its training, on average."""
  batches = draft.data.open().train_batches(draft.run.rows, 0)
  tokens = 0
  for index in range(SAMPLE):
    tokens += int((batches[index]['target_segment'] > 0).sum())
  return tokens / SAMPLE


def strategy_of(bench: Bench, draft: Trained | None, key: Row) -> Any:
  """The strategy of a row; without a drafter it is prompt lookup."""
  gamma, tree, sampling = key['gamma'], key['tree'], fd.Sampling(key['temperature'])
  if draft is None:
    return fd.PromptLookup(LOOKUP, gamma + 1, sampling=sampling)
  module = loaded(draft)
  if draft.name == 'model':
    return fd.Speculative(tuple(module), gamma, sampling=sampling)
  if draft.name.startswith('eagle'):
    if not tree:
      return fd.Eagle(module, gamma, 1, None, sampling=sampling)
    return fd.Eagle(module, gamma, WIDTH, tree, sampling=sampling)
  if draft.name in NETWORKS:
    shape = TREES.get(draft.name, {}) if tree else {}
    return fd.BlockDraft(module, gamma + 1, tree or None, sampling=sampling, **shape)
  if not tree:
    return fd.Blockwise(module, gamma + 1, sampling=sampling)
  choices = grow(ranks(bench, draft, key['calibrated']), tree).choices
  if not choices:
    return fd.Blockwise(module, 1, sampling=sampling)
  return fd.Medusa(module, choices, sampling=sampling)


@functools.cache
def loaded(draft: Trained) -> Bound:
  """A drafter and its parameters, packed where that makes a call faster."""
  load: Any = folders.load
  if draft.name in HEADS:
    load = folders.load_heads
  elif draft.name in NETWORKS:
    load = load_draft
  return Bound(*pack_if_faster(*load(draft.folder)))


@functools.cache
def ranks(bench: Bench, draft: Trained, texts: int) -> Any:
  """Ranks of heads along what the base writes for the dev set: their trees are grown from these."""
  model, text = bench.target.module, bench.text
  assert isinstance(text, Text)  # by `drafters`
  prompts = inputs_of(text, model, 'dev', bench.texts.prompt)
  prompts = prompts[train.spaced(len(prompts), texts)]
  rows = []
  for row, length in zip(prompts, count_tokens(prompts, model.pad_id), strict=True):
    rows.append(row[:length].tolist())
  return rank_written_texts(bench.target, loaded(draft), rows, bench.texts.max_len, ROWS)


def summary(row: Row) -> str:
  """A row in one line."""
  name = f'{DRAFTERS[row["drafter"]]}, {_shape(row)}, temperature {row["temperature"]:g}'
  line = f'{name}, batch {row["batch"]}: {row["tokens"]:.2f} tokens a call'
  if 'speedup' in row:
    line += f', {row["speedup"]:.2f}x'
  return line


# --- the tables

NOTES = (
  'Nodes: what the target scores in a call, the root included. Parameters: of the drafter.'
  " Training: tokens of the target's side, and seconds. Tokens: per call of a row, over all texts;"
  ' speeds are over some of them.',
  "Draft ms: how much longer a call takes than the target's own call on as many nodes; plain: a"
  ' call of plain decoding of the same model. Speed-up: compared with that, in turn, over whole'
  ' texts, with the slowest and fastest round in brackets; calls only: without prompts.',
  report.SAME_NOTE,
)
ACCEPTED_NOTE = (
  'How often the guess at each place of a chain is accepted where all before it are, in per cent.'
  ' The guess at which a text ends is not counted.'
)
FEWER_NOTE = (
  'Figures: calls of plain decoding for each call with drafts, over all texts. For a batch of one'
  ' text they are the tokens that a call writes; a larger batch runs until its slowest text ends.'
)
CONDITIONS = ('task', 'split', 'timed', 'max_len', 'repeats', 'calibrated', *report.MACHINE)


def speeds(rows: Sequence[Row]) -> Drawn:
  """Every row, measured or failed."""
  return SPEEDS.of(rows, notes=report.repetition_note(rows))


def acceptance(rows: Sequence[Row]) -> Drawn:
  """The chains, place by place."""
  once, places = {}, 0  # all batch sizes are counted together
  for row in rows:
    if row.get('accepted'):
      line = dict(row)
      for place, share in enumerate(row['accepted'], start=1):
        line[str(place)] = share
      once[row['drafter'], row['temperature']] = line
      places = max(places, len(row['accepted']))
  columns = [
    Column('Drafter', lambda row: DRAFTERS[row['drafter']]),
    Column('T', 'temperature', 'g'),
    Column('Tokens', 'tokens', '.2f'),
  ]
  for place in range(1, places + 1):
    columns.append(Column(str(place), str(place), '.1f', scale=100))
  table = Table('Acceptance by position', columns, (ACCEPTED_NOTE,), sort=_order)
  return table.of(once.values())


def by_loss(rows: Sequence[Row]) -> Drawn:
  """Tokens a call: a line for each loss, a column for each shape of draft and temperature."""
  lines, columns = _by_shape(rows, ('drafter',), 'tokens')
  columns.insert(1, Column('Training tokens', 'training_tokens', ','))
  return Table('Tokens a call by loss', columns, conditions=CONDITIONS).of(lines)


def fewer_calls(rows: Sequence[Row]) -> Drawn:
  """Calls of plain decoding for each call of a drafter: a line for each drafter and batch size."""
  lines, columns = _by_shape(rows, ('drafter', 'batch'), 'tokens_per_call')
  columns.insert(1, Column('Batch', 'batch', names_row=True))
  columns.insert(2, Column('Parameters', 'parameters', ','))
  columns.insert(3, Column('Training tokens', 'training_tokens', ','))
  return Table('Tokens a call by shape', columns, (FEWER_NOTE,), CONDITIONS).of(lines)


def _by_shape(
  rows: Sequence[Row], by: Sequence[str], figure: str
) -> tuple[list[Row], list[Column]]:
  """One line for the rows that agree in these fields, with a column for each shape of draft and
  temperature."""
  lines: dict[Any, Row] = {}
  names: dict[str, None] = {}
  for row in rows:
    if row.get(figure) is not None:
      name = f'{_shape(row)}, T = {row["temperature"]:g}'
      names[name] = None
      lines.setdefault(tuple(row[field] for field in by), dict(row))[name] = row[figure]
  columns = [Column('Drafter', lambda row: DRAFTERS[row['drafter']], names_row=True)]
  for name in names:
    columns.append(Column(name, name, '.2f'))
  return list(lines.values()), columns


def _shape(row: Row) -> str:
  if row.get('tree'):
    return f'tree of {row["tree"]}'
  if row.get('nodes'):
    return f'chain of {row["nodes"] - 1}'
  return 'chain'


def _order(row: Row) -> tuple[Any, ...]:
  drafter = list(DRAFTERS).index(row['drafter'])
  return row.get('temperature', 0), row.get('batch', 0), drafter, row.get('tree', 0)


SPEEDS = Table(
  'Drafters side by side',
  (
    Column('Drafter', lambda row: DRAFTERS[row['drafter']], names_row=True),
    Column('Draft', _shape, names_row=True),
    Column('T', 'temperature', 'g', names_row=True),
    Column('Batch', 'batch', names_row=True),
    Column('Nodes', 'nodes'),
    Column('Parameters', 'parameters', ','),
    Column('Training tokens', 'training_tokens', ','),
    Column('s', 'training_seconds', ',.0f'),
    Column('Tokens', 'tokens', '.2f'),
    Column('Draft ms', 'draft_ms', '.2f'),
    Column('Call ms', 'call_ms', '.2f'),
    Column('Plain ms', 'plain_ms', '.2f'),
    report.SPEED_UP,
    report.CALLS_ONLY,
    report.SAME,
  ),
  NOTES,
  CONDITIONS,
  sort=_order,
)


# --- the picture

STYLES = {  # of what is trained on own text
  'block': drawing.Style(drawing.BLUE, 'o'),
  'block-2': drawing.Style(drawing.SKY, 'v'),
  'eagle': drawing.Style(drawing.VERMILION, '^'),
  'heads': drawing.Style(drawing.GREEN, 's'),
  'rooted': drawing.Style(drawing.PURPLE, 'D'),
  'markov': drawing.Style(drawing.ORANGE, 'P'),
  'eagle-kl': drawing.Style(drawing.BLUE, 'o'),
  'jetspec': drawing.Style(drawing.GREEN, 's'),
  'domino': drawing.Style(drawing.PURPLE, 'D'),
  'dflash-2': drawing.Style(drawing.ORANGE, 'v'),
  'lilicorr': drawing.Style(drawing.SKY, 'P'),
}
PANELS = {
  'dev': 'On own text of held-out sources',
  'training': 'On own text of the training sources',
}


def learning_curves(trained: Mapping[str, Trained]) -> dict[str, Any]:
  """Points of networks' chains on own text, by 'dev' and 'training': training tokens, and tokens
  a call."""
  curves: dict[str, Any] = {}
  for name, draft in trained.items():
    if name not in NETWORKS:
      continue
    curves[name] = {'dev': [], 'training': []}
    for line in read_metrics(draft.folder):
      if 'eval' not in line:
        continue
      tokens = line['step'] * tokens_per_step(draft)
      for where, points in curves[name].items():
        points.append((tokens, line['eval'][f'{where} tokens a call']))
  return curves


def learning(
  curves: Mapping[str, Mapping[str, Any]], rows: Iterable[Row], path: pathlib.Path
) -> None:
  """Draws tokens a call against training tokens: on held-out text, with what finished chains reach
  in decoding (open), and on training text. More own text would close the gap between the two.
  """
  figure, panels = drawing.panels(2, sharey=True)
  for axes, (where, title) in zip(panels, PANELS.items(), strict=True):
    drawing.dress(axes, title, 'tokens a call, chain', 'tokens trained on')
    for drafter, points in curves.items():
      drawing.curve(axes, points[where], STYLES[drafter], DRAFTERS[drafter])
    if not curves:
      drawing.mark_empty(axes)
  reached = {}
  for row in rows:
    if not is_failure(row) and not row['tree'] and row['temperature'] == 0:
      reached[row['drafter']] = row
  for drafter, row in reached.items():
    if drafter in CHAINS:
      continue
    name = DRAFTERS[drafter]
    if drafter in curves:
      name = None  # its curve is in the legend
    point = row['training_tokens'], row['tokens']
    drawing.curve(panels[0], [point], STYLES[drafter], name, markerfacecolor='none')
  drawing.legend(figure, 4)
  drawing.save(figure, path)
