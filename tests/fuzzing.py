"""Malformed files: what stands in them, and what may happen then.

A reader ends well, or by a sentence; no other exception, no file outside the folder, no hang, and
no memory without end.
"""

import contextlib
import json
import re
import resource
import signal
import sys
import warnings
from pathlib import Path

import jax
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fastdec as fd

SECONDS, MEMORY = 20, 2**31

# What is written into a file.

NASTY = (
  None, True, False, 0, 1, -1, 2, 3.0, 0.5, 2**31, 10**12, 10**400, -(10**30), 1e308, float('nan'),
  float('inf'), '', '2', '1e-5', 'float16', 'relu', '..', '/', '../outside.safetensors',
  'a/../../outside.safetensors', 'a\0', [], {}, [[]], [1, 2], [-1], ['a'], [[1, 'a']],
  {'content': 5}, {'a': {}}, {'type': 'x'}, 'x' * 5000, 2**62, '/etc/passwd', {'x' * 5000: 1},
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
JSON = st.recursive(
  SCALARS, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=4), x, max_size=3)
)
WILD = st.sampled_from(NASTY) | JSON
BROKEN = (
  '',
  '{',
  '[' * 10**5,
  '{"a":' * 10**5,
  '\ufeff{}',
  '1' * 5000,
  '{"vocab_size": 1e999}',
  'null',
  '{"a": "\\ud800"}',
  '{"vocab_size": 7, "vocab_size": []}',
  '{"' + 'x' * 10**5 + '": 1}',
  '\udcff',
)


def anything(value):
  """In the place of a value: mostly of its own kind."""
  alike = [x for x in NASTY if type(x) is type(value)]
  return st.sampled_from(alike) | WILD if alike else WILD


def fields(value):
  """An object with some fields set to anything, or left out, at its top or further down."""
  names = sorted(value)
  one = [st.tuples(st.just(name), anything(value[name])) for name in names]
  one += [
    st.tuples(st.just(name), fields(value[name]))
    for name in names
    if isinstance(value[name], dict) and value[name]
  ]
  one += [st.tuples(st.text(max_size=3) | st.just('x' * 5000), WILD)]
  left_out = st.just([]) | st.lists(st.sampled_from(names), max_size=2)
  kept = left_out.map(lambda left: {name: value[name] for name in names if name not in left})
  return st.builds(
    lambda kept, changes: {**kept, **dict(changes)},
    kept,
    st.lists(st.one_of(one), min_size=1, max_size=2),
  )


def changed(base):
  """Texts of a file: mostly a document with other fields."""
  document = st.builds(json.dumps, fields(base))
  return st.one_of(
    document, document, document, document, st.builds(json.dumps, WILD), st.sampled_from(BROKEN)
  )


# What may happen.

OPENED = []


def _note(event, args):
  if event == 'open' and WATCHING and isinstance(args[0], str | bytes):
    OPENED.append(str(args[0]))


WATCHING = []
sys.addaudithook(_note)


def _out_of_time(*_):
  raise TimeoutError(f'it takes more than {SECONDS} seconds')


@contextlib.contextmanager
def guarded(folder):
  """The block ends well or by a sentence, soon, within bounds of memory, and opens files of the
  folder alone."""
  before = resource.getrlimit(resource.RLIMIT_AS)
  used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()
  resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
  signal.signal(signal.SIGALRM, _out_of_time)
  signal.alarm(SECONDS)
  OPENED.clear()
  WATCHING.append(folder)
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore', fd.UserNote)
      yield
  except fd.UserError as error:
    assert len(str(error)) < 3000
  finally:
    WATCHING.clear()
    signal.alarm(0)
    resource.setrlimit(resource.RLIMIT_AS, before)
  compiled = Path(jax.config.jax_compilation_cache_dir).resolve()
  # modules that are imported late, what Python writes of them, and source that it looks for
  files = [
    Path(file).resolve()
    for file in OPENED
    if not re.search(r'\.(py|pyc(\.\d+)?|so)$|<string>$', file)
  ]
  outside = [
    file for file in files if not (file.is_relative_to(folder) or file.is_relative_to(compiled))
  ]
  assert not outside, outside


def put(folder, file, text):
  (folder / file).write_bytes(text.encode('utf-8', 'surrogateescape'))


def fuzz(folder, file, base, action, examples):
  """Calls the action with the folder for many contents of one of its JSON files; first with the
  right ones."""
  texts = changed(base).map(lambda text: text.encode('utf-8', 'surrogateescape'))
  fuzz_bytes(folder, file, json.dumps(base).encode(), texts, action, examples)


def fuzz_lines(folder, file, base, action, examples):
  """The same for a file of JSON lines; `base` is a right one."""
  line = st.one_of(st.just(json.dumps(base)), changed(base))
  texts = st.lists(line, min_size=1, max_size=3).map('\n'.join)
  files = st.one_of(texts.map(lambda text: text.encode('utf-8', 'surrogateescape')), st.binary())
  fuzz_bytes(folder, file, json.dumps(base).encode(), files, action, examples)


def spoilt(data):
  """Contents of a file of bytes that are no text: cut, longer, or with other bytes."""
  place = st.integers(0, len(data) - 1)
  other = st.lists(st.tuples(place, st.integers(0, 255)), min_size=1, max_size=3)
  return st.one_of(
    other.map(lambda changes: bytes({**dict(enumerate(data)), **dict(changes)}.values())),
    place.map(lambda end: data[:end]),
    st.tuples(place, st.binary(max_size=9)).map(
      lambda cut: data[: cut[0]] + cut[1] + data[cut[0] :]
    ),
  )


def fuzz_bytes(folder, file, right, contents, action, examples):
  """The same for any file: its right content, and a strategy of others."""
  (folder / file).write_bytes(right)
  action(folder)

  # where the machine is busy
  @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
  @given(contents)
  def hold(content):
    (folder / file).write_bytes(content)
    with guarded(folder):
      action(folder)

  hold()
