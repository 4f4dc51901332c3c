"""What a page of docs/add says to write is written into a copy of the repository. There it passes
what our own code passes, and runs."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.pages import ADD, ROOT, apply, blocks_of, is_change

PAGES = [page for page in ADD if is_change(page)]
MOST_PLACES = 4  # files that a method or a sampling setting touches, beside docs
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
  files = {file: page.name for page in PAGES for file in apply(page, tree)}
  return tree, sorted(files)


def run(tree, *words, **environment):
  command = [sys.executable, '-m', *words]
  env = {**os.environ, **environment}
  done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)
  assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
  return done.stdout


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
  """The two tests that import the whole library are left out: they have run."""
  folder, _ = tree
  words = ['--noconftest', '-o', 'addopts=', '-p', 'no:cacheprovider', '-k', 'not itself_loads']
  run(folder, 'pytest', 'tests/test_imports.py', *words)


def test_the_code_of_pages_runs(tree):
  folder, files = tree
  tests = [file for file in files if file.startswith('tests/') and '/test_' in file]
  assert len(tests) >= len(PAGES)
  tests += ['tests/test_docs.py::test_every_public_name_has_an_entry']
  tests += ['tests/hub/test_configs.py::test_the_tables_of_folders_are_in_the_documents']
  run(folder, 'pytest', '-p', 'no:cacheprovider', '-q', *tests)


def test_the_setting_of_the_page_is_a_flag(tree):
  folder, _ = tree
  assert '--epsilon-cutoff' in run(folder, 'fastdec', 'generate', '--help')


@pytest.mark.slow
def test_the_method_of_the_page_has_the_properties_of_all_methods(tree):
  folder, _ = tree
  tests = [f'tests/decoding/test_{name}.py' for name in ('strategies', 'loop', 'pool')]
  run(folder, 'pytest', '-p', 'no:cacheprovider', '-q', '-k', 'follow', *tests)


@pytest.mark.parametrize('page', ADD, ids=lambda page: page.stem)
def test_a_page_says_which_files_its_code_is(page):
  assert is_change(page)


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.stem)
def test_a_page_asserts_what_its_code_does(page):
  assert any('assert' in block.code for block in blocks_of(page))


@pytest.mark.parametrize('name', ['drafter', 'sampling-setting'])
def test_a_method_and_a_sampling_setting_touch_few_places(name):
  (page,) = (page for page in PAGES if page.stem == name)
  places = {block.file for block in blocks_of(page)}
  places = {place for place in places if place and not place.startswith('docs/')}
  assert 1 < len(places) <= MOST_PLACES
