"""What a rater sees, and the page's server.

  GET  /                                           the page; its parts are under /page/
  GET  /state?rater=<name>                         {done, total, place}: `place` is that of the next pair, or null
  GET  /picture/<place>/<input|left|right>?rater=  a PNG
  POST /vote  {rater, place, side}                 -> state

A rater has an order and sides of his own, which follow from his name and the study's seed: they are
the same after a reload or a restart, and nobody who sees the page can work out which side is which
method. The page makes a name for those who give none. Whoever can reach the server can vote, and
whoever knows a rater's name can go on as that rater.
"""

import functools
import http.server
import io
import json
import random
import socket
import socketserver
import sqlite3
import unicodedata
import urllib.parse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from experiments.papers.stern2018.voting.store import Votes
from experiments.papers.stern2018.voting.study import Study, Trial
from fastdec.errors import UserError
from fastdec.files import parse_json

LONGEST_NAME = 60  # characters, as in the page's field
LONGEST_BODY = 1_000  # bytes of a request
PAGE = Path(__file__).parent / 'page'
FILES = {
  '/': ('index.html', 'text/html; charset=utf-8'),
  '/page/page.js': ('page.js', 'text/javascript; charset=utf-8'),
  '/page/style.css': ('style.css', 'text/css; charset=utf-8'),
  '/page/icon.svg': ('icon.svg', 'image/svg+xml'),
}


class Refused(Exception):
  """A request that cannot be answered: a status of HTTP, and a sentence."""


class Shown(NamedTuple):
  """A trial as a rater gets it; `side` is where method 1 is."""

  trial: Trial
  side: str


class Ballots:
  """What raters see of a study, and their votes; its state is the votes file alone."""

  def __init__(self, study: Study, votes: Votes) -> None:
    self.study, self.votes = study, votes
    self.order = functools.lru_cache(maxsize=256)(self._order)

  def _order(self, rater: str) -> tuple[Shown, ...]:
    """All trials in this rater's order; the page knows them by their place in it, from 0."""
    generator = random.Random(f'{self.votes.seed} {rater}')
    drawn = sorted((generator.random(), generator.random(), trial) for trial in self.study.trials)
    return tuple(Shown(trial, 'left' if coin < 0.5 else 'right') for _, coin, trial in drawn)

  def state(self, rater: str) -> dict[str, Any]:
    """How far a rater is."""
    given = self.votes.of(rater)
    order = self.order(rater)
    place = next((place for place, shown in enumerate(order) if shown.trial not in given), None)
    return {'done': len(given), 'total': len(order), 'place': place}

  def vote(self, rater: str, place: Any, side: Any) -> dict[str, Any]:
    """Keeps a vote, and says how far the rater is then."""
    if (
      type(place) is not int
      or not 0 <= place < len(self.study.trials)
      or side not in ('left', 'right')
    ):
      raise Refused(400, 'a vote names the place of a pair, and left or right')
    shown = self.order(rater)[place]
    self.votes.vote(rater, shown.trial, side == shown.side)
    return self.state(rater)

  def picture(self, rater: str, place: str, name: str) -> bytes:
    """A picture as PNG, not compressed: all pictures of a shape have the same length, so that it
    tells nothing."""
    if (
      not place.isdecimal()
      or int(place) >= len(self.study.trials)
      or name not in ('input', 'left', 'right')
    ):
      raise Refused(404, 'there is no such picture')
    (k, rule, image), side = self.order(rater)[int(place)]
    if name == 'input':
      pixels = self.study.inputs[image]
    else:
      pixels = self.study.outputs[k, rule][image] if name == side else self.study.baseline[image]
    return png(pixels)


def png(pixels: np.ndarray) -> bytes:
  """Pixels uint8[h, w, 3] as a PNG whose length is that of every picture of this size."""
  file = io.BytesIO()
  Image.fromarray(pixels).save(file, 'PNG', compress_level=0)
  return file.getvalue()


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
  """Listens on a host and a port from the start; port 0 is any free one. Answers once it is given
  its ballots."""

  allow_reuse_address = True
  daemon_threads = True
  ballots: Ballots

  def __init__(self, host: str, port: int) -> None:
    """Raises UserError where another server has the port, or this machine does not have the
    address."""
    self.address_family = socket.AF_INET6 if ':' in host else socket.AF_INET
    try:
      super().__init__((host, port), Handler)
    except OSError as error:
      raise UserError(
        f'cannot serve on {host}:{port} ({error.strerror or error}): end the server that has this'
        ' port, or give '
        'another --port or --host'
      ) from None
    host, port = str(self.server_address[0]), self.server_address[1]
    self.name = f'[{host}]:{port}' if ':' in host else f'{host}:{port}'

  def may_be(self, name: str) -> bool:
    """Whether a browser may know this server by that name; open to the network, it may have any.

    A page from elsewhere that has its own name resolved to this machine (DNS rebinding) comes with
    that name.
    """
    return self.server_address[0] in ('0.0.0.0', '::') or name in (
      self.name,
      f'localhost:{self.server_address[1]}',
    )

  def handle_error(self, request: Any, client_address: Any) -> None:
    """Says nothing of browsers that went away."""


class Handler(http.server.BaseHTTPRequestHandler):
  """Answers the requests of one browser."""

  server: Server
  protocol_version = 'HTTP/1.1'  # keeps connections
  timeout = 60  # seconds that a connection may be idle

  def do_GET(self) -> None:
    self._answer(self._get)

  def do_POST(self) -> None:
    self._answer(self._post)

  def log_message(self, *_: Any) -> None:
    """Says nothing of requests."""

  def _answer(self, find: Any) -> None:
    try:
      self._check_origin()
      status, kind, content = 200, *find()
    except Refused as refused:
      status, kind, content = refused.args[0], *_json({'error': refused.args[1]})
    except sqlite3.Error as error:
      status, kind, content = (
        503,
        *_json({'error': f'the votes file cannot be written or read ({error})'}),
      )
    if status != 200:
      self.close_connection = True  # what is left of the request is not read
    self.send_response(status)
    for name, value in (
      ('Content-Type', kind),
      ('Content-Length', str(len(content))),
      ('Cache-Control', 'no-store'),
    ):
      self.send_header(name, value)
    self.end_headers()
    self.wfile.write(content)

  def _check_origin(self) -> None:
    host, origin = self.headers.get('Host', ''), self.headers.get('Origin')
    if not self.server.may_be(host) or origin not in (None, f'http://{host}'):
      raise Refused(403, 'the request comes from another page')

  def _get(self) -> tuple[str, bytes]:
    address = urllib.parse.urlsplit(self.path)
    if address.path in FILES:
      name, kind = FILES[address.path]
      return kind, (PAGE / name).read_bytes()
    rater = urllib.parse.parse_qs(address.query).get('rater', [None])[0]
    match address.path.split('/'):
      case ['', 'state']:
        return _json(self.server.ballots.state(_rater(rater)))
      case ['', 'picture', place, name]:
        return 'image/png', self.server.ballots.picture(_rater(rater), place, name)
    raise Refused(404, 'there is nothing at this address')

  def _post(self) -> tuple[str, bytes]:
    if self.path != '/vote':
      raise Refused(404, 'there is nothing at this address')
    length = self.headers.get('Content-Length', '')
    if not length.isdecimal() or int(length) > LONGEST_BODY:
      raise Refused(413, f'a vote is of at most {LONGEST_BODY} bytes')
    try:
      body = parse_json(self.rfile.read(int(length)))
    except ValueError:
      body = None
    if not isinstance(body, dict):
      raise Refused(400, 'a vote is an object of JSON')
    return _json(
      self.server.ballots.vote(_rater(body.get('rater')), body.get('place'), body.get('side'))
    )


def _rater(name: Any) -> str:
  """A rater's name, however it was typed."""
  name = ' '.join(unicodedata.normalize('NFC', name).split()) if isinstance(name, str) else ''
  if not 1 <= len(name) <= LONGEST_NAME:
    raise Refused(400, f'a rater has a name of 1 to {LONGEST_NAME} characters')
  return name


def _json(content: Any) -> tuple[str, bytes]:
  return 'application/json', json.dumps(content).encode()
