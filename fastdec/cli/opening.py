"""Models by flags: mistakes are refused before weights are read, if that is possible."""

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
from fastdec.cli import cores
from fastdec.cli.flags import Parser, number, some_text, variable, whole
from fastdec.cli.prompts import Prompt, Question, wrap_in_chats
from fastdec.decoding.description import parse
from fastdec.decoding.inputs import DEFAULT_MAX_LEN, check_ids, check_positions
from fastdec.decoding.settings import MOST_TOKENS
from fastdec.decoding.strategy import with_settings
from fastdec.errors import UserError, UserNote
from fastdec.fields import LAST_SEED
from fastdec.files import place, read_json
from fastdec.hub.tokenizers.chat import Chats
from fastdec.models.api import source_words
from fastdec.text import programs
from fastdec.text.generator import ROWS
from fastdec.text.load import is_tuned, load_tokenizer, open_fast, open_folder
from fastdec.tuning.tuned import file_to_read

# The tree of heads may be the name of a file: medusa(choices=tree.json)
TREE = r"""choices=['"]?([^'",()\[\]]+\.json)['"]?"""
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
  """Adds the flags that say what drafts for a model, how, and in which type of numbers."""
  parser.add_argument('--draft', help='a smaller model, or the folder of a draft network')
  parser.add_argument('--heads', help='folder of prediction heads')
  parser.add_argument(
    '--strategy',
    help="a strategy as in Python, such as 'eagle(depth=7, width=8, nodes=32)'; or 'tuned', which"
    ' fastdec tune chose for the model; or the file that it wrote. Also give the --draft or --heads'
    ' that it uses (the usual strategy for these)',
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
  """Adds the flags of chats with a model that has a chat template."""
  parser.add_argument(
    '--chat', action='store_true', help="wraps texts in the model's chat template, as a user's turn"
  )
  parser.add_argument('--system', help='instructions before a chat (--chat is implied)')
  add_template(parser)


def add_template(parser: Parser) -> None:
  """Adds the flag of the variables of a chat template."""
  parser.add_argument(
    '--template',
    type=variable,
    action='append',
    help='variable of the chat template, such as enable_thinking=false; once or more',
  )


def read_template(args: argparse.Namespace) -> dict[str, Any]:
  """Reads the variables of the chat template; refuses those that the template does not use."""
  values = dict(getattr(args, 'template', None) or ())
  if values:
    tokenizer = load_tokenizer(open_folder(args.model))
    if not isinstance(tokenizer, Chats):
      raise UserError(f'{args.model} has no chat template: leave out --template')
    tokenizer.check_variables(values)
  return values


def has_chat_template(model: str) -> bool:
  """True if the tokenizer of a model's folder has a chat template."""
  tokenizer = load_tokenizer(open_folder(model))
  return isinstance(tokenizer, Chats) and bool(tokenizer.templates())


def apply_chat_flags(
  args: argparse.Namespace, prompts: Sequence[Prompt], are_texts: bool = False
) -> list[Any]:
  """Wraps prompts in chats as the flags say, and warns of what may be a mistake.

  Args:
    args: the flags, including those of `add_chat`.
    prompts: as `read_prompts` returns them.
    are_texts: the model does not continue them, so that texts without a template are right.

  Raises:
    UserError: the flags are for a chat, but the model has no chat template.
  """
  check_text('--system', args.system)
  is_chat = args.chat or args.system is not None or bool(args.template)
  has_template = has_chat_template(args.model)
  if is_chat and not has_template:
    raise UserError(f'{args.model} has no chat template: leave out --chat, --system and --template')
  note = None
  if has_template and any(type(prompt) is str for prompt in prompts):
    note = 'has a chat template, and texts are continued without it: --chat wraps them in it'
  elif not has_template and any(isinstance(prompt, Question) for prompt in prompts):
    note = 'has no chat template: it continues the questions as texts'
  if note is not None and not is_chat and not are_texts:
    warnings.warn(f'{args.model} {note}', UserNote, stacklevel=2)
  return [*wrap_in_chats(prompts, is_chat, args.system, has_template)]


def encode_texts(
  args: argparse.Namespace, tokenizer: Any, texts: Sequence[Prompt]
) -> list[list[int]]:
  """Returns the ids of texts and of whole chats, which end without the start of an answer."""
  ids, template = [], read_template(args)
  for text in apply_chat_flags(args, texts, are_texts=True):
    if isinstance(text, str):
      ids.append(tokenizer.encode(text))
    else:
      ids.append(tokenizer.encode_chat(text, add_generation_prompt=False, **template))
  return ids


def check_text(flag: str, text: str | None) -> None:
  """Raises UserError for a text that is empty or not UTF-8."""
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
  """Adds the flag that keeps no programs. The settings of an output do not include it."""
  parser.add_argument(
    '--no-cache',
    action=_NoCache,
    nargs=0,
    dest=argparse.SUPPRESS,
    default=argparse.SUPPRESS,
    help='does not keep compiled programs for the next time (they are kept)',
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
  """Adds the flags of processors, which replace those of the model's folder."""
  for name, (kind, meaning) in PROCESSORS.items():
    parser.add_argument(f'--{name.replace("_", "-")}', type=kind, help=meaning)


def pick_flags(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
  """Returns those of these flags that are set. A command need not have all of them."""
  values = {}
  for name in names:
    value = getattr(args, name, None)
    if value is not None:
      values[name] = value
  return values


def read_form(args: argparse.Namespace) -> Any:
  """Reads the form of an output: a regular expression, or the content of a JSON schema."""
  if args.json_schema is None:
    return args.regex
  if args.regex is not None:
    raise UserError('--regex cannot be used with --json-schema: give one of them')
  return read_json(place(args.json_schema), 'give the file of a JSON schema')


def make_constraint(args: argparse.Namespace, generator: fd.Generator) -> fd.Constraint | None:
  """Returns the constraint of the flags; a generator without weights is enough to check it."""
  form = read_form(args)
  if form is None:
    return None
  if args.json_schema is None:
    constraint = fd.Constraint.regex(form, generator.tokenizer)
  else:
    constraint = fd.Constraint.json_schema(form, generator.tokenizer)
  constraint.laws(generator.model, 1)  # refuses a model with other words, or without an end
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
    UserError: the folder is not a model's, or has no tokenizer; a prompt is empty, is too long, or
      holds what the model does not know; the tokenizer lacks a language.
  """
  folder = open_fast(model, dtype)
  generator = fd.Generator(
    folder.model,
    None,
    load_tokenizer(folder),
    source=source,
    target=target,
    template=template or {},
  )
  limit, is_source = folder.model.max_positions, folder.model.start_id is not None
  longest = 1 if is_source else max_len  # of what is written after a prompt
  for i, prompt in enumerate(prompts, 1):
    name = f'{noun} {i}'
    if len(prompts) == 1:
      name = f'the {noun}'
    try:
      ids, _ = generator.read(prompt)
    except UserError as error:
      if len(prompts) == 1:
        raise
      raise UserError(f'{name}: {error}') from None
    if limit is not None:
      check_positions(len(ids), longest, limit, name, '--max-len')
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

  # Find mistakes in the flags before weights are read: values out of their ranges raise here.
  sampling, processors = pick_flags(args, SAMPLING), pick_flags(args, PROCESSORS)
  fd.Processors(**processors)
  least = processors.get('min_new_tokens', 0)
  if least > args.max_len:
    raise UserError(
      f'--min-new-tokens={least} is above --max-len={args.max_len}: give at most that'
    )
  fd.Sampling(**sampling)
  if strategy is None:
    with_settings(fd.Greedy(), sampling)  # refuses other settings without a temperature
  else:
    strategy = re.sub(TREE, lambda file: f'choices={fd.medusa_choices(file[1])}', strategy)
    _check_settings(strategy, sampling)

  languages = pick_flags(args, ('source', 'target'))
  generator = fd.Generator.load(
    args.model, draft, heads, args.dtype, strategy=strategy, **languages
  )
  return dataclasses.replace(
    generator,
    strategy=with_settings(generator.strategy, sampling),
    processors=dataclasses.replace(generator.processors or fd.Processors(), **processors),
    template=read_template(args),
  )


def _check_settings(strategy: str, sampling: dict[str, Any]) -> None:
  """Raises UserError for flags of sampling that a strategy in words does not take.

  A strategy that needs heads or a draft, or that is misspelt, is checked later, when it is loaded.
  """
  try:
    without_part = parse(strategy)
  except UserError:
    return
  with_settings(without_part, sampling)


def restrict_cores(args: argparse.Namespace, texts: int | None = None) -> int:
  """Restricts the process to as many cores as suit the model, before JAX counts them.

  Returns how many texts to decode at once.

  Args:
    args: the flags.
    texts: their number (None: many).
  """
  rows = getattr(args, 'rows', None)
  if rows is None:
    rows = ROWS
    if is_tuned(args.strategy):
      rows = _read_tuned_rows(args)
  if texts:
    rows = min(rows, texts)
  cores.restrict(args.model, rows, args.cores)
  return rows


def tuned_file(args: argparse.Namespace) -> pathlib.Path:
  """Returns the file of `fastdec tune` that --strategy names."""
  if args.strategy == 'tuned':
    return file_to_read(args.model)
  return place(args.strategy)


def _read_tuned_rows(args: argparse.Namespace) -> int:
  """Returns how many texts at once were tuned for; `load` reports mistakes in the file."""
  file = tuned_file(args)
  if file.is_file():
    figures = read_json(file).get('figures')
    if isinstance(figures, dict) and type(figures.get('rows')) is int and figures['rows'] > 0:
      return figures['rows']
  return ROWS
