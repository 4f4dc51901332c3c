"""Tuning by the command line: one run end to end, its file used by others, and mistakes."""

import dataclasses
import json

import pytest

import fastdec as fd
from fastdec.cli import opening, tune
from fastdec.cli.flags import Parser
from fastdec.decoding.description import label
from fastdec.evaluation import machine
from fastdec.text.generator import ROWS
from fastdec.tuning.tuned import Figures, Tuned
from tests.decoding.methods_table import hash_kit


@pytest.mark.slow
def test_a_tuned_strategy_is_used_by_name(translator, fastdec, prompts, tmp_path, monkeypatch):
  # The forms of this machine's products would serve in other tests too.
  monkeypatch.setattr(tune.programs, 'measure_forms', lambda: None)
  words = ('--max-len=8', '--budget=4m', '--gammas=2', '--nodes=3', '--dtypes=float32,int8')
  words += (f'--heads={translator}', f'--draft={translator}', '--batches=1,2')
  words += ('--strategy=jacobi(k=3)', f'--output={tmp_path}/tuned.json')
  ended = fastdec('tune', '--model', translator, '--prompts', prompts, *words)
  assert ended.code == 0, ended.err
  for title in ('1 at once in float32:', '2 at once in float32:', '2 at once in int8:'):
    assert title in ended.out
  assert ended.out.count('\n  Speculative(gamma=2, same_ids=True) ') >= 3
  assert f'use it by --strategy={tmp_path}/tuned.json' in ended.out
  table = json.loads((tmp_path / 'tuned.json').read_text())['figures']['table']
  names = [one['name'] for one in table]
  assert names[0] == 'Greedy' and all(one['same'] == 1 for one in table if one['rounds'])
  wanted = 'Jacobi(k=3)', 'Blockwise(k=3)', 'PromptLookup(k=3)'
  assert {*wanted, 'Speculative(gamma=2, same_ids=True)'} < set(names)
  tuned = fd.load_tuned(translator, file=tmp_path / 'tuned.json')
  assert tuned.rows in (1, 2) and tuned.dtype in ('float32', 'int8')


def read(*words):
  return tune._read(['--model=m', '--prompts=p', *words])


def test_a_draft_network_is_also_tried_together_with_prompt_lookup():
  def names(*words):
    args = read('--no-lookahead', '--gammas=2', *words)
    network = hash_kit().network('eagle')
    tried = tune._list_candidates(args, [(network, 'eagle')], {})
    return [(label(strategy), folder) for strategy, folder in tried]

  both = ('Union(PromptLookup(k=6), Eagle(nodes=8))', 'eagle')
  assert names()[:3] == [('PromptLookup(k=3)', None), ('Eagle(depth=2, nodes=3)', 'eagle'), both]
  assert both not in names('--no-lookup')


def saved(folder, file, dtype=None):
  """A file that chose the folder's own heads in blocks of two."""
  strategy = fd.Blockwise(fd.load_heads(folder, dtype), 2)
  figures = ('heads', 'of this test', 'Greedy', 'exact', 1, 8, 6, 1.0, 1.0, machine.here(), ())
  return Tuned(*figures, dtype=dtype, strategy=strategy).save(folder, folder, file)


def test_the_strategy_and_the_type_that_were_tuned_are_used(translator, fastdec, prompts, tmp_path):
  tuned = saved(translator, tmp_path / 'tuned.json', 'int8')
  model = ('--model', translator, '--max-len=9')
  words = ('generate', *model, '--prompt=a dog sits', '--repeats=0')
  by_words = fastdec(*words, '--strategy=blockwise(k=2)', '--dtype=int8')
  by_file = fastdec(*words, f'--strategy={tuned}')
  assert by_words.code == by_file.code == 0, by_words.err + by_file.err
  assert by_words.out == by_file.out
  words = ('generate', *model, '--prompts', prompts, f'--output={tmp_path}/out.jsonl')
  assert fastdec(*words, f'--strategy={tuned}').code == 0
  assert 'other settings (strategy, dtype)' in fastdec(*words).mistake


@pytest.mark.slow
def test_a_tuned_strategy_translates(translator, fastdec, tmp_path):
  tuned = saved(translator, tmp_path / 'tuned.json', 'int8')
  words = ('translate', '--model', translator, '--max-len=9', 'a dog')
  by_type, by_name = (fastdec(*words, word) for word in ('--dtype=int8', f'--strategy={tuned}'))
  assert by_type.code == by_name.code == 0
  assert by_type.out.replace('|', '') == by_name.out.replace('|', '')


def test_as_many_texts_at_once_as_were_tuned_for(translator, tmp_path):
  tuned = saved(translator, tmp_path / 'tuned.json')

  def rows(*words):
    parser = Parser('generate', None)
    opening.add_model(parser)
    opening.add_drafting(parser)
    opening.add_cores(parser)
    parser.add_argument('--rows', type=int)
    return opening.restrict_cores(parser.read(['--model', str(translator), *words]))

  assert rows(f'--strategy={tuned}') == 1 and rows(f'--strategy={tuned}', '--rows=3') == 3
  assert rows() == ROWS
  (tmp_path / 'tuned.json').write_text('{"figures": [1]}')
  assert rows(f'--strategy={tuned}') == ROWS  # loading says what is wrong


@pytest.mark.parametrize('words, message', [
  (['--budget=soon'], '--budget=soon is not possible: give seconds'),
  (['--dtypes=int4'], "dtype='int4' is not possible: give one of"),
  (['--batches=0'], '--batches=0 is not possible: give whole numbers from 1'),
  (['--promise=exact', '--temperature=1'], '--promise=exact cannot be kept with --temperature: give'
                                           ' --promise=law'),
  (['--promise=law'], '--promise=law needs --temperature'),
  (['--strategy=eagle'], 'Eagle drafts with draft: give their folder'),
  (['--heads={wide}'], 'these heads are for hidden states of 6'),
  (['--prompts={wide}'], 'give a text file with a prompt on each line'),
])  # fmt: skip
def test_mistakes_are_one_sentence(translator, fastdec, prompts, words, message):
  words = [word.format(wide=translator.parent / 'wide') for word in words]
  ended = fastdec('tune', '--model', translator, '--prompts', prompts, '--max-len=8', *words)
  assert message in ended.mistake and not (translator / 'tuned.json').exists()


def test_all_types_are_checked_before_the_first_is_tuned(translator, fastdec, prompts, monkeypatch):
  monkeypatch.setattr(fd, 'tune', lambda *args, **settings: pytest.fail('a type is tuned'))
  words = ('--max-len=8', '--dtypes=float32,int4')
  ended = fastdec('tune', '--model', translator, '--prompts', prompts, *words)
  assert "dtype='int4' is not possible: give one of" in ended.mistake and ended.out == ''


def candidates(translator, *words):
  """Returns the labels of what is tried for two heads with a fitted tree."""
  args = read('--no-lookup', '--no-lookahead', *words)
  tree = [[0], [1], [0, 0], [2], [0, 1]]
  tried = tune._list_candidates(args, [(fd.load_heads(translator), 'h')], {'h': tree})
  assert all(path == 'h' for strategy, path in tried if strategy.part)
  return [label(strategy) for strategy, _ in tried]


def test_a_strategy_in_words_samples_as_the_flags_say_unless_it_says_how_itself(translator):
  words = '--strategy=jacobi(k=4)', '--strategy=jacobi(k=2, temperature=0.8)'
  tried = candidates(translator, *words, '--temperature=0.5', '--gammas=1')
  assert 'Jacobi(k=4, temperature=0.5)' in tried and 'Jacobi(k=2, temperature=0.8)' in tried
  assert 'Jacobi(k=4)' in candidates(translator, *words)


def test_heads_are_tried_in_trees_and_relaxed(translator):
  chains = ['Blockwise(k=3)', 'Blockwise(k=2)']
  tried = candidates(translator, '--nodes=2,4,64')  # one of 2 is a chain
  assert tried == ['Medusa(choices=[4 nodes])', *chains]
  assert candidates(translator, '--promise=relaxed') == [
    'Medusa(choices=[6 nodes])',
    'Blockwise(k=3, rule=TopN(n=2))',
    chains[0],
    'Blockwise(k=3, rule=TopN(n=3))',
    chains[1],
    'Medusa(choices=[6 nodes], rule=Typical())',
  ]


def test_another_type_is_compared_by_speed_and_texts():
  figures = Figures('Greedy', tokens_per_second=100.0, same=1.0)
  first = Tuned(
    'Greedy', '', 'Greedy', 'exact', 1, 8, 2, 1.0, 1.0, machine.here(), (figures,), dtype='float32',
    texts=((3, 4), (5, 6)),
  )  # fmt: skip
  table = (dataclasses.replace(figures, tokens_per_second=150.0),)
  other = dataclasses.replace(first, table=table, dtype='int8', texts=((3, 4), (5, 7)))
  assert tune.compare_runs(first, first) == ''
  assert tune.compare_runs(other, first) == (
    '; 1 at once in int8, 1.50 times the tokens a second of 1 at once in float32;'
    ' 50.0 % of its greedy texts are those of float32'
  )
