"""Medusa (Cai et al. 2024), from the top: heads on a language model, their trees, what they gain.

A language model of captions is trained and writes text of its own. Heads learn on that text: on the
frozen model (Medusa-1), then together with it (Medusa-2). A tree for each grows on the dev set;
chain, published tree and grown trees are measured beside plain greedy decoding, in turn. Results:
results.jsonl, medusa.md, medusa-1-tree.json and .png, medusa-2-tree.json and .png.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import fastdec as fd
from experiments.lab import report, train
from experiments.lab.compare import Comparison, batches_of, joined
from experiments.lab.own import continuations
from experiments.lab.report import Column, Drawn, Table, text, write
from experiments.lab.rows import Row
from experiments.lab.text import TextConfig, prompts_of
from experiments.lab.train import Count, Counts, RunConfig, Seed, each_once, seed_of, spaced
from experiments.lab.workdir import Workdir
from fastdec import folders
from fastdec.decoding.methods.trees import medusa_choices
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.evaluation import tree_calibration, tree_figure
from fastdec.evaluation.acceptance import repeated_share
from fastdec.evaluation.tree_calibration import TOPS, Calibration
from fastdec.fields import Between
from fastdec.heads.medusa import MedusaHeads
from fastdec.kernels.packing import pack_if_faster
from fastdec.kernels.sharding import MeshConfig
from fastdec.models.lm import LMConfig
from fastdec.struct import Bound
from fastdec.training.losses import dev_loss

PLAN = 'stage', 'tree', 'batch'  # fields that name a row
FROZEN, TOGETHER = STAGES = 'medusa-1', 'medusa-2'
Tree = Literal['chain', 'published', 'calibrated', 'fastest', 'typical']
TREES: dict[Tree, str] = {  # accepted exactly, except 'typical'
  'chain': 'chain',
  'published': 'published',
  'calibrated': 'calibrated',
  'fastest': 'calibrated, fastest',
  'typical': 'calibrated, typical',
}
ROWS = 64  # prompts at once, where nothing is timed


# --- settings

Some = Annotated[int, Between(2, math.inf)]  # one at least beside the first


@dataclasses.dataclass(frozen=True)
class Heads:
  """The heads and how they are trained; see fastdec/heads/medusa.py."""

  depth: Count = 4  # heads: as many as the published trees are deep
  layers: Count = 1  # residual blocks a head
  decay: Annotated[float, Between(1e-6, 1)] = 0.8  # each later head's loss counts this many times
  # of the loss, the model's share where it learns too: 1 to 0.2 (1 + 0.8 + ...)
  p1_share: Annotated[float, Between(1e-6, 1 - 1e-6)] = 0.6
  # what `train.heads` may ask for besides: a minibatch trains all heads, at all places
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
class Measure:
  """What to measure, and on which captions."""

  stages: tuple[Literal['medusa-1', 'medusa-2'], ...] = STAGES
  trees: tuple[Tree, ...] = (*TREES,)
  published: str = 'mc_sim_7b_63'  # the tree beside the calibrated ones
  nodes: Some = 32  # of the calibrated tree, the root included
  most: Some = 64  # of the tree with the most tokens a second
  batches: Counts = (1, 8, 32)  # prompts at once; typical acceptance is at the first
  typical: float = 0.09  # epsilon of typical acceptance, with delta its root
  prompt: Count = 4  # tokens of a caption
  calibrated: Count = 1000  # captions of the dev set that the trees are grown on
  split: Literal['dev', 'test'] = 'test'
  timed: Count = 32  # captions of the split, evenly spaced
  max_len: Some = 60
  repeats: Count = 3  # of timing

  def __post_init__(self) -> None:
    each_once('measure', stages=self.stages, trees=self.trees, batches=self.batches)
    fd.Typical(self.typical)  # says what cannot be, as the next line does
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
    deep = Topology.from_choices(medusa_choices(self.measure.published)).max_depth
    if deep > self.heads.depth:
      raise UserError(
        f'config.measure.published={self.measure.published} is {deep} deep, and'
        f' config.heads.depth={self.heads.depth}: give as many heads, or another tree'
      )


# --- the page


@dataclasses.dataclass(frozen=True)
class Made:
  """Finished heads with their model, and the tree that suits them."""

  folder: pathlib.Path
  calibration: Calibration


def medusa(c: Medusa, work: Workdir) -> None:
  """The page from the top: a model, its own text, heads, trees, rows and tables."""
  people, sizes = dataclasses.replace(c.data, distilled='', own='', mixed=False), c.measure
  target = work.stage(
    'target', train.base, model=c.model, run=c.train, data=people, seed=c.seed, mesh=c.mesh
  )
  learnt = people
  if c.text != 'data':
    lengths = {'prompt': sizes.prompt, 'max_len': sizes.max_len}
    written = work.stage('own', continuations, model=target, data=people, **lengths)
    learnt = dataclasses.replace(people, distilled=str(written))

  def heads_and_tree(key: Row) -> Made:
    folder = heads(c, work, key['stage'], target, learnt)
    return Made(folder, tree(c, work, key['stage'], folder, people))

  trained = [{'stage': name} for name in sizes.stages]
  made: dict[str, Made] = {}
  for key, one in zip(trained, work.each(trained, heads_and_tree), strict=True):
    if one is not None:
      made[key['stage']] = one
  bench = Bench(c, people, made)
  keys = [bench.key(**plan) for plan in plans(sizes) if plan['stage'] in made]
  rows = work.fill(keys, functools.partial(figures, bench), summary)
  rows += work.failures([key for key in trained if key['stage'] not in made])
  if rows:
    drawn = [speeds(rows)]
    for name, one in made.items():
      of = name.capitalize()
      drawn += [accuracies(one.calibration, of), widths(one.calibration, of)]
    write(work.root / 'medusa', work.console, drawn)
    trees = ', '.join(f'{work.root}/{name}-tree.png' for name in made)
    work.console.print(f'The trees are {trees}, and beside each its choices')


def plans(measure: Measure) -> list[Row]:
  """The rows: every tree at every batch size, and typical acceptance at the first."""
  found = []
  for name in measure.stages:
    for kind in measure.trees:
      for batch in measure.batches[:1] if kind == 'typical' else measure.batches:
        found.append(dict(zip(PLAN, (name, kind, batch), strict=True)))
  return found


def heads(
  c: Medusa, work: Workdir, name: str, target: pathlib.Path, data: TextConfig
) -> pathlib.Path:
  """The heads of a stage; Medusa-2 begins at Medusa-1."""
  base, run = target, c.freeze
  if name == TOGETHER:
    base, run = heads(c, work, FROZEN, target, data), c.finetune
    # the model changes: of mixed text it sees people's too, to keep what it knows of that
    data = dataclasses.replace(data, mixed=c.text == 'mixed')
  settings = {'heads': c.heads, 'k': c.heads.depth + 1, 'together': name == TOGETHER, 'run': run}
  settings |= {'data': data, 'seed': c.seed, 'order': seed_of(c.seed, name), 'mesh': c.mesh}
  return work.stage(name, train.heads, base=base, **settings)


def tree(
  c: Medusa, work: Workdir, name: str, heads: pathlib.Path, people: TextConfig
) -> Calibration:
  """The tree of a stage's heads; what was found and the picture lie in the workdir too."""
  sizes, most = c.measure, max(c.measure.most, c.measure.nodes)
  same = {'prompt': sizes.prompt, 'max_len': sizes.max_len, 'repeats': sizes.repeats}
  same |= {'data': people, 'calibrated': sizes.calibrated, 'most': most}
  found = Calibration.load(work.stage(f'{name}-tree', calibrate, heads=heads, **same) / FOUND)
  found.save(work.root / f'{name}-tree.json')
  shown = found.tree.cut(sizes.nodes)
  title = f'{name.capitalize()}: {len(shown.choices) + 1} nodes'
  tree_figure.draw(shown, title, work.root / f'{name}-tree.png')
  return found


# --- measurement

FOUND = 'tree.json'


def calibrate(
  folder: pathlib.Path,
  *,
  heads: pathlib.Path,
  data: TextConfig,
  prompt: int,
  calibrated: int,
  most: int,
  max_len: int,
  repeats: int,
) -> None:
  """Grows the tree of some heads on the dev set, and times its calls."""
  target, drafting = loaded(heads)
  given = prompts_of(data.open(), 'dev', prompt, target.module.config.bos_id)
  given = given[spaced(len(given), calibrated)].tolist()
  found = tree_calibration.calibrate(target, drafting, given, most, max_len, ROWS)
  found = tree_calibration.timed(found, target, drafting, given[0], max_len, repeats)
  found.save(folder / FOUND)


@functools.cache
def loaded(folder: pathlib.Path) -> tuple[Bound, Bound]:
  """The model and the heads of a stage."""
  model, drafting = folders.load(folder), folders.load_heads(folder)
  return Bound(*pack_if_faster(*model)), Bound(*pack_if_faster(*drafting))


def figures(bench: 'Bench', key: Row) -> Row:
  """Measures a row."""
  return bench.figures(**{name: key[name] for name in PLAN})


def summary(row: Row) -> str:
  """A row in one line."""
  return (
    f'{row["stage"]}, tree: {TREES[row["tree"]]}, batch {row["batch"]}:'
    f' {row["tokens_per_call"]:.2f} tokens a call, measured {row["speedup"]:.2f}x'
  )


class Bench:
  """Finished heads and the prompts that their models go on from.

  Args:
    c: the settings.
    people: the captions.
    made: heads by their stage.
  """

  def __init__(self, c: Medusa, people: TextConfig, made: Mapping[str, Made]) -> None:
    self.c, self.people, self.made, self.text = c, people, made, people.open()
    prompts = self._prompts(c.measure.split)
    self.timed = prompts[spaced(len(prompts), c.measure.timed)]
    self.seen = set(map(tuple, self._prompts('train').tolist()))

  def __reduce__(self) -> Any:
    """A job loads the models itself."""
    return Bench, (self.c, self.people, self.made)

  def key(self, stage: str, tree: str, batch: int) -> Row:
    """The key of a row: all that decides its figures."""
    names = 'split', 'timed', 'max_len', 'repeats', 'prompt', 'calibrated', 'most'
    names += 'published', 'typical'
    asked = {name: getattr(self.c.measure, name) for name in names}
    plan = dict(zip(PLAN, (stage, tree, batch), strict=True))
    same = {'text': self.c.text, 'seed': self.c.seed, 'content': self.text.content}
    if stage in self.made:  # else there is at most a failure
      topology, models = self.topology(stage, tree), folders.content(self.made[stage].folder)
      same |= {'models': models, 'nodes': topology.n, 'depth': topology.max_depth}
    return plan | same | asked

  def figures(self, stage: str, tree: str, batch: int) -> Row:
    """Tokens a call, agreement, and wall clock in turn with plain greedy decoding."""
    c, (target, drafting) = self.c.measure, loaded(self.made[stage].folder)
    rule = fd.Typical(c.typical, c.typical**0.5) if tree == 'typical' else fd.Exact()
    strategy = fd.Medusa(drafting, self.topology(stage, tree), rule)
    batches = batches_of(self.timed, batch, target.module.pad_id, None)
    comparison = Comparison(target, strategy, fd.Greedy(), batches, c.max_len)
    dtype = target.module.config.dtype
    agreement = {'same_as_plain': comparison.same}
    if tree != 'typical':
      agreement = comparison.agreement(dtype)
    prompts = [tuple(row) for some, _ in comparison.batches for row in some.tolist()]
    is_new, texts = [row not in self.seen for row in prompts], joined(comparison.ours)
    calls = texts.calls[is_new].sum()
    return {
      'tokens_unseen': float((texts.lengths[is_new] - 1).sum() / calls) if calls else None,
      'nll': self.nll(stage),
      **comparison.speed(comparison.clock(c.repeats, {})),
      **agreement,
      'dtype': dtype,
      'repeated_4grams': repeated_share(joined(comparison.theirs)),
    }

  def topology(self, stage: str, tree: str) -> Topology:
    """The tree of a row."""
    found = self.made[stage].calibration
    if tree == 'chain':
      return Topology.chain(self.c.heads.depth + 1)
    if tree == 'published':
      return Topology.from_choices(medusa_choices(self.c.measure.published))
    best = found.chosen if tree == 'fastest' else found.tree.cut(self.c.measure.nodes)
    return Topology.from_choices(best.choices)

  @functools.cache  # noqa: B019 (one bench a process)
  def nll(self, stage: str) -> float:
    """Nats a token of the dev set as people wrote it, by the model of a stage."""
    target, _ = loaded(self.made[stage].folder)
    return dev_loss(target.module, target.params, self.text.dev_batches())['nll']

  def _prompts(self, split: str) -> Any:
    return prompts_of(self.text, split, self.c.measure.prompt, self.c.model.bos_id)


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
  'Tokens: per call of the model; of a batch, per step, which goes on until its last row ends.'
  ' Call: what a call on the tree takes, heads included, in calls of plain greedy decoding of the'
  ' same model. New: tokens per call of a row, over prompts that begin no text of the training.'
  ' Speed-up: over plain greedy decoding in turn, whole texts, and in brackets the slowest and'
  ' fastest round; calls alone: without the prompt.',
  f'{report.SAME_NOTE} Typical acceptance is not lossless. NLL: of held-out text by the model'
  ' itself: Medusa-2 trains it too.',
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
    report.CALLS_ALONE,
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
  'Tokens: what the tree of this many nodes writes a call, as counted on these texts. ms: what a'
  ' call takes at batch 1, heads included. 1 node is greedy decoding without heads.'
)


def accuracies(found: Calibration, of: str = 'Heads') -> Drawn:
  """Accuracy of each head, beside the published heads' accuracy."""

  def right(place: int, top: int) -> Column:
    def published(head: int) -> str:
      return f'({100 * ACCURACY[head][place]:.0f})' if head < len(ACCURACY) else ''

    ours = found.right[top].__getitem__
    return Column(f'Top-{top} %', ours, '.1f', scale=100, beside=published)

  columns = [Column('Head', lambda head: head + 1), *(right(i, top) for i, top in enumerate(TOPS))]
  notes = HEADS_NOTE, f'Counted at {found.positions:,} tokens.'
  return Table(f'{of}: how often each head is right', columns, notes).of(range(len(found.right[1])))


def widths(found: Calibration, of: str = 'Heads') -> Drawn:
  """Promises of trees of growing size; the chosen one is marked."""

  def speed(nodes: int) -> float | None:
    milliseconds = found.milliseconds.get(nodes)
    return None if milliseconds is None else 1e3 * found.tokens[nodes] / milliseconds

  columns = (
    Column('Nodes', lambda nodes: f'{nodes} (chosen)' if nodes == found.nodes else str(nodes)),
    Column('Tokens a call', lambda nodes: found.tokens[nodes], '.2f'),
    Column('ms a call', found.milliseconds.get, '.2f'),
    Column('Tokens a second', speed, ',.0f'),
  )
  return Table(f'{of}: trees of growing size', columns, (WIDTHS_NOTE,)).of(sorted(found.tokens))
