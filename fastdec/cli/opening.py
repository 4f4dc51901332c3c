"""Models by flags: mistakes are refused before weights are read, wherever that is possible."""

import argparse
import dataclasses
import os
import pathlib
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import fastdec as fd
from fastdec import extras
from fastdec.cli import cores
from fastdec.cli.flags import Parser, number, some_text, variable, whole
from fastdec.cli.prompts import Prompt, Question
from fastdec.cli.prompts import asked as prompts_asked
from fastdec.decoding.description import parse
from fastdec.decoding.inputs import DEFAULT_MAX_LEN, check_ids, check_positions
from fastdec.decoding.settings import MOST_TOKENS
from fastdec.decoding.strategy import with_settings
from fastdec.errors import UserError, UserNote
from fastdec.files import place, read_json
from fastdec.hub.tokenizers.chat import Chats
from fastdec.models.api import source_words
from fastdec.text import programs
from fastdec.text.generator import ROWS
from fastdec.text.load import is_tuned, open_fast, open_folder, tokenizer_of
from fastdec.tuning.tuned import file_to_read

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
  parser.add_argument(
    '--prompts', required=True, help='file with a prompt on each line, or records of JSON'
  )
  add_chat(parser)


def add_chat(parser: Parser) -> None:
  """Adds the flags of how a model with a chat template is asked."""
  parser.add_argument(
    '--chat', action='store_true', help="asks texts in the model's chat template, as a user would"
  )
  parser.add_argument('--system', help='what the model is told before a chat (--chat is implied)')
  add_template(parser)


def add_template(parser: Parser) -> None:
  """Adds the flag of the variables of a chat template."""
  parser.add_argument(
    '--template',
    type=variable,
    action='append',
    help='variable of the chat template, such as enable_thinking=false; once or more',
  )


def variables(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the variables of the chat template by flags; refuses those that it does not use."""
  values = dict(getattr(args, 'template', None) or ())
  if values:
    tokenizer = tokenizer_of(open_folder(args.model))
    if not isinstance(tokenizer, Chats):
      raise UserError(f'{args.model} has no chat template: leave out --template')
    tokenizer.check_variables(values)
  return values


def has_chat_template(model: str) -> bool:
  """True if the tokenizer of a model's folder has a chat template."""
  tokenizer = tokenizer_of(open_folder(model))
  return isinstance(tokenizer, Chats) and bool(tokenizer.templates())


def asked(
  args: argparse.Namespace, prompts: Sequence[Prompt], are_texts: bool = False
) -> list[Any]:
  """Returns prompts as the flags say that the model is asked them, and notes what may be a mistake.

  Args:
    args: the flags, those of `add_chat` among them.
    prompts: of a file.
    are_texts: they are not continued, so that texts without a template are no mistake.

  Raises:
    UserError: the flags are of a chat, and the model has no chat template.
  """
  check_text('--system', args.system)
  is_chat = args.chat or args.system is not None or bool(args.template)
  has_template = has_chat_template(args.model)
  if is_chat and not has_template:
    raise UserError(f'{args.model} has no chat template: leave out --chat, --system and --template')
  note = None
  if has_template and any(type(prompt) is str for prompt in prompts):
    note = 'has a chat template, and texts are continued without it: --chat asks them in it'
  elif not has_template and any(isinstance(prompt, Question) for prompt in prompts):
    note = 'has no chat template: it continues the questions as texts'
  if note is not None and not is_chat and not are_texts:
    warnings.warn(f'{args.model} {note}', UserNote, stacklevel=2)
  return [*prompts_asked(prompts, is_chat, args.system, has_template)]


def text_ids(args: argparse.Namespace, tokenizer: Any, texts: Sequence[Prompt]) -> list[list[int]]:
  """Returns the ids of texts and of whole chats, to whose end no answer is begun."""
  ids, template = [], variables(args)
  for text in asked(args, texts, are_texts=True):
    if isinstance(text, str):
      ids.append(tokenizer.encode(text))
    else:
      ids.append(tokenizer.encode_chat(text, add_generation_prompt=False, **template))
  return ids


def check_text(flag: str, text: str | None) -> None:
  """Raises UserError for a text that is empty, or not of characters."""
  if text is None:
    return
  try:
    text.encode()
  except UnicodeEncodeError:
    raise UserError(f'{flag} is not UTF-8: convert the text') from None
  if not text.strip():
    raise UserError(f'{flag} is empty: give some text to continue')


def add_stop(parser: Parser) -> None:
  """Adds the flag of strings that end a text."""
  parser.add_argument(
    '--stop',
    type=some_text,
    action='append',
    default=[],
    help='ends the text before this string; once or more',
  )


def add_texts(parser: Parser) -> None:
  """Adds the flag of files of texts."""
  parser.add_argument(
    '--texts',
    required=True,
    help='files with a text on each line, or of fastdec generate, such as a,b',
  )
  add_chat(parser)


def add_length(parser: Parser, max_len: int = DEFAULT_MAX_LEN) -> None:
  """Adds the flag that limits the length of outputs."""
  parser.add_argument(
    '--max-len',
    '--max-new-tokens',
    type=whole(1, MOST_TOKENS),
    default=max_len,
    help=f'the most tokens of an output ({max_len})',
  )


def add_cores(parser: Parser) -> None:
  """Adds the flags of the number of cores, and of compiled programs."""
  parser.add_argument('--cores', type=whole(1), help='cores to decode with (chosen for the model)')
  add_no_cache(parser)


def add_no_cache(parser: Parser) -> None:
  """Adds the flag that keeps no programs; no setting of the output remembers it."""
  parser.add_argument(
    '--no-cache',
    action=_NoCache,
    nargs=0,
    dest=argparse.SUPPRESS,
    default=argparse.SUPPRESS,
    help='keeps no compiled programs for the next time (they are kept)',
  )


class _NoCache(argparse.Action):
  def __call__(self, *_: Any) -> None:
    os.environ[programs.VARIABLE] = ''


def add_sampling(parser: Parser) -> None:
  """Adds the flags of sampling."""
  for name, (kind, meaning) in SAMPLING.items():
    parser.add_argument(f'--{name.replace("_", "-")}', type=kind, help=meaning)
  parser.add_argument('--seed', type=whole(0, LAST_SEED), default=0, help='seed of sampling (0)')


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
  return read_json(place(args.json_schema), 'give the file of a JSON schema')


def check_form(args: argparse.Namespace) -> None:
  """Raises UserError for a form that cannot be read, or that nothing is installed to compile."""
  if form_of(args) is not None:
    extras.require('outlines_core')


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
  template: Mapping[str, Any] | None = None,
) -> fd.Generator:
  """Opens a model with its tokenizer, without its weights, and checks the prompts for it.

  Raises:
    UserError: a folder that is no model, or has no tokenizer; prompts that are empty or too long,
      or hold what the model does not know; languages that the tokenizer lacks.
  """
  folder = open_fast(model, dtype)
  generator = fd.Generator(
    folder.model, None, tokenizer_of(folder), source=source, target=target, template=template or {}
  )
  limit, is_source = folder.model.max_positions, folder.model.start_id is not None
  for i, prompt in enumerate(prompts, 1):
    name = f'the {noun}' if len(prompts) == 1 else f'{noun} {i}'
    try:
      ids, _ = generator.read(prompt)
    except UserError as error:
      raise error if len(prompts) == 1 else UserError(f'{name}: {error}') from None
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
  least = processors.get('min_new_tokens', 0)
  if least > args.max_len:
    raise UserError(
      f'--min-new-tokens={least} is above --max-len={args.max_len}: give no more than that'
    )
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
    template=variables(args),
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


def with_pool(generator: fd.Generator, pool: fd.NGramPool | None) -> fd.Generator:
  """Returns a generator that guesses the n-grams of a pool too."""
  if pool is None:
    return generator
  pool.check(generator.model.vocab_size)
  if not hasattr(generator.strategy, 'with_pool'):
    raise UserError(
      '--pool is for text that is drafted from: give --strategy=lookahead or prompt_lookup'
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
    return file_to_read(args.model)
  return place(args.strategy)


def _tuned_rows(args: argparse.Namespace) -> int:
  """Returns the texts at once that were tuned for; `load` reports mistakes in the file."""
  file = tuned_file(args)
  if not file.is_file():
    return ROWS
  figures = read_json(file).get('figures')
  rows = figures.get('rows') if isinstance(figures, dict) else None
  return rows if type(rows) is int and rows > 0 else ROWS
