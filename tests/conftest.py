"""What every test shares: JAX's settings, hypothesis's settings, the folder of reference data."""

import functools
import gc
import os
import signal
import tempfile
from pathlib import Path

from tests.compiling import xla_flags

# read by JAX when it starts; flags that are set already are kept
os.environ.setdefault('XLA_FLAGS', xla_flags())

import flax.linen as nn
import hypothesis
import jax
import pytest

ROOT = Path(__file__).parent.parent

# Names of the Hugging Face hub are looked for on this machine alone.
os.environ['HF_HUB_OFFLINE'] = '1'

# A test that takes times waits for no other process of the machine (`wallclock.alone`).
os.environ.setdefault('PYTEST_DEBUG_TEMPROOT', tempfile.gettempdir())
_temporary = tempfile.TemporaryDirectory(prefix='fastdec-tests-')
os.environ['TMPDIR'] = tempfile.tempdir = _temporary.name

# Compiling is most of the suite's time, and the second run finds it done.
jax.config.update('jax_compilation_cache_dir', str(ROOT / '.cache' / 'jax'))
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)

# The tests in which JAX promotes nothing in silence (a mixture of types, or of arrays of different
# ranks, is an error unless it is written out) and in which a warning is an error. The others follow
# as they are mended; those that run optax cannot, whose moments promote a float by a count.
STRICT = (
  'cache/', 'configs/', 'convert/', 'decoding/beam/', 'decoding/methods/test_growing',
  'decoding/methods/test_lattice', 'decoding/rules/', 'decoding/test_finite', 'decoding/test_loop',
  'decoding/test_programs', 'decoding/test_sampling', 'decoding/test_score', 'decoding/test_taps',
  'decoding/test_theory', 'decoding/test_topology', 'evaluation/test_agreement',
  'evaluation/test_bleu', 'evaluation/test_counting', 'evaluation/test_tree_growth', 'folders/',
  'heads/', 'test_fields', 'test_quantized', 'models/test_attention', 'models/test_fresh',
  'models/test_taps', 'tokenizers/', 'tuning/test_prediction', 'tuning/test_race',
  'training/drafts/test_rows', 'training/test_losses',
)  # fmt: skip


def _is_strict(file):
  return file.is_relative_to(ROOT / 'tests') and file.relative_to(
    ROOT / 'tests'
  ).as_posix().startswith(STRICT)


def pytest_collection_modifyitems(items):
  for item in items:
    if _is_strict(item.path):
      item.add_marker(pytest.mark.filterwarnings('error'))


def pytest_collection_finish():
  """While JAX traces, Python looks for garbage again and again among all objects that it has: what
  is imported by now stays to the end and is left out of that, and it looks less often."""
  gc.collect()
  gc.freeze()
  gc.set_threshold(50_000)


@pytest.fixture(scope='module', autouse=True)
def _nothing_is_promoted(request):
  """Before other fixtures of the module, so that these are strict too."""
  if not _is_strict(request.path):
    yield
    return
  with jax.numpy_dtype_promotion('strict'), jax.numpy_rank_promotion('raise'):
    yield


def _promoting(function):
  """Third-party code that promotes types in silence runs as it was written to run."""

  @functools.wraps(function)
  def run(*args, **kwargs):
    with jax.numpy_dtype_promotion('standard'):
      return function(*args, **kwargs)

  return run


# Flax's norms compute in promote_types(dtype, float32), which has no answer in strict promotion.
for _norm in (nn.LayerNorm, nn.RMSNorm):
  _norm.__call__ = _promoting(_norm.__call__)

# The first example of a property compiles, so examples have no deadline; the same examples every
# time.
hypothesis.settings.register_profile('fastdec', deadline=None, derandomize=True)
hypothesis.settings.load_profile('fastdec')


# A job in the background ignores Ctrl-C, and what it starts would too: the tests of Ctrl-C could
# not be passed there.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope='module', autouse=True)
def _forget_programs():
  """Each compiled program takes memory maps, of which a process may have 65,530; beyond that LLVM
  crashes."""
  yield
  jax.clear_caches()
  gc.collect()


@pytest.fixture(scope='session')
def shared() -> Path:
  """The folder with real data and with cases computed by other people's code, beside the
  repository."""
  folder = ROOT.parent / 'shared'
  if not folder.is_dir():
    pytest.skip(f'no reference data at {folder}')
  return folder
