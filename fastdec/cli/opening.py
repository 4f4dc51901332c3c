"""Models by flags: what can be checked is, before weights are read."""

import argparse
import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

import fastdec as fd
from fastdec.cli import cores
from fastdec.cli.flags import Parser, number, whole
from fastdec.decoding.inputs import DEFAULT_MAX_LEN, check_ids, check_positions
from fastdec.decoding.strategy import with_settings
from fastdec.errors import UserError
from fastdec.files import place, read_json
from fastdec.models.api import source_words
from fastdec.text.generator import ROWS
from fastdec.text.load import open_folder, tokenizer_of
from fastdec.tuning.tuned import NAME

# a tree of heads may be named by its file: medusa(choices=tree.json)
TREE = r"""choices=['"]?([^'",()\[\]]+\.json)['"]?"""
LAST = 2**32 - 1  # of the seeds
SAMPLING = {  # flags of `fd.Sampling`, by their names there
  'temperature': (number, 'samples, if above 0'),
  'top_k': (whole(0), 'samples among the k likeliest tokens'),
  'top_p': (number, 'samples among the fewest tokens of this probability'),
  'min_p': (number, 'samples among tokens at least this part as likely as the best'),
}
PROCESSORS = {  # flags of `fd.Processors`, by their names there
  'repetition_penalty': (number, 'lowers words of prompt and text, if above 1'),
  'presence_penalty': (float, 'is taken from words of the text'),
  'frequency_penalty': (float, 'is taken from words of the text, as often as they are there'),
  'no_repeat_ngram': (whole(0), 'n-grams of this size are written once'),
  'min_new_tokens': (whole(0), 'the fewest tokens of an output'),
}


def add_model(parser: Parser) -> None:
  """Adds the flags of a model and of what drafts for it."""
  parser.add_argument('--model', required=True, help='folder of a model, or of a finished run')
  parser.add_argument('--draft', help='folder of a smaller model, or of a draft network')
  parser.add_argument('--heads', help='folder of prediction heads')
  parser.add_argument(
    '--strategy',
    help="'eagle(depth=7, width=8, nodes=32)', as in Python; or 'tuned', what fastdec tune has"
    ' found, or the file that it wrote, beside its --draft or --heads (as suits these)',
  )
  parser.add_argument('--dtype', help="float32, bfloat16, int8, int8w, ... (the model's own)")


def add_length(parser: Parser, max_len: int = DEFAULT_MAX_LEN) -> None:
  """Adds the flag of how long outputs are."""
  parser.add_argument(
    '--max-len',
    '--max-new-tokens',
    type=whole(1),
    default=max_len,
    help=f'the most tokens of an output ({max_len})',
  )


def add_cores(parser: Parser) -> None:
  """Adds the flag of how many cores are used."""
  parser.add_argument('--cores', type=whole(1), help='cores to decode with (as suits the model)')


def add_sampling(parser: Parser) -> None:
  """Adds the flags of sampling."""
  for name, (kind, meaning) in SAMPLING.items():
    parser.add_argument(f'--{name.replace("_", "-")}', type=kind, help=meaning)
  parser.add_argument('--seed', type=whole(0, LAST), default=0, help='of sampling (0)')


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the settings of sampling that flags set."""
  values = {name: getattr(args, name, None) for name in SAMPLING}
  return {name: value for name, value in values.items() if value is not None}


def add_processors(parser: Parser) -> None:
  """Adds the flags of processors, in place of the model folder's own."""
  for name, (kind, told) in PROCESSORS.items():
    parser.add_argument(f'--{name.replace("_", "-")}', type=kind, help=told)


def add_constraint(parser: Parser) -> None:
  """Adds the flags of the form of an output."""
  parser.add_argument('--regex', help='regular expression that an output must match as a whole')
  parser.add_argument('--json-schema', help='file of a JSON schema that an output must meet')


def form_of(given: argparse.Namespace) -> Any:
  """Returns the form of an output by flags: an expression, or the content of a JSON schema."""
  if given.regex is not None and given.json_schema is not None:
    raise UserError('--regex and --json-schema each say what is written: give one of them')
  return given.regex if given.json_schema is None else read_json(place(given.json_schema))


def constraint_of(given: argparse.Namespace, unread: fd.Generator) -> fd.Constraint | None:
  """Returns the constraint that flags ask for, checked before weights are read."""
  form = form_of(given)
  if form is None:
    return None
  make = fd.Constraint.regex if given.json_schema is None else fd.Constraint.json_schema
  made = make(form, unread.tokenizer)
  made.laws(unread.model, 1)
  return made


def processors_of(given: argparse.Namespace) -> dict[str, Any]:
  """Returns the processors that flags set."""
  found = {name: getattr(given, name, None) for name in PROCESSORS}
  return {name: value for name, value in found.items() if value is not None}


def unread(
  model: str,
  dtype: str | None,
  prompts: Sequence[Any],
  max_len: int,
  noun: str = 'prompt',
  source: str | None = None,
  target: str | None = None,
) -> fd.Generator:
  """Opens a model with its tokenizer, its parameters unread, and checks what it will go on from.

  Raises:
    UserError: a folder that is no model, or has no tokenizer; prompts that are empty or too long,
      or hold what the model does not know; languages that the tokenizer lacks.
  """
  folder = open_folder(model, dtype)
  found = fd.Generator(folder.model, None, tokenizer_of(folder), source=source, target=target)
  limit, is_source = found.model.max_positions, found.model.start_id is not None
  for i, prompt in enumerate(prompts, 1):
    ids, _ = found.read(prompt)
    name = f'the {noun}' if len(prompts) == 1 else f'{noun} {i}'
    if limit is not None:
      check_positions(len(ids), 1 if is_source else max_len, limit, name, '--max-len')
    check_ids(f"{name}'s tokens", np.array([ids]), source_words(found.model))
  if limit is not None and is_source:
    check_positions(1, max_len, limit, setting='--max-len')
  return found


def load(given: argparse.Namespace, default: str | None = None) -> fd.Generator:
  """Reads the model and what drafts for it, with the strategy and the law of the flags.

  Args:
    given: the flags.
    default: the folder of heads to draft with, where no flag says how.
  """
  chosen = {name: getattr(given, name) for name in ('draft', 'heads', 'strategy')}
  if not any(chosen.values()):
    chosen['heads'] = default
  languages = {name: getattr(given, name, None) for name in ('source', 'target')}
  sampling = settings_of(given)
  changes = processors_of(given)
  fd.Processors(**changes)
  if chosen['strategy'] is None:
    with_settings(fd.Greedy(), sampling)  # a mistake shows before weights are read
  else:
    chosen['strategy'] = re.sub(TREE, _tree, chosen['strategy'])
  found = fd.Generator.load(given.model, dtype=given.dtype, **chosen, **languages)
  processors = dataclasses.replace(found.processors or fd.Processors(), **changes)
  return dataclasses.replace(
    found, strategy=with_settings(found.strategy, sampling), processors=processors
  )


def with_pool(generator: fd.Generator, file: str | None) -> fd.Generator:
  """Returns a generator that guesses the n-grams of a file too."""
  if file is None:
    return generator
  pool = fd.load_pool(file)
  pool.check(generator.model.vocab_size)
  if not hasattr(generator.strategy, 'with_pool'):
    raise UserError(
      f'--pool={file} is for text that is drafted from: give --strategy=lookahead or prompt_lookup'
    )
  return dataclasses.replace(generator, strategy=generator.strategy.with_pool(pool))


def settle(given: argparse.Namespace, texts: int | None = None) -> int:
  """Keeps the cores to decode with, before JAX looks for them. Returns the texts decoded at once.

  Args:
    given: the flags.
    texts: all that there are (None: many).
  """
  rows = getattr(given, 'rows', None)
  if rows is None:
    rows = _tuned_rows(given) if is_tuned(given.strategy) else ROWS
  rows = min(rows, texts or rows)
  cores.settle(given.model, rows, given.cores)
  return rows


def is_tuned(strategy: str | None) -> bool:
  """True if --strategy names what was tuned, and is no strategy in words."""
  return strategy is not None and (strategy == 'tuned' or strategy.endswith('.json'))


def _tuned_rows(given: argparse.Namespace) -> int:
  """Returns the texts decoded at once that were tuned for; mistakes in the file are for later."""
  file = place(given.strategy)
  if given.strategy == 'tuned':
    file = open_folder(given.model).path / NAME
  figures = read_json(file).get('figures') if file.is_file() else None
  rows = figures.get('rows') if isinstance(figures, dict) else None
  return rows if type(rows) is int and rows > 0 else ROWS


def _tree(match: re.Match[str]) -> str:
  """Writes the tree of the file that is named."""
  return f'choices={fd.medusa_choices(match[1])}'
