"""What a call of the target costs as a function of block width, as ratios to our own greedy step
and to the floor.

  python -m experiments.benchmark --config=configs/speed.py --workdir=out/speed
  python -m experiments.benchmark --config=configs/image_speed.py --workdir=out/image-speed
  python -m experiments.benchmark --config=configs/lm_speed.py --workdir=out/lm-speed
  python -m experiments.benchmark --config=configs/draft_speed.py --workdir=out/draft-speed
  python -m experiments.benchmark --config=configs/products.py --workdir=out/products

The floor is the time to read, once, what a call must read (the decoder's weights, the vocabulary
projection, the heads, the cache) at the bandwidth measured in the same process. Random weights and
drafts that are hardly ever right: only the calls are timed, after encoder and prompt, all variants
in turn. Images have more tables: see configs/image_speed.py. Of a language model the model's part
of a call is timed alone too: the rest is the loop's.
"""

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('speed', 'image_speed', 'lm_speed', 'draft_speed', 'products')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder for the results', required=True)


def main(words: list[str]) -> None:
  import pathlib

  from configs.common import to_dataclass
  from experiments.speed import drafts, images, lm, products, translation
  from experiments.speed.variants import publish

  kinds = {
    'translation': translation,
    'images': images,
    'lm': lm,
    'drafts': drafts,
    'products': products,
  }
  kind = kinds[CONFIG.value.task]
  config = to_dataclass(kind.SpeedConfig, CONFIG.value)
  workdir = pathlib.Path(WORKDIR.value)
  workdir.mkdir(parents=True, exist_ok=True)
  conditions = cli.conditions() | {'seed': config.seed}
  rows = kind.measure_speed(config, print)
  publish(rows, conditions, kind.markdown(rows), workdir / 'speed.jsonl', workdir / 'speed.md')


if __name__ == '__main__':
  cli.run(main)
