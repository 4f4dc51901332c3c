"""The command itself: help, names, exit codes, and that a wheel brings it."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import fastdec as fd
from fastdec.cli import COMMANDS, opening
from fastdec.cli.flags import Parser
from tests.cli.conftest import ROOT


@pytest.mark.parametrize('name', COMMANDS)
def test_help_has_an_example(fastdec, name):
  ended = fastdec(name, '--help')
  assert ended.code == 0 and f'Example:\n  fastdec {name} ' in ended.out
  assert max(map(len, ended.out.splitlines())) <= 100


def test_all_commands_are_listed(fastdec):
  for words in ([], ['--help']):
    ended = fastdec(*words)
    assert ended.code == 0 and all(f'\n  {name} ' in ended.out for name in COMMANDS)
  assert fastdec('--version').out == f'fastdec {fd.__version__}\n'


@pytest.mark.parametrize('words, message', [
  (['generat'], "there is no command 'generat': did you mean generate?"),
  (['xyz'], "there is no command 'xyz': known are generate, chat"),
  (['pool'], 'there is no --model, --texts, --output: see fastdec pool --help'),
  (['pool', '--modle=x'], 'there is no flag --modle: did you mean --model? fastdec pool --help'),
  (['pool', 'x', '--model=m', '--texts=t', '--output=o'], "'x' is not a flag: fastdec pool --help"),
  (['pool', '--model'], '--model: expected one argument: see fastdec pool --help'),
])  # fmt: skip
def test_a_word_that_is_no_word_of_the_command(fastdec, words, message):
  assert message in fastdec(*words).mistake


def start(*words, **pipes):
  """The command as its own process."""
  command = [sys.executable, '-m', 'fastdec', *map(str, words)]
  return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, **pipes)


def test_a_reader_that_stops_early_is_no_failure(translator):
  read, write = os.pipe()
  process = start('translate', '--model', translator, '--max-len=4', 'a', stdout=write)
  os.close(write)
  os.close(read)
  _, errors = process.communicate(timeout=60)
  assert process.returncode == 141 and 'Traceback' not in errors


@pytest.mark.parametrize('error', [MemoryError(), RuntimeError('RESOURCE_EXHAUSTED: of memory')])
def test_too_little_memory_is_a_sentence(fastdec, monkeypatch, error):
  def read(words):
    raise error

  monkeypatch.setattr('fastdec.cli.pool.main', read)
  ended = fastdec('pool')
  assert ended.code == 1 and 'the memory does not suffice' in ended.err


@pytest.mark.slow
def test_a_wheel_brings_the_command(translator, tmp_path):
  """In a fresh environment that sees the packages of this one, outside the checkout."""
  source = tmp_path / 'source'  # building leaves files
  shutil.copytree(ROOT / 'fastdec', source / 'fastdec')
  for name in ('pyproject.toml', 'README.md'):
    shutil.copy(ROOT / name, source)
  wheel = [sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '-w', tmp_path, source]
  subprocess.run(wheel, check=True)
  (built,) = tmp_path.glob('fastdec-*.whl')
  venv.create(tmp_path / 'env', with_pip=False)
  scripts, python = tmp_path / 'env' / 'bin', tmp_path / 'env' / 'bin' / 'python'
  ours = Path(sysconfig.get_path('purelib', vars={'base': str(tmp_path / 'env')}))
  install = [sys.executable, '-m', 'pip', '--python', python, 'install', '-q', '--no-deps', built]
  subprocess.run(install, check=True)
  (ours / 'packages.pth').write_text(sysconfig.get_path('purelib') + '\n')
  words = [scripts / 'fastdec', 'generate', '--model', translator, '--prompt=a dog', '--max-len=4']
  ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
  assert ended.returncode == 0 and 'tokens per call' in ended.stdout, ended.stderr
  code = 'import fastdec; print(fastdec.__file__)'
  printed = subprocess.run([python, '-c', code], cwd=tmp_path, capture_output=True, text=True)
  assert printed.stdout.strip() == str(ours / 'fastdec' / '__init__.py')


def test_no_cache_is_no_setting_of_the_output(monkeypatch):
  monkeypatch.setenv('FASTDEC_CACHE', 'folder')
  parser = Parser('generate', None)
  opening.add_cores(parser)
  assert vars(parser.read([])) == {'cores': None} and os.environ['FASTDEC_CACHE'] == 'folder'
  assert vars(parser.read(['--no-cache'])) == {'cores': None} and not os.environ['FASTDEC_CACHE']
