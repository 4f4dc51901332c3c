"""`experiments.tune` without its flags: drafters are loaded and checked, candidates made, tuned, shown and saved."""

import dataclasses
import pathlib
import time
from collections.abc import Sequence

import jax
from rich.console import Console

import fastdec as fd
from experiments.lab.packing import packed
from experiments.tools import candidates
from experiments.tools.candidates import Family, Sizes
from experiments.tools.generation import Language, Settings
from fastdec.errors import UserError
from fastdec.struct import Bound

MOST_PROMPTS = 128  # for each row decoded at once: more than are timed, of which some may be too long


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
      raise UserError(f'--choices={self.choices} is about a tree of drafts: give --heads=folder too')


@dataclasses.dataclass(frozen=True)
class Asked:
  """What is to be tuned, and what has to be kept."""

  settings: Settings  # without a drafter
  drafters: Drafters
  sizes: Sizes
  promise: str | None

  def __post_init__(self) -> None:
    if self.promise == 'exact' and self.settings.samples:
      raise UserError(f'--temperature={self.settings.temperature:g} samples, which is never exact: give --promise=law')
    if self.promise == 'law' and not self.settings.samples:
      raise UserError('--promise=law is about sampling: give --temperature too, or --promise=exact')


def tune(
  console: Console, asked: Asked, prompts: Sequence[str], rows: int, budget: float, output: pathlib.Path | None
) -> None:
  """Tunes, prints what was found, and writes it."""
  prompts = prompts[:: -(-len(prompts) // (MOST_PROMPTS * rows))]
  languages = {name: Language.of(settings, prompts) for name, settings in _settings(asked).items()}
  language = languages['']
  ids = [language.ids(prompt) for prompt in prompts]
  folder = language.opened[asked.settings.model]
  target = Bound(*packed(folder.model, folder.params()))
  begun = time.perf_counter()
  families = _families(console, asked, languages, target, ids)
  found = candidates.in_turn(families)
  tuned = fd.tune(
    target.module,
    target.params,
    {name: one.strategy for name, one in found.items()},
    ids,
    promise=asked.promise,
    plain=asked.settings.plain,
    max_len=asked.settings.max_len,
    key=jax.random.key(asked.settings.seed) if asked.settings.samples else None,
    rows=rows,
    budget=max(budget - (time.perf_counter() - begun), 1e-3),
    said=lambda line: console.print(line, style='dim'),
  )
  part = found[tuned.name].part if tuned.name in found else None
  file = tuned.save(asked.settings.model, part, output)
  console.print(f'\n{tuned}\n\n{tuned.why}')
  console.print(
    f'{tuned.prompts} prompts, {rows} at once, at most {tuned.max_len} tokens; {tuned.seconds:.0f} s, of which'
    f' {tuned.compile_seconds:.0f} s were compiling; {tuned.machine}'
  )
  console.print(f'Written to {file}; use it by --strategy={"tuned" if output is None else file}')


def _settings(asked: Asked) -> dict[str, Settings]:
  """The settings of each drafter that is given, by its name; '' of none."""
  folders = {'draft': asked.drafters.draft, 'heads': asked.drafters.heads, 'draft_head': asked.drafters.draft_head}
  given = {name: folder for name, folder in folders.items() if folder is not None}
  return {'': asked.settings} | {
    name: dataclasses.replace(asked.settings, **{name: folder}) for name, folder in given.items()
  }


def _families(
  console: Console, asked: Asked, languages: dict[str, Language], target: Bound, ids: list[list[int]]
) -> list[Family]:
  """Candidates of every drafter."""
  sizes, families = asked.sizes, []
  for language in languages.values():
    draft, heads, network = language.drafter()
    if draft is not None:
      families += candidates.of_draft(language.settings, sizes, draft)
    if network is not None:
      families += candidates.of_network(language.settings, sizes, network)
    if heads is not None:
      if asked.drafters.choices is None:
        console.print(f'fitting a tree to {language.settings.heads}', style='dim')
        tree = candidates.tree_of(target, heads, ids, asked.settings.max_len, max(sizes.nodes or candidates.TREES))
      else:
        tree = candidates.whole_tree(asked.drafters.choices)
      families += candidates.of_heads(language.settings, sizes, heads, tree, asked.promise == 'relaxed')
  if asked.drafters.lookup:
    families += candidates.of_lookup(asked.settings, sizes)
  if asked.drafters.lookahead:
    families += candidates.of_lookahead(asked.settings)
  return families
