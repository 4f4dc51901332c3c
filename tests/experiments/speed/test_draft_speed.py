"""What drafting costs, at toy size: what is timed is a draft, and that its outcome is observed."""

import json

import jax
import numpy as np
import pytest

from configs import draft_speed
from configs.common import to_dataclass
from experiments.speed import drafts
from fastdec.decoding.decode import start
from fastdec.decoding.inputs import checked
from fastdec.errors import UserError
from fastdec.evaluation.calls import draft_rounds, random_params
from fastdec.folders import model_of
from fastdec.heads.tower import own_cache
from fastdec.struct import Bound
from tests.experiments.conftest import ROOT


def config(**changed):
  made = draft_speed.get_config('scale=smoke')
  made.update_from_flattened_dict(changed)
  return to_dataclass(drafts.SpeedConfig, made)


def test_each_round_drafts_anew_and_keeps_one_token():
  asked = config(guesses=2)
  model = model_of(asked.model)
  target = Bound(model, random_params(model, 0, 'float32'))
  strategy = drafts.strategies(asked, model, 'float32')['EAGLE, chain, 100 words']
  _, prompt, _ = checked(model, np.full((1, 4), 5, np.int32), None, None, 12, None)
  state, _ = start(target, strategy, prompt, None, 12)
  run = draft_rounds(target, strategy.drafter, state)
  before = int(own_cache(state.drafter.cache).length[0])
  (inner, root, _), (further, other, _) = run(1), run(3)
  assert [int(own_cache(one.cache).length[0]) for one in (inner, further)] == [
    before + 1,
    before + 3,
  ]
  assert jax.tree.leaves(further)[0].shape == jax.tree.leaves(state.drafter)[0].shape
  assert 0 <= int(root[0]) < 100 and 0 <= int(other[0]) < 100  # of the draft vocabulary


def test_more_words_than_the_model_has_are_refused():
  with pytest.raises(
    UserError, match=r'words=\(100, 501\) is not possible: the model has 500 words'
  ):
    config(words=(100, 501))


@pytest.mark.slow
def test_the_table(launch, tmp_path):
  page = f'{ROOT}/configs/draft_speed.py:scale=smoke'
  small = {'calls': 2, 'rounds': 1, 'guesses': 2, 'nodes': 4}
  words = [f'--config.{name}={value}' for name, value in small.items()]
  assert launch('benchmark', f'--config={page}', *words, f'--workdir={tmp_path}').code == 0
  rows = [json.loads(line) for line in (tmp_path / 'speed.jsonl').read_text().splitlines()]
  assert len(rows) == 9 and all(row['ms'] > 0 for row in rows)
  named = {row['variant']: row for row in rows}
  assert named['greedy']['to_greedy'] == 1
  chain = named['EAGLE, chain']
  assert chain['to_greedy_a_token'] == pytest.approx(chain['to_greedy'] / 2)
