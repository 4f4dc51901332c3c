"""A peer to compare with: the same language model in Hugging Face's transformers, greedy, assisted, by prompt lookup.

  python -m experiments.generate_peer --config=configs/generate_peer.py:scale=110m --workdir=out/peer
  python -m experiments.generate_peer --config=configs/generate_peer.py --model=folder --draft=folder --workdir=out/peer

Both sides read the same Hugging Face folders, --model and --draft, or else random weights in the config's sizes, and go
on from prompts of random ids, one at a time, for as many tokens as they are asked: nothing ends a text. All prompts are
decoded first, to count those with the tokens of our greedy decoding: in float32 all of them, but for near ties. Then
some are timed in turn. Random models hardly ever agree, so the target also drafts for itself: then all is accepted.
Prints a table, and appends its rows with all conditions to workdir/generate_peer.jsonl.
"""

import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag()
MODEL = flags.DEFINE_string('model', None, 'Hugging Face folder of a decoder-only model (else: random weights)')
DRAFT = flags.DEFINE_string('draft', None, 'Hugging Face folder of a smaller model that drafts for --model')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder for the results', required=True)


def main(words: list[str]) -> None:
  import json

  from rich.console import Console

  from configs.common import to_dataclass
  from experiments.speed import huggingface_peer, peer_variants
  from experiments.speed.costs import peers_table

  _check()
  config, workdir = to_dataclass(peer_variants.PeerConfig, CONFIG.value), pathlib.Path(WORKDIR.value)
  versions = huggingface_peer.versions()
  workdir.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(dir=workdir) as made:
    folders = _folders(config, pathlib.Path(made))
    loaded = peer_variants.load(folders, config.dtype)
    pairs = zip(peer_variants.ours(loaded, config), peer_variants.theirs(folders, config), strict=True)
    rows = _measure([variant for pair in pairs for variant in pair], loaded['model'][0].vocab_size, config)
  asked = {name: CONFIG.value[name] for name in ('prompt', 'tokens', 'gamma', 'ngram', 'prompts', 'timed', 'rounds')}
  conditions = cli.conditions() | {'dtype': config.dtype, 'batch': 1, 'seed': config.seed} | asked | versions
  conditions |= {'model': MODEL.value, 'draft': DRAFT.value}
  with open(workdir / 'generate_peer.jsonl', 'a') as file:
    file.write(''.join(json.dumps(row | conditions) + '\n' for row in rows))
  console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
  console.print(peers_table(rows) + '\n\n' + '; '.join(f'{name} {value}' for name, value in conditions.items()))


def _check() -> None:
  """Mistakes that show without a look at any weights."""
  from fastdec.errors import UserError
  from fastdec.folders import huggingface

  if DRAFT.value is not None and MODEL.value is None:
    raise UserError(f'--draft={DRAFT.value} has nothing to draft for: give --model=folder as well')
  for folder in filter(None, (MODEL.value, DRAFT.value)):
    if not huggingface.is_folder(pathlib.Path(folder)):
      raise UserError(f'{folder} is no Hugging Face folder: give one with its config.json and safetensors files')


def _folders(config: Any, made: pathlib.Path) -> dict[str, str]:
  """Those of 'model' and, where there is one, 'draft'; without --model random ones, written to `made`."""
  from experiments.speed import huggingface_peer

  if MODEL.value is not None:
    return {role: flag.value for role, flag in (('model', MODEL), ('draft', DRAFT)) if flag.value is not None}
  for i, role in enumerate(('model', 'draft')):
    huggingface_peer.write(str(made / role), getattr(config, role), config.seed + i)
  return {role: str(made / role) for role in ('model', 'draft')}


def _measure(variants: Sequence[Any], words: int, config: Any) -> list[dict[str, Any]]:
  """One row a variant, our greedy decoding first; ratios are above 1 where the row's variant is the faster one."""
  import numpy as np

  from experiments.speed.peer_variants import THEIRS
  from experiments.speed.resting import measure_resting

  prompts = np.random.default_rng(config.seed).integers(0, words, (config.prompts, 1, config.prompt), np.int32)
  counted = [[variant.count(prompt) for prompt in prompts] for variant in variants]
  functions = {variant.name: variant.decode for variant in variants}
  spinning = {variant.name for variant in variants if variant.engine == THEIRS}
  timings = measure_resting(functions, spinning, config.rounds, [(prompt,) for prompt in prompts[: config.timed]])
  greedy = {variant.engine: timings[variant.name] for variant in variants if variant.strategy == 'greedy'}
  theirs = {variant.strategy: timings[variant.name] for variant in variants if variant.engine == THEIRS}
  rows = []
  for variant, counts in zip(variants, counted, strict=True):
    timing, same = timings[variant.name], [own[0] == plain[0] for own, plain in zip(counts, counted[0], strict=True)]
    rows.append(
      {
        'strategy': variant.strategy,
        'engine': variant.engine,
        'same_as_greedy': float(np.mean(same)),
        'ms_per_token': timing.milliseconds / config.tokens,
        'to_peer': timing.speedup_over(theirs[variant.strategy]),
        'to_greedy': timing.speedup_over(greedy[variant.engine]),
        'target_calls': float(np.mean([target for _, target, _ in counts])),
        'draft_calls': float(np.mean([draft for _, _, draft in counts])),
      }
    )
  return rows


if __name__ == '__main__':
  cli.run(main)
