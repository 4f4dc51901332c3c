"""CTranslate2 beside our calls: what one of its steps takes, and what cannot be compared."""

import pytest

from configs import speed as page
from configs.common import to_dataclass
from experiments.speed import translation
from fastdec.errors import UserError
from fastdec.evaluation.wallclock import Timing


def test_a_peers_step_is_what_a_text_takes_after_its_first_token():
  timings = {
    'greedy': Timing((0.4, 0.2, 0.3), 0.0),  # of 10 calls
    'peer': Timing((0.9, 0.7, 0.8), 0.0),
    'peer, begun': Timing((0.1, 0.3, 0.2), 0.0),
  }
  row = translation._peer_row('peer', timings, 10)
  assert row['ms_per_call'] == pytest.approx(60)
  assert row['to_greedy'] == pytest.approx(2)
  assert row['spread'] == pytest.approx((2, 2))


def test_a_peer_of_an_fconv_is_refused():
  config = page.get_config('scale=smoke,model=fconv')
  config.peer = True
  with pytest.raises(UserError, match='time a Transformer'):
    to_dataclass(translation.SpeedConfig, config)


def test_its_steps_are_timed_beside_ours():
  pytest.importorskip('ctranslate2', reason='CTranslate2 is not installed (fastdec[benchmark])')
  config = page.get_config('scale=smoke')
  config.update(
    {'peer': True, 'rounds': 1, 'calls': 4, 'widths': (1,), 'dtypes': ('float32',), 'packed': False}
  )
  rows = translation.measure_speed(to_dataclass(translation.SpeedConfig, config), lambda _: None)
  assert any(row['variant'].startswith('CTranslate2') for row in rows)
  assert '| – |' in translation.markdown(rows)
