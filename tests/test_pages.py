"""Applies the pages of docs/add to a copy of the repository. Their code passes what our own code
passes, and runs.

A page shows one example, and real changes are made at the same places. If the code has moved on so
that an example has no place in it, the page is left out here, and only
`test_the_code_has_a_place_for_each_page`, a slow test, fails.
"""

import os
import shutil
import subprocess
import sys

import pytest

from tests.pages import ADD, ROOT, blocks_of, files_of, patched

MOST_PLACES = 4  # files that a method or a sampling setting touches, docs not counted
COPIED = ('fastdec', 'experiments', 'configs', 'benchmarks', 'tests')


@pytest.fixture(scope='module')
def tree(tmp_path_factory):
  """A copy of the repository with the changes of all pages, and the files that they touch."""
  tree = tmp_path_factory.mktemp('pages')
  ignored = shutil.ignore_patterns('__pycache__')
  for name in COPIED:
    shutil.copytree(ROOT / name, tree / name, ignore=ignored)
  shutil.copytree(ROOT / 'docs', tree / 'docs', ignore=shutil.ignore_patterns('results', 'figures'))
  shutil.copy(ROOT / 'pyproject.toml', tree)
  compiled = ROOT / '.cache' / 'jax'
  compiled.mkdir(parents=True, exist_ok=True)
  (tree / '.cache').mkdir()
  (tree / '.cache' / 'jax').symlink_to(compiled)
  touched = set()
  for page in ADD:
    files = files_of(page, tree) or {}
    for file, text in files.items():
      (tree / file).parent.mkdir(parents=True, exist_ok=True)
      (tree / file).write_text(text)
    touched |= set(files)
  sources = sorted(file for file in touched if file.endswith('.py'))
  # Real changes add imports at the same places: only the order of these lines may differ.
  changed = [file for file in sources if (ROOT / file).exists()]
  run(tree, 'ruff', 'check', '--select=I', '--fix', '--no-cache', *changed)
  return tree, sources


def run(tree, *words, **environment):
  command = [sys.executable, '-m', *words]
  env = {**os.environ, **environment}
  done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)
  assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]


@pytest.mark.parametrize('command', [['check', '--no-cache'], ['format', '--diff', '--no-cache']])
def test_ruff_accepts_the_code_of_pages(tree, command):
  folder, files = tree
  run(folder, 'ruff', *command, *files)


def test_pyright_accepts_the_code_of_pages(tree):
  folder, files = tree
  checked = [file for file in files if not file.startswith('tests/')]
  how = f'--pythonpath={sys.executable}'
  run(folder, 'pyright', how, *checked, PYRIGHT_PYTHON_IGNORE_WARNINGS='1')


def test_the_code_of_pages_imports_what_ours_may_import(tree):
  """Leaves out the two tests that import the whole library, since they ran already."""
  folder, _ = tree
  words = ['--noconftest', '-o', 'addopts=', '-p', 'no:cacheprovider', '-k', 'not itself_loads']
  run(folder, 'pytest', 'tests/test_imports.py', *words)


def test_the_code_of_pages_runs(tree):
  folder, files = tree
  tests = [file for file in files if file.startswith('tests/') and '/test_' in file]
  tests += ['tests/test_docs.py::test_every_public_name_has_an_entry']
  tests += ['tests/hub/test_configs.py::test_the_tables_of_folders_are_in_the_documents']
  run(folder, 'pytest', '-p', 'no:cacheprovider', '-q', *tests)


@pytest.mark.slow
def test_the_method_of_the_page_has_the_properties_of_all_methods(tree):
  folder, _ = tree
  tests = [f'tests/decoding/test_{name}.py' for name in ('strategies', 'loop', 'pool')]
  run(folder, 'pytest', '-p', 'no:cacheprovider', '-q', '-k', 'follow', *tests)


@pytest.mark.slow
@pytest.mark.parametrize('page', ADD, ids=lambda page: page.stem)
def test_the_code_has_a_place_for_each_page(page):
  assert files_of(page, ROOT), 'a hunk finds no place: show the lines as they are now'


@pytest.mark.parametrize('page', ADD, ids=lambda page: page.stem)
def test_a_page_names_its_files_and_asserts_what_its_code_does(page):
  blocks = blocks_of(page)
  assert any(block.file for block in blocks)
  assert any('assert' in block.code for block in blocks)


@pytest.mark.parametrize('page', ADD, ids=lambda page: page.stem)
def test_a_page_can_be_followed_twice(page):
  """Somebody made the change of the page: it is there already, and is made once."""
  files = files_of(page, ROOT) or {}
  for block in blocks_of(page):
    if block.is_diff and block.file in files:
      assert patched(files[block.file], block.code) == files[block.file]


def test_a_hunk_goes_after_the_line_before_it_where_others_added_lines_too():
  hunk = ' one\n+mine\n two\n'
  assert patched('one\ntwo\n', hunk) == 'one\nmine\ntwo\n'
  assert patched('one\ntheirs\ntwo\n', hunk) == 'one\nmine\ntheirs\ntwo\n'
  assert patched('one\ntwo\none\n', ' one\n+mine\n') is None
  assert patched('one\n', '-two\n+mine\n') is None


@pytest.mark.parametrize('name', ['drafter', 'sampling-setting'])
def test_a_method_and_a_sampling_setting_touch_few_places(name):
  (page,) = (page for page in ADD if page.stem == name)
  places = {block.file for block in blocks_of(page)}
  places = {place for place in places if place and not place.startswith('docs/')}
  assert 1 < len(places) <= MOST_PLACES
