"""Stern et al. 2018 on translation: its stages, its rows, what reruns and budgets do, and all four
regimes at toy size."""

import dataclasses
import itertools
import json
import re
import shutil
import subprocess

import matplotlib.image
import numpy as np
import pytest

import fastdec as fd
from configs import wmt14
from experiments.lab import own, rows
from experiments.lab.config import to_dataclass
from experiments.lab.workdir import Workdir
from experiments.stern2018 import runs, tables, text
from experiments.stern2018.text import Sentences, Translation, tree_nodes
from fastdec import folders
from fastdec.cli import main
from fastdec.data.text.tokens import TokenPairs
from fastdec.struct import Bound
from tests.experiments.conftest import ROOT, SETTINGS, with_settings
from tests.experiments.stern2018.test_tables import a_row
from tests.experiments.test_mistakes import start

REGIMES = ('regular', 'distil', 'finetune', 'both')
FOUR = {'table.regimes': REGIMES, 'table.ks': (2, 3), 'table.rules': ('exact',)}
RULES = ('exact', 'top-2')
KEYS = {
  (1, 'regular', 'exact'),
  *((2, regime, rule) for regime in ('regular', 'finetune') for rule in RULES),
}


def settings(**changed):
  return to_dataclass(Translation, with_settings(wmt14.get_config('scale=smoke'), changed))


def read(workdir):
  return rows.read(workdir / 'results.jsonl')


def key_of(row):
  return tuple(row[name] for name in tables.KEY)


# --- what is trained, and in which order


TABLE1 = [(1, 'regular'), (1, 'distil'), *itertools.product((2, 3), REGIMES)]
TABLE4 = [(1, 'distil'), (2, 'both'), (3, 'both')]


@pytest.fixture
def stages(monkeypatch):
  """The inputs of the requested stages by their names; no stage is made."""
  stages = {}

  def record(work, name, make, **inputs):
    stages[name] = inputs
    return work.root / name

  monkeypatch.setattr(Workdir, 'stage', record)
  return stages


@pytest.fixture
def todo(stages, tmp_path):
  """todo(models) are the names of the stages that models need."""

  def todo(models=TABLE1, **changed):
    stages.clear()
    c = settings(**FOUR, **changed)
    for k, regime in models:
      runs.train_model(Sentences(c, 'dev'), Workdir(tmp_path), k, regime)
    return set(stages)

  return todo


def test_the_stages_of_table_1(todo):
  frozen = {'k3-regular', 'k3-distil'}  # which serve k = 2 too
  tuned = {'k2-finetune', 'k3-finetune', 'k2-both', 'k3-both'}
  assert todo() == {'base', 'teacher', 'distilled', 'base-distil', *frozen, *tuned}
  only = todo([(2, 'finetune'), (3, 'finetune')])
  assert only == {'base', 'k3-regular', 'k2-finetune', 'k3-finetune'}


def test_the_stages_of_table_4(todo):
  wanted = {'base', 'teacher', 'distilled', 'base-distil', 'k3-distil', 'k2-both', 'k3-both'}
  assert todo(TABLE4) == wanted


@pytest.mark.parametrize(
  'heads', [{'heads.layout': 'paper'}, {'heads.first': 'transformed'}, {'heads.markov': 4}], ids=str
)
def test_heads_that_know_of_each_other_have_a_run_for_each_k(todo, heads):
  assert {'k2-regular', 'k3-regular', 'k2-distil'} < todo(**heads)


def test_one_run_for_the_largest_k_serves_all_with_that_setting(todo):
  changed = {'table.one_run': True, 'heads.markov': 4}
  trained = {name for name in todo(**changed) if name.startswith('k')}
  assert trained == {'k3-regular', 'k3-distil', 'k3-finetune', 'k3-both'}


def test_distilled_text_of_ones_own_needs_no_teacher(todo):
  stages = todo(**{'data.distilled': 'out/own'})
  assert not {'teacher', 'distilled'} & stages and 'base-distil' in stages


def test_stages_draw_their_own_orders_and_own_text_is_for_heads_on_the_base(todo, stages):
  """The teacher is the base with a different seed, and the distilled base writes other text."""
  todo(**{'data.own': 'out/own', 'seed': 2**32 - 1})
  trainings = {name: one for name, one in stages.items() if name != 'distilled'}
  orders = [one.get('order', one['seed']) for one in trainings.values()]
  assert len(set(orders)) == len(orders)
  teacher, base = stages['teacher'], stages['base']
  assert teacher['seed'] != base['seed'] and {**teacher, 'seed': base['seed']} == base
  has_own = {name for name, one in trainings.items() if one['data'].own}
  assert has_own == {'k3-regular', 'k2-finetune', 'k3-finetune'}
  distilled = {name for name, one in trainings.items() if one['data'].distilled}
  assert distilled == {'base-distil', 'k3-distil', 'k2-both', 'k3-both'}


def test_names_of_trees():
  names = 'tree-2', 'tree-999', 'exact', 'top-2'
  assert [tree_nodes(name) for name in names] == [2, 999, None, None]
  for name in ('tree', 'tree-1', 'tree-08', 'tree-1000', 'tree-x', 'trees'):
    with pytest.raises(fd.UserError, match=f'^the rule {name} names no tree'):
      tree_nodes(name)


# --- the rows


@pytest.fixture
def copy(table, tmp_path):
  """A copy of the finished table's folder, to be changed."""
  return shutil.copytree(table.folder, tmp_path / 'copy', symlinks=True)


def test_the_folder_has_the_rows_the_table_a_picture_and_the_models(table):
  names = {re.sub(r'-[0-9a-f]{10}$', '', path.name) for path in table.folder.iterdir()}
  files = {'plan.json', 'results.jsonl', 'table1.md', 'table1.png'}
  assert names == {'base', 'k2-regular', 'k2-finetune', 'locks', *files}
  assert (table.folder / 'table1.png').read_bytes().startswith(b'\x89PNG')
  assert (table.folder / 'base').is_symlink() and not list(table.folder.rglob('*.partial'))


def test_every_row_is_measured_once_and_is_in_the_table(table):
  measured = read(table.folder)
  assert len(measured) == len(KEYS) and {key_of(row) for row in measured} == KEYS
  drawn = (table.folder / 'table1.md').read_text()
  assert text.TOYS in drawn
  for begin, figures in (('| 1 |', 1), ('| 2 |', 3)):
    line = next(line for line in drawn.splitlines() if line.startswith(begin))
    assert sum(' / ' in cell.split('(')[0] for cell in line.split('|')) == figures, line
  assert '| 2 | Regular | top-2 |' in drawn and '| 2 | Fine tuning | top-2 |' in drawn


def test_a_line_carries_its_conditions(table):
  for row in read(table.folder):
    assert {'device', 'dtype', 'batch', 'seed', 'commit', 'config', 'timing_rounds'} <= row.keys()
    assert row['outputs'] == 6 and row['split'] == 'dev'
    assert row['bleu_signature'].startswith('nrefs:1')


def test_frozen_heads_with_exact_acceptance_write_what_greedy_writes(table):
  measured = {key_of(row): row for row in read(table.folder)}
  base, heads = measured[1, 'regular', 'exact'], measured[2, 'regular', 'exact']
  assert heads['same_as_greedy'] == 1.0 and heads['bleu'] == base['bleu']
  assert 1.0 <= heads['mean_block_size'] <= 2.0 and len(heads['head_accuracy']) == 2
  # p1 writes the text; near ties may fall otherwise
  assert len(heads['own_accuracy']) == 2 and heads['own_accuracy'][0] > 0.9


def test_a_rerun_skips_what_is_done(table, launch, copy):
  before = (copy / 'results.jsonl').read_bytes()
  ended = launch('table1', *table.words(), f'--workdir={copy}')
  assert ended.code == 0 and 'step ' not in ended.out and 'To be' not in ended.out
  assert 'The fastest exact decoding here: ' in ended.out
  assert (copy / 'results.jsonl').read_bytes() == before


@pytest.mark.slow
def test_a_row_whose_line_is_deleted_is_measured_again_and_no_other(table, launch, copy):
  results = copy / 'results.jsonl'
  lines = results.read_bytes().splitlines(keepends=True)
  results.write_bytes(b''.join(lines[:2] + lines[3:]))
  ended = launch('table1', *table.words(), f'--workdir={copy}')
  assert ended.code == 0
  after = results.read_bytes().splitlines(keepends=True)
  assert after[:-1] == lines[:2] + lines[3:]
  old, new = json.loads(lines[2]), json.loads(after[-1])
  for name in (*tables.KEY, 'bleu', 'mean_block_size', 'same_as_greedy', 'head_accuracy'):
    assert old[name] == new[name]


@pytest.mark.slow
def test_trees_are_added_to_measured_rows_and_write_what_greedy_writes(table, launch, copy):
  results = copy / 'results.jsonl'
  before = results.read_bytes()
  words = table.words(**{'table.rules': (*RULES, 'tree-12'), 'table.regimes': ('regular',)})
  assert launch('table1', *words, f'--workdir={copy}').code == 0
  assert results.read_bytes().startswith(before)
  measured = {key_of(row): row for row in read(copy)}
  assert measured.keys() == KEYS | {(2, 'regular', 'tree-12')}
  chain, tree = (measured[2, 'regular', rule] for rule in ('exact', 'tree-12'))
  assert 1 <= tree['mean_block_size'] <= 2 and tree['bleu'] == chain['bleu']
  assert tree['same_as_greedy'] == 1 and tree['tree_nodes'] <= 12
  assert (tree['tree_split'], tree['models']) == ('test', chain['models'])
  assert '| 2 | Regular | tree-12 |' in (copy / 'table1.md').read_text()
  after = results.read_bytes()
  assert launch('table1', *words, f'--workdir={copy}').code == 0 and results.read_bytes() == after


@pytest.mark.slow
def test_a_model_that_writes_nothing_has_dashes_for_figures(table, launch, copy):
  """Every text is one token: no call, no block, nothing that a head could guess."""
  changed = {'table.max_len': 1, 'table.regimes': ('regular',)}
  words = table.words(**changed, **{'table.rules': ('exact', 'tree-12')})
  ended = launch('table1', *words, f'--workdir={copy}')
  assert ended.code == 0 and 'mean block –' in ended.out
  short = [row for row in read(copy) if row['max_len'] == 1]
  assert len(short) == 1 + 2 and all(row['mean_block_size'] is None for row in short)
  assert all(row['own_accuracy'][1:] == [None] for row in short if row['k'] > 1)
  assert '/ – (' in (copy / 'table1.md').read_text()


def test_a_budget_stops_cleanly_and_the_same_command_continues_to_the_same_rows(
  table, launch, copy
):
  shutil.rmtree((copy / 'k2-finetune').resolve())
  for gone in ('table1.md', 'table1.png', 'k2-finetune'):
    (copy / gone).unlink()
  results = copy / 'results.jsonl'
  lines = results.read_text().splitlines(keepends=True)
  results.write_text(''.join(lines[:3]))
  stopped = launch('table1', *table.words(), f'--workdir={copy}', '--budget=0')
  assert stopped.code == 0
  assert stopped.out.splitlines()[-1] == f'Out of budget: the same command continues in {copy}'
  assert results.read_text() == ''.join(lines[:3]) and (copy / 'table1.md').is_file()
  assert launch('table1', *table.words(), f'--workdir={copy}').code == 0
  names = *tables.KEY, 'bleu', 'mean_block_size', 'same_as_greedy', 'head_accuracy'
  again, before = (
    [[row.get(name) for name in names] for row in read(folder)] for folder in (copy, table.folder)
  )
  assert again == before


def test_evaluate_measures_a_single_run_and_finds_the_same(table, launch, copy):
  ended = launch('evaluate', *table.words('k=2'), f'--workdir={copy}/k2-regular')
  assert ended.code == 0 and 'top-2' in ended.out
  alone = {key_of(row): row['bleu'] for row in read(copy / 'k2-regular')}
  whole = {key_of(row): row['bleu'] for row in read(table.folder) if key_of(row) in alone}
  assert alone == whole and len(alone) == 2


def test_measuring_needs_no_command(table):
  c = settings(**SETTINGS, **{'data.cache': str(table.cache)})
  sentences, base = Sentences(c, 'dev'), table.folder / 'base'
  key = sentences.key(base, 1, 'regular', 'exact')
  (row,) = runs.figures(sentences, {(1, 'regular'): base}, [key])
  (there,) = (one for one in read(table.folder) if key_of(one) == key_of(key))
  assert row['bleu'] == there['bleu'] and key['models'] == there['models']


# --- trees are never grown on what is measured


@pytest.mark.parametrize('split, other', [('dev', 'test'), ('test', 'dev')])
def test_sources_of_trees_are_of_the_other_split_and_evenly_spaced(table, split, other):
  sentences = Sentences(settings(**SETTINGS, **{'data.cache': str(table.cache)}), split)
  everything = sentences.text.tokens(other).source
  places = np.linspace(0, len(everything) - 1, min(400, len(everything))).round().astype(int)
  assert sentences.tree_sources == [everything[i].tolist() for i in places]


@pytest.mark.slow
def test_a_tree_is_as_deep_as_the_heads_of_its_k_and_writes_what_greedy_writes(table, translator):
  sentences = Sentences(settings(**SETTINGS, **{'data.cache': str(table.cache)}), 'dev')
  sentences.tree_sources = [[5, 6, 7, 2], [8, 9, 2], [10, 11, 12, 13, 2]]
  target, depths = Bound(*folders.load(translator)), {}
  for k in (2, 3):  # the heads were made for k = 3
    by_rule = sentences.strategies(target, translator, k, 'regular', ['tree-2', 'tree-6'])
    small, tree = (by_rule[rule].choices for rule in ('tree-2', 'tree-6'))
    assert small.n == 2 < tree.n <= 6
    depths[k] = tree.max_depth
  assert depths == {2: 1, 3: 2}
  source = np.array([[5, 6, 7, 2]], np.int32)
  on_tree, greedy = (
    fd.decode(target.module, target.params, source, how, max_len=12)
    for how in (by_rule['tree-6'], fd.Greedy())
  )
  assert on_tree.tokens.tolist() == greedy.tokens.tolist()
  assert int(on_tree.calls[0]) <= int(greedy.calls[0])


# --- translations, and examples


@pytest.mark.wide('base', 'k2-regular')
@pytest.mark.parametrize('run', ['base', 'base/model', 'k2-regular', 'k2-finetune/model'])
def test_a_run_translates(table, run, capfd):
  assert main(['translate', f'--model={table.folder}/{run}', '--max-len=12', 'A man.', '']) == 0
  assert capfd.readouterr().out.count('\n') == 2


def test_in_short_the_fastest_row_that_writes_what_greedy_decoding_writes():
  timed = [
    a_row(4, speedup=1.2),
    a_row(8, speedup=1.5, same_as_greedy=1.0),
    a_row(8, rule='top-2', speedup=1.9),
    a_row(1, 'regular', speedup=3.0),
  ]
  assert text.fastest(timed) == (
    'The fastest exact decoding here: 3.0 tokens a call, 1.50 times as fast as greedy decoding of'
    ' the same model, 100% of the outputs the same (k = 8, fine tuning, exact)'
  )
  assert text.fastest([timed[2], a_row(4, speedup=2.0, error='stopped')]) is None


def test_in_short_a_speed_up_has_the_interval_of_its_rounds():
  noisy = a_row(4, speedup=1.9, spread=[0.04, 6.82], same_as_greedy=1.0)
  assert '0.04 to 6.82 times as fast (the rounds do not agree) as greedy' in text.fastest([noisy])
  timed = [noisy, a_row(8, speedup=1.3, spread=[1.2, 1.4], same_as_greedy=1.0)]
  assert '1.30 times as fast (1.20 to 1.40 by rounds) as greedy decoding' in text.fastest(timed)


def test_the_worked_example_as_text_and_as_a_picture(tmp_path):
  blocks = [[' Once'], [' upon', ' a'], [' time', ',', ' in']]
  assert tables.example_text('Es war einmal, in', blocks) == (
    'source        Es war einmal, in\n'
    'prompt        Once\n'
    'call 1 (2)    upon| a\n'
    'call 2 (3)    time|,| in\n'
  )
  tables.example_picture('Es war einmal, in', blocks, tmp_path / 'short.png')
  tables.example_picture('Es kostet $8 ' * 20, [*blocks, ['$', '_8^']], tmp_path / 'long.png')
  short, long = (
    matplotlib.image.imread(tmp_path / f'{name}.png').shape for name in ('short', 'long')
  )
  assert long[0] > short[0] and long[1] > short[1]


def test_the_worked_example_accounts_for_every_token(table, launch, copy):
  command = f'--workdir={copy}', 'The meeting is on Monday.'
  ended = launch('example', *table.words('k=2,regime=finetune'), *command)
  assert ended.code == 0
  source, first, *calls = (copy / 'example.txt').read_text().splitlines()
  assert source.endswith('The meeting is on Monday.') and first.startswith('prompt')
  assert calls and all(int(re.search(r'\((\d)\)', line)[1]) in (1, 2) for line in calls)
  assert (copy / 'example.png').read_bytes().startswith(b'\x89PNG')
  for words, mistake in [(['k=4'], 'no cell k=4, regime=regular'), ([], 'there are 2 sentences')]:
    ended = launch('example', *table.words(*words), *command, *['another'] * (not words))
    assert ended.code == 2 and mistake in ended.err


# --- all four regimes, with a teacher whose translations are quickly made


def translations(folder, *, model, data, distill):
  """Translates every sentence into itself."""
  folders.load(model)
  material = data.open()
  source = material.tokens('train').source
  lines = [line for line, _ in material.pairs('train')]
  for language in ('en', 'de'):
    (folder / f'train.{language}').write_text(''.join(f'{line}\n' for line in lines))
  assert len(TokenPairs(source, source)) == len(lines)


@pytest.fixture
def quick(monkeypatch):
  monkeypatch.setattr(own, 'translations', translations)


@pytest.fixture(scope='module')
def whole(table, tmp_path_factory):
  """A folder for Table 1 with all regimes, begun with the base of `table`, which is the same."""
  folder = tmp_path_factory.mktemp('page') / 'run'
  folder.mkdir()
  base = (table.folder / 'base').resolve()
  shutil.copytree(base, folder / base.name)
  return folder


@pytest.fixture
def filled(table, whole, launch, quick):
  """The same, finished."""
  if not (whole / 'table1.md').exists():
    ended = launch('table1', *table.words(**FOUR), f'--workdir={whole}')
    assert ended.code == 0, ended
  return whole


def measured(folder):
  return {(*key_of(row), row['split']): row for row in read(folder)}


@pytest.mark.slow
def test_all_regimes_are_trained_and_measured(filled):
  wanted = {(k, regime, 'exact', 'dev') for k in (2, 3) for regime in REGIMES}
  wanted |= {(1, 'regular', 'exact', 'dev'), (1, 'distil', 'exact', 'dev')}
  assert measured(filled).keys() >= wanted
  drawn = (filled / 'table1.md').read_text().splitlines()
  lines = [line for line in drawn if line.startswith(('| k', '| 1 '))]
  assert lines[0] == '| k | Regular | Distillation | Fine tuning | Both |'
  # ours and the paper's k = 1
  assert lines[1].count('/ 1.00') == 4 and lines[1].endswith('| – | – |')


@pytest.mark.slow
def test_frozen_heads_for_the_largest_k_serve_all(filled):
  by_key = measured(filled)
  for regime in ('regular', 'distil'):
    two, three = (by_key[k, regime, 'exact', 'dev'] for k in (2, 3))
    assert two['models'] == three['models'] == folders.content(filled / f'k3-{regime}')
    assert len(two['head_accuracy']) == 2 and two['head_accuracy'] == three['head_accuracy'][:2]
    assert two['same_as_greedy'] == three['same_as_greedy'] == 1.0 and two['bleu'] == three['bleu']
  assert folders.load_heads(filled / 'k2-both')[0].k == 2


@pytest.mark.slow
def test_stages_name_what_they_come_from(filled):
  inputs = {}
  for path in filled.glob('*/inputs.json'):
    if path.parent.is_symlink():
      inputs[path.parent.name] = json.loads(path.read_text()), path.parent.resolve().name
  assert not list(filled.glob('*/checkpoints*'))  # the optimizer's state is not needed any more
  name = {run: stage for run, (_, stage) in inputs.items()}
  for run, part, other in (
    ('base-distil', 'start', 'base'),
    ('k3-regular', 'base', 'base'),
    ('k3-distil', 'base', 'base-distil'),
    ('k2-both', 'base', 'k3-distil'),
    ('k3-both', 'base', 'k3-distil'),
    ('distilled', 'model', 'teacher'),
  ):
    assert inputs[run][0][part] == name[other]
  assert inputs['base'][0]['data'] != inputs['base-distil'][0]['data']


@pytest.mark.slow
def test_table_4_and_figure_4_share_the_models_and_measure_the_test_set(table, filled, launch):
  models = {path: path.stat().st_mtime_ns for path in filled.glob('*/model')}
  command = *table.words(**FOUR), f'--workdir={filled}'
  assert launch('figure4', *command).code == 0
  points = {key: row for key, row in measured(filled).items() if row['split'] == 'test'}
  assert points.keys() == {(k, 'both', 'exact', 'test') for k in (2, 3)}
  assert all(point['speedup'] > 0 for point in points.values())
  assert launch('table4', *command).code == 0
  drawn = (filled / 'table4.md').read_text()
  for row in ('beam 4', 'greedy, k = 1', 'greedy, k = 2', 'greedy, k = 3'):
    assert f'| Ours, {row} | ' in drawn
  assert 'Lee 2018' in drawn and 'split test' in drawn and 'split dev' not in drawn
  assert {path: path.stat().st_mtime_ns for path in filled.glob('*/model')} == models
  assert (filled / 'figure4.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.slow
def test_a_failed_stage_is_shown_with_what_comes_from_it_and_the_rest_stands(
  table, filled, launch, tmp_path, monkeypatch
):
  folder = shutil.copytree(filled, tmp_path / 'run', symlinks=True)
  for path in folder.iterdir():
    if re.match('distilled|base-distil|k3-distil|k2-both|k3-both', path.name):
      path.unlink() if path.is_symlink() else shutil.rmtree(path)
  command = 'table1', *table.words(**FOUR), f'--workdir={folder}'

  def full(*_, **__):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(own, 'translations', full)
  ended = launch(*command)
  assert ended.code == 1 and 'Traceback' not in ended.err + ended.out
  reason = 'OSError: [Errno 28] No space left on device'
  assert f'k=2-regime=distil failed: distilled: {reason}' in ended.out
  assert ended.out.splitlines()[-1].startswith('5 of the rows failed: the reasons are in ')
  log = folder / 'failures' / 'k=1-regime=distil.log'
  assert 'OSError' in log.read_text()
  drawn = (folder / 'table1.md').read_text().splitlines()
  lines = {line[:4]: line for line in reversed(drawn)}
  assert [lines[f'| {k} '].count(reason) for k in (1, 2, 3)] == [1, 2, 2]
  tuned = measured(filled)[2, 'finetune', 'exact', 'dev']
  assert f'{tuned["mean_block_size"]:.2f}' in lines['| 2 ']


@pytest.mark.slow
def test_two_processes_share_a_table_and_do_nothing_twice(table, tmp_path):
  command = [*table.words(**FOUR), f'--workdir={tmp_path}/run']
  processes = [start('table1', *command, stdout=subprocess.PIPE) for _ in range(2)]
  outputs = [process.communicate(timeout=3600) for process in processes]
  assert [process.returncode for process in processes] == [0, 0], outputs
  keys = [key_of(row) for row in read(tmp_path / 'run')]
  assert len(keys) == len(set(keys)) == 10
  first_steps = [line for out, _ in outputs for line in out.splitlines() if 'step 1/4 ' in line]
  assert len(first_steps) == 9  # one for each training


@pytest.mark.slow
def test_smoke_as_a_user_runs_it(tmp_path):
  """The models have learnt nothing, and write their own text too."""
  page = f'--config={ROOT}/configs/wmt14.py:scale=smoke', f'--config.data.cache={tmp_path}/cache'
  out, err = start(
    'table1', *page, f'--workdir={tmp_path}/run', stdout=subprocess.PIPE
  ).communicate(timeout=3600)
  assert not err and 'failed' not in out and 'The fastest exact decoding here: ' in out, (out, err)
  lines = read(tmp_path / 'run')
  assert len(lines) == 1 + 1 + len(REGIMES) * 4
  trees = [row for row in lines if row['rule'] == 'tree-8']
  assert len(trees) == 4 and all(row['same_as_greedy'] > 0.9 for row in trees)
  assert 'failed' not in (tmp_path / 'run' / 'table1.md').read_text()


@pytest.mark.slow
def test_table_4_and_figure_4_at_smoke_scale(launch, tmp_path):
  page = f'--config={ROOT}/configs/wmt14.py:scale=smoke', f'--config.data.cache={tmp_path}/cache'
  for command in ('table4', 'figure4'):
    assert launch(command, *page, f'--workdir={tmp_path}/run').code == 0


def test_settings_of_one_table_are_those_of_every_scale():
  for scale in ('tiny', 'smoke', 'multi30k', 'wmt14'):
    for model in ('transformer', 'fconv'):
      config = wmt14.get_config(f'scale={scale},model={model}')
      c = to_dataclass(Translation, config)
      assert c.scale == scale and type(c.model).__name__.lower().startswith(model)
      assert dataclasses.asdict(c) == config.to_dict()
