"""What a measurement depends on beside the code that is measured: goes into every line of
results."""

import datetime
import os
import subprocess
from pathlib import Path
from typing import Any

import jax

from fastdec.tuning.machine import processor

Conditions = dict[str, Any]


def here(config: str = '') -> Conditions:
  """The conditions of this process: machine, versions, commit and day.

  Args:
    config: the settings in a word, such as 'configs/wmt14.py:k=8'; launchers give
      `cli.config_string()`.
  """
  device, flags = jax.devices()[0], os.environ.get('XLA_FLAGS')
  return {
    'config': config,
    'platform': device.platform,
    'device': device.device_kind,
    'devices': jax.device_count(),
    'processor': processor(),
    'cpus': len(os.sched_getaffinity(0)),
    'jax': jax.__version__,
    'commit': _commit(),
    'date': datetime.date.today().isoformat(),
    **({'xla_flags': flags} if flags else {}),
  }


def _commit() -> str:
  """The commit of this checkout, '-dirty' where tracked files differ from it, 'unknown' outside
  git."""
  folder = str(Path(__file__).parent)
  command = ['git', '-C', folder, 'describe', '--always', '--dirty', '--exclude=*', '--abbrev=12']
  try:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    return 'unknown'
