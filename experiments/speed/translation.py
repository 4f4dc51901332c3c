"""What a call of a translation model costs: `experiments.benchmark` with configs/speed.py."""

import dataclasses
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from experiments.lab.packing import rows_by_panels
from experiments.speed import ctranslate2_model
from experiments.speed.costs import Row, calls_table, check_at_least, figures
from experiments.speed.variants import REST
from fastdec.decoding.methods.greedy import NoDraft
from fastdec.decoding.methods.heads import HeadsDrafter
from fastdec.decoding.protocol import Drafter
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.evaluation.calls import Calls, FreeDraft, computing_in, random_params
from fastdec.evaluation.wallclock import Timing, measure
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
  peer: bool
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
    if self.peer and isinstance(self.model, FConvConfig):
      raise UserError(
        'peer=True is not possible for an FConv, which CTranslate2 does not know:'
        ' time a Transformer'
      )
    if self.peer:
      ctranslate2_model.version()


def measure_speed(config: SpeedConfig, say: Callable[[str], None]) -> list[dict[str, Any]]:
  """One row a dtype and variant; see `costs.measured`."""
  return [row for dtype in config.dtypes for row in _measure_dtype(config, dtype, say)]


def _measure_dtype(
  config: SpeedConfig, dtype: str, say: Callable[[str], None]
) -> list[dict[str, Any]]:
  model = model_of(dataclasses.replace(config.model, dtype=computing_in(dtype), eos_ids=()))
  target = Bound(model, random_params(model, config.seed, dtype))
  drafters: dict[str, Drafter] = {'greedy': NoDraft()}
  drafters |= {f'width {n}': FreeDraft(Topology.chain(n)) for n in config.widths if n > 1}
  for layout in ('separate', 'paper'):
    heads = BlockwiseHeads(
      k=config.k, d_model=config.model.d_model, d_ff=config.heads_d_ff, layout=layout
    )
    bound = Bound(heads, random_params(heads, config.seed + 1, dtype))
    drafters[f'k = {config.k}, {layout} heads'] = HeadsDrafter(bound, Topology.chain(config.k))
  say(f'{dtype}: compiling and timing {len(drafters)} variants')
  source = np.random.default_rng(config.seed).integers(
    2, model.vocab_size, (config.batch, config.source), np.int32
  )
  # One max_len for all, so that all caches have about the same slots.
  max_len = config.calls + max(config.widths, default=1) + 1
  is_packed = config.packed and rows_by_panels(dtype) > 0
  packed = _packed(target) if is_packed else target
  variants = {}
  for name, drafter in drafters.items():
    variants[name] = Calls.after_prompt(target, drafter, source, max_len, config.calls)
    if is_packed:
      if isinstance(drafter, HeadsDrafter):
        drafter = dataclasses.replace(drafter, heads=_packed(drafter.heads))
      variants[f'{name}, packed'] = Calls.after_prompt(
        packed, drafter, source, max_len, config.calls
      )
  peers = _peers(config, dtype, source) if config.peer else {}
  theirs = {name: peer.text for name, peer in peers.items()}
  theirs |= {f'{name}, begun': peer.begun for name, peer in peers.items()}
  timings = measure({**variants, **theirs}, config.rounds, rests=dict.fromkeys(theirs, REST))
  rows = figures(timings, variants, 'output' if 'output' in target.params else 'embedding')
  rows += [_peer_row(name, timings, config.calls) for name in peers]
  return [{'dtype': dtype, 'batch': config.batch, **row} for row in rows]


def _packed(bound: Bound) -> Bound:
  return Bound(bound.module, pack(bound.module, bound.params))


class _Peer(NamedTuple):
  """Two functions of CTranslate2: one writes `calls` tokens after the first, one the first
  alone."""

  text: Callable[[], Any]
  begun: Callable[[], Any]


def _peers(config: SpeedConfig, dtype: str, source: np.ndarray) -> dict[str, _Peer]:
  """CTranslate2 with a model of the same sizes, by 1 thread and by all cores; nothing in types that
  it has not here."""
  import ctranslate2

  if dtype not in ctranslate2.get_supported_compute_types('cpu'):
    return {}
  model = model_of(dataclasses.replace(config.model, dtype='float32', eos_ids=(1,)))
  pieces = [list(map(str, row)) for row in source]

  def function(translator: Any, tokens: int) -> Callable[[], Any]:
    lengths = {'min_decoding_length': tokens, 'max_decoding_length': tokens}
    return lambda: translator.translate_batch(pieces, beam_size=1, max_input_length=0, **lengths)

  found = {}
  with tempfile.TemporaryDirectory() as folder:
    ctranslate2_model.write(folder, model, random_params(model, config.seed, 'float32'))
    for threads in sorted({1, len(os.sched_getaffinity(0))}):
      translator = ctranslate2.Translator(
        folder, device='cpu', compute_type=dtype, intra_threads=threads
      )
      name = f'CTranslate2 {ctranslate2_model.version()}, threads: {threads}'
      found[name] = _Peer(function(translator, config.calls + 1), function(translator, 1))
  return found


def _peer_row(name: str, timings: Mapping[str, Timing], calls: int) -> Row:
  """A peer's step: what a text takes longer than its first token, over the tokens after that."""
  greedy = timings['greedy'].seconds
  steps = [
    text - begun
    for text, begun in zip(timings[name].seconds, timings[f'{name}, begun'].seconds, strict=True)
  ]
  ratios = [step / ours for step, ours in zip(steps, greedy, strict=True)]
  return {
    'variant': name,
    'ms_per_call': 1e3 * statistics.median(steps) / calls,
    'to_greedy': statistics.median(ratios),
    'spread': (min(ratios), max(ratios)),
    'to_floor': None,
    'floor_ms': None,
    'rounds': len(steps),
  }


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
  """The rows as a pipe table."""
  return calls_table(rows)
