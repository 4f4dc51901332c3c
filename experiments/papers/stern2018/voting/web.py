"""The page's server: who votes, what is shown next, the pictures, votes and their undoing.

  GET  /                          the page, the same for everybody
  GET  /state                     {rater, done, total, last, trial}: all that the page shows follows from it
  POST /rater  {name}             a rater begins, or goes on under the same name   -> state
  POST /leave                     this browser forgets its rater                   -> state
  POST /vote   {id, place, side}  -> state
  POST /undo   {id}               -> state
  GET  /picture/<place>/<token>   PNG; the address is another one in every trial and for every rater

`last` is the id of the newest vote, which undo takes back; `trial` the first in the rater's order without a vote.
Whoever can reach the server can vote, and whoever knows a rater's name can go on as that rater.
"""

import io
import re
import socket
import sqlite3
from typing import Any

import flask
import numpy as np
import waitress
import werkzeug.exceptions
from PIL import Image

from experiments.papers.stern2018.voting.blind import PICTURES, SIDES, Blind
from experiments.papers.stern2018.voting.store import Votes
from experiments.papers.stern2018.voting.study import Study
from fastdec.errors import UserError

NAME = r'[^\x00-\x1f]{0,60}'  # as long as the page's field
ID = r'[\w-]{16,64}'
SECURITY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"


def listen(host: str, port: int) -> socket.socket:
  """A socket that listens there; port 0 is any free one.

  Raises:
    UserError: another server has the port, or this machine does not have the address.
  """
  try:
    return socket.create_server((host, port), family=socket.AF_INET6 if ':' in host else socket.AF_INET)
  except OSError as error:
    reason = error.strerror.split(' (')[0]  # Python adds the address
    raise UserError(
      f'cannot serve on {host}:{port} ({reason}): end the server that has this port, or give another --port or --host'
    ) from None


def serve(app: flask.Flask, listening: socket.socket) -> None:
  """Answers until Ctrl-C."""
  waitress.create_server(app, sockets=[listening], threads=8, ident='').run()


class Ballots:
  """What raters see of a study and their votes; its state is the votes file alone."""

  def __init__(self, study: Study, votes: Votes) -> None:
    self.study, self.votes, self.blind = study, votes, Blind(votes.secret, study.trials)

  def state(self, rater: str | None) -> dict[str, Any]:
    """All that the page shows follows from it."""
    total, trial = len(self.study.trials), None
    if rater is None:
      return {'rater': None, 'total': total}
    given = self.votes.of(rater)
    order = self.blind.order(rater)
    place = next((place for place, shown in enumerate(order) if shown.trial not in given), None)
    if place is not None:
      pictures = {name: f'/picture/{place}/{self.blind.token(rater, place, name)}' for name in PICTURES}
      trial = {'place': place, **pictures}
    last = next(reversed(given.values()), None)
    return {'rater': self.votes.name(rater), 'done': len(given), 'total': total, 'last': last, 'trial': trial}

  def picture(self, rater: str, place: int, token: str) -> np.ndarray | None:
    """The image at an address; None where the rater has none there."""
    name = self.blind.picture(rater, place, token)
    if name is None:
      return None
    (k, rule, image), side = self.blind.order(rater)[place]
    study = self.study
    return {'input': study.inputs, side: study.outputs[k, rule]}.get(name, study.baseline)[image]


def make_app(study: Study, votes: Votes) -> flask.Flask:
  """The web application of a study."""
  app = flask.Flask(__name__, static_folder='page', static_url_path='/page')
  app.config['MAX_CONTENT_LENGTH'] = 10_000
  ballots = Ballots(study, votes)
  cookie = f'rater-{study.digest[:8]}'  # browsers do not tell ports apart: two studies, two cookies
  sent = lambda: flask.request.cookies.get(cookie, '')
  rater = lambda: sent() if votes.name(sent()) is not None else None

  @app.get('/')
  def page():
    return app.send_static_file('index.html')

  @app.get('/state')
  def current():
    return ballots.state(rater())

  @app.post('/rater')
  def join():
    joined = votes.join(_field('name', NAME))
    response = flask.jsonify(ballots.state(joined))
    response.set_cookie(cookie, joined, max_age=365 * 24 * 3600, httponly=True, samesite='Strict')
    return response

  @app.post('/leave')
  def leave():
    response = flask.jsonify(ballots.state(None))
    response.delete_cookie(cookie, httponly=True, samesite='Strict')
    return response

  @app.post('/vote')
  def vote():
    who = _known(rater())
    place = _field('place', range(len(study.trials)))
    votes.vote(_field('id', ID), who, ballots.blind.order(who)[place], _field('side', '|'.join(SIDES)))
    return ballots.state(who)

  @app.post('/undo')
  def undo():
    who = _known(rater())
    votes.undo(_field('id', ID), who)
    return ballots.state(who)

  @app.get('/picture/<int:place>/<token>')
  def picture(place: int, token: str):
    image = ballots.picture(sent(), place, token)
    if image is None:
      flask.abort(404)
    return flask.Response(png(image), mimetype='image/png')

  app.after_request(_private)
  app.register_error_handler(werkzeug.exceptions.HTTPException, _refused)
  app.register_error_handler(sqlite3.Error, _not_kept)
  return app


def png(image: np.ndarray) -> bytes:
  """A picture as PNG, not compressed: all pictures of a shape have the same length, so that it tells nothing."""
  file = io.BytesIO()
  Image.fromarray(image).save(file, 'PNG', compress_level=0)
  return file.getvalue()


def _field(name: str, allowed: str | range) -> Any:
  """A field of the request's JSON: a text that matches a pattern, or an integer of a range."""
  body = flask.request.get_json()
  value = body.get(name) if isinstance(body, dict) else None
  if isinstance(allowed, range):
    fits = type(value) is int and value in allowed
  else:
    fits = isinstance(value, str) and re.fullmatch(allowed, value)
  if not fits:
    flask.abort(400, f"the field '{name}' is missing or not possible")
  return value


def _known(rater: str | None) -> str:
  if rater is None:
    flask.abort(403, 'nobody has begun to vote in this browser: load the page again')
  return rater


def _private(response: flask.Response) -> flask.Response:
  """Answers are a rater's own; the page takes nothing from elsewhere."""
  if flask.request.endpoint != 'static':
    response.headers['Cache-Control'] = 'no-store'
  response.headers['Content-Security-Policy'] = SECURITY
  response.headers['X-Content-Type-Options'] = 'nosniff'
  response.headers['Referrer-Policy'] = 'no-referrer'
  return response


def _refused(error: werkzeug.exceptions.HTTPException) -> tuple[dict[str, str], int]:
  return {'error': error.description or error.name}, error.code or 500


def _not_kept(error: sqlite3.Error) -> tuple[dict[str, str], int]:
  return {'error': f'the votes file cannot be written or read ({error})'}, 503
