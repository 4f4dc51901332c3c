"""Description of the machine that a figure was measured on."""

import dataclasses
import os
import platform
import re
from pathlib import Path

import jax

from fastdec.kernels.forms import cpu_flags


@dataclasses.dataclass(frozen=True)
class Machine:
  """The conditions under which times can be compared: they must be equal."""

  processor: str
  cpus: int  # number that this process may use
  device: str  # JAX's name of its kind

  def __str__(self) -> str:
    text = f'{self.processor}, {self.cpus} CPUs'
    if self.cpus == 1:
      text = f'{self.processor}, 1 CPU'
    if self.device != 'cpu':
      text = f'{self.device} with {text}'
    return text


def here() -> Machine:
  """Describes the machine of this process."""
  return Machine(processor(), cores(), jax.devices()[0].device_kind)


def cores() -> int:
  """Returns the number of CPUs that this process may use; on systems other than Linux, of all."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def processor() -> str:
  """Returns the model name of the CPU; JAX calls every CPU 'cpu'."""
  try:
    name = re.search(r'model name\s*: (.*)', Path('/proc/cpuinfo').read_text())
  except OSError:
    name = None
  if name is None:
    return platform.processor() or platform.machine()
  return name[1]


def computes_bfloat16() -> bool:
  """True if the machine has units for bfloat16: every accelerator, or a CPU with these flags."""
  if jax.default_backend() != 'cpu':
    return True
  return bool({'avx512_bf16', 'amx_bf16'} & cpu_flags())


def computes_bytes() -> bool:
  """True if the machine is a CPU that has units for products of bytes."""
  return jax.default_backend() == 'cpu' and bool({'avx512_vnni', 'amx_int8'} & cpu_flags())


def free_memory() -> float:
  """Returns the bytes of memory that are still free; infinity if the system does not say."""
  try:
    free = re.search(r'MemAvailable: *(\d+) kB', Path('/proc/meminfo').read_text())
  except OSError:
    free = None
  if free is None:
    return float('inf')
  return 1024 * int(free[1])
