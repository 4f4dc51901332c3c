"""Greedy and beam search at the sizes of transformer_base, ours and CTranslate2's, timed in turn.

  python -m experiments.search_speed --config=configs/speed.py --workdir=out/search

Random weights, no end token: every sentence has as many tokens as `config.calls`. Times are of
whole calls, encoder included, as milliseconds a step. Run it once as it is and once with
CT2_USE_MKL=0 in the environment (see experiments/peers.py).
"""

from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('speed')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder for the results', required=True)
SEARCHES = [(1, 1), (4, 1), (1, 32), (4, 8)]  # beams, sentences at once
# of the peer: its type of numbers, threads
SETTINGS = [('float32', 1), ('float32', 2), ('int8', 1)]


def main(words: list[str]) -> None:
  import os
  import pathlib

  from configs.common import to_dataclass
  from experiments.lab.report import Column
  from experiments.speed import ctranslate2_model, translation
  from experiments.speed.costs import rounds, table
  from experiments.speed.variants import publish

  config = to_dataclass(translation.SpeedConfig, CONFIG.value)
  version = ctranslate2_model.version()
  workdir = pathlib.Path(WORKDIR.value)
  workdir.mkdir(parents=True, exist_ok=True)
  rows = _measure(config)
  own = {
    'ctranslate2': version,
    'CT2_USE_MKL': os.environ.get('CT2_USE_MKL'),
    'rounds': config.rounds,
  }
  conditions = cli.conditions() | {'dtype': 'float32', 'seed': config.seed} | own
  columns = (
    Column('search', 'search'),
    Column('batch', 'batch'),
    Column('engine', 'engine'),
    Column('ms a step', 'ms_per_step', '.2f'),
    Column('tokens a second', 'tokens_per_second', ',.0f'),
    Column("to CTranslate2's best float32", 'to_peer', '.2f', beside=rounds),
  )
  publish(rows, conditions, table(rows, columns), workdir / 'search.jsonl', workdir / 'search.md')


def _measure(config: Any) -> list[dict[str, Any]]:
  """One row a search and engine; ratios are to the peer's fastest in float32, above 1 where that is
  the faster."""
  import dataclasses
  import tempfile

  import ctranslate2
  import jax

  from experiments.speed import ctranslate2_model
  from experiments.speed.variants import compare
  from fastdec.models.transformer import Transformer

  model = Transformer(dataclasses.replace(config.model, dtype='float32', eos_ids=()))
  params = jax.jit(model.init)(jax.random.key(config.seed))
  with tempfile.TemporaryDirectory() as folder:
    ctranslate2_model.write(
      folder, Transformer(dataclasses.replace(config.model, dtype='float32')), params
    )
    translators = [
      ctranslate2.Translator(folder, device='cpu', compute_type=name, intra_threads=threads)
      for name, threads in SETTINGS
    ]

  rows = []
  for beams, batch in SEARCHES:
    compared = compare(_variants(model, params, translators, beams, batch, config), config.rounds)
    timings = {one.variant.names['engine']: one.timing for one in compared}
    float32 = [
      timing for engine, timing in timings.items() if engine.startswith('CTranslate2, float32')
    ]
    best = min(float32, key=lambda timing: timing.median)
    for engine, timing in timings.items():
      rows.append({
        'search': 'greedy' if beams == 1 else f'beam {beams}',
        'batch': batch,
        'engine': engine,
        'ms_per_step': timing.milliseconds / config.calls,
        'tokens_per_second': batch * config.calls / timing.median,
        'to_peer': 1 / timing.speedup_over(best),
        'spread': best.speedups_over(timing),
      })  # fmt: skip
  return rows


def _variants(
  model: Any, params: Any, translators: Sequence[Any], beams: int, batch: int, config: Any
) -> list[Any]:
  """Our search, and each translator's, over the same random sentences."""
  import numpy as np

  import fastdec as fd
  from experiments.speed.variants import Variant

  source = np.random.default_rng(config.seed).integers(2, model.vocab_size, (batch, config.source))
  pieces = [[str(token) for token in row] for row in source.tolist()]
  strategy = fd.Greedy() if beams == 1 else fd.Beam(beams)
  options = {
    'beam_size': beams,
    'min_decoding_length': config.calls,
    'max_decoding_length': config.calls,
  }

  def theirs(translator: Any) -> Callable[[], tuple[()]]:
    def decode() -> tuple[()]:
      translator.translate_batch(pieces, **options)
      return ()

    return decode

  def ours():
    return fd.decode(model, params, source, strategy, max_len=config.calls)

  variants = [Variant({'engine': 'fastdec, float32'}, ours)]
  for (name, threads), translator in zip(SETTINGS, translators, strict=True):
    engine = {'engine': f'CTranslate2, {name}, threads {threads}'}
    variants.append(Variant(engine, theirs(translator), spins=threads > 1))
  return variants


if __name__ == '__main__':
  cli.run(main)
