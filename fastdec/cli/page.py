"""A server of one page. It bounds connections and bodies, and refuses requests of other sites."""

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
SENDING = 10  # seconds in which a request must arrive
HOST = re.compile(r'(localhost|[0-9.]+)(:[0-9]+)?')
POLICY = (
  "default-src 'none'; script-src 'nonce-NONCE'; style-src 'nonce-NONCE'; img-src data:;"
  " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class Server(socketserver.ThreadingTCPServer):
  """The server, with a thread for each connection.

  If there are too many connections, the oldest that has not sent its request yet is closed.

  Attributes:
    seconds: how long an answer may take, once the request has arrived.
  """

  allow_reuse_address = True
  daemon_threads = True
  request_queue_size = CONNECTIONS
  seconds = 60

  def __init__(self, host: str, port: int, handler: type['Handler']) -> None:
    self._ends: dict[Any, float] = {}  # when each connection is closed
    self._sending: dict[Any, None] = {}  # connections whose request has not arrived, oldest first
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
        self._close(idle)
    if len(self._ends) >= CONNECTIONS:
      return self.shutdown_request(request)
    self._ends[request] = time.monotonic() + SENDING
    self._sending[request] = None
    super().process_request(request, client_address)

  def note_arrival(self, request: Any) -> None:
    """Notes that a whole request has arrived: `seconds` count from now."""
    if request in self._sending:  # else it was closed meanwhile
      self._sending.pop(request, None)
      self._ends[request] = time.monotonic() + self.seconds

  def shutdown_request(self, request: Any) -> None:
    self._forget(request)
    super().shutdown_request(request)

  def service_actions(self) -> None:
    """Closes connections that last too long, however busy they are; called twice a second."""
    for connection, end in list(self._ends.items()):
      if time.monotonic() > end:
        self._close(connection)

  def _close(self, connection: Any) -> None:
    """Closes a connection; its thread notices when it next reads or writes."""
    self._forget(connection)
    with contextlib.suppress(OSError):
      connection.shutdown(socket.SHUT_RDWR)

  def _forget(self, connection: Any) -> None:
    self._ends.pop(connection, None)
    self._sending.pop(connection, None)

  def handle_error(self, request: Any, client_address: Any) -> None:
    if not isinstance(sys.exception(), OSError):  # such as that of a browser that was closed
      super().handle_error(request, client_address)


class Handler(http.server.BaseHTTPRequestHandler):
  """One request of a browser, and the answer to it."""

  server: Server

  def parse_request(self) -> bool:
    """Refuses pages of other sites, whose names may resolve to this machine."""
    if not super().parse_request():
      return False
    host, origin = self.headers.get('Host', ''), self.headers.get('Origin')
    ours = HOST.fullmatch(host) and origin in (None, f'http://{host}')
    if not ours:
      self.send_error(403, 'open the page by the address of its machine')
    elif 'Content-Length' not in self.headers:
      self.server.note_arrival(self.connection)
    return bool(ours)

  def body(self, path: str, most: int) -> bytes | None:
    """Reads the body sent to a path. For other paths or more bytes it sends an error: None."""
    length = self.headers.get('Content-Length', '')
    if self.path != path or not re.fullmatch('[0-9]{1,9}', length) or int(length) > most:
      self.send_error(413, f'only {path} takes a body, of at most {most} bytes')
      return None
    content = self.rfile.read(int(length))
    self.server.note_arrival(self.connection)
    return content

  def show(self, page: Path, facts: Any) -> None:
    """Sends a page, in which facts, as JSON, replace the word FACTS."""
    nonce = secrets.token_hex()
    value = json.dumps(facts).replace('<', '\\u003c')  # '</script>' would end the script
    text = page.read_text('utf-8').replace('NONCE', nonce).replace('FACTS', value)
    self.answer(text.encode(), 'text/html', POLICY.replace('NONCE', nonce))

  def answer(self, content: bytes, kind: str, policy: str = "default-src 'none'") -> None:
    """Sends some bytes."""
    self.send_response(200)
    self.send_header('Content-Security-Policy', policy)
    self.send_header('Content-Type', f'{kind}; charset=utf-8')
    self.send_header('Content-Length', str(len(content)))
    self.send_header('Cache-Control', 'no-store')
    self.end_headers()
    self.wfile.write(content)

  def log_message(self, *_: Any) -> None:
    """Logs nothing."""
