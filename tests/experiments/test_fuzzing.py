"""Whatever stands in the records of runs, a command goes on, or says a sentence."""

import itertools
import json

import numpy as np
import pytest

from experiments.lab import report, rows, text
from experiments.stern2018 import images, vote
from fastdec.cli.prompt_file import Output, blocks_of
from fastdec.cli.show import counted
from fastdec.data.text.tokens import TokenPairs
from fastdec.training import stage
from tests.fuzzing import fuzz, fuzz_bytes, fuzz_lines, spoilt

ROW = {'k': 2, 'rule': 'exact', 'speedup': 1.5, 'commit': 'a', 'error': None}
COLUMNS = report.Column('k', 'k', names_row=True), report.Column('Speed-up', 'speedup', '.2f', '×')
VOTE = {'pair': 'a', 'rater': 'ada', 'k': 2, 'rule': 'exact', 'image': 0} | {
  'preferred': True, 'time': 1.5
}  # fmt: skip
HASH = '0' * 16
OWN = {'teacher': HASH, 'images': HASH, 'content': HASH, 'mirrored': False}


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'folder').mkdir()
  return tmp_path / 'folder'


def test_results(folder):
  def draw(folder):
    found = rows.read(folder / 'results.jsonl')
    rows.find(found, k=2)
    drawn = report.Table('Speeds', COLUMNS, conditions=('commit',)).of(rows.latest(found, 'k'))
    report.markdown(drawn)

  fuzz_lines(folder, 'results.jsonl', ROW, draw, 100)


def test_outputs_of_many_prompts(folder):
  def read(folder):
    out = Output(folder / 'out.jsonl', {'seed': 0}, 2)
    lines = out.done().values()
    counted([sum(of) for of in itertools.zip_longest(*map(blocks_of, lines), fillvalue=0)], 4)

  line = {'index': 0, 'prompt': 'a', 'text': 'b', 'tokens': 3, 'blocks': [1, 1]}
  (folder / 'out.jsonl').write_text(json.dumps(line) + '\n')
  fuzz(folder, 'out.jsonl.settings.json', {'seed': 0}, read, 40)
  (folder / 'out.jsonl.settings.json').write_text('{"seed": 0}')
  fuzz_lines(folder, 'out.jsonl', line, read, 100)


def test_inputs_of_a_stage(folder):
  fuzz(folder, 'inputs.json', {'data': {'key': HASH}, 'seed': 0}, stage.inputs_of, 50)


def test_votes(folder):
  class Study:
    def pairs(self, rater):
      return {'a': (VOTE['k'], VOTE['rule'], 0, 'left')}

  def count(folder):
    vote.table3(Study(), vote.read_votes(folder / 'votes.jsonl'))

  whole = json.dumps(VOTE) + '\n'
  (folder / 'votes.jsonl').write_text(whole)
  count(folder)

  def counted(folder):
    with open(folder / 'votes.jsonl', 'ab') as file:
      file.write(b'\n')  # an unfinished line does not count
    count(folder)

  fuzz_lines(folder, 'votes.jsonl', VOTE, counted, 100)


def test_records_of_what_a_model_wrote(folder):
  fuzz(folder, 'images.json', OWN, images.record_of, 60)
  written = {'teacher': HASH, 'beam': 1}
  fuzz(folder, 'config.json', written, lambda folder: text.check_written(folder, True), 60)


def test_ids_of_what_a_model_wrote(folder):
  pairs = TokenPairs.union([])
  pairs.save(folder / 'train.npy')
  data = (folder / 'train.npy').read_bytes() + np.array([1, 2, 3], '<i4').tobytes()

  def load(folder):
    TokenPairs.load(folder / 'train.npy')

  fuzz_bytes(folder, 'train.npy', data, spoilt(data), load, 100)
