"""Continues a prompt, or each prompt of a file.

Example:
  fastdec generate --model=folder --prompt='A man in' --draft=smaller
  fastdec generate --model=folder --prompt='A man in' --strategy='lookahead(window=8)'
  fastdec generate --model=folder --prompts=lines.txt --output=out.jsonl --strategy=tuned
  fastdec generate --model=folder --prompt='A man in' --json-schema=man.json --strategy=forced

A model with an encoder translates the prompt. The text is shown as it is accepted, with a colour
for each block. Then come the tokens per call, the share of calls that accepted a draft at each
place, the tokens per second, and how many times as fast as one token a call that is: both are
timed in turn, when all is compiled. A warning says if calls hardly ever accept a guess of a draft
network: it was trained for a different model, or is read wrongly.

--draft takes a smaller model or a draft network (fd.load_draft), --heads any prediction heads.
--strategy says how they draft; a tree for heads may be a file of fastdec calibrate:
--strategy='medusa(choices=tree.json)'. --strategy=tuned brings its own type of numbers and number
of prompts at once; give the folder that it drafts with too.

In float32, exact strategies write greedy decoding's text, except at near ties; in bfloat16 and int8
not always. docs/own/exact.md has the figures.

--logprobs=3 lists each token with its log-probability by the model's own distribution, and the 3
likeliest tokens at its place.

--regex and --json-schema bind the text to a form (fd.Constraint); --strategy=forced drafts the
tokens that the form leaves no choice about.

A file of prompts has one on each line, or records of JSON, on a line each or in an array. A record
has one of: "prompt", a text; "messages", [{"role": "user", "content": ...}]; "turns", a user's
texts, of which the model gets the first; "question"; "conversations", as in ShareGPT. The file may
be packed by gzip, bzip2 or xz. If the model has a chat template, messages, turns and questions are
wrapped in it, and with --chat other texts too.

--trace=FILE decodes once more, one prompt after another, and records what each call guessed, the
model's likeliest tokens, and what was accepted. fd.replay computes from it what another
strategy would have done (docs/own/simulate.md).

Each prompt of a file yields a JSON line as it ends: {"index": 0, "prompt": ..., "text": ...,
"tokens": 12, "blocks": [0, 1, 3], "finish_reason": "end"}. "index" is the prompt's place in the
file, "tokens" the number of tokens with the end token, "blocks" the number of calls that emitted
one token, two, three, and "finish_reason" is "end", "stop" or "length". A chat has "messages"
instead of "prompt". --logprobs adds "ids", "logprobs" and "top_logprobs". When all prompts are
done, the lines are sorted. The same command resumes a run that was stopped. out.jsonl.settings.json
holds what the output depends on; the command adds nothing to an output of other settings.
"""

import dataclasses
import os
import pathlib
import warnings
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import rich.console

import fastdec as fd
from fastdec import extras
from fastdec.cli import opening, prompt_file
from fastdec.cli.flags import Parser, whole
from fastdec.cli.prompts import read_prompts
from fastdec.cli.show import COLOURS, columns, describe_blocks
from fastdec.decoding.protocol import finish_reason, promise_of
from fastdec.decoding.request import Settings
from fastdec.decoding.run import start
from fastdec.decoding.score import check_logprobs
from fastdec.decoding.sizes import SINGLE
from fastdec.errors import UserError, UserNote
from fastdec.evaluation.wallclock import measure
from fastdec.files import place_to_write, read_stdin, text_of
from fastdec.kernels.quantized import TYPES, is_quantized
from fastdec.terminal import plain_console
from fastdec.text.generator import key_of

# A correct draft of EAGLE-3 or DFlash guesses 60 to 85 % of its target's tokens. If a layer is off
# by one, a norm is missing or the base of rotations is wrong, it guesses less than 30 %.
LEAST = 0.3
CALLS, TOKENS = 10, 64  # calls to judge a draft by, and tokens that they write at most


def main(words: Sequence[str]) -> None:
  parser = Parser('generate', __doc__)
  opening.add_model(parser)
  opening.add_drafting(parser)
  parser.add_argument(
    '--prompt', help='text to continue, or to translate; - reads it from standard input'
  )
  parser.add_argument('--prompts', help='file with a prompt on each line, or records of JSON')
  opening.add_chat(parser)
  parser.add_argument('--output', help='file for the JSON lines of --prompts')
  parser.add_argument('--pool', help='file of n-grams to guess too, written by fastdec pool')
  opening.add_sampling(parser)
  opening.add_processors(parser)
  parser.add_argument('--regex', help='regular expression that an output must match as a whole')
  parser.add_argument('--json-schema', help='file of a JSON schema that an output must meet')
  opening.add_stop(parser)
  opening.add_length(parser)
  parser.add_argument(
    '--logprobs', type=whole(0), default=0, help='likeliest tokens of each place to list (0)'
  )
  opening.add_cores(parser)
  parser.add_argument('--rows', type=whole(1), help='prompts decoded at once (as tuned, or 16)')
  parser.add_argument('--trace', help='file that records every call, for fd.replay')
  parser.add_argument('--plain', action='store_true', help='shows only the text')
  parser.add_argument(
    '--repeats', type=whole(0, 1000), default=3, help='rounds of timing after a prompt (3; 0: none)'
  )
  args = parser.read(words)
  if args.prompt == '-':
    args.prompt = text_of(read_stdin(), 'standard input').removesuffix('\n').removesuffix('\r')
  _check(args)
  console = plain_console()
  if args.prompt is not None:
    _generate_one(console, args)
  else:
    _generate_all(console, args)


def _check(args: Namespace) -> None:
  """Raises UserError for mistakes that can be found without opening a file."""
  if (args.prompt is None) == (args.prompts is None):
    problem = '--prompt cannot be used with --prompts'
    if args.prompt is None:
      problem = 'there is nothing to continue'
    raise UserError(f'{problem}: give --prompt=text, or --prompts=file with --output=out.jsonl')
  if (args.prompts is None) != (args.output is None):
    raise UserError(
      '--prompts needs --output, and vice versa: give --prompts=file and --output=out.jsonl'
    )
  if args.trace is not None:
    place_to_write(args.trace)
    if args.output is not None and os.path.realpath(args.trace) == os.path.realpath(args.output):
      raise UserError(f'--trace and --output are the same file, {args.trace}: give two names')
  if args.logprobs and args.plain:
    raise UserError('--plain shows only the text, without --logprobs: leave out one of them')
  opening.check_text('--prompt', args.prompt)
  if opening.read_form(args) is not None:
    extras.require('outlines_core')


def _generate_one(console: rich.console.Console, args: Namespace) -> None:
  """Shows what follows one prompt."""
  opening.restrict_cores(args, 1)
  (args.prompt,) = opening.apply_chat_flags(args, [args.prompt])
  generator = _load(args, [args.prompt])
  show(console, generator, args)
  _trace(console, args, generator, [args.prompt])


def _generate_all(console: rich.console.Console, args: Namespace) -> None:
  """Writes what follows each prompt of a file."""
  path, prompts = place_to_write(args.output), read_prompts(pathlib.Path(args.prompts))
  rows = opening.restrict_cores(args)
  templated = opening.apply_chat_flags(args, prompts)
  generator = dataclasses.replace(_load(args, templated), rows=rows)
  record = prompt_file.settings(args, generator, prompts)
  prompt_file.check_settings(path, record)
  if generator.strategy.part == 'draft':
    first = generator(templated[0], min(TOKENS, args.max_len))
    warn_of_wrong_draft(generator.strategy, [len(block) for block in first.blocks[1:]])
  prompt_file.write(
    path, record, generator, prompts, templated, args.max_len, args.seed, args.logprobs, args.stop
  )
  _trace(console, args, generator, templated)
  _warn(console, generator)


def _load(args: Namespace, prompts: Sequence[Any]) -> fd.Generator:
  """Checks prompts and constraint before weights are read, and reads the model."""
  opened = opening.open_without_weights(
    args.model, None, prompts, args.max_len, template=opening.read_template(args)
  )
  check_logprobs(opened.model, args.logprobs)
  constraint = opening.make_constraint(args, opened)
  pool = None
  if args.pool is not None:
    pool = fd.load_pool(args.pool)
  generator = dataclasses.replace(opening.load(args), constraint=constraint)
  if pool is None:
    return generator

  # The strategy guesses the n-grams of the pool too.
  pool.check(generator.model.vocab_size)
  if not hasattr(generator.strategy, 'with_pool'):
    raise UserError(
      '--pool needs a strategy that drafts from text: give --strategy=lookahead or prompt_lookup'
    )
  return dataclasses.replace(generator, strategy=generator.strategy.with_pool(pool))


def _trace(
  console: rich.console.Console, args: Namespace, generator: fd.Generator, prompts: Sequence[Any]
) -> None:
  """Writes the file of --trace, if it is given."""
  if args.trace is None:
    return
  # The type of numbers in which `fd.load` reads the same model again.
  dtype = getattr(getattr(generator.model, 'config', None), 'dtype', None)
  for quantized in TYPES:
    if is_quantized(generator.params, (quantized,)):
      dtype = quantized
      break
  ids, contexts = zip(*map(generator.read, prompts), strict=True)
  recorded = fd.trace(
    generator.model, generator.params, ids, generator.strategy, args.max_len,
    key_of(generator.strategy, args.seed), generator.processors, generator.constraint,
    folder=args.model, dtype=dtype, stop=args.stop, tokenizer=generator.tokenizer,
    contexts=contexts,
  )  # fmt: skip
  recorded.save(args.trace)
  console.print(f'{args.trace} has every call: fd.replay reads it', style='dim')


def warn_of_wrong_draft(strategy: Any, sizes: Sequence[int]) -> None:
  """Warns if calls, which wrote these numbers of tokens, hardly used a draft network's guesses."""
  if strategy.part != 'draft' or strategy.drafts_by_model or len(sizes) < CALLS:
    return
  share = sum(size > 1 for size in sizes) / len(sizes)
  if share < LEAST:
    warnings.warn(
      f'only {share:.0%} of {len(sizes)} calls accepted a guess of this draft, while at least 60 %'
      ' accept one of a correct draft: if it is trained, it may be made for a different model, its'
      ' layers may be numbered differently (taps), a norm may be missing or one too many, or the'
      ' base of its rotations (rope_theta) may be wrong',
      UserNote,
      stacklevel=2,
    )


def show(console: rich.console.Console, generator: fd.Generator, args: Any) -> None:
  """Streams what follows the prompt, then sums up; with --repeats=0 nothing is timed."""
  ids, context = generator.read(args.prompt)
  if context and not args.plain:
    console.out(args.prompt, style='dim', end='', highlight=False)
  tokens, sizes, _ = show_stream(console, generator, args.prompt, args, args.logprobs)
  if args.plain:
    return
  if args.logprobs:
    console.print(list_logprobs(generator.tokenizer, tokens))
  warn_of_wrong_draft(generator.strategy, sizes)
  lines = [sum_up(generator.strategy, sizes)]
  if finish_reason(generator.model, tokens) == 'length' and len(tokens) == args.max_len:
    lines.append(f'cut at --max-len={args.max_len}: raise it for a longer text')
  if args.repeats:
    lines.append(time_decoding(generator, ids, args))
  for line in lines:
    console.print(line, style='dim')
  _warn(console, generator)


def list_logprobs(tokenizer: Any, tokens: Sequence[Any]) -> str:
  """Lists tokens, each with its log-probability and with the likeliest ones at its place."""
  lines = []
  for token in tokens:
    line = [f'{tokenizer.decode([int(token)])!r} {token.logprob:.2f}']
    for other, logprob in token.top_logprobs.items():
      line.append(f'{tokenizer.decode([other])!r} {logprob:.2f}')
    lines.append(line)
  return columns(lines)


def show_stream(
  console: rich.console.Console, generator: fd.Generator, prompt: Any, args: Any, logprobs: int = 0
) -> tuple[list[int], list[int], str]:
  """Prints the text after a prompt or messages as it is accepted.

  Returns its tokens, the number of tokens of each call, and the text. The first token comes with
  the prompt, and no call emits it.
  """
  tokens, sizes, text = [], [], ''
  blocks = generator.stream_blocks(
    prompt, args.max_len, getattr(args, 'stop', ()), args.seed, logprobs
  )
  try:
    for block, piece in blocks:
      if block:
        tokens += block
        sizes.append(len(block))
      text += piece
      console.out(piece, style=COLOURS[len(sizes) % 2], end='', highlight=False)
  finally:
    console.out()  # Ctrl-C, too, ends a line
  return tokens, sizes[1:], text


def sum_up(strategy: Any, sizes: Sequence[int]) -> str:
  """Describes the numbers of tokens of each call, in a line or two."""
  if not sizes:
    return '1 token, which came with the prompt: no call'
  count = describe_blocks(np.bincount(sizes)[1:].tolist(), strategy.most_accepted)
  return f'{sum(sizes) + 1} tokens, {len(sizes)} calls: {count}'


def time_decoding(generator: fd.Generator, ids: Sequence[int], args: Any) -> str:
  """Measures tokens per second, and their ratio to one token a call, decoding in turn."""
  sampling = generator.strategy.sampling
  strategies = {'this': generator.strategy}
  if generator.strategy.most_accepted:
    strategies['plain'] = fd.Greedy().with_sampling(sampling)

  def decode(strategy: Any) -> Any:
    settings = Settings(
      max_len=args.max_len, key=key_of(strategy, args.seed), processors=generator.processors,
      constraint=generator.constraint,
    )  # fmt: skip
    inputs = np.array([ids], np.int32)
    run = start(generator.model, generator.params, inputs, strategy, settings, ladders=SINGLE)
    run.advance()
    return jax.device_get(run.decoded)

  lengths, timers = {}, {}
  for name, strategy in strategies.items():
    lengths[name] = int(decode(strategy).lengths[0])
    timers[name] = lambda strategy=strategy: decode(strategy).tokens
  times = measure(timers, args.repeats)
  speeds = {name: lengths[name] / time.median for name, time in times.items()}
  line = f'{speeds["this"]:.1f} tokens per second'
  if 'plain' in strategies:
    ratio = speeds['this'] / speeds['plain']
    name = 'greedy decoding' if sampling is None else 'sampling one by one'
    line += f', {ratio:.2f} times {name} ({speeds["plain"]:.1f} tokens per second)'
  device = jax.devices()[0].device_kind
  return f'{line}; {device}, one prompt, compiled, median of {args.repeats}'


def _warn(console: rich.console.Console, generator: fd.Generator) -> None:
  """Says so if the strategy writes other text than the model would."""
  if promise_of(generator.strategy.effective_rule) == 'relaxed':
    console.print(
      'not lossless: this strategy may accept tokens that the model would not write', style='dim'
    )
