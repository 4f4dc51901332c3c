"""Malformed files: a reader reads them or raises a UserError, soon and within bounds of memory."""

import contextlib
import json
import resource
import signal
import warnings
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fastdec as fd

SECONDS, MEMORY = 600, 2**31  # a reader that takes longer hangs

NASTY = (
  None, True, 0, 1, -1, 3.0, 2**31, 10**12, 10**400, float('nan'), float('inf'), '', '2', 'relu',
  '..', '/', 'a/../../outside.safetensors', 'a\0', [], {}, [[]], [1, 2], [-1], ['a'], [[1, 'a']],
  {'content': 5}, {'a': {}}, 'x' * 5000, 2**62, {'x' * 5000: 1},
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
WILD = st.sampled_from(NASTY) | st.recursive(
  SCALARS, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=4), x, max_size=3)
)
BROKEN = (
  '', '{', '[' * 10**5, '{"a":' * 10**5, '\ufeff{}', '1' * 5000, '{"vocab_size": 1e999}', 'null',
  '{"a": "\\ud800"}', '{"vocab_size": 7, "vocab_size": []}', '\udcff',
)  # fmt: skip


def anything(value):
  """Values to replace `value` with, most of them of its type."""
  alike = [x for x in NASTY if type(x) is type(value)]
  return st.sampled_from(alike) | WILD if alike else WILD


def fields(value):
  """Objects that lack some fields, or have other values in them, at the top or further down."""
  names = sorted(value)
  changes = [st.tuples(st.text(max_size=3), WILD)]
  for name in names:
    changes.append(st.tuples(st.just(name), anything(value[name])))
    if isinstance(value[name], dict) and value[name]:
      changes.append(st.tuples(st.just(name), fields(value[name])))
  lacking = st.just([]) | st.lists(st.sampled_from(names), max_size=2)
  kept = lacking.map(lambda lacking: {name: value[name] for name in names if name not in lacking})
  changed = st.lists(st.one_of(changes), min_size=1, max_size=2)
  return st.builds(lambda kept, changes: {**kept, **dict(changes)}, kept, changed)


def documents(base):
  """Contents of a JSON file, most of them objects like `base`."""
  alike = st.builds(json.dumps, fields(base))
  texts = st.one_of(alike, alike, alike, st.builds(json.dumps, WILD), st.sampled_from(BROKEN))
  return texts.map(lambda text: text.encode('utf-8', 'surrogateescape'))


def lines(base):
  """Contents of a file of JSON lines, most of them like `base`."""
  line = st.one_of(st.just(json.dumps(base).encode()), documents(base))
  return st.one_of(st.lists(line, min_size=1, max_size=3).map(b'\n'.join), st.binary())


def spoilt(data):
  """Contents of a binary file: it is cut, or has other bytes."""
  place = st.integers(0, len(data) - 1)
  bytes_at = st.lists(st.tuples(place, st.integers(0, 255)), min_size=1, max_size=3)
  changed = bytes_at.map(lambda at: bytes({**dict(enumerate(data)), **dict(at)}.values()))
  return st.one_of(changed, place.map(lambda end: data[:end]))


def _run_out(*_):
  raise TimeoutError(f'it takes more than {SECONDS} seconds')


@contextlib.contextmanager
def guarded():
  """The block ends well or by a UserError, soon, and within bounds of memory."""
  before = resource.getrlimit(resource.RLIMIT_AS)
  used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()
  resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
  signal.signal(signal.SIGALRM, _run_out)
  signal.alarm(SECONDS)
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore', fd.UserNote)
      yield
  except fd.UserError as error:
    assert len(str(error)) < 3000
  finally:
    signal.alarm(0)
    resource.setrlimit(resource.RLIMIT_AS, before)


def fuzz(file, right, contents, read, examples=50):
  """Calls `read` with the right content of a file, and then with many others."""
  file.write_bytes(right)
  read()

  @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
  @given(contents)
  def hold(content):
    file.write_bytes(content)
    with guarded():
      read()

  hold()


def fuzz_json(file, base, read, examples=50):
  fuzz(file, json.dumps(base).encode(), documents(base), read, examples)


def fuzz_lines(file, base, read, examples=50):
  fuzz(file, json.dumps(base).encode(), lines(base), read, examples)
