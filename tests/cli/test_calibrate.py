"""Calibration of heads by the command line: the file, the picture, the tables, and mistakes."""

import json

import pytest

import fastdec as fd
from fastdec.evaluation.tree_calibration import Calibration
from tests.cli.conftest import PROMPTS


def test_a_tree_for_a_model_with_heads(translator, fastdec, prompts, tmp_path):
  output = tmp_path / 'new' / 'tree.json'
  words = (
    'calibrate', f'--model={translator}', f'--prompts={prompts}', f'--output={output}',
    '--max-len=12', '--rows=3', '--nodes=6', '--repeats=1',
  )  # fmt: skip
  ended = fastdec(*words)
  assert ended.code == 0, ended.err
  assert 'top-5 %' in ended.out and '(chosen)' in ended.out
  assert f'its picture {tmp_path}/new/tree.png' in ended.out
  calibration, content = Calibration.load(output), json.loads(output.read_text())
  assert set(calibration.milliseconds) >= {1, 2} and len(content['choices']) <= 5
  assert content['tokens_per_call'].keys() == content['milliseconds'].keys()
  assert content['model'] == str(translator)
  assert (tmp_path / 'new' / 'tree.png').stat().st_size > 2000
  model, params = fd.load(translator)
  choices = content['choices'] or [[0]]
  ids = [*fd.load_tokenizer(translator).encode(PROMPTS[0]), 1]
  ours = fd.decode(model, params, [ids], fd.Medusa(fd.load_heads(translator), choices), max_len=12)
  assert (ours.tokens == fd.decode(model, params, [ids], fd.Greedy(), max_len=12).tokens).all()


def test_without_timing_all_nodes_are_taken(translator, fastdec, prompts, tmp_path):
  words = (f'--model={translator}', f'--prompts={prompts}', f'--output={tmp_path}/tree.json')
  assert fastdec('calibrate', *words, '--max-len=12', '--nodes=3', '--repeats=0').code == 0
  assert len(Calibration.load(tmp_path / 'tree.json').tree.choices) == 2


@pytest.mark.parametrize('words, message', [
  (['--output={tmp}/tree.txt'], 'must end in .json: give a name such as tree.json'),
  (['--output={tmp}/tree.json', '--heads={tmp}'], 'has no config.json: give the workdir of a run'),
  (['--output={tmp}/tree.json', '--nodes=1'], '--nodes=1 is not possible'),
])  # fmt: skip
def test_mistakes_are_one_sentence(translator, fastdec, prompts, tmp_path, words, message):
  words = [word.format(tmp=tmp_path) for word in words]
  ended = fastdec(
    'calibrate', f'--model={translator}', f'--prompts={prompts}', '--max-len=12', *words
  )
  assert message in ended.mistake and not list(tmp_path.glob('tree.*'))


@pytest.mark.parametrize(
  'content', [None, '', '{"choices": [[0]', '[]', '{}', '{"choices": 3, "rates": []}']
)
def test_a_damaged_tree_is_a_sentence(tmp_path, content):
  if content is not None:
    (tmp_path / 'tree.json').write_text(content)
  with pytest.raises(fd.UserError, match=r'tree.json is not a calibrated tree \(.*\): remove it'):
    Calibration.load(tmp_path / 'tree.json')
