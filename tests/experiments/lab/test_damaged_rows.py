"""Malformed records of runs: a command reads them or raises a UserError."""

import json

from experiments.lab import report, rows
from experiments.stern2018 import vote
from tests.fuzzing import fuzz_lines

ROW = {'k': 2, 'rule': 'exact', 'speedup': 1.5, 'commit': 'a', 'error': None}
COLUMNS = report.Column('k', 'k', names_row=True), report.Column('Speed-up', 'speedup', '.2f', '×')
VOTE = {'pair': 'a', 'rater': 'ada', 'k': 2, 'rule': 'exact', 'image': 0, 'preferred': True}
VOTE |= {'time': 1.5}


def test_results(tmp_path):
  def draw():
    lines = rows.read(tmp_path / 'results.jsonl')
    rows.find(lines, k=2)
    table = report.Table('Speeds', COLUMNS, conditions=('commit',))
    report.markdown(table.of(rows.latest(lines, 'k')))

  fuzz_lines(tmp_path / 'results.jsonl', ROW, draw, 80)


def test_votes(tmp_path):
  class Study:
    def pairs(self, rater):
      return {'a': (VOTE['k'], VOTE['rule'], 0, 'left')}

  file = tmp_path / 'votes.jsonl'
  file.write_text(json.dumps(VOTE) + '\n')
  vote.table3(Study(), vote.read_votes(file))

  def count():
    with open(file, 'ab') as votes:
      votes.write(b'\n')  # an unfinished line does not count
    vote.table3(Study(), vote.read_votes(file))

  fuzz_lines(file, VOTE, count, 80)
