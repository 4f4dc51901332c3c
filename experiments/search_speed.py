"""Greedy and beam search at the sizes of transformer_base, ours and CTranslate2's, timed in turn.

  python -m experiments.search_speed --config=configs/speed.py --workdir=out/search

Random weights, no end token: every sentence has as many tokens as `config.calls`. Times are of whole calls, encoder
included, as milliseconds a step. Run it once as it is and once with CT2_USE_MKL=0 in the environment (see
experiments/peers.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag()
WORKDIR = flags.DEFINE_string('workdir', None, 'folder for the results', required=True)
SEARCHES = [(1, 1), (4, 1), (1, 32), (4, 8)]  # beams, sentences at once
SETTINGS = [('float32', 1), ('float32', 2), ('int8', 1)]  # of the peer: its type of numbers, threads
REST = 0.02  # seconds after a call on several threads, whose OpenMP would spin on at the next call's cost


def main(words: list[str]) -> None:
  import json
  import os
  import pathlib

  from rich.console import Console

  from configs.common import to_dataclass
  from experiments.speed import ctranslate2_model, translation

  config = to_dataclass(translation.SpeedConfig, CONFIG.value)
  version = ctranslate2_model.version()
  workdir, console = pathlib.Path(WORKDIR.value), Console(highlight=False, markup=False, soft_wrap=True)
  workdir.mkdir(parents=True, exist_ok=True)
  rows = _measure(config)
  own = {'ctranslate2': version, 'CT2_USE_MKL': os.environ.get('CT2_USE_MKL'), 'rounds': config.rounds}
  conditions = cli.conditions() | {'dtype': 'float32', 'batch': 0, 'seed': config.seed} | own
  del conditions['batch']  # a column
  with open(workdir / 'search.jsonl', 'a') as file:
    file.writelines(json.dumps(row | conditions) + '\n' for row in rows)
  page = _markdown(rows, conditions)
  (workdir / 'search.md').write_text(page)
  console.print(page)


def _measure(config: Any) -> list[dict[str, Any]]:
  """One row a search and engine; ratios are to the peer's fastest in float32, above 1 where that is the faster."""
  import dataclasses
  import tempfile
  import time

  import ctranslate2
  import jax
  import numpy as np

  import fastdec as fd
  from experiments.speed import ctranslate2_model
  from fastdec.evaluation.wallclock import measure
  from fastdec.models.transformer import Transformer

  model = Transformer(dataclasses.replace(config.model, dtype='float32', eos_ids=()))
  params = jax.jit(model.init)(jax.random.key(config.seed))
  with tempfile.TemporaryDirectory() as folder:
    ctranslate2_model.write(folder, Transformer(dataclasses.replace(config.model, dtype='float32')), params)
    peers = [
      (name, threads, ctranslate2.Translator(folder, device='cpu', compute_type=name, intra_threads=threads))
      for name, threads in SETTINGS
    ]

  rows = []
  for beams, batch in SEARCHES:
    source = np.random.default_rng(config.seed).integers(2, model.vocab_size, (batch, config.source))
    pieces = [[str(token) for token in row] for row in source.tolist()]
    strategy = fd.Greedy() if beams == 1 else fd.Beam(beams)
    ours = lambda source=source, strategy=strategy: fd.decode(model, params, source, strategy, max_len=config.calls)
    functions = {'fastdec, float32': ours}
    options = {'beam_size': beams, 'min_decoding_length': config.calls, 'max_decoding_length': config.calls}
    for name, threads, peer in peers:
      theirs = lambda peer=peer, pieces=pieces, options=options: peer.translate_batch(pieces, **options) and ()
      functions[f'CTranslate2, {name}, threads {threads}'] = theirs
      if threads > 1:
        functions[f'rest after {name}, {threads}'] = lambda: time.sleep(REST)
    timings = measure(functions, config.rounds)
    named = {name: timing for name, timing in timings.items() if not name.startswith('rest')}
    best = min((timing for name, timing in named.items() if 'CTranslate2, float32' in name), key=lambda t: t.median)
    for name, timing in named.items():
      rows.append({
        'search': 'greedy' if beams == 1 else f'beam {beams}',
        'batch': batch,
        'engine': name,
        'ms_per_step': timing.milliseconds / config.calls,
        'tokens_per_second': batch * config.calls / timing.median,
        'to_peer': 1 / timing.speedup_over(best),
      })  # fmt: skip
  return rows


def _markdown(rows: Sequence[Mapping[str, Any]], conditions: Mapping[str, Any]) -> str:
  lines = [
    "| search | batch | engine | ms a step | tokens a second | to CTranslate2's best float32 |",
    '|---|---|---|---|---|---|',
  ]
  for row in rows:
    figures = f'{row["ms_per_step"]:.2f} | {row["tokens_per_second"]:,.0f} | {row["to_peer"]:.2f}'
    lines.append(f'| {row["search"]} | {row["batch"]} | {row["engine"]} | {figures} |')
  return '\n'.join([*lines, '', '; '.join(f'{name} {value}' for name, value in conditions.items()), ''])


if __name__ == '__main__':
  cli.run(main)
