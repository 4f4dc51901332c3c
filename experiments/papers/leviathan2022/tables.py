"""Tables 2 and 3 of Leviathan et al. 2022 from measured cells, the paper's rows below ours, before
they are drawn."""

from collections.abc import Iterable, Mapping

from experiments.lab.cells import latest, repetition_note
from experiments.lab.report import Column, Drawn, Table, between, text
from experiments.papers.leviathan2022.cells import DRAFTS, SpecCell
from experiments.papers.leviathan2022.published import ALPHAS, SPEEDS
from fastdec.decoding import theory
from fastdec.evaluation.agreement import NEAR_TIE

SPEED_NOTES = (
  'α: by beta, the mean of sum min(p, q) over the contexts that the target comes through in its own'
  ' texts (temperature'
  ' 0: how often the most likely words agree), and by acceptance, of the drafted tokens that a call'
  ' came to.',
  "c: a call of the draft model, v: the target's call on γ + 1 tokens, both in calls of the target"
  ' on one token.',
  'Tokens: per call of the target. Exp: predicted by the paper, (1 - α^(γ+1)) / ((1 - α)(γ c + 1))'
  ' with α by beta; with'
  ' the width: tokens / (v + γ c). Emp: measured over plain decoding in turn, whole texts, and in'
  ' brackets the slowest'
  ' and fastest round; calls alone: without encoder and prompt, which the formulas leave out.',
  "Same: texts that are plain greedy decoding's, token for token; in brackets, how many are not,"
  ' and by how much the'
  ' logits of the two tokens differ at most where such a text parts from the plain one. In float32'
  ' a cell fails where'
  f' that is not under {NEAR_TIE:g}, which the rounding of wide calls explains.',
)
ALPHA_NOTES = (
  'α by beta. Tokens: expected per call, (1 - α^(γ+1)) / (1 - α), and measured. Prompt lookup'
  ' proposes no law: its α is'
  ' not defined.',
)
CONDITIONS = (
  'task', 'split', 'sentences', 'timed', 'max_len', 'repeats', 'config', 'seed', 'dtype', 'device', 'processor', 'cpus',
  'xla_flags', 'commit',
)  # fmt: skip
WITHIN = 0.1  # how far measured may be from predicted, to be counted


def _gamma(cell: SpecCell) -> str:
  if cell.error is not None:
    return cell.plan
  return {'adaptive': f'≤ {cell.gamma}', 'best': f'{cell.gamma} (best)'}.get(cell.plan, cell.plan)


def _parted(cell: SpecCell) -> str:
  return (
    f'({cell.parted} of {cell.texts} part, by {text(cell.largest_gap, ".1g")})'
    if cell.parted
    else ''
  )


def _order(cell: SpecCell) -> tuple:
  rank = {'adaptive': 1000, 'best': 1001}.get(cell.plan) or int(cell.plan)
  return list(DRAFTS).index(cell.draft), cell.temperature, cell.batch, rank


SPEED_TABLE = Table(
  'Speculative decoding, Tables 2 and 4',
  (
    Column('Draft', lambda cell: DRAFTS[cell.draft], names_row=True),
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
    Column('Emp', 'speedup', '.2f', '×', beside=lambda cell: between(cell.spread)),
    Column('Emp, calls alone', 'speedup_calls', '.2f', '×'),
    Column('Same %', 'same_as_plain', '.1f', scale=100, beside=_parted),
  ),
  SPEED_NOTES,
  CONDITIONS,
  sort=_order,
)


def speed_table(cells: Iterable[SpecCell]) -> Drawn:
  """Predicted and measured speed-up of every cell, then the paper's rows."""
  found = list(latest(cells).values())
  theirs = []
  for row in SPEEDS:
    label = f'{row.draft} (T5-XXL, {row.task}, paper)'
    texts = {'Draft': label, 'T': f'{row.temperature:g}', 'γ': str(row.gamma), 'Batch': '1'}
    texts |= {'α (beta)': f'{row.alpha:.2f}', 'c': f'{row.c:.2f}'}
    theirs.append(texts | {'Exp': f'{row.predicted:.1f}×', 'Emp': f'{row.measured:.1f}×'})
  return SPEED_TABLE.of(found, below=theirs, notes=(*_close(found), *repetition_note(found)))


def alpha_table(cells: Iterable[SpecCell]) -> Drawn:
  """Alpha, expected and measured tokens of every draft at batch 1 and the smallest gamma, then the
  paper's alphas."""
  found = [cell for cell in latest(cells).values() if cell.error is None and cell.plan.isdigit()]
  temperatures = sorted({cell.temperature for cell in found})
  drafts = [name for name in reversed(DRAFTS) if any(cell.draft == name for cell in found)]
  gammas = {draft: min(int(cell.plan) for cell in found if cell.draft == draft) for draft in drafts}
  columns = [Column('Draft', lambda draft: DRAFTS[draft]), Column('γ', lambda draft: gammas[draft])]
  for temperature in temperatures:
    at = {
      cell.draft: cell
      for cell in found
      if (cell.gamma, cell.temperature) == (gammas[cell.draft], temperature)
    }
    columns += _alpha_columns(temperature, at)
  theirs = []
  for (target, draft), alphas in ALPHAS.items():
    row = {'Draft': f'{draft} ({target}, paper)'}
    row |= {f'T = {temperature}: α': f'{alpha:.2f}' for temperature, alpha in enumerate(alphas)}
    theirs.append(row)
  table = Table('Speculative decoding, Table 3', columns, ALPHA_NOTES, CONDITIONS)
  return table.of(drafts, cells=found, below=theirs)


def _alpha_columns(temperature: float, at: Mapping[str, SpecCell]) -> list[Column]:
  """The columns of one temperature; `at` has the drafts' cells there."""

  def expected(cell: SpecCell) -> float | None:
    if cell.alpha_beta is None or cell.gamma is None:
      return None
    return theory.expected_tokens(cell.alpha_beta, cell.gamma)

  name = f'T = {temperature:g}'
  return [
    Column(f'{name}: α', 'alpha_beta', '.3f', cell=at.get),
    Column(f'{name}: tokens expected', expected, '.2f', cell=at.get),
    Column(f'{name}: tokens', 'tokens_per_call', '.2f', cell=at.get),
    Column(f'{name}: speed-up', 'speedup', '.2f', '×', cell=at.get),
  ]


def _close(cells: Iterable[SpecCell]) -> list[str]:
  """How many cells came out as predicted."""
  pairs = [(cell.speedup_calls, cell.predicted_width) for cell in cells]
  known = [
    (speedup, predicted)
    for speedup, predicted in pairs
    if speedup is not None and predicted is not None
  ]
  close = sum(abs(speedup / predicted - 1) <= WITHIN for speedup, predicted in known)
  return (
    [f'Calls alone within {WITHIN:.0%} of what the width predicts: {close} of {len(known)}.']
    if known
    else []
  )
