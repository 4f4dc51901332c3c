"""One of two processes that train together: `python -m tests.training.two_processes <port>
<process> <workdir> <batches>`; it reads this number of batches, and then waits to be killed."""

import itertools
import sys
import time

from fastdec.training.processes import connect

if __name__ == '__main__':
  connect(f'localhost:{sys.argv[1]}', processes=2, process=int(sys.argv[2]))

import jax
import numpy as np

from fastdec.errors import UserError
from fastdec.kernels.sharding import MeshConfig, make_mesh
from fastdec.training.checkpoint import average_checkpoints
from fastdec.training.loop import LoopConfig, train
from fastdec.training.losses import dev_loss
from fastdec.training.optimizer import OptimizerConfig
from fastdec.training.state import base_task
from tests.training.fakes import Bigram, batches, packed
from tests.training.test_loop import slowly

STEPS = 60


class Plain(Bigram):
  """Without the model's own dropout, which is another one on each device."""

  def hidden(self, params, batch, dropout_key=None):
    return super().hidden(params, batch)


# a parameter that no process has whole
TABLE = ((r'outputs$', jax.sharding.PartitionSpec(None, 'model')),)


def run(workdir, mesh, data):
  """Trains to the end."""
  config = LoopConfig(STEPS, log_every=10, checkpoint_every=7, eval_every=20)
  evaluate = lambda params: dev_loss(Plain(), params, [packed(1000)])
  optimizer = OptimizerConfig(d_model=6, warmup=20)
  return train(
    base_task(Plain()),
    data,
    optimizer,
    config,
    workdir,
    jax.random.key(3),
    evaluate,
    None,
    mesh,
    TABLE,
  )


def main(workdir, most):
  assert jax.process_count() == 2 and jax.device_count() == 4
  try:
    make_mesh(MeshConfig(2, 1))
  except UserError as error:  # one process would have nothing to do
    assert 'needs 2 devices, and there are 4' in str(error)
  read = itertools.count()

  def hold(batch):
    if next(read) >= most:
      time.sleep(600)  # until this process is killed
    return slowly(batch)

  trained = run(workdir, make_mesh(MeshConfig(2, 2)), batches(rows=4).map(hold))
  assert trained.is_finished and not trained.params['outputs'].is_fully_addressable
  averaged = average_checkpoints(workdir, [56, STEPS])
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(averaged))
  print(f'finished at step {trained.step}')


if __name__ == '__main__':
  main(sys.argv[3], int(sys.argv[4]))
