"""Sequence-level distillation: the training sources, as a teacher translates them (Kim and Rush
2016); or other lines of the source language (`sources`).

  workdir/parts/           shards of outputs, and what they were asked to be
  workdir/                 the text and its ids, as `model_text` has them; a source comes once for each of its outputs;
                           the records also have counts

A training source that the teacher has no words for, or that is too long for training, keeps the
translation it had; other lines have none, and are left out. What the model writes without a search
is its own text, and has that of the dev sources beside it: what is learnt from the one is watched
on the other.
"""

import dataclasses
import json
import pathlib
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax

from experiments.lab import sources
from experiments.lab.decoding import DistillConfig
from experiments.lab.model_text import RECORDS, author_of, record_of, save_ids
from experiments.lab.shards import Shards, make_all
from experiments.lab.sources import Source, Sources
from experiments.lab.text import OnText, Split, Text, TextConfig, listed
from experiments.lab.translator import Translator
from fastdec import folders
from fastdec.data.text.corpus import open_text
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.errors import UserError
from fastdec.files import locked, whole_file, write_json
from fastdec.sharding import partition_of, place
from fastdec.tokenizers.sentencepiece import EOS_ID, Tokenizer, normalise
from fastdec.training.checkpoint import check_workdir, claim_workdir
from fastdec.training.progress import Progress


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distilling(OnText):
  """A training on text that says how a teacher translates it."""

  distill: DistillConfig


def distill(
  experiment: Distilling, teacher: pathlib.Path, workdir: pathlib.Path, budget: float | None = None
) -> bool:
  """Has the teacher translate the sources, or goes on; true when the text is whole.

  Args:
    experiment: its text, and its `distill`.
    teacher: the workdir of a finished run over the same pieces.
    workdir: of the result.
    budget: seconds after which no further shard is begun; at least one is.

  Raises:
    UserError: a teacher that is not finished or has another vocabulary, sources that cannot be
      read, a workdir of something else, a full disk.
  """
  start = time.monotonic()
  model, params = folders.load(teacher)
  tokenizer = folders.load_tokenizer(teacher)
  train, dev = _sources(experiment)
  if getattr(tokenizer, 'model_proto', None) != Text.of(experiment.data).tokenizer.model_proto:
    raise UserError(
      f'{teacher} has another vocabulary than this config means: give a teacher'
      ' trained on the same text'
    )
  parts = workdir / 'parts'
  record = {'teacher': author_of(model, params, tokenizer), 'text': train.key}
  record |= {'distill': asked(experiment.distill)}
  _check(workdir, record)
  if _is_whole(experiment.data, workdir, 'train') and (
    dev is None or _has_dev(experiment.data, workdir, record, dev)
  ):
    return True
  check_workdir(parts, record)
  with locked(parts / 'lock'):
    claim_workdir(parts, record)

  if experiment.devices and jax.process_count() == 1:  # several processes have a shard each
    params = place(params, experiment.devices, partition_of(model, experiment.mesh.model))
  translator = Translator(experiment.distill, experiment.data.row_length, model, params, tokenizer)
  if dev is not None:
    with locked(parts / 'dev.lock'):
      if not _has_dev(experiment.data, workdir, record, dev):
        _write_dev(experiment.data, workdir, dev, translator, record)
  return _is_whole(experiment.data, workdir, 'train') or _write_train(
    experiment, workdir, train, translator, record, start, budget
  )


def summary(workdir: pathlib.Path) -> str:
  """What is in a finished workdir, in a sentence."""
  record = record_of(workdir)
  counts = record['counts']
  kept = f'{counts["empty"]:,} without an output and {counts["long"]:,} too long '
  kept += 'are left out' if 'sources' in record['distill'] else 'keep their translation'
  return f'{workdir} holds {counts["lines"]:,} lines for {counts["sources"]:,} sources ({kept})'


def asked(settings: DistillConfig) -> dict[str, Any]:
  """The settings as a record has them; those that change nothing are left out. The files of the
  sources are known by what is in them."""
  found = json.loads(json.dumps(dataclasses.asdict(settings)))
  if settings.sources:
    found['sources'] = 'files'
  else:
    del found['sources']
  if not settings.samples:
    for name in ('samples', 'temperature', 'seed'):
      del found[name]
  return found


def _sources(experiment: Distilling) -> tuple[Sources, Sources | None]:
  """What is rewritten, and what is held out beside it, if that is."""
  data, settings = experiment.data, experiment.distill
  files = listed(settings.sources)
  # mistakes show first
  others = sources.of_files(files, data.cache, data.row_length) if files else None
  text = open_text(data.data, data.cache)
  dev = sources.of_dev(text, data.row_length) if settings.beam == 1 else None
  return others or sources.of_training(text, data.row_length), dev


class _Written(NamedTuple):
  """A line of the result."""

  source: str
  target: str
  source_ids: list[int]
  target_ids: list[int]


def _save(
  data: TextConfig,
  workdir: pathlib.Path,
  split: Split,
  made: Iterable[tuple[list[Source], list[Any] | None]],
  tokenizer: Tokenizer,
  record: dict[str, Any],
) -> None:
  """Writes the lines of a split and their ids, then the record that says they are whole.

  Args:
    made: sources, and of each its outputs, a part at a time.
  """
  files, chunks = _files(data, workdir, split), []
  counts = {'sources': 0, 'lines': 0, 'empty': 0, 'long': 0}
  with whole_file(files[0]) as source_file, whole_file(files[1]) as target_file:
    for given, records in made:
      assert records is not None  # all are made
      counts['sources'] += len(given)
      counts['long'] += records.count(None)
      counts['empty'] += records.count([])
      written = list(_written(given, records, tokenizer))
      for source, target, *_ in written:
        source_file.write(source.encode() + b'\n')
        target_file.write(target.encode() + b'\n')
      counts['lines'] += len(written)
      chunks.append(
        (
          Ragged.of([one.source_ids for one in written]),
          Ragged.of([one.target_ids for one in written]),
        )
      )
    if not counts['lines']:
      raise UserError(
        f'the teacher has written nothing for all {counts["sources"]} {split}'
        ' sources: train it longer'
      )
  source_ids, target_ids = map(Ragged.joined, zip(*chunks, strict=True))
  lines = open_text(data.lines_of(workdir, split), data.cache)
  ids = save_ids(workdir, TokenPairs(source_ids, target_ids), tokenizer, lines.key, split)
  write_json(workdir / RECORDS[split], {**record, 'counts': counts, 'ids': ids})


def _written(given: list[Source], records: list[Any], tokenizer: Tokenizer) -> Iterator[_Written]:
  """The lines of a shard, and their ids: what a person wrote is encoded."""
  for (source, translation), outputs in zip(given, records, strict=True):
    source_ids = [*tokenizer.encode(source), EOS_ID]
    if not outputs and translation is not None:
      line = normalise(translation)
      outputs = [(line, [*tokenizer.encode(line), EOS_ID])]
    for line, ids in outputs or ():
      yield _Written(normalise(source), line, source_ids, ids)


def _write_dev(
  data: TextConfig,
  workdir: pathlib.Path,
  dev: Sources,
  translator: Translator,
  record: dict[str, Any],
) -> None:
  """Writes what the model writes for the dev sources: so few that they are no work to share."""
  given = dev.at(range(dev.count))
  with Progress(dev.count, 'dev sentence') as progress:
    made = translator.outputs(given, 0, 'dev', progress)
    progress.show('')
  _save(data, workdir, 'dev', [(given, made)], translator.tokenizer, {**record, 'text': dev.key})


def _write_train(
  experiment: Distilling,
  workdir: pathlib.Path,
  train: Sources,
  translator: Translator,
  record: dict[str, Any],
  start: float,
  budget: float | None,
) -> bool:
  """Writes what the model writes for the sources, with whoever is at it too; false where the budget
  ends first."""
  parts = workdir / 'parts'
  shards = Shards(parts, experiment.distill.shard_size, train.count)

  def make(span: range) -> list[Any]:
    return translator.outputs(train.at(span), span.start, 'train', progress)

  with Progress(train.count, 'sentence') as progress:
    if not make_all(shards, make, progress, start, budget):
      return False
  with locked(parts / 'lock'):
    if not _is_whole(experiment.data, workdir, 'train'):
      made = ((train.at(shards.span(shard)), shards.read(shard)) for shard in range(len(shards)))
      _save(experiment.data, workdir, 'train', made, translator.tokenizer, record)
  return True


def _check(workdir: pathlib.Path, record: dict[str, Any]) -> None:
  """Raises UserError where the workdir has something else."""
  there = record_of(workdir)
  made = {name: there.get(name) for name in ('counts', 'ids')}
  check_workdir(workdir, {**record, **made})


def _is_whole(data: TextConfig, workdir: pathlib.Path, split: str) -> bool:
  """Whether the text of a split is there."""
  return bool(record_of(workdir, split)) and all(
    file.exists() for file in _files(data, workdir, split)
  )


def _has_dev(data: TextConfig, workdir: pathlib.Path, record: dict[str, Any], dev: Sources) -> bool:
  """Whether the text of the dev set is there, written of these sources in this way."""
  there, wanted = record_of(workdir, 'dev'), {**record, 'text': dev.key}
  return _is_whole(data, workdir, 'dev') and all(
    there.get(name) == value for name, value in wanted.items()
  )


def _files(data: TextConfig, workdir: pathlib.Path, split: str) -> list[pathlib.Path]:
  return [workdir / f'{split}.{language}' for language in (data.source, data.target)]
