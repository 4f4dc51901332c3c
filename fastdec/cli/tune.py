"""Finds the fastest way to decode with a model on this machine, for prompts like those given.

Example:
  fastdec tune --model=folder --prompts=lines.txt --draft=eagle --draft=smaller --heads=heads
  fastdec generate --model=folder --prompt='A man in' --strategy=tuned --draft=eagle

Greedy decoding writes texts for some prompts. Prompt lookup and all that --draft and --heads can
do, in several sizes, are predicted on them: tokens a call by a replay, and what calls and drafts
cost here. The most promising ones, and what cannot be predicted (lookahead), then decode in turn
with greedy decoding, as --budget allows. The command chooses the fastest one that keeps --promise:

  exact     the output is the model's own greedy output (the default), as far as rounding lets it
            be the same text: docs/own/exact.md
  law       tokens are distributed as by sampling at --temperature (the default if that is above 0)
  relaxed   the output may differ: top-n and typical acceptance of heads take part too

Greedy decoding is kept unless something is faster beyond noise; if the budget ends before anything
else is timed, the best prediction is chosen. Milliseconds include the prompts; ratios have an
interval of 95 %. The choice is written to tuned.json in the model's folder (or in
~/.local/share/fastdec if that cannot be written), where --strategy=tuned of the other commands and
fd.load_tuned find it. On a CPU, the first run of two minutes or more also times the forms of a
product, for all commands on this machine.

--dtypes=float32,int8,int8w tunes in several types; drafters have the type of the model. all means
float32, int8, and if the machine has units for bfloat16 also bfloat16 and int8w. Without --dtypes
the model has its own type, and a draft int8 if the CPU has units for that. In a different type the
model is a different one, whose own greedy output is kept. --batches=1,8 tunes with several numbers
of prompts decoded at once. Each has its share of the budget. The first stays unless another is more
than 10 % faster.

Heads are tried as a chain, and as trees that are fitted to the prompts once, for all types. A draft
network is also tried together with prompt lookup, in one tree.
--strategy, once or more, adds strategies without heads or draft: --strategy='jacobi(k=4)'.
"""

import argparse
import dataclasses
import logging
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import fastdec as fd
from fastdec.cli import cores, opening
from fastdec.cli.flags import Parser, duration, one_of, wholes
from fastdec.cli.prompts import read_prompts
from fastdec.decoding.description import parse, usual_for
from fastdec.decoding.strategy import TREES, choose_lengths, interleave, with_settings
from fastdec.errors import UserError
from fastdec.evaluation import wallclock
from fastdec.evaluation.machine import computes_bfloat16
from fastdec.evaluation.tree_calibration import calibrate
from fastdec.files import place_to_write
from fastdec.kernels.packing import pack_if_faster
from fastdec.struct import Bound
from fastdec.text import programs
from fastdec.text.drafting import load_checked_draft
from fastdec.text.load import choose_draft_type, load_heads, open_fast
from fastdec.tuning.tuned import file_to_write

MEASURES = 120.0  # seconds: with this budget or more, products are timed first, for some seconds
# Prompts read for each row decoded at once. Not all are timed, because some may be too long.
MOST_PROMPTS = 128
CALIBRATED = 32  # prompts that a tree for heads is fitted to
# Each type and number of rows is timed at a different time, so a smaller lead may be the machine's.
MARGIN = 1.1

Candidates = list[tuple[Any, str | None]]  # strategies, and the folders of their heads or drafts


def main(words: Sequence[str]) -> None:
  args = _read(words)
  cores.restrict(args.model, max(args.batches), args.cores)  # before JAX looks for them
  programs.keep()

  # Find mistakes in the flags before any work.
  plain = with_settings(fd.Greedy(), args.sampling)
  if args.promise == 'exact' and plain.sampling is not None:
    raise UserError('--promise=exact cannot be kept with --temperature: give --promise=law')
  if args.promise == 'law' and plain.sampling is None:
    raise UserError('--promise=law needs --temperature: give it too, or --promise=exact')
  _list_candidates(args, [], {})
  output = place_to_write(args.output or file_to_write(args.model))

  # Take prompts from the whole file, and check them and the types of numbers.
  prompts = read_prompts(pathlib.Path(args.prompts))
  prompts = prompts[:: -(-len(prompts) // (MOST_PROMPTS * max(args.batches)))]
  prompts, template = opening.apply_chat_flags(args, prompts), opening.read_template(args)
  generators = {
    dtype: opening.open_without_weights(args.model, dtype, prompts, args.max_len, template=template)
    for dtype in args.dtypes
  }

  log = logging.getLogger('fastdec.tuning')
  log.handlers, log.propagate = [logging.StreamHandler(sys.stdout)], False
  log.setLevel(logging.INFO)
  _save(args, _tune(args, plain, prompts, generators), output)


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
  parser.add_argument('--nodes', type=wholes(2), help='nodes of trees, such as 8,16,32; 2: none')
  parser.add_argument(
    '--promise', type=one_of('exact', 'law', 'relaxed'), help='what the output must keep'
  )
  parser.add_argument('--batches', type=wholes(1), default=[1], help='prompts at once, such as 1,8')
  parser.add_argument(
    '--dtypes', type=_types, default=[None], help="such as float32,int8, or all (the model's own)"
  )
  parser.add_argument('--budget', type=duration, default=300.0, help='time for all of it (5m)')
  parser.add_argument(
    '--output', help="file to write (tuned.json in the model's folder, or named after its file)"
  )
  opening.add_sampling(parser)
  opening.add_length(parser)
  opening.add_cores(parser)
  args = parser.read(words)
  args.sampling = opening.pick_flags(args, opening.SAMPLING)
  return args


def _types(names: str) -> list[str]:
  """The type of --dtypes; 'all' means the types that this machine has units for."""
  if names == 'all':
    names = 'float32,bfloat16,int8w,int8' if computes_bfloat16() else 'float32,int8'
  return list(dict.fromkeys(names.split(',')))


def _tune(
  args: argparse.Namespace,
  plain: Any,
  prompts: Sequence[Any],
  generators: Mapping[str | None, fd.Generator],
) -> list[tuple[fd.Tuned, str | None]]:
  """Tunes in each type of numbers and with each number of rows.

  Each has its share of the time left. Returns the results, with the folders of heads or drafts.
  """
  deadline = wallclock.now() + args.budget
  if args.budget >= MEASURES:
    programs.measure_forms()
  left = len(generators) * len(args.batches)
  results: list[tuple[fd.Tuned, str | None]] = []
  trees: dict[str, list[list[int]]] = {}  # for heads, by their folders
  for dtype, generator in generators.items():
    if results and wallclock.now() >= deadline:
      print(f'the budget ended before {dtype}\n')
      break

    # Read the model, heads and drafts. The first type fits trees for all.
    ids, opened = [generator.read(prompt)[0] for prompt in prompts], open_fast(args.model, dtype)
    target, parts = Bound(*pack_if_faster(generator.model, opened.params())), []
    for path in args.heads:
      heads = pack_if_faster(*load_heads(path, dtype or opened.dtype))
      parts.append((heads, path))
      most = max(args.nodes or TREES)
      if most > 2 and path not in trees:  # of two nodes there is only a chain
        print(f'fitting a tree to {path}', flush=True)
        rows = min(args.batches[0], len(ids), CALIBRATED)  # as in tuning, by the same program
        fitted = calibrate(target, Bound(*heads), ids[:CALIBRATED], most, args.max_len, rows)
        trees[path] = [list(choice) for choice in fitted.tree.choices]
    for path in args.draft:
      draft_type = choose_draft_type(opened, dtype)
      draft = load_checked_draft(path, draft_type, None, generator.model, generator.tokenizer)
      parts.append((draft, path))

    candidates = _list_candidates(args, parts, trees)
    for rows in args.batches:
      print(f'{describe_run(rows, dtype)}:', flush=True)
      model, params = target
      strategies = [plain, *(strategy for strategy, _ in candidates)]
      budget, is_relaxed = max(deadline - wallclock.now(), 1e-3), args.promise == 'relaxed'
      tuned = fd.tune(model, params, strategies, ids, args.max_len, rows, is_relaxed, budget / left)
      left -= 1
      folders = [folder for strategy, folder in candidates if strategy is tuned.strategy]
      results.append((dataclasses.replace(tuned, dtype=dtype), next(iter(folders), None)))
      print(f'{tuned}\n{tuned.why}\n')
  return results


def _list_candidates(
  args: argparse.Namespace, parts: Sequence[tuple[Any, str]], trees: Mapping[str, list[list[int]]]
) -> Candidates:
  """Lists strategies: the first of each drafter, then the second of each, and so on.

  `parts` are heads and drafts with their folders; `trees` are for the heads, by their folders.
  """
  bases, families = Candidates(), []
  if not args.no_lookup:
    bases.append((fd.PromptLookup(), None))
  if not args.no_lookahead:
    bases.append((fd.Lookahead(), None))
  bases += [(parse(text), None) for text in args.strategy]
  for part, folder in parts:
    usual = usual_for(part)
    if usual.part == 'heads':
      bases.append((fd.Blockwise(part), folder))
      for family in _list_trees(args, part, trees.get(folder, [])):
        families.append([(one, folder) for one in family])
      continue
    bases.append((usual, folder))
    if usual.joins and not args.no_lookup:
      bases.append((fd.Union(fd.PromptLookup(k=6), usual), folder))
  for strategy, folder in bases:
    if strategy.sampling is None:
      strategy = with_settings(strategy, args.sampling)
    families.append([(one, folder) for one in strategy.sizes(args.gammas, args.nodes)])
  return interleave(*families)


def _list_trees(args: argparse.Namespace, heads: Any, tree: list[list[int]]) -> list[list[Any]]:
  """Lists trees of several sizes, and strategies that are not lossless if those may take part.

  The first paths of the fitted tree make the best smaller tree. One that is a chain is left out.
  """
  trees, relaxed = [], []
  for nodes in choose_lengths(args.nodes, len(tree) + 1, TREES):
    if any(map(any, tree[: nodes - 1])):
      trees.append(with_settings(fd.Medusa(heads, tree[: nodes - 1]), args.sampling))
  if args.promise == 'relaxed' and not args.temperature:
    relaxed += [fd.Blockwise(heads, rule=fd.TopN(n)) for n in (2, 3)]
  if args.promise == 'relaxed' and tree:
    typical = fd.Typical(temperature=args.temperature or 1.0)
    relaxed.append(fd.Medusa(heads, tree[: max(TREES) - 1], typical))
  return [trees, relaxed]


def _save(
  args: argparse.Namespace, results: Sequence[tuple[fd.Tuned, str | None]], output: pathlib.Path
) -> None:
  """Writes the fastest result, and prints which it is."""
  (first, _), (best, folder) = results[0], results[0]
  for tuned, other_folder in results:
    if tuned.tokens_per_second > MARGIN * best.tokens_per_second:
      best, folder = tuned, other_folder
  best = dataclasses.replace(best, why=best.why + compare_runs(best, first))
  file = best.save(args.model, folder, output)
  prompts = '1 prompt' if best.prompts == 1 else f'{best.prompts} prompts'
  if len(results) > 1:
    print(best.why)
  print(
    f'{describe_run(best.rows, best.dtype)}, at most {best.max_len} tokens: {prompts};'
    f' {best.seconds:.0f} s, of which {best.compile_seconds:.0f} s were compiling; {best.machine}'
  )
  flags = '--strategy=tuned'
  if args.output is not None:
    flags = f'--strategy={file}'
  if folder is not None:
    flags += f' --{best.strategy.part}={folder}'
  print(f'Written to {file}; use it by {flags}')
  if best.name == best.plain and not args.draft and not args.heads:
    print('A draft may help: fastdec train-draft --budget=1h trains one on texts of this model')


def compare_runs(best: fd.Tuned, first: fd.Tuned) -> str:
  """Compares the best with the first type and number of rows, in words."""
  if best is first:
    return ''
  ratio = best.tokens_per_second / first.tokens_per_second
  text = (
    f'; {describe_run(best.rows, best.dtype)}, {ratio:.2f} times the tokens a second of'
    f' {describe_run(first.rows, first.dtype)}'
  )
  if best.dtype == first.dtype or best.table[0].same is None:
    return text
  pairs = list(zip(best.texts, first.texts, strict=False))
  same = sum(ours == theirs for ours, theirs in pairs) / len(pairs)
  return f'{text}; {100 * same:.1f} % of its greedy texts are those of {first.dtype}'


def describe_run(rows: int, dtype: str | None) -> str:
  """Names a number of rows and a type: '8 at once in int8'."""
  return f'{rows} at once' + f' in {dtype}' * bool(dtype)
