"""The command itself: help, names, exit codes, and its installation by a wheel."""

import io
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import jax
import pytest

import fastdec as fd
from fastdec import cli
from fastdec.cli import COMMANDS, opening
from fastdec.cli.flags import Parser
from fastdec.folders.native import NativeFolder
from fastdec.terminal import expand_home, plain_console, run_command
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
  (['generat'], "unknown command 'generat': did you mean generate?"),
  (['shortlist'], 'fastdec shortlist is no longer supported: give fastdec train-draft --words=N'),
  (['pool'], 'fastdec pool needs --model, --texts, --output: see fastdec pool --help'),
  (['pool', '--modle=x'], 'unknown flag --modle: did you mean --model? fastdec pool --help'),
  (['pool', 'x', '--model=m', '--texts=t', '--output=o'], "'x' is not a flag: fastdec pool --help"),
  (['pool', '--model=', '--texts=t', '--output=o'], '--model= is empty: give a value'),
  (['pool', '--ngram=' + '9' * 5000], 'give a whole number, 2 to 2147483647'),
  (['convert', 'x.gguf'], 'x.gguf is not a fairseq checkpoint: give it to the other commands'),
])  # fmt: skip
def test_a_word_that_the_command_does_not_know(fastdec, words, message):
  assert message in fastdec(*words).mistake


def test_ctrl_c_ends_the_process_before_python_takes_xla_away(monkeypatch):
  def interrupted(words):
    raise KeyboardInterrupt

  codes = []
  monkeypatch.setattr(cli, '_run', interrupted)
  monkeypatch.setattr(os, '_exit', codes.append)
  monkeypatch.setattr(sys, 'argv', ['fastdec', 'generate'])
  with pytest.raises(SystemExit):
    cli.main()
  assert codes == [130] and cli.main(['generate']) == 130


def test_the_home_folder_may_follow_equals_signs_and_commas(monkeypatch):
  monkeypatch.setenv('HOME', '/h')
  stays = '--prompt=~/m', '--regex=~/,~/', '~/m', 'a=~/m', '--model=a~/m', '--model=~nobody-here/m'
  for word, wanted in {
    '--model=~/m': '--model=/h/m', '--output=~': '--output=/h',
    '--texts=~/a,b,~/c': '--texts=/h/a,b,/h/c',
    '--strategy=medusa(choices=~/t.json)': '--strategy=medusa(choices=/h/t.json)',
    "--strategy=medusa(choices='~/t.json')": "--strategy=medusa(choices='/h/t.json')",
    '--config=~/my.py:k=8': '--config=/h/my.py:k=8', '--config.base=~/b': '--config.base=/h/b',
  }.items():  # fmt: skip
    assert expand_home([word]) == [wanted]
  assert expand_home(stays) == [*stays]


MISTAKES = {
  'translate': (['--input={files}/none', '--model={model}'], 'cannot read'),
  'tune': (['--output=/'], '/ is a folder: give the name of a file'),
  'tune device': (['--output=/dev/full'], '/dev/full is a device or a pipe, not a regular file'),
  'tune unit': (['--budget=2'], '--budget=2 is not possible: give a time with its unit'),
  'train-draft': (['--out={files}/prompts.txt/x'], 'prompts.txt/x (Not a directory)'),
  'pool': (['--texts={files}/prompts.txt', '--output={files}'], 'is a folder: give the name of'),
  'demo': (['--port=0', '--draft={files}/none'], 'is not a folder'),
  'check': (['{model}/model.safetensors'], 'give the folder of the model, such as {model}'),
  'chat': (['--min-new-tokens=9', '--max-len=8'], 'has no chat template'),
}


@pytest.mark.parametrize('name', MISTAKES)
def test_a_mistake_is_a_sentence_before_weights_are_read(
  translator, fastdec, prompts, monkeypatch, name
):
  monkeypatch.setattr(NativeFolder, 'params', lambda *_, **__: pytest.fail('weights are read'))
  monkeypatch.setattr(NativeFolder, 'head_params', lambda *_, **__: pytest.fail('heads are read'))
  command = name.split()[0]
  words, sentence = MISTAKES[name]
  given = {'files': prompts.parent, 'model': translator}
  words = [word.format(**given) for word in words]
  if command != 'check' and not any(word.startswith('--model=') for word in words):
    words.append(f'--model={translator}')
  if command in ('tune', 'train-draft', 'calibrate'):
    words.append(f'--prompts={prompts}')
  assert sentence.format(**given) in fastdec(command, *words).mistake


@pytest.mark.parametrize('encoding, wanted', [
  ('ascii', b'\\u65e5 \\xe9\n'), ('latin-1', b'\\u65e5 \xe9\n'), ('cp1252', b'\\u65e5 \xe9\n'),
  ('utf-8', '日 é\n'.encode()),
])  # fmt: skip
def test_characters_that_an_output_lacks_are_escaped(monkeypatch, encoding, wanted):
  for print_line in (print, lambda text: plain_console().print(text)):
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, 'stdout', stream)
    assert run_command(lambda: print_line('日 é'), '') == 0  # noqa: B023
    assert stream.buffer.getvalue() == wanted


def test_output_may_be_closed_or_full(monkeypatch, capsys):
  monkeypatch.setattr(sys, 'stdout', None)
  assert run_command(lambda: print('a'), '') == 0
  with open('/dev/full', 'w') as full:
    monkeypatch.setattr(sys, 'stdout', full)
    assert run_command(lambda: print('a'), '') == 2
  assert 'cannot be written (No space left on device): give it another' in capsys.readouterr().err


@pytest.mark.parametrize('error', [AssertionError(), RuntimeError("Unable to initialize 'tpu'")])
def test_a_device_that_is_not_there_is_a_sentence_and_a_bug_stays_one(monkeypatch, capsys, error):
  def work():
    raise error

  monkeypatch.setenv('JAX_PLATFORMS', 'cuda')
  with pytest.raises(type(error)):
    run_command(work, '')
  monkeypatch.setattr(jax, 'devices', work)
  assert run_command(work, '') == 2
  assert capsys.readouterr().err.startswith('JAX_PLATFORMS=cuda asks for a device that is not here')
  monkeypatch.setenv('JAX_PLATFORMS', '')
  with pytest.raises(type(error)):
    run_command(work, '')


def start(*words, **pipes):
  """Runs the command as a process of its own."""
  command = [sys.executable, '-m', 'fastdec', *map(str, words)]
  return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, **pipes)


def test_a_reader_that_stops_early_is_not_a_failure(translator):
  read, write = os.pipe()
  process = start('translate', '--model', translator, '--max-len=4', 'a', stdout=write)
  os.close(write)
  os.close(read)
  _, errors = process.communicate(timeout=600)
  assert process.returncode == 141 and 'Traceback' not in errors


@pytest.mark.parametrize('error', [MemoryError(), RuntimeError('RESOURCE_EXHAUSTED: of memory')])
def test_too_little_memory_is_a_sentence(fastdec, monkeypatch, error):
  def read(words):
    raise error

  monkeypatch.setattr('fastdec.cli.pool.main', read)
  ended = fastdec('pool')
  assert ended.code == 1 and 'the memory is too small' in ended.err


@pytest.mark.slow
def test_a_wheel_brings_the_command(translator, tmp_path):
  """It is installed into a fresh environment that sees the packages of this one, outside the
  checkout."""
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


def test_no_cache_is_not_a_setting_of_the_output(monkeypatch):
  monkeypatch.setenv('FASTDEC_CACHE', 'folder')
  parser = Parser('generate', None)
  opening.add_cores(parser)
  assert vars(parser.read([])) == {'cores': None} and os.environ['FASTDEC_CACHE'] == 'folder'
  assert vars(parser.read(['--no-cache'])) == {'cores': None} and not os.environ['FASTDEC_CACHE']
