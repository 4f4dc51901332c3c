"""The machine of a report: what JAX says of it, and the sentences for one that cannot serve."""

import importlib.metadata
import os
import pathlib
from typing import Any

import jax

from experiments.gpu.settings import ReportSettings
from experiments.lab.conditions import Conditions
from fastdec.errors import UserError
from fastdec.files import write_json
from fastdec.training.checkpoint import check_workdir

# how those begin that matter
VARIABLES = ('XLA_PYTHON_CLIENT_', 'XLA_FLAGS', 'JAX_', 'CUDA_VISIBLE_DEVICES')


def claim(workdir: pathlib.Path, settings: ReportSettings) -> None:
  """Makes the workdir this scale's, seed's and device's.

  Raises:
    UserError: it is another's, or real shapes are asked of a CPU.
  """
  device = jax.devices()[0]
  if settings.scale == 'paper' and device.platform == 'cpu':
    remedy = 'install jax[cuda13], or try the report by --config=configs/gpu_report.py:scale=smoke'
    raise UserError(f'scale=paper is for a GPU, and JAX sees the CPU alone: {remedy}')
  record = {'scale': settings.scale, 'seed': settings.seed, 'device': device.device_kind}
  check_workdir(workdir, record)
  workdir.mkdir(parents=True, exist_ok=True)
  write_json(workdir / 'config.json', record)


def lines(conditions: Conditions) -> list[str]:
  """The machine, as a list in Markdown."""
  device = jax.devices()[0]
  memory = (device.memory_stats() or {}).get('bytes_limit')
  facts: dict[str, Any] = {
    'device': f'{device.device_kind} ({device.platform}), {jax.device_count()} of it',
    'memory that JAX may use': 'not said' if memory is None else f'{memory / 1e9:.1f} GB',
    'driver and runtime': ' '.join(device.client.platform_version.split()),
    'compute capability': getattr(device, 'compute_capability', None),
    'jax': f'{jax.__version__}, jaxlib {importlib.metadata.version("jaxlib")}',
    'processor': f'{conditions["processor"]}, {conditions["cpus"]} cores for this process',
    'commit': conditions['commit'],
    'config': conditions['config'],
  }
  facts |= {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)}
  return [f'* {name}: {value}' for name, value in facts.items() if value is not None]
