"""Compiled programs, kept on the disk for the next process, and the forms of their products.

JAX's persistent cache keeps them. `keep` chooses its folder for commands and `fd.Generator.load`.
It changes nothing if the user has set that cache or has turned it off. `fd.decode` and the rest of
the library do not change JAX's settings.
"""

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
import warnings
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from fastdec.errors import UserError, UserNote
from fastdec.evaluation import machine
from fastdec.files import write_json
from fastdec.kernels import forms
from fastdec.tuning import products

VARIABLE = 'FASTDEC_CACHE'  # names the folder; empty: programs are not kept
MOST_BYTES = 2**30  # of all programs of a machine; JAX removes the least recently used ones
LEAST_FREE = 2**26  # bytes of the disk
LEAST_SECONDS = 0.1  # of compiling: quicker programs are not kept
_FORMS = f'product-forms-2-jax-{jax.__version__}.json'


def keep() -> None:
  """Lets JAX keep compiled programs in the user's cache folder (`folder`).

  If the folder cannot be written or the disk is full, it warns, and programs are not kept. Products
  have the forms that `measure_forms` found fastest on this machine, if it has run here.
  """
  _read_forms()
  config: Any = jax.config
  if config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache:
    return
  place = folder()
  if place is None:
    return
  problem = _problem(place)
  if problem is not None:
    warnings.warn(
      f'compiled programs are not kept, since {place} {problem}: set {VARIABLE} to another folder,'
      " or to '' to keep none",
      UserNote,
      stacklevel=2,
    )
    jax.config.update('jax_enable_compilation_cache', False)  # one note is enough
    return
  jax.config.update('jax_compilation_cache_dir', str(place))
  jax.config.update('jax_compilation_cache_max_size', MOST_BYTES)
  jax.config.update('jax_persistent_cache_min_compile_time_secs', LEAST_SECONDS)
  # If the disk fills up later, programs are not kept, without a warning.
  warnings.filterwarnings('ignore', 'Error (reading|writing) persistent compilation cache')
  # If JAX has compiled anything, it has already looked for a cache: make it look again.
  compilation_cache.reset_cache()


def measure_forms() -> None:
  """Times products on this machine, once, for `keep` in this and in later processes.

  It does nothing on an accelerator, or if nothing is kept. Call it before anything is compiled.
  """
  place, table = folder(), _read_forms()
  if place is None or table or jax.default_backend() != 'cpu':
    return
  table |= products.measure_forms()
  forms.use(table)
  with contextlib.suppress(OSError, UserError):
    write_json(place / _FORMS, table)


@functools.cache
def _read_forms() -> forms.Table:
  """Uses the forms that were measured here; read once, so that all programs are made alike."""
  place, table = folder(), {}
  if place is not None:
    with contextlib.suppress(OSError, ValueError):
      for dtype, sizes in json.loads((place / _FORMS).read_text()).items():
        table[dtype] = {size: [*map(tuple, chosen)] for size, chosen in sizes.items()}
  forms.use(table)
  return table


def folder() -> pathlib.Path | None:
  """Returns the folder of this machine's programs; None: they are not kept.

  A program may use all instructions of the CPU and all cores of the process. So if several machines
  share a home, each kind of machine has its own folder there.
  """
  named = os.environ.get(VARIABLE)
  if named is not None:
    if not named:
      return None
    base = pathlib.Path(named).expanduser()
  elif os.path.isabs(os.environ.get('XDG_CACHE_HOME', '')):
    base = pathlib.Path(os.environ['XDG_CACHE_HOME'], 'fastdec', 'jax')
  else:
    base = pathlib.Path(os.path.expanduser('~'), '.cache', 'fastdec', 'jax')
    if not base.is_absolute():
      return None
  kind = (machine.processor(), sorted(forms.cpu_flags()), machine.cores())
  return base.absolute() / hashlib.sha256(repr(kind).encode()).hexdigest()[:16]


def _problem(place: pathlib.Path) -> str | None:
  """Makes a folder, and returns why programs cannot be kept there; None: they can."""
  try:
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=place) as file:
      file.write(b'0')
    free = shutil.disk_usage(place).free
  except (OSError, ValueError) as error:
    return f'cannot be written ({getattr(error, "strerror", None) or error})'
  if free < LEAST_FREE:
    return f'has {free // 2**20} MB left'
  return None
