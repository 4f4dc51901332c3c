"""Talks with a model, by the chat template of its tokenizer.

Example:
  fastdec chat --model=folder --draft=smaller --system='You are a helpful assistant.'

A line is a message; the answer is shown as it is written, a colour for each block. All that was
said before is read again. Ctrl-D or an empty line ends the talk.
"""

import sys
from collections.abc import Sequence

from fastdec.cli import opening
from fastdec.cli.flags import Parser
from fastdec.cli.generate import check_text, streamed, worth
from fastdec.cli.show import plain_console


def main(words: Sequence[str]) -> None:
  parser = Parser('chat', __doc__)
  opening.add_model(parser)
  parser.add_argument('--system', help='what the model is told before the talk')
  opening.add_sampling(parser)
  opening.add_processors(parser)
  opening.add_length(parser)
  opening.add_cores(parser)
  given = parser.read(words)
  check_text('--system', given.system)
  opening.settle(given, 1)
  talk = [] if given.system is None else [{'role': 'system', 'content': given.system}]
  first = [*talk, {'role': 'user', 'content': 'Hello'}]
  opening.unread(given.model, None, [first], given.max_len)  # is there a template?
  generator, console = opening.load(given), plain_console()
  while True:
    if sys.stdin.isatty():
      console.out('> ', end='')
    line = sys.stdin.readline().strip()
    if not line:
      return
    check_text('the message', line)
    talk.append({'role': 'user', 'content': line})
    _, sizes, text = streamed(console, generator, talk, given)
    console.print(worth(generator.strategy, sizes), style='dim')
    talk.append({'role': 'assistant', 'content': text})
