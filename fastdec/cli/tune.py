"""Finds the fastest way to decode here: on this machine, with this model, for such prompts.

Example:
  fastdec tune --model=folder --prompts=lines.txt --draft=eagle --draft=smaller --heads=heads
  fastdec generate --model=folder --prompt='A man in' --strategy=tuned --draft=eagle

Greedy decoding, prompt lookup, lookahead and whatever the given drafters can do, in several sizes,
decode the same prompts in turn; those that fall behind are dropped. Within --budget the fastest is
found that keeps --promise:

  exact     the output is the model's own greedy output (the default)
  law       tokens have the law of sampling at --temperature (the default where that is above 0)
  relaxed   anything goes: top-n and typical acceptance of heads take part too

One token a call takes part, and is kept unless something is faster beyond noise. Printed for each
candidate: tokens a call; milliseconds a call and a token, prompts included; tokens a second; how
many times as fast as plain decoding, with the interval that holds 95 % of 1000 samples of the
prompts; and how many texts equal greedy decoding's. The choice is written beside the model,
tuned.json, where --strategy=tuned of the other commands, and fd.load_tuned, find it.

--dtypes=float32,int8,int8w tunes in several types, drafters in the type of the model (all: float32,
int8, and where the machine has units for bfloat16 that and int8w). In another type it is another
model, whose own greedy output is kept. --batches=1,8 tunes with several numbers of prompts decoded
at once. Each has its share of the budget, and the most tokens a second win.

Heads are tried as a chain, and as trees that are fitted to the prompts, once for all types.
--strategy, once or more, tries others that draft with nothing: --strategy='jacobi(k=4)'.
"""

import argparse
import dataclasses
import logging
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import fastdec as fd
from fastdec.cli import cores, opening
from fastdec.cli.flags import Parser, one_of, seconds, wholes
from fastdec.decoding.description import parse, usual_for
from fastdec.decoding.strategy import TREES, in_turn, lengths, with_settings
from fastdec.errors import UserError
from fastdec.evaluation.machine import computes_bfloat16
from fastdec.evaluation.tree_calibration import calibrate
from fastdec.files import place, read_prompts
from fastdec.kernels.packing import pack_if_faster
from fastdec.struct import Bound
from fastdec.text.drafts import draft_of
from fastdec.text.load import load_heads, open_folder
from fastdec.tuning.tune import OutOfTime

# for each row decoded at once: more than are timed, of which some may be too long
MOST_PROMPTS = 128
CALIBRATED = 64  # prompts that a tree for heads is found on
MARGIN = 1.1  # between what was timed at different times: a smaller lead may be the machine's

Candidate = tuple[Any, str | None]  # a strategy, and the folder of its heads or draft


def main(words: Sequence[str]) -> None:
  given = _read(words)
  cores.settle(given.model, max(given.batches), given.cores)  # before JAX looks for them
  dtypes = _types(given.dtypes)
  sampling = opening.settings_of(given)
  plain = with_settings(fd.Greedy(), sampling)
  _check_promise(given.promise, plain)
  for text in given.strategy:
    parse(text)  # a mistake shows before any work
  if given.output is not None:
    place(given.output)
  prompts = read_prompts(pathlib.Path(given.prompts))
  prompts = prompts[:: -(-len(prompts) // (MOST_PROMPTS * max(given.batches)))]
  _show_log()
  ends, left = time.perf_counter() + given.budget, len(dtypes) * len(given.batches)
  found: list[tuple[fd.Tuned, str | None]] = []
  trees: dict[str, list[list[int]]] = {}  # for heads, by their folders
  for dtype in dtypes:
    given.dtype = dtype
    language = opening.unread(given.model, dtype, prompts, given.max_len)
    ids = [language.read(prompt)[0] for prompt in prompts]
    parts = list(_parts(given, language))
    target = Bound(*pack_if_faster(language.model, open_folder(given.model, dtype).params()))
    candidates = _candidates(given, sampling, parts, target, ids, trees)
    for rows in given.batches:
      print(f'{_named(rows, dtype)}:', flush=True)
      share, left = (ends - time.perf_counter()) / left, left - 1
      try:
        tuned = fd.tune(
          target.module,
          target.params,
          [plain, *(strategy for strategy, _ in candidates)],
          ids,
          given.max_len,
          rows,
          relaxed=given.promise == 'relaxed',
          budget=max(share, 1e-3),
        )
      except OutOfTime as error:
        print(f'{error}\n')
        continue
      part = next((part for strategy, part in candidates if strategy is tuned.strategy), None)
      found.append((dataclasses.replace(tuned, dtype=dtype), part))
      print(f'{tuned}\n{tuned.why}\n')
  if not found:
    raise UserError(f'--budget={given.budget:g}s ended before one round: give more')
  _save(given, found)


def _read(words: Sequence[str]) -> argparse.Namespace:
  parser = Parser('tune', __doc__)
  parser.add_argument('--model', required=True, help='folder of a model, or of a finished run')
  parser.add_argument('--prompts', required=True, help='file with a prompt on each line')
  parser.add_argument(
    '--draft', action='append', default=[], help='folder of a smaller model or a draft network'
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
  parser.add_argument('--budget', type=seconds, default=120.0, help='time for all of it (2m)')
  parser.add_argument('--output', help="file to write (tuned.json in the model's folder)")
  opening.add_sampling(parser)
  opening.add_length(parser)
  opening.add_cores(parser)
  return parser.read(words)


def _types(names: str | None) -> list[str | None]:
  """Lists the types that are named; for 'all' those that this machine has units for."""
  if names is None:
    return [None]
  if names == 'all':
    return ['float32', *(['bfloat16', 'int8w'] if computes_bfloat16() else []), 'int8']
  if not names:
    raise UserError('--dtypes= names no type: give some such as float32,int8, or all')
  return list(dict.fromkeys(names.split(',')))


def _check_promise(promise: str | None, plain: Any) -> None:
  draws = isinstance(plain, fd.Sample)
  if promise == 'exact' and draws:
    raise UserError('--temperature samples, which is never exact: give --promise=law')
  if promise == 'law' and not draws:
    raise UserError('--promise=law is about sampling: give --temperature too, or --promise=exact')


def _parts(given: argparse.Namespace, language: fd.Generator) -> Iterator[tuple[Any, str]]:
  """Yields the heads and drafts of the flags, and their folders."""
  for path in given.heads:
    yield pack_if_faster(*load_heads(path, given.dtype)), path
  for path in given.draft:
    yield draft_of(path, given.dtype, None, language.model, language.tokenizer), path


def _candidates(
  given: argparse.Namespace,
  sampling: dict[str, Any],
  parts: Sequence[tuple[Any, str]],
  target: Bound,
  ids: Sequence[Sequence[int]],
  trees: dict[str, list[list[int]]],
) -> list[Candidate]:
  """Lists strategies: the first of each drafter, then the second of each, and so on.

  A tree that `trees` lacks is found here, so the first type of numbers finds it for all.
  """
  alone: list[Any] = [] if given.no_lookup else [fd.PromptLookup()]
  if not given.no_lookahead:
    alone.append(fd.Lookahead())
  bases: list[Candidate] = [(with_settings(strategy, sampling), None) for strategy in alone]
  bases += [(parse(text), None) for text in given.strategy]  # the words have their own sampling
  families = []
  for part, path in parts:
    strategy = usual_for(part)
    if strategy.part == 'heads':
      if path not in trees:
        print(f'fitting a tree to {path}', flush=True)
        trees[path] = _fitted(given, target, part, ids)
      families += _of_heads(given, sampling, part, path, trees[path])
      strategy = fd.Blockwise(part)
    bases.append((with_settings(strategy, sampling), path))
  for strategy, path in bases:
    sizes = strategy.sizes(given.gammas, given.nodes)
    families.append([(one, path) for one in sizes])
  return in_turn(*families)


def _of_heads(
  given: argparse.Namespace, sampling: dict[str, Any], heads: Any, path: str, tree: Sequence[Any]
) -> list[list[Candidate]]:
  """Lists trees of several sizes, and strategies that are not lossless if those may take part."""
  wanted = None if given.nodes is None else [n - 1 for n in given.nodes]
  sizes = lengths(wanted, len(tree), [n - 1 for n in TREES])
  trees = [with_settings(fd.Medusa(heads, tree[:n]), sampling) for n in sizes]
  relaxed: list[Any] = []
  if given.promise == 'relaxed' and not given.temperature:
    relaxed += [fd.Blockwise(heads, rule=fd.TopN(n)) for n in (2, 3)]
  if given.promise == 'relaxed' and tree:
    typical = fd.Typical(temperature=given.temperature or 1.0)
    relaxed.append(fd.Medusa(heads, tree[: max(TREES) - 1], typical))
  return [[(one, path) for one in family] for family in (trees, relaxed)]


def _fitted(
  given: argparse.Namespace, target: Bound, heads: Any, prompts: Sequence[Sequence[int]]
) -> list[list[int]]:
  """Finds paths of ranks, in the order in which they pay for these heads on the model's text."""
  some, most = list(prompts)[:CALIBRATED], max(given.nodes or TREES)
  found = calibrate(target, Bound(*heads), some, most, given.max_len, min(16, len(some)))
  return [list(path) for path in found.tree.choices]


def _save(given: argparse.Namespace, found: Sequence[tuple[fd.Tuned, str | None]]) -> None:
  """Writes the fastest, and says which it is."""
  first = found[0][0]
  best, part = found[0]
  for one, other_part in found[1:]:
    if one.tokens_per_second > MARGIN * best.tokens_per_second:
      best, part = one, other_part
  best = dataclasses.replace(best, why=best.why + compared(best, first))
  file = best.save(given.model, part, given.output)
  print(
    f'{best.why}\n{_named(best.rows, best.dtype)}, at most {best.max_len} tokens:'
    f' {best.prompts} prompts; {best.seconds:.0f} s, of which {best.compile_seconds:.0f} s were'
    f' compiling; {best.machine}'
  )
  beside = '' if part is None else f' --{"heads" if part in given.heads else "draft"}={part}'
  name = 'tuned' if given.output is None else file
  print(f'Written to {file}; use it by --strategy={name}{beside}')


def compared(best: fd.Tuned, first: fd.Tuned) -> str:
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


def _named(rows: int, dtype: str | None) -> str:
  return f'{rows} at once' + (f' in {dtype}' if dtype else '')


def _show_log() -> None:
  """Shows what `fd.tune` logs."""
  log, handler = logging.getLogger('fastdec.tuning'), logging.StreamHandler(sys.stdout)
  log.handlers, log.propagate = [handler], False
  log.setLevel(logging.INFO)
