"""What a call of a translation model costs: `experiments.benchmark` with configs/speed.py."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from experiments.speed.costs import calls_table, check_at_least, measured
from fastdec.decoding.methods.greedy import NoDraft
from fastdec.decoding.methods.heads import HeadsDrafter
from fastdec.decoding.protocol import Drafter
from fastdec.decoding.topology import Topology
from fastdec.evaluation.calls import Calls, FreeDraft, computing_in, random_params
from fastdec.folders import model_of
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.models.fconv import FConvConfig
from fastdec.models.transformer import TransformerConfig
from fastdec.packed import pack
from fastdec.struct import Bound


@dataclasses.dataclass(frozen=True)
class SpeedConfig:
  """Fields as in `configs/speed.py`; `model` is without its dtype and end tokens."""

  task: Literal['translation']
  model: TransformerConfig | FConvConfig
  dtypes: tuple[str, ...]
  packed: bool
  widths: tuple[int, ...]
  k: int
  heads_d_ff: int
  source: int
  calls: int
  rounds: int
  batch: int
  seed: int

  def __post_init__(self) -> None:
    check_at_least(1, self, 'widths', 'heads_d_ff', 'source', 'calls', 'rounds', 'batch')


def measure_speed(config: SpeedConfig, say: Callable[[str], None]) -> list[dict[str, Any]]:
  """One row a dtype and variant; see `costs.measured`."""
  return [row for dtype in config.dtypes for row in _measure_dtype(config, dtype, say)]


def _measure_dtype(config: SpeedConfig, dtype: str, say: Callable[[str], None]) -> list[dict[str, Any]]:
  model = model_of(dataclasses.replace(config.model, dtype=computing_in(dtype), eos_ids=()))
  target = Bound(model, random_params(model, config.seed, dtype))
  packed = Bound(model, pack(model, target.params)) if config.packed and dtype == 'float32' else None
  drafters: dict[str, Drafter] = {'greedy': NoDraft()}
  drafters |= {f'width {n}': FreeDraft(Topology.chain(n)) for n in config.widths if n > 1}
  for layout in ('separate', 'paper'):
    heads = BlockwiseHeads(k=config.k, d_model=config.model.d_model, d_ff=config.heads_d_ff, layout=layout)
    bound = Bound(heads, random_params(heads, config.seed + 1, dtype))
    drafters[f'k = {config.k}, {layout} heads'] = HeadsDrafter(bound, Topology.chain(config.k))
  say(f'{dtype}: compiling and timing {len(drafters)} variants')
  source = np.random.default_rng(config.seed).integers(2, model.vocab_size, (config.batch, config.source), np.int32)
  # One max_len for all, so that all caches have about the same slots.
  max_len = config.calls + max(config.widths, default=1) + 1
  variants = {}
  for name, drafter in drafters.items():
    variants[name] = Calls.after_prompt(target, drafter, source, max_len, config.calls)
    if packed is not None:
      variants[f'{name}, packed'] = Calls.after_prompt(packed, drafter, source, max_len, config.calls)
  rows = measured(variants, config.rounds, 'output' if 'output' in target.params else 'embedding')
  return [{'dtype': dtype, 'batch': config.batch, **row} for row in rows]


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
  """The rows as a pipe table."""
  return calls_table(rows)
