"""Models by flags: mistakes are refused before weights are read, wherever that is possible."""

import argparse
import dataclasses
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import fastdec as fd
from fastdec.cli import cores
from fastdec.cli.flags import Parser, number, whole
from fastdec.decoding.description import parse
from fastdec.decoding.inputs import DEFAULT_MAX_LEN, check_ids, check_positions
from fastdec.decoding.strategy import with_settings
from fastdec.errors import UserError
from fastdec.files import place, read_json
from fastdec.models.api import source_words
from fastdec.text.generator import ROWS
from fastdec.text.load import is_tuned, open_folder, tokenizer_of
from fastdec.tuning.tuned import default_file

# The tree of heads may be the name of a file: medusa(choices=tree.json)
TREE = r"""choices=['"]?([^'",()\[\]]+\.json)['"]?"""
LAST_SEED = 2**32 - 1
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
  """Adds the flag of a model."""
  parser.add_argument(
    '--model', required=True, help='folder of a model or of a finished run, or a GGUF file'
  )


def add_drafting(parser: Parser) -> None:
  """Adds the flags of what drafts for a model, and how, and the type of its numbers."""
  parser.add_argument('--draft', help='a smaller model, or the folder of a draft network')
  parser.add_argument('--heads', help='folder of prediction heads')
  parser.add_argument(
    '--strategy',
    help="a strategy as in Python, such as 'eagle(depth=7, width=8, nodes=32)'; or 'tuned', which"
    ' fastdec tune chose for the model; or the file that it wrote. Give the --draft or --heads that'
    ' it uses too (the usual one for these)',
  )
  add_dtype(parser)


def add_dtype(parser: Parser) -> None:
  """Adds the flag of the type of numbers."""
  parser.add_argument('--dtype', help="float32, bfloat16, int8, int8w, ... (the model's own)")


def add_prompts(parser: Parser) -> None:
  """Adds the flag of a file of prompts that a command needs."""
  parser.add_argument('--prompts', required=True, help='file with a prompt on each line')


def add_texts(parser: Parser) -> None:
  """Adds the flag of files of texts."""
  parser.add_argument(
    '--texts',
    required=True,
    help='files with a text on each line, or of fastdec generate, such as a,b',
  )


def add_length(parser: Parser, max_len: int = DEFAULT_MAX_LEN) -> None:
  """Adds the flag that limits the length of outputs."""
  parser.add_argument(
    '--max-len',
    '--max-new-tokens',
    type=whole(1),
    default=max_len,
    help=f'the most tokens of an output ({max_len})',
  )


def add_cores(parser: Parser) -> None:
  """Adds the flag of the number of cores."""
  parser.add_argument('--cores', type=whole(1), help='cores to decode with (as suits the model)')


def add_sampling(parser: Parser) -> None:
  """Adds the flags of sampling."""
  for name, (kind, meaning) in SAMPLING.items():
    parser.add_argument(f'--{name.replace("_", "-")}', type=kind, help=meaning)
  parser.add_argument('--seed', type=whole(0, LAST_SEED), default=0, help='of sampling (0)')


def add_processors(parser: Parser) -> None:
  """Adds the flags of processors, in place of the model folder's own."""
  for name, (kind, meaning) in PROCESSORS.items():
    parser.add_argument(f'--{name.replace("_", "-")}', type=kind, help=meaning)


def add_constraint(parser: Parser) -> None:
  """Adds the flags of the form of an output."""
  parser.add_argument('--regex', help='regular expression that an output must match as a whole')
  parser.add_argument('--json-schema', help='file of a JSON schema that an output must meet')


def flags_of(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
  """Returns the flags of these names that are set. A command may lack some of them."""
  values = {}
  for name in names:
    value = getattr(args, name, None)
    if value is not None:
      values[name] = value
  return values


def form_of(args: argparse.Namespace) -> Any:
  """Returns the form of an output by flags: an expression, or the content of a JSON schema."""
  if args.json_schema is None:
    return args.regex
  if args.regex is not None:
    raise UserError('--regex and --json-schema each say what is written: give one of them')
  return read_json(place(args.json_schema))


def constraint_of(args: argparse.Namespace, generator: fd.Generator) -> fd.Constraint | None:
  """Returns the constraint of the flags; a generator without weights is enough to check it."""
  form = form_of(args)
  if form is None:
    return None
  make = fd.Constraint.regex if args.json_schema is None else fd.Constraint.json_schema
  constraint = make(form, generator.tokenizer)
  constraint.laws(generator.model, 1)  # refuses a model of another vocabulary, or without an end
  return constraint


def open_without_weights(
  model: str,
  dtype: str | None,
  prompts: Sequence[Any],
  max_len: int,
  noun: str = 'prompt',
  source: str | None = None,
  target: str | None = None,
) -> fd.Generator:
  """Opens a model with its tokenizer, without its weights, and checks the prompts for it.

  Raises:
    UserError: a folder that is no model, or has no tokenizer; prompts that are empty or too long,
      or hold what the model does not know; languages that the tokenizer lacks.
  """
  folder = open_folder(model, dtype)
  generator = fd.Generator(folder.model, None, tokenizer_of(folder), source=source, target=target)
  limit, is_source = folder.model.max_positions, folder.model.start_id is not None
  for i, prompt in enumerate(prompts, 1):
    ids, _ = generator.read(prompt)
    name = f'the {noun}' if len(prompts) == 1 else f'{noun} {i}'
    if limit is not None:
      check_positions(len(ids), 1 if is_source else max_len, limit, name, '--max-len')
    check_ids(f"{name}'s tokens", np.array([ids]), source_words(generator.model))
  if limit is not None and is_source:
    check_positions(1, max_len, limit, setting='--max-len')
  return generator


def load(args: argparse.Namespace, default_heads: str | None = None) -> fd.Generator:
  """Reads the model and its draft, with the strategy, sampling and processors of the flags.

  Args:
    args: the flags.
    default_heads: the folder of heads to draft with, if no flag says how.
  """
  draft, heads, strategy = args.draft, args.heads, args.strategy
  if not (draft or heads or strategy):
    heads = default_heads

  # Mistakes in the flags show before weights are read: values out of their ranges raise here.
  sampling, processors = flags_of(args, SAMPLING), flags_of(args, PROCESSORS)
  fd.Processors(**processors)
  fd.Sampling(**sampling)
  if strategy is None:
    with_settings(fd.Greedy(), sampling)  # refuses other settings without a temperature
  else:
    strategy = re.sub(TREE, lambda file: f'choices={fd.medusa_choices(file[1])}', strategy)
    _check_settings(strategy, sampling)

  languages = flags_of(args, ('source', 'target'))
  generator = fd.Generator.load(
    args.model, draft, heads, args.dtype, strategy=strategy, **languages
  )
  return dataclasses.replace(
    generator,
    strategy=with_settings(generator.strategy, sampling),
    processors=dataclasses.replace(generator.processors or fd.Processors(), **processors),
  )


def _check_settings(strategy: str, sampling: dict[str, Any]) -> None:
  """Raises UserError for flags of sampling that a strategy in words does not take.

  Words that need heads or a draft are read with them, and words that are wrong are reported then.
  """
  try:
    without_part = parse(strategy)
  except UserError:
    return
  with_settings(without_part, sampling)


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


def restrict_cores(args: argparse.Namespace, texts: int | None = None) -> int:
  """Restricts the process to the cores that suit, before JAX counts them.

  Returns how many texts to decode at once.

  Args:
    args: the flags.
    texts: their number (None: many).
  """
  rows = getattr(args, 'rows', None)
  if rows is None:
    rows = _tuned_rows(args) if is_tuned(args.strategy) else ROWS
  if texts:
    rows = min(rows, texts)
  cores.restrict(args.model, rows, args.cores)
  return rows


def tuned_file(args: argparse.Namespace) -> pathlib.Path:
  """Returns the file of `fastdec tune` that --strategy names."""
  if args.strategy == 'tuned':
    return default_file(args.model)
  return place(args.strategy)


def _tuned_rows(args: argparse.Namespace) -> int:
  """Returns the texts at once that were tuned for; `load` reports mistakes in the file."""
  file = tuned_file(args)
  if not file.is_file():
    return ROWS
  figures = read_json(file).get('figures')
  rows = figures.get('rows') if isinstance(figures, dict) else None
  return rows if type(rows) is int and rows > 0 else ROWS
