"""A peer to compare with: the same language model in Hugging Face's transformers, greedy, assisted,
by prompt lookup.

  python -m experiments.generate_peer --config=configs/generate_peer.py:scale=110m
  --workdir=out/peer python -m experiments.generate_peer --config=configs/generate_peer.py
  --model=folder --draft=folder --workdir=out/peer

Both sides read the same Hugging Face folders, --model and --draft, or else random weights in the
config's sizes, and go on from prompts of random ids, one at a time, for as many tokens as they are
asked: nothing ends a text. All prompts are decoded first, to count those with the tokens of our
greedy decoding: in float32 all of them, except at near ties. Then some are timed in turn. Random
models hardly ever agree, so the target also drafts for itself: then all is accepted. Prints a
table, and appends its rows with all conditions to workdir/generate_peer.jsonl.
"""

import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('generate_peer')
MODEL = flags.DEFINE_string(
  'model', None, 'Hugging Face folder of a decoder-only model (else: random weights)'
)
DRAFT = flags.DEFINE_string(
  'draft', None, 'Hugging Face folder of a smaller model that drafts for --model'
)
WORKDIR = flags.DEFINE_string('workdir', None, 'folder for the results', required=True)


def main(words: list[str]) -> None:
  import numpy as np

  from configs.common import to_dataclass
  from experiments.speed import huggingface_peer, peer_variants
  from experiments.speed.costs import peers_table
  from experiments.speed.variants import publish

  _check()
  config, workdir = (
    to_dataclass(peer_variants.PeerConfig, CONFIG.value),
    pathlib.Path(WORKDIR.value),
  )
  versions = huggingface_peer.versions()
  workdir.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(dir=workdir) as made:
    folders = _folders(config, pathlib.Path(made))
    loaded = peer_variants.load(folders, config.dtype)
    words_known = loaded['model'][0].vocab_size
    shape = (config.prompts, 1, config.prompt)
    prompts = list(np.random.default_rng(config.seed).integers(0, words_known, shape, np.int32))
    ours, theirs = (
      peer_variants.ours(loaded, prompts, config),
      peer_variants.theirs(folders, prompts, config),
    )
    rows = _measure(
      [one for pair in zip(ours, theirs, strict=True) for one in pair], prompts, config
    )
  asked = {
    name: CONFIG.value[name]
    for name in ('prompt', 'tokens', 'gamma', 'ngram', 'prompts', 'timed', 'rounds')
  }
  conditions = (
    cli.conditions() | {'dtype': config.dtype, 'batch': 1, 'seed': config.seed} | asked | versions
  )
  conditions |= {'model': MODEL.value, 'draft': DRAFT.value}
  publish(rows, conditions, peers_table(rows), workdir / 'generate_peer.jsonl')


def _check() -> None:
  """Mistakes that show without a look at any weights."""
  from fastdec import folders
  from fastdec.errors import UserError
  from fastdec.folders.huggingface import HuggingFaceFolder

  if DRAFT.value is not None and MODEL.value is None:
    raise UserError(f'--draft={DRAFT.value} has nothing to draft for: give --model=folder as well')
  for folder in filter(None, (MODEL.value, DRAFT.value)):
    if not pathlib.Path(folder).is_dir() or not isinstance(folders.open(folder), HuggingFaceFolder):
      raise UserError(
        f'{folder} is no Hugging Face folder: give one with its config.json and safetensors files'
      )


def _folders(config: Any, made: pathlib.Path) -> dict[str, str]:
  """Those of 'model' and, where there is one, 'draft'; without --model random ones, written to
  `made`."""
  from experiments.speed import huggingface_peer

  if MODEL.value is not None:
    return {
      role: flag.value
      for role, flag in (('model', MODEL), ('draft', DRAFT))
      if flag.value is not None
    }
  for i, role in enumerate(('model', 'draft')):
    huggingface_peer.write(str(made / role), getattr(config, role), config.seed + i)
  return {role: str(made / role) for role in ('model', 'draft')}


def _measure(variants: Sequence[Any], prompts: Sequence[Any], config: Any) -> list[dict[str, Any]]:
  """One row a variant, our greedy decoding first; ratios are above 1 where the row's variant is the
  faster one."""
  import statistics

  from experiments.speed.peer_variants import THEIRS
  from experiments.speed.variants import compare

  compared = compare(variants, config.rounds, [(prompt,) for prompt in prompts[: config.timed]])
  timings = {
    (one.variant.names['engine'], one.variant.names['strategy']): one.timing for one in compared
  }
  rows = []
  for one in compared:
    engine, strategy = one.variant.names['engine'], one.variant.names['strategy']
    rows.append({
      'strategy': strategy,
      'engine': engine,
      'same_as_greedy': one.same,
      'ms_per_token': one.timing.milliseconds / config.tokens,
      'to_peer': one.timing.speedup_over(timings[THEIRS, strategy]),
      'spread': one.timing.speedups_over(timings[THEIRS, strategy]),
      'to_greedy': one.timing.speedup_over(timings[engine, 'greedy']),
      'target_calls': statistics.fmean(text.target_calls for text in one.texts),
      'draft_calls': statistics.fmean(text.draft_calls for text in one.texts),
    })  # fmt: skip
  return rows


if __name__ == '__main__':
  cli.run(main)
