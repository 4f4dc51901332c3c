"""A package names what it exports once, and imports it when it is used."""

import subprocess
import sys
import textwrap

import pytest

PACKAGE = """
  from fastdec import lazy
  with lazy.imports(globals()) as modules:
    from package import room
    from package.values import one, two

  def __getattr__(name):
    return lazy.load(name, modules, globals())
"""


@pytest.fixture
def run(tmp_path):
  """Runs code where such a package can be imported; returns what it prints."""
  (tmp_path / 'package').mkdir()
  files = {
    '__init__': PACKAGE,
    'values': "print('values')\nfrom package.digits import two\none = 1",
    'digits': 'two = 2',
    'room': "print('room')",
    'other': 'import package\nfrom string import digits',
  }
  for name, text in files.items():
    (tmp_path / 'package' / f'{name}.py').write_text(textwrap.dedent(text))

  def run(code):
    command = [sys.executable, '-c', f'import sys; sys.path.append({str(tmp_path)!r}); {code}']
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split('\n')

  return run


def test_a_name_is_imported_when_it_is_used_and_once(run):
  code = "import package; print('used'); print(package.one, package.one, package.two)"
  assert run(code) == ['used', 'values', '1 1 2', '']


def test_a_name_may_be_a_submodule(run):
  assert run('import package; print(package.room.__name__)') == ['room', 'package.room', '']


def test_other_names_are_refused_and_other_imports_are_as_ever(run):
  code = "import package; print(hasattr(package, 'three')); import package.other as other"
  assert run(f'{code}; print(other.digits)') == ['False', '0123456789', '']
