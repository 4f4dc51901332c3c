"""`experiments.tune` by the command line: one run end to end, its file used by others, and
mistakes."""

import json

import pytest

import fastdec as fd
from experiments.tools import candidates, generation
from experiments.tools.candidates import Candidate, Sizes
from experiments.tools.generation_settings import Settings
from experiments.tools.tuned_file import ROWS, rows_at_once
from fastdec.evaluation import machine
from fastdec.quantized import is_quantized
from fastdec.tuning.tuned import Tuned

PROMPTS = ['a dog runs', 'the cat sits', 'a cat', 'the dog sits', 'a dog', 'the cat runs']


@pytest.fixture
def prompts(tmp_path):
  path = tmp_path / 'prompts.txt'
  path.write_text('\n'.join(PROMPTS) + '\n')
  return path


@pytest.mark.slow
def test_what_is_tuned_is_used_by_name(translator, launch, prompts, tmp_path):
  words = (
    f'--model={translator}',
    f'--prompts={prompts}',
    '--max_len=8',
    '--budget=90s',
    '--gammas=2',
    '--nodes=3',
  )
  words += ('--dtypes=float32,int8', '--batches=1,2')
  ended = launch(
    'tune',
    *words,
    f'--heads={translator}',
    f'--draft={translator}',
    f'--output={tmp_path}/tuned.json',
  )
  assert ended.code == 0, ended.err
  for name in (
    'greedy',
    'draft gamma=2',
    'heads gamma=2',
    'lookup gamma=2',
    'greedy, int8',
    'greedy, int8, 2 rows',
  ):
    assert f'{name} ' in ended.out
  assert 'at once in ' in ended.out and f'use it by --strategy={tmp_path}/tuned.json' in ended.out
  names = [
    one['name'] for one in json.loads((tmp_path / 'tuned.json').read_text())['figures']['table']
  ]
  assert names[0] == 'greedy' and {'draft gamma=2', 'heads gamma=2', 'lookup gamma=2'} < set(names)
  found = fd.load_tuned(translator, file=tmp_path / 'tuned.json')
  assert found.rows in (1, 2) and found.dtype in ('float32', 'int8')


@pytest.fixture
def tuned(translator, tmp_path):
  """A file that chose the translator's own heads in blocks of two."""
  strategy = fd.Blockwise(fd.load_heads(translator), 2)
  found = Tuned(
    'heads',
    'of this test',
    'greedy',
    'exact',
    1,
    8,
    6,
    1.0,
    1.0,
    machine.here(),
    (),
    strategy=strategy,
  )
  return found.save(translator, translator, tmp_path / 'tuned.json')


def test_generate_and_translate_use_what_was_tuned(translator, launch, tuned, prompts, tmp_path):
  model = (f'--model={translator}', '--max_len=12')
  by_heads = launch(
    'generate', *model, '--prompt=a dog sits', '--repeats=0', f'--heads={translator}', '--gamma=1'
  )
  ended = launch('generate', *model, '--prompt=a dog sits', '--repeats=0', f'--strategy={tuned}')
  assert ended.code == 0, ended.err
  assert ended.out == by_heads.out and ', accepted at 1: ' in ended.out.replace('\n', ', ')
  words = (*model, f'--prompts={prompts}', f'--output={tmp_path}/out.jsonl')
  assert launch('generate', *words, f'--strategy={tuned}').code == 0
  ended = launch('generate', *words)
  assert ended.code == 2 and 'made with other settings' in ended.err
  ended = launch(
    'translate',
    f'--workdir={translator}',
    f'--strategy={tuned}',
    '--max_len=12',
    '--plain',
    'a dog sits',
  )
  assert ended.code == 0 and ended.out == launch(
    'translate', f'--workdir={translator}', '--max_len=12', '--plain', 'a dog sits'
  ).out  # fmt: skip


def test_the_type_that_was_tuned_is_used(translator, launch, tmp_path):
  strategy = fd.Blockwise(fd.load_heads(translator, 'int8'), 2)
  found = Tuned(
    'heads',
    'of this test',
    'greedy',
    'exact',
    1,
    8,
    6,
    1.0,
    1.0,
    machine.here(),
    (),
    dtype='int8',
    strategy=strategy,
  )
  tuned = found.save(translator, translator, tmp_path / 'tuned.json')
  assert rows_at_once(None, str(translator), str(tuned)) == 1  # and not what it is without a file
  assert (
    rows_at_once(3, str(translator), str(tuned)) == 3
    and rows_at_once(None, str(translator), None) == ROWS
  )
  model = (f'--model={translator}', '--max_len=12', '--prompt=a dog sits', '--repeats=0')
  given = launch('generate', *model, f'--heads={translator}', '--gamma=1', '--dtype=int8')
  ended = launch('generate', *model, f'--strategy={tuned}')
  assert given.code == ended.code == 0 and given.out == ended.out, given.err + ended.err
  language = generation.Language.of(
    Settings(str(translator), strategy=str(tuned), max_len=8), ['a dog']
  )
  assert is_quantized(language.load().params)
  words = (f'--workdir={translator}', '--max_len=12', '--plain', 'a dog sits')
  by_type, by_name = (
    launch('translate', *words, word) for word in ('--dtype=int8', f'--strategy={tuned}')
  )
  assert by_type.code == by_name.code == 0 and by_type.out == by_name.out


def test_a_damaged_file_is_told_by_who_loads_it(translator, launch, tmp_path):
  (tmp_path / 'tuned.json').write_text('{"figures": [1]}')
  assert rows_at_once(None, str(translator), f'{tmp_path}/tuned.json') == ROWS
  (tmp_path / 'x').write_text('a dog')
  files = (f'--prompts={tmp_path}/x', f'--output={tmp_path}/y', f'--strategy={tmp_path}/tuned.json')
  ended = launch('generate', f'--model={translator}', '--max_len=8', *files)
  assert ended.code == 2 and 'Traceback' not in ended.err and 'tuned.json' in ended.err, ended.err


@pytest.mark.parametrize('command, words, message', [
  ('generate', ['--strategy=tuned'], 'tuned.json is not there: make it by python -m'
                                     ' experiments.tune'),
  ('generate', ['--strategy=fast'], "--strategy=fast is unknown: give 'tuned'"),
  ('generate', ['--strategy=tuned', '--lookup'], '--lookup and --strategy each say how to draft'),
  ('generate', ['--strategy=tuned', '--gamma=2'], '--strategy=tuned has its own --gamma'),
  ('generate', ['--strategy=tuned', '--dtype=int8'], '--strategy=tuned has its own type of numbers'),
  ('translate', ['--strategy=tuned', '--dtype=int8'], '--strategy=tuned has its own type of numbers'),
  ('generate', ['--dtype=int4'], "dtype='int4' is not possible: give one of"),
  ('translate', ['--dtype=int4'], "dtype='int4' is not possible: give one of"),
  ('generate', ['--strategy=tuned', '--temperature=1'], '--strategy=tuned has its own --gamma,'
                                                        ' --temperature'),
  ('translate', ['--strategy=tuned'], 'tuned.json is not there: make it by python -m'
                                      ' experiments.tune'),
  ('translate', ['--strategy=tuned', '--beam=2'], '--strategy=tuned and --beam=2 each say how to'
                                                  ' decode'),
])  # fmt: skip
def test_mistakes_about_what_was_tuned_are_one_sentence(
  translator, launch, command, words, message
):
  place = (
    [f'--model={translator}', '--prompt=a dog', '--max_len=8']
    if command == 'generate'
    else [f'--workdir={translator}', 'a dog']
  )
  ended = launch(command, *place, *words)
  assert ended.code == 2 and message in ended.err, ended.err


@pytest.mark.parametrize('words, message', [
  (['--budget=soon'], '--budget=soon is no time'),
  (['--dtypes=int4'], "dtype='int4' is not possible: give one of"),
  (['--dtypes=int8,int8'], '--dtypes=int8,int8 has a type twice'),
  (['--dtypes='], '--dtypes= names no type'),
  (['--batches=0'], '--batches=0 is not possible: give whole numbers from 1'),
  (['--batches=2,2'], '--batches=2,2 has a number twice'),
  (['--batches=1,2', '--rows=2'], '--rows and --batches mean the same here'),
  (['--gammas=2,x'], '--gammas=2,x is not possible: give whole numbers from 1 to 999'),
  (['--nodes=1'], '--nodes=1 is not possible: give whole numbers from 2 to 999'),
  (['--promise=exact', '--temperature=1'], '--temperature=1 samples, which is never exact: give'
                                           ' --promise=law'),
  (['--promise=law'], '--promise=law is about sampling'),
  (['--promise=fast'], '--promise=fast is not possible'),
  (['--choices=mc_sim_7b_63'], '--choices=mc_sim_7b_63 is about a tree of drafts'),
  (['--heads={wide}'], 'these heads are for hidden states of 6'),
  (['--heads={wide}', '--medusa={wide}'], '--heads and --medusa mean the same here'),
  (['--draft={wide}x'], 'is not a folder'),
  (['--prompts={wide}'], 'give a text file with a prompt on each line'),
])  # fmt: skip
def test_mistakes_are_one_sentence(translator, launch, prompts, words, message):
  given = [word.format(wide=translator.parent / 'wide') for word in words]
  ended = launch('tune', f'--model={translator}', f'--prompts={prompts}', '--max_len=8', *given)
  assert ended.code == 2 and message in ended.err, ended.err
  assert not (translator / 'tuned.json').exists()


def test_families_are_tried_in_turn_the_longest_first():
  lookup = candidates.of_lookup(Settings('m'), Sizes())
  assert [one.strategy.k for one in lookup[0].values()] == [10, 3, 5]
  ahead = candidates.of_lookahead(Settings('m'))
  assert [one.strategy.drafter.nodes for one in ahead[0].values()] == [27, 8]
  one, two = (
    {'a': Candidate(fd.Greedy()), 'b': Candidate(fd.Greedy())},
    {'c': Candidate(fd.Greedy())},
  )
  assert list(candidates.in_turn([one, two])) == ['a', 'c', 'b']


def test_sizes_that_were_asked_for_are_those_that_are_tried(translator):
  heads = fd.load_heads(translator)  # of two tokens
  tree = [[0], [1], [0, 0], [2], [0, 1]]
  asked = candidates.of_heads(
    Settings('m', heads='h'), Sizes((1, 2, 3), (2, 4, 64)), heads, tree, False
  )
  assert [list(family) for family in asked] == [
    ['heads gamma=1', 'heads gamma=2'],
    ['heads nodes=2', 'heads nodes=4'],
    [],
  ]
  own = candidates.of_heads(Settings('m', heads='h'), Sizes(), heads, tree, True)
  assert [list(family) for family in own] == [
    ['heads gamma=2', 'heads gamma=1'], ['heads nodes=6'],
    ['heads gamma=2 top-2', 'heads gamma=2 top-3', 'heads typical'],
  ]  # fmt: skip
  assert all(one.part == 'h' for family in own for one in family.values())


def test_a_tree_in_any_order_has_beginnings_that_are_trees(tmp_path):
  file = tmp_path / 'tree.json'
  for given, order in (
    ([[0], [1], [0, 0]], [[0], [1], [0, 0]]),
    ([[0, 0], [0], [1]], [[0], [1], [0, 0]]),
  ):
    file.write_text(json.dumps(given))
    assert candidates.whole_tree(str(file)) == order
