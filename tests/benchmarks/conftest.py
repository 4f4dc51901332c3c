"""Runs benchmarks as a user does: as scripts, from a checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script():
  """A function: script('gpu.py', '--smoke') returns the finished process."""

  def script(name, *words):
    environment = os.environ | {
      'PYTHONPATH': str(ROOT),
      'JAX_COMPILATION_CACHE_DIR': str(ROOT / '.cache' / 'jax'),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
      'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
    }
    command = [sys.executable, str(ROOT / 'benchmarks' / name), *map(str, words)]
    return subprocess.run(
      command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )

  return script
