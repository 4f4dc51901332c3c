"""What a run told TensorBoard is read again, through stops and files that were cut short."""

import jax.numpy as jnp
import pytest

from experiments.lab import scalars
from fastdec.training.progress import Progress

STEP = {'loss': 2.0, 'gradient_norm': 1.0, 'learning_rate': 0.1, 'tokens': 10}


def trained(workdir, first, last, evaluated):
  """Steps after `first`, logged each, with an evaluation at the end."""
  with Progress(workdir, first, last) as progress:
    for _ in range(first, last):
      progress.add({name: jnp.float32(value) for name, value in STEP.items()}, 2)
      progress.log()
    progress.evaluated({'dev tokens a call': evaluated})


def test_evaluations_are_by_step_and_a_later_call_counts(tmp_path):
  assert scalars.evaluations(tmp_path) == {} and scalars.seconds_a_step(tmp_path) is None
  trained(tmp_path, 0, 2, 1.5)
  assert scalars.evaluations(tmp_path) == {2: {'dev_tokens_a_call': 1.5}}
  (file,) = (tmp_path / 'tb').glob('events.*')
  file.rename(file.with_name('events.out.tfevents.0000000001'))
  trained(tmp_path, 2, 4, 2.5)
  assert scalars.evaluations(tmp_path) == {
    2: {'dev_tokens_a_call': 1.5},
    4: {'dev_tokens_a_call': 2.5},
  }
  assert scalars.seconds_a_step(tmp_path) == pytest.approx(0, abs=1)
  newest = max((tmp_path / 'tb').glob('events.*'))
  newest.write_bytes(newest.read_bytes()[:-3])  # killed while it was written
  assert 4 not in scalars.evaluations(tmp_path) and 2 in scalars.evaluations(tmp_path)
