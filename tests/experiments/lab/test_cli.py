"""Command-line manners: a mistake is one sentence and exit code 2, a bug keeps its traceback,
Ctrl-C is one line."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import EXPERIMENTS
from experiments.lab import cli
from fastdec.errors import UserError

ROOT = Path(__file__).parents[3]
PAGES = (ROOT / 'configs').glob('*.py')
LAUNCHERS = '\n'.join(path.read_text() for path in (ROOT / 'experiments').glob('*.py'))

LAUNCHER = '''
"""Does nothing, well."""
import atexit
import os
import time
import warnings
from absl import flags
from experiments.lab import cli
from fastdec.errors import UserError, UserNote

CONFIG = cli.config_flag('wmt14')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder for the run', required=True)
DO = flags.DEFINE_string('do', '', 'what to do')

def main(words):
  if DO.value == 'mistake':
    raise UserError('Two [b]lines\\nof one sentence.')
  if DO.value == 'note':
    warnings.warn('What [b]everybody\\nshould know.', UserNote)
  if DO.value == 'bug':
    raise ValueError('this is a bug')
  if DO.value == 'sleep':
    atexit.register(os.abort)  # as XLA might
    print('asleep', flush=True)
    time.sleep(600)
  print(cli.config_string(), '|', CONFIG.value.model.d, CONFIG.value.model.sizes)
  if CONFIG.value.model.tied:
    print('tied')

if __name__ == '__main__':
  cli.run(main)
'''

PAGE = """
from experiments.lab.config import locked, parse_arg

def get_config(arg=''):
  args = parse_arg(arg, d=4, bug=False)
  if args.bug:
    int('a bug')
  return locked(model={'d': args.d, 'sizes': (1, 2), 'tied': False}, name='x')
"""


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('cli')
  (folder / 'launcher.py').write_text(LAUNCHER)
  (folder / 'page.py').write_text(PAGE)
  (folder / 'empty.py').write_text('')
  return folder


def start(folder, *args, **environment):
  return subprocess.Popen(
    [sys.executable, 'launcher.py', *args],
    cwd=folder,
    text=True,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    env={**os.environ, 'PYTHONPATH': str(ROOT), **environment},
  )


def ended(folder, *args, **environment):
  process = start(folder, *args, **environment)
  out, err = process.communicate(timeout=600)
  return process.returncode, out, err


@pytest.fixture
def quickly(launch, folder, monkeypatch):
  """Runs the launcher in this process."""

  def quickly(*args):
    monkeypatch.chdir(folder)
    ended = launch('launcher.py', *args)
    return ended.code, ended.out, ended.err

  return quickly


def test_leaves_are_set_by_dotted_flags_and_kept_in_the_config_string(quickly):
  code, out, err = quickly('--config=page.py:d=8', '--config.model.sizes=(3, 4)', '--workdir=w')
  assert (code, out, err) == (0, 'page.py:d=8 --config.model.sizes=(3, 4) | 8 (3, 4)\n', '')


@pytest.mark.parametrize('words, seen', [
  (['--config.model.sizes', '3,4', '--config.model.d', '7'], '| 7 (3, 4)\n'),
  (['--config.model.sizes=3', '--config.model.sizes=4'], '| 4 (3, 4)\n'),
  (['--config.model.d=5', '--config.model.d=06'], '--config.model.d=6 | 6 (1, 2)\n'),
  (['--config.model.tied'], '--config.model.tied=True | 4 (1, 2)\ntied\n'),
  (['--config.model.tied', '--noconfig.model.tied'], '--config.model.tied=False | 4 (1, 2)\n'),
])  # fmt: skip
def test_settings_are_given_as_flags_are(quickly, words, seen):
  """Before or after --config: a value after a space, a list in parts, the last of several."""
  for args in ([*words, '--config=page.py'], ['--config=page.py', *words]):
    code, out, err = quickly(*args, '--workdir=w')
    assert (code, err) == (0, '') and out.endswith(seen), out


@pytest.mark.parametrize(('args', 'words'), [
  (['--config=page.py', '--config.model.tied=off'],
    ["config.model.tied='off' is not possible: give true or false"]),
  (['--config=page.py', '--config.model.sizes=3,x'], ["config.model.sizes[1]='x'", 'a whole']),
  (['--config=page.py', '--config.model=3'], ['config.model has parts', 'model.d']),
  (['--config=page.py', '--config.d=3'], ["no key 'd'", 'did you mean model.d?']),
  (['--config=page.py', '--noconfig.name'], ['--noconfig.name', 'give --config.name=']),
  (['--config=page.py:dd=3'], ["'dd'", 'known are d, bug']),
  (['--config=page.py', '--config.model.dd=3'],
    ['config.model', "'dd'", 'did you mean d?', 'known are d, sizes, tied']),
  (['--config=page.py', '--config.name.dd=3'],
    ['--config.name.dd', "config.name is the value 'x'"]),
  (['--config=nothing.py', '--config.name=y'], ["the config file 'nothing.py' does not exist"]),
  ([f'--config={ROOT}/configs/celeba.py'],
    ['celeba.py: give configs/wmt14.py']),
  (['--config=empty.py'], ["'empty.py'", 'get_config']),
  (['--config=page.py', '--stepps=3'], ['--stepps', 'known are', '--workdir']),
  (['--config=page.py', '--do=mistake'], ['Two [b]lines of one sentence.']),
], ids=lambda value: ' '.join(value) if value and value[0].startswith('--') else '')  # fmt: skip
def test_a_mistake_is_one_sentence_and_exit_code_2(quickly, args, words):
  code, out, err = quickly('--workdir=w', *args)
  assert (code, out, err.count('\n')) == (2, '', 1) and '\x1b' not in err
  assert all(word in err for word in words), err


def test_launchers_take_pages_that_are_there():
  named = [
    re.findall(r"'(\w+)'", line)
    for line in re.findall(r'(?:config_flag|cli\.Page)\((.*)\)', LAUNCHERS)
  ]
  named += [[experiment.page] for experiment in EXPERIMENTS.values() if experiment.page]
  assert len(named) > 10
  assert {page for pages in named for page in pages} == {path.stem for path in PAGES} - {
    '__init__',
    'common',
    'presets',
  }


def test_a_note_is_one_sentence_without_a_path_and_the_work_continues(quickly):
  code, out, err = quickly('--config=page.py', '--workdir=w', '--do=note')
  assert (code, out, err) == (0, 'page.py | 4 (1, 2)\n', 'What [b]everybody should know.\n')


def test_a_required_flag_is_named(quickly):
  code, _, err = quickly('--config=page.py')
  assert (code, err) == (2, '--workdir is missing: folder for the run\n')


@pytest.mark.wide('in the launcher')
@pytest.mark.parametrize(
  ('args', 'word'),
  [(['--config=page.py', '--do=bug'], 'this is a bug'), (['--config=page.py:bug'], "int('a bug')")],
  ids=['in the launcher', 'in the config'],
)
def test_a_bug_keeps_its_traceback(folder, args, word):
  code, _, err = ended(folder, '--workdir=w', *args)
  assert code == 1 and 'Traceback' in err and word in err


def test_help_lists_flags_choices_and_settings_and_is_not_a_failure(quickly):
  """Those of the command's own page, or of the one that is given."""
  code, out, _ = quickly('--help')
  assert code == 0 and out.startswith('Does nothing, well.')
  for words in (
    '--config:',
    '--workdir:',
    '\nregime (',
    '\n  finetune ',
    '\n  table.ks=(2, 4, 8): a',
  ):
    assert words in out
  _, out, _ = quickly('--config=page.py:d=8', '--help')
  assert '\n  model.d=8: a whole number\n  model.sizes=(1, 2): a list, each a whole number\n' in out


def test_ctrl_c_is_one_line_and_exit_code_130(folder):
  process = start(folder, '--config=page.py', '--workdir=w', '--do=sleep')
  assert process.stdout.readline() == 'asleep\n'
  process.send_signal(signal.SIGINT)
  assert (process.communicate(timeout=600)[1], process.returncode) == (
    'Interrupted: the same command continues\n',
    130,
  )


@pytest.mark.parametrize(
  ('text', 'seconds'), [(None, None), ('540s', 540), ('540', 540), ('9m', 540), ('1.5h', 5400)]
)
def test_a_budget_is_a_time(text, seconds):
  assert cli.seconds(text) == seconds


@pytest.mark.parametrize('text', ['', 'm', '5 m', '-5s', '1d'])
def test_a_budget_that_is_not_a_time_is_refused(text):
  with pytest.raises(UserError, match=f'--budget={text} is not possible: give seconds'):
    cli.seconds(text)
