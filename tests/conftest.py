"""What every test shares: JAX's settings, hypothesis's settings, the folder of reference data."""

import os
import signal
from pathlib import Path

from tests.compiling import xla_flags

os.environ.setdefault('XLA_FLAGS', xla_flags())  # read by JAX when it starts; flags that are set already are kept

import hypothesis
import jax
import pytest

ROOT = Path(__file__).parent.parent

# Compiling is most of the suite's time, and the second run finds it done.
jax.config.update('jax_compilation_cache_dir', str(ROOT / '.cache' / 'jax'))
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)

# The first example of a property compiles, so examples have no deadline; the same examples every time.
hypothesis.settings.register_profile('fastdec', deadline=None, derandomize=True)
hypothesis.settings.load_profile('fastdec')


# A job in the background ignores Ctrl-C, and what it starts would too: the tests of Ctrl-C could not be passed there.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope='module', autouse=True)
def _forget_programs():
  """Each compiled program takes memory maps, of which a process may have 65,530; beyond that LLVM crashes."""
  yield
  jax.clear_caches()


@pytest.fixture(scope='session')
def shared() -> Path:
  """The folder with real data and with cases computed by other people's code, beside the repository."""
  folder = ROOT.parent / 'shared'
  if not folder.is_dir():
    pytest.skip(f'no reference data at {folder}')
  return folder
