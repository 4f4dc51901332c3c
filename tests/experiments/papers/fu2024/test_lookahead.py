"""Lookahead's page: settings, the graph, what is ablated, tables, and all of it at toy size."""

import dataclasses

import numpy as np
import pytest

import fastdec as fd
from configs import lookahead
from experiments.lab import report
from experiments.lab.cells import append, latest, read
from experiments.papers.fu2024 import code, figure, settings, tables
from experiments.papers.fu2024.cells import FOREIGN, POOLS, LookaheadCell
from experiments.papers.fu2024.measure import Ablated
from experiments.papers.fu2024.page import LookaheadPage
from experiments.papers.fu2024.published import ABLATION, SPEEDUPS
from tests.decoding.methods.test_lookup import Looping
from tests.decoding.test_loop import some_prompts
from tests.experiments.conftest import ROOT, run, with_settings


def changed(task='lm', **given):
  return with_settings(lookahead.get_config(f'scale=smoke,task={task}'), given)


@pytest.mark.parametrize('setting, message', [
  ({'measure.windows': ()}, r'config.measure.windows=\(\) is not possible: give one or more'),
  ({'measure.ngrams': (5, 2)}, r'config.measure.ngrams\[1\]=2 is not possible: give 3 or more'),
  ({'measure.guesses': (0,)}, r'config.measure.guesses\[0\]=0 is not possible: give 1 or more'),
  ({'measure.batches': (1, 1)}, 'each once'),
  ({'measure.timed': 0}, 'config.measure.timed=0 is not possible'),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting, message, tmp_path):
  with pytest.raises(fd.UserError, match=message):
    settings.experiment_of(changed(**setting), tmp_path)


def test_a_translator_has_positions(tmp_path):
  with pytest.raises(fd.UserError, match=r'config\.measure\.max_len=9999 is not possible: model'):
    settings.experiment_of(changed('translation', **{'measure.max_len': 9999}), tmp_path)


def test_the_graph(tmp_path):
  page = LookaheadPage(settings.experiment_of(changed(), tmp_path), tmp_path, None, {})
  nodes = {node.name: node.needs for node in page.nodes()}
  assert nodes.pop('model') == () and set(nodes.values()) == {('model',)}
  sweep = [
    'lookahead-w3-n3-g2-all',
    'lookahead-w2-n3-g2-all',
    'lookahead-w3-n4-g2-all',
    'lookahead-w3-n3-g3-all',
  ]
  pools = [f'lookahead-w3-n3-g2-{pool}' for pool in POOLS if pool != 'all']
  others = ['jacobi-w0-n8-g0-all', *(f'lookup-w0-n3-g9-{pool}' for pool in ('all', *FOREIGN))]
  assert sorted(nodes) == sorted([*sweep, *pools, *others])
  batches = {group.name: [plan.batch for plan in group.plans] for group in page.groups()}
  assert batches.pop('lookahead-w3-n3-g2-all') == batches.pop('jacobi-w0-n8-g0-all') == [1, 2]
  assert batches.pop('lookup-w0-n3-g9-all') == [1, 2] and set(map(tuple, batches.values())) == {
    (1,)
  }


def test_a_base_that_the_config_names_is_not_trained(tmp_path):
  page = LookaheadPage(settings.experiment_of(changed(base='there'), tmp_path), tmp_path, None, {})
  assert page.runs() == [] and {node.needs for node in page.nodes()} == {()}
  with pytest.raises(fd.UserError, match='there is not a folder'):
    page.check()


@pytest.mark.parametrize('repeats, missing', [(0, ['b2']), (3, ['b2', 'b1'])])
def test_cells_that_were_counted_are_missing_where_times_are_asked_for(
  tmp_path, monkeypatch, repeats, missing
):
  """And they keep their counts."""
  page = LookaheadPage(
    settings.experiment_of(changed(**{'measure.repeats': repeats}), tmp_path), tmp_path, None, {}
  )
  monkeypatch.setattr(page, 'models_of', lambda plan: 'abc')
  group = page.groups()[0]
  there = dataclasses.replace(group.plans[0], tokens=2.0, models='abc')
  append(page.results, there)
  found = page.missing(group)
  assert [cell.name[-2:] for cell in found] == missing and found[1:] == [there] * (len(found) - 1)


def test_code_is_written_once_and_held_out_by_file(tmp_path):
  experiment = settings.experiment_of(changed('code'), tmp_path)
  assert experiment.data.folder == str(tmp_path / 'code')
  lines = {
    name: (tmp_path / 'code' / f'{name}.code').read_text().splitlines()
    for name in ('train', 'dev', 'test')
  }
  assert len(lines['train']) > 200 and min(len(lines['dev']), len(lines['test'])) > 20
  assert not set(lines['train']) & set(lines['test']) and code.BREAK in lines['train'][0]
  (tmp_path / 'code' / 'train.code').write_text('kept')
  settings.experiment_of(changed('code'), tmp_path)
  assert (tmp_path / 'code' / 'train.code').read_text() == 'kept'


def test_what_is_ablated_is_not_learnt():
  """Text that repeats itself: without the n-grams of the output it takes more calls, and the same
  is written."""
  prompts, lengths = some_prompts(0, rows=12)
  blocks = {}
  for learnt in ((True, True), (False, False)):
    strategy = Ablated(1, 3, 3, reads_prompt=learnt[0], reads_text=learnt[1])
    out = fd.decode(Looping(), {}, prompts, strategy, lengths, max_len=60)
    blocks[learnt] = out.mean_block_size
    greedy = fd.decode(Looping(), {}, prompts, fd.Greedy(), lengths, max_len=60)
    np.testing.assert_array_equal(out.tokens, greedy.tokens)
  assert blocks[True, True] > blocks[False, False]


def a_cell(method='lookahead', pool='all', batch=1, **figures):
  measured = {
    'nodes': 120, 'tokens': 1.75, 'tokens_per_call': 1.75, 'speedup': 0.5, 'speedup_calls': 0.6, 'spread': (0.4, 0.55),
    'same_as_plain': 1.0, 'models': 'abc', 'conditions': {'task': 'lm', 'repeated_4grams': 0.125},
  }  # fmt: skip
  return LookaheadCell(method, 15, 5, 15, pool, batch, **(measured | figures))


def test_the_table_has_our_rows_in_order_and_then_the_papers(tmp_path):
  cells = [a_cell('lookup'), a_cell(batch=8), a_cell(pool='corpus'), a_cell()]
  table = tables.speed_table(cells)
  rows = [tuple(entry.ours for entry in row) for row in table.rows]
  assert [(row[0], row[4], row[5]) for row in rows[:4]] == [
    ('lookahead', POOLS['all'], '1'), ('lookahead', POOLS['corpus'], '1'), ('lookahead', POOLS['all'], '8'),
    ('prompt lookup', 'prompt, output', '1'),
  ]  # fmt: skip
  assert rows[0][6:] == ('120', '1.75', '0.50×', '0.60×', '100.0')
  counted = tables.speed_table([a_cell(speedup=None, speedup_calls=None, spread=None)])
  assert tuple(entry.ours for entry in counted.rows[0])[7:] == (
    '1.75',
    'not measured',
    '–',
    '100.0',
  )
  assert len(rows) == 4 + len(ABLATION) + len(SPEEDUPS) and rows[6][:4] == (
    'lookahead (paper)',
    '15',
    '5',
    '15',
  )
  assert '12.5 % had stood before' in report.markdown(table)
  figure.tokens_by_nodes(cells, tmp_path / 'lookahead.png')
  assert (tmp_path / 'lookahead.png').stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize('task', ['lm', 'translation', 'code'])
def test_all_of_it_at_toy_size(tmp_path, launch, task):
  given = {'data.cache': tmp_path / 'cache', 'measure.batches': (1,), 'train.steps': 2}
  words = [
    f'--config={ROOT}/configs/lookahead.py:scale=smoke,task={task}',
    f'--workdir={tmp_path}/run',
  ]
  words += [f'--config.{name}={value}' for name, value in given.items()]
  results = tmp_path / 'run' / 'results.jsonl'
  assert run('lookahead', *words, '--config.measure.repeats=0') == 0
  counted = latest(read(results, LookaheadCell))
  assert len(counted) == 3 + 3 + 5 + 2
  for cell in counted.values():
    assert (
      cell.error is None and cell.speedup is None and cell.tokens >= 1 and cell.same_as_plain == 1
    )
  assert run('lookahead', *words) == 0
  timed = latest(read(results, LookaheadCell))
  assert timed.keys() == counted.keys()
  for key, cell in timed.items():
    assert cell.speedup > 0 and (cell.tokens, cell.all_texts) == (
      counted[key].tokens,
      counted[key].all_texts,
    )
  assert 'lookahead (paper)' in (tmp_path / 'run' / 'lookahead.md').read_text()
  before = results.read_bytes()
  assert launch('lookahead', *words).code == 0
  assert results.read_bytes() == before
