"""What a call of the Image Transformer and a whole image cost: `experiments.benchmark` with
configs/image_speed.py."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

import fastdec as fd
from experiments.lab.report import Column
from experiments.speed.costs import calls_table, check_at_least, measured, rounds, table
from fastdec.cache.memory import WithMemory
from fastdec.decoding.topology import Topology
from fastdec.evaluation.calls import Calls, FreeDraft, computing_in, random_params
from fastdec.evaluation.wallclock import measure
from fastdec.folders import model_of
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.models.api import Capacity
from fastdec.models.image_transformer import ImageTransformer, ImageTransformerConfig, Picture
from fastdec.struct import Bound

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class SpeedConfig:
  """Fields as in `configs/image_speed.py`."""

  task: Literal['images']
  model: ImageTransformerConfig
  dtypes: tuple[str, ...]
  widths: tuple[int, ...]
  ks: tuple[int, ...]
  heads_d_ff: int
  sides: tuple[int, ...]
  batches: tuple[int, ...]
  mean_blocks: tuple[float, ...]
  calls: int
  rounds: int
  decodes: int
  seed: int

  def __post_init__(self) -> None:
    check_at_least(
      1, self, 'widths', 'ks', 'heads_d_ff', 'sides', 'batches', 'mean_blocks', 'calls', 'rounds'
    )
    check_at_least(0, self, 'decodes')


class AllSlots(ImageTransformer):
  """The same model with a slot for every position: what a plain key/value cache costs under the
  same local mask."""

  def init_cache(
    self, params: Any, memory: Picture, rows: int, slots: int | Capacity
  ) -> WithMemory:
    return super().init_cache(params, memory, rows, int(slots))


CACHES = {'ring': ImageTransformer, 'all slots': AllSlots}


def measure_speed(config: SpeedConfig, say: Callable[[str], None]) -> list[Row]:
  """Rows of three kinds, named by 'table': 'calls', 'length' (both: one call) and 'images' (one
  image)."""
  return [row for dtype in config.dtypes for row in _measure_dtype(config, dtype, say)]


def _measure_dtype(config: SpeedConfig, dtype: str, say: Callable[[str], None]) -> list[Row]:
  config = dataclasses.replace(
    config, model=dataclasses.replace(config.model, dtype=computing_in(dtype))
  )
  params = random_params(ImageTransformer(config.model), config.seed, dtype)
  strategies = {'greedy': fd.Greedy()} | {
    f'k = {k}': fd.Blockwise(_heads(config, k, dtype)) for k in config.ks
  }
  rows = []
  for batch in config.batches:
    say(f'{dtype}, batch {batch}: calls')
    calls = _calls(config, params, strategies, batch)
    say(f'{dtype}, batch {batch}: lengths')
    lengths = _lengths(config, params, strategies, batch)
    say(f'{dtype}, batch {batch}: images')
    images = [*_calculated(config, calls, batch), *_decoded(config, params, strategies, batch)]
    named = {'calls': calls, 'length': lengths, 'images': images}
    of_batch = {'dtype': dtype, 'batch': batch}
    rows += [{'table': name, **of_batch, **row} for name, part in named.items() for row in part]
  return rows


def _heads(config: SpeedConfig, k: int, dtype: str) -> Bound:
  heads = BlockwiseHeads(k=k, d_model=config.model.d_model, d_ff=config.heads_d_ff)
  return Bound(heads, random_params(heads, config.seed + 1, dtype))


def _inputs(config: SpeedConfig, batch: int) -> np.ndarray:
  """Noise, uint8[b, 8, 8, 3]."""
  side = config.model.source_size
  return np.random.default_rng(config.seed).integers(0, 256, (batch, side, side, 3), np.uint8)


def _ready(
  config: SpeedConfig, model: ImageTransformer, params: Any, drafter: Any, batch: int
) -> Calls:
  inputs = _inputs(config, batch)
  return Calls.after_prompt(Bound(model, params), drafter, inputs, model.fixed_length, config.calls)


def _calls(
  config: SpeedConfig, params: Any, strategies: Mapping[str, Any], batch: int
) -> list[Row]:
  """One row a variant: a call in a decode of the full size."""
  drafters = {name: strategy.drafter for name, strategy in strategies.items()}
  drafters |= {f'width {n}': FreeDraft(Topology.chain(n)) for n in config.widths if n > 1}
  model = ImageTransformer(config.model)
  variants = {
    name: _ready(config, model, params, drafter, batch) for name, drafter in drafters.items()
  }
  return measured(variants, config.rounds, 'output')


def _lengths(
  config: SpeedConfig, params: Any, strategies: Mapping[str, Any], batch: int
) -> Iterator[Row]:
  """One row a side, cache and strategy (greedy and the largest k): a call in a decode of that
  side's length."""
  for name in ('greedy', f'k = {max(config.ks)}'):
    drafter, functions = strategies[name].drafter, {}
    for cache, kind in CACHES.items():
      for side in config.sides:
        model = kind(dataclasses.replace(config.model, size=side))
        functions[cache, side] = _ready(config, model, params, drafter, batch)
    timings = measure(functions, config.rounds)
    shortest = timings['ring', min(config.sides)]
    for (cache, side), timing in timings.items():
      yield {
        'variant': name,
        'cache': cache,
        'side': side,
        'tokens': side * side * 3,
        'slots': functions[cache, side].state.cache.own.slots,
        'ms_per_call': timing.milliseconds / config.calls,
        'to_shortest_ring': 1 / timing.speedup_over(shortest),
        'spread': shortest.speedups_over(timing),
        'rounds': config.rounds,
      }


def _calculated(config: SpeedConfig, calls: Sequence[Row], batch: int) -> Iterator[Row]:
  """An image's time as calls times milliseconds a call, every row of the batch having the same mean
  block."""
  tokens = ImageTransformer(config.model).fixed_length - 1  # the first comes with the prompt
  blocks = {'greedy': (1.0,)} | {
    f'k = {k}': [x for x in config.mean_blocks if x <= k] for k in config.ks
  }
  for row in calls:
    for block in blocks.get(row['variant'], ()):
      yield {
        'variant': row['variant'],
        'mean_block': block,
        'ms_per_image': tokens / block * row['ms_per_call'] / batch,
        'to_greedy': row['to_greedy'] / block,
        'how': 'calculated',
      }


def _decoded(
  config: SpeedConfig, params: Any, strategies: Mapping[str, Any], batch: int
) -> Iterator[Row]:
  """An image's time, measured: encoder, prompt and all calls, with the blocks that random weights
  give."""
  if not config.decodes:
    return
  model, inputs = model_of(config.model), _inputs(config, batch)

  def decode(strategy: Any) -> Any:
    return lambda: fd.decode(model, params, inputs, strategy)

  functions = {name: decode(strategy) for name, strategy in strategies.items()}
  timings = measure(functions, config.decodes)
  for name, function in functions.items():
    yield {
      'variant': name,
      'mean_block': float(function().checked().mean_block_size),
      'ms_per_image': timings[name].milliseconds / batch,
      'to_greedy': 1 / timings[name].speedup_over(timings['greedy']),
      'spread': timings['greedy'].speedups_over(timings[name]),
      'how': 'measured',
      'rounds': config.decodes,
    }


TYPE = Column('dtype', 'dtype')
LENGTHS = (
  TYPE,
  Column('batch', 'batch'),
  Column('variant', 'variant'),
  Column('cache', 'cache'),
  Column('side', 'side'),
  Column('tokens', 'tokens'),
  Column('slots', 'slots'),
  Column('ms a call', 'ms_per_call', '.2f'),
  Column('to the shortest ring', 'to_shortest_ring', '.2f', beside=rounds),
)
IMAGES = (
  TYPE,
  Column('batch', 'batch'),
  Column('variant', 'variant'),
  Column('mean block', 'mean_block', '.2f'),
  Column('ms an image', 'ms_per_image', ',.0f'),
  Column('to greedy', 'to_greedy', '.2f', beside=rounds),
  Column('how', 'how'),
)
HOW = (
  "calculated: calls at this mean block times a call's time; measured: a whole decode, random"
  ' weights'
)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
  """The three tables."""
  calls, lengths, images = (
    [row for row in rows if row['table'] == name] for name in ('calls', 'length', 'images')
  )
  return '\n\n'.join([
    'A call:', calls_table(calls),
    "A call against the image's length:", table(lengths, LENGTHS),
    f'An image ({HOW}):', table(images, IMAGES),
  ])  # fmt: skip
