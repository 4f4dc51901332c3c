"""What every test shares: JAX's settings, hypothesis's settings, the folder of reference data."""

import importlib.metadata
import os
import signal
from pathlib import Path

# Tests compile much and compute little, so XLA shall not think long. Without LLVM's optimisations the suite takes 40 %
# less time; without the emitters of fused loops (of XLA's CPU backend, new in 2025) a program compiles in half the time.
# JAX reads the flags when it starts, so they stand before the import; flags that are set already are kept. XLA ends the
# process at a flag that it does not know, so the one that may go again is given to the releases that have it.
FLAGS = ['--xla_backend_optimization_level=0']
if importlib.metadata.version('jaxlib').startswith('0.10.'):
  FLAGS.append('--xla_cpu_use_fusion_emitters=false')
os.environ.setdefault('XLA_FLAGS', ' '.join(FLAGS))

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
