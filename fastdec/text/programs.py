"""Compiled programs, kept on the disk for the next process, and the forms of their products.

JAX's persistent cache keeps them. `keep` chooses its folder for commands and `fd.Generator.load`;
it changes nothing where the user has set that cache, or has turned it off. `fd.decode` and the rest
of the library leave JAX's settings alone.
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
MOST_BYTES = 2**30  # of all programs of a machine; JAX removes those that were not used for longest
LEAST_FREE = 2**26  # bytes of the disk
LEAST_SECONDS = 0.1  # of compiling: quicker programs are not kept
_FORMS = f'product-forms-2-jax-{jax.__version__}.json'


def keep() -> None:
  """Lets JAX keep compiled programs in the user's cache folder (`folder`).

  A folder that cannot be written, or a full disk, is a note, and programs are not kept.
  Products have the forms that `measure_forms` found fastest on this machine, if it has run here.
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
      f'compiled programs are not kept, since {place} {problem}: let {VARIABLE} name another'
      " folder, or be '' to keep none",
      UserNote,
      stacklevel=2,
    )
    jax.config.update('jax_enable_compilation_cache', False)  # one note is enough
    return
  jax.config.update('jax_compilation_cache_dir', str(place))
  jax.config.update('jax_compilation_cache_max_size', MOST_BYTES)
  jax.config.update('jax_persistent_cache_min_compile_time_secs', LEAST_SECONDS)
  # Where a disk fills up later, programs are just not kept.
  warnings.filterwarnings('ignore', 'Error (reading|writing) persistent compilation cache')
  # JAX has looked for a cache if it has compiled anything: it looks again.
  compilation_cache.reset_cache()


def measure_forms() -> None:
  """Times products on this machine, once, for `keep` in this and in later processes.

  It does nothing on an accelerator, or where nothing is kept. Call it before anything is compiled.
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
        table[dtype] = {size: [(name, least) for name, least in sizes[size]] for size in sizes}
  forms.use(table)
  return table


def folder() -> pathlib.Path | None:
  """Returns the folder of this machine's programs; None: they are not kept.

  A program may use all instructions of the CPU, and as many cores as the process may use. So a home
  that several machines share has a folder for each kind.
  """
  named = os.environ.get(VARIABLE)
  if named is not None:
    base = pathlib.Path(named).expanduser() if named else None
  elif os.path.isabs(os.environ.get('XDG_CACHE_HOME', '')):
    base = pathlib.Path(os.environ['XDG_CACHE_HOME'], 'fastdec', 'jax')
  else:
    home = os.path.expanduser('~')
    base = pathlib.Path(home, '.cache', 'fastdec', 'jax') if os.path.isabs(home) else None
  if base is None:
    return None
  kind = (machine.processor(), sorted(forms.cpu_flags()), machine.cores())
  return base.absolute() / hashlib.sha256(repr(kind).encode()).hexdigest()[:16]


def _problem(place: pathlib.Path) -> str | None:
  """Returns why programs cannot be kept in a folder, which is made; None: they can."""
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
