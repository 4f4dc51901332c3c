"""The embedded corpus is pinned, its splits are disjoint, and it is installed with the package."""

import hashlib
import tomllib
from pathlib import Path

import pytest

from fastdec.data.text.corpus import TextData, load_pairs
from fastdec.data.text.embedded import ARCHIVE
from fastdec.data.text.lines import Pair

COUNTS = {'train': 20_000, 'dev': 500, 'test': 500}


@pytest.fixture(scope='module')
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Pair]]:
  cache = tmp_path_factory.mktemp('cache')
  return {split: load_pairs(TextData(), split, cache) for split in COUNTS}


def test_all_pairs_are_pinned(corpus: dict[str, list[Pair]]):
  assert {split: len(pairs) for split, pairs in corpus.items()} == COUNTS
  lines = '\n'.join(line for pairs in corpus.values() for pair in pairs for line in pair)
  digest = hashlib.sha256(lines.encode()).hexdigest()
  assert digest == '58c243a0b5cce4ebdf8d44c1d92925997e1cbc3af17a122c512d291cd2662778'


def test_german_translates_the_english_of_its_pair(corpus: dict[str, list[Pair]]):
  assert corpus['dev'][0] == (
    'The teacher exchanged 3,230 Japanese yen for 630 Swedish kronor in Oslo.',
    'Der Lehrer hat in Oslo 3.230 Japanische Yen gegen 630 Schwedische Kronen getauscht.',
  )


def test_no_line_occurs_twice_in_any_split(corpus: dict[str, list[Pair]]):
  for side in zip(*(pair for pairs in corpus.values() for pair in pairs), strict=True):
    assert len(set(side)) == len(side) == sum(COUNTS.values())


def test_files_that_are_not_python_are_installed_too():
  """A file that `package-data` does not name is left out of the wheel."""
  root = Path(__file__).parents[3]
  packages = tomllib.loads((root / 'pyproject.toml').read_text())['tool']['setuptools']
  named = set()
  for package, patterns in packages['package-data'].items():
    folder = root / package.replace('.', '/')
    named |= {path for pattern in patterns for path in folder.glob(pattern)}
  files = {path for path in (root / 'fastdec').rglob('*.*') if path.is_file()}
  assert ARCHIVE in {path for path in files if path.suffix not in ('.py', '.pyc')} == named
