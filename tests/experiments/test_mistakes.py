"""Mistakes on the command line: one sentence, exit code 2, before any work, and the disk as it
was."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from fastdec import folders
from fastdec.errors import UserError
from fastdec.training import run as training_run
from tests.experiments.conftest import ROOT, run


@pytest.fixture(scope='module')
def workdir(table, tmp_path_factory):
  """A finished table that no test may change."""
  folder = tmp_path_factory.mktemp('mistakes') / 'run'
  return shutil.copytree(table.folder, folder, symlinks=True)


@pytest.fixture
def refused(launch, workdir):
  """refused(words in the message, command) checks what every mistake has in common."""

  def refused(words, *command, stdin=b''):
    before = listing(workdir)
    ended = launch(*command, stdin=stdin)
    assert ended.code == 2, ended
    assert 'Traceback' not in ended.err and ended.err.count('\n') == 1 and 'step ' not in ended.out
    for word in words:
      assert word in ended.err
    assert listing(workdir) == before

  return refused


def listing(folder):
  return {path: path.stat().st_mtime_ns for path in folder.rglob('*') if path.is_file()}


@pytest.mark.parametrize('settings, words', [
  ({'table.kz': (2,)}, ["no key 'kz'", 'known are ks, max_len']),
  ({'table.ks': '(1,)'}, ['config.table.ks[0]=1', 'from 2 to 999']),
  ({'table.rules': '("top-300", "top-301")'}, ['the rule top-301', 'top-300 is the most']),
  ({'heads.d_ff': 10**12}, ['a step needs', 'PB of memory, and a device has', 'a smaller model']),
  ({'table.rules': '("top2",)'}, ['the rule top2 is unknown', 'exact, top-N or min-N']),
  ({'table.rules': '("tree-0",)'},
    ['the rule tree-0 names no tree', '2 to 999 nodes', 'such as tree-32']),
  ({'table.rules': '("tree-8", "tree-8")'}, ['config.table.rules=', 'each once']),
  ({'heads.anchors': 4, 'heads.draw': 'one'},
    ['config.heads.anchors=4 with config.heads.draw=one', 'give draw=all']),
  ({'table.max_len': 129}, ['config.table.max_len=129', 'model.max_positions=128 is the most']),
  ({'data.row_length': 200}, ['config.data.row_length=200', 'model.max_positions=128 is the most']),
  ({'data.vocab_size': 100000}, ['vocab_size=100000', 'set it to that or less']),
  ({'data.folder': 'x'}, ['config.data.folder=x is not read', 'kind=embedded', 'give kind=files']),
  ({'data.suffix': '.gz'}, ['config.data.suffix=.gz is not read', 'give kind=files too']),
  ({'mesh.data': 4, 'table.rows': 6}, ['config.table: 6 rows cannot be divided over mesh.data=4']),
  ({'mesh.data': 4, 'distill.rows': 6}, ['config.distill: 6 rows cannot be divided']),
  ({'mesh.model': 3}, ['config.train: ', 'cannot be divided over mesh.model=3 devices']),
  ({'mesh.data': 8}, ['mesh.data=8 x mesh.model=1 needs 8 devices, and there are 1']),
  ({'data.cache': __file__}, [__file__, 'give another folder']),
  ({'mesh.data': 3}, ['8 rows cannot be divided over mesh.data=3', 'multiple of 3 rows']),
  ({'model.dtype': 'float33'}, ["dtype='float33'", 'bfloat16']),
  ({'train.constant': -1.0}, ['config.train.constant=-1.0', 'from 1e-30']),
  ({'seed': -1}, ['seed=-1', 'from 0']),
], ids=lambda value: ' '.join(value) if isinstance(value, dict) else '')  # fmt: skip
def test_a_setting_that_cannot_be(table, refused, tmp_path, settings, words):
  refused(words, 'table1', *table.words(**settings), f'--workdir={tmp_path}/new')
  assert not (tmp_path / 'new').exists()


@pytest.mark.parametrize('name', ['table1', 'train'])
def test_flags_that_cannot_be(table, refused, tmp_path, name):
  command = name, *table.words(), f'--workdir={tmp_path}/new'
  refused(['--budget=soon is not possible', 'such as 540s'], *command, '--budget=soon')
  refused(['there is no flag --stepps', 'known are --config'], *command, '--stepps=3')
  refused(['--workdir is missing'], name, *table.words())
  refused(['is a file'], name, *table.words(), f'--workdir={__file__}')
  refused(["no file can be called ''"], name, *table.words(), '--workdir=')
  refused(['is a file'], name, *table.words(), f'--workdir={__file__}/below')
  assert not (tmp_path / 'new').exists()


LINES = b'a dog runs\n' * 10


@pytest.mark.parametrize('name, content, words', [
  ('train.de', None, ['cannot read', 'train.de', 'No such file']),
  ('train.de', LINES[:-11], ['train.en has 10 lines', 'train.de has 9 lines']),
  ('test.en', b'\xff\n' + LINES[11:], ['line 1 of', 'test.en is not UTF-8']),
  ('dev.en', b'a\n' + b'dog ' * 200 + b'\n' + LINES[22:],
    ['sentence 2 of the dev set', 'tokens', '128 positions']),
], ids=['missing', 'shorter', 'not UTF-8', 'too long'])  # fmt: skip
def test_text_files_that_cannot_be(table, refused, tmp_path, name, content, words):
  folder = tmp_path / 'text'
  folder.mkdir()
  for split in ('train', 'dev', 'test'):
    for language in ('en', 'de'):
      (folder / f'{split}.{language}').write_bytes(LINES)
  if content is None:
    (folder / name).unlink()
  else:
    (folder / name).write_bytes(content)
  data = {
    'kind': 'files', 'folder': folder, 'train': 'train', 'dev': 'dev', 'test': 'test',
    'vocab_size': 14,
  }  # fmt: skip
  data['cache'] = tmp_path / 'cache'
  settings = {f'data.{key}': value for key, value in data.items()}
  refused(words, 'table1', *table.words(**settings), f'--workdir={tmp_path}/new')
  assert not (tmp_path / 'new').exists()


def test_a_folder_of_text_is_required(table, refused, tmp_path):
  for folder in ('', tmp_path / 'none'):
    command = table.words(**{'data.kind': 'files', 'data.folder': folder})
    refused(
      ['there is no folder', '--config.data.folder=...'],
      'table1',
      *command,
      f'--workdir={tmp_path}/new',
    )


def test_a_workdir_of_an_earlier_version(table, refused, tmp_path):
  (tmp_path / 'run' / 'base').mkdir(parents=True)
  words = ['run/base was made by an earlier version of fastdec', 'choose another workdir']
  refused(words, 'table1', *table.words(), f'--workdir={tmp_path}/run')


@pytest.mark.parametrize('run, choices, words', [
  ('k2-regular', 'k=4', ['holds a run for k=2, and this config means k=4']),
  ('k2-regular', 'k=1', ['holds a run for k=2']),
  ('base', 'k=2', ['holds a run for k=1']),
  ('nowhere', 'k=2', ['nowhere holds no finished run', 'experiments.train']),
  ('.', 'k=2', ['holds no finished run']),
])  # fmt: skip
def test_evaluate_wants_a_finished_run_of_its_config(table, refused, workdir, run, choices, words):
  refused(words, 'evaluate', *table.words(choices), f'--workdir={workdir / run}')


@pytest.fixture(scope='module')
def stopped(table, tmp_path_factory):
  """The folder of a run that was stopped after its first step."""
  folder = tmp_path_factory.mktemp('stopped') / 'run'
  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(training_run, 'seconds_left', lambda: 0.0)
    assert run('train', *table.words(), f'--workdir={folder}') == 0
  return folder


@pytest.fixture
def begun(stopped, tmp_path):
  """A copy of it."""
  return shutil.copytree(stopped, tmp_path / 'begun')


def test_a_run_does_not_serve_other_settings(table, refused, begun):
  words = ['begun was made with other settings (run): choose another workdir']
  refused(words, 'train', *table.words(**{'train.steps': 9}), f'--workdir={begun}')


@pytest.mark.parametrize(
  'settings, words',
  [
    ({}, ['trained on a base model', '--config.base=...']),
    ({'base': 'nowhere'}, ['nowhere is not a folder']),
    ({'base': ''}, ['trained on a base model']),
    ({'base': '{}'}, ['holds the runs base, k2-finetune, k2-regular']),
    (
      {'base': '{}/base', 'model.d_ff': 32},
      ['base holds another model', 'give a run of the same config'],
    ),
    (
      {'base': '{}/base', 'data.max_train': 190},
      ['base was trained on other text', 'the same config'],
    ),
    (
      {'base': '{}/base', 'heads.d_ff': 10**12},
      ['a step needs', 'PB of memory, and a device has', 'a smaller model'],
    ),
  ],
  ids=lambda value: ' '.join(map(str, value.items())) if isinstance(value, dict) else '',
)
def test_heads_want_the_base_of_their_config(table, refused, workdir, tmp_path, settings, words):
  settings = {name: str(value).format(workdir) for name, value in settings.items()}
  refused(words, 'train', *table.words('k=2', **settings), f'--workdir={tmp_path}/new')
  assert not (tmp_path / 'new').exists()


def test_results_with_a_line_that_is_not_a_row(table, refused, tmp_path, workdir):
  folder = shutil.copytree(workdir / 'base', tmp_path / 'run' / 'base').parent
  for results in (folder / 'results.jsonl', folder / 'base' / 'results.jsonl'):
    results.write_text('[]\n')
  words = ['line 1 of', 'is not a row: remove it']
  refused(words, 'table1', *table.words(), f'--workdir={folder}')
  refused(words, 'evaluate', *table.words(), f'--workdir={folder}/base')


def test_checkpoints_that_are_damaged_or_have_other_shapes(table, refused, launch, begun):
  command = 'train', *table.words(), f'--workdir={begun}'
  record = begun / 'settings.json'
  record.write_text('{"seed": ')
  refused(['settings.json'], *command)
  record.unlink()
  refused(['begun was made by an earlier version, by hand'], *command)
  for path in (begun / 'checkpoints' / '1' / 'params').rglob('*'):
    if path.is_file():
      os.truncate(path, path.stat().st_size // 2)
  with pytest.raises(UserError, match='is a training run that is not finished'):
    folders.open(begun)
  refused(['holds no finished run'], 'evaluate', *table.words(), f'--workdir={begun}')


COMPILED = {
  'JAX_COMPILATION_CACHE_DIR': str(ROOT / '.cache' / 'jax'),
  'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
}


def start(name, *words, **pipes):
  """A launcher as its own process; what it compiles is shared with this one."""
  command = [sys.executable, '-m', f'experiments.{name}', *words]
  environment = os.environ | COMPILED
  pipes = {'stderr': subprocess.PIPE} | pipes
  return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)


def test_as_its_own_process_a_mistake_is_one_line_and_2(workdir):
  process = start('table1', f'--workdir={workdir}', stdout=subprocess.PIPE)
  out, err = process.communicate(timeout=600)
  assert (process.returncode, out, err.count('\n')) == (2, '', 1) and 'config is missing' in err


@pytest.mark.slow
def test_ctrl_c_in_training_is_one_line_and_the_run_continues_later(table, launch, tmp_path):
  words = (
    *table.words(**{'train.steps': 100_000, 'train.every': 50_000}),
    f'--workdir={tmp_path}/run',
  )
  process = start('train', *words, stdout=subprocess.PIPE)
  assert process.stdout.readline().startswith('step 1/')
  process.send_signal(signal.SIGINT)
  assert (process.communicate(timeout=600)[1], process.returncode) == (
    'Interrupted: the same command continues\n',
    130,
  )
  assert launch('train', *words, '--budget=0').code == 0
