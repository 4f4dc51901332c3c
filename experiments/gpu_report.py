"""What one NVIDIA GPU shows of fastdec, in ten minutes at a time: parity, exactness, speed, and a
page to read.

  python -m experiments.gpu_report --workdir=out/gpu --budget=540s
  python -m experiments.gpu_report --workdir=out/gpu --budget=540s
  --config.data.folder=data/multi30k
  python -m experiments.gpu_report --config=configs/gpu_report.py:scale=smoke --workdir=out/gpu-smoke     # on a CPU

In the workdir: report.md, which is written anew after each part, and a folder a part with
results.jsonl (one line a cell). Weights are random; with a folder of parallel text Table 1 is
trained, too. What is quick and says most comes first. A piece for which too little of the budget is
left is named and left out, one that fails (out of memory) is shown as failed, and the same command
goes on (exit code 1 where something failed).

JAX takes three quarters of a GPU's memory when it starts; the shapes of 7b want more on a device of
16 GB:

  XLA_PYTHON_CLIENT_MEM_FRACTION=0.95   JAX may use that share; nothing else should run on the device
  XLA_PYTHON_CLIENT_PREALLOCATE=false   memory as it is needed, beside another process; a little slower
  JAX_COMPILATION_CACHE_DIR=.cache/jax  compiled programs are kept: a run that goes on compiles them no second time
  JAX_PLATFORMS                         left unset, or cuda,cpu: parity needs both

The precision of float32 products is the report's own business: the highest where texts or logits
are compared, JAX's default where a language model's call or a training is timed.
"""

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('gpu_report')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the report', required=True)
BUDGET = cli.budget_flag()


def main(words: list[str]) -> None:
  import pathlib
  import sys

  from experiments.gpu import machine, report
  from experiments.gpu.parts import parts_of
  from experiments.gpu.settings import ReportSettings
  from experiments.lab.console import plain_console

  budget, workdir, console = cli.seconds(BUDGET.value), pathlib.Path(WORKDIR.value), plain_console()
  settings = ReportSettings.of(CONFIG.value)
  machine.claim(workdir, settings)
  conditions = cli.conditions()
  parts = parts_of(settings, workdir, budget, conditions)
  outcomes = report.fill(parts, machine.lines(conditions), workdir / 'report.md', settings.has_text)
  console.print(
    f'The report is {workdir}/report.md, every cell a line of a results.jsonl below {workdir}'
  )
  if not all(outcome.is_complete for outcome in outcomes.values()):
    console.print(f'Out of budget: the same command goes on in {workdir}')
  sys.exit(1 if any(outcome.failed for outcome in outcomes.values()) else 0)


if __name__ == '__main__':
  cli.run(main, config='configs/gpu_report.py')
