"""The votes of a study: a SQLite file, in which a vote is one transaction, on the disk before it is
acknowledged.

A rater has one vote on a trial, the first: so a request that comes twice, or from a second window,
changes nothing.
"""

import contextlib
import secrets
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from experiments.papers.stern2018.voting.study import Trial
from fastdec.errors import UserError

FILE = 'human_eval.sqlite'
TABLES = """
CREATE TABLE study (digest TEXT NOT NULL, seed TEXT NOT NULL);
CREATE TABLE votes (
  rater TEXT NOT NULL, k INTEGER NOT NULL, rule TEXT NOT NULL, image INTEGER NOT NULL,
  preferred INTEGER NOT NULL CHECK (preferred IN (0, 1)),   -- 1: method 1, 0: the baseline
  time REAL NOT NULL,                                       -- seconds since 1970
  PRIMARY KEY (rater, k, rule, image)
);
"""


class Votes:
  """The votes file of a study; any number of threads and processes may use it at once."""

  def __init__(self, path: Path, digest: str, new: bool = False):
    """Opens the votes file of a study.

    Args:
      path: the file.
      digest: what `Study.digest` says.
      new: whether to make the file where there is none.

    Raises:
      UserError: there is none, it is no votes file, or it is that of another study. The file stays
        as it was.
    """
    self._path = path
    if not new and not path.exists():
      raise UserError(
        f'there are no votes in {path.parent} yet: collect them with python -m'
        ' experiments.human_eval '
        f'--workdir={path.parent} --serve'
      )
    try:
      found, self.seed = self._begin(digest, new)
    except sqlite3.Error as error:
      raise UserError(
        f'{path} cannot be read as a votes file, or is from before ({error}): move it elsewhere, or'
        ' put back a '
        'good copy'
      ) from None
    if found != digest:
      raise UserError(
        f'{path} holds the votes of another study, the images have changed since: put those images'
        ' back, '
        'or move the file elsewhere to begin anew'
      )

  def _begin(self, digest: str, new: bool) -> tuple[str, str]:
    """The digest and the seed in the file, which is made if it is to be and is empty."""
    with self._transaction(mode='rwc' if new else 'rw') as db:
      if new and not db.execute('SELECT count(*) FROM sqlite_master').fetchone()[0]:
        for statement in TABLES.split(';\n'):
          db.execute(statement)
        db.execute('INSERT INTO study VALUES (?, ?)', (digest, secrets.token_hex(16)))
      row = db.execute('SELECT digest, seed FROM study').fetchone()
      if row is None:
        raise sqlite3.DatabaseError('it names no study')
      return row

  def vote(self, rater: str, trial: Trial, preferred: bool) -> None:
    """Keeps a rater's vote; without effect where this rater has voted on the trial.

    Args:
      preferred: whether method 1 is preferred to the baseline.

    Raises:
      sqlite3.Error: the vote could not be kept.
    """
    with self._transaction() as db:
      db.execute(
        'INSERT OR IGNORE INTO votes VALUES (?, ?, ?, ?, ?, ?)',
        (rater, *trial, preferred, time.time()),
      )

  def of(self, rater: str) -> set[Trial]:
    """The trials that a rater has voted on."""
    with self._transaction() as db:
      rows = db.execute('SELECT k, rule, image FROM votes WHERE rater = ?', (rater,)).fetchall()
    return {Trial(*row) for row in rows}

  def results(self) -> dict[tuple[int, str], list[tuple[bool, str]]]:
    """{(k, rule): [(whether it was preferred, rater)]}, by k and rule, of the methods that have
    votes."""
    with self._transaction() as db:
      rows = db.execute(
        'SELECT k, rule, preferred, rater FROM votes ORDER BY k, rule, time'
      ).fetchall()
    found = {}
    for k, rule, preferred, rater in rows:
      found.setdefault((k, rule), []).append((bool(preferred), rater))
    return found

  @contextlib.contextmanager
  def _transaction(self, mode: str = 'rw') -> Iterator[sqlite3.Connection]:
    """All that is done within is on the disk afterwards, or none of it where an error is raised."""
    uri = f'{self._path.absolute().as_uri()}?mode={mode}'
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None)) as db:
      db.execute('BEGIN IMMEDIATE')  # the lock is taken at once, where waiting for it is possible
      yield db
      db.execute('COMMIT')  # closing without it rolls back
