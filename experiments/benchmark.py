"""What a call of the target costs as a function of block width, as ratios to our own greedy step and to the floor.

  python -m experiments.benchmark --config=configs/speed.py --workdir=out/speed

The floor is the time to read, once, what a call must read (the decoder's weights, the embedding, the heads) at the
bandwidth measured in the same process. Random weights and drafts that are never right: only the calls are timed,
after encoder and prompt, all variants in turn.
"""

from absl import flags

from experiments import cli

CONFIG = cli.config_flag()
WORKDIR = flags.DEFINE_string('workdir', None, 'folder for the results', required=True)


def main(words: list[str]) -> None:
  import json
  import pathlib

  from rich.console import Console

  from configs.common import to_dataclass
  from experiments import speed

  config = to_dataclass(speed.SpeedConfig, CONFIG.value)
  workdir, console = pathlib.Path(WORKDIR.value), Console(highlight=False, soft_wrap=True)
  workdir.mkdir(parents=True, exist_ok=True)
  rows = speed.measure_calls(config, console.print)
  conditions = cli.conditions(cli.config_string(), ' '.join(config.dtypes), config.batch, config.seed)
  with open(workdir / 'speed.jsonl', 'a') as file:
    file.writelines(json.dumps(row | conditions) + '\n' for row in rows)
  page = speed.markdown(rows, conditions)
  (workdir / 'speed.md').write_text(page)
  console.print(page, markup=False)


if __name__ == '__main__':
  cli.run(main)
