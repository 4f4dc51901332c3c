"""The comparison of drafters at toy size: settings, rows, tables. And the training of one
drafter."""

import dataclasses
import itertools
import json
import pathlib
import shutil
import types

import jax
import numpy as np
import pytest

import fastdec as fd
from configs import drafts, presets
from experiments import drafters
from experiments.drafters import Drafters, plans, speeds
from experiments.lab import networks, report, rows, train
from experiments.lab.config import to_dataclass
from experiments.lab.own import DistillConfig, translations
from experiments.lab.text import TextConfig
from experiments.lab.workdir import Workdir
from fastdec import folders
from fastdec.cli.own_text import save_texts
from fastdec.errors import UserError
from fastdec.folders.drafts import load_draft
from fastdec.heads.block import BlockNetwork
from fastdec.heads.eagle import EagleNetwork
from fastdec.models.lm import LM, LMConfig
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.training import run as training_run
from fastdec.training import stage
from fastdec.training.drafts.settings import BlockConfig
from fastdec.training.run import RunConfig
from tests.experiments.conftest import ROOT, run, with_settings

TASKS = 'translation', 'lm'
BASES = {'translation': Transformer(TransformerConfig(vocab_size=4000))}
BASES['lm'] = LM(LMConfig(vocab_size=4000))


def settings(choices='scale=multi30k', **changed):
  return to_dataclass(Drafters, with_settings(drafts.get_config(choices), changed))


# --- settings and rows


@pytest.mark.parametrize(('choice', 'base'), [('kind=six', ''), ('kind=all', 'model.gguf')])
def test_answers_of_a_model_need_that_model_and_draft_networks_only(choice, base, tmp_path):
  (tmp_path / 'held-out.jsonl').touch()
  c = settings(f'scale=smoke,task=lm,{choice}', **{'data.own': str(tmp_path), 'base': base})
  with pytest.raises(UserError, match='has answers of a published model: give it as'):
    drafters.drafters(c, Workdir(tmp_path / 'out', {}))


@pytest.mark.parametrize('scale', ['smoke', 'tiny', 'multi30k'])
@pytest.mark.parametrize('task', TASKS)
def test_every_choice_is_the_table_or_a_training(scale, task):
  assert settings(f'scale={scale},task={task}').task == task
  for kind, regime in itertools.product(('eagle', 'block', 'heads'), ('regular', 'both')):
    config = drafts.get_config(f'scale={scale},task={task},kind={kind},regime={regime}')
    c = to_dataclass(networks.settings_of(kind), config)
    assert (c.task, c.kind, c.regime) == (task, kind, regime)
    if kind != 'heads':
      module = c.draft.network(BASES[task])
      assert c.draft.depth == 7 and module.reads_source == (task == 'translation')


LONG = {'table.gamma': 9, 'table.nodes': (16,)}


def test_a_draft_without_rows_may_be_shorter():
  longer = {'table.eagle.guesses': 9, 'table.rows': ('eagle',)}
  assert settings(**LONG, **longer).table.gamma == 9


@pytest.mark.parametrize('setting, message', [
  ({'table.rows': ('eagle', 'oracle')}, r"config.table.rows\[1\]='oracle' .* one of heads, roote"),
  ({'table.nodes': (4,)}, r'config.table.nodes\[0\]=4 is not possible: give 8 or more'),
  (LONG, 'config.table.gamma=9 is not possible: config.table.block makes 7'),
  ({'table.temperatures': (-1.0,)}, r'config.table.temperatures\[0\]=-1.0 is not possible'),
  ({'table.distill.beam': 4}, 'config.table.distill writes what the base itself does'),
  ({'table.block.markov_kind': 'odd'}, "markov_kind='odd' .* one of vanilla, gated, rnn"),
  ({'table.eagle.init': 'zero'}, "config.draft.init='zero' is not a folder: give one with"),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting, message):
  with pytest.raises(fd.UserError, match=message):
    settings(**setting)


def test_the_rows():
  groups = plans(settings().table)
  rows = [tuple(plan.values()) for group in groups for plan in group]
  assert len(rows) == len(set(rows)) == 2 * 2 * (6 * 4 + 2)
  trees = [row[1] for row in rows if row[0] == 'eagle' and row[2:] == (0.0, 8)]
  assert trees == [0, 8, 16, 32]
  assert {row[1] for row in rows if row[0] in ('model', 'lookup')} == {0}
  for group in groups:  # batch sizes are measured together
    assert [plan['batch'] for plan in group] == [1, 8]
    assert len({tuple(plan.values())[:3] for plan in group}) == 1


def test_six_networks_are_measured_as_chains_and_trees():
  table = settings('scale=multi30k,kind=six').table
  rows = [tuple(plan.values()) for group in plans(table) for plan in group]
  assert {row[0] for row in rows} == set(drafters.SIX) and len(rows) == 6 * 5 * 2 * 2
  assert {row[1] for row in rows} == {0, 8, 16, 32, 64} and {row[3] for row in rows} == {1, 32}


def test_what_can_be_swept_are_fields_of_the_rows():
  config = drafts.get_config('scale=tiny')
  assert set(drafts.PAPER.axes) == set(drafters.PLAN)
  for part, name in (setting.split('.') for setting in drafts.PAPER.axes.values()):
    assert isinstance(config[part][name], tuple)


def test_drafters_are_trained_as_their_rows_say(tmp_path, monkeypatch):
  made = {}
  monkeypatch.setattr(
    Workdir, 'stage', lambda work, name, make, **inputs: made.update({name: inputs})
  )
  c = settings()
  for name in (*drafters.HEADS, *drafters.NETWORKS):
    drafters.train_drafter(c, Workdir(tmp_path), tmp_path / 'base', name)
    assert (made[name]['run'], made[name]['base']) == (c.train, tmp_path / 'base')
  heads = [made[name]['heads'] for name in drafters.HEADS]
  assert [(one.rooted, one.markov) for one in heads] == [(False, 0), (True, 0), (True, 64)]
  drafts = {name: made[name]['draft'] for name in drafters.NETWORKS}
  assert [drafts[name].layers for name in ('block', 'block-2')] == [1, 2]
  edges = [drafts[name].edge for name in drafters.SIX[1:]]
  assert edges == ['markov', 'none', 'rnn', 'selector', 'correlator']
  assert [name for name in drafters.SIX[1:] if drafts[name].causal] == ['jetspec']
  assert [name for name in drafters.SIX[1:] if drafts[name].conv] == ['dflash-2']
  assert len({made[name]['order'] for name in (*drafters.HEADS, *drafters.NETWORKS)}) == 1


def test_a_key_names_the_base_and_the_drafter_and_what_was_not_trained_has_none(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(drafters.folders, 'content', lambda folder: folder.name)
  monkeypatch.setattr(drafters.folders, 'draft_content', lambda folder: f'draft {folder.name}')
  monkeypatch.setattr(drafters.Bench, 'text', types.SimpleNamespace(content='abc'))
  c = settings(**{'table.rows': ('heads', 'block', 'eagle', 'lookup')})
  trained = {}
  for name in ('heads', 'block'):
    trained[name] = drafters.Trained(name, tmp_path / name, c.train, c.data)
  groups = drafters.keys(c, drafters.Bench(tmp_path / 'base', c.data.originals, c.table), trained)
  models = {group[0]['drafter']: group[0]['models'] for group in groups}
  assert models == {'heads': 'base draft heads', 'block': 'base draft block', 'lookup': 'base'}
  settings_of_figures = {'split', 'sentences', 'timed', 'max_len', 'repeats', 'calibrated', 'gamma'}
  for group in groups:
    for key in group:
      assert settings_of_figures | {'prompt', 'content', 'task', 'seed'} <= key.keys()


# --- tables


def a_row(drafter, tree, tokens, nodes=8, temperature=0.0, batch=1, **figures):
  key = dict(zip(drafters.PLAN, (drafter, tree, temperature, batch), strict=True))
  return key | {'tokens': tokens, 'nodes': nodes, 'plain_ms': 2.0} | figures


def test_rows_are_sorted_by_temperature_batch_drafter_and_tree():
  known = [a_row('eagle', 8, 3.5, batch=8), a_row('eagle', 8, 3.0), a_row('eagle', 0, 3.0)]
  failed = a_row('lookup', 0, None, error='MemoryError: too large') | {'nodes': None}
  lines = report.markdown(speeds([*known, failed])).splitlines()
  assert [tuple(map(str.strip, line.split('|')[1:6])) for line in lines if '| 0 |' in line] == [
    ('EAGLE', 'chain of 7', '0', '1', '8'),
    ('EAGLE', 'tree of 8', '0', '1', '8'),
    ('prompt lookup', 'chain', '0', '1', 'failed: MemoryError: too large'),
    ('EAGLE', 'tree of 8', '0', '8', '8'),
  ]


def test_each_loss_is_a_line():
  rows = [a_row('eagle', 0, 3.0), a_row('eagle', 16, 3.5, nodes=16, temperature=1.0)]
  rows += [a_row('eagle-kl', 0, 3.25), a_row('eagle-kl', 16, None, error='too large')]
  lines = report.markdown(drafters.by_loss(rows)).splitlines()
  cells = [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines if '|' in line]
  assert cells[0] == ['Drafter', 'Training tokens', 'chain of 7, T = 0', 'tree of 16, T = 1']
  assert cells[2:] == [['EAGLE', '–', '3.00', '3.50'], ['EAGLE, KL', '–', '3.25', '–']]


def test_calls_that_are_saved_have_a_line_for_each_batch_size():
  rows = [a_row('domino', 0, 3.0, batch=batch, tokens_per_call=5 / batch) for batch in (1, 2)]
  rows.append(a_row('domino', 16, 3.5, nodes=16, batch=2, tokens_per_call=2.75))
  lines = report.markdown(drafters.fewer_calls(rows)).splitlines()
  cells = [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines if '|' in line]
  assert cells[0][:2] == ['Drafter', 'Batch'] and cells[0][4:] == [
    'chain of 7, T = 0',
    'tree of 16, T = 0',
  ]
  assert [(*line[:2], *line[4:]) for line in cells[2:]] == [
    ('Domino', '1', '5.00', '–'),
    ('Domino', '2', '2.50', '2.75'),
  ]
  assert (
    drafters.summary(rows[0]) == 'Domino, chain of 7, temperature 0, batch 1: 3.00 tokens a call'
  )


def test_a_loss_changes_what_its_name_says(tmp_path, monkeypatch):
  made = {}
  monkeypatch.setattr(
    Workdir, 'stage', lambda work, name, make, **inputs: made.update({name: inputs})
  )
  c = settings('scale=smoke,kind=losses')
  assert c.table.rows == ('eagle', *drafters.LOSSES)
  for name in c.table.rows:
    drafters.train_drafter(c, Workdir(tmp_path), tmp_path / 'base', name)
  losses = {made[name]['loss'] for name in c.table.rows}
  assert len(losses) == len(c.table.rows)
  assert made['eagle']['loss'].ce == 1 and made['eagle-kl']['loss'].kl == 1
  assert len({made[name]['draft'] for name in c.table.rows}) == 1


def test_acceptance_and_the_picture(tmp_path):
  chain = a_row('eagle', 0, 3.0, accepted=[0.5, None], training_tokens=9)
  rows = [chain, a_row('eagle', 8, 2.5)]
  table = report.markdown(drafters.acceptance(rows))
  assert '| EAGLE | 0 | 3.00 | 50.0 | – |' in table and table.count('EAGLE') == 1
  assert '| Drafter | T | Tokens |' in report.markdown(drafters.acceptance([]))
  curves = {'eagle': {'dev': [(4, 1.5), (9, 3.0)], 'training': [(4, 1.6)]}}
  drafters.learning(curves, rows, tmp_path / 'drafts.png')
  assert (tmp_path / 'drafts.png').stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize('kind', [*TASKS, 'six'])
def test_all_at_toy_size(kind, tmp_path, launch):
  choice = f'task={kind}' if kind in TASKS else 'kind=six'
  words = [f'--config={ROOT}/configs/drafts.py:scale=smoke,{choice}', f'--workdir={tmp_path}/run']
  if kind == 'six':
    words += ['--config.table.repeats=0', '--config.table.batches=(1,4)']
  words += ['--config.data.max_train=200', f'--config.data.cache={tmp_path}/cache']
  stopped = launch('drafts', *words, '--budget=0')
  assert stopped.code == 0 and 'Out of budget: the same command continues' in stopped.out
  ended = launch('drafts', *words)
  assert ended.code == 0, ended.out
  results = tmp_path / 'run' / 'results.jsonl'
  lines = rows.read(results)
  if kind == 'six':
    shapes = set(itertools.product(drafters.SIX, (0, 8), (1, 4)))
    assert {(row['drafter'], row['tree'], row['batch']) for row in lines} == shapes
    for row in lines:
      assert row['same_as_plain'] == 1 and 1 <= row['tokens_per_call'] <= 8
      assert row['batch'] > 1 or row['tokens_per_call'] == pytest.approx(row['tokens'])
    page = (tmp_path / 'run' / 'drafts.md').read_text()
    assert 'Tokens a call by shape' in page and '| LiLiCorr | 4 |' in page
    return
  trees = {(name, tree) for name in ('markov', 'block', 'eagle') for tree in (0, 8)}
  assert {(row['drafter'], row['tree']) for row in lines} == trees | {('lookup', 0)}
  for row in lines:
    assert row['same_as_plain'] == 1 and row['all_texts'] == 8 and 1 <= row['tokens'] <= 8
    assert row.get('training_tokens', 0) > 0 or row['drafter'] == 'lookup'
    assert row['ms_per_token'] > 0 and (row['tree'] > 0 or len(row['accepted']) == 7)
  page = (tmp_path / 'run' / 'drafts.md').read_text()
  assert '| EAGLE | chain of 7 | 0 | 2 |' in page and 'Acceptance by position' in page
  before = results.read_bytes()
  assert launch('drafts', *words).code == 0 and results.read_bytes() == before


@pytest.mark.slow
def test_the_base_may_be_any_language_model_with_its_answers(talker, tmp_path, launch):
  texts = tmp_path / 'texts'  # as fastdec train-draft writes them
  texts.mkdir()
  ids = fd.load_tokenizer(talker).encode('A man in a park')
  save_texts(texts, [(ids, ids)] * 9, [(ids, ids)] * 2)
  lines = [json.dumps({'category': 'text', 'prompt': '', 'ids': ids[:n]}) for n in (2, 3)]
  (texts / 'held-out.jsonl').write_text('\n'.join(lines))
  words = [f'--config={ROOT}/configs/drafts.py:scale=smoke,task=lm,kind=six']
  words += [f'--workdir={tmp_path}/run', f'--config.base={talker}', '--config.table.repeats=0']
  words += [f'--config.data.own={texts}', '--config.table.batches=(1,)']
  ended = launch('drafts', *words, "--config.table.rows=('domino', 'eagle')")
  assert ended.code == 0, ended.out + ended.err
  lines = rows.read(tmp_path / 'run' / 'results.jsonl')
  assert {(row['drafter'], row['tree']) for row in lines} == set(
    itertools.product(('domino', 'eagle'), (0, 8))
  )
  assert all(row['same_as_plain'] == 1 and row['all_texts'] == 2 for row in lines)


# --- the training of one drafter


SETTINGS = {
  'data.max_train': 200,
  'data.vocab_size': 300,
  'train.steps': 3,
  'train.every': 2,
  'train.rows': 4,
  'finetune.steps': 3,
  'finetune.rows': 4,
}


@dataclasses.dataclass(frozen=True)
class Made:
  """Folders of two bases, and of text that the first has written."""

  base: pathlib.Path
  other: pathlib.Path
  own: pathlib.Path
  cache: pathlib.Path


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  folder = tmp_path_factory.mktemp('drafters')
  places = Made(*(folder / name for name in ('base', 'other', 'own', 'cache')))
  data = TextConfig(vocab_size=300, rows=8, max_train=200, cache=str(places.cache))
  model = presets.model('translation', width=32, layers=1)
  steps = RunConfig(steps=2, warmup=1, every=2)
  train.base(places.base, model=model, run=steps, data=data, seed=0)
  model, params = fd.load(places.base)
  pieces = places.base / 'model' / 'tokenizer.model'
  folders.save(model, jax.tree.map(lambda x: x + 1, params), places.other / 'model', None, pieces)
  places.own.mkdir()
  distill = DistillConfig(beam=1, max_len=(0, 9), rows=32)
  translations(places.own, model=places.base, data=data, distill=distill)
  return places


@pytest.fixture(scope='module')
def words(made):
  """The words of a command of `experiments.train`, but for --workdir."""

  def words(choices='kind=eagle', **changed):
    values = SETTINGS | ({} if 'kind=heads' in choices else {'loss.anchors': 4})
    values |= {'data.cache': made.cache, 'base': made.base, 'data.own': made.own}
    page = f'{ROOT}/configs/drafts.py:scale=smoke,{choices}'
    leaves = [f'--config.{name}={value}' for name, value in (values | changed).items()]
    return [f'--config={page}', *(word.replace('{other}', str(made.other)) for word in leaves)]

  return words


def same(a, b):
  leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  return all(np.array_equal(x, y) for x, y in leaves)


EAGLE = {'loss.passes': 2, 'draft.guesses': 3, 'draft.words': 40, 'draft.taps': '(1,)'}


@pytest.fixture(scope='module')
def whole(words, tmp_path_factory):
  """A run that nothing has stopped."""
  folder = tmp_path_factory.mktemp('whole') / 'run'
  assert run('train', *words(**EAGLE), f'--workdir={folder}') == 0
  return folder


def test_a_draft_is_trained_and_calibrated(whole, words, launch):
  module, params = load_draft(whole)
  assert isinstance(module, EagleNetwork) and module.taps == (1,) and module.words == 40
  assert params['warmth'].shape == (3,) and params['ids'].shape == (40,)
  assert 1 in params['ids'].tolist()  # the end of every sentence is frequent
  again = launch('train', *words(**EAGLE), f'--workdir={whole}')
  assert again.code == 0 and 'run is finished: its draft is in' in again.out


@pytest.mark.slow
def test_a_draft_continues_where_it_stopped(whole, words, launch, tmp_path, monkeypatch):
  with monkeypatch.context() as patched:
    patched.setattr(training_run, 'seconds_left', lambda: 0.0)  # a step a call
    ended = launch('train', *words(**EAGLE), f'--workdir={tmp_path}/parts')
    assert 'Out of budget: the same command continues' in ended.out
  other = launch('train', *words(**EAGLE | {'loss.kl': 0.5}), f'--workdir={tmp_path}/parts')
  assert other.code == 2 and 'parts was made with other settings (loss): choose' in other.err
  ended = launch('train', *words(**EAGLE), f'--workdir={tmp_path}/parts')
  assert ended.code == 0 and f'The draft is in {tmp_path}/parts/draft' in ended.out, ended.err
  assert 'dev tokens a call' in ended.out and 'training accuracy 3' in ended.out
  assert not (tmp_path / 'parts' / 'checkpoints').exists()
  assert same(load_draft(tmp_path / 'parts')[1], load_draft(whole)[1])


@pytest.mark.slow
def test_a_block_is_trained(words, launch, tmp_path):
  smaller = {'draft.k': 4, 'draft.markov': 3}
  assert launch('train', *words('kind=block', **smaller), f'--workdir={tmp_path}/block').code == 0
  module, params = load_draft(tmp_path / 'block')
  assert isinstance(module, BlockNetwork) and module.k == 4 and params['before'].shape == (300, 3)
  assert params['warmth'].shape == (3,)


@pytest.mark.slow
def test_heads_that_read_the_root_are_trained_on_own_text(made, words, launch, tmp_path):
  smaller = {'k': 3, 'heads.d_ff': 8, 'heads.markov': 3}
  ended = launch('train', *words('kind=heads', **smaller), f'--workdir={tmp_path}/heads')
  assert ended.code == 0 and 'The model is in' in ended.out, ended.err
  heads, params = fd.load_heads(tmp_path / 'heads')
  assert json.loads((tmp_path / 'heads' / 'settings.json').read_text())['heads']['anchors'] == 16
  assert heads.k == 3 and heads.rooted and heads.markov == params['before'].shape[1] == 3
  base, trunk = fd.load(made.base)
  model, same_trunk = fd.load(tmp_path / 'heads')
  assert model == base and same(same_trunk, trunk)


@pytest.mark.slow
def test_both_are_trained_together_on_a_teachers_text(made, words, launch, tmp_path):
  distilled = {'data.own': '', 'data.distilled': made.own, 'draft.guesses': 1}
  ended = launch(
    'train', *words('kind=eagle,regime=both', **distilled), f'--workdir={tmp_path}/both'
  )
  assert ended.code == 0, ended.err
  model, params = fd.load(tmp_path / 'both')
  base, before = fd.load(made.base)
  assert model == base and not same(params, before)
  assert isinstance(load_draft(tmp_path / 'both')[0], EagleNetwork)


@pytest.mark.slow
def test_a_draft_may_begin_as_one_that_was_trained(whole, words, launch, tmp_path):
  """At a rate of next to nothing it stays what it was; a stage names it by its content."""
  shutil.copytree(whole, tmp_path / 'first')
  first = load_draft(tmp_path / 'first')[1]
  rest = {'draft.init': f'{tmp_path}/first', 'train.constant': 3e-7}
  ended = launch('train', *words(**EAGLE | rest), f'--workdir={tmp_path}/second')
  assert ended.code == 0, ended.err
  second = load_draft(tmp_path / 'second')[1]
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), second, first)
  keys = [
    stage.digest({'draft': BlockConfig(init=f'{tmp_path}/{name}')}) for name in ('first', 'second')
  ]
  assert keys[0] != keys[1]
  (tmp_path / 'first').rename(tmp_path / 'moved')
  moved = dataclasses.replace(BlockConfig(), init=f'{tmp_path}/moved')
  assert stage.digest({'draft': moved}) == keys[0]
  rest['draft.init'] = f'{tmp_path}/moved'
  free = {'draft.dropout': 0.1, 'draft.words': 30}
  ended = launch('train', *words(**EAGLE | rest | free), f'--workdir={tmp_path}/third')
  assert ended.code == 2 and '(words): give the same settings' in ended.err
  ended = launch('train', *words('kind=block', **rest), f'--workdir={tmp_path}/third')
  assert ended.code == 2 and '(kind, ' in ended.err


@pytest.mark.parametrize(
  ('choices', 'changed', 'phrases'),
  [
    ('kind=all', {}, ['kind=all is the table of experiments.drafts']),
    ('kind=eagle', {'base': ''}, ['name its workdir by --config.base=']),
    ('kind=eagle', {'base': '{other}'}, ['was written by another model than']),
    ('kind=eagle', {'data.own': 'nowhere'}, ["there is no folder 'nowhere' with own text"]),
    ('kind=eagle', {'data.vocab_size': 290}, ['was trained on other text than this config means']),
    ('kind=eagle,task=lm', {}, ['task=lm means a base that is a LM', 'holds a Transformer']),
    ('kind=eagle,regime=both', {}, ["regime=both trains the base too, on a teacher's text"]),
    ('kind=eagle', {'draft.taps': '(0, 5)'}, ['taps=(0, 5) has layer 5', 'from 0']),
    ('kind=eagle', {'draft.words': 301}, ['config.draft.words=301', 'the base has 300 words']),
    ('kind=eagle', {'draft.layers': 2}, ['init=target with 2 layers, and the target has 1']),
    ('kind=eagle', {'draft.entry': 'beside'}, ["need entry='joined'"]),
    ('kind=block', {'draft.markov_kind': 'odd'}, ["markov_kind='odd' is not possible"]),
    ('kind=eagle', {'draft.init': ''}, ["config.draft.init='' is not a folder"]),
  ],
)
def test_mistakes_are_sentences_and_nothing_is_made(
  choices, changed, phrases, words, launch, tmp_path
):
  command = words(choices, **changed)
  if choices == 'kind=all':
    command = command[:1]
  ended = launch('train', *command, f'--workdir={tmp_path}/out')
  assert ended.code == 2 and all(phrase in ended.err for phrase in phrases), ended.err
  made = {file.name for file in (tmp_path / 'out').glob('*')}
  assert made <= {'lock', 'settings.json'}  # so a corrected command can use the folder
