"""XLA's flags for tests, which compile much and compute little; JAX reads them when it starts, so
import this first."""

import importlib.metadata

# without LLVM's optimisations the suite takes 40 % less time
FLAGS = ['--xla_backend_optimization_level=0']
# XLA ends the process at a flag that it does not know: what may go again is given to the releases
# that have it.
if importlib.metadata.version('jaxlib').startswith('0.10.'):
  # the CPU backend's new emitters of loops double compile times
  FLAGS.append('--xla_cpu_use_fusion_emitters=false')
  # a test process has one core: code that is split for several takes an eighth longer
  FLAGS.append('--xla_cpu_parallel_codegen_split_count=1')


def xla_flags(*more: str) -> str:
  """The value of XLA_FLAGS, with further flags."""
  return ' '.join([*FLAGS, *more])
