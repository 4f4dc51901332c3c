"""Committed files name no folder of the machine on which they were written."""

import pathlib
import re
import subprocess

import pytest

from fastdec.files import ABSOLUTE
from tests.pages import ROOT

# Folders in which people and machines keep their work.
PERSONAL = re.compile(
  r'(?<![\w.~>)}\]-])/(?:data|home|media|mnt|opt|private|root|scratch|srv|tmp|Users|var|work)/\w'
)


def committed() -> list[pathlib.Path]:
  """Returns the text files that git knows, or none outside a git checkout."""
  words = ['git', '-C', str(ROOT), 'grep', '-zIl', '']
  listed = subprocess.run(words, capture_output=True, text=True, check=False).stdout
  return [ROOT / name for name in listed.split('\0') if name]


FILES = committed()


@pytest.mark.skipif(not FILES, reason='this is not a git checkout')
def test_committed_files_name_no_folder_of_a_machine() -> None:
  """Rows of results may have no absolute path at all."""
  named = []
  for path in FILES:
    if not path.exists() or path == pathlib.Path(__file__):
      continue
    is_result = path.is_relative_to(ROOT / 'docs' / 'results')
    refused = ABSOLUTE if is_result and path.suffix in ('.json', '.jsonl') else PERSONAL
    for number, line in enumerate(path.read_text().splitlines(), 1):
      if refused.search(line) or str(ROOT) in line:
        named.append(f'{path.relative_to(ROOT)}:{number}: {refused.search(line)}')
  assert named == []


@pytest.mark.parametrize(
  'line',
  [
    '{"config": "--model=/work/models/SmolLM2.gguf"}',
    '{"xla_flags": "--xla_dump_to=/tmp/tmpnk5v2q43"}',
    'python -m experiments.train --workdir /home/me/out',
    "open('/Users/me/lines.txt')",
  ],
)
def test_such_folders_are_noticed(line: str) -> None:
  assert ABSOLUTE.search(line) and PERSONAL.search(line)


@pytest.mark.parametrize(
  'line', ['--out=out/rows.jsonl', 'https://arxiv.org/abs/1', 'tokens / second', '"path/to/model"']
)
def test_relative_paths_and_addresses_are_not(line: str) -> None:
  assert not ABSOLUTE.search(line) and not PERSONAL.search(line)
