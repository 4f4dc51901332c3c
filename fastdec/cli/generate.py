"""Goes on from a prompt, or from each prompt of a file.

Example:
  fastdec generate --model=folder --prompt='A man in' --draft=smaller
  fastdec generate --model=folder --prompt='A man in' --strategy='lookahead(window=8)'
  fastdec generate --model=folder --prompts=lines.txt --output=out.jsonl --strategy=tuned
  fastdec generate --model=folder --prompt='A man in' --json-schema=man.json --strategy=forced

A model with an encoder translates the prompt. The text is shown as it is accepted, a colour for
each block. At the end come tokens per call, the share of calls that accepted a draft at each place,
tokens per second, and the ratio to one token a call, timed in turn when all is compiled. The first
guesses of a draft network are compared with what the model writes: few right ones mean that it is
of another model, or is read wrongly.

--draft takes a smaller model or a draft network (fd.load_draft), --heads any prediction heads. A
strategy in words says how they draft; a tree for heads may be a file of fastdec calibrate:
--strategy='medusa(choices=tree.json)'. --strategy=tuned, beside the folder that it drafts with,
brings its own type of numbers and number of prompts at once.

--logprobs=3 lists each token with its log-probability by the model's own law, and the 3 likeliest
tokens of its place.

--regex and --json-schema bind the text to a form (fd.Constraint); --strategy=forced drafts what the
form leaves no choice about.

Each prompt of a file (a line, or "prompt" of each line of a .jsonl file) yields a JSON line as it
ends: {"index": 0, "prompt": ..., "text": ..., "tokens": 12, "blocks": [0, 1, 3]}, which are the
prompt's place, the tokens with their end, and the calls that emitted one token, two, three;
--logprobs adds "ids", "logprobs" and "top_logprobs". Once all have, the lines are put in the order
of the prompts. A run that was stopped goes on by the same command. Beside the output, in
out.jsonl.settings.json, stands what it depends on; outputs of other settings are refused.
"""

import dataclasses
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import rich.console

import fastdec as fd
from fastdec.cli import opening, prompt_file
from fastdec.cli.flags import Parser, whole
from fastdec.cli.show import COLOURS, columns, counted, plain_console
from fastdec.decoding.protocol import finish_reason, promise_of
from fastdec.errors import UserError
from fastdec.evaluation.draft_check import TOKENS, check_draft
from fastdec.evaluation.wallclock import measure
from fastdec.files import place, read_prompts
from fastdec.text.reader import Reader


def main(words: Sequence[str]) -> None:
  parser = Parser('generate', __doc__)
  opening.add_model(parser)
  parser.add_argument('--prompt', help='text to go on from, or to translate')
  parser.add_argument('--prompts', help='file with a prompt on each line')
  parser.add_argument('--output', help='file for the JSON lines of --prompts')
  parser.add_argument('--pool', help='file of n-grams to guess too, of fastdec pool')
  opening.add_sampling(parser)
  opening.add_processors(parser)
  opening.add_constraint(parser)
  opening.add_length(parser)
  parser.add_argument(
    '--logprobs', type=whole(0), default=0, help='likeliest tokens of each place to list (0)'
  )
  opening.add_cores(parser)
  parser.add_argument('--rows', type=whole(1), help='prompts decoded at once (as tuned, or 16)')
  parser.add_argument('--plain', action='store_true', help='shows the text alone')
  parser.add_argument(
    '--repeats', type=whole(0), default=3, help='rounds of timing after a prompt (3; 0: none)'
  )
  given = parser.read(words)
  _check(given)
  console = plain_console()
  if given.prompt is not None:
    opening.settle(given, 1)
    unread = opening.unread(given.model, None, [given.prompt], given.max_len)
    constraint = opening.constraint_of(given, unread)
    generator = dataclasses.replace(_load(given), constraint=constraint)
    if not given.plain:
      say_check(console, generator, given.prompt)
    show(console, generator, given)
    return
  path, prompts = place(given.output), read_prompts(pathlib.Path(given.prompts))
  if path.exists() and not path.is_file():
    what = 'a folder' if path.is_dir() else 'no regular file'
    raise UserError(f'{path} is {what}: give --output a file, such as {path / "out.jsonl"}')
  rows = opening.settle(given)
  unread = opening.unread(given.model, None, prompts, given.max_len)
  constraint = opening.constraint_of(given, unread)
  generator = dataclasses.replace(_load(given), rows=rows, constraint=constraint)
  settings = prompt_file.settings(given, generator, prompts)
  output = prompt_file.Output(path, settings, len(prompts))
  say_check(console, generator, prompts[0])
  prompt_file.write(output, generator, prompts, given)
  _warn(console, generator)


def _check(given: Any) -> None:
  """Raises UserError for mistakes that show without a look at any file."""
  if (given.prompt is None) == (given.prompts is None):
    said = '--prompt and --prompts are both given'
    if given.prompt is None:
      said = 'there is nothing to go on from'
    raise UserError(f'{said}: give --prompt=text, or --prompts=file with --output=out.jsonl')
  if (given.prompts is None) != (given.output is None):
    raise UserError(
      '--prompts and --output belong together: give --prompts=file and --output=out.jsonl'
    )
  if given.logprobs and given.plain:
    raise UserError('--plain shows the text alone: leave it out, or --logprobs')
  check_text('--prompt', given.prompt)


def check_text(flag: str, text: str | None) -> None:
  """Raises UserError for a text that is empty, or not of characters."""
  if text is None:
    return
  try:
    text.encode()
  except UnicodeEncodeError:
    raise UserError(f'{flag} is not UTF-8: convert the text') from None
  if not text.strip():
    raise UserError(f'{flag} is empty: give some text to go on from')


def _load(given: Any) -> fd.Generator:
  return opening.with_pool(opening.load(given), given.pool)


def say_check(console: rich.console.Console, generator: fd.Generator, prompt: str) -> None:
  """Prints how often a draft network is right behind this prompt.

  A warning names the causes where that is seldom.
  """
  strategy, model = generator.strategy, generator.model
  if strategy.part != 'draft' or strategy.drafts_by_model:
    return
  ids, _ = generator.read(prompt)
  before, room = 1 if model.start_id is not None else len(ids), TOKENS
  if model.max_positions is not None:
    room = min(TOKENS, model.max_positions - before + 1)
  inputs = np.array([ids], np.int32)
  share = check_draft(model, generator.params, tuple(strategy.draft), inputs, tokens=room)
  said = f'{share:.0%} of its first guesses are what the model writes'
  if math.isnan(share):
    said = 'what the model writes behind this prompt is too short to judge it by'
  console.print(f'draft: {said}', style='dim')


def show(console: rich.console.Console, generator: fd.Generator, given: Any) -> None:
  """Streams what follows the prompt, and sums up; with --repeats=0 nothing is timed."""
  ids, context = generator.read(given.prompt)
  if context and not given.plain:
    console.out(given.prompt, style='dim', end='', highlight=False)
  tokens, sizes, _ = streamed(console, generator, given.prompt, given, given.logprobs)
  if given.plain:
    return
  if given.logprobs:
    console.print(likeliest(generator.tokenizer, tokens))
  lines = [worth(generator.strategy, sizes)]
  if finish_reason(generator.model, tokens) == 'length':
    lines.append(f'cut at --max-len={given.max_len}: raise it for a longer text')
  if given.repeats:
    key = jax.random.key(given.seed)
    decoded = {'inputs': np.array([ids], np.int32), 'max_len': given.max_len, 'key': key}
    decoded |= {'processors': generator.processors, 'constraint': generator.constraint}
    lines.append(timed(generator, decoded, given.repeats))
  for line in lines:
    console.print(line, style='dim')
  _warn(console, generator)


def likeliest(tokenizer: Any, tokens: Sequence[Any]) -> str:
  """Lists tokens, each with its log-probability, and with the likeliest ones of its place."""
  lines = []
  for token in tokens:
    each = [(token, token.logprob), *token.top_logprobs.items()]
    lines.append([f'{tokenizer.decode([int(one)])!r} {found:.2f}' for one, found in each])
  return columns(lines)


def streamed(
  console: rich.console.Console, generator: fd.Generator, prompt: Any, given: Any, logprobs: int = 0
) -> tuple[list[int], list[int], str]:
  """Prints the text behind a prompt or messages as it is accepted.

  Returns its tokens, the tokens of each call, and the text. No call emitted the first token.
  """
  ids, context = generator.read(prompt)
  reader, tokens, sizes, pieces = Reader(generator.tokenizer, context), [], [], []

  def say(piece: str) -> None:
    pieces.append(piece)
    console.out(piece, style=COLOURS[len(sizes) % 2], end='', highlight=False)

  inputs, key = np.array([ids], np.int32), jax.random.key(given.seed)
  how = {'strategy': generator.strategy, 'max_len': given.max_len, 'key': key}
  how |= {'logprobs': logprobs}
  how |= {'processors': generator.processors, 'constraint': generator.constraint}
  try:
    for (block,) in fd.stream(generator.model, generator.params, inputs, **how):
      tokens += block
      sizes.append(len(block))
      say(reader.add(block))
    say(reader.finish())
  finally:
    console.out()  # Ctrl-C, too, ends a line
  return tokens, sizes[1:], ''.join(pieces)


def worth(strategy: Any, sizes: Sequence[int]) -> str:
  """Sums up the blocks, in a line or two."""
  if not sizes:
    return '1 token, which the prompt yielded: no call'
  count = counted(np.bincount(sizes)[1:].tolist(), strategy.most_accepted)
  return f'{sum(sizes) + 1} tokens, {len(sizes)} calls: {count}'


def timed(generator: fd.Generator, given: dict[str, Any], repeats: int) -> str:
  """Says tokens per second, and the ratio to one token a call, decoding in turn."""
  sampling = generator.strategy.sampling
  plain = fd.Greedy().with_sampling(sampling)
  strategies = {'this': generator.strategy}
  if generator.strategy.most_accepted:
    strategies['plain'] = plain

  def decode(strategy: Any) -> Any:
    return fd.decode(generator.model, generator.params, strategy=strategy, **given)

  lengths, timers = {}, {}
  for name, strategy in strategies.items():
    lengths[name] = int(decode(strategy).lengths[0])
    timers[name] = lambda strategy=strategy: decode(strategy).tokens
  times = measure(timers, repeats)
  speeds = {name: lengths[name] / time.median for name, time in times.items()}
  line = f'{speeds["this"]:.1f} tokens per second'
  if 'plain' in strategies:
    ratio = speeds['this'] / speeds['plain']
    name = 'greedy decoding' if sampling is None else 'sampling one by one'
    line += f', {ratio:.2f} times {name} ({speeds["plain"]:.1f} tokens per second)'
  device = jax.devices()[0].device_kind
  return f'{line}; {device}, one prompt, compiled, median of {repeats}'


def _warn(console: rich.console.Console, generator: fd.Generator) -> None:
  """Notes text that is not the model's own."""
  if promise_of(generator.strategy.effective_rule) == 'relaxed':
    console.print(
      'not lossless: this strategy accepts more than what the model would have written', style='dim'
    )
