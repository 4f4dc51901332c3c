"""The machine that a figure was taken on, as far as figures depend on it."""

import dataclasses
import os
import platform
import re
from pathlib import Path

import jax


@dataclasses.dataclass(frozen=True)
class Machine:
  """The conditions that must be the same for a time to mean the same."""

  processor: str
  cpus: int  # that this process may use
  device: str  # as JAX calls its kind

  def __str__(self) -> str:
    where = '' if self.device == 'cpu' else f'{self.device} beside '
    return f'{where}{self.processor}, {self.cpus} CPU{"s" if self.cpus > 1 else ""}'


def here() -> Machine:
  """Describes the machine of this process."""
  # Only Linux says which CPUs a process may use.
  cpus = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
  return Machine(processor(), cpus, jax.devices()[0].device_kind)


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
  """Says if there are units for products in bfloat16: an accelerator's, or a CPU's by its flags."""
  if jax.default_backend() != 'cpu':
    return True
  try:
    flags = re.search(r'flags\s*: (.*)', Path('/proc/cpuinfo').read_text())
  except OSError:
    flags = None
  return flags is not None and bool({'avx512_bf16', 'amx_bf16'} & set(flags[1].split()))
