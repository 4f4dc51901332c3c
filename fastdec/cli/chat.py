"""Talks with a model, by the chat template of its tokenizer.

Example:
  fastdec chat --model=folder --draft=smaller --system='You are a helpful assistant.'
  fastdec chat --model=folder --template=enable_thinking=false

A line is a message. The answer is shown as it is written, with a colour for each block. The model
reads all earlier messages again. Ctrl-D or an empty line ends the talk.
"""

import sys
from collections.abc import Sequence

from fastdec.cli import opening
from fastdec.cli.flags import Parser
from fastdec.cli.generate import show_stream, sum_up
from fastdec.terminal import plain_console


def main(words: Sequence[str]) -> None:
  parser = Parser('chat', __doc__)
  opening.add_model(parser)
  opening.add_drafting(parser)
  parser.add_argument('--system', help='instructions before the talk')
  opening.add_template(parser)
  opening.add_sampling(parser)
  opening.add_processors(parser)
  opening.add_stop(parser)
  opening.add_length(parser)
  opening.add_cores(parser)
  args = parser.read(words)
  opening.check_text('--system', args.system)
  opening.restrict_cores(args, 1)
  talk = []
  if args.system is not None:
    talk.append({'role': 'system', 'content': args.system})
  # A tokenizer without a template is refused before weights are read.
  first = [*talk, {'role': 'user', 'content': 'Hello'}]
  template = opening.read_template(args)
  opening.open_without_weights(args.model, None, [first], args.max_len, template=template)
  generator, console = opening.load(args), plain_console()
  while True:
    if sys.stdin is None:
      return
    if sys.stdin.isatty():
      console.out('> ', end='')
    line = sys.stdin.readline().strip()
    if not line:
      return
    opening.check_text('the message', line)
    talk.append({'role': 'user', 'content': line})
    _, sizes, text = show_stream(console, generator, talk, args)
    console.print(sum_up(generator.strategy, sizes), style='dim')
    talk.append({'role': 'assistant', 'content': text})
