"""XLA's flags for tests, which compile much and compute little; JAX reads them when it starts, so import this first."""

import importlib.metadata

FLAGS = ['--xla_backend_optimization_level=0']  # without LLVM's optimisations the suite takes 40 % less time
# XLA ends the process at a flag that it does not know: what may go again is given to the releases that have it.
if importlib.metadata.version('jaxlib').startswith('0.10.'):
  FLAGS.append('--xla_cpu_use_fusion_emitters=false')  # the CPU backend's new emitters of loops double compile times


def xla_flags(*more: str) -> str:
  """The value of XLA_FLAGS, with further flags."""
  return ' '.join([*FLAGS, *more])
