"""A server of one page, which refuses large bodies and the requests of other sites."""

import http.server
import re
import secrets
import socketserver
import sys
from pathlib import Path
from typing import Any

from fastdec.errors import UserError
from fastdec.files import to_json

HOST = re.compile(r'(localhost|[0-9.]+)(:[0-9]+)?')
POLICY = (
  "default-src 'none'; script-src 'nonce-NONCE'; style-src 'nonce-NONCE'; img-src data:;"
  " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class Server(socketserver.ThreadingTCPServer):
  """The server, with a thread for each connection."""

  allow_reuse_address = True
  daemon_threads = True
  request_queue_size = 64

  def __init__(self, host: str, port: int, handler: type['Handler']) -> None:
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

  def handle_error(self, request: Any, client_address: Any) -> None:
    if not isinstance(sys.exception(), OSError):  # such as that of a browser that was closed
      super().handle_error(request, client_address)


class Handler(http.server.BaseHTTPRequestHandler):
  """One request of a browser, and the answer to it."""

  server: Server
  timeout = 30  # seconds without a byte, after which a connection is closed

  def parse_request(self) -> bool:
    """Refuses pages of other sites, whose names may resolve to this machine."""
    if not super().parse_request():
      return False
    host, origin = self.headers.get('Host', ''), self.headers.get('Origin')
    ours = HOST.fullmatch(host) and origin in (None, f'http://{host}')
    if not ours:
      self.send_error(403, 'open the page by the address of its machine')
    return bool(ours)

  def body(self, path: str, most: int) -> bytes | None:
    """Reads the body sent to a path. For other paths or more bytes it sends an error: None."""
    length = self.headers.get('Content-Length', '')
    if self.path != path or not re.fullmatch('[0-9]{1,9}', length) or int(length) > most:
      self.send_error(413, f'only {path} takes a body, of at most {most} bytes')
      return None
    return self.rfile.read(int(length))

  def show(self, page: Path, facts: Any) -> None:
    """Sends a page, in which facts, as JSON, replace the word FACTS."""
    nonce = secrets.token_hex()
    value = to_json(facts).replace('<', '\\u003c')  # '</script>' would end the script
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
