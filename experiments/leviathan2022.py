"""Speculative decoding (Leviathan et al. 2022), from the top: theory against practice.

`speculative` is the page: it trains a target and two draft models, measures the rows that are
missing, and writes the tables. A row (`figures`) is one draft (a trained one, n-grams, or prompt
lookup), measured in turn with plain decoding, and the speed-up that the paper's formulas predict.
Results: results.jsonl, speculative.md (Tables 2 to 4), speculative.png.
"""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import fastdec as fd
from experiments.lab import report, train
from experiments.lab.bench import FEW, Bench, Texts
from experiments.lab.compare import cost, join_texts
from experiments.lab.report import Column, Drawn, Table, write
from experiments.lab.rows import Row, is_failure
from experiments.lab.text import TextConfig
from experiments.lab.train import Count, Rows, Seed, Tokens, check_lengths, each_once
from experiments.lab.workdir import Workdir, train_each
from fastdec import folders
from fastdec.decoding import theory
from fastdec.decoding.topology import Topology
from fastdec.evaluation import drawing
from fastdec.evaluation.acceptance import accepted_share, betas, repeated_share
from fastdec.evaluation.calls import draft_calls, repeat_calls, wide_calls
from fastdec.fields import Between
from fastdec.kernels.packing import pack_if_faster
from fastdec.kernels.sharding import MeshConfig
from fastdec.models.lm import LMConfig
from fastdec.models.ngram import NGram
from fastdec.models.transformer import TransformerConfig
from fastdec.struct import Bound
from fastdec.training.run import RunConfig

# Fields that name a row. The plan is the number of tokens drafted a call, or 'adaptive'.
PLAN = 'draft', 'temperature', 'plan', 'batch'
DRAFTS = {
  'large': 'large draft',
  'small': 'small draft',
  'bigram': 'bigram',
  'unigram': 'unigram',
  'lookup': 'prompt lookup',
}
TRAINED = 'large', 'small'
COUNTED = 'bigram', 'unigram'  # on the training text
LOOKUP = 3  # the longest n-gram that prompt lookup looks for
SUCCESSORS = 64  # of a word that the bigram model lists
Models = Mapping[str, pathlib.Path]  # folders of the trained drafts, by name


# --- settings


@dataclasses.dataclass(frozen=True)
class Measure(Texts):
  """What to measure, and on which texts."""

  sentences: train.Zero = 200  # for alpha
  max_len: Count = 80
  repeats: Count = 5
  # Drafted tokens a call; an adapted gamma is at most the largest.
  gammas: tuple[Tokens, ...] = (3, 5, 7)
  # Texts at once; all gammas at the first, the first gamma at all.
  batches: tuple[Rows, ...] = (1, 8, 32)
  temperatures: tuple[Annotated[float, Between(0, 1e6)], ...] = (0.0, 1.0)

  def __post_init__(self) -> None:
    each_once('measure', gammas=self.gammas, batches=self.batches, temperatures=self.temperatures)


@dataclasses.dataclass(frozen=True)
class Trained:
  """A model and its training."""

  model: LMConfig | TransformerConfig  # without its vocabulary, which the text gives
  train: RunConfig


@dataclasses.dataclass(frozen=True)
class Speculative:
  """Settings of the page; presets are in configs/speculative.py."""

  data: TextConfig
  target: Trained
  large: Trained
  small: Trained  # a draft model of a translator has an encoder of its own
  measure: Measure = Measure()
  task: Literal['translation', 'lm'] = 'translation'
  scale: str = ''
  seed: Seed = 0
  mesh: MeshConfig = MeshConfig()

  def __post_init__(self) -> None:
    lengths = {'data.row_length': self.data.row_length, 'measure.max_len': self.measure.max_len}
    for role in ('target', *TRAINED):
      part: Trained = getattr(self, role)
      train.check(part.train, part.model, self.data.rows, self.mesh, f'{role}.train')
      check_lengths(lengths, part.model, f'{role}.model')


# --- the page


def speculative(c: Speculative, work: Workdir) -> None:
  """The page from the top: three models, their rows, the tables and the picture."""
  # Train the models that are missing: first the target, without which there is nothing.
  target = model(c, work, 'target')
  models, failed = train_each(work, 'draft', TRAINED, lambda name: model(c, work, name))
  if not work.is_complete:
    return

  # Measure the rows that are missing.
  bench = Bench(target, c.data, c.measure)
  rows = work.fill(keys(c, bench, models), functools.partial(figures, bench, models), summary)
  rows += failed

  if rows:
    picture(rows, work.root / 'speculative.png')
    write(work, 'speculative', [speeds(rows), alphas(rows)], 'speculative.png')


def model(c: Speculative, work: Workdir, role: str) -> pathlib.Path:
  """The target, or a draft model, trained if it is missing."""
  part: Trained = getattr(c, role)
  return work.stage(
    role, train.base, model=part.model, run=part.train, data=c.data, seed=c.seed, mesh=c.mesh
  )


def plans(measure: Measure) -> list[Row]:
  """What is measured: every draft at the first gamma and batch size; then other gammas and an
  adapted one there, and the first gamma at other batch sizes."""
  gamma, *longer = map(str, measure.gammas)
  batch, *larger = measure.batches
  plans = []
  for temperature in measure.temperatures:
    for draft in DRAFTS:
      sizes = [(gamma, batch)]
      if draft not in COUNTED:
        sizes += itertools.product(longer, [batch])
        sizes += itertools.product([gamma], larger)
      if draft in TRAINED:
        sizes.append(('adaptive', batch))
      for plan, rows in sizes:
        plans.append({'draft': draft, 'temperature': temperature, 'plan': plan, 'batch': rows})
  return plans


def keys(c: Speculative, bench: Bench, models: Models) -> list[Row]:
  """The keys of the rows: all that decides their figures."""
  keys = []
  for plan in plans(c.measure):
    name = plan['draft']
    if name in TRAINED and name not in models:
      continue
    gamma = max(c.measure.gammas)
    if plan['plan'] != 'adaptive':
      gamma = int(plan['plan'])
    drafts = [models[name]] if name in models else []
    same = {'task': c.task, 'seed': c.seed, **bench.key(models=drafts)}
    keys.append({**plan, 'gamma': gamma, **same})
  return keys


# --- one row


def figures(bench: Bench, models: Models, key: Row) -> Row:
  """Measures a row: acceptance, the costs of calls, and wall clock in turn with plain decoding."""
  name, temperature, gamma = key['draft'], key['temperature'], key['gamma']
  is_adaptive, sampling = key['plan'] == 'adaptive', fd.Sampling(temperature)
  if name == 'lookup':
    strategy = fd.PromptLookup(LOOKUP, gamma + 1, sampling=sampling)
  else:
    draft = tuple(open_draft(bench, name, models.get(name)))
    strategy = fd.Speculative(draft, gamma, sampling=sampling, adaptive=is_adaptive)
  plain, draws = bench.plain(temperature, key['seed'])
  comparison = bench.comparison(strategy, bench.timed, key['batch'], plain, draws)
  ours, theirs = comparison.counts
  agreement = {}
  if not temperature:
    agreement = comparison.agreement(bench.dtype)

  # Time whole texts in turn with the parts in the formulas, each with its number in a text.
  target, before, after = bench.target, comparison.state(plain), comparison.state(strategy)
  calls = {
    'one call': (functools.partial(repeat_calls, target, plain, before), theirs.steps),
    'wide calls': (wide_calls(target, strategy, after, Topology.chain(gamma + 1)), ours.steps),
    'drafts': (draft_calls(target, strategy, after), ours.steps),
  }
  clock = comparison.clock(bench.texts.repeats, calls, max(FEW // key['batch'], 1))
  speed = comparison.speed(clock)
  drafting = cost(clock, 'drafts', ours.steps, 'one call', theirs.steps)
  c = None if drafting is None else drafting / gamma
  v = cost(clock, 'wide calls', ours.steps, 'one call', theirs.steps)

  # Predict the speed-up: by the paper's theorem 3.8, and by tokens a call over what a call costs.
  alpha = accepted = predicted = width = None
  drafts = float(gamma)
  if name != 'lookup':  # it drafts without probabilities
    alpha = estimate_alpha(bench, name, models.get(name), temperature, key['seed'])
    drafts = ours.drafts_per_call
    if not is_adaptive:
      accepted = accepted_share(join_texts(comparison.ours), gamma)
      predicted = None if c is None else theory.speedup(alpha, gamma, c)
  if c is not None and v is not None and v + drafts * c > 0:
    width = speed['tokens_per_call'] / (v + drafts * c)

  return {
    'alpha_beta': alpha,
    'alpha_accepted': accepted,
    'c': c,  # a call of the draft model, in calls of the target on one token
    'v': v,  # the target's call on gamma + 1 tokens, in those on one
    'drafts_per_call': drafts,  # calls of the draft model for each of the target
    'predicted': predicted,
    'predicted_width': width,  # compare with speedup_calls
    **speed,
    **agreement,
    'dtype': bench.dtype,
    'repeated_4grams': repeated_share(join_texts(comparison.theirs)),
  }


@functools.cache
def open_draft(bench: Bench, name: str, folder: pathlib.Path | None) -> Bound:
  """A draft model: the trained one in the folder, or n-grams counted on the training text."""
  if folder is not None:
    return Bound(*pack_if_faster(*folders.load(folder)))
  target, words = bench.target.module, bench.text.tokens('train').target
  successors = 0
  if name == 'bigram':
    successors = min(SUCCESSORS, target.vocab_size)
  ngrams = NGram(
    target.vocab_size, successors, target.eos_ids, target.pad_id, target.suppressed_ids
  )
  first = target.start_id
  if first is None:
    first = target.config.bos_id
  return Bound(ngrams, ngrams.count(list(words), first))


@functools.cache
def estimate_alpha(
  bench: Bench, name: str, folder: pathlib.Path | None, temperature: float, seed: int
) -> float:
  """Alpha of a draft, by beta, over the texts that the target writes for all prompts: the same for
  every gamma and batch size."""
  (module, params), draft = bench.target, open_draft(bench, name, folder)
  plain, key = bench.plain(temperature, seed)
  texts = fd.decode(module, params, bench.prompts, plain, max_len=bench.texts.max_len, key=key)
  shares = betas((module, params), tuple(draft), bench.prompts, texts.checked(), temperature)
  return min(1.0, float(shares.mean()))  # sums of probabilities may exceed 1 by rounding


def summary(row: Row) -> str:
  """A row in one line."""
  predicted = 'nothing predicted'
  if row['predicted_width'] is not None:
    predicted = f'predicted {row["predicted_width"]:.2f}x'
  return (
    f'{DRAFTS[row["draft"]]}, temperature {row["temperature"]:g}, gamma {_gamma(row)}, batch'
    f' {row["batch"]}: {row["tokens_per_call"]:.2f} tokens a call, {predicted}, measured'
    f' {row["speedup"]:.2f}x'
  )


# --- what the paper publishes (T5-XXL and others, one TPU v4)


class Published(NamedTuple):
  """A row of Tables 2 and 4: predicted by theorem 3.8, and measured at batch 1 over T5X's
  decoding."""

  task: str
  draft: str
  temperature: float
  gamma: int
  alpha: float
  c: float
  predicted: float
  measured: float


SPEEDS = (
  Published('EnDe', 'T5-small', 0, 7, 0.75, 0.02, 3.2, 3.4),
  Published('EnDe', 'T5-base', 0, 7, 0.80, 0.04, 3.3, 2.8),
  Published('EnDe', 'T5-large', 0, 7, 0.82, 0.11, 2.5, 1.7),
  Published('EnDe', 'T5-small', 1, 7, 0.62, 0.02, 2.3, 2.6),
  Published('EnDe', 'T5-base', 1, 5, 0.68, 0.04, 2.4, 2.4),
  Published('EnDe', 'T5-large', 1, 3, 0.71, 0.11, 2.0, 1.4),
  Published('CNNDM', 'T5-small', 0, 5, 0.65, 0.02, 2.4, 3.1),
  Published('CNNDM', 'T5-base', 0, 5, 0.73, 0.04, 2.6, 3.0),
  Published('CNNDM', 'T5-large', 0, 3, 0.74, 0.11, 2.0, 2.2),
  Published('CNNDM', 'T5-small', 1, 5, 0.53, 0.02, 1.9, 2.3),
  Published('CNNDM', 'T5-base', 1, 3, 0.55, 0.04, 1.8, 2.2),
  Published('CNNDM', 'T5-large', 1, 3, 0.56, 0.11, 1.6, 1.7),
)
ALPHAS = {  # Table 3: (target, draft) -> alpha at temperatures 0 and 1
  ('T5-XXL, EnDe', 'unigram'): (0.08, 0.07),
  ('T5-XXL, EnDe', 'bigram'): (0.20, 0.19),
  ('T5-XXL, EnDe', 'T5-small'): (0.75, 0.62),
  ('T5-XXL, EnDe', 'T5-base'): (0.80, 0.68),
  ('T5-XXL, EnDe', 'T5-large'): (0.82, 0.71),
  ('T5-XXL, CNNDM', 'unigram'): (0.13, 0.08),
  ('T5-XXL, CNNDM', 'bigram'): (0.23, 0.16),
  ('GPT-like 97M, LM1B', 'unigram'): (0.03, 0.03),
  ('GPT-like 97M, LM1B', 'bigram'): (0.05, 0.05),
  ('GPT-like 97M, LM1B', 'GPT-like 6M'): (0.88, 0.89),
  ('LaMDA 137B', 'LaMDA 100M'): (0.61, 0.57),
  ('LaMDA 137B', 'LaMDA 2B'): (0.71, 0.71),
  ('LaMDA 137B', 'LaMDA 8B'): (0.75, 0.74),
}

# --- the tables: every row, then the published figures

SPEED_NOTES = (
  'α: by beta, the mean of sum min(p, q) over the contexts in texts of the target (temperature 0:'
  ' how often the most likely words agree); accepted, the share of drafted tokens that were'
  ' accepted, without those after a rejected one.',
  "c: a call of the draft model, v: the target's call on γ + 1 tokens, both in calls of the target"
  ' on one token.',
  'Tokens: per call of the target. Exp: predicted by the paper, (1 - α^(γ+1)) / ((1 - α)(γ c + 1))'
  ' with α by beta; with the width: tokens / (v + γ c). Emp: measured, compared with plain decoding'
  ' in turn, over whole texts, with the slowest and fastest round in brackets; calls only: without'
  ' encoder and prompt, which the formulas leave out.',
  report.SAME_NOTE,
)
ALPHA_NOTES = (
  'α by beta. Tokens: expected per call, (1 - α^(γ+1)) / (1 - α), and measured. Prompt lookup'
  ' proposes no law: its α is not defined.',
)
CONDITIONS = ('task', 'split', 'sentences', 'timed', 'max_len', 'repeats', *report.MACHINE)


def speeds(rows: Sequence[Row]) -> Drawn:
  """Predicted and measured speed-up (Tables 2 and 4)."""
  below = []
  for row in SPEEDS:
    label = f'{row.draft} (T5-XXL, {row.task}, paper)'
    texts = {'Draft': label, 'T': f'{row.temperature:g}', 'γ': str(row.gamma), 'Batch': '1'}
    texts |= {'α (beta)': f'{row.alpha:.2f}', 'c': f'{row.c:.2f}'}
    below.append(texts | {'Exp': f'{row.predicted:.1f}×', 'Emp': f'{row.measured:.1f}×'})
  return SPEED_TABLE.of(rows, below=below, notes=report.repetition_note(rows))


def alphas(rows: Sequence[Row]) -> Drawn:
  """Alpha, expected and measured tokens of every draft at its smallest gamma (Table 3)."""
  fixed = [row for row in rows if not is_failure(row) and row['plan'] != 'adaptive']
  smallest: dict[tuple[str, float], Row] = {}
  for row in sorted(fixed, key=lambda row: (row['batch'], row['gamma'])):
    smallest.setdefault((row['draft'], row['temperature']), row)
  below = []
  for (target, draft), published in ALPHAS.items():
    both = ', '.join(f'{alpha:.2f}' for alpha in published)
    below.append({'Draft': f'{draft} ({target}, paper)', 'T': '0, 1', 'α': both})
  return ALPHA_TABLE.of(smallest.values(), below=below)


def _expected(row: Row) -> float | None:
  alpha = row['alpha_beta']
  return None if alpha is None else theory.expected_tokens(alpha, row['gamma'])


def _gamma(row: Row) -> str | int | None:
  if 'gamma' not in row:  # it failed
    return row.get('plan')
  return f'≤ {row["gamma"]}' if row['plan'] == 'adaptive' else row['gamma']


def _order(row: Row) -> tuple[Any, ...]:
  # a draft whose training failed has no plan
  rank = row.get('plan') == 'adaptive', row.get('gamma', 0)
  return list(DRAFTS).index(row['draft']), row.get('temperature', 0), row.get('batch', 0), rank


SPEED_TABLE = Table(
  'Speculative decoding, Tables 2 and 4',
  (
    Column('Draft', lambda row: DRAFTS[row['draft']], names_row=True),
    Column('T', 'temperature', 'g', names_row=True),
    Column('γ', _gamma, names_row=True),
    Column('Batch', 'batch', names_row=True),
    Column('α (beta)', 'alpha_beta', '.3f'),
    Column('α (accepted)', 'alpha_accepted', '.3f'),
    Column('c', 'c', '.3f'),
    Column('v', 'v', '.2f'),
    Column('Tokens', 'tokens_per_call', '.2f'),
    Column('Exp', 'predicted', '.2f', '×'),
    Column('Exp, width', 'predicted_width', '.2f', '×'),
    dataclasses.replace(report.SPEED_UP, heading='Emp'),
    dataclasses.replace(report.CALLS_ONLY, heading='Emp, calls only'),
    report.SAME,
  ),
  SPEED_NOTES,
  CONDITIONS,
  sort=_order,
)
ALPHA_TABLE = Table(
  'Speculative decoding, Table 3',
  (
    Column('Draft', lambda row: DRAFTS[row['draft']]),
    Column('T', 'temperature', 'g'),
    Column('γ', 'gamma'),
    Column('α', 'alpha_beta', '.3f'),
    Column('Tokens expected', _expected, '.2f'),
    Column('Tokens', 'tokens_per_call', '.2f'),
  ),
  ALPHA_NOTES,
  CONDITIONS,
  sort=lambda row: (row['temperature'], -list(DRAFTS).index(row['draft'])),
)

# --- the picture

STYLES = {
  'large': drawing.Style(drawing.BLUE, 'o', ''),
  'small': drawing.Style(drawing.VERMILION, '^', ''),
  'bigram': drawing.Style(drawing.GREEN, 's', ''),
  'unigram': drawing.Style(drawing.PURPLE, 'D', ''),
  'lookup': drawing.Style(drawing.ORANGE, 'P', ''),
}


def picture(rows: Sequence[Row], path: pathlib.Path) -> None:
  """Draws measured against predicted speed-up: by the paper's formula, with its own points, and
  with the cost of the width. Filled: temperature 0; open: above."""
  timed = [row for row in rows if row.get('speedup_calls') is not None]
  figure, (left, right) = drawing.panels(2)
  theirs = [(row.predicted, row.measured) for row in SPEEDS]
  paper = drawing.Style(drawing.PUBLISHED, 'x', '')
  drawing.curve(left, theirs, paper, 'Leviathan et al. 2022, Table 4')
  _panel(left, timed, 'predicted', 'Theorem 3.8: tokens by α, wide calls cost nothing more', theirs)
  _panel(right, timed, 'predicted_width', 'Tokens per call as measured, over v + γ c', [])
  for draft in DRAFTS:
    if any(row['draft'] == draft for row in timed):
      drawing.curve(right, [], STYLES[draft], DRAFTS[draft])
  drawing.legend(figure, 6)
  drawing.save(figure, path)


def _panel(
  axes: Any, rows: Sequence[Row], name: str, title: str, theirs: Sequence[tuple[float, float]]
) -> None:
  """Draws our rows by one prediction, a line where prediction and measurement are equal, and a band
  where they differ by a tenth at most. The published points (`theirs`) set the scale too."""
  drawing.dress(axes, title, 'measured speed-up, calls only', 'predicted speed-up')
  points = []
  for row in rows:
    if row[name] is not None:
      points.append((row[name], row['speedup_calls']))
      hollow = {} if row['temperature'] == 0 else {'markerfacecolor': 'none'}
      drawing.curve(axes, points[-1:], STYLES[row['draft']], **hollow)
  if not points:
    drawing.mark_empty(axes)
  most = 1.1 * max([1.0, *itertools.chain(*points, *theirs)])
  axes.plot([0, most], [0, most], color='black', linewidth=0.5)
  axes.fill_between([0, most], [0, 0.9 * most], [0, 1.1 * most], color='black', alpha=0.07)
