"""Two processes train together: one workdir, one log, exact continuation after both are killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fastdec.errors import UserError
from fastdec.training.checkpoint import average_checkpoints
from fastdec.training.processes import agreed, connect, everywhere, is_first
from tests.compiling import xla_flags
from tests.training.fakes import batches
from tests.training.two_processes import run

ROOT = Path(__file__).parent.parent.parent
FLAGS = {'XLA_FLAGS': xla_flags('--xla_force_host_platform_device_count=2')}


def start(workdir, batches=1000):
  """Two processes of two devices each."""
  with socket.socket() as free:
    free.bind(('localhost', 0))
    port = free.getsockname()[1]
  command = [sys.executable, '-m', 'tests.training.two_processes', str(port)]
  pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'text': True}
  return [
    subprocess.Popen(
      [*command, str(i), str(workdir), str(batches)], cwd=ROOT, env=os.environ | FLAGS, **pipes
    )
    for i in range(2)
  ]


def finish(processes):
  """What each has written on stdout."""
  try:
    outputs = [process.communicate(timeout=1200) for process in processes]
  finally:
    for process in processes:
      process.kill()
  for process, (_, errors) in zip(processes, outputs, strict=True):
    assert process.returncode == 0, errors[-3000:]
  return [[line for line in out.splitlines() if '[Gloo]' not in line] for out, _ in outputs]


@pytest.mark.slow
def test_two_processes_train_together_and_continue_exactly_after_a_kill(tmp_path):
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  finish(start(whole))
  processes = start(killed, batches=40)
  while not (list(killed.glob('checkpoints/*[0-9]/sums.json')) or processes[0].poll() is not None):
    time.sleep(0.01)
  for process in processes:
    process.send_signal(signal.SIGKILL)
  assert [process.wait() for process in processes] == [-signal.SIGKILL] * 2
  for process in processes:
    process.communicate()
  steps = [int(path.name) for path in killed.glob('checkpoints/[0-9]*') if path.name.isdecimal()]
  assert steps and max(steps) < 60

  first, second = finish(start(killed))
  assert 'finished at step 60' in first and second == ['finished at step 60']  # one of them logs
  assert any('evaluation: nll' in line for line in first) and list((killed / 'tb').iterdir())
  assert int(first[0].split('/')[0].split()[1]) > min(steps)  # it did not start again
  for steps in ([60], [49, 56, 60]):
    after, expected = average_checkpoints(killed, steps), average_checkpoints(whole, steps)
    assert np.array_equal(after['outputs'], expected['outputs'])
    assert np.array_equal(after['inputs']['embedding'], expected['inputs']['embedding'])

  # and one process with one device gives the same to rounding
  alone = run(tmp_path / 'alone', None, batches(rows=4))
  np.testing.assert_allclose(
    alone.params['outputs'], average_checkpoints(whole, [60])['outputs'], rtol=1e-4, atol=1e-6
  )


def test_one_process_is_the_first_and_agrees_with_itself():
  assert (
    is_first() and agreed(True) and not agreed(False) and everywhere(True) and not everywhere(False)
  )


@pytest.mark.parametrize(('coordinator', 'process', 'words'), [
  ('localhost:7001', 2, 'process=2 of processes=2'),
  ('localhost', 0, 'is not an address'), (':70', 0, 'is not an address'),
])  # fmt: skip
def test_mistakes_are_named(coordinator, process, words):
  with pytest.raises(UserError, match=words):
    connect(coordinator, 2, process)
