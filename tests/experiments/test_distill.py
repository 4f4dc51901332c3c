"""Distillation: what is written, that nothing can cut it in half, and that no shard is made
twice."""

import errno
import gzip
import itertools
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

import fastdec as fd
from configs import wmt14
from experiments.lab.shards import Shards
from experiments.papers.stern2018.text_settings import TranslationExperiment
from fastdec import files, folders
from fastdec.data.text.tokens import TokenPairs
from tests.experiments.conftest import ROOT, run, with_settings

SHARDS = 10
SETTINGS = {
  'distill.shard_size': 20,
  'distill.rows': 4,
  'distill.beam': 2,
  'distill.max_len': '(0, 6)',
}


@pytest.fixture
def words(table, tmp_path):
  """The words of a command on the workdir `tmp_path/out`, with settings changed."""
  words = lambda **changed: [
    *table.words(**SETTINGS | changed), f'--teacher={table.folder}/base', f'--workdir={tmp_path}/out'
  ]  # fmt: skip
  return words


@pytest.fixture(scope='module')
def whole(table, tmp_path_factory):
  """A distillation that nothing has disturbed."""
  folder = tmp_path_factory.mktemp('whole') / 'out'
  process = start(*table.words(**SETTINGS), f'--teacher={table.folder}/base', f'--workdir={folder}')
  out, _ = process.communicate(timeout=120)
  assert process.returncode == 0 and made(out) == list(range(1, SHARDS + 1))
  return folder


@pytest.fixture
def copy(whole, tmp_path):
  """A finished workdir to be changed."""
  return shutil.copytree(whole, tmp_path / 'out')


def start(*words):
  """A distillation as its own process."""
  command = [sys.executable, '-m', 'experiments.distill', *words]
  compiled = {
    'JAX_COMPILATION_CACHE_DIR': str(ROOT / '.cache' / 'jax'),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
  }  # shared with this process
  return subprocess.Popen(
    command, cwd=ROOT, env=os.environ | compiled, stdout=subprocess.PIPE, text=True
  )


def made(out):
  """The shards that an output tells of."""
  return [int(number) for number in re.findall(r'shard (\d+)/10', out)]


def result(folder):
  """Every file but the locks."""
  files = (path for path in folder.rglob('*') if path.is_file() and 'lock' not in path.name)
  return {path.relative_to(folder): path.read_bytes() for path in files}


def lines_of(folder):
  """Sources and targets."""
  return [(folder / f'train.{language}').read_text().split('\n')[:-1] for language in ('en', 'de')]


def test_every_source_has_a_line_and_a_translation_of_it(whole):
  record = json.loads((whole / 'config.json').read_text())
  sources, targets = lines_of(whole)
  assert record['counts'] == {'sources': 200, 'lines': 200, 'empty': 0, 'long': 0}
  assert len(sources) == len(targets) == 200 and len(set(sources)) > 150 and all(targets)
  assert record['distill']['beam'] == 2


def test_ids_are_kept_as_the_teacher_wrote_them(table, whole):
  tokenizer, ids = (
    folders.load_tokenizer(table.folder / 'base'),
    TokenPairs.load(whole / 'train.npy'),
  )
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
  config = table.words(**SETTINGS | {'distill.beam': 1})
  assert run('distill', *config, f'--teacher={table.folder}/base', f'--workdir={folder}') == 0
  return folder


def test_own_text_is_what_greedy_decoding_writes(table, own):
  model, params = folders.load(table.folder / 'base')
  ids = TokenPairs.load(own / 'train.npy')
  for i in range(0, 200, 67):
    out = fd.decode(model, params, ids.source[i][None], fd.Greedy(), max_len=6)
    greedy = out.tokens[0, : out.lengths[0]].tolist()
    assert ids.target[i].tolist() == [*greedy, *[1] * (greedy[-1] != 1)]


def test_own_text_has_that_of_the_dev_sources_beside_it(table, own):
  model, params = folders.load(table.folder / 'base')
  record, ids = json.loads((own / 'dev.json').read_text()), TokenPairs.load(own / 'dev.npy')
  assert (
    record['counts'] == {'sources': 500, 'lines': 500, 'empty': 0, 'long': 0} and len(ids) == 500
  )
  config = with_settings(
    wmt14.get_config('scale=smoke'), {'data.cache': str(table.cache), 'data.own': str(own)}
  )
  config.data.update({'max_train': 200, 'vocab_size': 300})
  text = TranslationExperiment.of(config).open()
  assert text.own_dev().target.tokens.tolist() == ids.target.tokens.tolist()
  lines = (own / 'dev.de').read_text().splitlines()
  # as they were written
  assert text.tokenizer.encode_lines(lines) != [ids.target[i].tolist() for i in range(500)]
  for i in (0, 499):
    out = fd.decode(model, params, ids.source[i][None], fd.Greedy(), max_len=6)
    greedy = out.tokens[0, : out.lengths[0]].tolist()
    assert ids.target[i].tolist() == [*greedy, *[1] * (greedy[-1] != 1)]


def test_own_text_from_before_there_was_that_of_the_dev_set_gets_it(table, own, launch, tmp_path):
  folder = shutil.copytree(own, tmp_path / 'out')
  for path in folder.glob('dev.*'):
    path.unlink()
  shutil.rmtree(folder / 'parts')
  command = (
    'distill',
    *table.words(**SETTINGS | {'distill.beam': 1}),
    f'--teacher={table.folder}/base',
  )
  before = (folder / 'train.npy').stat().st_mtime_ns
  ended = launch(*command, f'--workdir={folder}')
  assert ended.code == 0 and made(ended.out) == []
  assert (folder / 'train.npy').stat().st_mtime_ns == before
  for path in own.glob('dev.*[a-z]'):
    assert (folder / path.name).read_bytes() == path.read_bytes(), path


@pytest.fixture(scope='module')
def others(tmp_path_factory):
  """Two files with sources: seven that are rewritten, a blank line and one that is too long."""
  folder = tmp_path_factory.mktemp('others')
  with gzip.open(folder / 'some.txt.gz', 'wt') as file:
    file.write('A train is late.\n\nThe dog runs home.\nIt rains.\n' + 'the dog ' * 50 + '\n')
  (folder / 'more.txt').write_text('The sun is out.\nThe dog runs home.\nA man sits.\nIt snows.\n')
  return f'{folder}/some.txt.gz,{folder}/more.txt'


OWN = SETTINGS | {'distill.beam': 1, 'distill.shard_size': 3, 'distill.rows': 32}


def test_sources_from_files_are_rewritten_in_place_of_the_training_text(
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
  ids = TokenPairs.load(tmp_path / 'out' / 'train.npy')
  for i in range(7):
    out = fd.decode(model, params, ids.source[i][None], fd.Greedy(), max_len=6)
    greedy = out.tokens[0, : out.lengths[0]].tolist()
    assert ids.target[i].tolist() == [*greedy, *[1] * (greedy[-1] != 1)]
  assert len(TokenPairs.load(tmp_path / 'out' / 'dev.npy')) == 500
  ended = launch(
    'distill', *table.words(**OWN), f'--teacher={table.folder}/base', f'--workdir={tmp_path}/out'
  )
  assert ended.code == 2 and 'distill.sources is "files" there and nothing here' in ended.err


def test_drawn_outputs_are_the_same_by_seed_wherever_they_were_interrupted(
  table, others, launch, tmp_path
):
  def distil(name, *flags, seed=0):
    settings = table.words(
      **OWN | {'distill.sources': others, 'distill.samples': 3, 'distill.seed': seed}
    )
    folder = tmp_path / name
    assert (
      launch(
        'distill', *settings, *flags, f'--teacher={table.folder}/base', f'--workdir={folder}'
      ).code
      == 0
    )
    return folder

  whole, stopped = distil('whole'), distil('stopped', '--budget=0')
  assert (
    len(list((stopped / 'parts').glob('*.jsonl'))) == 1 and not (stopped / 'config.json').exists()
  )
  distil('stopped')
  assert result(stopped) == result(whole)
  assert lines_of(distil('other', seed=1)) != lines_of(whole)
  sources, targets = lines_of(whole)
  # most of three differ
  assert len(set(zip(sources, targets, strict=True))) > 2 * len(set(sources))
  assert max(sources.count(source) for source in {*sources} - {'The dog runs home.'}) == 3
  ids = TokenPairs.load(whole / 'train.npy')
  tokenizer = folders.load_tokenizer(table.folder / 'base')
  assert [tokenizer.decode(ids.target[i].tolist()) for i in range(len(ids))] == targets


def test_heads_train_on_own_text_of_this_base_written_greedily(table, whole, own, launch, tmp_path):
  def train(text, base, choices='k=2'):
    settings = {'base': f'{table.folder}/{base}' if base else '', 'data.own': text}
    return launch(
      'train', *table.words(choices, **settings), f'--workdir={tmp_path}/run', '--budget=0'
    )

  for text, base, choices, expected in (
    (whole, 'base', 'k=2', 'was written by a search with beam=2, not greedily'),
    (own, 'k2-finetune', 'k=2,regime=finetune', 'was written by another model than'),
    (table.folder / 'base', 'base', 'k=2', 'is no finished text of experiments.distill'),
    (own, '', '', 'is for heads: leave out --config.data.own='),
  ):
    ended = train(text, base, choices)
    assert ended.code == 2 and expected in ended.err and not (tmp_path / 'run').exists(), ended.err
  assert 'Out of budget' in train(own, 'base').out
  data = json.loads((tmp_path / 'run' / 'config.json').read_text())['data']
  assert data['own'] == "the base's" and data['distilled']
  assert 'Out of budget' in train(own, 'base').out  # it goes on
  ended = train('', 'base')
  assert ended.code == 2 and 'made by another config' in ended.err and 'data.own' in ended.err
  shutil.rmtree(tmp_path / 'run')
  # the trunk is the base's
  assert 'Out of budget' in train(own, 'k2-regular', 'k=2,regime=finetune').out


def test_a_damaged_record_is_a_sentence(copy, words, launch):
  (copy / 'config.json').write_text('{"teacher')
  ended = launch('distill', *words())
  assert (
    ended.code == 2 and 'config.json cannot be read' in ended.err and ended.err.count('\n') == 1
  )


def test_killed_it_goes_on_and_yields_the_same_bytes(whole, words, launch, tmp_path):
  process = start(*words())
  for line in process.stdout:
    if 'shard 2/' in line:
      process.kill()
      break
  rest = process.stdout.read()
  process.wait()
  done = {path: path.stat().st_mtime_ns for path in (tmp_path / 'out' / 'parts').glob('*.jsonl')}
  assert 2 <= len(done) < SHARDS and not (tmp_path / 'out' / 'train.de').exists(), rest
  ended = launch('distill', *words())
  assert ended.code == 0 and len(made(ended.out)) == SHARDS - len(done)
  assert result(tmp_path / 'out') == result(whole)
  assert all(path.stat().st_mtime_ns == time for path, time in done.items())


def test_two_processes_share_the_work_and_do_nothing_twice(whole, words, tmp_path):
  processes = [start(*words()) for _ in range(2)]
  outs = [process.communicate(timeout=120)[0] for process in processes]
  assert [process.returncode for process in processes] == [0, 0]
  assert sorted(made(outs[0]) + made(outs[1])) == list(range(1, SHARDS + 1))
  assert result(tmp_path / 'out') == result(whole)


def test_the_trainer_takes_it_like_any_other_text(whole, table, launch, tmp_path):
  settings = {'base': table.folder / 'base', 'data.distilled': whole}
  command = (
    'train',
    *table.words('regime=distil', **settings),
    f'--workdir={tmp_path}/run',
    '--budget=0',
  )
  ended = launch(*command)
  assert ended.code == 0 and 'Out of budget' in ended.out


def test_a_finished_workdir_is_left_as_it_is(copy, words, launch):
  before = {path: path.stat().st_mtime_ns for path in copy.rglob('*.json*')}
  ended = launch('distill', *words())
  assert (ended.code, made(ended.out)) == (0, []) and '200 lines for 200 sources' in ended.out
  assert {path: path.stat().st_mtime_ns for path in copy.rglob('*.json*')} == before


def test_a_shard_cut_short_is_made_again_and_said_so(copy, whole, words, launch):
  for name in ('train.en', 'train.de', 'config.json'):
    (copy / name).unlink()
  part = copy / 'parts' / '00003.jsonl'
  os.truncate(part, part.stat().st_size // 2)
  ended = launch('distill', *words())
  assert 'shard 4 is cut short or damaged: it is made again' in ended.out and made(ended.out) == [4]
  assert result(copy) == result(whole)


def test_a_budget_stops_between_shards(words, launch, tmp_path):
  ended = launch('distill', *words(), '--budget=0')
  assert (
    ended.code == 0
    and made(ended.out) == [1]
    and 'Out of budget: the same command goes on' in ended.out
  )
  assert not (tmp_path / 'out' / 'train.de').exists()


def test_several_outputs_of_a_source(whole, words, launch, tmp_path):
  assert launch('distill', *words(**{'distill.n_best': 2})).code == 0
  counts = json.loads((tmp_path / 'out' / 'config.json').read_text())['counts']
  sources, targets = lines_of(tmp_path / 'out')
  assert 200 < counts['lines'] == len(sources) == len(targets) <= 400
  assert len(set(zip(sources, targets, strict=True))) > len(set(sources))
  outputs = [
    record
    for shard in range(SHARDS)
    for record in Shards(tmp_path / 'out' / 'parts', 20, 200).read(shard)
  ]
  assert [record[0][0] for record in outputs] == lines_of(whole)[1]  # the best of them comes first


def test_what_the_teacher_cannot_translate_keeps_its_translation(
  table, words, launch, monkeypatch, tmp_path
):
  from fastdec.tokenizers import sentencepiece

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
    ({'distill.beam': 0}, ['config.distill.beam=0', 'give 1 or more']),
    ({'distill.n_best': 3}, ['config.distill.n_best=3', 'beam=2 is the most']),
    ({'distill.max_len': '(1,)'}, ['config.distill.max_len=(1.0,)', 'give (a, b)']),
    ({'distill.rows': 0}, ['config.distill.rows=0']),
    ({'distill.min_len': 0}, ['config.distill.min_len=0', 'give 1 or more']),
    (
      {'distill.samples': 2},
      ['config.distill.samples=2 with beam=2', 'give 0 to search, or 1 or more with beam=1'],
    ),
    ({'distill.beam': 1, 'distill.samples': -1}, ['config.distill.samples=-1']),
    (
      {'distill.beam': 1, 'distill.samples': 2, 'distill.temperature': 0.0},
      ['temperature=0', 'Greedy()'],
    ),
    ({'distill.seed': -1}, ['config.distill.seed=-1', 'whole number']),
    ({'distill.sources': 'nowhere.txt'}, ['cannot read nowhere.txt (No such file or directory)']),
    ({'distill.sources': f'{__file__},/dev/null'}, ['the text file /dev/null is empty']),
    ({'data.vocab_size': 290}, ['base has another vocabulary', 'trained on the same text']),
    ({'teacher': 'nowhere'}, ['nowhere is not a folder']),
    ({'teacher': '{table}'}, ['holds the runs base, k2']),
    ({'workdir': '{table}/base'}, ['base was made by another config']),
    ({'workdir': f'{__file__}/below'}, ['is a file']),
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


def test_a_workdir_of_another_config_or_teacher(table, copy, words, launch):
  before = result(copy)
  for state in ('finished', 'begun'):
    ended = launch('distill', *words(**{'distill.length_penalty': 1.0}))
    assert ended.code == 2 and 'distill.length_penalty is 0.6 there and 1.0 here' in ended.err, (
      state
    )
    ended = launch(
      'distill', *words()[:-2], f'--teacher={table.folder}/k2-finetune', f'--workdir={copy}'
    )
    assert ended.code == 2 and 'teacher is "' in ended.err, state
    assert result(copy) == before
    (copy / 'config.json').unlink(missing_ok=True)
    before = result(copy)


def test_a_full_disk_is_a_sentence_and_the_command_goes_on_later(
  whole, words, launch, monkeypatch, tmp_path
):
  sync = os.fsync

  def full(file):
    if '00003.jsonl' in os.readlink(f'/proc/self/fd/{file}'):
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    sync(file)

  with monkeypatch.context() as patched:
    patched.setattr(files.os, 'fsync', full)
    ended = launch('distill', *words())
  assert ended.code == 2 and '00003.jsonl (No space left on device): make room' in ended.err
  assert (
    not list((tmp_path / 'out').rglob('*.partial'))
    and len(list((tmp_path / 'out').rglob('*.jsonl'))) == 3
  )
  assert launch('distill', *words()).code == 0
  assert result(tmp_path / 'out') == result(whole)
