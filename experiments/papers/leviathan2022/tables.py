"""Tables 2 and 3 of Leviathan et al. 2022 from measured cells, the paper's rows below ours, before they are drawn."""

from collections.abc import Iterable, Sequence

from experiments.lab.cells import conditions_note, latest, repetition_note
from experiments.lab.report import MISSING, Entry, Table, text
from experiments.papers.leviathan2022.cells import DRAFTS, SpecCell
from experiments.papers.leviathan2022.published import ALPHAS, SPEEDS
from fastdec.decoding import theory
from fastdec.evaluation.agreement import NEAR_TIE

SPEED_NOTES = (
  'α: by beta, the mean of sum min(p, q) over the contexts that the target comes through in its own texts (temperature'
  ' 0: how often the most likely words agree), and by acceptance, of the drafted tokens that a call came to.',
  "c: a call of the draft model, v: the target's call on γ + 1 tokens, both in calls of the target on one token.",
  'Tokens: per call of the target. Exp: predicted by the paper, (1 - α^(γ+1)) / ((1 - α)(γ c + 1)) with α by beta; with'
  ' the width: tokens / (v + γ c). Emp: measured over plain decoding in turn, whole texts, and in brackets the slowest'
  ' and fastest round; calls alone: without encoder and prompt, which the formulas leave out.',
  "Same: texts that are plain greedy decoding's, token for token; in brackets, how many are not, and by how much the"
  ' logits of the two tokens differ at most where such a text parts from the plain one. In float32 a cell fails where'
  f' that is not under {NEAR_TIE:g}, which the rounding of wide calls explains.',
)
ALPHA_NOTES = (
  'α by beta. Tokens: expected per call, (1 - α^(γ+1)) / (1 - α), and measured. Prompt lookup proposes no law: its α is'
  ' not defined.',
)
CONDITIONS = (
  'task', 'split', 'sentences', 'timed', 'max_len', 'repeats', 'config', 'seed', 'dtype', 'device', 'processor', 'cpus',
  'xla_flags', 'commit',
)  # fmt: skip
WITHIN = 0.1  # how far measured may be from predicted, to be counted


def speed_table(cells: Iterable[SpecCell]) -> Table:
  """Predicted and measured speed-up of every cell, then the paper's rows."""
  found = latest(cells).values()
  rows = [_speed_row(cell) for cell in sorted(found, key=_order)]
  for row in SPEEDS:
    rows.append(tuple(map(Entry, (
      f'{row.draft} (T5-XXL, {row.task}, paper)', f'{row.temperature:g}', str(row.gamma), '1', f'{row.alpha:.2f}',
      MISSING, f'{row.c:.2f}', MISSING, MISSING, f'{row.predicted:.1f}×', MISSING, f'{row.measured:.1f}×', MISSING,
      MISSING,
    ))))  # fmt: skip
  header = (
    'Draft', 'T', 'γ', 'Batch', 'α (beta)', 'α (accepted)', 'c', 'v', 'Tokens', 'Exp', 'Exp, width', 'Emp',
    'Emp, calls alone', 'Same %',
  )  # fmt: skip
  notes = (*SPEED_NOTES, *_close(found), *repetition_note(found), *conditions_note(found, CONDITIONS))
  return Table('Speculative decoding, Tables 2 and 4', header, tuple(rows), notes)


def _speed_row(cell: SpecCell) -> tuple[Entry, ...]:
  gamma = {'adaptive': f'≤ {cell.gamma}', 'best': f'{cell.gamma} (best)'}.get(cell.plan, cell.plan)
  if cell.error is not None:
    start = (DRAFTS[cell.draft], f'{cell.temperature:g}', cell.plan, str(cell.batch))
    return tuple(map(Entry, (*start, f'failed: {" ".join(cell.error.split())}', *[MISSING] * 9)))
  same = None if cell.same_as_plain is None else 100 * cell.same_as_plain
  parted = f'({cell.parted} of {cell.texts} part, by {text(cell.largest_gap, ".1g")})' if cell.parted else ''
  spread = '' if cell.spread is None else f'({cell.spread[0]:.2f} .. {cell.spread[1]:.2f})'
  return (
    Entry(DRAFTS[cell.draft]), Entry(f'{cell.temperature:g}'), Entry(gamma), Entry(str(cell.batch)),
    Entry(text(cell.alpha_beta, '.3f')), Entry(text(cell.alpha_accepted, '.3f')), Entry(text(cell.c, '.3f')),
    Entry(text(cell.v, '.2f')), Entry(text(cell.tokens_per_call, '.2f')), Entry(text(cell.predicted, '.2f', '×')),
    Entry(text(cell.predicted_width, '.2f', '×')), Entry(text(cell.speedup, '.2f', '×'), spread),
    Entry(text(cell.speedup_calls, '.2f', '×')), Entry(text(same, '.1f'), parted),
  )  # fmt: skip


def alpha_table(cells: Iterable[SpecCell]) -> Table:
  """Alpha, expected and measured tokens of every draft at batch 1 and the smallest gamma, then the paper's alphas."""
  found = [cell for cell in latest(cells).values() if cell.error is None and cell.plan.isdigit()]
  temperatures = sorted({cell.temperature for cell in found})
  rows = []
  for draft in [name for name in reversed(DRAFTS) if any(cell.draft == name for cell in found)]:
    gamma = min(cell.gamma for cell in found if cell.draft == draft)
    chosen = {c.temperature: c for c in found if (c.draft, c.gamma) == (draft, gamma)}
    entries = [_alpha_entries(chosen.get(temperature)) for temperature in temperatures]
    rows.append((Entry(DRAFTS[draft]), Entry(str(gamma)), *(entry for part in entries for entry in part)))
  for (target, draft), alphas in ALPHAS.items():
    by_temperature = dict(zip((0.0, 1.0), alphas, strict=True))
    entries = [(Entry(text(by_temperature.get(t), '.2f')), *[Entry(MISSING)] * 3) for t in temperatures]
    label = Entry(f'{draft} ({target}, paper)')
    rows.append((label, Entry(MISSING), *(entry for part in entries for entry in part)))
  parts = ('α', 'tokens expected', 'tokens', 'speed-up')
  header = ('Draft', 'γ', *(f'T = {temperature:g}: {part}' for temperature in temperatures for part in parts))
  return Table(
    'Speculative decoding, Table 3', header, tuple(rows), (*ALPHA_NOTES, *conditions_note(found, CONDITIONS))
  )


def _alpha_entries(cell: SpecCell | None) -> tuple[Entry, ...]:
  if cell is None:
    return (Entry(MISSING),) * 4
  expected = None if cell.alpha_beta is None else theory.expected_tokens(cell.alpha_beta, cell.gamma)
  return (
    Entry(text(cell.alpha_beta, '.3f')), Entry(text(expected, '.2f')), Entry(text(cell.tokens_per_call, '.2f')),
    Entry(text(cell.speedup, '.2f', '×')),
  )  # fmt: skip


def _order(cell: SpecCell) -> tuple:
  rank = {'adaptive': 1000, 'best': 1001}.get(cell.plan) or int(cell.plan)
  return list(DRAFTS).index(cell.draft), cell.temperature, cell.batch, rank


def _close(cells: Iterable[SpecCell]) -> Sequence[str]:
  """How many cells came out as predicted."""
  known = [cell for cell in cells if cell.speedup_calls is not None and cell.predicted_width is not None]
  close = sum(abs(cell.speedup_calls / cell.predicted_width - 1) <= WITHIN for cell in known)
  return [f'Calls alone within {WITHIN:.0%} of what the width predicts: {close} of {len(known)}.'] if known else []
