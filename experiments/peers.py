"""A peer to compare with: the same trained model in CTranslate2, a decoding engine in C++ (its greedy search).

  python -m experiments.peers --config=configs/wmt14.py:scale=multi30k --workdir=out/multi30k/k8-finetune

Token ids in, token ids out, on both sides. All sentences of the table are decoded first, to count those with the
tokens of our greedy decoding: in float32 all of them, but for near ties. Then single sentences are timed in turn.
Prints a table, and appends its rows with all conditions to workdir/peers.jsonl.

Run it once as it is and once with CT2_USE_MKL=0 in the environment, which CTranslate2 reads when it is imported: which
of its two float32 libraries is the faster depends on the processor. The value is among the conditions.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from experiments.lab import cli
from experiments.speed import ctranslate2_model

CONFIG = cli.config_flag()
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the finished run', required=True)
SETTINGS = [(compute_type, threads) for threads in (1, 2) for compute_type in ('float32', 'int8')]
Ids = list[int]


class Variant(NamedTuple):
  """One way to decode."""

  engine: str
  dtype: str
  threads: int | None  # None: as many as XLA likes
  every: Callable[[], list[Ids]]  # decodes all sentences, in batches
  one: Callable[[Any], Ids]  # decodes one padded source [1, s]

  @property
  def name(self) -> str:
    return ', '.join([self.engine, self.dtype, *([f'threads {self.threads}'] if self.threads else [])])


def main(words: list[str]) -> None:
  import json

  from rich.console import Console

  from experiments.lab.text import Text
  from experiments.papers.stern2018 import text_measure, text_settings
  from fastdec import folders

  version = ctranslate2_model.version()
  experiment, workdir = text_settings.TranslationExperiment.of(CONFIG.value), pathlib.Path(WORKDIR.value)
  model, params = folders.load(workdir)
  _check(model, experiment.model_over(model.vocab_size), workdir)
  heads = folders.load_heads(workdir) if folders.has_heads(workdir) else None
  text = Text(experiment, folders.load_tokenizer(workdir), workdir)
  measuring = text_measure.Measuring(experiment, text, experiment.table.split, cli.conditions())
  variants = [*_ours(model, params, heads, measuring), *_theirs(model, params, measuring)]
  rows, conditions = _measure(variants, measuring), _conditions(measuring, workdir, version)
  with open(workdir / 'peers.jsonl', 'a') as file:
    file.write(''.join(json.dumps(row | conditions) + '\n' for row in rows))
  console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
  console.print(_markdown(rows, conditions))


def _check(model: Any, expected: Any, workdir: pathlib.Path) -> None:
  """Raises UserError for what CTranslate2 cannot run, and for a model that the config does not describe."""
  from fastdec.errors import UserError
  from fastdec.heads.transformed import Transformed
  from fastdec.models.transformer import Transformer

  if isinstance(model, Transformed):
    raise UserError(f"{workdir} has a learned p1, which CTranslate2 cannot run: give a run of heads.first='identity'")
  if not isinstance(model, Transformer):
    raise UserError(f'{workdir} holds a {type(model).__name__}, which CTranslate2 cannot run: give a Transformer')
  if model.config.norm != 'pre':
    raise UserError(f"{workdir} has norm='post', and only pre-norm runs in CTranslate2 here: give a run of norm='pre'")
  if model != expected:
    raise UserError(f'{workdir} holds a model of other settings than --config: give the config that it was trained by')


def _ours(model: Any, params: Any, heads: Any, measuring: Any) -> list[Variant]:
  import numpy as np

  import fastdec as fd
  from experiments.lab.decoding import translate

  table = measuring.experiment.table
  trimmed = lambda out: [row[:n].tolist() for row, n in zip(np.asarray(out.tokens), out.lengths, strict=True)]

  def variant(name: str, strategy: Any) -> Variant:
    every = lambda: translate(
      model, params, measuring.text.tokenizer, measuring.tokens, strategy, table.max_len, table.rows
    )
    one = lambda source: fd.decode(model, params, source, strategy, max_len=table.max_len)
    return Variant(name, model.config.dtype, None, lambda: trimmed(every()), lambda source: trimmed(one(source))[0])

  blockwise = [variant(f'fastdec, blockwise k = {heads[0].k}', fd.Blockwise(heads))] if heads else []
  return [variant('fastdec, greedy', fd.Greedy()), *blockwise]


def _theirs(model: Any, params: Any, measuring: Any) -> list[Variant]:
  import tempfile

  import ctranslate2

  with tempfile.TemporaryDirectory() as folder:
    ctranslate2_model.write(folder, model, params)
    translators = [
      ctranslate2.Translator(folder, device='cpu', compute_type=compute_type, intra_threads=threads)
      for compute_type, threads in SETTINGS
    ]
  table, source = measuring.experiment.table, measuring.tokens.source
  options = {
    'beam_size': 1,
    'min_decoding_length': 0,
    'max_decoding_length': table.max_len,
    'max_input_length': 0,
    'return_end_token': True,
    'suppress_sequences': [[str(token)] for token in model.suppressed_ids],
  }

  def variant(compute_type: str, threads: int, translator: Any) -> Variant:
    def decode(sources: Sequence[Any]) -> list[Ids]:
      pieces = [[str(token) for token in ids.tolist() if token != model.pad_id] for ids in sources]
      found = translator.translate_batch(pieces, max_batch_size=table.rows, **options)
      return [[int(token) for token in one.hypotheses[0]] for one in found]

    every = lambda: decode([source[i] for i in range(len(source))])
    return Variant('CTranslate2', compute_type, threads, every, lambda padded: decode(padded)[0])

  return [variant(*setting, translator) for setting, translator in zip(SETTINGS, translators, strict=True)]


def _measure(variants: Sequence[Variant], measuring: Any) -> list[dict[str, Any]]:
  """One row a variant; ratios are to CTranslate2's fastest in float32, above 1 where that is the faster."""
  from experiments.speed.resting import measure_resting

  greedy, *others = [variant.every() for variant in variants]
  shares = [1.0, *(sum(map(list.__eq__, ids, greedy)) / len(greedy) for ids in others)]
  tokens = [sum(len(v.one(*source)) for source in measuring.timed) / len(measuring.timed) for v in variants]
  functions = {variant.name: variant.one for variant in variants}
  spinning = {v.name for v in variants if v.engine == 'CTranslate2' and v.threads > 1}
  timings = measure_resting(functions, spinning, measuring.experiment.table.repeats, measuring.timed)
  each = [timings[variant.name] for variant in variants]
  peers = [i for i, v in enumerate(variants) if (v.engine, v.dtype) == ('CTranslate2', 'float32')]
  best = min(peers, key=lambda i: each[i].median / tokens[i])
  return [
    {
      'engine': variant.engine,
      'compute_type': variant.dtype,
      'threads': variant.threads,
      'same_as_greedy': share,
      'ms_per_sentence': timing.milliseconds,
      'ms_per_token': timing.milliseconds / count,
      'to_peer': tokens[best] / count / timing.speedup_over(each[best]),
      'tokens_per_sentence': count,
    }
    for variant, timing, count, share in zip(variants, each, tokens, shares, strict=True)
  ]


def _conditions(measuring: Any, workdir: pathlib.Path, version: str) -> dict[str, Any]:
  import os

  own = {'workdir': str(workdir), 'ctranslate2': version, 'CT2_USE_MKL': os.environ.get('CT2_USE_MKL')}
  return measuring.conditions | {'sentences': len(measuring.tokens), 'split': measuring.experiment.table.split} | own


def _markdown(rows: Sequence[Mapping[str, Any]], conditions: Mapping[str, Any]) -> str:
  lines = [
    "| engine | type | threads | same as our greedy | ms a sentence | ms a token | to CTranslate2's best float32 |",
    '|---|---|---|---|---|---|---|',
  ]
  for row in rows:
    names = f'| {row["engine"]} | {row["compute_type"]} | {row["threads"] or "XLA"} |'
    figures = f' {row["ms_per_sentence"]:.2f} | {row["ms_per_token"]:.3f} | {row["to_peer"]:.2f} |'
    lines.append(f'{names} {100 * row["same_as_greedy"]:.1f} % |{figures}')
  return '\n'.join([*lines, '', '; '.join(f'{name} {value}' for name, value in conditions.items())])


if __name__ == '__main__':
  cli.run(main)
