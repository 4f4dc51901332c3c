"""Number of the machine's cores that a command decodes with.

A product of a narrow model takes 10 to 50 microseconds. If XLA's CPU backend has a second core, it
gives half of each product to it. That core sleeps between products and must be woken, so one core
decodes single texts as fast or faster (notes/decisions/measuring.md). The backend counts the cores
once, when it is made.
"""

import os
from importlib import metadata
from pathlib import Path

from fastdec.errors import UserError
from fastdec.kernels.packing import WIDE
from fastdec.text.load import open_folder


def restrict(folder: str | Path, rows: int, cores: int | None = None) -> None:
  """Restricts this process to some cores.

  Call it before JAX makes its backend; later it has no effect.

  Args:
    folder: of the model that will decode; only its config is read.
    rows: texts decoded at once.
    cores: their number; None: one for one text at a time by a narrow model on a CPU, else all.

  Raises:
    UserError: there are fewer cores, or the folder is not a model's.
  """
  if not hasattr(os, 'sched_setaffinity'):  # only Linux can restrict a process
    return
  allowed = os.sched_getaffinity(0)
  if cores is None:
    is_small = rows == 1 and not _has_accelerator() and open_folder(folder).model.d_model < WIDE
    cores = 1 if is_small else len(allowed)
  if cores > len(allowed):
    raise UserError(f'--cores={cores} is not possible: this process may use {len(allowed)}')
  # Keep the core that this process runs on, field 39 of stat in proc(5): the system has put other
  # processes elsewhere.
  own = int(Path('/proc/self/stat').read_text().rpartition(')')[2].split()[36])
  chosen = sorted(allowed, key=lambda core: (core != own, core))[:cores]
  os.sched_setaffinity(0, chosen)


def _has_accelerator() -> bool:
  """True if JAX would look for an accelerator.

  JAX itself cannot be queried here: it would make its backends.
  """
  if os.environ.get('JAX_PLATFORMS') == 'cpu':
    return False
  return bool(metadata.entry_points(group='jax_plugins'))
