"""The votes of a study: a SQLite file, in which a vote is one transaction, on the disk before it is acknowledged.

Nothing is ever deleted: undo marks a vote as undone. So a request that comes twice, or late, has no effect the second
time, also where its vote was undone meanwhile. The rollback journal (SQLite's default) keeps all votes in one file,
which can be copied, where a write-ahead log would have its newest beside it; a vote is rare enough for either.
"""

import contextlib
import dataclasses
import secrets
import sqlite3
import threading
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from experiments.papers.stern2018.voting.blind import SIDES, Shown
from experiments.papers.stern2018.voting.study import Trial
from fastdec.errors import UserError

FILE = 'human_eval.sqlite'
TABLES = """
CREATE TABLE study (digest TEXT NOT NULL, secret BLOB NOT NULL);
CREATE TABLE raters (id TEXT PRIMARY KEY, name TEXT UNIQUE, since REAL NOT NULL);
CREATE TABLE votes (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,              -- made by the page: a request that is repeated is the same vote
  rater TEXT NOT NULL REFERENCES raters,
  k INTEGER NOT NULL, rule TEXT NOT NULL, image INTEGER NOT NULL,
  method1 TEXT NOT NULL CHECK (method1 IN ('left', 'right')),   -- the side of method 1
  choice TEXT NOT NULL CHECK (choice IN ('left', 'right')),
  time REAL NOT NULL,                   -- seconds since 1970
  undone REAL                           -- when, or NULL: the vote counts
);
CREATE UNIQUE INDEX one_vote_a_trial ON votes (rater, k, rule, image) WHERE undone IS NULL;
"""


@dataclasses.dataclass(frozen=True)
class Result:
  """The votes on one method 1: whether each preferred it, and the ids of who gave them."""

  preferred: tuple[bool, ...]
  raters: frozenset[str]


class Votes:
  """The votes file of a study; any number of threads and processes may use it at once."""

  def __init__(self, path: Path, digest: str, new: bool = False):
    """Opens a votes file, of the study with that digest.

    Args:
      path: the file.
      digest: what `Study.digest` says.
      new: whether to make the file where there is none.

    Raises:
      UserError: there is none, it is no votes file, or it is that of another study. The file stays as it was.
    """
    self._path = path
    self._turn = threading.Lock()
    if not new and not path.exists():
      raise UserError(
        f'there are no votes in {path.parent} yet: collect them with python -m experiments.human_eval '
        f'--workdir={path.parent} --serve'
      )
    try:
      found, self.secret = self._begin(digest, new)
    except sqlite3.Error as error:
      raise UserError(
        f'{path} cannot be read as a votes file ({error}): move it elsewhere, or put back a good copy'
      ) from None
    if found != digest:
      raise UserError(
        f'{path} holds the votes of another study, the images have changed since: put those images back, '
        'or move the file elsewhere to begin anew'
      )

  def _begin(self, digest: str, new: bool) -> tuple[str, bytes]:
    """The digest and the secret in the file, which is made if it is to be and is empty."""
    with self._transaction(mode='rwc' if new else 'rw') as db:
      if new and not db.execute('SELECT count(*) FROM sqlite_master').fetchone()[0]:
        for statement in TABLES.split(';\n'):
          db.execute(statement)
        db.execute('INSERT INTO study VALUES (?, ?)', (digest, secrets.token_bytes(32)))
      row = db.execute('SELECT digest, secret FROM study').fetchone()
      if row is None:
        raise sqlite3.DatabaseError('it names no study')
      return row

  def join(self, name: str) -> str:
    """The id of the rater with this name, who is new or goes on; without a name always a new one."""
    name = ' '.join(unicodedata.normalize('NFC', name).split())
    with self._transaction() as db:
      row = db.execute('SELECT id FROM raters WHERE name = ?', (name,)).fetchone()
      if row is not None:
        return row[0]
      rater = secrets.token_hex(16)
      db.execute('INSERT INTO raters VALUES (?, ?, ?)', (rater, name or None, time.time()))
      return rater

  def name(self, rater: str) -> str | None:
    """The name of a rater, '' where none was given; None where there is no such rater."""
    with self._transaction('DEFERRED') as db:
      row = db.execute('SELECT name FROM raters WHERE id = ?', (rater,)).fetchone()
    return None if row is None else row[0] or ''

  def vote(self, vote: str, rater: str, shown: Shown, choice: str) -> None:
    """Keeps a vote: `choice` is the preferred side, and `vote` its id.

    Without effect where that id was here before (also if it was undone) or the rater has another vote on this trial.

    Raises:
      ValueError: no such side.
      sqlite3.Error: the vote could not be kept.
    """
    if choice not in SIDES:
      raise ValueError(f'{choice} is no side: give left or right')
    with self._transaction() as db:
      db.execute(
        'INSERT OR IGNORE INTO votes (id, rater, k, rule, image, method1, choice, time) '
        'VALUES (?, ?, ?, ?, ?, ?, ?, ?)',
        (vote, rater, *shown.trial, shown.side, choice, time.time()),
      )

  def undo(self, vote: str, rater: str) -> None:
    """Lets this vote of the rater count no more; without effect where it does not count anyway."""
    with self._transaction() as db:
      db.execute(
        'UPDATE votes SET undone = ? WHERE id = ? AND rater = ? AND undone IS NULL', (time.time(), vote, rater)
      )

  def of(self, rater: str) -> dict[Trial, str]:
    """{trial: id of the vote} of all that a rater has voted on, the newest last."""
    with self._transaction('DEFERRED') as db:
      rows = db.execute(
        'SELECT k, rule, image, id FROM votes WHERE rater = ? AND undone IS NULL ORDER BY number', (rater,)
      ).fetchall()
    return {Trial(*trial): vote for *trial, vote in rows}

  def results(self) -> dict[tuple[int, str], Result]:
    """{(k, rule): what raters said of it}, by k and rule, of the methods that have votes."""
    with self._transaction('DEFERRED') as db:
      rows = db.execute(
        'SELECT k, rule, choice = method1, rater FROM votes WHERE undone IS NULL ORDER BY k, rule, number'
      ).fetchall()
    found = {}
    for k, rule, preferred, rater in rows:
      found.setdefault((k, rule), []).append((bool(preferred), rater))
    return {
      method: Result(preferred, frozenset(raters))
      for method, (preferred, raters) in ((method, zip(*votes, strict=True)) for method, votes in found.items())
    }

  @contextlib.contextmanager
  def _transaction(self, kind: str = 'IMMEDIATE', mode: str = 'rw') -> Iterator[sqlite3.Connection]:
    """All that is done within is on the disk afterwards, or none of it where an error is raised."""
    uri = f'{self._path.absolute().as_uri()}?mode={mode}'
    # Threads take turns; SQLite makes other processes wait too, but by asking again at growing intervals.
    with self._turn, contextlib.closing(sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None)) as db:
      db.execute('PRAGMA synchronous = EXTRA')
      db.execute(f'BEGIN {kind}')  # IMMEDIATE: the lock is taken at once, where waiting for it is possible
      try:
        yield db
        db.execute('COMMIT')
      except BaseException:
        with contextlib.suppress(sqlite3.Error):
          db.execute('ROLLBACK')
        raise
