"""The scripts of examples/ run as their docstrings say, on tiny models."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WORDS = {
  'own_translator': ['{tmp}/mine', '4'],
  'tuned_folder': ['{model}', '{tmp}/lines.txt', '{model}/../smaller'],
  'own_drafter': ['{model}', '{tmp}/lines.txt', 'a dog'],
  'reading_acceptance': ['{model}', '{model}/../smaller', '{tmp}/lines.txt'],
}
SAID = {
  'own_translator': 'calls in place of',
  'tuned_folder': 'tokens a call)',
  'own_drafter': 'calls in place of',
  'reading_acceptance': 'gamma 8: ',
}


@pytest.mark.slow
@pytest.mark.parametrize('script', sorted(WORDS))
def test_an_example_runs_as_it_says(script, translator, tmp_path):
  (tmp_path / 'lines.txt').write_text('a dog runs\nthe cat sits\n' * 8)
  words = [word.format(model=translator, tmp=tmp_path) for word in WORDS[script]]
  command = [sys.executable, '-m', f'examples.{script}', *words]
  ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=None)
  assert ended.returncode == 0, ended.stderr
  assert SAID[script] in ended.stdout


def test_every_example_is_tried():
  assert sorted(WORDS) == sorted(file.stem for file in (ROOT / 'examples').glob('*.py'))
