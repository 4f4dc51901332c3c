"""Training runs of draft networks: what they write, that they go on as if they had not stopped,
what they refuse."""

import json
import re

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec import folders
from fastdec.folders.drafts import draft_content, load_draft
from fastdec.heads.block import BlockNetwork
from fastdec.heads.eagle import EagleNetwork
from tests.experiments.conftest import ROOT, run

SETTINGS = {
  'data.max_train': 200,
  'data.vocab_size': 300,
  'train.steps': 4,
  'train.every': 2,
  'train.rows': 4,
  'finetune.steps': 3,
  'finetune.rows': 4,
}


@pytest.fixture(scope='module')
def own(table, tmp_path_factory):
  """What the base itself writes."""
  folder = tmp_path_factory.mktemp('own') / 'out'
  words = table.words(**{'distill.beam': 1, 'distill.max_len': '(0, 9)', 'distill.rows': 32})
  assert run('distill', *words, f'--teacher={table.folder}/base', f'--workdir={folder}') == 0
  return folder


@pytest.fixture
def words(table, own):
  """The words of a command of `experiments.train`, but for --workdir."""

  def words(choices='kind=eagle', **changed):
    of_kind = {} if 'kind=heads' in choices else {'loss.anchors': 4}
    places = {'data.cache': table.cache, 'base': f'{table.folder}/base', 'data.own': own}
    settings = SETTINGS | of_kind | places | changed
    page = f'{ROOT}/configs/drafts.py:scale=smoke,{choices}'
    return [f'--config={page}', *(f'--config.{name}={value}' for name, value in settings.items())]

  return words


def same(a, b):
  return all(
    np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  )


def test_an_autoregressive_draft_is_trained_and_calibrated_and_the_run_goes_on_where_it_was(
  words, launch, tmp_path
):
  settings = {'loss.passes': 2, 'draft.guesses': 3, 'draft.words': 40, 'draft.taps': '(1,)'}
  whole = launch('train', *words(**settings), f'--workdir={tmp_path}/whole')
  assert whole.code == 0 and f'The draft is in {tmp_path}/whole/draft' in whole.out
  assert re.search(r'dev tokens a call [1-4]\.\d+ .* training accuracy 3 0', whole.out)
  module, params = load_draft(tmp_path / 'whole')
  assert isinstance(module, EagleNetwork) and module.taps == (1,) and module.words == 40
  assert params['warmth'].shape == (3,) and params['ids'].shape == (40,)
  assert 1 in params['ids'].tolist()  # the end of every sentence is frequent
  for _ in range(4):
    assert (
      launch('train', *words(**settings), f'--workdir={tmp_path}/parts', '--budget=0').code == 0
    )
  assert not (tmp_path / 'parts' / 'checkpoints').exists()
  assert same(load_draft(tmp_path / 'parts')[1], params)
  again = launch('train', *words(**settings), f'--workdir={tmp_path}/whole')
  assert again.code == 0 and 'is finished: its draft is in' in again.out


def test_a_block_is_trained(words, launch, tmp_path):
  ended = launch(
    'train',
    *words('kind=block', **{'draft.k': 4, 'draft.markov': 3}),
    f'--workdir={tmp_path}/block',
  )
  assert ended.code == 0
  module, params = load_draft(tmp_path / 'block')
  assert isinstance(module, BlockNetwork) and module.k == 4 and params['before'].shape == (300, 3)
  assert params['warmth'].shape == (3,)


def test_heads_that_read_the_root_are_trained_on_the_base_s_own_text(
  table, words, launch, tmp_path
):
  given = {'k': 3, 'heads.d_ff': 8, 'heads.markov': 3}
  ended = launch('train', *words('kind=heads', **given), f'--workdir={tmp_path}/heads')
  assert ended.code == 0, ended.err
  heads, params = fd.load_heads(tmp_path / 'heads')
  assert json.loads((tmp_path / 'heads' / 'config.json').read_text())['heads']['anchors'] == 16
  assert heads.k == 3 and heads.rooted and heads.markov == params['before'].shape[1] == 3
  base, trunk = fd.load(table.folder / 'base')
  model, same_trunk = fd.load(tmp_path / 'heads')
  assert model == base and same(same_trunk, trunk)


def test_both_are_trained_together_on_a_teacher_s_text(table, own, words, launch, tmp_path):
  given = {'data.own': '', 'data.distilled': own, 'draft.guesses': 2, 'loss.passes': 2}
  ended = launch('train', *words('kind=eagle,regime=both', **given), f'--workdir={tmp_path}/both')
  assert ended.code == 0, ended.err
  model, params = fd.load(tmp_path / 'both')
  base, before = fd.load(table.folder / 'base')
  assert model == base and not same(params, before)
  assert isinstance(load_draft(tmp_path / 'both')[0], EagleNetwork)
  assert json.loads((tmp_path / 'both' / 'config.json').read_text())['p1_share'] == 0.5


def test_a_draft_may_begin_as_one_that_was_trained(own, words, launch, tmp_path):
  """At a rate of next to nothing it stays what it was; and the run's record names it by its
  content."""
  sizes = {'draft.guesses': 2, 'loss.passes': 2, 'draft.words': 40}
  assert launch('train', *words(**sizes), f'--workdir={tmp_path}/first').code == 0
  first = load_draft(tmp_path / 'first')[1]
  rest = {'draft.init': f'{tmp_path}/first', 'train.constant': 1e-12}
  ended = launch('train', *words(**sizes | rest), f'--workdir={tmp_path}/second')
  assert ended.code == 0, ended.err
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6),
    load_draft(tmp_path / 'second')[1],
    first,
  )
  record = json.loads((tmp_path / 'second' / 'config.json').read_text())
  assert (
    record['init'] == draft_content(tmp_path / 'first')
    and record['draft']['init'] == 'a trained draft'
  )
  free = {'draft.dropout': 0.1, 'draft.words': 30}
  ended = launch('train', *words(**sizes | rest | free), f'--workdir={tmp_path}/third')
  assert ended.code == 2 and 'holds another draft than config.draft means (words)' in ended.err
  ended = launch(
    'train',
    *words('kind=block', **{'draft.init': f'{tmp_path}/first'}),
    f'--workdir={tmp_path}/third',
  )
  assert ended.code == 2 and '(EagleNetwork for BlockNetwork)' in ended.err
  assert not (tmp_path / 'third').exists()
  (tmp_path / 'first').rename(tmp_path / 'moved')
  ended = launch('train', *words(**sizes | rest), f'--workdir={tmp_path}/fourth')
  assert (
    ended.code == 2
    and 'is no folder: give one with a trained draft, or target or fresh' in ended.err
  )


@pytest.mark.parametrize(
  ('choices', 'changed', 'told'),
  [
    ('kind=eagle', {'base': ''}, ['name its workdir by --config.base=']),
    ('kind=heads', {'base': ''}, ['name its workdir by --config.base=']),
    ('kind=heads', {'k': 1}, ['config.k=1 is not possible: give 2 or more']),
    ('kind=heads,task=lm', {}, ['task=lm means a base that is a LM', 'holds a Transformer']),
    (
      'kind=heads,regime=both',
      {},
      ["regime=both with distilled text ''", '--config.data.distilled='],
    ),
    ('kind=eagle', {'base': 'nowhere'}, ['nowhere is not a folder']),
    ('kind=eagle', {'base': '{table}/k2-finetune'}, ['was written by another model than']),
    ('kind=eagle', {'data.own': 'nowhere'}, ["there is no folder 'nowhere' with own text"]),
    ('kind=eagle', {'data.vocab_size': 290}, ['was trained on other text than this config means']),
    ('kind=eagle,task=lm', {}, ['task=lm means a base that is a LM', 'holds a Transformer']),
    ('kind=eagle,regime=both', {}, ["regime=both trains the base too, on a teacher's text"]),
    ('kind=eagle', {'draft.taps': '(0, 5)'}, ['taps=(0, 5) ask for layer 5', 'from 0']),
    ('kind=eagle', {'draft.taps': '(1, 1)'}, ['name layer 1 more than once']),
    ('kind=eagle', {'draft.words': 301}, ['config.draft.words=301', 'the base has 300 words']),
    ('kind=eagle', {'draft.layers': 2}, ['init=target with 2 layers, and the target has 1']),
    ('kind=eagle', {'draft.layers': 0}, ['config.draft.layers=0 is not possible: give 1 or more']),
    ('kind=eagle', {'draft.entry': 'beside'}, ["take entry='joined'"]),
    ('kind=eagle', {'draft.guesses': 0}, ['config.draft.guesses=0']),
    ('kind=eagle', {'loss.passes': 0}, ['passes=0 is not possible']),
    ('kind=eagle', {'loss.anchors': -1}, ['anchors=-1 is not possible']),
    ('kind=block', {'draft.k': 1}, ['config.draft.k=1 is not possible: give 2 or more']),
    ('kind=block', {'draft.markov_kind': 'odd'}, ["markov_kind='odd' is unknown"]),
    ('kind=block', {'draft.dropout': 1.0}, ['config.draft.dropout=1.0']),
    (
      'kind=block',
      {'draft.init': 'zero'},
      ["config.draft.init='zero' is no folder", 'target', 'fresh'],
    ),
    ('kind=eagle', {'draft.init': ''}, ["config.draft.init='' is no folder"]),
    ('kind=block', {'p1_share': 1.0}, ['config.p1_share=1.0']),
  ],
)
def test_mistakes_are_sentences_before_the_workdir_is_made(
  choices, changed, told, words, table, launch, tmp_path
):
  changed = {
    name: str(value).replace('{table}', str(table.folder)) for name, value in changed.items()
  }
  ended = launch('train', *words(choices, **changed), f'--workdir={tmp_path}/out')
  assert ended.code == 2 and all(word in ended.err for word in told), ended.err
  assert not (tmp_path / 'out').exists()


def test_a_workdir_of_another_draft_or_on_another_base_is_refused(words, table, launch, tmp_path):
  short = {
    'train.steps': 2,
    'train.warmup': 1,
    'train.every': 1,
    'draft.guesses': 1,
    'loss.passes': 1,
  }
  assert launch('train', *words(**short), f'--workdir={tmp_path}/out', '--budget=0').code == 0
  ended = launch('train', *words(**short | {'loss.kl': 0.5}), f'--workdir={tmp_path}/out')
  assert ended.code == 2 and 'loss.kl' in ended.err
  record = json.loads((tmp_path / 'out' / 'config.json').read_text())
  assert record['base'] == folders.content(table.folder / 'base') and record['kind'] == 'eagle'
  (tmp_path / 'out' / 'config.json').write_text(json.dumps(record | {'base': 'another'}))
  ended = launch('train', *words(**short), f'--workdir={tmp_path}/out')
  assert ended.code == 2 and 'was trained on another base than' in ended.err
