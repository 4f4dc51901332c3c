"""All four regimes at toy size, with a teacher whose translations are quickly made: one graph
behind every launcher."""

import csv
import dataclasses
import json
import shutil
import subprocess
import types

import pytest

from configs import wmt14
from experiments.lab import cells, run, text
from experiments.papers.stern2018 import text_page
from experiments.papers.stern2018.cells import BlockwiseCell
from experiments.papers.stern2018.text_settings import TranslationExperiment
from fastdec import folders
from fastdec.data.text.packing import packed_batches
from tests.experiments.conftest import with_settings
from tests.experiments.test_mistakes import start

REGIMES = ('regular', 'distil', 'finetune', 'both')
FOUR = {'table.regimes': REGIMES, 'table.ks': (2, 3), 'table.rules': ('exact',)}
RUNS = {
  'base',
  'teacher',
  'base-distil',
  'k3-regular',
  'k3-distil',
  'k2-finetune',
  'k3-finetune',
  'k2-both',
  'k3-both',
}


def distill(experiment, teacher, workdir, budget):
  """Says of every sentence that it translates itself."""

  folders.load(teacher)
  workdir.mkdir()
  sources = [source for source, _ in experiment.open().pairs('train')]
  for language in ('en', 'de'):
    (workdir / f'train.{language}').write_text(''.join(f'{source}\n' for source in sources))
  settings = dataclasses.asdict(experiment.distill)
  (workdir / 'config.json').write_text(json.dumps({'distill': settings}))
  return True


@pytest.fixture(autouse=True)
def teacher(monkeypatch):
  monkeypatch.setattr(text_page, 'distill', distill)


@pytest.fixture(scope='module')
def whole(table, tmp_path_factory):
  """A folder for Table 1 with all regimes, begun with the runs of `table`, which are the same."""
  folder = tmp_path_factory.mktemp('page') / 'run'
  shutil.copytree(table.folder / 'base', folder / 'base')
  return folder


@pytest.fixture
def filled(table, whole, launch):
  """The same, finished."""
  if not (whole / 'table1.md').exists():
    ended = launch('table1', *table.words(**FOUR), f'--workdir={whole}')
    assert ended.code == 0, ended
  return whole


def graph_of(tmp_path, asked, **changed):
  """{node: what it needs} of a page that nothing has been done for."""
  config = wmt14.get_config('scale=smoke')
  for name, value in (FOUR | changed).items():
    part, _, leaf = name.rpartition('.')
    config[part][leaf] = value
  experiment = TranslationExperiment.of(config)
  nodes = text_page.TranslationPage(experiment, tmp_path, None, {}, asked(experiment)).nodes()
  return {node.name: ' '.join(node.needs) for node in nodes}


def test_the_graph_of_table_1(tmp_path):
  assert graph_of(tmp_path, text_page.table1_cells) == {
    'base': '',
    'cells-k1-regular-dev': 'base',
    'k3-regular': 'base',  # serves k = 2 too
    'cells-k2-regular-dev': 'k3-regular',
    'cells-k3-regular-dev': 'k3-regular',
    'teacher': '',
    'distilled': 'teacher',
    'base-distil': 'base distilled',
    'cells-k1-distil-dev': 'base-distil',
    'k3-distil': 'base-distil distilled',
    'cells-k2-distil-dev': 'k3-distil',
    'cells-k3-distil-dev': 'k3-distil',
    'k2-finetune': 'k3-regular',
    'cells-k2-finetune-dev': 'k2-finetune',
    'k3-finetune': 'k3-regular',
    'cells-k3-finetune-dev': 'k3-finetune',
    'k2-both': 'k3-distil distilled',
    'cells-k2-both-dev': 'k2-both',
    'k3-both': 'k3-distil distilled',
    'cells-k3-both-dev': 'k3-both',
  }


@pytest.mark.parametrize(
  'setting', [{'heads.layout': 'paper'}, {'heads.first': 'transformed'}], ids=str
)
def test_heads_that_know_of_each_other_have_a_run_for_each_k(tmp_path, setting):
  found = graph_of(tmp_path, text_page.table1_cells, **setting)
  assert found['cells-k2-regular-dev'] == 'k2-regular' and found['k2-finetune'] == 'k2-regular'
  assert found['k2-both'] == 'k2-distil distilled' and found['k3-both'] == 'k3-distil distilled'


def test_one_run_for_the_largest_k_serves_all_where_that_is_asked_for(tmp_path):
  found = graph_of(tmp_path, text_page.table1_cells, **{'table.one_run': True, 'heads.markov': 4})
  assert {name for name in found if name.startswith('k')} == {
    'k3-regular',
    'k3-distil',
    'k3-finetune',
    'k3-both',
  }
  assert found['cells-k2-both-dev'] == found['cells-k3-both-dev'] == 'k3-both'
  assert found['k3-both'] == 'k3-distil distilled'


def test_the_graph_of_table_4_and_of_a_table_without_distillation(tmp_path):
  found = graph_of(tmp_path, text_page.table4_cells)
  cells_found = [name for name in found if name.startswith('cells')]
  assert cells_found == ['cells-k1-distil-test', 'cells-k2-both-test', 'cells-k3-both-test']
  assert [name for name in found if name not in cells_found] == [
    'base', 'teacher', 'distilled', 'base-distil', 'k3-distil', 'k2-both', 'k3-both']  # fmt: skip
  found = graph_of(tmp_path, text_page.table1_cells, **{'table.regimes': ('finetune',)})
  runs = [name for name in found if not name.startswith('cells')]
  assert runs == ['base', 'k3-regular', 'k2-finetune', 'k3-finetune']
  assert 'cells-k3-regular-dev' not in found and 'cells-k1-regular-dev' in found


def test_distilled_text_of_ones_own_needs_no_teacher(tmp_path):
  found = graph_of(tmp_path, text_page.table1_cells, **{'data.distilled': 'elsewhere'})
  assert not {'teacher', 'distilled'} & set(found) and found['base-distil'] == 'base'


def test_the_teacher_is_the_base_with_another_seed_and_no_stage_repeats_the_order_of_another(
  tmp_path,
):
  config = wmt14.get_config('scale=smoke')
  config.seed = 2**32 - 1
  experiment = TranslationExperiment.of(config)
  page = text_page.TranslationPage(
    experiment, tmp_path, None, {}, text_page.table1_cells(experiment)
  )
  teacher, base, distilled = page.teacher(), page.run(1, 'regular'), page.run(1, 'distil')
  seed = teacher.experiment.seed
  assert teacher.experiment == dataclasses.replace(base.experiment, seed=seed) and seed not in (
    0,
    base.experiment.seed,
  )
  stages = [
    base,
    teacher,
    distilled,
    page.run(2, 'regular'),
    page.run(2, 'finetune'),
    page.run(4, 'finetune'),
  ]
  assert base.data_seed == base.experiment.seed and len({run.data_seed for run in stages}) == len(
    stages
  )
  assert distilled.base == base.workdir and distilled.experiment.data.distilled == str(
    tmp_path / 'distilled'
  )


def test_what_the_check_has_packed_is_not_packed_again_by_the_training(tmp_path, monkeypatch):
  settings = {'data.cache': str(tmp_path / 'cache'), 'data.vocab_size': 300, 'data.max_train': 50}
  experiment = TranslationExperiment.of(with_settings(wmt14.get_config('scale=smoke'), settings))
  asked = [text_page.ModelCells(1, 'regular', (), 'dev')]
  page = text_page.TranslationPage(experiment, tmp_path / 'run', None, {}, asked)
  packed, trained_on = [], []

  def pack(tokens, *how):
    packed.append(len(tokens))
    return packed_batches(tokens, *how)

  def train(task, batches, *_):
    trained_on.append(batches)
    return types.SimpleNamespace(is_finished=False)

  monkeypatch.setattr(text, 'packed_batches', pack)
  monkeypatch.setattr(run, 'train', train)
  page.check()
  assert len(packed) == 2  # of the training and the dev set
  (node,) = page.nodes()
  node.work(None)
  assert len(packed) == 2 and len(trained_on) == 1 and trained_on[0][0]['source'].any()


def measured(folder):
  return {
    (*cell.key, cell.split): cell for cell in cells.read(folder / 'results.jsonl', BlockwiseCell)
  }


@pytest.mark.slow
def test_all_regimes_are_trained_and_measured(filled):
  wanted = {(k, regime, 'exact', 'dev') for k in (2, 3) for regime in REGIMES}
  wanted |= {(1, 'regular', 'exact', 'dev'), (1, 'distil', 'exact', 'dev')}
  assert measured(filled).keys() >= wanted
  assert {path.parent.name for path in filled.glob('*/model')} == RUNS
  rows = [
    line
    for line in (filled / 'table1.md').read_text().splitlines()
    if line.startswith(('| k', '| 1 ', '| 2 '))
  ]
  assert rows[0] == '| k | Regular | Distillation | Fine tuning | Both |'
  # ours and the paper's k = 1
  assert rows[1].count('/ 1.00') == 4 and rows[1].endswith('| – | – |')


@pytest.mark.slow
def test_frozen_heads_for_the_largest_k_serve_all(filled):
  found = measured(filled)
  for regime in ('regular', 'distil'):
    two, three = (found[k, regime, 'exact', 'dev'] for k in (2, 3))
    assert two.models == three.models == folders.content(filled / f'k3-{regime}')
    assert len(two.head_accuracy) == 2 and two.head_accuracy == three.head_accuracy[:2]
    assert two.same_as_greedy == three.same_as_greedy == 1.0 and two.bleu == three.bleu
  assert folders.load_heads(filled / 'k2-both')[0].k == 2


@pytest.mark.slow
def test_records_name_the_base_and_the_text_by_content(filled):
  record = {name: json.loads((filled / name / 'config.json').read_text()) for name in RUNS}
  assert set(record['base']) == {'seed', 'data', 'model', 'training'}
  assert record['base']['seed'] == 0 != record['teacher']['seed']
  assert len({record[name]['data']['content'] for name in RUNS}) == 1
  assert not list(filled.glob('*/checkpoints*'))  # nobody needs the optimizer's state any more
  content = {name: folders.content(filled / name) for name in RUNS}
  assert record['base-distil']['base'] == record['k3-regular']['base'] == content['base']
  assert record['k3-distil']['base'] == content['base-distil'] != content['base']
  assert record['k2-both']['base'] == record['k3-both']['base'] == content['k3-distil']
  texts = {record[name]['data']['distilled'] for name in ('base-distil', 'k3-distil', 'k2-both')}
  assert len(texts) == 1 and record['k2-finetune']['data']['distilled'] == '' not in texts


@pytest.mark.slow
def test_table_4_and_figure_4_share_the_runs_and_measure_the_test_set(table, filled, launch):
  models = {path: path.stat().st_mtime_ns for path in filled.glob('*/model')}
  command = *table.words(**FOUR), f'--workdir={filled}'
  assert launch('figure4', *command).code == 0
  points = list(csv.DictReader((filled / 'figure4.csv').open()))
  assert [(point['k'], point['regime'], point['split']) for point in points] == [
    ('2', 'both', 'test'), ('3', 'both', 'test')]  # fmt: skip
  assert all(float(point['speedup']) > 0 for point in points)
  ended = launch('table4', *command)
  assert ended.code == 0 and 'k = 2, both' not in ended.out  # measured for the figure
  drawn = (filled / 'table4.md').read_text()
  assert all(
    f'| Ours, {row} | ' in drawn
    for row in ('beam 4', 'greedy, k = 1', 'greedy, k = 2', 'greedy, k = 3')
  )
  assert 'Lee 2018' in drawn and 'split test' in drawn and 'split dev' not in drawn
  assert {path: path.stat().st_mtime_ns for path in filled.glob('*/model')} == models
  assert (filled / 'figure4.png').read_bytes().startswith(b'\x89PNG')
  assert 'test' not in (filled / 'table1.md').read_text().split('split ')[1][:5]


@pytest.mark.slow
def test_the_worked_example_accounts_for_every_token(table, filled, launch):
  command = f'--workdir={filled}', 'The meeting is on Monday.'
  ended = launch('example', *table.words('k=2,regime=finetune', **FOUR), *command)
  assert ended.code == 0
  source, first, *calls = (filled / 'example.txt').read_text().splitlines()
  assert source.endswith('The meeting is on Monday.') and first.startswith('prompt')
  assert all(int(line.split('(')[1].split(')')[0]) in (1, 2) for line in calls) and len(calls) >= 1
  assert (filled / 'example.png').read_bytes().startswith(b'\x89PNG')
  # k = 3, both; the longest blocks
  assert launch('example', *table.words(**FOUR), command[0]).code == 0
  for words, mistake in [(['k=4'], 'no cell k=4, regime=regular'), ([], 'there are 2 sentences')]:
    ended = launch('example', *table.words(*words, **FOUR), *command, *['another'] * (not words))
    assert ended.code == 2 and mistake in ended.err


@pytest.mark.slow
def test_distilled_text_of_ones_own_is_read_where_it_is(table, filled, launch, tmp_path):
  folder = shutil.copytree(
    filled, tmp_path / 'run', ignore=shutil.ignore_patterns('teacher', 'distilled')
  )
  command = table.words(**FOUR, **{'data.distilled': filled / 'distilled'})
  ended = launch('table1', *command, f'--workdir={folder}')
  assert ended.code == 0 and 'training' not in ended.out and 'measuring' not in ended.out
  assert not (folder / 'teacher').exists()


# --- what goes wrong


@pytest.mark.slow
def test_a_failed_node_is_shown_with_its_dependants_and_the_rest_stands(
  table, filled, launch, tmp_path, monkeypatch
):
  folder = shutil.copytree(filled, tmp_path / 'run')
  for name in ('distilled', 'base-distil', 'k3-distil', 'k2-both', 'k3-both'):
    shutil.rmtree(folder / name)
  command = 'table1', *table.words(**FOUR), f'--workdir={folder}'

  def full(*_):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(text_page, 'distill', full)
  ended = launch(*command)
  assert ended.code == 1 and 'Traceback' not in ended.err + ended.out
  assert 'distilled failed: OSError: [Errno 28] No space left on device' in ended.out
  assert 'OSError' in (folder / 'failures' / 'distilled.log').read_text()
  lines = {line[:4]: line for line in reversed((folder / 'table1.md').read_text().splitlines())}
  reason = 'failed: distilled: OSError: [Errno 28] No space left on device'
  assert (
    lines['| 1 '].count(reason) == 1
    and lines['| 2 '].count(reason) == lines['| 3 '].count(reason) == 2
  )
  found = measured(filled)
  assert f'{found[2, "finetune", "exact", "dev"].mean_block_size:.2f}' in lines['| 2 ']
  before = (folder / 'results.jsonl').read_text()
  # said once
  assert launch(*command).code == 1 and (folder / 'results.jsonl').read_text() == before


def test_a_base_that_was_trained_again_makes_what_came_from_it_stale(table, launch, tmp_path):
  folder = shutil.copytree(table.folder, tmp_path / 'run')
  command = 'table1', *table.words(), f'--workdir={folder}'
  weights = folder / 'base' / 'model' / 'model.safetensors'
  weights.write_bytes(weights.read_bytes()[:-4] + b'\x00\x00\x00\x3f')
  ended = launch(*command)
  assert ended.code == 1
  reason = f'{folder}/k2-regular was trained on another base than '
  assert reason in ended.out
  drawn = (folder / 'table1.md').read_text()
  assert drawn.count('failed: k2-regular: ') >= 2 and reason in drawn
  assert len(measured(folder)) == len(measured(table.folder))
  base, every = (
    folders.content(folder / 'base'),
    cells.read(folder / 'results.jsonl', BlockwiseCell),
  )
  fresh = [cell for cell in every if cell.models == base]
  assert [cell.key for cell in fresh] == [(1, 'regular', 'exact')]


def test_a_record_from_before_a_setting_existed_is_the_same_where_it_has_its_default(
  table, launch, tmp_path
):
  folder = shutil.copytree(table.folder, tmp_path / 'run')
  record = json.loads((folder / 'base' / 'config.json').read_text())
  assert record['data'].pop('distilled') == ''
  (folder / 'base' / 'config.json').write_text(json.dumps(record))
  ended = launch('table1', *table.words(), f'--workdir={folder}')
  assert ended.code == 0 and 'training' not in ended.out


@pytest.mark.slow
def test_distilled_text_of_another_config_is_not_taken(table, filled, launch):
  before = (filled / 'results.jsonl').read_text()
  ended = launch('table1', *table.words(**FOUR, **{'distill.beam': 2}), f'--workdir={filled}')
  assert (
    ended.code == 2
    and ('distilled was made by another config: distill.beam is 4 there and 2 here') in ended.err
  )
  assert (filled / 'results.jsonl').read_text() == before


@pytest.mark.slow
def test_two_processes_share_a_table_and_do_nothing_twice(table, tmp_path):
  command = [*table.words(**FOUR), f'--workdir={tmp_path}/run']
  processes = [start('table1', *command, stdout=subprocess.PIPE) for _ in range(2)]
  said = [process.communicate(timeout=600) for process in processes]
  assert [process.returncode for process in processes] == [0, 0], said
  keys = [cell.key for cell in cells.read(tmp_path / 'run' / 'results.jsonl', BlockwiseCell)]
  assert len(keys) == len(set(keys)) == 10
  titles = [
    line
    for out, _ in said
    for line in out.splitlines()
    if line.startswith(('training', 'measuring'))
  ]
  assert len(titles) == len(set(titles)) == len(RUNS) + len(keys)
  assert (
    json.loads((tmp_path / 'run' / 'distilled' / 'config.json').read_text())['counts']['sources']
    == 200
  )


def test_own_text_is_for_the_heads_on_the_base_alone(tmp_path):
  """The distilled base writes other text, and base models learn from people or a teacher."""
  experiment = TranslationExperiment.of(
    with_settings(wmt14.get_config('scale=smoke'), {'data.own': 'out/own'})
  )
  page = text_page.TranslationPage(
    experiment, tmp_path, None, {}, text_page.table1_cells(experiment)
  )
  own = {run.workdir.name for run in page.runs() if run.experiment.own}
  assert own == {'k4-regular', 'k2-finetune', 'k4-finetune'}
