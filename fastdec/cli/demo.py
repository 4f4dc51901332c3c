"""Shows in a browser how a model decodes: greedily and by a strategy, side by side.

Example:
  fastdec demo --model=folder --draft=smaller
  fastdec demo --model=folder --chat

Type a text, and both ways continue or translate it, block by block, with their calls, tokens and
milliseconds; with --chat or --system they answer it. They write one after the other, with compiled
programs, and are then shown at their own speed. Only this machine can open the page, unless --host
says otherwise.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

import fastdec as fd
from fastdec.cli import opening, page
from fastdec.cli.flags import Parser, whole
from fastdec.decoding.description import label
from fastdec.errors import UserError
from fastdec.evaluation import wallclock
from fastdec.fields import quote
from fastdec.files import parse_json, to_json

BYTES = 20_000  # of a text that is typed


def main(words: Sequence[str]) -> None:
  parser = Parser('demo', __doc__)
  opening.add_model(parser)
  opening.add_drafting(parser)
  opening.add_chat(parser)
  opening.add_length(parser)
  opening.add_cores(parser)
  parser.add_argument(
    '--host', default='127.0.0.1', help='address of the page; 0.0.0.0 opens it to the whole network'
  )
  parser.add_argument(
    '--port', type=whole(0, 65535), default=8000, help='port of the page (8000); 0: any free one'
  )
  args = parser.read(words)
  with Server(args.host, args.port) as server:
    opening.restrict_cores(args, 1)
    (form,) = opening.apply_chat_flags(args, ['text'])
    server.fill(opening.load(args), args.max_len, form)
    print(f'The page is {server.address}; Ctrl-C ends it.', flush=True)
    with contextlib.suppress(KeyboardInterrupt):
      server.serve_forever()


class Server(page.Server):
  """The server of the page; its address is taken before a model is read."""

  def __init__(self, host: str, port: int) -> None:
    super().__init__(host, port, Handler)
    self._lock = threading.Lock()

  def fill(self, generator: fd.Generator, max_len: int, form: Any = 'text') -> None:
    """Gives the server its model.

    Args:
      generator: decodes by the strategy to show.
      max_len: most tokens.
      form: what a prompt is: any text; or messages, of which the last gets the text that is typed.
    """
    self._generator, self._max_len, self._form = generator, max_len, form
    plain = fd.Greedy().with_sampling(generator.strategy.sampling)
    self._strategies = (plain, generator.strategy)

  @property
  def facts(self) -> dict[str, Any]:
    """Facts about the model that the page shows."""
    asks = 'Text to continue' if isinstance(self._form, str) else 'Message'
    if self._generator.model.start_id is not None:
      asks = 'Text to translate'
    return {
      'names': [label(strategy) for strategy in self._strategies],
      'device': jax.devices()[0].device_kind,
      'most': self._max_len,
      'asks': asks,
    }

  def write(self, prompt: str) -> list[dict[str, Any]]:
    """Writes what follows a prompt in both ways, in turn; requests wait for one another.

    Returns:
      For each way its blocks: text, number of tokens, and milliseconds since the beginning.
    """
    formed: Any = prompt
    if not isinstance(self._form, str):
      formed = [*self._form[:-1], {**self._form[-1], 'content': prompt}]
    with self._lock:
      runs = []
      for strategy in self._strategies:
        self._run(formed, strategy)  # compiles new programs
        runs.append(self._run(formed, strategy))
    return runs

  def _run(self, prompt: Any, strategy: Any) -> dict[str, Any]:
    generator = dataclasses.replace(self._generator, strategy=strategy)
    blocks, tokens = [], 0
    started = wallclock.now()
    for block, text in generator.stream_blocks(prompt, self._max_len):
      if block:
        blocks.append([text, len(block), 1000 * (wallclock.now() - started)])
        tokens += len(block)
      else:
        blocks[-1][0] += text
    return {'blocks': blocks, 'tokens': tokens, 'calls': len(blocks) - 1}


class Handler(page.Handler):
  """One request of a browser, and the answer to it."""

  server: Server

  def do_GET(self) -> None:
    if self.path != '/':
      return self.send_error(404, 'this page does not exist')
    self.show(Path(__file__).with_name('demo.html'), self.server.facts)

  def do_POST(self) -> None:
    body = self.body('/write', BYTES)
    if body is None:
      return
    try:
      prompt = parse_json(body)
      if not isinstance(prompt, str) or not prompt.strip():
        raise UserError(f'{quote(prompt)} is not a text: give some to continue')
      prompt.encode()
      answer: Any = {'runs': self.server.write(prompt)}
    except UserError as error:
      answer = {'error': str(error)}
    except ValueError:  # half a character is one too
      answer = {'error': 'this is not text in UTF-8: give another'}
    self.answer(to_json(answer).encode(), 'application/json')
