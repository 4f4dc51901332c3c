"""Runs the command `fastdec` in this process."""

import dataclasses
import io
import os
import sys
from pathlib import Path

import pytest

from fastdec.cli import main

ROOT = Path(__file__).parent.parent.parent
PROMPTS = [
  'a dog runs', 'ein Hund rennt', 'the cat sits', 'die Katze sitzt', 'a cat', 'the dog sits',
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Ended:
  """How a command ended; a bug is raised instead."""

  code: int
  out: str
  err: str

  @property
  def mistake(self):
    """The one sentence of a mistake."""
    assert self.code == 2 and self.err.count('\n') == 1 and 'Traceback' not in self.err, self
    return self.err


@pytest.fixture
def fastdec(monkeypatch, capfd):
  """fastdec('translate', '--model=folder', 'a sentence', stdin=b'') -> Ended"""

  def run(*words, stdin=b''):
    monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(stdin)))
    cores = os.sched_getaffinity(0)
    capfd.readouterr()
    try:
      code = main(list(map(str, words)))
    finally:
      os.sched_setaffinity(0, cores)
    return Ended(code, *capfd.readouterr())

  return run


@pytest.fixture
def prompts(tmp_path):
  path = tmp_path / 'prompts.txt'
  path.write_text('\n'.join(PROMPTS) + '\n')
  return path
