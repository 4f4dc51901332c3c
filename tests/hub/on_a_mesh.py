"""Figures for `test_mesh`, found on eight virtual CPU devices and printed as JSON.

python -m tests.hub.on_a_mesh devices folder   each device's memory during loading, by type
python -m tests.hub.on_a_mesh host folder      the host's memory for it
"""

import json
import math
import os
import re
import sys
from pathlib import Path

from tests.compiling import xla_flags

os.environ['XLA_FLAGS'] = xla_flags('--xla_force_host_platform_device_count=8')

import jax
import numpy as np

import fastdec as fd
from fastdec.folders.stored import Stored
from fastdec.kernels.sharding import MeshConfig, make_mesh


def held():
  """Bytes that each device holds, by its number."""
  count = dict.fromkeys(range(8), 0)
  for array in jax.live_arrays():
    part = math.prod(array.sharding.shard_shape(array.shape)) * array.itemsize
    for device in array.sharding.device_set:
      count[device.id] += part
  return count


def devices(folder):
  return {str(dtype): held_by(folder, dtype) for dtype in (None, 'float32', 'int8', 'int8w')}


def held_by(folder, dtype):
  """Returns the most bytes that each device held when a tensor was read, the bytes that it holds at
  the end, and whether the values are right."""
  most, read = held(), Stored.__getitem__

  def watched(stored, index):
    for device, size in held().items():
      most[device] = max(most[device], size)
    return read(stored, index)

  Stored.__getitem__ = watched
  model, params = fd.load(folder, dtype, make_mesh(MeshConfig(data=2, model=4)))
  Stored.__getitem__ = read
  end = held()
  _, alone = fd.load(folder, dtype)
  same = jax.tree.map(
    lambda a, b: a.dtype == b.dtype and bool((np.asarray(a) == np.asarray(b)).all()), params, alone
  )
  prompt = np.arange(16).reshape(8, 2) % model.vocab_size
  tokens = [
    np.asarray(fd.decode(model, p, prompt, fd.Greedy(), max_len=4).tokens) for p in (params, alone)
  ]
  return {
    'most': list(most.values()),
    'end': list(end.values()),
    'whole': sum(x.nbytes for x in jax.tree.leaves(alone)),
    'largest': max(x.nbytes for x in jax.tree.leaves(alone)),
    'same': jax.tree.all(same),
    'same tokens': bool((tokens[0] == tokens[1]).all()),
  }


def host(folder):
  """Returns the peak of memory that loading added to the process, in bytes."""
  mesh = make_mesh(MeshConfig(data=1, model=8))
  jax.block_until_ready(jax.device_put(np.zeros(8), mesh.devices[0, 0]))
  before = most_memory()
  params = fd.load(folder, mesh=mesh)[1]
  return {'taken': most_memory() - before, 'loaded': sum(x.nbytes for x in jax.tree.leaves(params))}


def most_memory():
  """The most bytes that were in memory since the process began, pages of files included."""
  return int(re.search(r'VmHWM:\s*(\d+) kB', Path('/proc/self/status').read_text())[1]) * 1024


if __name__ == '__main__':
  print(json.dumps({'devices': devices, 'host': host}[sys.argv[1]](*sys.argv[2:])))
