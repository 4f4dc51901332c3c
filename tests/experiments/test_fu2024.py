"""Lookahead's page: settings, rows, what is ablated, tables, and all of it at toy size."""

import numpy as np
import pytest

import fastdec as fd
from configs import lookahead
from experiments import fu2024
from experiments.fu2024 import ABLATION, POOLS, SPEEDUPS, Ablated, Lookahead
from experiments.lab import report, rows
from experiments.lab.config import to_dataclass
from experiments.lab.workdir import Workdir
from fastdec.evaluation import drawing
from tests.decoding.methods.test_lookup import Looping
from tests.decoding.test_loop import some_prompts
from tests.experiments.conftest import ROOT, with_settings


def settings(task='lm', **changed):
  config = with_settings(lookahead.get_config(f'scale=smoke,task={task}'), changed)
  return to_dataclass(Lookahead, config)


@pytest.mark.parametrize('setting, message', [
  ({'measure.windows': ()}, r'config.measure.windows=\(\) is not possible: give one or more'),
  ({'measure.ngrams': (5, 2)}, r'config.measure.ngrams\[1\]=2 is not possible: .* from 3'),
  ({'measure.batches': (1, 1)}, 'each once'),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting, message):
  with pytest.raises(fd.UserError, match=message):
    settings(**setting)


def test_a_translator_has_positions():
  with pytest.raises(fd.UserError, match=r'config\.measure\.max_len=9999 is not possible: model'):
    settings('translation', **{'measure.max_len': 9999})


def test_every_scale_and_task_is_an_experiment():
  for scale in ('smoke', 'multi30k'):
    for task in ('lm', 'translation', 'code'):
      config = lookahead.get_config(f'scale={scale},task={task}')
      assert to_dataclass(Lookahead, config).task == task


def test_the_rows():
  plans = [tuple(plan.values()) for plan in fu2024.plans(settings().measure)]
  size = 3, 3, 2
  assert len(plans) == len(set(plans)) == 3 * 2 + 5 + 2 + 3
  for batch in (1, 2):
    assert {('lookahead', *size, 'all', batch), ('jacobi', 0, 8, 0, 'all', batch)} < set(plans)
  assert {('lookahead', *size, pool, 1) for pool in POOLS} < set(plans)
  assert {('lookahead', *other, 'all', 1) for other in ((2, 3, 2), (3, 4, 2), (3, 3, 3))} < set(
    plans
  )


def test_a_base_that_the_config_names_is_looked_at_before_any_work(tmp_path):
  with pytest.raises(fd.UserError, match='there is not a folder'):
    fu2024.lookahead(settings(base='there'), Workdir(tmp_path))
  assert list(tmp_path.iterdir()) == []


def test_code_is_held_out_by_file(tmp_path):
  fu2024.write_passages(tmp_path)
  lines = {name: (tmp_path / f'{name}.code').read_text().splitlines() for name in fu2024.HELD_OUT}
  assert len(lines['train']) > 200 and min(len(lines['dev']), len(lines['test'])) > 20
  assert not set(lines['train']) & set(lines['test']) and fu2024.BREAK in lines['train'][0]


def test_what_is_ablated_is_not_learnt():
  """Text that repeats itself: without n-grams of the output it takes more calls for the same
  text."""
  prompts, lengths = some_prompts(0, rows=12)
  blocks = {}
  for learnt in ((True, True), (False, False)):
    strategy = Ablated(1, 3, 3, reads_prompt=learnt[0], reads_text=learnt[1])
    out = fd.decode(Looping(), {}, prompts, strategy, lengths, max_len=60)
    blocks[learnt] = out.mean_block_size
    greedy = fd.decode(Looping(), {}, prompts, fd.Greedy(), lengths, max_len=60)
    np.testing.assert_array_equal(out.tokens, greedy.tokens)
  assert blocks[True, True] > blocks[False, False]


def a_row(method='lookahead', pool='all', batch=1, **figures):
  key = dict(zip(fu2024.PLAN, (method, 15, 5, 15, pool, batch), strict=True))
  measured = {'nodes': 120, 'tokens': 1.75, 'speedup': 0.5, 'speedup_calls': 0.6}
  measured |= {'spread': [0.4, 0.55], 'same_as_plain': 1.0, 'task': 'lm', 'repeated_4grams': 0.125}
  return key | measured | figures


def test_the_table_has_our_rows_in_order_and_then_the_papers(tmp_path):
  ours = [a_row('lookup'), a_row(batch=8), a_row(pool='corpus'), a_row()]
  table = fu2024.speeds(ours)
  lines = table.rows
  assert [(line[0], line[4], line[5]) for line in lines[:4]] == [
    ('lookahead', POOLS['all'], '1'), ('lookahead', POOLS['corpus'], '1'),
    ('lookahead', POOLS['all'], '8'), ('prompt lookup', 'prompt, output', '1'),
  ]  # fmt: skip
  assert lines[0][6:] == ('120', '1.75', '0.50× (0.40 .. 0.55)', '0.60×', '100.0')
  counted = fu2024.speeds([a_row(speedup=None, speedup_calls=None, spread=None)])
  counted_line = counted.rows[0]
  assert counted_line[7:] == ('1.75', 'not measured', '–', '100.0')
  assert len(lines) == 4 + len(ABLATION) + len(SPEEDUPS)
  assert lines[6][:4] == ('lookahead (paper)', '15', '5', '15')
  assert '12.5 % of the 4-grams had occurred before' in report.markdown(table)
  failed = fu2024.speeds([{**a_row(), 'error': 'no space left'}])
  assert failed.rows[0][6] == 'failed: no space left'
  fu2024.picture(ours, 1, tmp_path / 'lookahead.png')
  assert (tmp_path / 'lookahead.png').stat().st_size > 10_000


def test_the_picture_shows_the_sweep_whichever_batch_comes_first(tmp_path, monkeypatch):
  drawn = []
  monkeypatch.setattr(drawing, 'curve', lambda panel, points, *_, **__: drawn.extend(points))
  monkeypatch.setattr(drawing, 'legend', lambda *_: None)
  ours = [a_row(batch=8, tokens=3.25), a_row(batch=8, nodes=8, tokens=2.75), a_row(batch=1)]
  fu2024.picture(ours, 8, tmp_path / 'lookahead.png')
  assert drawn[:2] == [(120.0, 3.25), (8.0, 2.75)] and (120.0, 1.75) not in drawn


@pytest.mark.slow
@pytest.mark.parametrize('task', ['lm', 'translation', 'code'])
def test_all_of_it_at_toy_size(tmp_path, launch, task):
  words = [f'--config={ROOT}/configs/lookahead.py:scale=smoke,task={task}']
  changed = {'data.cache': tmp_path / 'cache', 'measure.batches': (1,), 'train.steps': 2}
  words += [f'--config.{name}={value}' for name, value in changed.items()]
  words += [f'--workdir={tmp_path}/run']
  results = tmp_path / 'run' / 'results.jsonl'
  assert launch('lookahead', *words, '--config.measure.repeats=0').code == 0
  counted = rows.latest(rows.read(results), *fu2024.PLAN)
  assert len(counted) == 3 + 3 + 5 + 2
  for row in counted:
    assert 'error' not in row and 'speedup' not in row and row['tokens'] >= 1
    assert row['same_as_plain'] == 1
  assert launch('lookahead', *words).code == 0
  timed = rows.latest(rows.read(results), *fu2024.PLAN)
  for row, before in zip(timed, counted, strict=True):
    assert row['speedup'] > 0 and (row['tokens'], row['all_texts']) == (
      before['tokens'], before['all_texts'],
    )  # fmt: skip
  assert 'lookahead (paper)' in (tmp_path / 'run' / 'lookahead.md').read_text()
  before = results.read_bytes()
  assert launch('lookahead', *words).code == 0
  assert results.read_bytes() == before
