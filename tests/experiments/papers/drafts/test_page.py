"""Drafters side by side: the graph and its tables without any model, then all at toy size."""

import dataclasses

import pytest

import fastdec as fd
from configs import drafts
from experiments.lab import graph, report
from experiments.lab.cells import latest, read
from experiments.papers import lengths
from experiments.papers.drafts import tables
from experiments.papers.drafts.cells import DraftCell
from experiments.papers.drafts.page import DraftsPage
from experiments.papers.drafts.sides import SideBySide
from tests.experiments.conftest import ROOT, run, with_settings


def asked(choices='scale=multi30k', **settings):
  return SideBySide.of(with_settings(drafts.get_config(choices), settings))


class Rehearsal(DraftsPage):
  """Every run is there, and cells cost nothing."""

  failing = ''

  def check(self):
    pass

  def models_of(self, plan):
    return 'abc'

  def nodes(self):
    trained = ('base', 'own', *self.experiment.table.rows)
    return [
      *(graph.Node(name, '', (), lambda: True, print) for name in trained),
      *self.group_nodes(),
    ]

  def measure(self, group, missing):
    if group.name == self.failing:
      raise MemoryError('too large')
    for plan in missing:
      yield dataclasses.replace(
        plan, models='abc', tokens=2.0, speedup=1.5, nodes=8, accepted=(0.5, None)
      )


def test_the_graph(tmp_path):
  page = DraftsPage(asked(), tmp_path, None, {})
  nodes = {node.name: node.needs for node in page.nodes()}
  assert nodes['base'] == nodes['model'] == () and nodes['own'] == ('base',)
  assert all(
    nodes[row] == ('own',) for row in ('heads', 'rooted', 'markov', 'block', 'block-2', 'eagle')
  )
  assert nodes['eagle-tree32-t0'] == ('base', 'eagle') and nodes['lookup-chain-t1'] == ('base',)
  assert len(nodes) == 2 + 7 + 2 * (6 * 4 + 2)
  given = asked(base='mine', **{'data.own': 'written'})
  nodes = {node.name: node.needs for node in DraftsPage(given, tmp_path, None, {}).nodes()}
  assert (
    'base' not in nodes
    and 'own' not in nodes
    and nodes['eagle'] == ()
    and nodes['lookup-chain-t0'] == ()
  )


def test_the_runs_are_those_of_experiments_train(tmp_path):
  page = DraftsPage(asked(), tmp_path, None, {})
  runs = page.draft_runs()
  assert [run.experiment.draft.layers for run in runs.values()] == [1, 2, 1]
  assert runs['eagle'].experiment.kind == 'eagle' and runs['eagle'].experiment.base == str(
    tmp_path / 'base'
  )
  assert {run.experiment.data.own for run in runs.values()} == {str(tmp_path / 'own')}
  heads = {run.workdir.name: run for run in page.runs()}
  rooted, markov = (heads[name].experiment.heads for name in ('rooted', 'markov'))
  assert (rooted.rooted, rooted.markov, markov.rooted, markov.markov) == (True, 0, True, 64)
  assert (
    heads['heads'].k == 8
    and heads['heads'].experiment.run(8, 'regular') == page.experiment.shared.train
  )


def test_what_fails_is_a_cell_with_its_reason_and_the_rest_goes_on(tmp_path):
  page = Rehearsal(asked(), tmp_path, None, {})
  page.failing = 'block-tree8-t0'
  assert page.fill().failed == {'block-tree8-t0': 'MemoryError: too large'}
  assert {cell.name for cell in page.cells() if cell.error} == {
    'block-tree8-t0-b1',
    'block-tree8-t0-b8',
  }
  assert len(latest(page.cells())) == 2 * 2 * (6 * 4 + 2)
  assert 'failed: MemoryError: too large' in report.markdown(tables.speed_table(page.cells()))


def test_trees_are_compared_with_chains_of_as_many_nodes():
  def cell(drafter, tree, tokens, nodes, temperature=0.0):
    return DraftCell(drafter, tree, temperature, 1, tokens=tokens, nodes=nodes, plain_ms=2.0)

  chains = [cell('eagle', 0, 3.0, 8), cell('block', 0, 2.5, 8), cell('model', 0, 2.5, 8)]
  warm = [cell('eagle', 0, 9.0, 8, temperature=1.0)]
  assert tables.below_their_chain(chains + warm) == ([], 0)
  trees = [cell('eagle', 8, 3.0, 8), cell('block', 8, 2.4, 8), cell('block', 16, 2.0, 16)]
  assert tables.below_their_chain(chains + trees + warm) == (['block 2.400 against 2.500'], 2)
  text = report.markdown(tables.speed_table(chains + trees))
  assert (
    '1 of 2 trees write fewer tokens a call than their chain: block 2.400 against 2.500.' in text
  )
  assert '| greedy | none | 0 | 1 | 1 | 0 |' in text and '| 2.00 |' in text
  assert 'no tree writes fewer' in report.markdown(tables.speed_table([*chains, trees[0]]))


def test_what_was_not_measured_is_named_below():
  known = [
    DraftCell('eagle', 0, 0.0, 1, tokens=3.0, nodes=8),
    DraftCell('eagle', 8, 0.0, 8, tokens=3.5, nodes=8),
  ]
  failed = DraftCell('lookup', 0, 0.0, 8, error='MemoryError: too large')
  cells = [*known, failed]
  text = report.markdown(tables.speed_table(cells, tables.all_plans(cells)))
  rows = [line for line in text.splitlines() if '|' in line]
  names = [tuple(map(str.strip, row.split('|')[1:6])) for row in rows[4:]]
  assert names == [
    ('EAGLE', 'chain of 7', '0', '1', '8'),
    ('EAGLE', 'tree of 8', '0', '8', '8'),
    ('prompt lookup', 'chain', '0', '8', 'failed: MemoryError: too large'),
  ]
  missing = (
    'EAGLE at temperature 0 and batch 1 (tree of 8); prompt lookup at temperature 0 and'
    ' batch 1 (chain)'
  )
  assert f'Not measured: {missing}; EAGLE at temperature 0 and batch 8 (chain).' in text
  assert 'Not measured' not in report.markdown(tables.speed_table(cells))
  assert '| Drafter | T | Tokens |' in report.markdown(tables.acceptance_table([]))


def test_shorter_chains_have_cells_of_their_own(tmp_path):
  settings = {
    'table.rows': ('eagle', 'lookup'),
    'table.short': (1, 3),
    'table.temperatures': (0.0,),
  }
  page = DraftsPage(asked(**settings), tmp_path, None, {})
  assert [group.name for group in page.groups()] == [
    *(
      'eagle-chain-t0',
      'eagle-chain1-t0',
      'eagle-chain3-t0',
      'eagle-tree8-t0',
      'eagle-tree16-t0',
      'eagle-tree32-t0',
    ),
    *('lookup-chain-t0', 'lookup-chain1-t0', 'lookup-chain3-t0'),
  ]
  whole, short = (
    DraftCell('eagle', 0, 0.0, 1, tokens=3.0, nodes=8),
    DraftCell('eagle', 0, 0.0, 1, 1, tokens=1.9, nodes=2),
  )
  tree = DraftCell('eagle', 8, 0.0, 1, tokens=2.5, nodes=8)
  assert tables.below_their_chain([short, tree]) == ([], 0)
  assert tables.below_their_chain([whole, tree, short])[1] == 1
  rows = report.markdown(lengths.table([whole, tree, short])).splitlines()
  shown = [tuple(map(str.strip, row.split('|')[1:5])) for row in rows if row.startswith('| EAGLE')]
  # Both of the paper's Table 1
  assert shown == [('EAGLE', '2', '1.90', '1.88'), ('EAGLE', '8', '3.00', '4.69')]
  with pytest.raises(fd.UserError, match=r'short 3: .* short chains are no trees'):
    DraftCell('eagle', 8, 0.0, 1, 3)


LONG = {'table.gamma': 9, 'table.nodes': (16,)}


def test_a_draft_that_is_not_asked_for_may_be_shorter():
  assert asked(**LONG, **{'table.eagle.guesses': 9, 'table.rows': ('eagle',)}).table.gamma == 9


@pytest.mark.parametrize('setting, message', [
  ({'table.short': (7,)}, r'config.table.short=\(7,\) is not possible: config.table.gamma=7 is the'
                          r' longest chain'),
  ({'table.short': (0,)}, r'config.table.short\[0\]=0 is not possible'),
  ({'table.rows': ('eagle', 'oracle')}, "config.table.rows=.* name 'oracle': known are heads,"
                                        " rooted"),
  ({'table.nodes': (4,)}, r'config.table.nodes\[0\]=4 is not possible: give 8 or more'),
  (LONG, 'config.table.gamma=9 is not possible: config.table.block makes 7'),
  (LONG | {'table.rows': ('eagle',)}, 'config.table.gamma=9 is not possible: config.table.eagle'
                                      ' makes 7'),
  ({'table.batches': (1, 1)}, 'config.table.batches=.* each once'),
  ({'table.temperatures': (-1.0,)}, 'config.table.temperatures=.* give 0'),
  ({'table.distill.beam': 4}, 'config.table.distill writes what the base itself does'),
  ({'table.max_len': 5000}, 'config.table.max_len=5000 is not possible'),
  ({'table.block.markov_kind': 'odd'}, "config.draft.markov_kind='odd' is unknown: choose one of"
                                       " vanilla, gated, rnn"),
  ({'table.block.markov': -1}, 'config.draft.markov=-1 is not possible: give 0 or more'),
  ({'table.eagle.init': 'zero'}, "config.draft.init='zero' is no folder: give one with a trained"
                                 " draft, or target or"),
  ({'regime': 'both'}, 'regime=both trains another base for each draft'),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting, message):
  with pytest.raises(fd.UserError, match=message):
    asked(**setting)


@pytest.mark.slow
@pytest.mark.parametrize('task', ['translation', 'lm'])
def test_all_at_toy_size(task, tmp_path, launch):
  settings = {'data.max_train': 200, 'data.cache': tmp_path / 'cache'}
  words = [
    f'--config={ROOT}/configs/drafts.py:scale=smoke,task={task}',
    f'--workdir={tmp_path}/run',
  ]
  words += [f'--config.{name}={value}' for name, value in settings.items()]
  stopped = launch('drafts', *words, '--budget=0')
  assert stopped.code == 0 and 'Out of budget: the same command goes on' in stopped.out
  assert run('drafts', *words) == 0
  found = read(tmp_path / 'run' / 'results.jsonl', DraftCell)
  assert {(cell.drafter, cell.tree) for cell in found} == {
    ('markov', 0), ('markov', 8), ('block', 0), ('block', 8), ('eagle', 0), ('eagle', 8), ('lookup', 0),
  }  # fmt: skip
  for cell in found:
    assert (
      cell.error is None
      and cell.same_as_plain == 1
      and cell.all_texts == 8
      and 1 <= cell.tokens <= 8
    )
    assert (cell.training_tokens or 0) > 0 or cell.drafter == 'lookup'
    assert cell.ms_per_token > 0 and (cell.tree > 0 or len(cell.accepted) == 7)
  text = (tmp_path / 'run' / 'drafts.md').read_text()
  assert (
    '| EAGLE | chain of 7 | 0 | 2 |' in text
    and 'DSpark 2026, Table 1' in text
    and ('At equal nodes') in text
  )
  assert (tmp_path / 'run' / 'drafts.csv').read_text().startswith('drafter,tree,')
  assert (tmp_path / 'run' / 'drafts.png').read_bytes().startswith(b'\x89PNG')
  lines = len(found)
  assert launch('drafts', *words).code == 0
  assert len((tmp_path / 'run' / 'results.jsonl').read_text().splitlines()) == lines
