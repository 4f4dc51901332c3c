"""Drafters side by side, from the top: heads, draft networks, a draft model and prompt lookup.

A base is trained (or taken, `base`) and writes the text that heads and networks are trained on.
Each drafter, as a chain and as trees, is measured in turn with plain decoding. Results:
results.jsonl, drafts.md, drafts.png. One drafter alone is experiments.train's (lab/networks.py).
"""

import dataclasses
import functools
import math
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

import jax
import numpy as np

import fastdec as fd
from experiments.lab import report, train
from experiments.lab.compare import Comparison, batches_of, counted, joined, lengths_of
from experiments.lab.networks import SAMPLE, BlockConfig, EagleConfig, check_kind, network
from experiments.lab.own import DistillConfig, continuations, translations
from experiments.lab.report import Column, Drawn, Table, write
from experiments.lab.rows import Row
from experiments.lab.text import TextConfig, inputs_of
from experiments.lab.train import (
  Count,
  Counts,
  HeadsConfig,
  RunConfig,
  Seed,
  Zero,
  each_once,
  seed_of,
  spaced,
)
from experiments.lab.workdir import Workdir
from fastdec import folders
from fastdec.errors import UserError
from fastdec.evaluation import drawing
from fastdec.evaluation.acceptance import accepted_by_place, repeated_share
from fastdec.evaluation.calls import wide_calls
from fastdec.evaluation.drawing import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, Style
from fastdec.evaluation.tree_calibration import written_ranks
from fastdec.evaluation.tree_growth import grow
from fastdec.fields import Between
from fastdec.folders.drafts import draft_content, load_draft
from fastdec.kernels.packed import unpacked
from fastdec.kernels.packing import pack_if_faster
from fastdec.kernels.sharding import MeshConfig
from fastdec.models.lm import LMConfig
from fastdec.models.transformer import TransformerConfig
from fastdec.struct import Bound
from fastdec.training.drafts.losses import DraftLoss
from fastdec.training.log import read_metrics

PLAN = 'drafter', 'tree', 'temperature', 'batch'  # fields that name a row; tree 0: a chain
Drafter = Literal['heads', 'rooted', 'markov', 'block', 'block-2', 'eagle', 'model', 'lookup']
DRAFTERS = {
  'heads': 'heads',
  'rooted': 'rooted heads',
  'markov': 'rooted heads, Markov bias',
  'block': 'block',
  'block-2': 'block, 2 layers',
  'eagle': 'EAGLE',
  'model': 'draft model',
  'lookup': 'prompt lookup',
}
# heads and networks: what they change of the settings of their kind
HEADS: dict[str, Any]
HEADS = {'heads': {}, 'rooted': {'rooted': True}, 'markov': {'rooted': True, 'markov': 64}}
NETWORKS: dict[str, Any] = {'block': {}, 'block-2': {'layers': 2}, 'eagle': {}}
CHAINS = 'model', 'lookup'  # that draft no trees
LOOKUP = 3  # the longest n-gram that prompt lookup looks for
ROWS = 50  # texts at once, where nothing is timed
FEW = 3  # texts, see `Comparison.clock`
WIDTH = 8  # of EAGLE's trees: children of each node, and nodes of each level that are expanded


# --- settings


@dataclasses.dataclass(frozen=True)
class TableConfig:
  """Drafters beside the networks, and measurements with the texts that they are of."""

  base: LMConfig | TransformerConfig  # where `base` names none; without its vocabulary
  base_run: RunConfig
  small: LMConfig | TransformerConfig  # the draft model
  small_run: RunConfig
  heads: HeadsConfig  # trained as the networks are, by `train`
  eagle: EagleConfig = EagleConfig()
  block: BlockConfig = BlockConfig()
  distill: DistillConfig = DistillConfig(beam=1, shard_size=1000)  # of own text
  rows: tuple[Drafter, ...] = get_args(Drafter)
  nodes: Counts = (8, 16, 32)  # of the trees, the root included
  gamma: Count = 7  # tokens of a chain
  batches: Counts = (1, 8)  # texts at once
  temperatures: tuple[Annotated[float, Between(0, 1e6)], ...] = (0.0, 1.0)
  prompt: Count = 4  # tokens of a caption, if the task is lm
  split: Literal['dev', 'test'] = 'test'
  sentences: Zero = 0  # of the split, evenly spaced: for tokens a call and agreement; 0: all
  timed: Count = 32  # of them, evenly spaced: for wall clock
  calibrated: Count = 400  # of the dev set: for the trees of heads
  max_len: Annotated[int, Between(2, math.inf)] = 80
  repeats: Count = 5

  def __post_init__(self) -> None:
    names = 'rows', 'nodes', 'batches', 'temperatures'
    each_once('table', **{name: getattr(self, name) for name in names})
    for i, count in enumerate(self.nodes):
      if count <= self.gamma:
        given = f'config.table.nodes[{i}]={count} is not possible'
        raise UserError(f'{given}: give {self.gamma + 1} or more, as many as a chain has')
    if self.distill.beam != 1 or self.distill.samples:
      raise UserError(
        'config.table.distill writes what the base itself does: give beam=1, and samples=0'
      )
    for row in self.rows:
      part = row.removesuffix('-2')
      if row in NETWORKS and self.gamma > (depth := getattr(self, part).depth):
        given = f'config.table.gamma={self.gamma} is not possible: config.table.{part}'
        raise UserError(f'{given} makes {depth} guesses, so give as many or fewer')
    limit = self.base.max_positions
    if limit is not None and self.max_len > limit:
      most = f'max_positions={limit} is the most'
      raise UserError(f'config.table.max_len={self.max_len} is not possible: {most}')


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
  base: str = ''  # a finished run on the same text, taken as it is; '': a base is trained
  seed: Seed = 0
  mesh: MeshConfig = MeshConfig()

  def __post_init__(self) -> None:
    runs = {'table.base_run': self.table.base_run, 'table.small_run': self.table.small_run}
    for name, run in {**runs, 'train': self.train}.items():
      model = self.table.small if name == 'table.small_run' else self.table.base
      train.check(run, model, self.data.rows, self.mesh, name)

  @property
  def people(self) -> TextConfig:
    """The text as people wrote it."""
    return dataclasses.replace(self.data, own='', distilled='')


# --- the page


def drafters(c: Drafters, work: Workdir) -> None:
  """The page from the top: a base, its own text, drafters, rows, tables and the picture."""
  if c.data.own:
    c.data.open()  # a mistake shows before any work
  if c.base:
    base = pathlib.Path(c.base)
    check_kind(base, c.task)
  else:
    inputs = {'model': c.table.base, 'run': c.table.base_run, 'data': c.people, 'seed': c.seed}
    base = work.stage('base', train.base, **inputs, mesh=c.mesh)
  keys: list[Row] = [{'drafter': name} for name in c.table.rows if name != 'lookup']
  folders_of = work.each(keys, lambda key: trained(c, work, base, key['drafter']))
  made: dict[Drafter, pathlib.Path] = {}
  for key, folder in zip(keys, folders_of, strict=True):
    if folder is not None:
      made[key['drafter']] = folder
  data = own_text(c, work, base) if set(made) - {'model'} else c.data
  bench = Bench(c, base, made, data)
  rows = work.fill(
    [bench.key(**plan) for plan in plans(c.table) if plan['drafter'] in ('lookup', *made)],
    functools.partial(figures, bench),
    summary,
  )
  rows += work.failures([key for key in keys if key['drafter'] not in made])
  if rows:
    tables = [speeds(rows), acceptance(rows)]
    picture = functools.partial(learning, bench.curves(), rows)
    write(work.root / 'drafts', work.console, tables, picture)


def own_text(c: Drafters, work: Workdir, base: pathlib.Path) -> TextConfig:
  """Text that the base writes itself: what heads and networks guess."""
  own = c.data.own
  if not own and c.task == 'lm':
    sizes = {'prompt': c.table.prompt, 'max_len': c.table.max_len}
    own = str(work.stage('own', continuations, model=base, data=c.people, **sizes))
  elif not own:
    own = str(work.stage('own', translations, model=base, data=c.people, distill=c.table.distill))
  return dataclasses.replace(c.data, own=own)


def trained(c: Drafters, work: Workdir, base: pathlib.Path, drafter: Drafter) -> pathlib.Path:
  """A small model, or heads or a draft network on the base, which stays as it is."""
  if drafter == 'model':
    inputs = {'model': c.table.small, 'run': c.table.small_run, 'data': c.people, 'seed': c.seed}
    return work.stage('model', train.base, **inputs, mesh=c.mesh)
  same: dict[str, Any] = {'base': base, 'run': c.train, 'data': own_text(c, work, base)}
  # all see the same batches
  same |= {'seed': c.seed, 'order': seed_of(c.seed, 'order'), 'mesh': c.mesh}
  if drafter in HEADS:
    heads = dataclasses.replace(c.table.heads, **HEADS[drafter])
    return work.stage(
      drafter, train.heads, heads=heads, k=c.table.gamma + 1, together=False, **same
    )
  settings = c.table.eagle if drafter == 'eagle' else c.table.block
  draft = dataclasses.replace(settings, **NETWORKS[drafter])
  return work.stage(drafter, network, draft=draft, loss=c.loss, **same)


def plans(table: TableConfig) -> list[Row]:
  """The rows: each drafter as a chain and as each tree."""
  found = []
  for drafter in table.rows:
    for tree in (0,) if drafter in CHAINS else (0, *table.nodes):
      for temperature in table.temperatures:
        for batch in table.batches:
          found.append((drafter, tree, temperature, batch))
  return [dict(zip(PLAN, plan, strict=True)) for plan in found]


# --- measurement


def figures(bench: 'Bench', key: Row) -> Row:
  """Measures a row. Tokens, acceptance and agreement are of all texts, whatever the batch size;
  times are taken over some of them."""
  return bench.figures(**{name: key[name] for name in PLAN})


def summary(row: Row) -> str:
  """A row in one line."""
  name = f'{DRAFTERS[row["drafter"]]}, {_shape(row)}, temperature {row["temperature"]:g}'
  return f'{name}, batch {row["batch"]}: {row["tokens"]:.2f} tokens a call, {row["speedup"]:.2f}x'


class Bench:
  """A base and its drafters.

  Args:
    c: the settings.
    base: the folder of the base.
    made: folders of the drafters that are trained.
    own: the text that they were trained on.
  """

  def __init__(
    self, c: Drafters, base: pathlib.Path, made: Mapping[Drafter, pathlib.Path], own: TextConfig
  ) -> None:
    self.c, self.base, self.made, self.own = c, base, made, own
    self.text = c.people.open()
    self.text.check_base(base)
    self.target = Bound(*pack_if_faster(*folders.load(base)))
    self.dtype = self.target.module.config.dtype
    prompts = self._prompts(c.table.split)
    self.prompts = prompts[spaced(len(prompts), c.table.sentences)]
    self.timed = self.prompts[spaced(len(self.prompts), c.table.timed)]

  def __reduce__(self) -> Any:
    """A job loads the models itself."""
    return Bench, (self.c, self.base, self.made, self.own)

  def key(self, **plan: Any) -> Row:
    """The key of a row: all that decides its figures."""
    names = 'split', 'sentences', 'timed', 'max_len', 'repeats', 'calibrated', 'gamma', 'prompt'
    asked = {name: getattr(self.c.table, name) for name in names}
    asked |= {'models': self._models(plan['drafter']), 'content': self.text.content}
    return {**plan, 'task': self.c.task, 'seed': self.c.seed, **asked}

  def figures(self, drafter: Drafter, tree: int, temperature: float, batch: int) -> Row:
    """All that is found out for one row."""
    found = self._training(drafter) | self._counted(drafter, tree, temperature)
    return found | self._clocked(drafter, tree, temperature, batch)

  def curves(self) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Points of networks' chains on own text, by 'dev' and 'training': training tokens, and tokens
    a call."""
    found = {}
    for drafter, folder in self.made.items():
      if drafter in NETWORKS:
        lines = [line for line in read_metrics(folder) if 'eval' in line]
        tokens = self._tokens_a_step(drafter)
        found[drafter] = {
          where: [(line['step'] * tokens, line['eval'][f'{where} tokens a call']) for line in lines]
          for where in PANELS
        }
    return found

  def _models(self, drafter: Drafter) -> str:
    """A hash of the base, and one of the drafter if it is there."""
    found = folders.content(self.base)
    if drafter in self.made:
      content = draft_content if drafter in NETWORKS else folders.content
      found += f' {content(self.made[drafter])}'
    return found

  @functools.cache  # noqa: B019 (one bench a process)
  def _training(self, drafter: Drafter) -> Row:
    """Describes a drafter and the cost of its training."""
    if drafter == 'lookup':
      return {'parameters': 0}
    run = self._run(drafter)
    lines = [line.get('train', {}) for line in read_metrics(self.made[drafter])]
    seconds = [line['seconds_per_step'] for line in lines if 'seconds_per_step' in line]
    params = self._loaded(drafter).params
    learnt = {name: value for name, value in params.items() if name not in ('ids', 'warmth')}
    return {
      'parameters': sum(leaf.size for leaf in jax.tree.leaves(unpacked(learnt))),
      'training_tokens': round(run.steps * self._tokens_a_step(drafter)),
      'training_seconds': run.steps * statistics.median(seconds) if seconds else None,
    }

  @functools.cache  # noqa: B019
  def _tokens_a_step(self, drafter: Drafter) -> float:
    """Tokens of the target's side in a step of its training, on average."""
    of_people = drafter == 'model'
    data = self.c.people if of_people else self.own
    batches = data.open().train_batches(self._run(drafter).rows)
    return float(np.mean([(batches[i]['target_segment'] > 0).sum() for i in range(SAMPLE)]))

  def _run(self, drafter: Drafter) -> RunConfig:
    return self.c.table.small_run if drafter == 'model' else self.c.train

  @functools.cache  # noqa: B019
  def _counted(self, drafter: Drafter, tree: int, temperature: float) -> Row:
    """Figures over all texts."""
    strategy = self._strategy(drafter, tree, temperature)
    rows = min(ROWS, len(self.prompts))
    whole = self._comparison(strategy, temperature, self.prompts, rows)
    found = {'nodes': strategy.drafter.nodes, 'accepted': None, 'dtype': self.dtype}
    found |= counted(whole, None if temperature else self.dtype)
    found['repeated_4grams'] = repeated_share(joined(whole.theirs))
    if not tree:
      found['accepted'] = accepted_by_place(joined(whole.ours), found['nodes'] - 1)
    return found

  def _clocked(self, drafter: Drafter, tree: int, temperature: float, batch: int) -> Row:
    """Times in turn with plain decoding, over some of the texts."""
    strategy = self._strategy(drafter, tree, temperature)
    timed = self._comparison(strategy, temperature, self.timed, batch)
    ours, theirs = timed.counts
    wide = wide_calls(self.target, strategy, timed.state(strategy), strategy.drafter.nodes)
    calls = {'alone': (wide, ours.steps)}
    clock = timed.clock(self.c.table.repeats, calls, max(FEW // batch, 1))

    def milliseconds(name: str, steps: int) -> float | None:
      found = clock[name].milliseconds / steps
      return found if found > 0 else None  # the timer cannot resolve it

    call, target = milliseconds('ours calls', ours.steps), milliseconds('alone', ours.steps)
    return {
      'call_ms': call,
      'draft_ms': None if call is None or target is None else max(call - target, 0.0),
      'plain_ms': milliseconds('plain calls', theirs.steps),
      **timed.speed(clock),
    }

  def _comparison(
    self, strategy: Any, temperature: float, prompts: np.ndarray, batch: int
  ) -> Comparison:
    plain = fd.Sample(temperature) if temperature else fd.Greedy()
    key = jax.random.key(self.c.seed) if temperature else None
    batches = batches_of(prompts, batch, self.target.module.pad_id, key)
    return Comparison(self.target, strategy, plain, batches, self.c.table.max_len)

  def _strategy(self, drafter: Drafter, tree: int, temperature: float) -> Any:
    gamma, sampling = self.c.table.gamma, fd.Sampling(temperature)
    if drafter == 'lookup':
      return fd.PromptLookup(LOOKUP, gamma + 1, sampling=sampling)
    draft = self._loaded(drafter)
    if drafter == 'model':
      return fd.Speculative(tuple(draft), gamma, sampling=sampling)
    if drafter == 'eagle':
      width, nodes = (WIDTH, tree) if tree else (1, None)
      return fd.Eagle(draft, gamma, width, nodes, sampling=sampling)
    if drafter in NETWORKS:
      return fd.BlockDraft(draft, gamma + 1, tree or None, sampling=sampling)
    if not tree:
      return fd.Blockwise(draft, gamma + 1, sampling=sampling)
    choices = grow(self._ranks(drafter), tree).choices
    if not choices:
      return fd.Blockwise(draft, 1, sampling=sampling)
    return fd.Medusa(draft, choices, sampling=sampling)

  @functools.cache  # noqa: B019
  def _loaded(self, drafter: Drafter) -> Bound:
    load: Any = load_draft if drafter in NETWORKS else folders.load
    load = folders.load_heads if drafter in HEADS else load
    return Bound(*pack_if_faster(*load(self.made[drafter])))

  @functools.cache  # noqa: B019
  def _ranks(self, drafter: Drafter) -> Any:
    """Ranks of heads along what the base writes for the dev set: their trees are grown of them."""
    prompts = self._prompts('dev')
    chosen = prompts[spaced(len(prompts), self.c.table.calibrated)]
    lengths = lengths_of(chosen, self.target.module.pad_id)
    rows = [row[:length].tolist() for row, length in zip(chosen, lengths, strict=True)]
    return written_ranks(self.target, self._loaded(drafter), rows, self.c.table.max_len, ROWS)

  def _prompts(self, split: str) -> np.ndarray:
    return inputs_of(self.text, self.target.module, split, self.c.table.prompt)


# --- the tables

NOTES = (
  'Nodes: what the target scores a call, the root included. Parameters: of the drafter. Training:'
  " tokens of the target's side, and seconds. Tokens: per call of a row, over all texts; speeds are"
  ' over some of them.',
  "Draft ms: what a call takes more than the target's own on as many nodes; plain: a call of plain"
  ' decoding of the same model. Speed-up: over that, in turn, whole texts, and in brackets the'
  ' slowest and fastest round; calls alone: without prompts.',
  report.SAME_NOTE,
)
ACCEPTED_NOTE = (
  'How often the guess at each place of a chain is accepted where all before it are, in per cent.'
  ' The guess at which a text ends is not counted.'
)
CONDITIONS = ('task', 'split', 'timed', 'max_len', 'repeats', 'calibrated', *report.MACHINE)


def speeds(rows: Sequence[Row]) -> Drawn:
  """Every row, measured or failed."""
  return SPEEDS.of(rows, notes=report.repetition_note(rows))


def acceptance(rows: Sequence[Row]) -> Drawn:
  """The chains, place by place."""
  once = {}  # batch sizes are counted together
  for row in rows:
    if _is_chain(row) and row.get('accepted'):
      once[row['drafter'], row['temperature']] = row
  columns = [
    Column('Drafter', lambda row: DRAFTERS[row['drafter']]),
    Column('T', 'temperature', 'g'),
    Column('Tokens', 'tokens', '.2f'),
  ]
  for place in range(max((len(row['accepted']) for row in once.values()), default=0)):
    share = functools.partial(_accepted, place)
    columns.append(Column(str(place + 1), share, '.1f', scale=100))
  table = Table('Acceptance by position', columns, (ACCEPTED_NOTE,), sort=_order)
  return table.of(once.values())


def _shape(row: Row) -> str:
  if row.get('tree'):
    return f'tree of {row["tree"]}'
  return f'chain of {row["nodes"] - 1}' if row.get('nodes') else 'chain'


def _order(row: Row) -> tuple[Any, ...]:
  drafter = list(DRAFTERS).index(row['drafter'])
  return row.get('temperature', 0), row.get('batch', 0), drafter, row.get('tree', 0)


def _accepted(place: int, row: Row) -> float | None:
  return row['accepted'][place] if place < len(row['accepted']) else None


def _is_chain(row: Row) -> bool:
  return row.get('error') is None and not row['tree']


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
    report.CALLS_ALONE,
    report.SAME,
  ),
  NOTES,
  CONDITIONS,
  sort=_order,
)


# --- the picture

STYLES = {  # of what is trained on own text
  'block': Style(BLUE, 'o'),
  'block-2': Style(SKY, 'v'),
  'eagle': Style(VERMILION, '^'),
  'heads': Style(GREEN, 's'),
  'rooted': Style(PURPLE, 'D'),
  'markov': Style(ORANGE, 'P'),
}
PANELS = {
  'dev': 'On own text of held-out sources',
  'training': 'On own text of the training sources',
}


def learning(
  curves: Mapping[str, Mapping[str, Any]], rows: Iterable[Row], path: pathlib.Path
) -> None:
  """Draws tokens a call against training tokens: on held-out text, with what finished chains reach
  in decoding (open), and on training text. More own text would close the gap between the two.
  """
  figure, panels = drawing.panels(2, sharey=True)
  for axes, (where, title) in zip(panels, PANELS.items(), strict=True):
    drawing.dress(axes, title, 'tokens a call, chain', 'tokens trained on')
    for drafter, found in curves.items():
      drawing.curve(axes, found[where], STYLES[drafter], DRAFTERS[drafter])
    if not curves:
      drawing.nothing_yet(axes)
  chains = [row for row in rows if _is_chain(row) and row['temperature'] == 0]
  for drafter, row in {row['drafter']: row for row in chains}.items():
    if drafter not in CHAINS:
      name = None if drafter in curves else DRAFTERS[drafter]
      point = row['training_tokens'], row['tokens']
      drawing.curve(panels[0], [point], STYLES[drafter], name, markerfacecolor='none')
  drawing.legend(figure, 6)
  drawing.save(figure, path)
