"""Finds the fastest way to decode here: on this machine, with this model, for such prompts.

Example:
  fastdec tune --model=folder --prompts=lines.txt --draft=eagle --draft=smaller --heads=heads
  fastdec generate --model=folder --prompt='A man in' --strategy=tuned --draft=eagle

Greedy decoding, prompt lookup, lookahead and all that --draft and --heads can do, in several sizes,
decode the same prompts in turn; those that fall behind are dropped. The command chooses, within
--budget, the fastest one that keeps --promise:

  exact     the output is the model's own greedy output (the default), as far as rounding lets it
            be the same text: docs/own/exact.md
  law       tokens have the law of sampling at --temperature (the default where that is above 0)
  relaxed   anything goes: top-n and typical acceptance of heads take part too

One token a call takes part, and is kept unless something is faster beyond noise. Printed for each
candidate: tokens a call; milliseconds a call and a token, prompts included; tokens a second; how
many times as fast as plain decoding, with the interval that holds 95 % of 1000 samples of the
prompts; and how many texts equal greedy decoding's. The choice is written beside the model, as
tuned.json (in ~/.local/share/fastdec where the model's folder cannot be written). --strategy=tuned
of the other commands, and fd.load_tuned, read it. On a CPU the first run of a minute or more also
times the forms of a product, for all commands on this machine (fastdec/kernels/forms.py).

--dtypes=float32,int8,int8w tunes in several types, drafters in the type of the model (all: float32,
int8, and where the machine has units for bfloat16 that and int8w). Without it the model has its own
type, and a draft int8 where the CPU has units for that. In another type it is another model, whose
own greedy output is kept. --batches=1,8 tunes with several numbers of prompts decoded at once. Each
has its share of the budget. The first stays unless another is more than 10 % faster.

Heads are tried as a chain, and as trees that are fitted to the prompts, once for all types; a draft
network also together with prompt lookup, in one tree.
--strategy, once or more, tries others that draft with nothing: --strategy='jacobi(k=4)'.
"""

import argparse
import dataclasses
import logging
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import fastdec as fd
from fastdec.cli import cores, opening
from fastdec.cli.flags import Parser, duration, one_of, wholes
from fastdec.cli.prompts import read_prompts
from fastdec.decoding.description import parse, usual_for
from fastdec.decoding.strategy import TREES, choose_lengths, interleave, with_settings
from fastdec.errors import UserError
from fastdec.evaluation.machine import computes_bfloat16
from fastdec.evaluation.tree_calibration import calibrate
from fastdec.files import place_to_write
from fastdec.kernels.packing import pack_if_faster
from fastdec.struct import Bound
from fastdec.text import programs
from fastdec.text.drafting import draft_of
from fastdec.text.load import load_heads, open_fast, type_of_draft
from fastdec.tuning.tune import OutOfTime
from fastdec.tuning.tuned import file_to_write

# For each row decoded at once. They are more than are timed, because some may be too long.
MEASURES = 60.0  # seconds of a budget, from which on products are timed first, which takes a few
MOST_PROMPTS = 128
CALIBRATED = 64  # prompts that a tree for heads is fitted to
# Another type or number of rows is timed at another time: a smaller lead may be the machine's.
MARGIN = 1.1


class Candidate(NamedTuple):
  """A strategy, and the folder of its heads or draft."""

  strategy: Any
  folder: str | None = None


def main(words: Sequence[str]) -> None:
  args = _read(words)
  cores.restrict(args.model, max(args.batches), args.cores)  # before JAX looks for them
  programs.keep()

  # Mistakes in the flags show before any work.
  dtypes = _types(args.dtypes)
  sampling = opening.flags_of(args, opening.SAMPLING)
  plain = with_settings(fd.Greedy(), sampling)
  if args.promise == 'exact' and plain.sampling is not None:
    raise UserError('--temperature samples, which is never exact: give --promise=law')
  if args.promise == 'law' and plain.sampling is None:
    raise UserError('--promise=law is about sampling: give --temperature too, or --promise=exact')
  for text in args.strategy:
    _in_words(text, sampling)
  # Another place than that of --output: the model's folder, or the user's own.
  output = place_to_write(args.output or file_to_write(args.model))

  # Take prompts from the whole file, and check them and the types of numbers.
  prompts = read_prompts(pathlib.Path(args.prompts))
  most = MOST_PROMPTS * max(args.batches)
  prompts = prompts[:: -(-len(prompts) // most)]
  prompts, template = opening.asked(args, prompts), opening.variables(args)
  generators = {}
  for dtype in dtypes:
    generators[dtype] = opening.open_without_weights(
      args.model, dtype, prompts, args.max_len, template=template
    )

  # Tune in each type of numbers and with each number of rows. Each has its share of the time left.
  _show_log()
  deadline = time.perf_counter() + args.budget
  if args.budget >= MEASURES:
    programs.measure_forms()
  runs = left = len(dtypes) * len(args.batches)  # `left`: those that are still to come
  results: list[tuple[fd.Tuned, str | None]] = []
  too_short = ''
  trees: dict[str, list[list[int]]] = {}  # for heads, by their folders
  for dtype, generator in generators.items():
    if left < runs and time.perf_counter() >= deadline:
      print(f'the budget ended before {dtype}\n')
      break
    ids = [generator.read(prompt)[0] for prompt in prompts]
    opened = open_fast(args.model, dtype)
    heads, drafts = [], []
    for path in args.heads:
      heads.append((pack_if_faster(*load_heads(path, dtype or opened.dtype)), path))
    for path in args.draft:
      of_draft = type_of_draft(opened, dtype)
      drafts.append((draft_of(path, of_draft, None, generator.model, generator.tokenizer), path))
    target = Bound(*pack_if_faster(generator.model, opened.params()))
    candidates = _candidates(args, sampling, heads, drafts, target, ids, trees)
    for rows in args.batches:
      print(f'{_title(rows, dtype)}:', flush=True)
      share = (deadline - time.perf_counter()) / left
      left -= 1
      try:
        tuned = fd.tune(
          target.module,
          target.params,
          [plain, *(candidate.strategy for candidate in candidates)],
          ids,
          args.max_len,
          rows,
          relaxed=args.promise == 'relaxed',
          budget=max(share, 1e-3),
        )
      except OutOfTime as error:
        too_short = str(error)
        print(f'{error}\n')
        continue
      folder = None
      for candidate in candidates:
        if candidate.strategy is tuned.strategy:
          folder = candidate.folder
      results.append((dataclasses.replace(tuned, dtype=dtype), folder))
      print(f'{tuned}\n{tuned.why}\n')
  if not results:
    each = f' (for each of {runs} runs)' if runs > 1 else ''
    raise UserError(f'--budget={args.budget:g}s is too short: {too_short}{each}')
  _save(args, results, output)


def _read(words: Sequence[str]) -> argparse.Namespace:
  parser = Parser('tune', __doc__)
  opening.add_model(parser)
  opening.add_prompts(parser)
  parser.add_argument(
    '--draft', action='append', default=[], help='a smaller model, or the folder of a draft network'
  )
  parser.add_argument('--heads', action='append', default=[], help='folder of prediction heads')
  parser.add_argument(
    '--strategy', action='append', default=[], help="one more to try, such as 'jacobi(k=4)'"
  )
  parser.add_argument('--no-lookup', action='store_true', help='leaves prompt lookup out')
  parser.add_argument('--no-lookahead', action='store_true', help='leaves lookahead out')
  parser.add_argument('--gammas', type=wholes(1), help='tokens drafted in a row, such as 2,4,8')
  parser.add_argument('--nodes', type=wholes(2), help='nodes of trees, such as 8,16,32')
  parser.add_argument(
    '--promise', type=one_of('exact', 'law', 'relaxed'), help='what the output must keep'
  )
  parser.add_argument('--batches', type=wholes(1), default=[1], help='prompts at once, such as 1,8')
  parser.add_argument('--dtypes', help="such as float32,int8, or all (the model's own)")
  parser.add_argument('--budget', type=duration, default=300.0, help='time for all of it (5m)')
  parser.add_argument(
    '--output', help="file to write (tuned.json in the model's folder, or named after its file)"
  )
  opening.add_sampling(parser)
  opening.add_length(parser)
  opening.add_cores(parser)
  return parser.read(words)


def _types(names: str | None) -> list[str | None]:
  """Lists the types of --dtypes; for 'all' those that this machine has units for."""
  if names is None:
    return [None]
  if names == 'all':
    if computes_bfloat16():
      return ['float32', 'bfloat16', 'int8w', 'int8']
    return ['float32', 'int8']
  return list(dict.fromkeys(names.split(',')))


def _in_words(text: str, sampling: dict[str, Any]) -> Any:
  """Returns a strategy of --strategy; it samples as the flags say, unless its words say how."""
  strategy = parse(text)
  return strategy if strategy.sampling is not None else with_settings(strategy, sampling)


def _candidates(
  args: argparse.Namespace,
  sampling: dict[str, Any],
  heads: Sequence[tuple[Any, str]],
  drafts: Sequence[tuple[Any, str]],
  target: Bound,
  ids: Sequence[Sequence[int]],
  trees: dict[str, list[list[int]]],
) -> list[Candidate]:
  """Lists strategies: the first of each drafter, then the second of each, and so on.

  A tree that `trees` lacks is fitted here, so the first type of numbers fits it for all.
  """
  bases, families = [], []
  if not args.no_lookup:
    bases.append(Candidate(with_settings(fd.PromptLookup(), sampling)))
  if not args.no_lookahead:
    bases.append(Candidate(with_settings(fd.Lookahead(), sampling)))
  for text in args.strategy:
    bases.append(Candidate(_in_words(text, sampling)))
  # Heads are tried as a chain, and as trees that suit the prompts.
  for part, folder in heads:
    if folder not in trees:
      print(f'fitting a tree to {folder}', flush=True)
      trees[folder] = _fitted_tree(args, target, part, ids)
    families += _head_families(args, sampling, part, folder, trees[folder])
    bases.append(Candidate(with_settings(fd.Blockwise(part), sampling), folder))
  for part, folder in drafts:
    usual = usual_for(part)
    bases.append(Candidate(with_settings(usual, sampling), folder))
    if usual.joins and not args.no_lookup:
      both = fd.Union(fd.PromptLookup(k=6), usual)
      bases.append(Candidate(with_settings(both, sampling), folder))
  for base in bases:
    sizes = base.strategy.sizes(args.gammas, args.nodes)
    families.append([Candidate(strategy, base.folder) for strategy in sizes])
  return interleave(*families)


def _fitted_tree(
  args: argparse.Namespace, target: Bound, heads: Any, prompts: Sequence[Sequence[int]]
) -> list[list[int]]:
  """Returns paths of ranks, in the order in which they pay for these heads on the model's text."""
  prompts, most = list(prompts)[:CALIBRATED], max(args.nodes or TREES)
  rows = min(16, len(prompts))
  calibration = calibrate(target, Bound(*heads), prompts, most, args.max_len, rows)
  return [list(path) for path in calibration.tree.choices]


def _head_families(
  args: argparse.Namespace, sampling: dict[str, Any], heads: Any, folder: str, tree: Sequence[Any]
) -> list[list[Candidate]]:
  """Lists trees of several sizes, and strategies that are not lossless if those may take part.

  The fitted tree's first paths are the best smaller tree.
  """
  wanted = None if args.nodes is None else [nodes - 1 for nodes in args.nodes]
  trees = []
  for size in choose_lengths(wanted, len(tree), [nodes - 1 for nodes in TREES]):
    trees.append(Candidate(with_settings(fd.Medusa(heads, tree[:size]), sampling), folder))
  relaxed = []
  if args.promise == 'relaxed' and not args.temperature:
    for n in (2, 3):
      relaxed.append(Candidate(fd.Blockwise(heads, rule=fd.TopN(n)), folder))
  if args.promise == 'relaxed' and tree:
    typical = fd.Typical(temperature=args.temperature or 1.0)
    relaxed.append(Candidate(fd.Medusa(heads, tree[: max(TREES) - 1], typical), folder))
  return [trees, relaxed]


def _save(
  args: argparse.Namespace, results: Sequence[tuple[fd.Tuned, str | None]], output: pathlib.Path
) -> None:
  """Writes the fastest result, and prints which it is."""
  (first, _), *others = results
  best, folder = results[0]
  for tuned, other_folder in others:
    if tuned.tokens_per_second > MARGIN * best.tokens_per_second:
      best, folder = tuned, other_folder
  best = dataclasses.replace(best, why=best.why + compared(best, first))
  file = best.save(args.model, folder, output)
  print(
    f'{best.why}\n{_title(best.rows, best.dtype)}, at most {best.max_len} tokens:'
    f' {best.prompts} prompts; {best.seconds:.0f} s, of which {best.compile_seconds:.0f} s were'
    f' compiling; {best.machine}'
  )
  flags = f'--strategy={"tuned" if args.output is None else file}'
  if folder is not None:
    flags += f' --{"heads" if folder in args.heads else "draft"}={folder}'
  print(f'Written to {file}; use it by {flags}')


def compared(best: fd.Tuned, first: fd.Tuned) -> str:
  """Compares the best with the first type and number of rows, in words."""
  if best is first:
    return ''
  ratio = best.tokens_per_second / first.tokens_per_second
  titles = _title(best.rows, best.dtype), _title(first.rows, first.dtype)
  text = f'; {titles[0]}, {ratio:.2f} times the tokens a second of {titles[1]}'
  if best.dtype == first.dtype or best.table[0].same is None:
    return text
  pairs = list(zip(best.texts, first.texts, strict=False))
  same = sum(ours == theirs for ours, theirs in pairs) / len(pairs)
  return f'{text}; {100 * same:.1f} % of its greedy texts are those of {first.dtype}'


def _title(rows: int, dtype: str | None) -> str:
  return f'{rows} at once' + (f' in {dtype}' if dtype else '')


def _show_log() -> None:
  """Shows what `fd.tune` logs."""
  log = logging.getLogger('fastdec.tuning')
  log.handlers, log.propagate = [logging.StreamHandler(sys.stdout)], False
  log.setLevel(logging.INFO)
