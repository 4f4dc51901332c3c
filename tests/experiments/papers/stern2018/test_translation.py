"""Table 1 from nothing to the picture, at toy size: what is written, what a rerun does, what a
budget does."""

import json
import shutil

import pytest
from absl import flags

from configs import wmt14
from experiments.lab import cells, conditions
from experiments.papers.stern2018.cells import BlockwiseCell
from experiments.papers.stern2018.text_measure import TranslationMeasuring
from experiments.papers.stern2018.text_settings import TranslationExperiment
from tests.experiments.conftest import SETTINGS, with_settings


def read(workdir):
  return cells.read(workdir / 'results.jsonl', BlockwiseCell)


RULES = ('exact', 'top-2')
CELLS = {
  (1, 'regular', 'exact'),
  *((2, regime, rule) for regime in ('regular', 'finetune') for rule in RULES),
}


@pytest.fixture
def copy(table, tmp_path):
  """A copy of the finished table's folder, to be changed."""
  return shutil.copytree(table.folder, tmp_path / 'copy')


def test_the_folder_has_the_table_in_three_forms_a_picture_and_the_runs(table):
  names = {path.name for path in table.folder.iterdir()}
  files = {'results.jsonl', 'table1.md', 'table1.csv', 'table1.png'}
  assert names == {'base', 'k2-regular', 'k2-finetune', 'locks', *files}
  assert (table.folder / 'table1.png').read_bytes().startswith(b'\x89PNG')
  assert not list(table.folder.rglob('*.partial'))


def test_every_cell_is_measured_once_and_stands_in_the_table(table):
  measured = read(table.folder)
  assert [cell.error for cell in measured] == [None] * len(CELLS)
  assert {cell.key for cell in measured} == CELLS and len(measured) == len(CELLS)
  lines = (table.folder / 'table1.md').read_text().splitlines()
  rows = [
    next(line for line in lines if line.startswith(start))
    for start in ('| 1 |', '| 2 |', '| 2, top 2 |')
  ]
  assert [sum(' / ' in cell.split('(')[0] for cell in row.split('|')) for row in rows] == [
    1,
    3,
    2,
  ], rows


def test_a_line_carries_its_conditions(table):
  rows = [json.loads(line) for line in (table.folder / 'results.jsonl').read_text().splitlines()]
  for row in rows:
    assert {'device', 'dtype', 'batch', 'seed', 'commit', 'config'} <= row.keys()
    assert (
      row['outputs'] == 6 and row['split'] == 'dev' and row['bleu_signature'].startswith('nrefs:1')
    )


def test_frozen_heads_with_exact_acceptance_write_what_greedy_writes(table):
  measured = {cell.key: cell for cell in read(table.folder)}
  assert measured[2, 'regular', 'exact'].same_as_greedy == 1.0
  assert measured[2, 'regular', 'exact'].bleu == measured[1, 'regular', 'exact'].bleu
  assert 1.0 <= measured[2, 'regular', 'exact'].mean_block_size <= 2.0
  assert len(measured[2, 'regular', 'exact'].head_accuracy) == 2
  own = measured[2, 'regular', 'exact'].own_accuracy
  assert len(own) == 2 and own[0] > 0.9  # p1 writes the text; near ties may fall otherwise


def test_a_rerun_skips_what_is_done(table, launch, copy):
  before = (copy / 'results.jsonl').read_bytes()
  ended = launch('table1', *table.words(), f'--workdir={copy}')
  assert ended.code == 0 and 'training' not in ended.out and 'Finished cells' not in ended.out
  assert (copy / 'results.jsonl').read_bytes() == before
  said = launch('table1', *table.words(**{'table.repeats': 2}), f'--workdir={copy}').out
  assert (
    'Finished cells were measured with table.repeats=1, and stay as they are with table.repeats=2'
  ) in said
  assert (copy / 'results.jsonl').read_bytes() == before


def test_a_cell_whose_line_is_deleted_is_measured_again_and_no_other(table, launch, copy):
  results = copy / 'results.jsonl'
  lines = results.read_bytes().splitlines(keepends=True)
  results.write_bytes(b''.join(lines[:2] + lines[3:]))
  assert launch('table1', *table.words(), f'--workdir={copy}').code == 0
  after = results.read_bytes().splitlines(keepends=True)
  assert after[:-1] == lines[:2] + lines[3:]
  old, new = json.loads(lines[2]), json.loads(after[-1])
  same = ('k', 'regime', 'rule', 'bleu', 'mean_block_size', 'same_as_greedy', 'head_accuracy')
  assert [old[name] for name in same] == [new[name] for name in same]


def test_trees_are_measured_beside_what_is_there_and_write_what_greedy_writes(table, launch, copy):
  results = copy / 'results.jsonl'
  before = results.read_bytes()
  words = table.words(**{'table.rules': (*RULES, 'tree-12')})
  assert launch('table1', *words, f'--workdir={copy}').code == 0
  assert results.read_bytes().startswith(before)
  found = {cell.key: cell for cell in read(copy)}
  keys = {(2, regime, 'tree-12') for regime in ('regular', 'finetune')}
  assert found.keys() == CELLS | keys and all(found[key].same_as_greedy == 1 for key in keys)
  for regime in ('regular', 'finetune'):
    chain, tree = (found[2, regime, rule] for rule in ('exact', 'tree-12'))
    assert (
      1 <= tree.mean_block_size <= 2
      and tree.bleu == chain.bleu
      and tree.conditions['tree_nodes'] <= 12
    )
    assert (tree.conditions['tree_split'], tree.models) == ('test', chain.models)
  assert '## Trees on blockwise heads' in (copy / 'table1.md').read_text()
  after = results.read_bytes()
  assert launch('table1', *words, f'--workdir={copy}').code == 0 and results.read_bytes() == after


def test_a_budget_stops_cleanly_and_the_same_command_goes_on_to_the_same_cells(table, launch, copy):
  shutil.rmtree(copy / 'k2-finetune' / 'model')
  for gone in ('table1.md', 'table1.csv', 'table1.png'):
    (copy / gone).unlink()
  results = copy / 'results.jsonl'
  lines = results.read_text().splitlines(keepends=True)
  results.write_text(''.join(lines[:3]))
  stopped = launch('table1', *table.words(), f'--workdir={copy}', '--budget=0.001s')
  assert stopped.code == 0
  assert stopped.out.splitlines()[-1] == f'Out of budget: the same command goes on in {copy}'
  assert results.read_text() == ''.join(lines[:3]) and (copy / 'table1.md').is_file()
  assert launch('table1', *table.words(), f'--workdir={copy}').code == 0
  outcome = lambda cell: (
    cell.key,
    cell.bleu,
    cell.mean_block_size,
    cell.same_as_greedy,
    cell.head_accuracy,
  )
  assert [*map(outcome, read(copy))] == [*map(outcome, read(table.folder))]


def test_evaluate_measures_a_run_alone_and_finds_the_same(table, launch, copy):
  ended = launch('evaluate', *table.words('k=2'), f'--workdir={copy}/k2-regular')
  assert ended.code == 0 and 'top-2' in ended.out
  alone = {cell.key: cell.bleu for cell in read(copy / 'k2-regular')}
  whole = {cell.key: cell.bleu for cell in read(table.folder) if cell.key in alone}
  assert alone == whole and len(alone) == 2


@pytest.mark.parametrize('run', ['base', 'base/model', 'k2-regular', 'k2-finetune/model'])
def test_translate_prints_a_line_for_each_sentence(table, launch, run):
  model = f'--workdir={table.folder}/{run}'
  sentences = ['The meeting is on Monday.', '', 'Maria has three cats.']
  ended = launch('translate', model, '--max_len=12', *sentences)
  assert (ended.code, ended.err) == (0, '')
  lines = ended.out.split('\n')
  assert len(lines) == 4 and lines[1] == lines[3] == ''
  plain = launch('translate', model, '--max_len=12', '--plain', *sentences)
  assert [line.replace('|', '') for line in lines] == plain.out.split('\n')


def test_translate_searches_and_prints_hypotheses_behind_their_scores(table, launch):
  command = ('translate', f'--workdir={table.folder}/base', '--max_len=12', '--beam=3', '--nbest=2')
  rows = launch(*command, 'one sentence', 'another').out.splitlines()
  assert len(rows) == 4
  scores = [float(row.split()[0]) for row in rows]
  assert scores[0] >= scores[1] and scores[2] >= scores[3]
  plain = launch(*command, '--plain', 'one sentence', 'another').out.splitlines()
  assert plain == [row[10:] for row in rows]


def test_translate_reads_arguments_a_file_and_a_pipe_alike(table, launch, tmp_path):
  command = ('translate', f'--workdir={table.folder}/k2-regular', '--max_len=12')
  text = 'The first.\x0c Still the first.\n\nThe third.\r\n'
  (tmp_path / 'lines.txt').write_bytes(text.encode())
  words = launch(*command, *text.split('\n')[:3])
  file = launch(*command, f'--input={tmp_path}/lines.txt')
  pipe = launch(*command, stdin=text.encode())
  assert words.code == 0 and words.out.count('\n') == 3
  assert words == file == pipe


def test_measuring_needs_no_launcher(table):
  assert 'config' not in flags.FLAGS
  config = with_settings(
    wmt14.get_config('scale=smoke'), SETTINGS | {'data.cache': str(table.cache)}
  )
  experiment = TranslationExperiment.of(config)
  measuring = TranslationMeasuring(experiment, experiment.open(), 'dev', conditions.here())
  (cell,) = measuring.cells(table.folder / 'base', 1, 'regular', ['exact'])
  (there,) = (one for one in read(table.folder) if one.key == cell.key)
  assert cell.bleu == there.bleu and cell.models == there.models
  assert cell.conditions.keys() == there.conditions.keys() and cell.conditions['config'] == ''
