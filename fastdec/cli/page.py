"""A server of one page: connections and bodies are bounded, pages from elsewhere are refused."""

import contextlib
import http.server
import json
import re
import secrets
import socket
import socketserver
import sys
import time
from pathlib import Path
from typing import Any

from fastdec.errors import UserError

CONNECTIONS = 64  # open at once
SENDING = 10  # seconds until a request must have arrived
HOST = re.compile(r'(localhost|[0-9.]+)(:[0-9]+)?')
POLICY = (
  "default-src 'none'; script-src 'nonce-NONCE'; style-src 'nonce-NONCE'; img-src data:;"
  " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class Server(socketserver.ThreadingTCPServer):
  """The server, a thread a connection.

  A connection that has not sent its request yet makes room for a newer one.

  Attributes:
    seconds: how long an answer may take, once the request has arrived.
  """

  allow_reuse_address = True
  daemon_threads = True
  request_queue_size = CONNECTIONS
  seconds = 60

  def __init__(self, host: str, port: int, handler: type['Handler']) -> None:
    self._ends: dict[Any, float] = {}  # when each connection is ended
    self._sending: dict[Any, None] = {}  # connections whose request is not here yet, oldest first
    try:
      super().__init__((host, port), handler)
    except OSError as error:
      raise UserError(
        f'cannot serve on {host}:{port} ({error}): give another --port or --host'
      ) from None

  @property
  def address(self) -> str:
    """The address of the page."""
    host, port = self.server_address[:2]
    return f'http://{host}:{port}/'

  def process_request(self, request: Any, client_address: Any) -> None:
    if len(self._ends) >= CONNECTIONS:
      for idle in list(self._sending)[:1]:
        self._end(idle)
    if len(self._ends) >= CONNECTIONS:
      return self.shutdown_request(request)
    self._ends[request] = time.monotonic() + SENDING
    self._sending[request] = None
    super().process_request(request, client_address)

  def received(self, request: Any) -> None:
    """Notes that a whole request has arrived; from now on its answer is waited for."""
    if request in self._sending:  # else it was ended meanwhile
      self._sending.pop(request, None)
      self._ends[request] = time.monotonic() + self.seconds

  def shutdown_request(self, request: Any) -> None:
    self._forget(request)
    super().shutdown_request(request)

  def service_actions(self) -> None:
    """Ends, twice a second, connections that last too long, however busy they are."""
    for connection, end in list(self._ends.items()):
      if time.monotonic() > end:
        self._end(connection)

  def _end(self, connection: Any) -> None:
    """Ends a connection; its thread sees that when it next reads or writes."""
    self._forget(connection)
    with contextlib.suppress(OSError):
      connection.shutdown(socket.SHUT_RDWR)

  def _forget(self, connection: Any) -> None:
    self._ends.pop(connection, None)
    self._sending.pop(connection, None)

  def handle_error(self, request: Any, client_address: Any) -> None:
    if not isinstance(sys.exception(), OSError):  # such as a browser's that went away
      super().handle_error(request, client_address)


class Handler(http.server.BaseHTTPRequestHandler):
  """One request of a browser, and the answer to it."""

  server: Server

  def parse_request(self) -> bool:
    """Refuses pages from elsewhere, which may have a name of their own resolved to this machine."""
    if not super().parse_request():
      return False
    host, origin = self.headers.get('Host', ''), self.headers.get('Origin')
    ours = HOST.fullmatch(host) and origin in (None, f'http://{host}')
    if not ours:
      self.send_error(403, 'open the page by the address of its machine')
    elif 'Content-Length' not in self.headers:
      self.server.received(self.connection)
    return bool(ours)

  def body(self, path: str, most: int) -> bytes | None:
    """Reads the body sent to a path. It refuses another path or more bytes, and returns None."""
    length = self.headers.get('Content-Length', '')
    if self.path != path or not re.fullmatch('[0-9]{1,9}', length) or int(length) > most:
      self.send_error(413, f'{path} takes at most {most} bytes, and nothing else is taken')
      return None
    content = self.rfile.read(int(length))
    self.server.received(self.connection)
    return content

  def show(self, page: Path, facts: Any) -> None:
    """Answers by a page, with facts, as JSON, in the place of its word TOLD."""
    nonce = secrets.token_hex()
    value = json.dumps(facts).replace('<', '\\u003c')  # '</script>' would end the script
    text = page.read_text('utf-8').replace('NONCE', nonce).replace('TOLD', value)
    self.answer(text.encode(), 'text/html', POLICY.replace('NONCE', nonce))

  def answer(self, content: bytes, kind: str, policy: str = "default-src 'none'") -> None:
    """Answers by some bytes."""
    self.send_response(200)
    self.send_header('Content-Security-Policy', policy)
    self.send_header('Content-Type', f'{kind}; charset=utf-8')
    self.send_header('Content-Length', str(len(content)))
    self.send_header('Cache-Control', 'no-store')
    self.end_headers()
    self.wfile.write(content)

  def log_message(self, *_: Any) -> None:
    """Logs nothing."""
