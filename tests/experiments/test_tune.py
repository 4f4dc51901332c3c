"""`experiments.tune` by the command line: one run end to end, its file used by others, and
mistakes."""

import dataclasses
import json

import pytest

import fastdec as fd
from experiments.tools import generation, tuning
from experiments.tools.generation_settings import Settings
from experiments.tools.tuned_file import ROWS, rows_at_once
from fastdec.decoding.description import label
from fastdec.evaluation import machine
from fastdec.quantized import is_quantized
from fastdec.tuning.tuned import Figures, Tuned

PROMPTS = ['a dog runs', 'the cat sits', 'a cat', 'the dog sits', 'a dog', 'the cat runs']


@pytest.fixture
def prompts(tmp_path):
  path = tmp_path / 'prompts.txt'
  path.write_text('\n'.join(PROMPTS) + '\n')
  return path


@pytest.mark.slow
def test_what_is_tuned_is_used_by_name(translator, launch, prompts, tmp_path):
  words = ('--max_len=8', '--budget=4m', '--gammas=2', '--nodes=3', '--dtypes=float32,int8')
  words += (f'--heads={translator}', f'--draft={translator}', '--batches=1,2')
  words += ('--strategy=jacobi(k=3)',)
  output = tmp_path / 'tuned.json'
  folder = (f'--model={translator}', f'--prompts={prompts}', f'--output={output}')
  ended = launch('tune', *folder, *words)
  assert ended.code == 0, ended.err
  for title in ('1 at once in float32:', '2 at once in float32:', '2 at once in int8:'):
    assert title in ended.out
  assert ended.out.count('\n  Speculative(gamma=2, same_ids=True) ') >= 3
  assert f'use it by --strategy={output}' in ended.out
  table = json.loads(output.read_text())['figures']['table']
  names = [one['name'] for one in table]
  assert names[0] == 'Greedy'
  assert {
    'Jacobi(k=3)',
    'Blockwise(k=3)',
    'PromptLookup(k=3)',
    'Speculative(gamma=2, same_ids=True)',
  } < set(names)
  assert all(one['same'] == 1 for one in table if one['rounds'])
  found = fd.load_tuned(translator, file=output)
  assert found.rows in (1, 2) and found.dtype in ('float32', 'int8')


def saved(folder, file, dtype=None):
  """A file that chose the folder's own heads in blocks of two."""
  strategy = fd.Blockwise(fd.load_heads(folder, dtype), 2)
  figures = ('heads', 'of this test', 'Greedy', 'exact', 1, 8, 6, 1.0, 1.0, machine.here(), ())
  return Tuned(*figures, dtype=dtype, strategy=strategy).save(folder, folder, file)


@pytest.fixture
def tuned(translator, tmp_path):
  return saved(translator, tmp_path / 'tuned.json')


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
  tuned = saved(translator, tmp_path / 'tuned.json', 'int8')
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


def test_a_strategy_in_words_decodes_with_the_part_that_is_given(translator, launch):
  model = (f'--model={translator}', '--max_len=12', '--prompt=a dog sits', '--repeats=0')
  for words, flags in (
    (
      [f'--heads={translator}', '--strategy=blockwise(k=2)'],
      [f'--heads={translator}', '--gamma=1'],
    ),
    (['--strategy=prompt_lookup(k=3)'], ['--lookup', '--gamma=2']),
    (['--strategy=Sample(temperature=0.5)'], ['--temperature=0.5']),
  ):
    ours, wanted = launch('generate', *model, *words), launch('generate', *model, *flags)
    assert ours.code == wanted.code == 0 and ours.out == wanted.out, ours.err + wanted.err


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
  ('generate', ['--strategy=fast'], "'fast' is no strategy: known are Greedy"),
  ('generate', ['--strategy=eagle(depth=3)'], 'Eagle drafts with draft: give their folder too'),
  ('generate', ['--strategy=jacobi(k=4)', '--gamma=2'], '--strategy=jacobi(k=4) has its own'),
  ('generate', ['--strategy=eagle', '--heads=x', '--draft=x'], '--draft and --heads each say how'),
  ('translate', ['--strategy=jacobi(k=4)'], "--strategy=jacobi(k=4) is unknown: give 'tuned'"),
  ('generate', ['--strategy=tuned', '--lookup'], '--lookup and --strategy each say how to draft'),
  ('generate', ['--strategy=tuned', '--gamma=2'], '--strategy=tuned has its own --gamma'),
  ('generate', ['--strategy=tuned', '--dtype=int8'], 'has its own type of numbers'),
  ('translate', ['--strategy=tuned', '--dtype=int8'], 'has its own type of numbers'),
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
  (['--dtypes='], '--dtypes= names no type'),
  (['--batches=0'], '--batches=0 is not possible: give whole numbers from 1'),
  (['--gammas=2,x'], '--gammas=2,x is not possible: give whole numbers from 1 to 999'),
  (['--nodes=1'], '--nodes=1 is not possible: give whole numbers from 2 to 999'),
  (['--promise=exact', '--temperature=1'], '--temperature=1 samples, which is never exact: give'
                                           ' --promise=law'),
  (['--promise=law'], '--promise=law is about sampling'),
  (['--promise=fast'], '--promise=fast is not possible'),
  (['--strategy=fast'], "'fast' is no strategy: known are Greedy"),
  (['--choices=mc_sim_7b_63'], '--choices=mc_sim_7b_63 is about a tree of drafts'),
  (['--heads={wide}'], 'these heads are for hidden states of 6'),
  (['--draft={wide}x'], 'is not a folder'),
  (['--prompts={wide}'], 'give a text file with a prompt on each line'),
])  # fmt: skip
def test_mistakes_are_one_sentence(translator, launch, prompts, words, message):
  given = [word.format(wide=translator.parent / 'wide') for word in words]
  ended = launch('tune', f'--model={translator}', f'--prompts={prompts}', '--max_len=8', *given)
  assert ended.code == 2 and message in ended.err, ended.err
  assert not (translator / 'tuned.json').exists()


def test_heads_are_tried_in_a_chain_and_in_trees(translator):
  heads = fd.load_heads(translator)  # of two tokens
  tree = [[0], [1], [0, 0], [2], [0, 1]]
  asked = tuning.Asked(Settings('m'), {'heads': {'heads': 'h'}}, nodes=(2, 4, 64))
  trees, relaxed = tuning._of_heads(asked, heads, tree)
  assert [one.choices.n for one in trees] == [2, 4] and not relaxed
  asked = tuning.Asked(Settings('m'), {'heads': {'heads': 'h'}}, promise='relaxed')
  trees, relaxed = tuning._of_heads(asked, heads, tree)
  assert [one.choices.n for one in trees] == [6]
  assert [label(one) for one in relaxed] == [
    'Blockwise(k=3, rule=TopN(n=2))',
    'Blockwise(k=3, rule=TopN(n=3))',
    'Medusa(choices=[6 nodes], rule=Typical())',
  ]


def test_another_type_wins_by_a_margin_and_its_texts_are_compared():
  figures = Figures('Greedy', tokens_per_second=100.0, same=1.0)
  first = Tuned(
    'Greedy', '', 'Greedy', 'exact', 1, 8, 2, 1.0, 1.0, machine.here(), (figures,), 'float32',
    texts=((3, 4), (5, 6)),
  )  # fmt: skip
  table = (dataclasses.replace(figures, tokens_per_second=150.0),)
  other = dataclasses.replace(first, table=table, dtype='int8', texts=((3, 4), (5, 7)))
  assert tuning._compared(first, first) == ''
  assert tuning._compared(other, first) == (
    '; 1 at once in int8, 1.50 times the tokens a second of 1 at once in float32;'
    ' 50.0 % of its greedy texts are those of float32'
  )


def test_a_tree_in_any_order_has_beginnings_that_are_trees(tmp_path):
  file = tmp_path / 'tree.json'
  file.write_text('[[0], [1], [0, 0]]')
  assert tuning.whole_tree(str(file)) == [[0], [1], [0, 0]]
  file.write_text('[[0, 0], [0], [1]]')
  assert tuning.whole_tree(str(file)) == [[0], [1], [0, 0]]
