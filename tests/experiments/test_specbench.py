"""The bench of questions on a tiny model: the published formats, its page, and mistakes."""

import gzip
import json

import jax
import pytest

import fastdec as fd
from experiments import xia2024
from experiments.lab import rows
from fastdec.cli.prompts import read_questions
from fastdec.data.text.sentencepiece import Tokenizer
from fastdec.heads.eagle import EagleNetwork
from fastdec.models.lm import LM, LMConfig
from fastdec.training.drafts.start import layers_like

PLACEHOLDER = 'FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH'
TURNS = [{'role': 'user', 'content': 'the cat'}, {'role': 'user', 'content': 'a dog'}]
QUESTIONS = {  # as they are published, in short
  'question.jsonl': [
    {'question_id': 81, 'category': 'writing', 'turns': ['a dog', 'a dog runs']},
    {'question_id': 82, 'category': 'writing', 'turns': ['the cat sits']},
    {'question_id': 401, 'category': 'rag', 'turns': ['the dog runs'], 'reference': ['a cat']},
  ],
  'HumanEval.jsonl.gz': [{'task_id': 'HumanEval/0', 'prompt': 'a cat', 'entry_point': 'cat'}],
  'gsm8k_test.jsonl': [{'question': 'the cat runs', 'answer': '#### 3'}],
  # SPEED-Bench, as its prepare.py writes it; and as a line of what is on the hub
  'qualitative.jsonl': [{'question_id': '1', 'category': 'coding', 'messages': TURNS}],
  'unprepared.jsonl': [{'question_id': '1', 'category': 'coding', 'turns': [PLACEHOLDER]}],
  'unknown.jsonl': [{'id': 1, 'text': 'a dog'}],
}


def saved(folder, texts, width=8):
  """Saves an untrained model, and a draft network for it in a folder next to it."""
  tokenizer = Tokenizer.train(texts, folder.with_suffix('.pieces'), vocab_size=24)
  model = LM(LMConfig(vocab_size=24, d_model=width, d_ff=12, heads=2, layers=1))
  params = jax.jit(model.init)(jax.random.key(3))
  fd.save(model, jax.tree.map(lambda x: 3 * x, params), folder, tokenizer=tokenizer)
  network = EagleNetwork(layers=layers_like(model, 1), vocab_size=24, d_target=width)
  fd.save_draft(folder.with_suffix('.draft'), (network, jax.jit(network.init)(jax.random.key(4))))


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  """A folder of two models, their drafts, and files of questions."""
  place = tmp_path_factory.mktemp('specbench')
  saved(place / 'model', ['a dog runs', 'the cat sits'])
  saved(place / 'other', ['un chien court', 'la zone est bleue'], width=12)
  for name, records in QUESTIONS.items():
    with (gzip.open if name.endswith('.gz') else open)(place / name, 'wt') as file:
      file.writelines(json.dumps(record) + '\n' for record in records)
  return place


@pytest.fixture
def bench(place, launch, tmp_path):
  """bench('gsm8k_test.jsonl', '--draft=model.draft', ...) runs the command in that folder."""

  def bench(files, *words):
    words = [word.format(place) for word in ('--model={}/model', '--max-len=6', *words)]
    words += [f'--questions={place}/{file}' for file in files.split(',')]
    return launch('specbench', *words, f'--workdir={tmp_path}/out')

  return bench


def test_questions_keep_their_category_in_every_format(place):
  files = 'question.jsonl', 'HumanEval.jsonl.gz', 'gsm8k_test.jsonl', 'qualitative.jsonl'
  files = [f'{place}/{file}' for file in files]
  assert read_questions(files, 1) == [
    ('writing', 'a dog'), ('rag', 'the dog runs'), ('HumanEval', 'a cat'),
    ('gsm8k_test', 'the cat runs'), ('coding', 'the cat'),
  ]  # fmt: skip
  assert [text for name, text in read_questions(files, 0) if name == 'writing'] == [
    'a dog',
    'the cat sits',
  ]
  assert len(read_questions(files[:1] * 2, 2)) == 4  # of both files together


def test_a_strategy_is_compared_with_one_token_a_call(bench, tmp_path, monkeypatch):
  drawn, draw = [], xia2024.tokens_per_call
  monkeypatch.setattr(xia2024, 'tokens_per_call', lambda *of: drawn.append(of) or draw(*of))
  words = '--texts=0', '--strategy=prompt_lookup(k=3)', '--batch=3'
  ended = bench('question.jsonl,HumanEval.jsonl.gz', *words, '--repeats=1')
  assert ended.code == 0, ended.err
  greedy, sampled = rows.read(tmp_path / 'out' / 'results.jsonl')
  for row in (greedy, sampled):
    low, high = row['interval'][1:]
    assert low <= row['tokens'] == row['interval'][0] <= high and len(row['accepted']) == 2
    assert set(row['categories']) == {'writing', 'rag', 'HumanEval'} and row['all_texts'] == 4
    assert row['speedup'] > 0 and row['first_ms'] > 0 and row['dtype'] == 'float32'
  assert len(drawn) == 2 * 4  # samples are drawn for all, then once for each category
  assert (greedy['temperature'], sampled['temperature']) == (0, 1)
  assert greedy['same_as_plain'] == 1 and 'same_as_plain' not in sampled
  page = (tmp_path / 'out' / 'specbench.md').read_text()
  assert '| Strategy | T | Batch | writing | rag | HumanEval |\n' in page
  assert page.count('| PromptLookup(ngram=3, k=3) | 0 | 3 | ') == 2


def test_the_usual_strategies_and_what_is_measured_again(bench, tmp_path, monkeypatch):
  figures = {'tokens': 1.5, 'interval': [1.5], 'accepted': [], 'categories': {'gsm8k_test': [1.5]}}
  monkeypatch.setattr(xia2024, 'figures', lambda *_: figures)
  bench('gsm8k_test.jsonl', '--texts=1', '--draft={}/model.draft', '--temperature=0')
  results = tmp_path / 'out' / 'results.jsonl'
  names = [row['strategy'] for row in rows.read(results)]
  assert [name.partition('(')[0] for name in names] == [
    'Greedy', 'PromptLookup', 'Lookahead', 'Eagle', 'Eagle', 'Eagle',
  ]  # fmt: skip
  assert 'width=1,' in names[3] and all('width=8, nodes=32' in name for name in names[4:])
  command = 'gsm8k_test.jsonl', '--texts=1', '--strategy=greedy', '--batch=1'
  bench(*command)
  assert len(rows.read(results)) == 8  # models without the draft are others
  ended = bench(*command, '--batch=2', '--strategy=jacobi(k=3)')
  assert '2 of 8 rows are there' in ended.out and len(rows.read(results)) == 14
  bench(*command, '--max-len=5')
  assert len(rows.read(results)) == 16


@pytest.mark.parametrize('words, message', [
  (['unknown.jsonl'], 'line 1 of {}/unknown.jsonl has no prompt: give'),
  (['unprepared.jsonl'], 'unprepared.jsonl has questions of SPEED-Bench without their texts'),
  (['question.jsonl', '--texts=2'], 'rag has 1 questions, fewer than 2: give 1 or less'),
  (['gsm8k_test.jsonl', '--texts=1', '--chat'], 'this tokenizer has no chat template'),
  (['gsm8k_test.jsonl', '--texts=1', '--draft={}/other.draft'], 'is for hidden states of 12'),
  (['gsm8k_test.jsonl', '--texts=1', '--draft={}/other'], 'have different vocabularies'),
  (['gsm8k_test.jsonl', '--texts=1', '--draft={}/model.draft', '--strategy=eagle(rule=TopN(n=2))'],
    'TopN does not sample: above temperature 0'),
])  # fmt: skip
def test_a_mistake_is_a_sentence_before_the_weights_are_read(
  place, bench, tmp_path, monkeypatch, words, message
):
  monkeypatch.setattr(fd, 'load', None)
  ended = bench(*words)
  assert ended.code == 2 and message.format(place) in ended.err and ended.err.count('\n') == 1
  assert not (tmp_path / 'out').exists()
