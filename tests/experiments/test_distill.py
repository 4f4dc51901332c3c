"""Distillation: what is written, and that nothing can cut it in half."""

import errno
import gzip
import itertools
import json
import os
import re
import shutil
import subprocess
import types

import pytest

import fastdec as fd
from configs import wmt14
from experiments.lab.config import to_dataclass
from experiments.stern2018.text import Translation
from fastdec import files, folders
from fastdec.data.text.tokens import TokenPairs
from fastdec.training import run as training
from fastdec.training import stage, written
from tests.experiments.conftest import run, with_settings
from tests.experiments.test_mistakes import start

PARTS = 10
SETTINGS = {
  'distill.shard_size': 20, 'distill.rows': 20, 'distill.beam': 2, 'distill.max_len': '(0, 6)',
}  # fmt: skip
OWN = SETTINGS | {'distill.beam': 1, 'distill.shard_size': 250, 'distill.rows': 32}


@pytest.fixture
def words(table, tmp_path):
  """The words of a command on the workdir `tmp_path/out`, with settings changed."""
  place = f'--teacher={table.folder}/base', f'--workdir={tmp_path}/out'
  return lambda **changed: [*table.words(**SETTINGS | changed), *place]


@pytest.fixture(scope='module')
def whole(table, tmp_path_factory):
  """A distillation that nothing has disturbed."""
  folder = tmp_path_factory.mktemp('whole') / 'out'
  words = *table.words(**SETTINGS), f'--teacher={table.folder}/base', f'--workdir={folder}'
  assert run('distill', *words) == 0
  return folder


@pytest.fixture
def copy(whole, tmp_path):
  """A finished workdir to be changed."""
  return shutil.copytree(whole, tmp_path / 'out')


def made(out):
  """The parts of the training text that an output tells of."""
  return [int(number) for number in re.findall(r'train, part (\d+)', out)]


def result(folder):
  """Every file but the locks."""
  files = (path for path in folder.rglob('*') if path.is_file() and 'lock' not in path.name)
  return {path.relative_to(folder): path.read_bytes() for path in files}


def ids_of(folder, split):
  (file,) = folder.glob(f'{split}-*.npy')
  return TokenPairs.load(file)


def lines_of(folder):
  """Sources and targets."""
  return [(folder / f'train.{language}').read_text().split('\n')[:-1] for language in ('en', 'de')]


def test_every_source_has_a_line_and_a_translation_of_it(whole):
  record = json.loads((whole / 'config.json').read_text())
  sources, targets = lines_of(whole)
  assert record['counts'] == {'sources': 200, 'lines': 200, 'empty': 0, 'long': 0}
  assert len(sources) == len(targets) == 200 and len(set(sources)) > 150 and all(targets)
  assert record['beam'] == 2 and not (whole / 'parts').exists()


def test_ids_are_kept_as_the_teacher_wrote_them(table, whole):
  tokenizer, ids = (fd.load_tokenizer(table.folder / 'base'), ids_of(whole, 'train'))
  sources, targets = lines_of(whole)
  assert ids.source.tokens.tolist() == [
    token for line in tokenizer.encode_lines(sources) for token in line
  ]
  assert [tokenizer.decode(ids.target[i].tolist()) for i in range(200)] == targets
  assert {ids.target[i][-1] for i in range(200)} == {tokenizer.eos_id}
  again = tokenizer.encode_lines(targets)
  assert any(ids.target[i].tolist() != again[i] for i in range(200))  # which is why they are kept


@pytest.fixture(scope='module')
def own(table, tmp_path_factory):
  """What the base itself writes."""
  folder = tmp_path_factory.mktemp('own') / 'out'
  config = table.words(**OWN)
  assert run('distill', *config, f'--teacher={table.folder}/base', f'--workdir={folder}') == 0
  return folder


def test_own_text_is_what_greedy_decoding_writes(table, own):
  model, params = folders.load(table.folder / 'base')
  ids = ids_of(own, 'train')
  for i in range(0, 200, 67):
    out = fd.decode(model, params, ids.source[i][None], fd.Greedy(), max_len=6)
    greedy = out.tokens[0, : out.lengths[0]].tolist()
    assert ids.target[i].tolist() == [*greedy, *[1] * (greedy[-1] != 1)]


def test_own_text_of_the_dev_sources_is_written_too(table, own):
  model, params = folders.load(table.folder / 'base')
  ids = ids_of(own, 'dev')
  assert len(ids) == 500
  config = with_settings(
    wmt14.get_config('scale=smoke'), {'data.cache': str(table.cache), 'data.own': str(own)}
  )
  config.data.update({'max_train': 200, 'vocab_size': 300})
  text = to_dataclass(Translation, config).data.open()
  assert text.own_dev().target.tokens.tolist() == ids.target.tokens.tolist()
  lines = (own / 'dev.de').read_text().splitlines()
  # as they were written
  assert text.tokenizer.encode_lines(lines) != [ids.target[i].tolist() for i in range(500)]
  for i in (0, 499):
    out = fd.decode(model, params, ids.source[i][None], fd.Greedy(), max_len=6)
    greedy = out.tokens[0, : out.lengths[0]].tolist()
    assert ids.target[i].tolist() == [*greedy, *[1] * (greedy[-1] != 1)]


@pytest.fixture(scope='module')
def others(tmp_path_factory):
  """Two files with sources: seven that are rewritten, a blank line and one that is too long."""
  folder = tmp_path_factory.mktemp('others')
  with gzip.open(folder / 'some.txt.gz', 'wt') as file:
    file.write('A train is late.\n\nThe dog runs home.\nIt rains.\n' + 'the dog ' * 50 + '\n')
  (folder / 'more.txt').write_text('The sun is out.\nThe dog runs home.\nA man sits.\nIt snows.\n')
  return f'{folder}/some.txt.gz,{folder}/more.txt'


@pytest.mark.slow
def test_sources_from_files_are_rewritten_instead_of_the_training_text(
  table, others, launch, tmp_path
):
  model, params = folders.load(table.folder / 'base')
  settings = table.words(**OWN | {'distill.sources': others})
  ended = launch(
    'distill', *settings, f'--teacher={table.folder}/base', f'--workdir={tmp_path}/out'
  )
  assert (
    ended.code == 0
    and 'holds 7 lines for 8 sources (0 without an output and 1 too long are left out)' in ended.out
  )
  sources, targets = lines_of(tmp_path / 'out')
  rest = ['The sun is out.', 'The dog runs home.', 'A man sits.', 'It snows.']
  assert sources == ['A train is late.', 'The dog runs home.', 'It rains.', *rest]
  assert targets[1] == targets[4]
  ids = ids_of(tmp_path / 'out', 'train')
  for i in range(7):
    out = fd.decode(model, params, ids.source[i][None], fd.Greedy(), max_len=6)
    greedy = out.tokens[0, : out.lengths[0]].tolist()
    assert ids.target[i].tolist() == [*greedy, *[1] * (greedy[-1] != 1)]
  assert len(ids_of(tmp_path / 'out', 'dev')) == 500


@pytest.mark.slow
def test_what_the_teacher_cannot_translate_keeps_its_translation(
  table, words, launch, monkeypatch, tmp_path
):
  from fastdec.data.text import sentencepiece

  decode, calls = sentencepiece.Tokenizer.decode, itertools.count()
  monkeypatch.setattr(
    sentencepiece.Tokenizer,
    'decode',
    lambda self, ids: '' if next(calls) % 3 else decode(self, ids),
  )
  assert launch('distill', *words(**{'data.row_length': 45})).code == 0
  counts = json.loads((tmp_path / 'out' / 'config.json').read_text())['counts']
  assert counts['lines'] == 200 and 0 < counts['long'] < 200 and 0 < counts['empty'] < 200
  _, targets = lines_of(tmp_path / 'out')
  assert len(targets) == 200 and all(targets)


@pytest.mark.parametrize(
  'settings, expected',
  [
    ({'distill.n_best': 3}, ['config.distill.n_best=3', 'beam=2 is the most']),
    ({'distill.max_len': '(1,)'}, ['config.distill.max_len=(1.0,)', 'give (a, b)']),
    (
      {'distill.samples': 2},
      ['config.distill.samples=2 with beam=2', 'give 0 to search, or 1 or more with beam=1'],
    ),
    (
      {'distill.beam': 1, 'distill.samples': 2, 'distill.temperature': 0.0},
      ['temperature=0', 'Greedy()'],
    ),
    ({'distill.sources': 'nowhere.txt'}, ['cannot read nowhere.txt (No such file or directory)']),
    ({'data.vocab_size': 290}, ['base was trained on other text', 'the same config']),
    ({'teacher': '{table}'}, ['holds the runs base, k2']),
    ({'workdir': '{table}/base'}, ['base was made by an earlier version, by hand']),
  ],
  ids=lambda value: ' '.join(map(str, value.items())) if isinstance(value, dict) else '',
)
def test_mistakes_are_a_sentence_before_any_work(table, launch, tmp_path, settings, expected):
  flags = {'teacher': '{table}/base', 'workdir': f'{tmp_path}/out'}
  flags |= {name: settings[name] for name in flags if name in settings}
  config = {name: value for name, value in settings.items() if name not in flags}
  flags = [f'--{name}={value.format(table=table.folder)}' for name, value in flags.items()]
  ended = launch('distill', *table.words(**SETTINGS | config), *flags)
  assert ended.code == 2 and ended.err.count('\n') == 1 and not made(ended.out)
  assert all(word in ended.err for word in expected), ended.err
  assert not (tmp_path / 'out').exists()


def is_stopped(folder):
  return not (folder / 'DONE').exists() and not (folder / 'train.de').exists()


@pytest.fixture
def stopping(launch, monkeypatch):
  """stopping(part, words) runs the command until the budget ends before that part."""

  def stopping(part, *command):
    left = iter(range(part))

    def seconds_left():
      if next(left, None) is None:
        raise stage.OutOfTime

    with monkeypatch.context() as patched:
      patched.setattr(written, 'check_budget', seconds_left)
      return launch('distill', *command)

  return stopping


@pytest.mark.slow
def test_killed_it_continues_and_yields_the_same_bytes(whole, words, launch, tmp_path):
  process = start('distill', *words(), stdout=subprocess.PIPE, stderr=None)
  for line in process.stdout:
    if 'train, part 2' in line:
      process.kill()
      break
  process.wait()
  done = {path: path.stat().st_mtime_ns for path in (tmp_path / 'out' / 'parts').rglob('*.jsonl')}
  assert 2 <= len(done) < PARTS and is_stopped(tmp_path / 'out')
  assert launch('distill', *words()).code == 0
  assert result(tmp_path / 'out') == result(whole)


@pytest.mark.slow
def test_a_budget_stops_between_parts_and_drawn_outputs_are_the_same_by_seed(
  table, others, stopping, launch, tmp_path
):
  def words(name, seed=0):
    drawn = {'distill.sources': others, 'distill.samples': 3, 'distill.seed': seed}
    drawn['distill.shard_size'] = 3
    place = f'--teacher={table.folder}/base', f'--workdir={tmp_path}/{name}'
    return *table.words(**OWN | drawn), *place

  whole, stopped = tmp_path / 'whole', tmp_path / 'stopped'
  assert launch('distill', *words('whole')).code == 0
  shown = stopping(2, *words('stopped')).out
  assert shown.splitlines()[-1] == f'Out of budget: the same command continues in {stopped}'
  assert is_stopped(stopped) and len(list((stopped / 'parts').rglob('*.jsonl'))) == 2
  for name, seed in (('stopped', 0), ('other', 1)):
    assert launch('distill', *words(name, seed)).code == 0
  assert result(stopped) == result(whole) and lines_of(tmp_path / 'other') != lines_of(whole)
  sources, targets = lines_of(whole)
  # most of three differ
  assert len(set(zip(sources, targets, strict=True))) > 2 * len(set(sources))
  assert max(sources.count(source) for source in {*sources} - {'The dog runs home.'}) == 3
  ids = ids_of(whole, 'train')
  tokenizer = fd.load_tokenizer(table.folder / 'base')
  assert [tokenizer.decode(ids.target[i].tolist()) for i in range(len(ids))] == targets


@pytest.mark.slow
def test_several_outputs_of_a_source(whole, words, launch, tmp_path):
  assert launch('distill', *words(**{'distill.n_best': 2})).code == 0
  counts = json.loads((tmp_path / 'out' / 'config.json').read_text())['counts']
  sources, targets = lines_of(tmp_path / 'out')
  assert 200 < counts['lines'] == len(sources) == len(targets) <= 400
  pairs = set(zip(sources, targets, strict=True))
  assert len(pairs) > len(set(sources)) and set(zip(*lines_of(whole), strict=True)) <= pairs


def test_a_finished_workdir_does_not_change_and_serves_no_other_settings(
  table, copy, words, launch
):
  before = {path: path.stat().st_mtime_ns for path in copy.rglob('*') if 'lock' not in path.name}
  ended = launch('distill', *words())
  assert (ended.code, made(ended.out)) == (0, []) and '200 lines for 200 sources' in ended.out
  other = launch('distill', *words(**{'distill.length_penalty': 1.0}))
  assert other.code == 2 and 'was made with other settings (distill): choose' in other.err
  teacher = f'--teacher={table.folder}/k2-finetune', f'--workdir={copy}'
  other = launch('distill', *words()[:-2], *teacher)
  assert other.code == 2 and 'out was made with other settings (model): choose another' in other.err
  assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_full_disk_is_a_sentence_and_the_command_continues_later(
  whole, words, launch, monkeypatch, tmp_path
):
  sync = os.fsync

  def full(file):
    if 'train/0000060-' in os.readlink(f'/proc/self/fd/{file}'):
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    sync(file)

  with monkeypatch.context() as patched:
    patched.setattr(files.os, 'fsync', full)
    ended = launch('distill', *words())
  assert ended.code == 2 and ' (No space left on device): make room' in ended.err
  assert not list((tmp_path / 'out').rglob('*.partial'))
  assert len(list((tmp_path / 'out').rglob('*.jsonl'))) == 3
  assert launch('distill', *words()).code == 0
  assert result(tmp_path / 'out') == result(whole)


def unfinished(task, batches, *_):
  """Looks at the first batch instead of training."""
  assert batches[0]
  return types.SimpleNamespace(is_finished=False)


def test_runs_train_on_it_where_it_is_theirs(table, whole, own, launch, tmp_path, monkeypatch):
  def train(choices, base, **data):
    settings = {'base': f'{table.folder}/{base}' if base else ''}
    settings |= {f'data.{name}': folder for name, folder in data.items()}
    with monkeypatch.context() as patched:  # the text is read, and no step made
      patched.setattr(training, 'train', unfinished)
      return launch('train', *table.words(choices, **settings), f'--workdir={tmp_path}/run')

  tuned = 'k=2,regime=finetune'
  for choices, base, text, expected in (
    ('k=2', 'base', whole, 'was written by a search with beam=2, not greedily'),
    (tuned, 'k2-finetune', own, 'was written by another model than'),
    ('k=2', 'base', table.folder / 'base', 'is not a finished text of experiments.distill'),
    ('', '', own, 'is for heads: leave out --config.data.own='),
  ):
    ended = train(choices, base, own=text)
    assert ended.code == 2 and expected in ended.err and not (tmp_path / 'run').exists(), ended.err
  for choices, base, data in (
    ('k=2', 'base', {'own': own}),
    (tuned, 'k2-regular', {'own': own}),  # its trunk is the base's
    ('regime=distil', 'base', {'distilled': whole}),
  ):
    assert 'Out of budget' in train(choices, base, **data).out
    shutil.rmtree(tmp_path / 'run')
