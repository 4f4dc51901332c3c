"""`experiments.tune` without its flags: loads drafters, tunes in each type, shows and saves.

Types of numbers and numbers of rows are tuned one after another, each with its share of the budget.
"""

import dataclasses
import logging
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

import fastdec as fd
from experiments.tools.generation import Language
from experiments.tools.generation_settings import Settings
from experiments.tools.strategies import strategy_of
from fastdec.decoding.strategy import TREES, in_turn, lengths
from fastdec.errors import UserError
from fastdec.evaluation.machine import computes_bfloat16
from fastdec.evaluation.tree_calibration import calibrate
from fastdec.folders import packed
from fastdec.struct import Bound
from fastdec.tuning.tune import OutOfTime

# for each row decoded at once: more than are timed, of which some may be too long
MOST_PROMPTS = 128
CALIBRATED = 64  # prompts that a tree for heads is found on
MARGIN = 1.1  # between what was timed at different times: a smaller lead may be the machine's

Tree = Sequence[Sequence[int]]
Candidate = tuple[Any, str | None]  # a strategy, and the folder of its heads or draft


@dataclasses.dataclass(frozen=True)
class Asked:
  """The flags of `experiments.tune`, checked against each other."""

  settings: Settings  # without a drafter
  drafters: Mapping[str, Mapping[str, Any]]  # settings of each, by its name: {'heads': folder}
  choices: str | None = None  # the tree of the heads
  drafted: Sequence[int] | None = None  # tokens in a row; None: those that suit the drafter
  nodes: Sequence[int] | None = None  # of trees, the root included
  promise: str | None = None
  dtypes: tuple[str | None, ...] = (None,)  # as of `fd.load`
  rows: tuple[int, ...] = (1,)  # prompts decoded at once

  def __post_init__(self) -> None:
    if self.choices is not None and 'heads' not in self.drafters:
      raise UserError(
        f'--choices={self.choices} is about a tree of drafts: give --heads=folder too'
      )
    if self.promise == 'exact' and self.settings.samples:
      raise UserError(
        f'--temperature={self.settings.temperature:g} samples, which is never exact:'
        ' give --promise=law'
      )
    if self.promise == 'law' and not self.settings.samples:
      raise UserError('--promise=law is about sampling: give --temperature too, or --promise=exact')


class Said(logging.Handler):
  """Shows what `fd.tune` logs."""

  def __init__(self, console: Console) -> None:
    super().__init__()
    self.console = console

  def emit(self, record: logging.LogRecord) -> None:
    self.console.print(record.getMessage(), style='dim')


def tune(
  console: Console, asked: Asked, prompts: Sequence[str], budget: float, output: pathlib.Path | None
) -> None:
  """Tunes in each type and with each number of rows, prints the tables, and writes the best."""
  ends = time.perf_counter() + budget
  log = logging.getLogger('fastdec.tuning')
  log.handlers, log.propagate = [Said(console)], False
  log.setLevel(logging.INFO)
  settings = asked.settings
  prompts = prompts[:: -(-len(prompts) // (MOST_PROMPTS * max(asked.rows)))]
  tree = None if asked.choices is None else whole_tree(asked.choices)
  found: list[tuple[fd.Tuned, str | None]] = []
  left = len(asked.dtypes) * len(asked.rows)
  for dtype in asked.dtypes:
    languages = _languages(asked, dtype, prompts)
    language = languages['']
    folder = language.opened[settings.model]
    model, params = packed(folder.model, folder.params())
    ids = [language.ids(prompt) for prompt in prompts]
    drafters = {name: one.drafter() for name, one in languages.items()}
    if 'heads' in asked.drafters and tree is None:
      console.print(f'fitting a tree to {asked.drafters["heads"]["heads"]}', style='dim')
      tree = _fitted(Bound(model, params), drafters['heads'][1], ids, asked)
    candidates = _candidates(asked, languages, drafters, tree or [])
    for rows in asked.rows:
      console.print(f'{_named(rows, dtype)}:')
      share, left = (ends - time.perf_counter()) / left, left - 1
      try:
        tuned = fd.tune(
          model,
          params,
          [settings.plain, *(strategy for strategy, _ in candidates)],
          ids,
          settings.max_len,
          rows,
          relaxed=asked.promise == 'relaxed',
          budget=max(share, 1e-3),
        )
      except OutOfTime as error:
        console.print(f'{error}\n')
        continue
      parts = (part for strategy, part in candidates if strategy is tuned.strategy)
      found.append((dataclasses.replace(tuned, dtype=dtype), next(parts, None)))
      console.print(f'{tuned}\n{tuned.why}\n')
  if not found:
    raise UserError(f'--budget={budget:g}s ended before one round: give more')
  first = found[0][0]
  best, part = found[0]
  for one, other_part in found[1:]:
    if one.tokens_per_second > MARGIN * best.tokens_per_second:
      best, part = one, other_part
  best = dataclasses.replace(best, why=best.why + _compared(best, first))
  file = best.save(settings.model, part, output)
  console.print(
    f'{best.why}\n{_named(best.rows, best.dtype)}, at most {best.max_len} tokens:'
    f' {best.prompts} prompts; {best.seconds:.0f} s, of which {best.compile_seconds:.0f} s were'
    f' compiling; {best.machine}'
  )
  console.print(f'Written to {file}; use it by --strategy={"tuned" if output is None else file}')


def types_of(names: Sequence[str] | None) -> tuple[str | None, ...]:
  """Returns the types that are named; of 'all' those that this machine has units for."""
  if names is None:
    return (None,)
  if list(names) == ['all']:
    return ('float32', *(['bfloat16'] if computes_bfloat16() else []), 'int8')
  if not names:
    raise UserError('--dtypes= names no type: give some such as float32,int8, or all')
  return tuple(dict.fromkeys(names))


def whole_tree(choices: str) -> Tree:
  """Reads --choices in an order of which every beginning is a tree: its own, or else by depth."""
  paths = fd.medusa_choices(choices)
  known: set[tuple[int, ...]] = {()}
  for path in paths:
    if tuple(path[:-1]) not in known:
      return sorted(paths, key=len)
    known.add(tuple(path))
  return paths


def _languages(asked: Asked, dtype: str | None, prompts: Sequence[str]) -> dict[str, Language]:
  """Opens and checks the model with each drafter by its name, and with none by ''."""
  settings = dataclasses.replace(asked.settings, dtype=dtype)
  found = {'': Language.of(settings, prompts)}
  for name, changes in asked.drafters.items():
    found[name] = Language.of(dataclasses.replace(settings, **changes), prompts)
  return found


def _candidates(
  asked: Asked, languages: Mapping[str, Language], drafters: Mapping[str, Any], tree: Tree
) -> list[Candidate]:
  """Lists strategies: the first of each drafter, then the second of each, and so on."""
  families = []
  for name, changes in asked.drafters.items():
    draft, heads, network = drafters[name]
    base = strategy_of(languages[name].settings, draft, heads, network)
    found = [base.sizes(asked.drafted, asked.nodes)]
    if heads is not None:
      found += _of_heads(asked, heads, tree)
    part = changes[name] if base.part else None
    families += [[(strategy, part) for strategy in family] for family in found]
  return in_turn(*families)


def _of_heads(asked: Asked, heads: Any, tree: Tree) -> list[list[Any]]:
  """Lists trees of several sizes, and strategies that are not lossless if those may take part."""
  settings, paths = asked.settings, [list(path) for path in tree]
  rule = settings.sampling if settings.temperature else fd.Exact()
  wanted = None if asked.nodes is None else [n - 1 for n in asked.nodes]
  sizes = lengths(wanted, len(paths), [n - 1 for n in TREES])
  trees = [fd.Medusa(heads, paths[:n], rule) for n in sizes]
  relaxed: list[Any] = []
  if asked.promise == 'relaxed' and not settings.temperature:
    relaxed += [fd.Blockwise(heads, rule=fd.TopN(n)) for n in (2, 3)]
  if asked.promise == 'relaxed' and paths:
    typical = fd.Typical(temperature=settings.temperature or 1.0)
    relaxed.append(fd.Medusa(heads, paths[: max(TREES) - 1], typical))
  return [trees, relaxed]


def _fitted(target: Bound, heads: Any, prompts: Sequence[Sequence[int]], asked: Asked) -> Tree:
  """Finds paths of ranks, in the order in which they pay for these heads on the model's text."""
  some = list(prompts)[:CALIBRATED]
  most = max(asked.nodes or TREES)
  max_len = asked.settings.max_len
  return calibrate(target, Bound(*heads), some, most, max_len, min(16, len(some))).tree.choices


def _named(rows: int, dtype: str | None) -> str:
  """Says the number of rows and the type."""
  return f'{rows} at once' + (f' in {dtype}' if dtype else '')


def _compared(best: fd.Tuned, first: fd.Tuned) -> str:
  """Says how the best compares with the first type and number of rows."""
  if best is first:
    return ''
  ratio = best.tokens_per_second / first.tokens_per_second
  ours, theirs = (_named(one.rows, one.dtype) for one in (best, first))
  text = f'; {ours}, {ratio:.2f} times the tokens a second of {theirs}'
  if best.dtype == first.dtype or best.table[0].same is None:
    return text
  both = list(zip(best.texts, first.texts, strict=False))
  same = sum(one == other for one, other in both) / len(both)
  return f'{text}; {100 * same:.1f} % of its greedy texts are those of {first.dtype}'
