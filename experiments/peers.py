"""A peer to compare with: the same trained model in CTranslate2, a decoding engine in C++ (its
greedy search).

  python -m experiments.peers --config=configs/wmt14.py:scale=multi30k
  --workdir=out/multi30k/k10-finetune

Token ids in, token ids out, on both sides. All sentences of the table are decoded first, to count
those with the tokens of our greedy decoding: in float32 all of them, except at near ties. Then
single sentences are timed in turn, by as many cores as single texts are decoded with (`--cores`),
among them what `experiments.tune` has found for the model. Prints a table, and appends its rows
with all conditions to workdir/peers.jsonl.

Run it once as it is and once with CT2_USE_MKL=0 in the environment, which CTranslate2 reads when it
is imported: which of its two float32 libraries is the faster depends on the processor. The value is
among the conditions.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments.lab import cli
from experiments.speed import ctranslate2_model

CONFIG = cli.config_flag('wmt14')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the finished run', required=True)
CORES = cli.cores_flag()
SETTINGS = [(compute_type, threads) for threads in (1, 2) for compute_type in ('float32', 'int8')]
Ids = list[int]


def main(words: list[str]) -> None:
  from configs.common import to_dataclass
  from experiments.lab import cores
  from experiments.lab.packing import packed
  from experiments.lab.report import Column
  from experiments.speed.costs import rounds, table
  from experiments.speed.variants import publish
  from experiments.stern2018.text import Bench, Translation
  from fastdec import folders

  workdir = pathlib.Path(WORKDIR.value)
  cores.settle(workdir, 1, CORES.value)
  version = ctranslate2_model.version()
  c = to_dataclass(Translation, CONFIG.value)
  folder = folders.open(workdir)
  model, params = folder.model, folder.params()
  expected = dataclasses.replace(c.model, vocab_size=model.vocab_size)
  _check(model, folders.model_of(expected), workdir)
  heads = (folder.heads, folder.head_params()) if folder.has_heads else None
  measuring = Bench(c, c.table.split)
  measuring.text.check_base(workdir)
  ours = None if heads is None else packed(*heads)
  variants = [*_ours(*packed(model, params), ours, measuring), *_tuned(folder, measuring)]
  variants += _theirs(model, params, measuring)
  rows, conditions = _measure(variants, measuring), _conditions(measuring, workdir, version)
  columns = (
    Column('engine', 'engine'),
    Column('type', 'compute_type'),
    Column('threads', 'threads', missing='XLA'),
    Column('same as our greedy', 'same_as_greedy', '.1f', ' %', scale=100),
    Column('ms a sentence', 'ms_per_sentence', '.2f'),
    Column('ms a token', 'ms_per_token', '.3f'),
    Column("to CTranslate2's best float32", 'to_peer', '.2f', beside=rounds),
  )
  publish(rows, conditions, table(rows, columns), workdir / 'peers.jsonl')


def _check(model: Any, expected: Any, workdir: pathlib.Path) -> None:
  """Raises UserError for what CTranslate2 cannot run, and for a model that the config does not
  describe."""
  from fastdec.errors import UserError
  from fastdec.heads.transformed import Transformed
  from fastdec.models.transformer import Transformer

  if isinstance(model, Transformed):
    raise UserError(
      f'{workdir} has a learned p1, which CTranslate2 cannot run: give a run of'
      " heads.first='identity'"
    )
  if not isinstance(model, Transformer):
    raise UserError(
      f'{workdir} holds a {type(model).__name__}, which CTranslate2 cannot run: give a Transformer'
    )
  if model.config.norm != 'pre':
    raise UserError(
      f"{workdir} has norm='post', and only pre-norm runs in CTranslate2 here: give a"
      " run of norm='pre'"
    )
  if model != expected:
    raise UserError(
      f'{workdir} holds a model of other settings than --config: give the config that'
      ' it was trained by'
    )


def _names(engine: str, compute_type: str, threads: int | None) -> dict[str, Any]:
  """The columns of a variant; threads None: as many as XLA likes."""
  return {'engine': engine, 'compute_type': compute_type, 'threads': threads}


def _ours(model: Any, params: Any, heads: Any, measuring: Any) -> list[Any]:
  import fastdec as fd

  strategies: dict[str, Any] = {'fastdec, greedy': fd.Greedy()}
  if heads:
    strategies[f'fastdec, blockwise k = {heads[0].k}'] = fd.Blockwise(heads)
  return [
    _our_variant(model, params, name, strategy, measuring) for name, strategy in strategies.items()
  ]


def _tuned(folder: Any, measuring: Any) -> list[Any]:
  """What `experiments.tune` has found for the model, in its type; nothing where it was not
  asked."""
  import fastdec as fd
  from experiments.lab.packing import packed
  from fastdec import folders
  from fastdec.tuning.tuned import NAME

  if not (folder.path / NAME).is_file():
    return []
  tuned = fd.load_tuned(folder.path, prepare=packed)
  again = folders.open(folder.path, tuned.dtype)
  name = f'fastdec, as tuned: {tuned.name}'
  return [
    _our_variant(*packed(again.model, again.params()), name, tuned.strategy, measuring, tuned.dtype)
  ]


def _our_variant(
  model: Any, params: Any, name: str, strategy: Any, measuring: Any, compute_type: str | None = None
) -> Any:
  import numpy as np

  import fastdec as fd
  from experiments.lab.decoding import translate
  from experiments.speed.variants import Variant, Written

  table = measuring.c.table

  def rows_of(out: Any) -> list[Ids]:
    return [
      row[:length].tolist() for row, length in zip(np.asarray(out.tokens), out.lengths, strict=True)
    ]

  def decode(source: Any) -> Ids:
    return rows_of(fd.decode(model, params, source, strategy, max_len=table.max_len))[0]

  def write() -> list[Written]:
    tokenizer, tokens = measuring.text.tokenizer, measuring.tokens
    return list(
      map(
        Written,
        rows_of(translate(model, params, tokenizer, tokens, strategy, table.max_len, table.rows)),
      )
    )

  return Variant(_names(name, compute_type or model.config.dtype, None), decode, write)


def _theirs(model: Any, params: Any, measuring: Any) -> list[Any]:
  import os
  import tempfile

  import ctranslate2

  settings = [
    (compute_type, threads)
    for compute_type, threads in SETTINGS
    if threads <= len(os.sched_getaffinity(0))
  ]
  with tempfile.TemporaryDirectory() as folder:
    ctranslate2_model.write(folder, model, params)
    translators = [
      ctranslate2.Translator(folder, device='cpu', compute_type=compute_type, intra_threads=threads)
      for compute_type, threads in settings
    ]
  return [
    _their_variant(model, *setting, translator, measuring)
    for setting, translator in zip(settings, translators, strict=True)
  ]


def _their_variant(
  model: Any, compute_type: str, threads: int, translator: Any, measuring: Any
) -> Any:
  from experiments.speed.variants import Variant, Written

  table, source = measuring.c.table, measuring.tokens.source
  options = {
    'beam_size': 1,
    'min_decoding_length': 0,
    'max_decoding_length': table.max_len,
    'max_input_length': 0,
    'return_end_token': True,
    'suppress_sequences': [[str(token)] for token in model.suppressed_ids],
  }

  def decode_all(sources: Sequence[Any]) -> list[Ids]:
    pieces = [[str(token) for token in ids.tolist() if token != model.pad_id] for ids in sources]
    found = translator.translate_batch(pieces, max_batch_size=table.rows, **options)
    return [[int(token) for token in one.hypotheses[0]] for one in found]

  def decode(padded: Any) -> Ids:
    return decode_all(padded)[0]

  def write() -> list[Written]:
    return list(map(Written, decode_all([source[i] for i in range(len(source))])))

  return Variant(_names('CTranslate2', compute_type, threads), decode, write, spins=threads > 1)


def _measure(variants: Sequence[Any], measuring: Any) -> list[dict[str, Any]]:
  """One row a variant; ratios are to CTranslate2's fastest in float32, above 1 where that is the
  faster."""
  from experiments.speed.variants import compare

  sentences = measuring.timed
  compared = compare(variants, measuring.c.table.repeats, sentences)
  tokens = [
    sum(len(variant.decode(*one)) for one in sentences) / len(sentences) for variant in variants
  ]
  peers = [
    i
    for i, one in enumerate(variants)
    if one.names == _names('CTranslate2', 'float32', one.names['threads'])
  ]
  best = min(peers, key=lambda i: compared[i].timing.median / tokens[i])
  rows = []
  for one, count in zip(compared, tokens, strict=True):
    figures = {
      'same_as_greedy': one.same,
      'ms_per_sentence': one.timing.milliseconds,
      'ms_per_token': one.timing.milliseconds / count,
      'to_peer': tokens[best] / count / one.timing.speedup_over(compared[best].timing),
      'spread': [
        tokens[best] / count * ratio for ratio in compared[best].timing.speedups_over(one.timing)
      ],
      'tokens_per_sentence': count,
    }
    rows.append({**one.variant.names, **figures})
  return rows


def _conditions(measuring: Any, workdir: pathlib.Path, version: str) -> dict[str, Any]:
  import os

  own = {
    'workdir': str(workdir),
    'ctranslate2': version,
    'CT2_USE_MKL': os.environ.get('CT2_USE_MKL'),
  }
  table = measuring.c.table
  own |= {'dtype': measuring.c.model.dtype, 'batch': table.rows, 'seed': measuring.c.seed}
  own |= {'max_len': table.max_len, 'timing_batch': 1, 'timing_sentences': table.timed}
  own |= {'timing_rounds': table.repeats, 'split': table.split}
  return {**cli.conditions(), **own, 'sentences': len(measuring.tokens)}


if __name__ == '__main__':
  cli.run(main)
