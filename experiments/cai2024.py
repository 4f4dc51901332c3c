"""Medusa (Cai et al. 2024), from the top: heads on a language model, their trees, what they gain.

`medusa` is the page: it trains a language model of captions, which writes text of its own, and
heads on that text: on the frozen model (Medusa-1), then together with it (Medusa-2). For each it
grows a tree on the dev set. A row (`figures`) is a chain, a published tree or a grown one, timed in
turn with plain greedy decoding. Results: results.jsonl, medusa.md, medusa-1-tree.json and .png,
medusa-2-tree.json and .png.
"""

import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import fastdec as fd
from experiments.lab import costs, report, train
from experiments.lab.bench import Bench, Texts
from experiments.lab.compare import join_texts
from experiments.lab.own import continuations
from experiments.lab.report import Column, Drawn, Table, text, write
from experiments.lab.rows import Row
from experiments.lab.text import TextConfig, inputs_of, prompts_of
from experiments.lab.train import Count, Rows, Seed, Several, Tokens, each_once, seed_of, spaced
from experiments.lab.workdir import Workdir, train_each
from fastdec import folders
from fastdec.decoding.methods.trees import medusa_choices
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.evaluation import tree_calibration, tree_figure
from fastdec.evaluation.acceptance import repeated_share
from fastdec.evaluation.tree_calibration import TOPS, Calibration
from fastdec.fields import Between, Layers
from fastdec.heads.medusa import MedusaHeads
from fastdec.kernels.packing import pack_if_faster
from fastdec.kernels.sharding import MeshConfig
from fastdec.models.lm import LMConfig
from fastdec.struct import Bound
from fastdec.training.drafts.trainer import train_heads
from fastdec.training.losses import dev_loss
from fastdec.training.run import RunConfig
from fastdec.training.stage import digest

PLAN = 'stage', 'tree', 'batch'  # fields that name a row
FROZEN, TOGETHER = STAGES = 'medusa-1', 'medusa-2'
Stage = Literal['medusa-1', 'medusa-2']
Tree = Literal['chain', 'published', 'calibrated', 'fastest', 'typical']
TREES: dict[Tree, str] = {  # accepted exactly, except 'typical'
  'chain': 'chain',
  'published': 'published',
  'calibrated': 'calibrated',
  'fastest': 'calibrated, fastest',
  'typical': 'calibrated, typical',
}
ROWS = 64  # prompts at once, while a tree is grown
TREE_FILE = 'tree.json'  # of a stage: what `calibrate` finds


# --- settings

Some = Annotated[int, Between(2, math.inf)]  # the first, and at least one more


@dataclasses.dataclass(frozen=True)
class Heads:
  """The heads and how they are trained; see fastdec/heads/medusa.py."""

  depth: Tokens = 4  # heads: as many as the published trees are deep
  layers: Layers = 1  # residual blocks a head
  decay: Annotated[float, Between(1e-6, 1)] = 0.8  # by which each later head's loss is multiplied
  # of the loss, the model's share where it learns too: 1 to 0.2 (1 + 0.8 + ...)
  p1_share: Annotated[float, Between(1e-6, 1 - 1e-6)] = 0.6
  # settings of `train_heads`, the same for every run: a minibatch trains all heads, at all places
  draw: ClassVar[str] = 'all'
  anchors: ClassVar[int] = 0

  def module(self, model: Any, k: int) -> MedusaHeads:
    """k - 1 heads, each with a projection of its own: with the model's own prediction they write k
    tokens at most."""
    return MedusaHeads(k - 1, model.d_model, model.vocab_size, layers=self.layers)

  def fresh(self, module: MedusaHeads, model: Any, trunk: Any) -> Any:
    """Parameters to begin at: every head predicts the model's own prediction."""
    return module.start(model, trunk)


@dataclasses.dataclass(frozen=True)
class Measure(Texts):
  """What to measure, and on which captions: all figures are of those that are timed."""

  sentences: train.Zero = 0
  max_len: Some = 60
  repeats: Count = 3
  stages: tuple[Stage, ...] = STAGES
  trees: tuple[Tree, ...] = (*TREES,)
  published: str = 'mc_sim_7b_63'  # the published tree, to compare with the calibrated ones
  nodes: Several = 32  # of the calibrated tree, the root included
  most: Several = 64  # of the tree with the most tokens a second
  batches: tuple[Rows, ...] = (1, 8, 32)  # prompts at once; typical acceptance is at the first
  typical: float = 0.09  # epsilon of typical acceptance, with delta its root
  calibrated: Count = 1000  # captions of the dev set that the trees are grown on

  def __post_init__(self) -> None:
    each_once('measure', stages=self.stages, trees=self.trees, batches=self.batches)
    fd.Typical(self.typical)  # refuses what is not possible, as the next line does
    medusa_choices(self.published)


@dataclasses.dataclass(frozen=True)
class Medusa:
  """Settings of the page; presets are in configs/medusa.py."""

  data: TextConfig
  model: LMConfig  # without its vocabulary, which the text gives
  train: RunConfig  # of the model
  freeze: RunConfig  # of heads on the frozen model
  finetune: RunConfig  # of heads and model together
  heads: Heads = Heads()
  measure: Measure = Measure()
  text: Literal['own', 'data', 'mixed'] = 'own'  # that heads learn; see configs/medusa.py
  scale: str = ''
  seed: Seed = 0
  mesh: MeshConfig = MeshConfig()

  def __post_init__(self) -> None:
    for name in ('train', 'freeze', 'finetune'):
      train.check(getattr(self, name), self.model, self.data.rows, self.mesh, name)
    self.heads.module(folders.model_of(self.model), self.heads.depth + 1)  # a mistake shows
    deep = Topology.from_choices(medusa_choices(self.measure.published)).max_depth
    if deep > self.heads.depth:
      raise UserError(
        f'config.measure.published={self.measure.published} is {deep} deep, and'
        f' config.heads.depth={self.heads.depth}: give as many heads, or another tree'
      )


# --- the page


def medusa(c: Medusa, work: Workdir) -> None:
  """The page from the top: a model, its own text, heads, trees, rows and tables."""
  # Train the model, and have it write the text that heads learn.
  data, sizes = c.data.originals, c.measure
  same: Any = {'data': data, 'mesh': c.mesh}
  target = work.stage('target', train.base, model=c.model, run=c.train, seed=c.seed, **same)
  if c.text != 'data':
    same |= {'prompt': sizes.prompt, 'max_len': sizes.max_len}
    own = work.stage('own', continuations, model=target, **same)
    data = dataclasses.replace(data, distilled=str(own))

  # Train heads on it, and grow a tree for each.
  def heads_and_tree(stage: str) -> tuple[pathlib.Path, Calibration]:
    folder = heads(c, work, stage, target, data)
    return folder, tree(c, work, stage, folder)

  trained, failed = train_each(work, 'stage', sizes.stages, heads_and_tree)
  benches, trees = {}, {}
  for stage, (folder, calibration) in trained.items():
    benches[stage], trees[stage] = Bench(folder, c.data.originals, sizes), calibration

  # Measure the rows that are missing.
  measure = functools.partial(figures, c, benches, trees)
  rows = work.fill(keys(c, benches, trees), measure, summary) + failed

  if rows:
    tables = [speeds(rows)]
    for stage, calibration in trees.items():
      name = stage.capitalize()
      tables += [accuracies(calibration, name), widths(calibration, name)]
      calibration.save(work.root / f'{stage}-tree.json')
      smaller = calibration.tree.cut(sizes.nodes)
      title = f'{name}: {len(smaller.choices) + 1} nodes'
      tree_figure.draw(smaller, title, work.root / f'{stage}-tree.png')
    write(work, 'medusa', tables)
    pictures = ', '.join(f'{work.root}/{stage}-tree.png' for stage in trees)
    work.console.print(f'The trees are {pictures}; the JSON file next to each has its choices')


def heads(
  c: Medusa, work: Workdir, stage: str, target: pathlib.Path, data: TextConfig
) -> pathlib.Path:
  """The heads of a stage, trained if they are missing; Medusa-2 begins at Medusa-1."""
  same: Any = {'heads': c.heads, 'k': c.heads.depth + 1, 'seed': c.seed, 'mesh': c.mesh}
  same |= {'base': target, 'run': c.freeze, 'together': stage == TOGETHER}
  if stage == TOGETHER:
    same |= {'base': heads(c, work, FROZEN, target, data), 'run': c.finetune}
    # the model changes: of mixed text it sees people's too, to keep what it knows of that
    data = dataclasses.replace(data, mixed=c.text == 'mixed')
  return work.stage(stage, train_heads, data=data, order=seed_of(c.seed, stage), **same)


def tree(c: Medusa, work: Workdir, stage: str, heads: pathlib.Path) -> Calibration:
  """The tree of a stage's heads, grown if it is missing."""
  sizes: dict[str, Any] = {'most': max(c.measure.most, c.measure.nodes)}
  for name in ('prompt', 'calibrated', 'max_len', 'repeats'):
    sizes[name] = getattr(c.measure, name)
  sizes |= {'heads': heads, 'data': c.data.originals}
  folder = work.stage(f'{stage}-tree', calibrate, costs.texts, **sizes)
  return Calibration.load(folder / TREE_FILE)


def calibrate(
  folder: pathlib.Path, *, heads: pathlib.Path, data: TextConfig, prompt: int, calibrated: int,
  most: int, max_len: int, repeats: int,
) -> None:  # fmt: skip
  """Grows the tree of some heads on the dev set, and times its calls; see `Measure`."""
  target, drafting = Bound(*pack_if_faster(*folders.load(heads))), open_heads(heads)
  prompts = prompts_of(data.open(), 'dev', prompt, target.module.config.bos_id)
  some = prompts[spaced(len(prompts), calibrated)].tolist()
  calibration = tree_calibration.calibrate(target, drafting, some, most, max_len, ROWS)
  calibration = tree_calibration.time_sizes(
    calibration, target, drafting, some[0], max_len, repeats
  )
  calibration.save(folder / TREE_FILE)


@functools.cache
def open_heads(folder: pathlib.Path) -> Bound:
  """The heads in a folder, packed where that makes a call faster."""
  return Bound(*pack_if_faster(*folders.load_heads(folder)))


def plans(measure: Measure) -> list[Row]:
  """What is measured: every tree at every batch size, and typical acceptance at the first."""
  plans = []
  for stage, tree in itertools.product(measure.stages, measure.trees):
    for batch in measure.batches:
      if tree != 'typical' or batch == measure.batches[0]:
        plans.append({'stage': stage, 'tree': tree, 'batch': batch})
  return plans


def keys(c: Medusa, benches: Mapping[str, Bench], trees: Mapping[str, Calibration]) -> list[Row]:
  """The keys of the rows: all that decides their figures."""
  keys = []
  for plan in plans(c.measure):
    stage = plan['stage']
    if stage in benches:  # else its training failed
      nodes = topology(c, plan['tree'], trees[stage])
      key = {**plan, 'text': c.text, 'seed': c.seed, 'nodes': nodes.n, 'depth': nodes.max_depth}
      key['paths'] = digest({'paths': nodes.paths.tolist()})  # timing chooses the fastest tree
      keys.append(key | benches[stage].key('calibrated', 'most', 'published', 'typical'))
  return keys


# --- one row


def figures(
  c: Medusa, benches: Mapping[str, Bench], trees: Mapping[str, Calibration], key: Row
) -> Row:
  """Measures a row: tokens a call, agreement, and wall clock in turn with plain greedy decoding."""
  bench, is_typical = benches[key['stage']], key['tree'] == 'typical'
  epsilon = c.measure.typical
  rule = fd.Typical(epsilon, epsilon**0.5) if is_typical else fd.Exact()
  nodes = topology(c, key['tree'], trees[key['stage']])
  strategy = fd.Medusa(open_heads(bench.folder), nodes, rule)
  comparison = bench.comparison(strategy, bench.timed, key['batch'])
  out, plain = join_texts(comparison.ours), join_texts(comparison.theirs)
  agreement = {'same_as_plain': float((out.tokens == plain.tokens).all(1).mean())}
  if not is_typical:
    agreement = comparison.agreement(bench.dtype)

  # Count tokens a call once more, over prompts that begin no text of the training.
  seen = train_prompts(bench)
  is_new = []
  for prompts, _ in comparison.batches:
    for prompt in prompts.tolist():
      is_new.append(tuple(prompt) not in seen)
  calls = out.calls[is_new].sum()
  return {
    'tokens_unseen': float((out.lengths[is_new] - 1).sum() / calls) if calls else None,
    'nll': nll(bench),
    **comparison.speed(comparison.clock(bench.texts.repeats, {})),
    **agreement,
    'dtype': bench.dtype,
    'repeated_4grams': repeated_share(plain),
  }


def topology(c: Medusa, tree: str, calibration: Calibration) -> Topology:
  """The tree of a row."""
  if tree == 'chain':
    return Topology.chain(c.heads.depth + 1)
  if tree == 'published':
    return Topology.from_choices(medusa_choices(c.measure.published))
  if tree == 'fastest':
    return Topology.from_choices(calibration.chosen.choices)
  return Topology.from_choices(calibration.tree.cut(c.measure.nodes).choices)


@functools.cache
def train_prompts(bench: Bench) -> set[tuple[int, ...]]:
  """The prompts that begin the texts of the training."""
  prompts = inputs_of(bench.text, bench.target.module, 'train', bench.texts.prompt)
  return set(map(tuple, prompts.tolist()))


@functools.cache
def nll(bench: Bench) -> float:
  """Nats a token of the dev set as people wrote it, by the model itself."""
  model, params = bench.target
  return dev_loss(model, params, bench.text.dev_batches())['nll']


def summary(row: Row) -> str:
  """A row in one line."""
  return (
    f'{row["stage"]}, tree: {TREES[row["tree"]]}, batch {row["batch"]}:'
    f' {row["tokens_per_call"]:.2f} tokens a call, measured {row["speedup"]:.2f}x'
  )


# --- what the paper and its repository publish (Vicuna and Zephyr, an A100)

# assets/medusa_acc.csv: Medusa-1 on Vicuna 7B, how often head 0, 1, ... has the token among its
# first 1 and 5
ACCURACY = (0.560, 0.780), (0.316, 0.563), (0.201, 0.417), (0.147, 0.340), (0.118, 0.300)
# Tables 1 and 2: stage, model, speed-up, tokens a call, a call in those of plain decoding
SPEEDS = (
  ('Medusa-1', 'Vicuna 7B', 2.18, None, None),
  ('Medusa-1', 'Vicuna 13B', 2.33, None, None),
  ('Medusa-2', 'Vicuna 7B', 2.83, 3.47, 1.22),
  ('Medusa-2', 'Vicuna 13B', 2.83, 3.51, 1.23),
  ('Medusa-2', 'Vicuna 33B', 2.35, 3.01, 1.27),
  ('Medusa-2', 'Zephyr 7B', 2.66, 3.14, 1.18),
)


# --- tables

NOTES = (
  'Tokens: per call of the model; in a batch, per step, until its slowest row is done. Call: the'
  ' time of a call on the tree, heads included, in calls of plain greedy decoding of the same'
  ' model. New: tokens per call of a row, over prompts that begin no training text. Speed-up:'
  ' compared with plain greedy decoding in turn, over whole texts, with the slowest and fastest'
  ' round in brackets; calls only: without the prompt.',
  f'{report.SAME_NOTE} Typical acceptance is not lossless. NLL: of held-out text under the model'
  ' itself, which Medusa-2 trains too.',
)


def speeds(rows: Sequence[Row]) -> Drawn:
  """The table of speeds: every row, then the published figures."""
  below = []
  for name, model, speedup, tokens, call in SPEEDS:
    row = {'Heads': name, 'Tree': f'{model} (paper)', 'Nodes': '64', 'Batch': '1'}
    row |= {'Tokens': text(tokens, '.2f'), 'Call': text(call, '.2f')}
    below.append(row | {'Speed-up': f'{speedup:.2f}×'})
  return SPEED_TABLE.of(rows, below=below, notes=report.repetition_note(rows))


def _call(row: Row) -> float | None:
  """The time of a call, in calls of plain decoding."""
  tokens, speedup = row.get('tokens_per_call'), row.get('speedup_calls')
  return None if tokens is None or speedup is None else tokens / speedup


SPEED_TABLE = Table(
  'Medusa',
  (
    Column('Heads', lambda row: row['stage'].capitalize(), names_row=True),
    Column('Tree', lambda row: TREES.get(row.get('tree')), names_row=True),
    Column('Nodes', 'nodes', names_row=True),
    Column('Batch', 'batch', names_row=True),
    Column('Tokens', 'tokens_per_call', '.2f'),
    Column('New', 'tokens_unseen', '.2f'),
    Column('Call', _call, '.2f'),
    report.SPEED_UP,
    report.CALLS_ONLY,
    report.SAME,
    Column('NLL', 'nll', '.3f'),
  ),
  NOTES,
  ('text', 'split', 'timed', 'max_len', 'repeats', 'prompt', 'calibrated', *report.MACHINE),
  # a failed training has no tree and comes first
  sort=lambda row: (row['stage'], row.get('batch', 0), [None, *TREES].index(row.get('tree'))),
)


HEADS_NOTE = (
  'Right: the token that the model itself writes is among the first choices, over all tokens of its'
  ' texts; in parentheses Vicuna 7B, Medusa-1 (Cai et al. 2024).'
)
WIDTHS_NOTE = (
  'Tokens: what a tree of that size writes a call, as counted on these texts. ms: what a'
  ' call takes at batch 1, heads included. 1 node is greedy decoding without heads.'
)


def accuracies(calibration: Calibration, name: str = 'Heads') -> Drawn:
  """Accuracy of each head, with that of the published heads."""

  def published(place: int, head: int) -> str:
    return f'({100 * ACCURACY[head][place]:.0f})' if head < len(ACCURACY) else ''

  columns = [Column('Head', lambda head: head + 1)]
  for place, top in enumerate(TOPS):
    ours, beside = calibration.right[top].__getitem__, functools.partial(published, place)
    columns.append(Column(f'Top-{top} %', ours, '.1f', scale=100, beside=beside))
  notes = HEADS_NOTE, f'Counted at {calibration.positions:,} tokens.'
  table = Table(f'{name}: how often each head is right', columns, notes)
  return table.of(range(len(calibration.right[1])))


def widths(calibration: Calibration, name: str = 'Heads') -> Drawn:
  """Promises of trees of growing size; the chosen one is marked."""
  tokens, milliseconds, chosen = calibration.tokens, calibration.milliseconds, calibration.nodes

  def speed(nodes: int) -> float | None:
    return 1e3 * tokens[nodes] / milliseconds[nodes] if nodes in milliseconds else None

  columns = (
    Column('Nodes', lambda nodes: f'{nodes} (chosen)' if nodes == chosen else str(nodes)),
    Column('Tokens a call', tokens.get, '.2f'),
    Column('ms a call', milliseconds.get, '.2f'),
    Column('Tokens a second', speed, ',.0f'),
  )
  return Table(f'{name}: trees of growing size', columns, (WIDTHS_NOTE,)).of(sorted(tokens))
