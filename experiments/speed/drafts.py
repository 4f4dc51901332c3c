"""What drafting costs: `experiments.benchmark` with configs/draft_speed.py. Parameters are packed
as in launchers."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

import fastdec as fd
from experiments.lab.packing import packed
from experiments.lab.report import Column
from experiments.speed.costs import check_at_least, rounds, table
from fastdec.decoding.decode import start
from fastdec.decoding.inputs import checked
from fastdec.decoding.methods.greedy import NoDraft
from fastdec.errors import UserError
from fastdec.evaluation.calls import Calls, computing_in, draft_rounds, random_params
from fastdec.evaluation.wallclock import measure
from fastdec.folders import model_of
from fastdec.heads.block import BlockNetwork
from fastdec.heads.draft import DraftNetwork
from fastdec.heads.eagle import EagleNetwork
from fastdec.models.transformer import TransformerConfig
from fastdec.struct import Bound
from fastdec.training.drafts.start import layers_like

WIDTH = 8  # of EAGLE's trees
COLUMNS = (
  Column('dtype', 'dtype'),
  Column('batch', 'batch'),
  Column('variant', 'variant'),
  Column('ms', 'ms', '.3f'),
  Column('to a greedy call', 'to_greedy', '.2f', beside=rounds),
  Column('a token', 'to_greedy_a_token', '.3f'),
)


@dataclasses.dataclass(frozen=True)
class SpeedConfig:
  """Fields as in `configs/draft_speed.py`; `model` is without its dtype and end tokens."""

  task: Literal['drafts']
  model: TransformerConfig
  dtypes: tuple[str, ...]
  guesses: int
  words: tuple[int, ...]
  markov: int
  nodes: int
  source: int
  calls: int
  rounds: int
  batch: int
  seed: int

  def __post_init__(self) -> None:
    check_at_least(1, self, 'guesses', 'words', 'markov', 'source', 'calls', 'rounds', 'batch')
    if max(self.words, default=1) > self.model.vocab_size:
      raise UserError(
        f'words={self.words} is not possible: the model has {self.model.vocab_size} words'
      )


def measure_speed(config: SpeedConfig, say: Callable[[str], None]) -> list[dict[str, Any]]:
  """One row a dtype and variant: 'greedy', a whole call of the model; and the drafts."""
  return [row for dtype in config.dtypes for row in _measure_dtype(config, dtype, say)]


def strategies(config: SpeedConfig, model: Any, dtype: str) -> dict[str, Any]:
  """The drafters by name: chains and trees, over all words and over draft vocabularies."""
  layers = layers_like(model, 1)
  sizes = {'layers': layers, 'vocab_size': model.vocab_size, 'd_target': model.d_model}

  def bound(module: DraftNetwork) -> Bound:
    params = random_params(module, config.seed + 1, dtype)
    if module.words is not None:
      params['ids'] = np.arange(module.words, dtype=np.int32)
    return Bound(*packed(module, params))

  found = {}
  for words in (None, *config.words):
    name = '' if words is None else f', {words:,} words'
    eagle = bound(EagleNetwork(**sizes, words=words))
    block = bound(BlockNetwork(**sizes, words=words, k=config.guesses + 1, markov=config.markov))
    found[f'EAGLE, chain{name}'] = fd.Eagle(eagle, config.guesses)
    found[f'EAGLE, tree{name}'] = fd.Eagle(eagle, config.guesses, WIDTH, config.nodes)
    found[f'block, chain{name}'] = fd.BlockDraft(block)
    found[f'block, tree{name}'] = fd.BlockDraft(block, choices=config.nodes)
  return found


def _measure_dtype(
  config: SpeedConfig, dtype: str, say: Callable[[str], None]
) -> list[dict[str, Any]]:
  model = model_of(dataclasses.replace(config.model, dtype=computing_in(dtype), eos_ids=()))
  target = Bound(*packed(model, random_params(model, config.seed, dtype)))
  source = np.random.default_rng(config.seed).integers(
    2, model.vocab_size, (config.batch, config.source), np.int32
  )
  max_len = config.calls + config.nodes
  functions: dict[str, Callable[..., Any]] = {
    'greedy': Calls.after_prompt(target, NoDraft(), source, max_len, config.calls)
  }
  for name, strategy in strategies(config, model, dtype).items():
    _, prompt, _ = checked(model, source, None, None, max_len, None)
    state, _ = start(target, strategy, prompt, None, max_len)
    one = draft_rounds(target, strategy.drafter, state)
    functions[name] = lambda one=one: one(config.calls)
  say(f'{dtype}: compiling and timing {len(functions)} variants')
  timings = measure(functions, config.rounds)
  rows = []
  for name, timing in timings.items():
    ratio = 1 / timing.speedup_over(timings['greedy'])
    tokens = 1 if name == 'greedy' else config.guesses
    rows.append({
      'dtype': dtype,
      'batch': config.batch,
      'variant': name,
      'ms': timing.milliseconds / config.calls,
      'to_greedy': ratio,
      'spread': timings['greedy'].speedups_over(timing),
      'to_greedy_a_token': ratio / tokens,
      'rounds': len(timing.seconds),
    })  # fmt: skip
  return rows


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
  """The rows as a pipe table."""
  return table(rows, COLUMNS)
