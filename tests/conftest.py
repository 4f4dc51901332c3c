"""Shared by all tests: the settings of JAX and hypothesis, and the folder of reference data."""

import collections
import fnmatch
import functools
import gc
import os
import re
import signal
import tempfile
import unittest.mock
from pathlib import Path

from tests.compiling import xla_flags

# read by JAX when it starts; flags that are set already are kept
os.environ.setdefault('XLA_FLAGS', xla_flags())

import flax.linen as nn
import hypothesis
import jax
import pytest

ROOT = Path(__file__).parent.parent

# Models of the Hugging Face hub are looked for only on this machine.
os.environ['HF_HUB_OFFLINE'] = '1'

# A test that measures times does not wait for other processes of the machine (`wallclock.alone`).
os.environ.setdefault('PYTEST_DEBUG_TEMPROOT', tempfile.gettempdir())
_temporary = tempfile.TemporaryDirectory(prefix='fastdec-tests-')
os.environ['TMPDIR'] = tempfile.tempdir = _temporary.name

# Compiling is most of the suite's time, and the second run finds it done.
jax.config.update('jax_compilation_cache_dir', str(ROOT / '.cache' / 'jax'))
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
# Processes that tests start keep theirs here too, and not in the user's cache folder.
os.environ['FASTDEC_CACHE'] = str(ROOT / '.cache' / 'fastdec')


@pytest.fixture(scope='session', autouse=True)
def usual_forms():
  """Products have the forms of this kind of processor, whatever a command of a test would measure
  on a busy machine. Commands may keep one core, for which the folder is a different one."""
  from fastdec.evaluation import machine
  from fastdec.files import write_json
  from fastdec.kernels import forms
  from fastdec.text import programs

  for cores in (1, machine.cores()):
    with unittest.mock.patch.object(programs.machine, 'cores', return_value=cores):
      folder = programs.folder()
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / programs._FORMS, forms.table_of_cpu())


# The tests in which JAX promotes nothing in silence (a mixture of types, or of arrays of different
# ranks, is an error unless it is written out) and in which a warning is an error. The others follow
# as they are fixed; those that run optax cannot, whose moments promote a float by a count.
STRICT = (
  'cache/', 'data/text/test_sentencepiece', 'decoding/beam/', 'decoding/methods/test_growing',
  'decoding/methods/test_lattice', 'decoding/rules/', 'decoding/test_finite', 'decoding/test_loop',
  'decoding/test_programs', 'decoding/test_sampling', 'decoding/test_score', 'decoding/test_taps',
  'decoding/test_theory', 'decoding/test_topology', 'evaluation/test_agreement',
  'evaluation/test_bleu', 'evaluation/test_tree_growth', 'evaluation/test_wallclock',
  'experiments/lab/test_config', 'folders/', 'heads/', 'hub/', 'kernels/test_quantized',
  'models/test_attention', 'models/test_fresh', 'models/test_taps', 'test_fields',
  'text/test_reader', 'training/drafts/test_rows', 'training/test_losses',
  'tuning/test_prediction', 'tuning/test_race',
)  # fmt: skip


def _is_strict(file):
  return file.is_relative_to(ROOT / 'tests') and file.relative_to(
    ROOT / 'tests'
  ).as_posix().startswith(STRICT)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items):
  """Marks strict tests; and of wide tables, `@pytest.mark.wide('greedy', 'beam*')`, the rows that
  are not named are slow."""
  tables = {}
  for item in items:
    if _is_strict(item.path):
      item.add_marker(pytest.mark.filterwarnings('error'))
    wide = item.get_closest_marker('wide')
    if wide:
      row = item.callspec.id
      is_named = any(fnmatch.fnmatchcase(row, pattern) for pattern in wide.args)
      tables.setdefault((item.path, item.originalname), []).append(is_named)
      if not is_named:
        item.add_marker(pytest.mark.slow)
  for (path, name), named in tables.items():
    if len(named) > 1 and not any(named):
      raise pytest.UsageError(f'{path}: {name}: no row has a name that its mark `wide` gives')


def pytest_terminal_summary(terminalreporter):
  """Lists the reasons of skipped tests, a line each, with the number of tests."""
  reasons = collections.Counter()
  for report in terminalreporter.stats.get('skipped', ()):
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = re.sub(rf'{re.escape(str(ROOT.parent))}/shared\S*', '../shared', reason)
    reasons[' '.join(reason.removeprefix('Skipped: ').split())] += 1
  for reason, count in reasons.most_common():
    terminalreporter.write_line(f'{count} skipped: {reason}')


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


COUNTING = ('test_programs', 'test_pool', 'test_search')  # begin without programs, and count them


@pytest.fixture(scope='module', autouse=True)
def _forget_programs(request):
  """Each compiled program takes 3 MB and some 20 memory maps, of which a process may have 65,530;
  beyond that LLVM crashes. Forgetting takes a second, and what others need is compiled again."""
  maps = Path('/proc/self/maps')
  if request.path.stem in COUNTING or not maps.exists() or maps.read_bytes().count(b'\n') > 8_000:
    jax.clear_caches()
    gc.collect()


@pytest.fixture
def in_float64():
  with jax.enable_x64(True):
    yield


@pytest.fixture(scope='session')
def shared() -> Path:
  """The folder next to the repository, with real data and with cases that other people's code
  computed."""
  folder = ROOT.parent / 'shared'
  if not folder.is_dir():
    pytest.skip(f'no reference data at {folder}')
  return folder


@pytest.fixture(scope='session')
def translator(tmp_path_factory):
  """The folder of an untrained model with heads. Next to it are 'smaller', with the same tokenizer;
  'short', with fewer positions; 'wide' and 'wordy', Medusa heads for other models."""
  import jax
  import numpy as np

  from fastdec import folders
  from fastdec.data.text.sentencepiece import Tokenizer
  from fastdec.heads.blockwise import BlockwiseHeads
  from fastdec.heads.medusa import MedusaHeads
  from fastdec.hub import medusa
  from fastdec.models.transformer import Transformer, TransformerConfig

  place = tmp_path_factory.mktemp('models')
  sizes = dict(d_model=8, d_ff=12, heads=2, encoder_layers=1, decoder_layers=1)
  module = BlockwiseHeads(k=3, d_model=8, d_ff=6)
  heads = (module, jax.jit(module.init)(jax.random.key(3)))
  model = Transformer(TransformerConfig(vocab_size=30, max_positions=32, **sizes))
  init = jax.jit(model.init)
  Tokenizer.train(
    ['a dog runs', 'ein Hund rennt', 'the cat sits', 'die Katze sitzt'],
    place / 'pieces',
    vocab_size=30,
  )
  folders.save(model, init(jax.random.key(0)), place / 'model', heads, tokenizer=place / 'pieces')
  smaller = init(jax.random.key(1))
  folders.save(model, smaller, place / 'smaller', heads, tokenizer=place / 'pieces')
  short = Transformer(TransformerConfig(vocab_size=30, max_positions=4, **sizes))
  folders.save(short, smaller, place / 'short', tokenizer=place / 'pieces')
  for name, module in (
    ('wide', MedusaHeads(2, d_model=6)),
    ('wordy', MedusaHeads(2, d_model=8, vocab_size=31)),
  ):
    shapes = jax.eval_shape(module.init, jax.random.key(0))
    medusa.save_heads(
      place / name, (module, jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)), 'another'
    )
  return place / 'model'


@pytest.fixture(scope='session')
def talker(shared, tmp_path_factory):
  """The folder of a language model without training, with a chat template that has variables."""
  import jax

  import fastdec as fd
  from fastdec.models.lm import LM, LMConfig

  folder = tmp_path_factory.mktemp('talkers') / 'model'
  tokenizer = fd.load_tokenizer(shared / 'reference' / 'chat' / 'chatml_tiny')
  sizes = dict(vocab_size=tokenizer.vocab_size, d_model=8, d_ff=12, heads=2, layers=1)
  (end,) = tokenizer.encode('<|im_end|>', special=False)
  model = LM(LMConfig(**sizes, windows=(0,), norm_epsilon=1e-5, max_positions=None, eos_ids=(end,)))
  params = jax.tree.map(lambda x: 4 * x, jax.jit(model.init)(jax.random.key(2)))
  fd.save(model, params, folder, tokenizer=tokenizer)
  template = folder / 'chat_template.jinja'
  template.chmod(0o644)
  thinking = '{% if enable_thinking is defined and not enable_thinking %}<quick>{% endif %}'
  template.write_text(template.read_text() + thinking)
  return folder


@pytest.fixture(scope='session')
def networks(translator):
  """Untrained draft networks for the translator, by their kind."""
  import jax

  import fastdec as fd
  from fastdec.heads.block import BlockNetwork
  from fastdec.heads.eagle import EagleNetwork
  from fastdec.training.drafts.start import layers_like

  model, _ = fd.load(translator)
  sizes = {'layers': layers_like(model, 1), 'vocab_size': 30, 'd_target': 8}
  found = {}
  for kind, module in (
    ('eagle', EagleNetwork(**sizes)),
    ('block', BlockNetwork(**sizes, k=4, markov=2)),
  ):
    found[kind] = translator.parent / kind
    fd.save_draft(found[kind], (module, jax.jit(module.init)(jax.random.key(5))))
  return found


class Ticks:
  """A clock on which every reading takes the same time."""

  def __init__(self, seconds):
    self.now, self.seconds = 0.0, seconds

  def __call__(self):
    self.now += self.seconds
    return self.now


@pytest.fixture
def ticks(monkeypatch):
  """Makes such a clock the clock of all measurements."""

  def make(seconds=0.001):
    clock = Ticks(seconds)
    monkeypatch.setattr('fastdec.evaluation.wallclock.now', clock)
    return clock

  make()
  return make
