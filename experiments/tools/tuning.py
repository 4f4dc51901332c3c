"""`experiments.tune` without its flags: drafters are loaded and checked, candidates made, tuned,
shown and saved."""

import dataclasses
import math
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from rich.console import Console

import fastdec as fd
from experiments.lab.packing import packed
from experiments.tools import candidates
from experiments.tools.candidates import Candidate, Family, Sizes
from experiments.tools.generation import Language
from experiments.tools.generation_settings import Settings
from fastdec.errors import UserError
from fastdec.evaluation.machine import computes_bfloat16
from fastdec.struct import Bound

# for each row decoded at once: more than are timed, of which some may be too long
MOST_PROMPTS = 128


@dataclasses.dataclass(frozen=True)
class Drafters:
  """Folders of what can draft, None where there is none."""

  draft: str | None = None
  heads: str | None = None
  draft_head: str | None = None
  lookup: bool = True
  choices: str | None = None  # the tree of the heads
  lookahead: bool = True

  def __post_init__(self) -> None:
    if self.choices is not None and self.heads is None:
      raise UserError(
        f'--choices={self.choices} is about a tree of drafts: give --heads=folder too'
      )


@dataclasses.dataclass(frozen=True)
class Asked:
  """What is to be tuned, and what has to be kept."""

  settings: Settings  # without a drafter
  drafters: Drafters
  sizes: Sizes
  promise: str | None
  # as of `fd.load`; the first is what the others are compared with
  dtypes: tuple[str | None, ...] = (None,)
  rows: tuple[int, ...] = (1,)  # prompts decoded at once

  def __post_init__(self) -> None:
    if self.promise == 'exact' and self.settings.samples:
      raise UserError(
        f'--temperature={self.settings.temperature:g} samples, which is never exact:'
        ' give --promise=law'
      )
    if self.promise == 'law' and not self.settings.samples:
      raise UserError('--promise=law is about sampling: give --temperature too, or --promise=exact')
    if len(set(self.dtypes)) < len(self.dtypes):
      raise UserError(
        f'--dtypes={",".join(map(str, self.dtypes))} has a type twice: give each once'
      )


@dataclasses.dataclass(frozen=True)
class InType:
  """The model in one type of numbers, with candidates whose drafters are in the same type."""

  target: Bound
  candidates: Mapping[str, Candidate]

  @property
  def strategies(self) -> dict[str, Any]:
    return {name: one.strategy for name, one in self.candidates.items()}


def tune(
  console: Console, asked: Asked, prompts: Sequence[str], budget: float, output: pathlib.Path | None
) -> None:
  """Tunes, prints what was found, and writes it."""
  together = math.lcm(*asked.rows)
  prompts = prompts[:: -(-len(prompts) // (MOST_PROMPTS * together))]
  begun = time.perf_counter()
  trees: list[list[list[int]]] = []  # of the heads: one, fitted in the first type
  types = {dtype: _in_type(console, asked, dtype, prompts, trees) for dtype in asked.dtypes}
  first, *others = types
  language = Language.of(asked.settings, prompts)
  model, params = types[first].target
  tuned = fd.tune(
    model,
    params,
    types[first].strategies,
    [language.ids(prompt) for prompt in prompts],
    promise=asked.promise,
    plain=asked.settings.plain,
    max_len=asked.settings.max_len,
    key=jax.random.key(asked.settings.seed) if asked.settings.samples else None,
    rows=asked.rows,
    dtype=first,
    types={str(dtype): (*types[dtype].target, types[dtype].strategies) for dtype in others},
    budget=max(budget - (time.perf_counter() - begun), 1e-3),
    said=lambda line: console.print(line, style='dim'),
  )
  chosen = (
    one.part for one in types[tuned.dtype].candidates.values() if one.strategy is tuned.strategy
  )
  file = tuned.save(asked.settings.model, next(chosen, None), output)
  console.print(f'\n{tuned}\n\n{tuned.why}')
  in_type = '' if tuned.dtype is None else f' in {tuned.dtype}'
  console.print(
    f'{tuned.prompts} prompts, {tuned.rows} at once{in_type}, at most {tuned.max_len} tokens;'
    f' {tuned.seconds:.0f} s, of'
    f' which {tuned.compile_seconds:.0f} s were compiling; {tuned.machine}'
  )
  console.print(f'Written to {file}; use it by --strategy={"tuned" if output is None else file}')


def types_of(names: Sequence[str] | None) -> tuple[str | None, ...]:
  """The types of numbers to try: those that are named, or of 'all' those that this machine has
  units for."""
  if names is None:
    return (None,)
  if list(names) == ['all']:
    return ('float32', *(['bfloat16'] if computes_bfloat16() else []), 'int8')
  if not names:
    raise UserError('--dtypes= names no type: give some such as float32,int8, or all')
  return tuple(names)


def _in_type(
  console: Console,
  asked: Asked,
  dtype: str | None,
  prompts: Sequence[str],
  trees: list[list[list[int]]],
) -> InType:
  """The model and all candidates in a type; `trees` gets the heads' tree, or has it."""
  asked = dataclasses.replace(asked, settings=dataclasses.replace(asked.settings, dtype=dtype))
  languages = {name: Language.of(settings, prompts) for name, settings in _settings(asked).items()}
  language = languages['']
  folder = language.opened[asked.settings.model]
  target, ids = (
    Bound(*packed(folder.model, folder.params())),
    [language.ids(prompt) for prompt in prompts],
  )
  return InType(
    target, candidates.in_turn(_families(console, asked, languages, target, ids, trees))
  )


def _settings(asked: Asked) -> dict[str, Settings]:
  """The settings of each drafter that is given, by its name; '' of none."""
  folders = {
    'draft': asked.drafters.draft,
    'heads': asked.drafters.heads,
    'draft_head': asked.drafters.draft_head,
  }
  given = {name: folder for name, folder in folders.items() if folder is not None}
  return {'': asked.settings} | {
    name: dataclasses.replace(asked.settings, **{name: folder}) for name, folder in given.items()
  }


def _families(
  console: Console,
  asked: Asked,
  languages: dict[str, Language],
  target: Bound,
  ids: list[list[int]],
  trees: list[list[list[int]]],
) -> list[Family]:
  """Candidates of every drafter; see `_in_type`."""
  sizes, families = asked.sizes, []
  for language in languages.values():
    draft, heads, network = language.drafter()
    if draft is not None:
      families += candidates.of_draft(language.settings, sizes, draft)
    if network is not None:
      families += candidates.of_network(language.settings, sizes, network)
    if heads is not None:
      choices = asked.drafters.choices
      if not trees and choices is not None:
        trees.append(candidates.whole_tree(choices))
      elif not trees:
        console.print(f'fitting a tree to {language.settings.heads}', style='dim')
        most = max(sizes.nodes or candidates.TREES)
        trees.append(candidates.tree_of(target, heads, ids, asked.settings.max_len, most))
      families += candidates.of_heads(
        language.settings, sizes, heads, trees[0], asked.promise == 'relaxed'
      )
  if asked.drafters.lookup:
    families += candidates.of_lookup(asked.settings, sizes)
  if asked.drafters.lookahead:
    families += candidates.of_lookahead(asked.settings)
  return families
